"""What a prepaid account still pays for: asked before a launch, and every hour while something is rented.

A marketplace ends or stops the machines of an account with nothing left, so an offer that the balance does not pay for
an hour is not taken. A balance that cannot be read hinders nothing: it is unknown.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from broker.offer import Offer
from broker.provider import Instance, Prepaid, Provider

LEAST_HOURS = 1.0
"""An offer that the balance does not pay for so long is not taken."""
LOW_HOURS = 3.0
"""From then on the user is told."""
FRESH = 60.0
"""Seconds for which an answer is good for the next question."""
LOOK_EVERY = 3600.0

_known: weakref.WeakKeyDictionary[Prepaid, tuple[float, float | None]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def balance_of(provider: Provider) -> float | None:
    """USD that a prepaid account has left; None for one that is not prepaid, or did not say."""
    adapter = getattr(provider, "adapter", provider)
    if not isinstance(adapter, Prepaid):
        return None
    with _lock:
        at, usd = _known.get(adapter, (float("-inf"), None))
    if time.monotonic() - at < FRESH:
        return usd
    try:
        usd = float(adapter.balance())
    except Exception:  # noqa: BLE001 - whatever is wrong with the account, the launch itself will tell
        usd = None
    with _lock:
        _known[adapter] = (time.monotonic(), usd)
    return usd


def payable(provider: Provider, offers: Sequence[Offer]) -> Sequence[Offer]:
    """The offers; those that the balance does not pay for an hour are marked as blocked."""
    if not offers or all(offer.blocked for offer in offers):
        return offers
    usd = balance_of(provider)
    if usd is None:
        return offers
    word = f"too little money: {_dollars(usd)} prepaid does not pay for an hour; add some in {provider.name}'s console"
    return [
        offer if offer.blocked or offer.hourly * LEAST_HOURS <= usd else replace(offer, blocked=word)
        for offer in offers
    ]


def balance_word(provider: Provider, hourly: float) -> str | None:
    """What to tell the user who rents for `hourly` USD in all; None where all is well or nothing is known."""
    usd = balance_of(provider)
    if usd is None or hourly <= 0 or usd / hourly >= LOW_HOURS:
        return None
    return (
        f"{provider.name} has {_dollars(usd)} of prepaid money left, {_hours(usd / hourly)} at {hourly:.2f} USD/h: "
        "when it is gone the machines there end; add some in its console"
    )


def plan_word(provider: Provider, offer: Offer, expected: float | None) -> str:
    """The plan's line for the chosen offer; empty outside prepaid accounts. expected: USD that finishing costs."""
    usd = balance_of(provider)
    if usd is None:
        return ""
    text = f"{_dollars(usd)} prepaid with {provider.name}, {_hours(usd / offer.hourly)} at {offer.hourly:.2f} USD/h"
    if expected is not None and expected > usd:
        text += f"; finishing is expected to cost {_dollars(expected)}: add {_dollars(expected - usd)} in time"
    return text


@dataclass(slots=True)
class Balances:
    """Looks every hour whether what is rented can go on being paid for."""

    clock: Callable[[], float] = time.monotonic
    looked: dict[str, float] = field(default_factory=dict)

    def look(
        self, provider: Provider, rented: Iterable[Instance], jobs: Iterable[str], tell: Callable[[str, str], None]
    ) -> None:
        """Tell every job by `tell(job, word)` where the money of its provider runs out. rented: all that is billed."""
        last = self.looked.get(provider.name)
        if last is not None and self.clock() - last < LOOK_EVERY:
            return
        hourly = sum(instance.hourly for instance in rented if instance.alive)
        if hourly <= 0:
            return
        self.looked[provider.name] = self.clock()
        if word := balance_word(provider, hourly):
            for job in jobs:
                tell(job, word)


def _dollars(usd: float) -> str:
    return f"${usd:.2f}"


def _hours(hours: float) -> str:
    if hours < 1:
        return f"enough for {60 * hours:.0f} minutes"
    return f"enough for {hours:.0f} h" if hours >= 10 else f"enough for {hours:.1f} h"
