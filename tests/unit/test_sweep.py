"""Machines that no job owns, and a provider that cannot be asked for them: nobody is left in the dark."""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from unit.stage import SPOT, START, Stage, offer

from broker.contract import wrap
from broker.errors import AuthFailed, InvalidRequest
from broker.home import JobKeys
from broker.job import Job
from broker.market import Marketplace
from broker.offer import Market, Offer
from broker.provider import Instance, LaunchRequest, State
from broker.sweep import sweep
from broker.testing import wait_for
from broker.testing.fakecloud import FakeCloudProvider
from broker.watch import Followed, Watcher

NO_KEY = AuthFailed("there is no key for fake", provider="fake", code="no key", fix="broker check fake takes a key")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path, [offer("a1", Market.ON_DEMAND), offer("b1", Market.ON_DEMAND, 3.2)], restart=60.0)
    yield made
    made.close()


def warnings(job: Job) -> list[str]:
    return [event.text for event in job.events() if event.kind == "warning"]


def followed(stage: Stage, job: Job) -> Followed:
    # The watcher's own clock is this computer's.
    long_ago = time.time() - 600.0
    held = {placement.generation: replace(placement, launched_at=long_ago) for placement in stage.state(job).held}
    return Followed(job.id, job.row.home, held, lambda: None)


def lost_launch(stage: Stage) -> Job:
    """A job whose first launch was never answered, and whose machine is in no list yet."""
    stage.cloud.token = False
    stage.cloud.fail_after_create(1)
    job = stage.submit()
    stage.run(job, until=lambda: bool(stage.cloud.rented))
    next(iter(stage.cloud.rented.values())).hidden_until = START + 1e6
    return stage.run(job, until=lambda: stage.state(job).launched == 1)


def test_what_came_of_a_lost_launch_is_ended_and_said(stage: Stage) -> None:
    job = lost_launch(stage)
    stray = next(iter(stage.cloud.rented.values()))
    assert sweep(stage.world) == []
    stage.clock.advance(60.0)
    stray.hidden_until = stage.clock()
    assert sweep(stage.world) == [f"fake/{stray.id}"]
    assert job.placements()[0].cost(stage.clock()) == pytest.approx(stray.cost(stage.clock())), "it is booked"


def test_a_provider_that_cannot_be_asked_for_it_is_said_once(stage: Stage) -> None:
    """The key was taken away meanwhile: the machine may be there, and goes on being billed."""
    job = lost_launch(stage)
    before = warnings(job)
    stage.cloud.script("instances", NO_KEY, NO_KEY)
    assert sweep(stage.world) == sweep(stage.world) == []
    (text,) = warnings(job)[len(before) :]
    assert "cannot be asked whether a machine came of placement 1" in text
    assert "billed" in text
    assert "broker check fake takes a key" in text


def test_a_job_that_has_nothing_unseen_there_hears_nothing(stage: Stage) -> None:
    job = stage.submit()
    stage.run(job, until=lambda: stage.state(job).launched == 1)
    stage.cloud.script("instances", NO_KEY)
    assert sweep(stage.world) == []
    assert warnings(job) == []


def test_a_running_job_hears_that_its_provider_cannot_be_asked_and_what_to_do(stage: Stage) -> None:
    """Also where it cannot be written down at first, since the disk is full: whoever asks goes on asking."""
    job = stage.submit()
    stage.run(job, until=lambda: stage.state(job).launched == 1)
    stage.cloud.script("instances", *[NO_KEY] * 1000)
    full = "BEFORE INSERT ON spotbroker_events BEGIN SELECT RAISE(FAIL, 'database or disk is full'); END"
    with stage.world.store.engine.begin() as database:
        database.exec_driver_sql(f"CREATE TRIGGER full {full}")
    watcher = Watcher(stage.world)
    try:
        watcher.follow(followed(stage, job))
        assert wait_for(lambda: len(stage.cloud._scripts["instances"]) < 996, 10.0)
        with stage.world.store.engine.begin() as database:
            database.exec_driver_sql("DROP TRIGGER full")
        assert wait_for(lambda: bool(warnings(job)), 10.0)
    finally:
        watcher.close()
    (text,) = warnings(job)
    assert "is billed" in text
    assert "broker check fake takes a key" in text


