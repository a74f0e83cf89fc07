"""`Hand`: the other side of a provider, where machines are taken back and calls go wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from broker.errors import ProviderError
from broker.offer import Offer
from broker.provider import Instance, Provider


class Hand(Protocol):
    """What the conformance suite does to a cloud behind the provider's back.

    A method that a cloud has no way for raises NotImplementedError; the tests that need it are then skipped by name.
    """

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Let up to so many of the cloud's seconds pass until the condition holds; whether it did."""

    def reconnect(self) -> Provider:
        """The same account, opened as a new process would: nothing remembered."""

    def take_back(self, instance: Instance, *, notice: bool) -> None:
        """Take the machine back, after its notice where there is one, or at once and without a word."""

    def delete(self, instance: Instance) -> None:
        """End the machine as its user would, in the provider's console."""

    def refuse(self, offer: Offer, error: type[ProviderError] | str) -> None:
        """Refuse the next launch of the offer: with the provider's own word for that error, or with this very code."""

    def fail_after_create(self) -> None:
        """The next launch makes its machine and then fails to answer."""

    def hide(self, seconds: float) -> None:
        """Leave new machines out of listings until they are so old."""

    def leave_unanswered(self, call: str) -> None:
        """The next call of that name (`instances`, `offers`) gets no answer, or a fault of the provider's own."""


def wait_for(condition: Callable[[], bool], seconds: float, *, every: float = 0.02) -> bool:
    """Look until the condition holds, for so many real seconds; whether it did."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True
