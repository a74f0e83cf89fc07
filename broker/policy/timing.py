"""Spot, on-demand or wait: what a job with a deadline does now, and in which zone.

`decide` is asked again and again, at the latest every `Situation.tick` hours. It compares what finishing costs after
each choice (`renewal`, backward induction with hazards that fall with age) and never lets go of the last moment at
which on-demand can still meet the deadline:

* spot is started only while a loss during its start-up would still leave time to start on-demand,
* nothing is waited for through a tick after which spot could no longer be started.

So a deadline that on-demand could meet when the job began is met, as long as on-demand is granted; where it is refused
at times, `Refusals` says how much earlier to begin.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, exp, floor, inf, log
from typing import Any

from broker.policy.memory import FIRST_RETRY, LAST_RETRY
from broker.policy.renewal import AGEING, DOWN_HAZARD, PHASES, UP_HAZARD, Point, Table, read, table
from broker.policy.spells import Sky, typical

_UP, _DOWN = 0.8, 0.4
"""Of the hazard counted in a present spell, the part that is reckoned with: spells in progress last longer than the
average ones that follow them in the tables, gaps above all. Chosen with traces left out: docs/policy.md."""

_KIN = 0.5
"""How bad a loss is where other zones are up, of what it is by the tables, which know of one zone only."""

_SMALL = 1e-9
_MANY = 1000
_LONGEST = 48.0  # hours of work that tables are made for at least: most jobs share them


class Choice(StrEnum):
    """What runs, or shall run."""

    SPOT = "spot"
    ON_DEMAND = "on_demand"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Refusals:
    """What asking for on-demand has come to: `refused` of `asked`. It is asked for again as `memory` allows."""

    asked: int = 0
    refused: int = 0

    def __add__(self, other: Refusals) -> Refusals:
        return Refusals(self.asked + other.asked, self.refused + other.refused)

    @property
    def share(self) -> float:
        """The chance that one request is refused; none refused is taken as none to come."""
        return self.refused / (self.asked + 1) if self.refused else 0.0

    def reserve(self, miss: float = 0.01) -> float:
        """Hours to begin earlier, so that on-demand comes too late with a chance of at most `miss`."""
        return 0.0 if not self.refused else sum(_pause(n) for n in range(ceil(log(miss) / log(self.share))))

    def miss(self, slack: float, delay: float) -> float:
        """The chance that on-demand, asked for from now on, starts too late for the deadline."""
        spare, requests = slack - delay + _SMALL, 0
        while spare >= 0 and requests < _MANY:
            spare -= _pause(requests)
            requests += 1
        return float(self.share**requests)


def _pause(number: int) -> float:
    """Hours from one refused request to the next, for the first, the second and so on."""
    return min(FIRST_RETRY * 2.0 ** min(number, 10), LAST_RETRY) / 3600


@dataclass(frozen=True, slots=True)
class Spot:
    """A zone where spot may be had. `price` in USD per hour, `hazard` in ends of the present spell per hour.

    `lasts`: hours that it will still be up on average, of those that the work takes; 0 where it is down.
    """

    zone: str
    up: bool
    hazard: float
    price: float
    lasts: float


@dataclass(frozen=True, slots=True)
class Situation:
    """All that a decision rests on. Hours, and USD per hour."""

    work: float  # of running, until done
    time: float  # until the deadline
    delay: float  # from a launch to progress
    tick: float  # until this is asked again
    on_demand: float  # price
    spots: tuple[Spot, ...]
    running: Choice = Choice.WAIT
    zone: str | None = None  # that spot runs in
    starting: float = 0.0  # what is left of the running machine's start-up
    refusals: Refusals = Refusals()

    @property
    def slack(self) -> float:
        """What can be lost before on-demand from the start would be late; without the reserve for refusals."""
        return self.time - self.work - self.refusals.reserve()


@dataclass(frozen=True, slots=True)
class Timing:
    """A decision. `costs`: USD to finish after each choice that was open, this one's first."""

    choice: Choice
    zone: str | None
    why: str
    costs: tuple[tuple[Choice, float], ...] = ()

    def to_json(self) -> dict[str, Any]:
        costs = {str(choice): cost for choice, cost in self.costs}
        return {"choice": str(self.choice), "zone": self.zone, "why": self.why, "costs": costs}

    @property
    def reason(self) -> str:
        """A sentence for people."""
        texts = [f"{choice.value.replace('_', '-')} ${cost:.2f}" for choice, cost in self.costs]
        return f"{self.why} (cost to finish: {', '.join(texts)})" if texts else self.why


def spots(
    sky: Sky, at: float, available: Mapping[str, bool], prices: Mapping[str, float], work: float
) -> tuple[Spot, ...]:
    """The zones as `Situation` wants them. `at`: hours on the clock of `sky`, which has seen `available`."""
    zones = sky.zones
    return tuple(
        Spot(name, up, zones[name].hazard(at), prices[name], zones[name].lasts(at, work))
        for name, up in available.items()
    )


