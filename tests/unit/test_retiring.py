"""A machine's way out where its provider does not take the word: it is asked again, at its own pace, until it does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from unit.stage import START, Stage, offer

from broker.errors import AuthFailed
from broker.messages import Messages
from broker.notify import Notify
from broker.offer import Market

NO_KEY = AuthFailed("there is no key for fake", provider="fake", code="no key", fix="broker check fake takes a key")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path, [offer("a1", Market.ON_DEMAND)], restart=60.0, work=600.0)
    yield made
    made.close()


def terminations(stage: Stage) -> int:
    return sum(call.name == "terminate" for call in stage.cloud.calls)


def test_a_termination_that_is_refused_is_asked_for_again_ever_more_rarely(stage: Stage) -> None:
    """Its program has told its end, so nothing is waited for; that is no reason to ask without a pause."""
    job = stage.submit()
    stage.run(job, until=lambda: stage.state(job).launched == 1)
    stage.cloud.script("terminate", *[NO_KEY] * 40)
    stage.run(job, until=lambda: terminations(stage) == 40)
    assert stage.clock() - START > 660 + 600
    (said,) = [event.text for event in job.events() if "did not take the termination" in event.text]
    assert f"({NO_KEY.fix})" in said, "what to do stands beside it: it goes on being billed"
    assert stage.run(job).status == "succeeded", stage.story(job)
    assert stage.cloud.living() == []


def test_a_stopped_machine_whose_termination_is_refused_does_not_stay_behind(stage: Stage) -> None:
    """Stopped by hand, it is over for its job; its disk goes on being billed until its provider takes the word."""
    job = stage.submit()
    stage.run(job, until=lambda: stage.state(job).live is not None)
    stage.cloud.stop_by_hand("i-0001")
    stage.cloud.script("terminate", *[NO_KEY] * 3)
    assert stage.run(job).status == "stopped", stage.story(job)
    assert terminations(stage) == 4
    assert stage.cloud.living() == []


def test_what_a_machine_said_keeps_no_job_from_ending(stage: Stage) -> None:
    """What it has shown is learned from when it has gone; where that fails, nothing is learned."""
    job = stage.submit()
    stage.run(job, until=lambda: stage.state(job).live is not None)
    said, stage.said = stage.said, lambda *given: {**(said(*given) or {}), "timings": {"save": "long"}}  # type: ignore[method-assign]
    assert stage.run(job).status == "succeeded", stage.story(job)
    assert any("nothing was learned of machine 1" in event.text for event in job.events())


@pytest.mark.parametrize("away", [False, True])
def test_a_stop_before_the_launch_call_rents_nothing(stage: Stage, tmp_path: Path, away: bool) -> None:
    """Also where the home has gone, without which nothing could be launched, and nothing stopped for ever."""
    job = stage.submit()
    stage.run(job, until=lambda: stage.state(job).phase == "launch")
    if away:
        stage.world.home(job.row.home).folder.rename(tmp_path / "away")  # type: ignore[union-attr]
    job.stop()
    assert stage.run(job).status == "stopped", stage.story(job)
    assert not stage.cloud.rented


def test_who_is_told_of_a_job_is_told_of_it_again_once_it_is_taken_up(stage: Stage, tmp_path: Path) -> None:
    """Also where it ends twice before a machine of it was ever had."""
    heard = tmp_path / "heard"
    stage.cloud.limit("*", 0)
    messages = Messages(stage.config, stage.store)
    job = stage.submit(notify=Notify(command=f"cat >>{heard}"), spot="never")
    for _ in range(2):
        assert stage.run(job).status == "unavailable", stage.story(job)
        assert [item.what for item in messages.send()] == ["nothing"]
        job.resume()
    assert heard.read_text().count("unavailable") == 2, heard.read_text()


def test_a_job_does_not_wait_for_ever_for_what_is_left_of_a_machine_that_has_ended(stage: Stage) -> None:
    """Without the right to end machines, one that ended itself would keep its job, and the next nights, from ending."""
    job = stage.submit()
    stage.run(job, until=lambda: stage.state(job).live is not None)
    stage.cloud.script("terminate", *[NO_KEY] * 10_000)
    stage.cloud.stop_by_hand("i-0001")
    assert stage.run(job).status == "stopped", stage.story(job)
    assert "a disk may still be billed" in stage.story(job)
    assert 600 < stage.clock() - START < 3600
    assert terminations(stage) < 40
