"""What a job would cost on several prices, before any run: the table that people make by hand.

Two comparisons are made, and each names what it compares with. Percent saved is against the dearest on-demand price
of the list, what one would pay without looking. Whether spot is worth its interruptions is asked against the cheapest
one, since that is what would be rented instead.

Money is USD, time hours, data GB as stores bill it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from broker.offer import Market, Offer
from broker.policy.cost import expected
from broker.policy.hazard import MONTH, model, prior

KEPT = 3
"""Checkpoints that a home keeps unless told otherwise."""
STORE = 0.023
"""USD per GB and month of an object store: the list price of S3 Standard in us-east-1."""
_OFTEN = 1e3
"""Interruptions per hour beyond which nothing is looked for."""


@dataclass(frozen=True, slots=True)
class Price:
    """USD per hour of the whole machine at a provider. interruptions: per hour, None for the prior of the card."""

    provider: str
    market: Market
    hourly: float
    interruptions: float | None = None


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What the table rests on. card: by its name, for the prior; count: how many.

    interruptions: per hour, over whatever the prices say. checkpoint: hours between two saves, of which half is lost
    on average. restart: hours from a loss to the next step. gigabytes: of one checkpoint. value: USD that an hour of
    one's own time is worth.
    """

    hours: float
    card: str = ""
    count: int = 0
    interruptions: float | None = None
    checkpoint: float = 0.5
    restart: float = 5 / 60
    gigabytes: float = 0.0
    value: float = 50.0


@dataclass(frozen=True, slots=True)
class Row:
    """One price. cost: without interruptions; expected: with them. losses: how many to expect.

    saved and saved_expected: percent of the dearest on-demand cost. break_even: interruptions per hour at which spot
    comes to the cheapest on-demand cost; None where there is none to compare with, 0 where spot is no cheaper at all.
    """

    provider: str
    market: Market
    hourly: float
    cost: float
    expected: float
    hazard: float
    losses: float
    saved: float | None
    saved_expected: float | None
    break_even: float | None


@dataclass(frozen=True, slots=True)
class Estimate:
    """rows: in the order of the prices. against: the dearest on-demand row; instead: the cheapest.

    best: least expected cost. saving: USD expected with it instead of the cheapest on-demand; None without one.
    worth: hours of one's own time that the saving pays for. storage: USD for the checkpoints that are kept meanwhile.
    """

    assumptions: Assumptions
    rows: tuple[Row, ...]
    against: Row | None
    instead: Row | None
    best: Row
    saving: float | None
    worth: float | None
    storage: float

    def to_json(self) -> dict[str, Any]:
        """Plain data; money to a millionth, so that 0.1 + 0.2 is 0.3."""

        def plain(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: plain(entry) for key, entry in value.items()}
            if isinstance(value, list | tuple):
                return [plain(entry) for entry in value]
            return round(value, 6) if isinstance(value, float) else value

        found: dict[str, Any] = plain(asdict(self))
        return found


def estimate(prices: Iterable[Price], assumptions: Assumptions) -> Estimate:
    """The table. Raises ValueError without any price."""
    stated = list(prices)
    if not stated:
        raise ValueError("an estimate needs at least one price")
    steady = [price.hourly * assumptions.hours for price in stated if price.market is Market.ON_DEMAND]
    dearest, cheapest = (max(steady), min(steady)) if steady else (None, None)
    rows = tuple(_row(price, assumptions, dearest, cheapest) for price in stated)
    on_demand = [row for row in rows if row.market is Market.ON_DEMAND]
    best = min(rows, key=lambda row: (row.expected, row.market is Market.SPOT))
    instead = min(on_demand, key=lambda row: row.cost, default=None)
    saving = instead.cost - best.expected if instead else None
    return Estimate(
        assumptions=assumptions,
        rows=rows,
        against=max(on_demand, key=lambda row: row.cost, default=None),
        instead=instead,
        best=best,
        saving=saving,
        worth=saving / assumptions.value if saving is not None and assumptions.value > 0 else None,
        storage=KEPT * assumptions.gigabytes * STORE * assumptions.hours / MONTH,
    )


def _row(price: Price, given: Assumptions, dearest: float | None, cheapest: float | None) -> Row:
    spot = price.market is Market.SPOT
    hazard = 0.0
    if spot:
        known = given.interruptions if given.interruptions is not None else price.interruptions
        hazard = prior(model(given.card), "") if known is None else known
    cost = price.hourly * given.hours
    total, losses = _with(price, given, hazard)
    return Row(
        provider=price.provider,
        market=price.market,
        hourly=price.hourly,
        cost=cost,
        expected=total,
        hazard=hazard,
        losses=losses,
        saved=None if dearest is None else 100 * (1 - cost / dearest),
        saved_expected=None if dearest is None else 100 * (1 - total / dearest),
        break_even=_break_even(price, given, cheapest) if spot and cheapest is not None else None,
    )


def _with(price: Price, given: Assumptions, hazard: float) -> tuple[float, float]:
    """The expected cost, and how often the machine is lost. The first start is left out: every price has it."""
    offer = Offer(price.provider, "", "", "", price.market, price.hourly)
    cost = expected(
        offer,
        given.hours,
        hazard=hazard,
        lost_hours=given.checkpoint / 2,
        restart_hours=given.restart,
        start_hours=0.0,
    )
    return cost.total, cost.moves


def _break_even(price: Price, given: Assumptions, cheapest: float) -> float | None:
    """Interruptions per hour at which spot costs what on-demand does; None where it never does."""
    if price.hourly * given.hours >= cheapest:
        return 0.0
    low, high = 0.0, _OFTEN
    if _with(price, given, high)[0] < cheapest:
        return None
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _with(price, given, middle)[0] < cheapest else (low, middle)
    return low