def test_what_a_provider_says_of_a_machine_that_failed_is_told(stage: Stage) -> None:
    """Whoever's image cannot be had reads that, and not that three machines ended before their first beat."""
    job = stage.submit()
    stage.run(job, until=lambda: stage.state(job).live is not None)
    (machine,) = stage.cloud.rented
    stage.cloud.fail(machine, "Error response from daemon: pull access denied for me/private")
    watcher = Watcher(stage.world)
    try:
        watcher.follow(followed(stage, job))
        assert wait_for(lambda: bool(warnings(job)), 10.0)
    finally:
        watcher.close()
    assert warnings(job) == [f"fake says of {machine}: Error response from daemon: pull access denied for me/private"]


def test_a_home_that_is_away_when_its_broker_starts_is_heard_once_it_is_there(stage: Stage, tmp_path: Path) -> None:
    job = stage.submit()
    stage.run(job, until=lambda: stage.state(job).live is not None)
    folder, away = stage.world.home(job.row.home).folder, tmp_path / "away"
    assert folder is not None
    folder.rename(away)
    stage.world._homes.clear()  # as a broker that has just begun
    watcher, job_followed = Watcher(stage.world), followed(stage, job)
    try:
        watcher.follow(job_followed)
        assert wait_for(lambda: any("does not answer" in text for text in warnings(job)), 20.0)
        away.rename(folder)
        assert wait_for(lambda: job_followed.heard, 20.0)
    finally:
        watcher.close()


def test_a_list_that_says_less_than_there_is_takes_no_machine_that_speaks(tmp_path: Path) -> None:
    """Twice, and more often, it leaves a healthy machine out; once that is silent, too, it has gone."""
    stage = Stage(tmp_path, [offer("a1", Market.ON_DEMAND)], restart=60.0, limits={"beat": 60.0})
    job = stage.submit()
    stage.run(job, until=lambda: stage.state(job).live is not None)
    (machine,) = stage.cloud.rented.values()
    watcher, home, state = Watcher(stage.world), stage.world.home(job.row.home), stage.state(job)
    home.put(JobKeys(job.id).beat(1), json.dumps({"n": 1, "state": "running"}).encode())

    def instances() -> Mapping[int, Instance | None]:
        return watcher.seen(state, job.row.home).instances

    try:
        watcher.follow(followed(stage, job))
        assert wait_for(lambda: 1 in instances() and bool(watcher.facts.beats), 30.0)
        machine.hidden_until = START + 1e9
        assert wait_for(lambda: 1 not in instances(), 30.0), "it is unknown, not gone"
        looks = len(stage.cloud.calls)
        assert wait_for(lambda: len(stage.cloud.calls) > looks + 10, 30.0)
        assert 1 not in instances()
        watcher.facts.beats[job.id, 1].changed -= 3600.0  # an hour without a word
        assert wait_for(lambda: 1 in instances() and instances()[1] is None, 30.0)
    finally:
        watcher.close()
        stage.close()


def test_a_second_machine_of_one_launch_is_ended_and_is_not_taken_for_the_first(stage: Stage) -> None:
    """Its provider has made two of one request, and says of one of them only: the other is listed with the same tags,
    and is taken back soon."""
    job = stage.submit()
    stage.run(job, until=lambda: stage.state(job).live is not None)
    (first,) = stage.cloud.rented.values()
    twin = replace(first, id="i-0002", ends=[])
    stage.cloud.rented[twin.id] = twin
    assert sweep(stage.world) == ["fake/i-0002"]
    stage.cloud.take_back("i-0002")
    watcher = Watcher(stage.world)
    try:
        watcher.follow(following := followed(stage, job))
        assert wait_for(lambda: bool(watcher.facts.listed), 10.0)
        assert not watcher.settled({job.id}), "it was woken and has not looked yet"
        following.decided = following.wakes
        assert watcher.settled({job.id})
        machine = watcher.seen(stage.state(job), job.row.home).instances[1]
    finally:
        watcher.close()
    assert machine is not None
    assert (machine.id, machine.state) == ("i-0001", State.RUNNING)


