"""Jobs with a deadline: what is said before the launch, and how one is met on a cloud that follows real traces."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from unit.stage import ON_DEMAND, SPOT, START, Stage, offer
from unit.test_timing import flicker
from unit.test_timing import run as yardstick

from broker.errors import NoCapacity, TaskError
from broker.experience import Lesson
from broker.offer import Market, OfferQuery
from broker.outlook import planned
from broker.policy import Memory, Wish
from broker.policy.cost import Prospect
from broker.policy.due import Due, told
from broker.policy.past import Past
from broker.policy.record import Inputs, decide, replay, to_json
from broker.policy.season import Season
from broker.policy.timing import Choice
from broker.task import Checkpoint, Task, Work

TRACES = Path(__file__).parents[3] / "shared" / "data" / "spot-traces"
HOUR = 3600.0


def looks(folder: str, names: Sequence[str], least: int = 1) -> tuple[float, list[dict[str, bool]]]:
    """Tick in seconds, and which zones are up at each."""
    if not TRACES.is_dir():
        pytest.skip("the published spot traces are not here")
    found = [json.loads((TRACES / folder / f"{name}_v100_1.json").read_text()) for name in names]
    rows = zip(*(one["data"] for one in found), strict=False)
    return found[0]["metadata"]["gap_seconds"], [
        {name: value >= least for name, value in zip(names, row, strict=True)} for row in rows
    ]


@pytest.fixture
def stages(tmp_path: Path) -> Iterator[list[Stage]]:
    made: list[Stage] = []
    yield made
    for stage in made:
        stage.close()


def follow(stage: Stage, gap: float, market: Sequence[Mapping[str, bool]]) -> None:
    """Zones go up and down as the looks say; what runs in one that goes down is taken back."""
    shown: dict[str, bool] = {}

    def tick(now: float) -> float:
        number = int((now - START + 1e-6) / gap)
        for name, up in market[number].items():
            if shown.get(name) is not up:
                shown[name] = up
                stage.cloud.limit(f"fake/*/{name}/*/spot", 99 if up else 0)
                for machine in stage.cloud.living():
                    if not up and machine.zone == name and machine.market is Market.SPOT:
                        stage.cloud.take_back(machine.id)
        return START + (number + 1) * gap

    stage.at_tick = tick
    tick(START)


# Starts at which no decision is so close that a second more or less turns it.
CASES = [
    ("availability/1-node/aws-10-26-2022", ["us-west-2a"], 1, 1100, 0.2),
    ("availability/1-node/aws-10-26-2022", ["us-west-2a", "us-west-2b"], 1, 2000, 0.2),
    ("availability/16-node/aws-08-27-2023", ["us-east-2b", "us-west-2a", "us-west-2c"], 16, 2500, 0.35),
]  # fmt: skip


@pytest.mark.parametrize(("folder", "names", "least", "start", "slack"), CASES)
def test_a_deadline_on_real_traces_is_met_for_what_the_yardstick_says(
    tmp_path: Path, stages: list[Stage], folder: str, names: list[str], least: int, start: int, slack: float
) -> None:
    gap, market = looks(folder, names, least)
    work, delay = 12 * HOUR, 720.0
    stock = [offer(name) for name in names] + [offer(names[0], Market.ON_DEMAND)]
    stage = Stage(tmp_path, stock, work=work, restart=delay, limits={"weigh": gap})
    stages.append(stage)
    follow(stage, gap, market[start:])
    stage.world.records.learn(Lesson("earlier", 1, stock[0], START, START, lost=False, task="other", restart=delay))
    job = stage.submit(deadline=f"{work * (1 + slack):.0f}s")
    stage.run(job)
    assert job.status == "succeeded", stage.story(job)
    assert stage.clock() - START <= work * (1 + slack) + 1, stage.story(job)
    _, wanted = yardstick(market[start:], work, work * (1 + slack), delay, gap, SPOT / ON_DEMAND)
    usd = wanted * ON_DEMAND / HOUR
    assert stage.cloud.spent() == pytest.approx(usd, rel=0.05), stage.story(job)
    assert not stage.living(job)


@pytest.mark.parametrize("seed", range(4))
def test_a_deadline_that_on_demand_could_meet_is_met_whatever_the_market_does(
    tmp_path: Path, stages: list[Stage], seed: int
) -> None:
    """Zones that flicker, machines taken back in boot; the slack is what a start-up takes, or little more."""
    rng = random.Random(seed)
    work, delay, gap = 3 * HOUR, 720.0, rng.choice((60.0, 600.0))
    market = flicker(rng, 2, int(6 * HOUR / gap))
    stock = [offer(name) for name in market[0]] + [offer("zone-0", Market.ON_DEMAND)]
    stage = Stage(tmp_path, stock, work=work, restart=delay, limits={"weigh": gap})
    stages.append(stage)
    stage.world.records.learn(Lesson("earlier", 1, stock[0], START, START, lost=False, task="other", restart=delay))
    follow(stage, gap, market)
    spare = 45 + delay * rng.choice((1.1, 2.5, 4.0))
    job = stage.submit(deadline=f"{work + spare:.0f}s")
    stage.run(job)
    assert job.status == "succeeded", stage.story(job)
    assert stage.clock() - START <= work + spare + 1


def test_refused_on_demand_is_begun_earlier_and_the_chance_is_told(tmp_path: Path, stages: list[Stage]) -> None:
    stage = Stage(tmp_path, [offer("a1", Market.ON_DEMAND)], work=2 * HOUR, restart=60.0)
    stages.append(stage)
    stage.cloud.refuse("*/on_demand", NoCapacity("none left", provider="fake"), times=3)
    job = stage.submit(deadline="5h")
    stage.run(job)
    assert job.status == "succeeded", stage.story(job)
    told_of = [reason for row in job.placements() for reason in row.reasons if "was refused" in reason]
    assert "on demand was refused 3 of 3 times: the chance to miss it is" in told_of[-1]


@pytest.mark.parametrize("refused", [False, True])
def test_what_was_refused_to_one_job_lets_another_begin_earlier(
    refused: bool, tmp_path: Path, stages: list[Stage]
) -> None:
    """No spot, and three quarters of an hour to spare: alone, the job waits for a third of them."""
    stage = Stage(tmp_path, [offer("a1", Market.ON_DEMAND)], work=2 * HOUR, restart=60.0, limits={"weigh": 60.0})
    stages.append(stage)
    stage.world.records.looked((OfferQuery(),), [offer("a1")], START - HOUR)
    stage.world.records.gone(offer("a1"), START - 60.0)
    if refused:
        stage.cloud.refuse("*/on_demand", NoCapacity("none left", provider="fake"), times=1)
        first = stage.submit(deadline="128m")
        stage.run(first, until=lambda: any(row.status == "closed" for row in stage.store.placements(first.id)))
    second = stage.submit(deadline="165m")
    stage.run(second)
    assert second.status == "succeeded", stage.story(second)
    begun, reasons = stage.store.placements(second.id)[0].sent_at, stage.store.placements(second.id)[0].reasons
    assert begun is not None
    if refused:
        assert begun - START < 10 * 60, stage.story(second)
        assert any("on demand was refused 1 of 1 times" in reason for reason in reasons)
    else:
        assert begun - START > 15 * 60, stage.story(second)


def test_a_deadline_that_passes_ends_the_job_with_its_snapshot_safe(tmp_path: Path, stages: list[Stage]) -> None:
    """The work takes longer than was said: it is cut at the deadline, and the next command is named."""
    stage = Stage(tmp_path, [offer("a1", Market.ON_DEMAND)], work=4 * HOUR, restart=60.0)
    stages.append(stage)
    job = stage.submit(deadline="3h", work=Work(hours=2))
    stage.run(job)
    assert (job.status, job.exit_code) == ("limit", 104)
    assert "deadline reached" in job.message
    assert stage.clock() - START <= 3 * HOUR + 30
    assert not stage.living(job)


def test_a_deadline_that_passed_before_anything_was_rented_says_so(tmp_path: Path, stages: list[Stage]) -> None:
    stage = Stage(tmp_path, [offer("a1", Market.ON_DEMAND)], work=2 * HOUR)
    stages.append(stage)
    job = stage.submit(deadline="3h")
    stage.clock.advance(5 * HOUR)
    stage.run(job)
    assert (job.status, job.exit_code) == ("limit", 104)
    assert job.message == "deadline reached 2 h 00 m ago; no work of it was saved"
    assert job.row.fix == f"broker resume {job.id} --deadline TIME begins anew"
    assert stage.cloud.spent() == 0


def decision(offers: Sequence[Any], hours: float, time: float, **more: Any) -> Any:
    wish = Wish((OfferQuery(),), prospect=Prospect(hours, speed=more.pop("speed", {})), spot=more.pop("spot", "auto"))
    past, now = more.pop("past", None), more.pop("now", START)
    return decide(Inputs(tuple(offers), wish, Memory(), now, due=Due(now + time * HOUR, **more), past=past))


def test_a_deadline_that_cannot_be_met_is_said_with_what_would_do() -> None:
    offers = [
        offer("a1", Market.ON_DEMAND),
        offer("b1", Market.ON_DEMAND, 5.0, gpu="H100", gpu_count=1),
        offer("a1"),
    ]
    found = decision(offers, 6.0, 3.0, speed={"H100": 1.5})
    assert found.offer is None
    assert found.next_try is None
    assert found.reasons[0].startswith("the deadline in 3 h 00 m cannot be met: 6 h of work, done soonest in 4 h 05 m")
    assert decision(offers, 6.0, -2.0).reasons[0].startswith("the deadline of 2 h 00 m ago cannot be met: 6 h of work")
    assert "on-demand in fake/b/b1 at 5.00, for 20.4" in found.reasons[0]
    assert "the cheapest is spot in fake/a/a1 at 0.9731" in found.reasons[1]
    assert found.reasons[2] == "deadline: 246m would do"
    assert decision(offers, 6.0, 4.1, speed={"H100": 1.5}).offer == offers[1]
    assert decision(offers, 6.0, 3.0, speed={"H100": 1.5}, began=True).offer == offers[1]  # too late to say no


def test_without_a_machine_on_demand_nothing_is_promised() -> None:
    found = decision([offer("a1")], 2.0, 3.0)
    assert found.offer == offer("a1")
    assert "the deadline in 3 h 00 m cannot be promised" in found.reasons[1]
    both = [offer("a1"), offer("a1", Market.ON_DEMAND)]
    assert decision(both, 2.0, 3.0, spot="never").timing.why == "there is no spot machine that would do"
    assert "spot: only: the deadline" in decision(both, 2.0, 3.0, spot="only").reasons[1]


def test_the_slack_decides_between_waiting_and_on_demand() -> None:
    """The same market, an hour before it is too late and long before."""
    steady = [offer("a1", Market.ON_DEMAND)]
    gone = Due(START).sky
    gone.see(START / HOUR - 1, {"fake/a/a1/v100": True})
    gone.see(START / HOUR, {"fake/a/a1/v100": False})
    prices = {"fake/a/a1/v100": SPOT}
    wide = decision(steady, 6.0, 12.0, sky=gone, prices=prices)
    assert (wide.offer, wide.timing.choice) == (None, Choice.WAIT)
    assert wide.next_try == START + 0.05 * HOUR
    tight = decision(steady, 6.0, 6.1, sky=gone, prices=prices)
    assert (tight.offer, tight.timing.choice) == (steady[0], Choice.ON_DEMAND)


def test_in_a_large_market_the_machine_on_demand_is_not_lost_behind_a_thousand_cheaper_ones() -> None:
    market = [offer(f"a{n}", price=0.5 + n / 1e4) for n in range(1200)]
    slow, fast = offer("b1", Market.ON_DEMAND), offer("c1", Market.ON_DEMAND, 9.0, gpu="H100", gpu_count=1)
    for hours, first in ((5.95, slow), (3.2, fast)):
        found = decision([*market, slow, fast], 5.8, hours, speed={"H100": 2.0})
        assert found.timing is not None, found.reasons
        assert found.offer == first
        assert found.ranked[0].finish is not None
    wide = Due(START + 30 * HOUR)
    inputs = Inputs((*market, slow, fast), Wish((OfferQuery(),), prospect=Prospect(5.8)), Memory(), START, due=wide)
    made = decide(inputs)
    assert made.timing is not None
    assert made.timing.choice is Choice.SPOT
    kept = json.loads(json.dumps(to_json(inputs, made)))
    assert (len(kept["offers"]), replay(kept).timing) == (1000, made.timing), "the record has what it hung on"
    assert (
        "done soonest in 2 h 59 m by on-demand in fake/c/c1"
        in decision([*market, slow, fast], 5.8, 2.0, speed={"H100": 2.0}).reasons[0]
    )


def test_a_faster_card_counts_as_a_cheaper_one() -> None:
    slow, fast = offer("a1"), offer("b1", price=1.5, gpu="H100", gpu_count=1)
    steady = offer("a1", Market.ON_DEMAND)
    assert decision([slow, fast, steady], 10.0, 20.0, speed={"H100": 2.1}).offer == fast
    assert decision([slow, fast, steady], 10.0, 20.0).offer == slow


def test_the_price_over_the_work_decides_and_not_the_present_one() -> None:
    """By night spot at 0.95 of on demand is dearer than it on average of a day's work, at noon it is cheaper."""
    noon = datetime(2026, 12, 1, 12, tzinfo=UTC).timestamp()  # a Tuesday
    market = [offer("a1", price=0.95, interruption=1e-4), offer("a1", Market.ON_DEMAND, 1.0)]

    def at(now: float) -> Any:
        return decision(market, 24.0, 72.0, now=now, past=Past()).timing

    assert at(noon).choice is Choice.SPOT
    assert (at(noon + 11 * HOUR).choice, at(noon + 11 * HOUR).why) == (
        Choice.ON_DEMAND,
        "no spot price is below on-demand's",
    )
    day = Season((*(1.0 if 7 <= hour < 22 else 2.0 for hour in range(24)), *(1.0 for _ in range(24))))
    dear = Past({market[0].key: day})
    assert decision(market, 24.0, 72.0, now=noon, past=dear).timing.choice is Choice.ON_DEMAND, "its nights are dear"
    assert decision(market, 8.0, 72.0, now=noon, past=dear).timing.choice is Choice.SPOT, "done before the night"


