"""`local`: machines on this computer, for rehearsals and for tasks without a GPU. Its money is simulated.

A machine is a folder and a tree of real processes under a supervisor of its own; see README.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broker_local.provider import LocalProvider

__all__ = ["LocalProvider"]


def __getattr__(name: str) -> Any:
    # The supervisor and the guest import from this package with the standard library only.
    if name == "LocalProvider":
        from broker_local.provider import LocalProvider

        return LocalProvider
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
