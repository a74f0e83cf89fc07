"""Budgets are hard: whatever happens to machines and brokers, what was spent stays within them."""

from __future__ import annotations

import calendar
import math
import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.policy.budget import SETTLING, Bill, Purse, ends, month, next_month

NOW = 1_790_000_000.0
HOUR = 3600.0


def test_what_is_left_is_what_nothing_has_a_claim_on() -> None:
    ended = Bill(2.0, NOW - 3 * HOUR, NOW - HOUR, over=True)
    running = Bill(1.0, NOW - HOUR, NOW + 2 * HOUR)
    purse = Purse("budget", 10.0, (ended, running))
    assert purse.spent(NOW) == pytest.approx(5.0)
    assert purse.committed(NOW) == pytest.approx(2.0)
    assert purse.left(NOW) == pytest.approx(3.0)
    ((until, name),) = ends([purse], 1.5, NOW)
    assert name == "budget"
    assert NOW + 2 * HOUR - 60 <= until < NOW + 2 * HOUR


def test_a_machine_that_should_have_ended_is_still_billed() -> None:
    late = Bill(1.0, NOW - 2 * HOUR, NOW - HOUR)
    assert late.spent(NOW) == pytest.approx(2.0)
    assert late.committed(NOW) == pytest.approx(SETTLING / HOUR)


def test_a_price_that_may_rise_is_committed_at_its_most() -> None:
    assert Bill(1.0, NOW, NOW + HOUR, most=1.5).committed(NOW) == pytest.approx(1.5)


def test_nothing_is_left_after_the_limit() -> None:
    purse = Purse("budget", 1.0, (Bill(1.0, NOW - 2 * HOUR, NOW - HOUR, over=True),))
    assert purse.until(1.0, NOW) <= NOW


def test_what_is_billed_next_month_is_next_months() -> None:
    """Four hours before it begins, with six USD left and another machine that goes on for ten hours."""
    end = 1_798_761_600.0  # 2027-01-01
    now = end - 4 * HOUR
    assert (next_month(now), month(end)) == (end, end)
    other = Bill(1.0, now - HOUR, end + 6 * HOUR, job="other")
    purse = Purse("monthly_budget", 11.0, (other,), month(now), end=end)
    assert (purse.spent(now), purse.committed(now), purse.left(now)) == (1.0, 4.0, 6.0)
    assert purse.claims(now) == {"other": (4.0, end + 6 * HOUR)}
    assert purse.until(2.0, now) == pytest.approx(now + 3 * HOUR - 60), "this month does not pay for all of its hours"
    assert purse.ahead() == 5.0
    assert purse.until(1.0, now) == pytest.approx(end + 5 * HOUR - 60), "the next one pays for the rest"
    mine = Bill(1.0, now, end + 5 * HOUR)
    assert replace(purse, bills=(other, mine)).holds(now)
    assert not replace(purse, bills=(other, replace(mine, until=end + 6 * HOUR))).holds(now)
    assert not replace(purse, bills=(other, replace(mine, hourly=2.0))).holds(now)
    assert Purse("budget", 5.0, (other,)).ahead() == math.inf


def test_a_month_is_the_calendars() -> None:
    assert month(calendar.timegm((2026, 12, 1, 0, 0, 0))) == calendar.timegm((2026, 12, 1, 0, 0, 0))
    assert month(calendar.timegm((2026, 11, 30, 23, 59, 59))) == calendar.timegm((2026, 11, 1, 0, 0, 0))
    across = Bill(1.0, NOW - 10 * HOUR, NOW - HOUR, over=True)
    assert Purse("monthly_budget", 5.0, (across,), start=NOW - 3 * HOUR).spent(NOW) == pytest.approx(2.0)


