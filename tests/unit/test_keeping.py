"""A machine whose program has failed is kept for a look: for how long, what the job does about it, what is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.control import control_of
from broker.errors import TaskError
from broker.keeping import Keep
from broker.narration import status_of, verdict_of
from broker.notify import news
from broker.offer import Market
from broker.provider import Cause, Instance, State
from broker.reaction import Beat, Limits, Seen, react, wake_at
from broker.state import SETTLING, Held, JobState
from broker.store import Event, JobRow
from broker.task import Task

NOW = 1_000_000.0
LIMITS = Limits(keep=Keep(1800.0))
HELD = Held(
    generation=1, provider="local", instance="m-1", offer="local/home/north/cpu-2/spot", hourly=2.0,
    launched_at=NOW - 1000, boot_by=NOW - 500, end_by=NOW + 9000, end_why="max_hours", beat=30.0,
)  # fmt: skip
ALIVE = Instance("local", "m-1", State.RUNNING, Market.SPOT, 2.0, {})


def failed(kept: float | None = 1800.0, **more: Any) -> Beat:
    result = {"outcome": "failed", "reason": "exit 3", "at": NOW, "kept_until": kept and NOW + kept}
    return Beat({"n": 9, "state": "kept", "result": result, "closed": {"seq": 2}, **more})


def after(beat: Beat, limits: Limits = LIMITS, **more: Any) -> JobState:
    """What a job with a live machine becomes once its guest says this."""
    state = react(JobState("j", phase="watch", generation=1, live=HELD, launched=1), seen(beat, **more), limits)
    assert state is not None
    return state


def seen(beat: Beat, at: float = NOW, instance: Instance | None = ALIVE, **more: Any) -> Seen:
    return Seen(at, instances={1: instance}, beats={1: beat}, **more)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("30m", Keep(1800.0)), ("{for: 30m, max_usd: 0.50}", Keep(1800.0, 0.5)), ("{for: 90}", Keep(90.0))],
)
def test_a_task_file_says_how_long_and_for_how_much(tmp_path: Path, text: str, wanted: Keep) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(f"run: x\nspot: never\nkeep_on_failure: {text}\n")
    task = Task.from_yaml(file)
    assert task.keep_on_failure == wanted
    assert Task.from_json(task.to_json()).keep_on_failure == wanted
    file.write_text(task.to_yaml())
    assert Task.from_yaml(file).keep_on_failure == wanted


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{max_usd: 1}", "t.yaml:3:18: keep_on_failure.for: is missing"),
        ("soon", "t.yaml:3:18: keep_on_failure.for: must be a time"),
        ("{for: 5m, max_usd: 0}", "t.yaml:3:37: keep_on_failure.max_usd: must be above zero"),
    ],
)
def test_a_wrong_one_is_named(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(f"run: x\nspot: never\nkeep_on_failure: {text}\n")
    with pytest.raises(TaskError, match=words.replace(".", r"\.")):
        Task.from_yaml(file)


def test_the_cost_cap_shortens_it() -> None:
    assert Keep(1800.0, 0.5).lasts(0.4) == 1800.0
    assert Keep(1800.0, 0.5).lasts(2.0) == 900.0
    assert Keep(1800.0).costs(2.0) == 1.0
    assert Keep(1800.0, 0.5).costs(2.0) == 0.5


def test_a_failed_jobs_machine_stays_and_its_end_is_told_at_once() -> None:
    state = after(failed())
    (entry,) = state.retiring
    assert (entry.kept, entry.terminate_at, entry.end_by) == (True, NOW + 1800, NOW + 1800 + SETTLING)
    row = JobRow("j", "j", NOW, "running", "", {})
    assert status_of(state, row, program_runs=False) == "kept"
    told = verdict_of(state, row)
    assert told["exit_code"] == 100
    assert told["message"].startswith("failed: exit 3; the machine is kept until ")
    assert "broker ssh j looks" in told["fix"]
    assert "broker stop j ends it now" in told["fix"]
    # Its guest is told nothing that would end it, and the broker looks again when it is over.
    order = control_of(state, "me", 1).generations[1]
    assert (order.order, order.end_by) == ("keep", NOW + 1800 + SETTLING)
    assert react(state, seen(failed(), NOW + 1799), LIMITS) is None
    assert wake_at(state, seen(failed(), NOW + 1700), LIMITS) == NOW + 1775
    over = react(state, seen(failed(), NOW + 1800), LIMITS)
    assert over is not None
    assert over.phase == "retire"


@pytest.mark.parametrize(
    ("beat", "limits", "more"),
    [
        (failed(None), LIMITS, {}),  # its guest keeps nothing: a notice, an order, its own end
        (failed(), Limits(), {}),
        (failed(-1.0), LIMITS, {}),
        (failed(), LIMITS, {"instance": replace(ALIVE, state=State.TERMINATED, cause=Cause.PREEMPTED)}),
        (failed(), LIMITS, {"want": "stop"}),
    ],
)
def test_nothing_is_kept_that_goes_anyway(beat: Beat, limits: Limits, more: dict[str, Any]) -> None:
    (entry,) = after(beat, limits, **more).retiring
    assert not entry.kept


def test_no_longer_than_it_is_billed_for_and_than_the_machine_lasts() -> None:
    """The guest reckons with the price that was asked for; it is billed by another."""
    assert after(failed(), Limits(keep=Keep(1800.0, 0.5))).retiring[0].terminate_at == NOW + 900
    late = react(JobState("j", phase="watch", live=replace(HELD, end_by=NOW + 60), launched=1), seen(failed()), LIMITS)
    assert late is not None
    assert late.retiring[0].terminate_at == NOW + 60


@pytest.mark.parametrize("want", ["stop", "stop-now"])
def test_its_user_may_end_it(want: str) -> None:
    state = react(after(failed()), seen(failed(), NOW + 5, want=want), LIMITS)
    assert state is not None
    (entry,) = state.retiring
    assert (entry.kept, entry.order, entry.terminate_at) == (False, "end", NOW + 5)
    assert state.outcome is not None
    assert state.outcome.status == "failed"


def test_one_that_is_taken_back_is_gone() -> None:
    gone = replace(ALIVE, state=State.TERMINATED, cause=Cause.PREEMPTED, ended_at=NOW + 7)
    state = react(after(failed()), seen(failed(), NOW + 9, gone), LIMITS)
    assert state is not None
    assert state.retiring[0].gone_at == NOW + 7


def test_the_failure_is_news_when_it_happens_and_once() -> None:
    events = [Event(1, "j", 1, NOW, "kept", "failed", {}), Event(2, "j", 1, NOW, "ended", "failed: exit 3", {})]
    assert [(item.what, item.seq) for item in news(events, 0, "failed")] == [("failed", 1)]
    assert list(news(events, 1, "failed")) == []
