"""What finishing costs from here, as tables: backward induction over the work and the slack that are left.

Spot zones are renewal processes whose hazard falls with age: a zone that has just come up is soon gone again, one that
has been up for a day mostly stays, and a gap that has lasted long lasts on. Ages go through phases (`EDGES`). A state
is the work left, the slack left (time left minus work left), what runs, and the phase of the best zone. Slack is spent
by waiting and by starting machines, work by running, so one sweep over both from zero upwards gives the cost of every
choice. Costs are in hours of on-demand.

After a loss a table knows of one zone only, which is then down: what others are worth is seen when it has come to that.

A table is built once for each start-up time and price ratio, in a tenth or two of a second of plain Python; reading it
takes a microsecond.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

EDGES = (0.17, 0.34, 0.67, 1.34, 2.7, 5.4, 10.7, 21.4)
"""Ends of all age phases but the last, which has none; hours. Doubling, since the hazard falls about as 1/age."""

# Counted in the 20 tuning traces of the benchmark, 318 zone-days of 2022 and 2023: `benchmarks/policy.py hazards`.
UP_HAZARD = (1.835, 1.379, 0.901, 0.581, 0.385, 0.216, 0.165, 0.11, 0.065)
"""Ends of up-spells per hour of being up, by phase."""

DOWN_HAZARD = (2.403, 1.481, 0.969, 0.812, 0.353, 0.277, 0.117, 0.103, 0.021)
"""Ends of gaps per hour of being down, by phase."""

PHASES = len(UP_HAZARD)
NEVER = 1e9
"""The cost of what cannot meet the deadline."""

AGEING = (*(1.0 / (end - start) for start, end in zip((0.0, *EDGES[:-1]), EDGES, strict=True)), 0.0)


_ROUNDS = 4  # of the search for the value of a loss; more changes no figure

Point = tuple[int, float, int, float]
Values = tuple[list[float], ...]  # by phase, then by point of the grid


@dataclass(frozen=True, slots=True)
class Table:
    """Costs on a grid of work and slack left (hours; slack runs fastest), by phase.

    Nothing runs: `idle` all zones are down, `up` one is up; both with the best choice. `up_spot` starts there,
    `idle_on_demand` and `up_on_demand` start on-demand. On-demand runs: `down_keep`, `up_keep` go on with it; spot and
    waiting cost the same as when nothing runs.
    """

    work: tuple[float, ...]
    slack: tuple[float, ...]
    idle: Values
    idle_on_demand: Values
    up: Values
    up_spot: Values
    up_on_demand: Values
    down_keep: Values
    up_keep: Values

    def at(self, work: float, slack: float) -> Point:
        """Where hours of work and slack lie in the grid; beyond its edges, at the edge."""
        i = max(0, min(bisect_right(self.work, work), len(self.work) - 1) - 1)
        j = max(0, min(bisect_right(self.slack, slack), len(self.slack) - 1) - 1)
        x = (work - self.work[i]) / (self.work[i + 1] - self.work[i])
        y = (slack - self.slack[j]) / (self.slack[j + 1] - self.slack[j])
        return i * len(self.slack) + j, min(1.0, max(0.0, x)), len(self.slack), min(1.0, max(0.0, y))


def read(values: Values, phase: float, at: Point) -> float:
    """The cost at a point, between two phases where `phase` is not whole."""
    low = int(phase)
    cost = _read(values[low], at)
    return cost if phase == low else cost + (phase - low) * (_read(values[low + 1], at) - cost)


def _read(values: list[float], at: Point) -> float:
    n, x, row, y = at
    low = values[n] + y * (values[n + 1] - values[n])
    high = values[n + row] + y * (values[n + row + 1] - values[n + row])
    return low + x * (high - low)


@lru_cache(maxsize=256)
def table(delay: float, ratio: float, hours: float) -> Table:
    """The table for jobs of up to so many `hours` of work.

    `delay`: hours from a launch to progress; `ratio`: spot price over on-demand's.
    """
    return _Sweep(delay, ratio, hours).run()


def _work_grid(hours: float) -> tuple[float, ...]:
    grid = [0.0]
    while grid[-1] < hours:
        at = grid[-1]
        grid.append(at + (0.25 if at < 1 else 0.5 if at < 4 else 1.0 if at < 12 else max(2.0, at / 24)))
    return tuple(grid)


def _slack_grid(delay: float, hours: float) -> tuple[float, ...]:
    grid = [delay * half / 2 for half in range(13)]  # what counts in units of the start-up time lies on the grid
    while grid[-1] < hours:
        grid.append(grid[-1] * 1.2)
    return tuple(grid)


def _locate(grid: Sequence[float], value: float) -> tuple[int, float]:
    j = max(0, min(bisect_right(grid, value + 1e-12), len(grid) - 1) - 1)
    return j, min(1.0, max(0.0, (value - grid[j]) / (grid[j + 1] - grid[j])))


def _between(low: list[float], high: list[float], y: float) -> list[float]:
    return [a + y * (b - a) for a, b in zip(low, high, strict=True)] if y else low


def _shrink(step: float, rate: Sequence[float]) -> list[float]:
    return [1.0 / (1.0 + step * (leave + ageing)) for leave, ageing in zip(rate, AGEING, strict=True)]


def _go_on(
    before: list[float],
    step: float,
    flow: float,
    rate: Sequence[float],
    jump: float,
    other: list[float],
    shrink: list[float],
) -> tuple[list[float], list[float]]:
    """The cost of going on for a step, by phase, and the smaller of that and `other`.

    Implicit in the step, so that any step is stable: the spell ends at `rate` with cost `jump`, and ages.
    """
    kept, best = [0.0] * PHASES, [0.0] * PHASES
    older = 0.0
    for i in range(PHASES - 1, -1, -1):
        value = (before[i] + step * (flow + rate[i] * jump + AGEING[i] * older)) * shrink[i]
        kept[i] = value
        older = best[i] = min(other[i], value)
    return kept, best


class _Sweep:
    """One backward induction. Rows run over work, points in a row over slack."""

    def __init__(self, delay: float, ratio: float, hours: float) -> None:
        self.delay, self.ratio = delay, ratio
        self.work, self.slack = _work_grid(hours), _slack_grid(delay, hours)
        size = len(self.work) * len(self.slack)
        self.out: list[Values] = [tuple([0.0] * size for _ in range(PHASES)) for _ in range(7)]
        self.back = [_locate(self.slack, s - delay) for s in self.slack]
        self.half = [_locate(self.slack, s - delay / 2) for s in self.slack]
        self.lost = [1 - math.exp(-rate * delay) for rate in UP_HAZARD]
        self.older = [1 - math.exp(-rate * delay) for rate in AGEING]
        zeros = [[0.0] * PHASES for _ in self.slack]
        self.spot0, self.down0, self.up0 = (
            zeros,
            zeros,
            zeros,
        )  # the row before: spot runs; on-demand, all down; or one up
        self.spot, self.down, self.up = zeros, zeros, zeros
        self.loss: list[float] = []  # by slack: nothing runs since the machine in use was just lost

    def run(self) -> Table:
        for k in range(1, len(self.work)):
            self._row(k)
        return Table(self.work, self.slack, *self.out)

    def _row(self, k: int) -> None:
        step, width = self.work[k] - self.work[k - 1], len(self.slack)
        self.step, self.spot_shrink, self.down_shrink = step, _shrink(step, UP_HAZARD), _shrink(step, DOWN_HAZARD)
        self.spot, self.down, self.up, self.loss = [], [], [], []
        self.gap = [NEVER] * PHASES  # with less slack: nothing runs and all zones are down
        for m, slack in enumerate(self.slack):
            if slack < self.delay * (1 - 1e-9):
                costs = self._bound(self.work[k])
            else:
                # Where the grid is wider than a start-up, the row is needed at the very point: a guess, then itself.
                self.spot.append([cost + step * self.ratio for cost in self.spot0[m]])
                self.down.append([cost + step for cost in self.down0[m]])
                self.up.append([cost + step for cost in self.up0[m]])
                self.loss.append(min(self.loss[-1], self.work[k] + self.delay))
                self._point(m)
                costs = self._point(m, last=True)
            for values, by_phase in zip(self.out, costs, strict=True):
                for i in range(PHASES):
                    values[i][k * width + m] = by_phase[i]
        self.spot0, self.down0, self.up0 = self.spot, self.down, self.up

    def _bound(self, work: float) -> tuple[list[float], ...]:
        """Less slack than a start-up: only on-demand that runs already meets the deadline."""
        never, on_demand = [NEVER] * PHASES, [work] * PHASES
        self.spot.append(never)
        self.down.append(on_demand)
        self.up.append(on_demand)
        self.loss.append(NEVER)
        return never, never, never, never, never, on_demand, on_demand

    def _point(self, m: int, *, last: bool = False) -> tuple[list[float], ...]:
        j, y = self.back[m]
        down = [self.delay + cost for cost in _between(self.down[j], self.down[j + 1], y)]
        up = [self.delay + cost for cost in _between(self.up[j], self.up[j + 1], y)]
        start, gap, best_up, best_down = self._idle(m, down, up)
        keep_up, keep_down = self._on_demand(m, start, gap)
        if last:
            self.gap = best_down
        return best_down, down, best_up, start, up, keep_down, keep_up

    def _idle(
        self, m: int, down: list[float], up: list[float]
    ) -> tuple[list[float], list[float], list[float], list[float]]:
        """Spot runs, or nothing does. All hangs on one number, the cost after a loss, which is searched for."""
        step = self.slack[m] - self.slack[m - 1]
        shrink, nothing = _shrink(step, DOWN_HAZARD), [NEVER] * PHASES
        loss, guesses = self.loss[m], [self.loss[m]]
        for turn in range(_ROUNDS):
            self.loss[m] = loss
            self.spot[m] = _go_on(self.spot0[m], self.step, self.ratio, UP_HAZARD, loss, nothing, self.spot_shrink)[0]
            start = self._start(m)
            best_up = [min(b, a) for a, b in zip(start, up, strict=True)]
            gap, best_down = _go_on(self.gap, step, 0.0, DOWN_HAZARD, best_up[0], down, shrink)
            found = best_down[0]
            if abs(found - loss) < 1e-5:
                break
            guesses.append(found)
            if turn == 1 and guesses[1] != guesses[0]:  # the map is nearly straight: go to where it leads
                slope = min(0.98, max(0.0, (found - guesses[1]) / (guesses[1] - guesses[0])))
                found = guesses[1] + (found - guesses[1]) / (1 - slope)
            loss = found
        return start, gap, best_up, best_down

    def _start(self, m: int) -> list[float]:
        """Start a spot machine: billed from its launch, and it can be lost before it has done anything."""
        if self.slack[m] < 2 * self.delay * (1 - 1e-9):
            return [NEVER] * PHASES
        (j, y), (n, z), bill = self.back[m], self.half[m], self.ratio * self.delay
        runs = _between(self.spot[j], self.spot[j + 1], y)
        lost = self.loss[n] + z * (self.loss[n + 1] - self.loss[n]) if z else self.loss[n]
        costs = []
        for i in range(PHASES):
            then = runs[i] + self.older[i] * (runs[min(i + 1, PHASES - 1)] - runs[i])
            costs.append((1 - self.lost[i]) * (bill + then) + self.lost[i] * (bill / 2 + lost))
        return costs

    def _on_demand(self, m: int, leave_up: list[float], leave_down: list[float]) -> tuple[list[float], list[float]]:
        up, down = self.up[m], self.down[m]
        for _ in range(3):
            keep_up, up = _go_on(self.up0[m], self.step, 1.0, UP_HAZARD, down[0], leave_up, self.spot_shrink)
            keep_down, down = _go_on(self.down0[m], self.step, 1.0, DOWN_HAZARD, up[0], leave_down, self.down_shrink)
        self.up[m], self.down[m] = up, down
        return keep_up, keep_down
