"""Lambda Cloud: virtual machines on demand. It sells no spot machines; see README.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broker_lambda.provider import LambdaProvider

__all__ = ["LambdaProvider"]


def __getattr__(name: str) -> Any:
    # The guest's half is imported from this package with the standard library only.
    if name == "LambdaProvider":
        from broker_lambda.provider import LambdaProvider

        return LambdaProvider
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
