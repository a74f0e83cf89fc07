"""Vast.ai: a marketplace of other people's GPUs, rented by the second, on-demand or by bid."""

from broker_vast.provider import VastProvider

__all__ = ["VastProvider"]
