"""What a job does about its limits and about moves of its own accord. Pure facts in, the next state out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from unit.test_reaction import LIMITS, NOW, beat, held, instance, job

from broker.control import control_of
from broker.provider import Cause, State
from broker.reaction import END_MARGIN, LAST_SAVE, Seen, react, wake_at
from broker.state import SETTLING, JobState, Retiring


def making_room(**changes: object) -> JobState:
    """Placement 1 runs on until placement 2 is ready."""
    old = Retiring(held(1), why="migrate", order="run", since=NOW - 60, terminate_at=NOW + 1800)
    state = job(live=held(2, boot_by=NOW + 500), generation=2, launched=2, retiring=(old,), after=1)
    return replace(state, **changes)  # type: ignore[arg-type]


BOTH = {1: instance(), 2: instance(id="m-2")}


def test_the_old_machine_runs_on_until_the_new_one_waits_for_it() -> None:
    state = making_room()
    setup = Seen(NOW, instances=BOTH, beats={1: beat(), 2: beat(state="setup")})
    assert react(state, setup, LIMITS) is None
    order = control_of(state, "me", 1)
    assert (order.live, order.retiring) == (2, (1,))
    assert order.generations[1].order == "run"
    assert order.generations[1].end_by == NOW + 1800 + SETTLING
    assert order.generations[2].after == 1
    assert not order.generations[2].go
    ready = Seen(NOW, instances=BOTH, beats={1: beat(), 2: beat(state="waiting")})
    told = react(state, ready, LIMITS)
    assert told is not None
    (entry,) = told.retiring
    assert (told.phase, entry.order, entry.terminate_at) == ("retire", "retire", NOW + LAST_SAVE)


@pytest.mark.parametrize("why", ["preempted", "boot"])
def test_where_the_new_machine_is_lost_the_old_one_goes_on(why: str) -> None:
    state = making_room()
    if why == "preempted":
        gone = {**BOTH, 2: instance(State.TERMINATED, id="m-2", cause=Cause.PREEMPTED)}
        seen = Seen(NOW, instances=gone, beats={1: beat()}, finals={2: {"result": None, "closed": None}})
    else:
        seen = Seen(NOW + 501, instances=BOTH, beats={1: beat()})
    back = react(state, seen, LIMITS)
    assert back is not None
    assert back.live == held(1)
    assert [entry.generation for entry in back.retiring] == [2]
    assert (back.outcome, back.phase, back.lost) == (None, "retire", (2, why))
    assert control_of(back, "me", 1).live == 1


def test_a_stop_ends_both() -> None:
    stopped = react(making_room(), Seen(NOW, want="stop", instances=BOTH, beats={1: beat(), 2: beat()}), LIMITS)
    assert stopped is not None
    assert [entry.order for entry in stopped.retiring] == ["end"]
    following = react(stopped.to("watch"), Seen(NOW, want="stop", instances=BOTH, beats={1: beat(), 2: beat()}), LIMITS)
    assert following is not None
    assert following.live is None
    assert following.outcome is not None


def test_success_of_the_old_one_ends_the_job() -> None:
    seen = Seen(NOW, instances=BOTH, beats={1: beat(result={"outcome": "succeeded"}), 2: beat(state="setup")})
    done = react(making_room(), seen, LIMITS)
    assert done is not None
    assert done.outcome is not None
    assert done.outcome.status == "succeeded"


@pytest.mark.parametrize("why", ["budget", "deadline", "monthly_budget"])
def test_a_machine_past_a_limit_of_the_job_is_ended_from_here(why: str) -> None:
    """Its guest hangs, or the store does not let its last word through."""
    state = job(live=held(end_by=NOW, end_why=why))
    seen = Seen(NOW + END_MARGIN - 1, instances={1: instance()}, beats={1: beat()})
    assert react(state, seen, LIMITS) is None
    assert wake_at(state, seen, LIMITS) <= NOW + END_MARGIN
    late = react(state, replace(seen, now=NOW + END_MARGIN), LIMITS)
    assert late is not None
    assert late.outcome is not None
    assert (late.outcome.status, late.outcome.exit_code) == ("limit", 104)
    assert late.outcome.message == f"{why} reached; the newest snapshot is safe"
    assert late.retiring[0].terminate_at == NOW + END_MARGIN


def test_a_machine_past_its_own_limit_is_followed_by_another() -> None:
    state = job(live=held(end_by=NOW))
    seen = Seen(NOW + LIMITS.grace + 1, instances={1: instance()}, beats={1: beat()})
    moved = react(state, seen, LIMITS)
    assert moved is not None
    assert (moved.outcome, moved.live) == (None, None)
    assert moved.retiring[0].blocking  # its end is confirmed before there is a new one


def test_the_market_is_weighed_when_it_is_time_and_the_program_runs() -> None:
    state = job(weigh_at=NOW)
    seen = Seen(NOW, instances={1: instance()}, beats={1: beat()})
    weighed = react(state, seen, LIMITS)
    assert weighed is not None
    assert weighed.phase == "weigh"
    assert react(state, replace(seen, beats={1: beat(state="setup")}), LIMITS) is None
    later = replace(state, weigh_at=NOW + 40)
    assert react(later, seen, LIMITS) is None
    assert wake_at(later, seen, LIMITS) == NOW + 40


@pytest.mark.parametrize("late", [False, True])
def test_machines_that_end_themselves_without_a_new_snapshot_end_the_job(late: bool) -> None:
    """The third in a row; one that has saved something begins the count anew."""

    def ended(state: JobState, seq: int = 0, **limits: object) -> JobState:
        assert state.live is not None
        number = state.live.generation
        told = beat(seq=seq) if late else beat(seq=seq, result={"outcome": "ended"})
        seen = Seen(NOW + 9500 if late else NOW, instances={number: instance()}, beats={number: told})
        after = react(state, seen, replace(LIMITS, max_moves=50, **limits))  # type: ignore[arg-type]
        assert after is not None
        return after

    state = job()
    for number in (1, 2):
        after = ended(state)
        assert (after.outcome, after.vain) == (None, number)
        state = replace(after, live=held(number + 1), generation=number + 1, retiring=(), phase="watch")
    assert (ended(state, seq=4).outcome, ended(state, seq=4).vain) == (None, 0)
    last = ended(state)
    assert last.outcome is not None
    assert last.outcome.exit_code == 104
    assert last.outcome.message == "3 machines in a row reached max_hours without a new snapshot"
    assert last.live is None
    unsaved = ended(job(), saves=False)
    assert unsaved.outcome is not None
    assert "nothing is saved" in unsaved.outcome.message
