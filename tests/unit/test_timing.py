"""The timing policy: valid choices, deadlines kept whatever the market does, and what it is that saves.

TIMING_TRACES=20000 pytest tests/unit/test_timing.py -k flickering --timeout 0      # the long form of the deadline test
"""

from __future__ import annotations

import dataclasses
import os
import random
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.policy.renewal import DOWN_HAZARD, NEVER, PHASES, UP_HAZARD, read, table
from broker.policy.spells import Sky, lasts, typical
from broker.policy.timing import Choice, Refusals, Situation, Spot, decide, spots
from broker.policy.yardstick import policy

TRACES = int(os.environ.get("TIMING_TRACES", "300"))
MARKETS = ((0.0, 0.318), (60.0, 0.318), (180.0, 0.7), (720.0, 0.318), (1440.0, 0.318))
"""Start-up times (s) and price ratios: few, since each has tables of its own."""


def run(
    looks: Sequence[Mapping[str, bool]], work: float, deadline: float, delay: float, tick: float, ratio: float
) -> tuple[float, float]:
    """The yardstick's model, in seconds: when the job is done, and what was paid in on-demand seconds.

    Every choice is checked on the way. Beyond its looks the market has no spot.
    """
    plugin = policy()
    zones = list(looks[0])
    plugin.reset({"zones": zones, "history": dict.fromkeys(zones, b""), "tick_s": tick})
    elapsed = progress = paid = starting = 0.0
    kind, zone, number = "NONE", None, 0
    while progress < work - 1e-6:
        available = looks[number] if number < len(looks) else dict.fromkeys(zones, False)
        if kind == "SPOT" and not available[str(zone)]:
            kind, zone, starting = "NONE", None, 0.0
        chosen = plugin.decide(elapsed, progress, tick, work, deadline, delay, ratio, 1.0, available, zone, kind)
        assert chosen[0] in ("SPOT", "OD", "NONE")
        assert available[str(chosen[1])] if chosen[0] == "SPOT" else chosen[1] is None
        if chosen != (kind, zone):
            (kind, zone), starting = chosen, delay
        number += 1
        if kind == "NONE":
            elapsed += tick
            assert elapsed <= deadline, "waited through the deadline"
            continue
        took = min(tick, starting + work - progress)
        progress += max(0.0, took - starting)
        starting = max(0.0, starting - took)
        paid += took * (ratio if kind == "SPOT" else 1.0)
        elapsed += took
    return elapsed, paid


def flicker(rng: random.Random, zones: int, ticks: int) -> list[dict[str, bool]]:
    """A market that turns every few ticks, or at every tick, or hardly ever."""
    turn = [(rng.choice((0.02, 0.1, 0.5, 0.9, 1.0)), rng.choice((0.02, 0.1, 0.5, 0.9, 1.0))) for _ in range(zones)]
    up = [rng.random() < 0.5 for _ in range(zones)]
    looks = []
    for _ in range(ticks):
        up = [state ^ (rng.random() < turn[n][state]) for n, state in enumerate(up)]
        looks.append({f"zone-{n}": state for n, state in enumerate(up)})
    return looks


def test_no_deadline_is_missed_on_flickering_traces() -> None:
    late = []
    for seed in range(TRACES):
        rng = random.Random(seed)
        tick = rng.choice((60.0, 192.0, 195.0, 600.0, 1800.0))
        delay, ratio = rng.choice(MARKETS)
        work = rng.choice((0.5, 2.0, 6.0, 24.0)) * 3600
        deadline = work + delay * rng.choice((1.0, 1.5, 2.0, 2.1, 3.0)) + work * rng.choice((0.0, 0.04, 0.1, 0.5))
        looks = flicker(rng, rng.choice((1, 1, 2, 4)), min(400, int(deadline / tick) + 2))
        done, _ = run(looks, work, deadline, delay, tick, ratio)
        if done > deadline + 1e-3:
            late.append((seed, done - deadline))
    assert not late


