"""What was spent, by job, provider or day, and what the same hours would have cost on demand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from broker.report import on_demand_prices
from broker.store import JobRow, PlacementRow

By = Literal["job", "provider", "day"]
DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the ledger. spent, on_demand: USD; on_demand is None where no price for it is known. hours: of
    machines. simulated: the money is not real."""

    what: str
    spent: float
    on_demand: float | None
    hours: float
    machines: int
    simulated: bool

    @property
    def saved(self) -> float | None:
        return None if self.on_demand is None else self.on_demand - self.spent

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "saved": self.saved}


@dataclass(frozen=True, slots=True)
class Stay:
    """The part of a placement that falls into one line."""

    what: str
    start: float
    end: float
    hourly: float
    usual: float | None
    simulated: bool
    machine: tuple[str, int]

    @property
    def hours(self) -> float:
        return max(0.0, self.end - self.start) / 3600


def ledger(
    jobs: Iterable[tuple[JobRow, Iterable[PlacementRow]]], *, by: By, now: float, since: float | None = None
) -> list[Line]:
    """The lines in the order of their first machine. since: seconds since the epoch, hours before it do not count.

    Real and simulated money never share a line. A machine that runs over midnight counts for both days, by the local
    clock.
    """
    kept: dict[tuple[str, bool], list[Stay]] = {}
    for row, placements in jobs:
        prices = on_demand_prices(row.plan or {})
        for placement in placements:
            for stay in _stays(row, placement, prices, by=by, now=now, since=since):
                kept.setdefault((stay.what, stay.simulated), []).append(stay)
    ordered = sorted(kept.items(), key=lambda item: min(stay.start for stay in item[1]))
    return [_line(what, simulated, stays) for (what, simulated), stays in ordered]


def total(lines: Iterable[Line], *, simulated: bool = False) -> Line:
    """The sum of the real lines, or of the simulated ones."""
    chosen = [line for line in lines if line.simulated is simulated]
    usual = [line.on_demand for line in chosen]
    return Line(
        "total",
        sum(line.spent for line in chosen),
        None if None in usual else sum(value or 0.0 for value in usual),
        sum(line.hours for line in chosen),
        sum(line.machines for line in chosen),
        simulated,
    )


def _line(what: str, simulated: bool, stays: list[Stay]) -> Line:
    known = all(stay.usual is not None for stay in stays)
    return Line(
        what,
        sum(stay.hourly * stay.hours for stay in stays),
        sum((stay.usual or 0.0) * stay.hours for stay in stays) if known else None,
        sum(stay.hours for stay in stays),
        len({stay.machine for stay in stays}),
        simulated,
    )


def _stays(
    row: JobRow,
    placement: PlacementRow,
    prices: Mapping[str, float],
    *,
    by: By,
    now: float,
    since: float | None,
) -> Iterator[Stay]:
    if placement.launched_at is None or placement.hourly is None:
        return
    offer = placement.request["offer"]
    start = max(placement.launched_at, since if since is not None else placement.launched_at)
    end = placement.ended_at or now
    if end <= start and since is not None:
        return
    usual = prices.get("/".join(str(offer[part]) for part in ("provider", "region", "zone", "instance_type")))
    if placement.market == "on_demand":
        usual = placement.hourly
    for what, begin, finish in _parts(row, str(offer["provider"]), by, start, end):
        yield Stay(
            what,
            begin,
            finish,
            placement.hourly,
            usual,
            bool(offer.get("simulated")),
            (row.id, placement.generation),
        )


def _parts(row: JobRow, provider: str, by: By, start: float, end: float) -> Iterator[tuple[str, float, float]]:
    if by != "day":
        yield (row.id if by == "job" else provider), start, end
        return
    while True:
        day = datetime.fromtimestamp(start).astimezone().date()
        # Where clocks jump over it, the day begins an hour late, whatever `mktime` of this system makes of that.
        midnight = datetime.combine(day + timedelta(days=1), datetime.min.time()).timestamp()
        yield day.isoformat(), start, min(end, midnight)
        if end <= midnight:
            return
        start = midnight