@dataclass(frozen=True)
class Machine:
    """until: when its own clock ends it, as it knows it; since its last word from a broker."""

    hourly: float
    since: float
    until: float
    leaves: float | None = None
    ended: float | None = None

    def bill(self) -> Bill:
        if self.ended is not None:
            return Bill(self.hourly, self.since, self.ended, over=True)
        return Bill(self.hourly, self.since, self.until if self.leaves is None else min(self.until, self.leaves))

    def cost(self, now: float) -> float:
        return self.hourly * ((now if self.ended is None else self.ended) - self.since) / HOUR


@settings(deadline=None, max_examples=300)
@example(7968, 10.0, 3)
@given(st.integers(0, 2**32), st.floats(0.05, 20), st.integers(1, 4))
def test_a_job_never_spends_more_than_its_budget(seed: int, budget: float, at_once: int) -> None:
    """Machines at changing prices, two in a handover, more after more; a broker that dies and comes back.

    Nobody ends a machine here but its own clock, or its provider.
    """
    rng, now, machines = random.Random(seed), NOW, list[Machine]()
    for _ in range(60):
        now += rng.choice((1.0, 60.0, 900.0, 3 * HOUR))
        machines = [
            replace(m, ended=min(now, m.until if m.leaves is None else min(m.until, m.leaves)))
            if m.ended is None and now >= (m.until if m.leaves is None else min(m.until, m.leaves))
            else m
            for m in machines
        ]
        assert sum(m.cost(now) for m in machines) <= budget * (1 + 1e-9)
        alive = [m for m in machines if m.ended is None]
        if rng.random() < 0.3:
            continue  # no broker lives just now
        if alive and rng.random() < 0.5:
            gone = rng.choice(alive)
            kind = rng.choice(("taken back", "noticed"))
            machines.remove(gone)
            # What was said once of its end stands: no second notice gives it more time.
            first = gone.leaves or math.inf
            left = replace(gone, ended=now)
            if kind == "noticed":
                left = replace(gone, leaves=min(now + rng.uniform(0, 300), first))
            machines.append(left)
        if len([m for m in machines if m.ended is None]) < at_once:
            hourly = rng.uniform(0.05, 5)
            purse = Purse("budget", budget, tuple(m.bill() for m in machines))
            until = purse.until(hourly, now)
            if until > now + 1:
                machines.append(Machine(hourly, now + rng.uniform(0, min(30.0, until - now)), until))
    assert sum(m.cost(m.until + HOUR if m.ended is None else now) for m in machines if m.ended is not None) <= budget
    last = max((m.until for m in machines), default=now)
    total = sum(m.hourly * ((m.ended or min(m.until, m.leaves or last)) - m.since) / HOUR for m in machines)
    assert total <= budget * (1 + 1e-9)


@settings(deadline=None, max_examples=200)
@example(83525, 3.0)
@given(st.integers(0, 2**32), st.floats(1, 50))
def test_no_month_costs_more_than_its_budget(seed: int, limit: float) -> None:
    """Jobs are rented for in the days around a month's beginning, each until the moment that the purse allows."""
    rng, border = random.Random(seed), 1_798_761_600.0
    now, bills = border - 40 * HOUR, list[Bill]()
    for _ in range(30):
        now += rng.uniform(0, 4 * HOUR)
        bills = [replace(bill, over=True) if bill.until <= now else bill for bill in bills]
        start = month(now)
        purse = Purse("monthly_budget", limit, tuple(bills), start, end=next_month(start))
        hourly = rng.uniform(0.05, 5)
        until = min(purse.until(hourly, now), now + rng.uniform(0, 72) * HOUR)
        if until - now > 300:
            assert replace(purse, bills=(*bills, Bill(hourly, now, until))).holds(now)
            bills.append(Bill(hourly, now, until))
    for begin in (month(border - 1), border):
        spans = [(bill.hourly, max(bill.since, begin), min(bill.until, next_month(begin))) for bill in bills]
        assert sum(hourly * max(0.0, last - first) / HOUR for hourly, first, last in spans) <= limit + 1e-6