@settings(deadline=None, max_examples=60)
@given(
    looks=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60),
    work=st.floats(600, 40_000),
    spare=st.floats(0, 30_000),
    market=st.sampled_from(MARKETS),
    tick=st.floats(30, 4000),
)
def test_a_deadline_that_on_demand_can_meet_is_met(
    looks: list[tuple[bool, bool]], work: float, spare: float, market: tuple[float, float], tick: float
) -> None:
    delay, ratio = market
    zones = [{"a": one, "b": two} for one, two in looks]
    done, paid = run(zones, work, work + delay + spare, delay, tick, ratio)
    assert done <= work + delay + spare + 1e-3
    assert paid >= work * ratio - 1e-3


SITUATION = Situation(
    work=20.0,
    time=24.0,
    delay=0.2,
    tick=0.1,
    on_demand=3.06,
    spots=(Spot("a", up=True, hazard=0.065, price=0.9731, lasts=9.0),),
)


def test_decisions_are_pure_and_say_why() -> None:
    first, second = decide(SITUATION), decide(dataclasses.replace(SITUATION))
    assert first == second
    assert (first.choice, first.zone) == (Choice.SPOT, "a")
    assert first.costs[0][0] is Choice.SPOT
    assert [cost for _, cost in first.costs] == sorted(cost for _, cost in first.costs)
    assert "cost to finish: spot $" in first.reason


def test_on_demand_is_not_left_for_a_minute_old_spot() -> None:
    running = dataclasses.replace(SITUATION, running=Choice.ON_DEMAND, time=21.5)
    young = Spot("a", up=True, hazard=UP_HAZARD[0], price=0.9731, lasts=2.0)
    assert decide(dataclasses.replace(running, spots=(young,))).choice is Choice.ON_DEMAND
    assert decide(running).choice is Choice.SPOT


def test_short_gaps_are_waited_through_and_long_ones_are_not() -> None:
    tight = dataclasses.replace(SITUATION, time=23.0)
    short = Spot("a", up=False, hazard=DOWN_HAZARD[0], price=0.9731, lasts=0.0)
    long = Spot("a", up=False, hazard=DOWN_HAZARD[-1], price=0.9731, lasts=0.0)
    assert decide(dataclasses.replace(tight, spots=(short,))).choice is Choice.WAIT
    assert decide(dataclasses.replace(tight, spots=(long,))).choice is Choice.ON_DEMAND


def test_the_zone_that_lasts_is_taken_unless_another_is_so_much_cheaper() -> None:
    steady, shaky = SITUATION.spots[0], Spot("b", up=True, hazard=0.4, price=0.9731, lasts=4.0)
    both = dataclasses.replace(SITUATION, spots=(shaky, steady))
    assert decide(both).zone == "a"
    cheaper = dataclasses.replace(shaky, price=0.30)
    assert decide(dataclasses.replace(both, spots=(cheaper, steady))).zone == "b"


def test_spot_at_or_above_on_demand_is_not_taken() -> None:
    dear = dataclasses.replace(SITUATION.spots[0], price=3.06)
    assert decide(dataclasses.replace(SITUATION, spots=(dear,))).choice is Choice.ON_DEMAND
    assert decide(dataclasses.replace(SITUATION, spots=())).choice is Choice.ON_DEMAND


def test_refused_on_demand_starts_earlier_and_has_a_chance_to_miss() -> None:
    refusals = Refusals(asked=9, refused=5)
    assert refusals.share == 0.5
    assert refusals.reserve(miss=0.01) == pytest.approx(2130 / 3600)  # 0.5 ** 7 < 0.01; 30 s, 60 s, ... 600 s, 600 s
    assert refusals.miss(slack=0.2 + 200 / 3600, delay=0.2) == pytest.approx(0.5**3)  # at once, after 30 s and 90 s
    assert refusals.miss(slack=0.1, delay=0.2) == 1.0
    assert refusals.miss(slack=refusals.reserve() + 0.2, delay=0.2) <= 0.01
    assert Refusals().reserve() == 0.0
    assert Refusals().miss(slack=0.2, delay=0.2) == 0.0
    down = dataclasses.replace(SITUATION, spots=(Spot("a", up=False, hazard=2.4, price=0.9731, lasts=0.0),), time=22.5)
    assert decide(down).choice is Choice.WAIT
    assert decide(dataclasses.replace(down, refusals=refusals)).choice is Choice.ON_DEMAND


def test_a_late_job_gets_on_demand_at_once() -> None:
    assert decide(dataclasses.replace(SITUATION, time=19.0)).choice is Choice.ON_DEMAND


