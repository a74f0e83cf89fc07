"""Offers that one launch may ask for together: any of them is as good as what would be tried next. Pure."""

from __future__ import annotations

from broker.offer import Market, Offer
from broker.policy.decision import Decision

MOST = 40
"""Offers in one launch: what EC2's machines can say of it in their tags."""
DEARER = 1.25
"""Times the best one's cost that a member may cost: beyond, another try for the best is worth more than its hurry."""


def together(decision: Decision) -> tuple[Offer, ...]:
    """The spot offers of the chosen one's region that may win in its place, it first; empty where there is no other.

    A member is like the chosen one in all that the frozen request rests on: the alternative of the task, the cards,
    the processor, the disk. It costs no more than the first offer of elsewhere, which would be next if this one region
    had nothing, so that a machine had at once is never a worse one.
    """
    best = decision.ranked[0] if decision.ranked else None
    if best is None or best.offer is not decision.offer or best.offer.market is not Market.SPOT:
        return ()
    worth = best.cost if best.finish is None else best.finish.total
    members: list[Offer] = []
    for candidate in decision.ranked:
        offer = candidate.offer
        cost = candidate.cost if candidate.finish is None else candidate.finish.total
        if (offer.provider, offer.region) != (best.offer.provider, best.offer.region) or cost > DEARER * worth:
            break
        if candidate.alternative == best.alternative and _alike(offer, best.offer):
            members.append(offer)
    return tuple(members[:MOST]) if len(members) > 1 else ()


def _alike(one: Offer, other: Offer) -> bool:
    return _form(one) == _form(other) and one.market is Market.SPOT and one.ends_at is None


def _form(offer: Offer) -> tuple[object, ...]:
    return offer.gpu, offer.gpu_count, offer.gpu_memory, offer.disk, offer.extra.get("architecture")
