"""What to bid where machines go to who pays more: up to where moving elsewhere would be cheaper. Pure.

On AWS and Azure a bid is a limit, not a price: the going price is charged as long as it lies below. So a higher bid
costs nothing until the price rises, and saves a move when it does. Where the bid itself is charged (`pays_bid` in the
offer's extra: RunPod, Vast) nothing is bid here: the adapter bids the offer's price, by which it was chosen. Three
things bound a bid: what the task allows, since it may come to be charged; the price at which finishing on the next best
offer, the move to it included, would cost less; and the same machine on demand, above which nobody should pay for one
that can be taken back.

More is bid for a machine that runs, where it would be lost otherwise and that is dearer (`raised`).

Money is USD per hour of the whole machine: with its disk where the bid is a limit, without where it is paid.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.offer import Market
from broker.policy.cost import RESTART, Prospect
from broker.policy.decision import Candidate, Decision, Wish

HEADROOM = 2.0
"""Times the present price, where there is nothing to compare with."""
HORIZON = 4.0
"""Hours over which a move is written off where the work left is not known."""
WORTH_RAISING = 0.02
"""A raise by less, as a share of the bid, changes nothing."""
BUDGETED = 1.25
"""Times the present price that is bid where a budget must hold: it counts the bid, and is to last for the work."""
ABOVE = 0.1
"""The share by which a paid bid is raised above what the machine goes for: it is not to be outbid at once again."""
LIMITS = ("aws", "azure")
"""Providers where a bid is a limit (EC2's MaxPrice, Azure's maxPrice); elsewhere an offer says so by `bid_limit`."""


def bid(decision: Decision, wish: Wish, hazard: float, *, limited: bool = False) -> float | None:
    """The bid for the chosen offer; None where nothing is bid, and where the offer's own price is bid and paid.

    hazard: losses per hour that are expected of it. limited: a budget counts what may come to be charged, so that
    little more than the price is bid.
    """
    offer = decision.offer
    if offer is None or offer.market is not Market.SPOT or offer.extra.get("pays_bid"):
        return None
    if offer.provider not in LIMITS and not offer.extra.get("bid_limit"):
        return None
    highest = limit(decision.ranked[0], decision.ranked[1:], wish.prospect, hazard)
    highest = min(highest, BUDGETED * offer.hourly) if limited else highest
    return capped(highest, wish.max_price)


def capped(highest: float, max_price: float | None) -> float:
    """No more than the task allows for an hour, whatever a move would cost: what is bid may come to be charged."""
    return highest if max_price is None else min(highest, max_price)


def limit(
    chosen: Candidate, others: Sequence[Candidate], prospect: Prospect | None, hazard: float, *, running: bool = False
) -> float:
    """The highest price at which staying is no dearer than moving, never below the present one's floor.

    running: the machine is there already, so that only the move away counts.
    """
    work = prospect.hours if prospect is not None and prospect.hours else HORIZON
    restart = prospect.restart(chosen.offer) if prospect is not None else RESTART
    lost = prospect.lost if prospect is not None else 0.0
    pace = prospect.speed_of(chosen.offer) if prospect is not None else 1.0
    stay_hours = (work / pace) * (1 + hazard * (lost + restart)) + (0.0 if running else restart)
    bounds = [moved(other, work, prospect, restart) / stay_hours for other in others[:50] if other is not chosen]
    on_demand = _on_demand(chosen)
    bounds += [on_demand] if on_demand is not None else []
    bounds += [] if bounds else [HEADROOM * chosen.cost]
    highest = max(chosen.cost, min(bounds))
    return min(highest, on_demand) if on_demand is not None else highest


def _on_demand(chosen: Candidate) -> float | None:
    """What the same machine costs on demand: as it is offered, else as its provider says beside the spot price."""
    said = chosen.offer.extra.get("on_demand") if chosen.offer.extra else None
    if chosen.on_demand is not None or not isinstance(said, int | float) or said <= 0:
        return chosen.on_demand
    return said + chosen.offer.hourly - chosen.offer.price


def moved(other: Candidate, work: float, prospect: Prospect | None, restart: float) -> float:
    """USD to finish on another offer after a move to it."""
    if other.finish is not None and prospect is not None and prospect.hours:
        return other.finish.total
    return other.cost * (work + restart)


def raised(standing: float, highest: float, floor: float) -> float | None:
    """The new bid for a running machine whose price nears what was bid; None where it stays or the machine is left.

    standing: what is bid now, and paid. highest: `limit` now. floor: what the machine goes for now. All without disk.
    """
    if floor <= standing * (1 - WORTH_RAISING) or highest <= standing * (1 + WORTH_RAISING) or highest < floor:
        return None
    return min(highest, max(floor, standing) * (1 + ABOVE))
