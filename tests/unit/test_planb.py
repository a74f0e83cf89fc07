"""Budgets, plan B and moves of a job's own accord, through the real phases on a fake cloud."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from unit.stage import ON_DEMAND, SPOT, START, Stage, offer

from broker.errors import Ambiguous, ConfigError, NoCapacity, TaskError
from broker.experience import Lesson
from broker.offer import Market, Offer
from broker.policy.record import replay
from broker.provider import LaunchRequest
from broker.task import Work

HOUR = 3600.0
STEADY, CHEAP = offer("a1", Market.ON_DEMAND), offer("a1")


@pytest.fixture
def staged(tmp_path: Path) -> Iterator[Any]:
    made: list[Stage] = []

    def make(stock: list[Any], **more: Any) -> Stage:
        made.append(Stage(tmp_path / str(len(made)), stock, **{"restart": 300.0, **more}))
        return made[-1]

    yield make
    for stage in made:
        stage.close()


def markets(stage: Stage, job: Any) -> list[str]:
    return [str(row.market) for row in job.placements() if row.instance]


def later(stage: Stage, seconds: float, call: Any) -> None:
    """Do something once, when so much time has passed."""
    done: list[bool] = []

    def tick(now: float) -> float | None:
        if now >= START + seconds - 1e-6 and not done:
            done.append(True)
            call()
        return None if done else START + seconds

    stage.at_tick = tick


# Budgets


def test_at_its_budget_a_job_is_saved_and_ended_and_can_be_resumed(staged: Any) -> None:
    stage = staged([STEADY], work=6 * HOUR)
    job = stage.submit(budget=5.0)
    stage.run(job)
    assert (job.status, job.exit_code) == ("limit", 104), stage.story(job)
    assert job.message == "budget reached; the newest snapshot is safe"
    assert 4.5 < stage.cloud.spent() <= 5.0
    with pytest.raises(ConfigError, match=r"has spent 4\.9"):
        job.resume()
    with pytest.raises(TaskError, match="budget: must be above zero USD, not 0"):
        job.resume(budget=0)  # no budget of nothing, which would have been none at all
    job.resume(budget=30.0)
    stage.run(job)
    assert job.status == "succeeded", stage.story(job)
    assert stage.cloud.spent() <= 6 * HOUR / HOUR * ON_DEMAND + 3.0


def test_the_guest_knows_its_share_so_that_the_budget_holds_without_a_broker(staged: Any) -> None:
    stage = staged([STEADY])
    job = stage.submit(budget=5.0)
    stage.run(job, until=lambda: stage.state(job).live is not None)
    request = LaunchRequest.from_json(dict(job.placements()[0].request))
    assert request.end_why == "budget"
    assert (request.end_by - request.frozen_at) * request.offer.hourly / HOUR <= 5.0
    assert request.latest is not None
    assert request.latest > request.end_by  # max_hours, should the budget be raised


@pytest.mark.parametrize("notice", [None, 120.0])
def test_a_budget_holds_over_handovers(staged: Any, notice: float | None) -> None:
    """A machine is taken back again and again, two are there at once, and every price is another."""
    stock = [offer(f"a{n}", price=0.5 + 0.4 * n) for n in range(1, 4)] + [STEADY]
    stage = staged(stock, work=40 * HOUR)
    spent: list[float] = []

    def tick(now: float) -> float:
        spent.append(stage.cloud.spent())
        number = int((now - START) / (0.7 * HOUR) + 1e-9)
        if number > len(taken):
            taken.append(number)
            for machine in stage.cloud.living():
                if stage.cloud.rented[machine.id].notice is None:
                    stage.cloud.take_back(machine.id, notice=notice)
        return START + (number + 1) * 0.7 * HOUR

    taken: list[int] = []
    stage.at_tick = tick
    job = stage.submit(budget=8.0)
    stage.run(job)
    assert (job.status, job.exit_code) == ("limit", 104), stage.story(job)
    assert job.message.startswith("budget")
    assert len(job.placements()) > 3
    assert max(spent[-1], stage.cloud.spent()) <= 8.0
    assert stage.cloud.spent() > 6.0


def test_what_a_leaving_machine_did_not_use_goes_to_the_one_that_runs(staged: Any) -> None:
    stage = staged([offer("a1", price=1.0), offer("b1", price=1.5)], work=9 * HOUR)
    later(stage, HOUR, lambda: [stage.cloud.take_back(machine.id, notice=120.0) for machine in stage.cloud.living()])
    job = stage.submit(budget=8.0)
    stage.run(job, until=lambda: any(e.kind == "confirmed" for e in job.events()))
    request = LaunchRequest.from_json(dict(job.placements()[1].request))
    live = stage.state(job).live
    assert live is not None
    assert live.generation == 2
    gained = live.end_by - request.end_by
    assert 30 < gained < 300  # two minutes of the first one's, at its price
    assert stage.cloud.spent() + (live.end_by - stage.clock()) * 1.5 / HOUR <= 8.0


def test_a_month_has_a_budget_over_all_jobs(staged: Any) -> None:
    """The first one is committed to 3 h, 9.18 of the 12.50 USD: the second has what is left, the third nothing."""
    stage = staged([STEADY], work=2 * HOUR, monthly=12.5)
    first, second, third = (stage.submit(max_hours=3) for _ in range(3))
    stage.run(first, until=lambda: stage.state(first).live is not None)
    stage.run(second, until=lambda: stage.state(second).live is not None)
    (row,) = second.placements()
    told = f"by monthly_budget: 3.32 of 12.50 left, 0.00 spent, 9.18 committed to machines that run ({first.id} 9.18"
    assert any(told in reason for reason in row.reasons), row.reasons
    stage.run(third)
    assert (third.status, third.exit_code) == ("limit", 104), stage.story(third)
    assert third.message.startswith("monthly_budget of 12.5 USD is too little: 0.00 spent, 12.4")
    assert f"({first.id} 9.18 until " in third.message
    assert f"{second.id} 3.2" in third.message
    assert "a start needs 5 m, for which 12.7" in third.message
    assert f"wait, or broker stop {first.id}" in third.row.fix
    stage.run(second)
    assert second.message == "monthly_budget reached; the newest snapshot is safe"
    stage.run(first)
    assert first.status == "succeeded"
    assert stage.cloud.spent() <= 12.5
    third.resume()  # what the first did not use is free again
    stage.run(third, until=lambda: stage.state(third).live is not None or third.refresh().done)
    assert stage.state(third).live is not None, stage.story(third)


def test_a_budget_that_pays_for_no_start_rents_nothing(staged: Any) -> None:
    """Five minutes of 3.06 an hour until the first step: a budget below that would be spent on nothing."""
    stage = staged([STEADY], work=2 * HOUR)
    job = stage.submit(budget=0.25)
    stage.run(job)
    assert (job.status, job.exit_code) == ("limit", 104)
    assert job.message.startswith("budget of 0.25 USD is too little: 0.00 spent, which leaves 5 m of on-demand in ")
    assert "for which 0.27 would do" in job.message
    assert job.row.fix == f"broker resume {job.id} --budget USD goes on, with a higher one"
    assert stage.cloud.spent() == 0
    job.resume(budget=0.27)
    stage.run(job)
    assert job.message == "budget reached; the newest snapshot is safe"
    (row,) = job.placements()
    assert 300 <= row.request["end_by"] - row.launched_at <= 0.27 / ON_DEMAND * HOUR


def test_what_a_machine_really_costs_counts_against_the_budget(staged: Any) -> None:
    """Spot was asked for and on-demand was given, at three times the price (case 2): its end comes earlier."""
    stage = staged([STEADY, CHEAP])
    job = stage.submit(budget=5.0)
    stage.run(job, until=lambda: stage.state(job).phase == "launch")
    stage.cloud.stock = [STEADY, replace(CHEAP)]
    real = stage.cloud.provider()

    class Dear:
        name, traits = real.name, real.traits
        offers, terminate, notice = real.offers, real.terminate, real.notice

        def launch(self, request: LaunchRequest) -> Any:
            return replace(real.launch(request), hourly=ON_DEMAND, market=Market.ON_DEMAND)

        def instances(self) -> Any:
            return [replace(i, hourly=ON_DEMAND, market=Market.ON_DEMAND) for i in real.instances()]

    stage.world._providers["fake"] = Dear()
    stage.run(job, until=lambda: stage.state(job).live is not None)
    live = stage.state(job).live
    assert live is not None
    assert (live.end_by - START) * ON_DEMAND / HOUR <= 5.0 + 1e-6
    assert live.end_why == "budget"


@pytest.mark.parametrize("market", list(Market))
def test_a_machine_whose_price_is_not_told_is_not_free(staged: Any, market: Market) -> None:
    """A list may leave the price of a new machine out, or show zero: it costs what was offered for its market."""
    stage = staged([STEADY, replace(CHEAP, extra={"on_demand": ON_DEMAND})])
    job = stage.submit(budget=5.0)
    stage.run(job, until=lambda: stage.state(job).phase == "launch")
    real = stage.cloud.provider()

    class Silent:
        name, traits = real.name, real.traits
        offers, terminate, notice = real.offers, real.terminate, real.notice

        def launch(self, request: LaunchRequest) -> Any:
            return replace(real.launch(request), hourly=0.0, market=market)

        def instances(self) -> Any:
            return [replace(i, hourly=0.0, market=market) for i in real.instances()]

    stage.world._providers["fake"] = Silent()
    stage.run(job, until=lambda: stage.state(job).live is not None)
    assert job.placements()[0].hourly == pytest.approx(SPOT if market is Market.SPOT else ON_DEMAND)
    live = stage.state(job).live
    assert live is not None
    assert (live.end_by - START) * live.hourly / HOUR <= 5.0 + 1e-6


def test_a_launch_without_an_answer_counts(staged: Any) -> None:
    """A machine may have come of it, and is billed until it is found."""
    stage = staged([STEADY, offer("b1", Market.ON_DEMAND, 3.2)], work=6 * HOUR)
    stage.cloud.token = False
    stage.cloud.hide(30.0)
    stage.cloud.fail_after_create(1)
    job = stage.submit(budget=5.0)
    stage.run(job, until=lambda: bool(stage.cloud.rented))
    next(iter(stage.cloud.rented.values())).hidden_until = START + 1e6  # it never is where it should be
    stage.run(job, until=lambda: stage.state(job).generation == 2 and stage.state(job).phase == "launch")
    lost, standing = job.placements()
    assert (lost.status, lost.cause) == ("closed", "unclear")
    (stray,) = stage.cloud.living()
    later(stage, standing.picked_at - START + 400, lambda: stage.cloud.take_back(stray.id))  # the sweeper has found it
    stage.run(job)
    assert (job.status, job.exit_code) == ("limit", 104), stage.story(job)
    assert stage.cloud.spent() <= 5.0


# Prices


def test_max_price_is_held_against_the_price_that_is_charged(staged: Any) -> None:
    """The price rose between the look and the launch; what was rented above the limit ends at once."""
    stage = staged([offer("a1", price=0.5), offer("b1", price=0.55)], work=HOUR)
    job = stage.submit(max_price=0.6, spot="only")
    stage.run(job, until=lambda: stage.state(job).phase == "launch")
    stage.cloud.reprice("fake/*/a1/*", 0.9)
    request = dict(job.placements()[0].request)
    request["offer"] = {**request["offer"], "price": 0.9}
    stage.store.update_placement(job.id, 1, request=request)
    stage.run(job)
    assert job.status == "succeeded", stage.story(job)
    rows = [row for row in job.placements() if row.instance]
    assert [LaunchRequest.from_json(dict(row.request)).offer.zone for row in rows] == ["a1", "b1"]
    assert rows[0].cost(stage.clock()) < 0.01


def test_a_price_that_has_grown_old_is_looked_at_again(staged: Any) -> None:
    stage = staged([offer("a1", price=0.5), offer("b1", price=0.55)], work=HOUR)
    job = stage.submit(max_price=0.6, spot="only")
    stage.run(job, until=lambda: stage.state(job).phase == "launch")
    stage.clock.advance(90.0)  # a broker that was away
    stage.cloud.reprice("fake/*/a1/*", 0.9)
    stage.run(job)
    assert job.status == "succeeded", stage.story(job)
    assert [row.status for row in job.placements()] == ["closed", "ended"]


# Plan B


def test_on_demand_takes_over_only_after_there_was_no_spot_for_a_while(staged: Any) -> None:
    stage = staged([STEADY, CHEAP], work=4 * HOUR)

    def gone() -> None:
        stage.cloud.limit("*/spot", 0)
        for machine in stage.cloud.living():
            stage.cloud.take_back(machine.id)

    later(stage, HOUR, gone)
    job = stage.submit()
    stage.run(job)
    assert job.status == "succeeded", stage.story(job)
    assert markets(stage, job) == ["spot", "on_demand"]
    rows = [row for row in job.placements() if row.instance]
    assert 290 <= rows[1].launched_at - (START + HOUR) <= 330
    assert any("no spot for 300 s" in reason for reason in rows[1].reasons)


def test_spot_that_comes_back_in_time_is_taken_again(staged: Any) -> None:
    stage = staged([STEADY, CHEAP], work=2 * HOUR)
    later(stage, HOUR, lambda: [stage.cloud.take_back(machine.id) for machine in stage.cloud.living()])
    job = stage.submit()
    stage.run(job)
    assert markets(stage, job) == ["spot", "spot"], stage.story(job)


def test_where_there_never_was_spot_on_demand_is_taken_at_once(staged: Any) -> None:
    stage = staged([STEADY], work=HOUR)
    job = stage.submit()
    stage.run(job)
    assert markets(stage, job) == ["on_demand"]
    assert job.placements()[0].launched_at == START


def back(staged: Any, work: float, spot_at: float, **more: Any) -> tuple[Stage, Any]:
    """A job on demand; after a while spot is there again."""
    stage = staged([STEADY, CHEAP], work=work, **more)
    stage.cloud.limit("*/spot", 0)
    later(stage, spot_at, lambda: stage.cloud.limit("*/spot", 9))
    job = stage.submit(work=Work(hours=work / HOUR))
    stage.run(job)
    assert job.status == "succeeded", stage.story(job)
    return stage, job


def test_a_job_goes_back_to_spot_and_runs_on_until_the_new_machine_is_ready(staged: Any) -> None:
    stage, job = back(staged, 5 * HOUR, HOUR)
    assert markets(stage, job) == ["on_demand", "spot"], stage.story(job)
    old, new = (stage.guests[job.id, generation] for generation in (1, 2))
    assert old.ended is not None
    assert new.began is not None
    assert 0 <= old.ended - (new.at + 300.0) < 5  # the start-up of the new machine cost no time
    assert new.began >= old.ended  # one program at a time
    assert stage.cloud.spent() < 1.4 * ON_DEMAND + 4.2 * SPOT
    (event,) = [e for e in job.events() if e.kind == "weighed"]
    assert "goes back to spot in fake/a/a1: " in event.text


def test_a_budget_leaves_room_for_the_move_back(staged: Any) -> None:
    """The machine that makes room is told to end with the handover, so that its share is the new one's but for that."""
    stage = staged([STEADY, CHEAP], work=5 * HOUR)
    stage.cloud.limit("*/spot", 0)
    later(stage, HOUR, lambda: stage.cloud.limit("*/spot", 9))
    job = stage.submit(budget=11.0)
    stage.run(job)
    assert job.status == "succeeded", stage.story(job)
    assert markets(stage, job) == ["on_demand", "spot"]
    assert stage.cloud.spent() <= 11.0


