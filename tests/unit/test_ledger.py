"""The ledger: what was spent by job, provider or day, and what it would have cost on demand."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import pytest

from broker.ledger import ledger, total
from broker.store import JobRow, PlacementRow

MIDNIGHT = time.mktime((2026, 3, 29, 0, 0, 0, 0, 0, -1))  # a day of 23 hours where clocks are put forward
HOUR = 3600.0


def job(name: str, *, usual: float | None = 2.0) -> JobRow:
    ranked = [] if usual is None else [{"key": "acme/oslo/a/large/spot", "cost": 0.5, "on_demand": usual}]
    return JobRow(name, name, MIDNIGHT, "running", "file:///h", {}, plan={"ranked": ranked})


def placement(
    name: str,
    generation: int,
    begin: float,
    hours: float | None,
    *,
    hourly: float = 0.5,
    market: str = "spot",
    **offer: Any,
) -> PlacementRow:
    what = {"provider": "acme", "region": "oslo", "zone": "a", "instance_type": "large", **offer}
    end = None if hours is None else begin + hours * HOUR
    return PlacementRow(
        name,
        generation,
        "ended",
        {"offer": what},
        (),
        begin,
        market=market,
        hourly=hourly,
        launched_at=begin,
        ended_at=end,
    )


def test_by_job_with_what_on_demand_would_have_cost() -> None:
    jobs = [
        (job("a"), [placement("a", 1, MIDNIGHT, 2), placement("a", 2, MIDNIGHT + 2 * HOUR, None)]),
        (job("b", usual=None), [placement("b", 1, MIDNIGHT + HOUR, 4)]),
        (job("never"), [PlacementRow("never", 1, "closed", {"offer": {}}, (), MIDNIGHT)]),
    ]
    a, b = ledger(jobs, by="job", now=MIDNIGHT + 4 * HOUR)
    assert (a.what, a.spent, a.on_demand, a.hours, a.machines) == ("a", 2.0, 8.0, 4.0, 2)
    assert a.saved == 6.0
    assert (b.spent, b.on_demand, b.saved) == (2.0, None, None)
    assert total([a, b]).spent == 4.0
    assert total([a, b]).on_demand is None


def test_on_demand_itself_saves_nothing() -> None:
    rows = [(job("a", usual=None), [placement("a", 1, MIDNIGHT, 1, hourly=3.0, market="on_demand")])]
    (line,) = ledger(rows, by="provider", now=MIDNIGHT + HOUR)
    assert (line.what, line.spent, line.saved) == ("acme", 3.0, 0.0)


def test_a_night_is_split_at_midnight() -> None:
    rows = [(job("a"), [placement("a", 1, MIDNIGHT - 2 * HOUR, 3.5)])]
    first, second = ledger(rows, by="day", now=MIDNIGHT + 9 * HOUR)
    assert (first.what, first.hours) == ("2026-03-28", 2.0)
    assert (second.what, second.hours) == ("2026-03-29", 1.5)
    assert first.spent + second.spent == pytest.approx(3.5 * 0.5)
    assert [line.machines for line in (first, second)] == [1, 1]


@pytest.mark.parametrize(
    ("tz", "day", "hours"),
    [
        ("America/Havana", "2027-03-14", 23),  # which has no midnight
        ("America/Havana", "2026-11-01", 25),  # which has two
        ("Asia/Beirut", "2027-03-28", 23),
        ("America/Santiago", "2027-04-03", 25),  # the hour before midnight comes twice
        ("Australia/Lord_Howe", "2026-10-04", 23.5),
        ("Asia/Kathmandu", "2026-10-04", 24),
    ],
)
def test_days_have_the_hours_that_their_clocks_give_them(
    monkeypatch: pytest.MonkeyPatch, tz: str, day: str, hours: float
) -> None:
    monkeypatch.setenv("TZ", tz)
    time.tzset()
    try:
        begin = datetime.fromisoformat(f"{day}T12:00").timestamp() - 36 * HOUR
        lines = ledger([(job("a"), [placement("a", 1, begin, 72)])], by="day", now=begin + 99 * HOUR)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert {line.what: line.hours for line in lines}[day] == hours
    assert [line.what for line in lines] == sorted({line.what for line in lines})
    assert total(lines).hours == 72
    assert total(lines).spent == 36.0


def test_hours_before_since_do_not_count() -> None:
    rows = [(job("a"), [placement("a", 1, MIDNIGHT, 2), placement("a", 2, MIDNIGHT + 2 * HOUR, 2)])]
    (line,) = ledger(rows, by="job", now=MIDNIGHT + 9 * HOUR, since=MIDNIGHT + 3 * HOUR)
    assert (line.hours, line.machines) == (1.0, 1)
    assert ledger(rows, by="job", now=MIDNIGHT + 9 * HOUR, since=MIDNIGHT + 5 * HOUR) == []


def test_simulated_money_never_adds_to_real() -> None:
    rows = [
        (job("a"), [placement("a", 1, MIDNIGHT, 1), placement("a", 2, MIDNIGHT, 1, provider="local", simulated=True)])
    ]
    lines = ledger(rows, by="job", now=MIDNIGHT + HOUR)
    assert [(line.what, line.simulated) for line in lines] == [("a", False), ("a", True)]
    assert total(lines).spent == 0.5
    assert total(lines, simulated=True).spent == 0.5
