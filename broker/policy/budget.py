"""What may still be spent, and until when a machine may run on it. Pure.

A budget is hard: it covers what was spent and what every machine that is there may still come to cost. A machine is
committed to its `until`: the moment by which it has ended itself even with every broker dead. A new machine gets what
is left, as a moment too, so that budgets hold without anybody watching.

Money is USD, moments seconds since the epoch.
"""

from __future__ import annotations

import time
from calendar import timegm
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

SETTLING = 120.0
"""Seconds that a machine is taken to be billed after its termination was accepted, or past the moment when it should
have ended (protocol: commitments)."""
STRAY = 600.0
"""Seconds that a machine which may have come of a launch without an answer is taken to be billed, after it was given up
for the next: until a sweep has found it, or its own guest that it does not stand."""
UNCLEAR = "unclear"
"""The cause that is written down of such a placement."""
MARGIN, LONGEST_MARGIN = 0.03, 60.0
"""The share of a machine's time, and the most seconds, kept back for its last call: it ends itself before the limit."""


@dataclass(frozen=True, slots=True)
class Bill:
    """One machine. hourly: USD per hour. since: its launch. until: its end, or the moment by which it ends itself.

    over: it has ended, and nothing more is billed. most: what an hour may come to cost, where its price can rise.
    job: whose it is.
    """

    hourly: float
    since: float
    until: float
    over: bool = False
    most: float | None = None
    job: str = ""

    def spent(self, now: float, start: float = -inf) -> float:
        """USD between `start` and `now`, at the most."""
        end = self.until if self.over else now
        return max(self.hourly, self.most or 0.0) * max(0.0, end - max(self.since, start)) / 3600

    def committed(self, now: float, end: float = inf) -> float:
        """USD that it may still cost after `now` and before `end`, ended by nobody but itself."""
        if self.over:
            return 0.0
        until = max(self.until, now + SETTLING if now >= self.since else now)
        return max(self.hourly, self.most or 0.0) * max(0.0, min(until, end) - now) / 3600

    def after(self, end: float) -> float:
        """USD that it may come to cost after `end`."""
        return 0.0 if self.over else max(self.hourly, self.most or 0.0) * max(0.0, self.until - end) / 3600


@dataclass(frozen=True, slots=True)
class Purse:
    """A limit and what counts against it. name: `budget` or `monthly_budget`.

    start: what was spent before does not count. end: from then on the limit is there anew, whole. own: those of the
    bills that are the job's own.
    """

    name: str
    limit: float
    bills: tuple[Bill, ...] = ()
    start: float = -inf
    own: tuple[Bill, ...] = ()
    end: float = inf

    def spent(self, now: float) -> float:
        return sum(bill.spent(now, self.start) for bill in self.bills)

    def committed(self, now: float) -> float:
        return sum(bill.committed(now, self.end) for bill in self.bills)

    def left(self, now: float) -> float:
        """USD that nothing has a claim on; below zero where the limit was lowered."""
        return self.limit - self.spent(now) - self.committed(now)

    def ahead(self) -> float:
        """USD that nothing has a claim on yet once the limit is there anew."""
        return self.limit - sum(bill.after(self.end) for bill in self.bills) if self.end < inf else inf

    def holds(self, now: float) -> bool:
        return self.left(now) >= 0 and self.ahead() >= 0

    def claims(self, now: float) -> dict[str, tuple[float, float]]:
        """USD that each job's machines may still cost, the dearest first, and when the last of them has ended."""
        found: dict[str, tuple[float, float]] = {}
        for bill in self.bills:
            if (usd := bill.committed(now, self.end)) > 0:
                before, until = found.get(bill.job, (0.0, now))
                found[bill.job] = before + usd, max(until, bill.until)
        return dict(sorted(found.items(), key=lambda entry: -entry[1][0]))

    def until(self, hourly: float, now: float) -> float:
        """When a machine at that price, rented now, must have ended; not after `now` where nothing is left."""
        seconds = self.left(now) / hourly * 3600
        if now + seconds >= self.end:
            seconds = self.end - now + max(0.0, self.ahead()) / hourly * 3600
        return now + seconds - min(LONGEST_MARGIN, MARGIN * max(0.0, seconds))


def ends(purses: Iterable[Purse], hourly: float, now: float) -> list[tuple[float, str]]:
    """The moments at which each of the purses ends a machine at that price, with their names."""
    return [(purse.until(hourly, now), purse.name) for purse in purses]


def month(at: float) -> float:
    """When the calendar month of a moment began, by UTC."""
    parts = time.gmtime(at)
    return float(timegm((parts.tm_year, parts.tm_mon, 1, 0, 0, 0, 0, 0, 0)))


def next_month(at: float) -> float:
    """When the next one begins."""
    return month(month(at) + 32 * 86_400.0)
