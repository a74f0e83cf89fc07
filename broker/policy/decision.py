"""What a decision is made of: the wish, the candidates, what was rejected and why. Plain data with lines for people."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from broker.offer import Market, Offer, OfferQuery, Trust
from broker.policy.cost import Cost, Prospect
from broker.policy.timing import Timing

COULD_READ = " host could read "
SOON = 86_400.0
"""Seconds before the end of a host that is told of even where nobody knows how long the work takes."""
HOME_KEY = "the home's key"
"""Stands among the secrets where machines would get a key that reaches more than their job."""


class Kind(StrEnum):
    """What an offer was rejected for, in the order in which it is looked at."""

    INFRA = "infra"
    SHAPE = "shape"
    PRICELESS = "priceless"
    ENDING = "ending"
    MARKET = "market"
    BLOCKED = "blocked"
    PRICE = "price"
    UNUSABLE = "unusable"
    TRUST = "trust"
    COOLDOWN = "cooldown"
    TIE = "tie"


@dataclass(frozen=True, slots=True)
class Wish:
    """What the task asks of its machine. queries: its alternatives, in the task's order; any of them will do.

    spot: "auto" (whichever is cheaper), "only" or "never". max_price: USD per hour of the whole machine, disk included.
    ordered: an offer for an earlier query goes before every offer for a later one, whatever the prices.
    prospect: the work ahead; where it knows the hours, offers are ranked by what finishing costs.
    trust: of each secret that goes along, the least trusted kind of host that may read it.
    """

    queries: tuple[OfferQuery, ...]
    spot: str = "auto"
    max_price: float | None = None
    ordered: bool = False
    prospect: Prospect | None = None
    trust: Mapping[str, Trust] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.spot not in ("auto", "only", "never"):
            raise ValueError(f"spot is auto, only or never, not {self.spot!r}")
        if not self.queries:
            raise ValueError("a wish needs at least one query")


class Candidate(NamedTuple):
    """An offer that may be taken. cost: USD per hour, disk included. alternative: index of the query that it fits.

    on_demand: what the same machine costs on demand, where that is known. insisted: cools down, but nothing else fits.
    taken: the card, where the task left open which form of it or which card with its memory.
    finish: what finishing costs with it, where the work is known; the first thousand of a decision carry it.
    """

    offer: Offer
    cost: float
    alternative: int = 0
    on_demand: float | None = None
    insisted: str = ""
    taken: str = ""
    finish: Cost | None = None

    @property
    def why(self) -> str:
        """One line for people."""
        offer = self.offer
        spot = offer.market is Market.SPOT
        beside = {"disk": offer.disk_price, "address": offer.address_price}
        parts = "".join(f" + {name} {usd:.4f}" for name, usd in beside.items() if usd)
        parts = f" (machine {offer.price:.4f}{parts})" if parts else ""
        text = f"{self.taken}, " if self.taken else ""
        text += f"{'spot' if spot else 'on-demand'} in {offer.where} at {self.cost:.4f} USD/h{parts}"
        if spot and self.on_demand:
            saves = 100 * (1 - self.cost / self.on_demand)
            text += f"; on-demand would be {self.on_demand:.4f}" + (f", saves {saves:.0f}%" if saves >= 0 else "")
            text += " (saves nothing)" if saves < 0 else ""
        if offer.ends_at is not None and self.finish is not None and self.finish.ends:
            text += f"; ends {clock(offer.ends_at)}, migration planned"
        elif offer.ends_at is not None and self.finish is None and offer.ends_at < offer.fetched_at + SOON:
            text += f"; ends {clock(offer.ends_at)}, and how long the work takes is not known"
        if self.insisted:
            text += f"; {self.insisted}, tried again since nothing else fits"
        return text


class Rejected(NamedTuple):
    """An offer passed over, with the first reason found. cost: USD per hour, disk included."""

    offer: Offer
    reason: str
    kind: Kind
    cost: float

    @property
    def exposed(self) -> tuple[str, ...]:
        """Of one passed over for its trust: the secrets that its host could read."""
        return tuple(self.reason.partition(COULD_READ)[2].split(", ")) if self.kind is Kind.TRUST else ()


@dataclass(frozen=True, slots=True)
class Decision:
    """offer: what to take, None for nothing. ranked: best first. reasons: lines for people.

    next_try: with no offer, when a cooldown allows the next attempt or the market is to be looked at again, seconds
    since the epoch; None where waiting does not help. timing: what a deadline asked for. spotless: since when no
    spot has been there for a job that holds out for it. unasked: with no offer, some provider did not answer. short:
    the budget that does not pay for as much as the start of what would be taken.
    """

    offer: Offer | None
    ranked: tuple[Candidate, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    reasons: tuple[str, ...] = ()
    next_try: float | None = None
    timing: Timing | None = None
    spotless: float | None = None
    unasked: bool = False
    short: str = ""

    @property
    def waits(self) -> bool:
        """Is something to be had, and passed over for now?"""
        return self.offer is None and (self.timing is not None or self.spotless is not None)

    @property
    def alternative(self) -> int:
        """Index of the task's resources that the chosen offer fits; 0 without one."""
        return self.ranked[0].alternative if self.ranked else 0

    def to_json(self, limit: int = 20) -> dict[str, Any]:
        """Plain data for logs and events; of the ranked and the rejected at most `limit` each, with their numbers."""
        return {
            "offer": self.offer.to_json() if self.offer else None,
            "alternative": self.alternative,
            "reasons": list(self.reasons),
            "next_try": self.next_try,
            "timing": self.timing.to_json() if self.timing else None,
            "spotless": self.spotless,
            "ranked": [
                {
                    "key": c.offer.key,
                    "cost": c.cost,
                    "why": c.why,
                    **({"finish": c.finish.to_json()} if c.finish else {}),
                }
                for c in self.ranked[:limit]
            ],
            "ranked_count": len(self.ranked),
            "rejected": [{"key": r.offer.key, "reason": r.reason} for r in self.rejected[:limit]],
            "rejected_count": len(self.rejected),
        }


def money(usd: float) -> str:
    """At least two decimals, at most four: `0.50`, `0.0312`."""
    text = f"{usd:.4f}"
    return text[:-2] if text.endswith("00") else text.rstrip("0")


def clock(at: float) -> str:
    """A moment as people here read it, local time, to the minute."""
    return time.strftime("%H:%M", time.localtime(at))