def test_a_job_does_not_move_for_its_last_minutes(staged: Any) -> None:
    stage, job = back(staged, 1.05 * HOUR, HOUR, limits={"weigh": 180.0})
    assert markets(stage, job) == ["on_demand"], stage.story(job)


@pytest.mark.parametrize(
    "trouble", [NoCapacity("none", provider="fake"), Ambiguous("500", provider="fake"), "lost in boot"]
)
def test_a_job_that_cannot_move_keeps_its_machine(staged: Any, trouble: Any) -> None:
    stage = staged([STEADY, CHEAP], work=3 * HOUR)
    stage.cloud.limit("*/spot", 0)
    if isinstance(trouble, str):

        def launched(instance: Any, request: LaunchRequest) -> None:
            stage._launched(instance, request)
            if request.generation == 2:
                later(stage, stage.clock() - START + 60, lambda: stage.cloud.take_back(instance.id))

        stage.cloud.on_launch = launched
    elif isinstance(trouble, Ambiguous):
        later(stage, HOUR, lambda: (stage.cloud.limit("*/spot", 9), stage.cloud.fail_after_create(1)))
    else:
        stage.cloud.refuse("*/spot", trouble)
    if not isinstance(trouble, Ambiguous):
        later(stage, HOUR, lambda: stage.cloud.limit("*/spot", 9))
    job = stage.submit()
    stage.run(job)
    assert job.status == "succeeded", stage.story(job)
    first = stage.guests[job.id, 1]
    assert first.ended is not None
    assert first.ended - START > 1.1 * HOUR  # the machine on demand was not given up for nothing
    stray = [machine for machine in stage.cloud.living() if machine.generation == 2]
    assert bool(stray) == isinstance(trouble, Ambiguous)  # which the sweeper ends
    programs = [(g.began, g.ended) for g in stage.guests.values() if g.began is not None]
    assert all(a[1] <= b[0] for a, b in zip(sorted(programs), sorted(programs)[1:], strict=False))