def test_nothing_is_waited_for_that_could_not_be_used() -> None:
    """With less than two start-ups to spare spot cannot be started: on-demand, while it may still be refused."""
    down = Spot("a", up=False, hazard=9.0, price=0.9731, lasts=0.0)
    for time in (20.31, 20.39, 20.49):
        assert decide(dataclasses.replace(SITUATION, spots=(down,), time=time)).choice is Choice.ON_DEMAND


def test_tables_cost_no_less_with_less_slack_or_more_work() -> None:
    costs = table(0.1, 0.318, 48.0)
    for values in (costs.idle, costs.up_spot, costs.up_keep):
        for phase in range(PHASES):
            by_slack = [read(values, phase, costs.at(24, slack)) for slack in (0.2, 0.3, 0.5, 1, 2, 5, 10, 20, 40)]
            assert by_slack == sorted(by_slack, reverse=True)
            by_work = [read(values, phase, costs.at(work, 5)) for work in (0.5, 1, 2, 5, 10, 20, 40)]
            assert by_work == sorted(by_work)
            assert by_work[-1] < NEVER
    lasts = [read(costs.up_spot, phase, costs.at(24, 5)) for phase in range(PHASES)]
    assert lasts == sorted(lasts, reverse=True)  # the longer it has been up, the better
    assert read(costs.up_spot, 8, costs.at(24, 5)) > 24 * 0.318


def test_a_zone_is_judged_by_age_and_by_what_it_did_lately() -> None:
    sky = Sky()
    for look in range(48):
        sky.see(look * 0.5, {"steady": True, "flaps": look % 2 == 1, "new": look == 47})
    up = dict.fromkeys(("steady", "flaps", "new"), True)
    steady, flaps, new = spots(sky, 23.5, up, dict.fromkeys(sky.zones, 1.0), 20.0)
    assert 2 * steady.hazard < new.hazard < flaps.hazard
    assert steady.lasts > 2 * new.lasts > 2 * flaps.lasts


def test_a_young_zone_that_keeps_up_is_taken_before_an_older_one_that_flaps() -> None:
    sky, moments = Sky(), [number * 0.25 for number in range(400)]
    for number, at in enumerate(moments):
        sky.see(at, {"flaps": number // 8 % 2 == 0 or at > 92, "steady": not 99 < at < 99.3})
    both = spots(sky, 99.75, {"flaps": True, "steady": True}, dict.fromkeys(sky.zones, 0.9731), 20.0)
    flaps, steady = both
    assert flaps.hazard < steady.hazard  # at this moment
    assert flaps.lasts < steady.lasts
    now = dataclasses.replace(SITUATION, spots=both)
    assert decide(now).zone == "steady"
    cent = dataclasses.replace(steady, price=0.98)  # nor do prices that hardly differ turn that round
    assert decide(dataclasses.replace(now, spots=(flaps, cent))).zone == "steady"


@given(age=st.floats(0, 100), factor=st.floats(0.1, 5), hours=st.floats(0, 100))
def test_a_zone_lasts_no_longer_than_what_is_asked_for(age: float, factor: float, hours: float) -> None:
    found = lasts(age, factor, hours)
    assert 0 <= found <= hours + 1e-9
    assert found <= lasts(age, factor, hours + 1) + 1e-9
    assert found >= lasts(age, factor * 1.1, hours) - 1e-9
    rungs = typical(20.0)
    assert list(rungs) == sorted(set(rungs))


def test_before_anything_was_seen_the_region_tells_zones_apart() -> None:
    sky = Sky()
    names = ("aws/us-east-1/us-east-1c/p3.2xlarge", "us-east-2a", "us-west-2b")
    sky.see(0.0, dict.fromkeys(names, True))
    shaky, middle, steady = spots(sky, 0.0, dict.fromkeys(names, True), dict.fromkeys(names, 1.0), 20.0)
    assert shaky.lasts < middle.lasts < steady.lasts


def test_a_clock_set_back_is_survived() -> None:
    sky = Sky()
    for at, up in ((0.0, True), (5.0, False), (6.0, True)):
        sky.see(at, {"a": up})
    (zone,) = spots(sky, 1.0, {"a": True}, {"a": 1.0}, 20.0)
    assert zone.hazard > 1