def decide(now: Situation) -> Timing:
    """What to do now. Pure: the same situation gives the same decision."""
    if now.running is Choice.SPOT:
        return Timing(Choice.SPOT, now.zone, "spot runs; a move would lose a start-up")
    can_spot = now.slack >= 2 * now.delay - _SMALL
    can_wait = now.slack - now.tick >= 2 * now.delay - _SMALL
    if not (can_spot or can_wait):
        return Timing(Choice.ON_DEMAND, None, "the deadline leaves no time for anything but on-demand")
    up = [spot for spot in now.spots if spot.up]
    price = min((spot.price for spot in up or now.spots), default=now.on_demand)
    if price >= now.on_demand:
        why = "no spot price is below on-demand's" if now.spots else "there is no spot machine that would do"
        return Timing(Choice.ON_DEMAND, None, why)
    costs_by = table(_rounded(now.delay), _rounded(price / now.on_demand), _horizon(now.work))
    best, costs = _costs(now, costs_by, up, can_spot=can_spot, can_wait=can_wait)
    ranked = sorted(costs.items(), key=lambda pair: pair[1])
    choice = ranked[0][0]
    in_usd = tuple((name, cost * now.on_demand) for name, cost in ranked)
    return Timing(choice, best.zone if best and choice is Choice.SPOT else None, _WHY[now.running, choice], in_usd)


_WHY = {
    (Choice.WAIT, Choice.SPOT): "spot is up",
    (Choice.WAIT, Choice.ON_DEMAND): "waiting for spot, or starting it, would cost more than on-demand",
    (Choice.WAIT, Choice.WAIT): "the slack allows to wait for spot",
    (Choice.ON_DEMAND, Choice.SPOT): "spot has been up long enough to be worth a start-up",
    (Choice.ON_DEMAND, Choice.ON_DEMAND): "on-demand runs; leaving it does not pay for a start-up",
    (Choice.ON_DEMAND, Choice.WAIT): "the slack allows to wait for spot instead of paying for on-demand",
}


def _costs(
    now: Situation, costs_by: Table, up: list[Spot], *, can_spot: bool, can_wait: bool
) -> tuple[Spot | None, dict[Choice, float]]:
    """Hours of on-demand to finish after each open choice, those first that win a tie."""
    at = costs_by.at(now.work, now.slack)
    best = _best(up, costs_by, at, now.on_demand, now.work)
    if best is not None:
        phase = _phase(_UP * best.hazard, _UP_LOGS)
        launch, keep = costs_by.up_on_demand, costs_by.up_keep
    else:
        # The gap of all zones ends with the first of theirs.
        phase = _phase(_DOWN * sum(spot.hazard for spot in now.spots), _DOWN_LOGS)
        launch, keep = costs_by.idle_on_demand, costs_by.down_keep
    costs: dict[Choice, float] = {}
    if now.running is Choice.ON_DEMAND:
        # A start-up under way has yet to take its share of the slack.
        rest = at if not now.starting else costs_by.at(now.work, max(0.0, now.slack - now.starting))
        costs[Choice.ON_DEMAND] = read(keep, phase, rest) + now.starting
    if best is not None and can_spot:
        costs[Choice.SPOT] = read(costs_by.up_spot, phase, at)
    if can_wait and best is None:  # spot that is up is not waited past: it would pay too seldom
        costs[Choice.WAIT] = _wait(now, costs_by, phase)
    if now.running is not Choice.ON_DEMAND:
        costs[Choice.ON_DEMAND] = read(launch, phase, at)
    return best, costs


def _wait(now: Situation, costs_by: Table, phase: float) -> float:
    """The cost of waiting in a gap until the next decision: it ends, or is so much older."""
    then = costs_by.at(now.work, now.slack - now.tick)
    n = int(phase)
    rate = DOWN_HAZARD[n]
    if phase > n:
        rate += (phase - n) * (DOWN_HAZARD[n + 1] - rate)
    ends = 1 - exp(-rate * now.tick)
    older = min(PHASES - 1.0, phase + 1 - exp(-now.tick * AGEING[n]))
    return ends * read(costs_by.up, 0, then) + (1 - ends) * read(costs_by.idle, older, then)


def _best(up: list[Spot], costs_by: Table, at: Point, on_demand: float, work: float) -> Spot | None:
    """The zone to start in: the one that will last, unless a cheaper one makes up for being lost sooner."""
    cheapest = min((spot.price for spot in up), default=0.0)
    if all(spot.price == cheapest for spot in up):
        return max(up, key=lambda spot: spot.lasts, default=None)
    rungs = typical(_rounded(work))

    def cost(spot: Spot) -> float:
        finish = read(costs_by.up_spot, _rung(spot.lasts, rungs), at) * on_demand
        return _KIN * finish + (spot.price - cheapest) * spot.lasts

    return min(up, key=cost)


_UP_LOGS = tuple(log(rate) for rate in UP_HAZARD)
_DOWN_LOGS = tuple(log(rate) for rate in DOWN_HAZARD)


def _phase(hazard: float, logs: Iterable[float]) -> float:
    """The phase, with its fraction, that has this hazard."""
    level, before, phase = log(hazard) if hazard > 0 else -inf, 0.0, 0
    for phase, value in enumerate(logs):
        if level >= value:
            return float(phase) if phase == 0 else phase - (level - value) / (before - value)
        before = value
    return float(phase)


def _rung(lasts: float, rungs: Sequence[float]) -> float:
    """The phase, with its fraction, in which a zone without a record lasts so long."""
    n = bisect_right(rungs, lasts)
    if n in (0, len(rungs)):
        return float(max(0, n - 1))
    return n - 1 + (lasts - rungs[n - 1]) / (rungs[n] - rungs[n - 1])


def _rounded(value: float) -> float:
    """To two digits and a half, so that jobs much alike share a table."""
    if value <= 0:
        return 1e-3
    unit = 10.0 ** floor(log(value) / log(10)) / 200
    return round(value / unit) * unit


def _horizon(work: float) -> float:
    top = _LONGEST
    while top < work:
        top *= 2
    return top