def test_spot_of_a_card_that_is_too_slow_for_the_deadline_is_left_to_others() -> None:
    """It would run to its end, hours after the deadline, since a job does not leave spot that runs."""
    slow, fast = offer("a1", price=0.5), offer("c1", Market.ON_DEMAND, 9.0, gpu="H100", gpu_count=1)
    sky = Due(START).sky
    sky.see(START / HOUR - 10, {"fake/a/a1/v100": True})
    for hours, first in ((3.2, fast), (5.8, fast), (5.9, fast), (6.2, slow)):
        found = decision([slow, fast], 5.8, hours, speed={"H100": 2.0}, sky=sky, prices={"fake/a/a1/v100": 0.5})
        assert found.offer == first, (hours, found.reasons)


def test_a_deadline_without_work_is_refused(tmp_path: Path, stages: list[Stage]) -> None:
    stage = Stage(tmp_path, [offer("a1", Market.ON_DEMAND)])
    stages.append(stage)
    job = stage.submit(deadline="3h", work=None)
    stage.run(job)
    assert (job.status, job.exit_code) == ("error", 78)
    assert "how much work there is" in job.message
    with pytest.raises(TaskError, match="deadline: cannot be held: nothing tells how much work there is"):
        planned(Task(run="x", checkpoint=Checkpoint("c"), deadline="3h"), "file:///h", {}, None, START)


def test_times_are_told_for_people() -> None:
    assert [told(hours) for hours in (6.335, 0.75, 30 / 3600, -1.0)] == ["6 h 20 m", "45 m", "30 s", "-1 h 00 m"]