def test_a_move_that_broke_off_is_given_up_and_tried_again(staged: Any) -> None:
    """The home does not answer when the new machine's word is to be written: the old one goes on, nothing is owed."""
    stage = staged([STEADY, CHEAP], work=5 * HOUR)
    stage.cloud.limit("*/spot", 0)
    later(stage, HOUR, lambda: stage.cloud.limit("*/spot", 9))
    job = stage.submit(budget=12.0)
    stage.run(job, until=lambda: stage.state(job).heading is not None and stage.state(job).phase == "launch")
    broken = stage.state(job)
    # What the engine does with a phase that raised.
    stage.store.update_job(job.id, state=broken.to("watch", not_before=stage.clock() + 1, then="launch").to_json())
    stage.run(job)
    assert job.status == "succeeded", stage.story(job)
    assert [row.status for row in job.placements()] == ["ended", "closed", "ended"]
    assert markets(stage, job) == ["on_demand", "spot"]
    assert stage.cloud.spent() < 10.0


# Slow machines


def shown(stage: Stage, pace: float) -> None:
    """An earlier job of this task has made so many steps an hour."""
    stage.world.records.learn(Lesson("earlier", 1, CHEAP, START, START, lost=False, task="t", pace=pace))


def test_a_machine_that_is_slower_than_its_card_is_left(staged: Any) -> None:
    """It makes four tenths of the steps that an earlier job made."""
    stage = staged([CHEAP, offer("b1", price=1.1), STEADY], work=10 * HOUR)
    stage.rates["a1"] = 0.4
    shown(stage, 3600.0)
    job = stage.submit(work=Work(steps=10 * 3600))
    stage.run(job)
    assert job.status == "succeeded", stage.story(job)
    rows = [row for row in job.placements() if row.instance]
    assert [row.request["offer"]["zone"] for row in rows] == ["a1", "b1"], stage.story(job)
    (event,) = [e for e in job.events() if e.kind == "weighed"]
    assert event.text.startswith("makes 40 % of the steps that its card has made: goes to spot in fake/b/b1, ")
    old, new = (stage.guests[job.id, generation] for generation in (1, 2))
    assert old.began is not None
    assert 600 <= new.at - old.began <= 900, "as soon as its pace is known"
    assert new.began is not None
    assert old.ended is not None
    assert new.began >= old.ended
    assert stage.clock() - START < 11.2 * HOUR


