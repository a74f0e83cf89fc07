"""`aws`: EC2 machines, on spot and on demand, in every region that the account has enabled; see README.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broker_aws.provider import AwsProvider

__all__ = ["AwsProvider"]


def __getattr__(name: str) -> Any:
    # The guest imports from this package with the standard library only.
    if name == "AwsProvider":
        from broker_aws.provider import AwsProvider

        return AwsProvider
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
