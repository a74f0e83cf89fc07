"""RunPod: pods on demand by its REST API, spot pods by its GraphQL API while that rents them; see README.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broker_runpod.provider import RunPodProvider

__all__ = ["RunPodProvider"]


def __getattr__(name: str) -> Any:
    # The guest's half is imported from this package with the standard library only.
    if name == "RunPodProvider":
        from broker_runpod.provider import RunPodProvider

        return RunPodProvider
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