def test_where_all_machines_are_alike_one_move_tells(staged: Any) -> None:
    """The earlier job had less to do for a step."""
    stage = staged([CHEAP, offer("b1", price=1.0), offer("c1", price=1.05)], work=10 * HOUR)
    shown(stage, 10 * 3600.0)
    job = stage.submit(work=Work(steps=10 * 3600))
    stage.run(job)
    assert job.status == "succeeded", stage.story(job)
    assert len(job.placements()) == 2, stage.story(job)


@pytest.mark.parametrize(("rate", "other"), [(0.9, 1.1), (0.4, 2.9)])
def test_a_machine_that_is_hardly_slow_or_cheap_for_it_is_kept(staged: Any, rate: float, other: float) -> None:
    stage = staged([CHEAP, offer("b1", price=other)], work=5 * HOUR)
    stage.rates["a1"] = rate
    shown(stage, 3600.0)
    job = stage.submit(work=Work(hours=5))
    stage.run(job)
    assert job.status == "succeeded", stage.story(job)
    assert len(job.placements()) == 1, stage.story(job)


# Records


def test_replaying_a_record_gives_the_same_decision(staged: Any) -> None:
    """Of every decision that was made on the way: with a deadline and without, waits, refusals and moves."""
    count = aged = 0
    for more in ({}, {"deadline": "9h"}, {"budget": 30.0}):
        stage = staged([STEADY, CHEAP, offer("b1", price=1.1)], work=5 * HOUR)
        stage.cloud.refuse("*/a1/*/spot", NoCapacity("none", provider="fake"), times=1)
        later(
            stage,
            HOUR,
            lambda s=stage: (s.cloud.limit("*/spot", 0), [s.cloud.take_back(m.id) for m in s.cloud.living()]),
        )
        job = stage.submit(**more)
        stage.run(job, until=lambda s=stage: s.clock() > START + 3 * HOUR)
        stage.cloud.limit("*/spot", 9)
        stage.run(job)
        assert job.status == "succeeded", stage.story(job)
        for record in job.decisions():
            again = replay(record)
            assert again.to_json(limit=1000) == record["decision"]
            assert set(record["past"]["since"]) <= {Offer.from_json(offer).key for offer in record["offers"]}
            aged += bool(record["past"]["since"])
            assert record["decision"]["reasons"]
            assert record["decision"]["ranked"] or record["decision"]["rejected"]
            count += 1
    assert count > 9
    assert aged > 5, "zones are known by their age, and that is kept"