@pytest.mark.parametrize("found", [True, False])
def test_a_broker_that_dies_in_a_launch_leaves_the_next_one_to_look_before_it_rents(stage: Stage, found: bool) -> None:
    """Its machine is listed late: until it must be in the list, no other is rented; after that the next is."""
    stage.cloud.token = False
    stage.cloud.hide(30.0)
    stage.cloud.fail_after_create(1, SystemExit(9))  # type: ignore[arg-type]
    job = stage.submit()
    with pytest.raises(SystemExit):
        stage.run(job)
    (first,) = stage.cloud.rented.values()
    if not found:
        first.hidden_until = START + 1e6
    sent_at = stage.clock()
    stage.run(job, until=lambda: stage.state(job).live is not None)
    live = stage.state(job).live
    assert live is not None
    assert stage.clock() >= sent_at + 30.0
    assert (live.generation, len(stage.cloud.rented)) == ((1, 1) if found else (2, 2))


class Together(FakeCloudProvider):
    """A provider whose token covers one offer's launch; a call for many, sent again, may rent another machine."""

    def launch_any(self, request: LaunchRequest, offers: Sequence[Offer]) -> Instance:
        del offers
        return self.launch(replace(request, token=uuid.uuid4().hex))


@pytest.mark.parametrize(("how", "found"), [(SystemExit(9), True), (SystemExit(9), False), (None, True)])
def test_a_launch_of_many_offers_is_not_sent_again(tmp_path: Path, how: Exception | None, found: bool) -> None:
    """What is listed in time is taken; what comes later than lists do is ended when it comes."""
    stage = Stage(tmp_path, [offer("a1"), offer("a2", price=SPOT + 0.01), offer("b1", Market.ON_DEMAND)], restart=60.0)
    provider = wrap(Together(stage.cloud), {}, sleep=stage.clock.sleep)
    stage.world._providers["fake"] = provider
    stage.world._market = Marketplace(stage.config, ["fake"], opener=lambda *_: provider)
    stage.cloud.token = True
    stage.cloud.hide(30.0)
    stage.cloud.fail_after_create(1, how)
    job = stage.submit()
    with contextlib.suppress(SystemExit):
        stage.run(job, until=lambda: bool(stage.cloud.rented))
    assert stage.store.placement(job.id, 1).request["any_of"], "it is no launch of many otherwise"
    (first,) = stage.cloud.rented.values()
    if not found:
        first.hidden_until = START + 1e6
    stage.run(job, until=lambda: stage.state(job).live is not None)
    live = stage.state(job).live
    assert live is not None
    assert (live.generation, len(stage.cloud.rented)) == ((1, 1) if found else (2, 2))
    first.hidden_until = stage.clock()
    assert sweep(stage.world) == ([] if found else [f"fake/{first.id}"])
    stage.close()


@pytest.mark.parametrize("found", [True, False])
def test_a_token_that_belongs_to_another_request_is_no_end_of_the_job(stage: Stage, found: bool) -> None:
    """Something was made under it (case 25): it is looked for and taken, else the next generation is rented."""
    stage.cloud.hide(30.0)
    mismatch = InvalidRequest("another request", provider="fake", code="IdempotentParameterMismatch")
    stage.cloud.fail_after_create(1, mismatch)
    job = stage.submit()
    stage.run(job, until=lambda: bool(stage.cloud.rented))
    if not found:
        (first,) = stage.cloud.rented.values()
        first.hidden_until, first.fingerprint = START + 1e6, "another"
    stage.run(job, until=lambda: stage.state(job).live is not None or job.refresh().done)
    live = stage.state(job).live
    assert live is not None, stage.story(job)
    assert (live.generation, len(stage.cloud.rented)) == ((1, 1) if found else (2, 2))
