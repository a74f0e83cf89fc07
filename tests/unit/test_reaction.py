"""What a job does about what was seen. Pure facts in, the next state out."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from broker.leaving import Leaving
from broker.offer import Market
from broker.provider import Cause, Instance, Notice, State
from broker.reaction import STRIKES, Beat, Limits, Seen, react, settled, wake_at
from broker.state import Held, JobState, Outcome, Retiring

NOW = 1_000_000.0
LIMITS = Limits(silence=300.0, grace=60.0, max_moves=3)


def held(generation: int = 1, **changes: Any) -> Held:
    values: dict[str, Any] = {
        "generation": generation,
        "provider": "local",
        "instance": f"m-{generation}",
        "offer": "local/home/north/cpu-2/spot",
        "hourly": 0.01,
        "launched_at": NOW - 1000,
        "boot_by": NOW - 500,
        "end_by": NOW + 9000,
        "end_why": "max_hours",
        "beat": 30.0,
    }
    return Held(**{**values, **changes})


def instance(state: State = State.RUNNING, **changes: Any) -> Instance:
    values: dict[str, Any] = {
        "provider": "local",
        "id": "m-1",
        "state": state,
        "market": Market.SPOT,
        "hourly": 0.01,
        "tags": {},
    }
    return Instance(**{**values, **changes})


def beat(unchanged: float = 1.0, reads: int = 1, **data: Any) -> Beat:
    return Beat({"n": 5, "state": "running", **data}, unchanged, reads)


def job(**changes: Any) -> JobState:
    return replace(JobState("j", phase="watch", generation=1, live=held(), launched=1), **changes)


RUNNING = {1: instance()}
TAKEN = instance(State.TERMINATED, cause=Cause.PREEMPTED)
NOTHING: dict[str, Any] = {"result": None, "closed": None}


def test_a_healthy_job_is_left_alone() -> None:
    seen = Seen(NOW, instances=RUNNING, beats={1: beat()})
    assert react(job(), seen, LIMITS) is None
    assert wake_at(job(), seen, LIMITS) == NOW + 75


def test_unknown_is_not_gone() -> None:
    """A provider that does not answer leaves no instance in the facts: nothing happens (case 30)."""
    assert react(job(), Seen(NOW, beats={1: beat()}), LIMITS) is None


@pytest.mark.parametrize(
    ("result", "over", "want"),
    [
        # Case 32, row by row; the provider's word decides, never the code alone.
        ({"outcome": "succeeded", "exit": 0}, None, ("succeeded", 0)),
        ({"outcome": "failed", "exit": 1, "reason": "exit 1"}, None, ("failed", 100)),
        ({"outcome": "failed", "exit": 137, "reason": "out of memory"}, None, ("failed", 100)),
        (None, Cause.PREEMPTED, "pick"),
        ({"outcome": "failed", "exit": 143, "reason": "exit 143"}, None, ("failed", 100)),
        ({"outcome": "moved", "exit": 143}, None, "pick"),
        (None, Cause.FAILED, "pick"),
        ({"outcome": "failed", "exit": 247, "reason": "exit 247"}, None, ("failed", 100)),
        ({"outcome": "succeeded", "exit": 0}, Cause.PREEMPTED, ("succeeded", 0)),
        ({"outcome": "failed", "exit": 137, "reason": "exit 137"}, None, ("failed", 100)),
        ({"outcome": "moved", "exit": 1}, Cause.PREEMPTED, "pick"),
        ({"outcome": "failed", "exit": 1, "reason": "exit 1"}, Cause.PREEMPTED, ("failed", 100)),
        ({"outcome": "stopped", "exit": 143}, Cause.SELF, ("stopped", 103)),
    ],
)
def test_how_an_end_is_read(result: dict[str, Any] | None, over: Cause | None, want: Any) -> None:
    instances = {1: instance(State.TERMINATED, cause=over)} if over else RUNNING
    finals = {1: {"result": result, "closed": None}} if over else {}
    beats = {1: beat(result=result)} if not over else {}
    after = react(job(), Seen(NOW, instances=instances, beats=beats, finals=finals), LIMITS)
    assert after is not None
    if want == "pick":
        assert (after.phase, after.outcome, after.moves) == ("pick", None, 1)
    else:
        assert after.outcome is not None
        assert (after.outcome.status, after.outcome.exit_code) == want
        assert after.phase == "retire"
    assert after.live is None
    assert [entry.generation for entry in after.retiring] == [1]


def test_a_gone_machine_is_judged_only_after_its_last_words_were_read() -> None:
    gone = {1: instance(State.TERMINATED, cause=Cause.PREEMPTED)}
    assert react(job(), Seen(NOW, instances=gone), LIMITS) is None
    assert react(job(), Seen(NOW, instances=gone, finals={1: NOTHING}), LIMITS) is not None


def test_the_newest_snapshot_of_a_generation_that_leaves_is_kept() -> None:
    """A beat by itself changes nothing; whatever ends the stay takes the highest number that was heard."""
    assert react(job(), Seen(NOW, instances=RUNNING, beats={1: beat(seq=3)}), LIMITS) is None
    noticed = {1: instance(notice=Notice(NOW, NOW + 120))}
    after = react(job(), Seen(NOW, instances=noticed, beats={1: beat(seq=3)}), LIMITS)
    assert after is not None
    assert after.seqs == {1: 3}
    assert JobState.from_json(json.loads(json.dumps(after.to_json()))) == after
    assert after.again().seqs == {1: 3}
    gone = {1: instance(State.TERMINATED, cause=Cause.PREEMPTED)}
    final = {1: {"result": None, "closed": {"seq": 5}, "beat": {"seq": 4}}}
    for state in (job(), after):  # also of what was published after the notice
        last = react(state, Seen(NOW, instances=gone, beats={1: beat(seq=3)}, finals=final), LIMITS)
        assert last is not None
        assert last.seqs == {1: 5}
    nothing = react(job(), Seen(NOW, instances=gone, finals={1: NOTHING}), LIMITS)
    assert nothing is not None
    assert nothing.seqs == {}


def test_absent_from_two_lists_is_gone() -> None:
    after = react(job(), Seen(NOW, instances={1: None}, beats={1: beat()}, finals={1: NOTHING}), LIMITS)
    assert after is not None
    assert (after.phase, after.retiring[0].why, after.go) == ("pick", "lost", True)


def test_a_notice_moves_at_once_and_the_next_waits_for_the_old_program() -> None:
    noticed = {1: instance(notice=Notice(NOW, NOW + 120))}
    after = react(job(), Seen(NOW, instances=noticed, beats={1: beat()}), LIMITS)
    assert after is not None
    assert (after.phase, after.after, after.go) == ("pick", 1, False)
    assert after.start_by == NOW + 120 + 60
    assert after.retiring[0].terminate_at == NOW + 125
    assert after.lost == (1, "notice")


def test_a_notice_seen_only_by_the_guest_counts_too() -> None:
    told = beat(notice={"at": NOW, "ends_at": None, "kind": "terminate"})
    after = react(job(), Seen(NOW, instances=RUNNING, beats={1: told}), LIMITS)
    assert after is not None
    assert (after.phase, after.start_by, after.go) == ("pick", None, False)


def test_a_preempted_machine_needs_no_waiting() -> None:
    gone = {1: instance(State.TERMINATED, cause=Cause.PREEMPTED, ended_at=NOW - 3)}
    after = react(job(), Seen(NOW, instances=gone, finals={1: NOTHING}), LIMITS)
    assert after is not None
    assert (after.go, after.retiring[0].gone_at, after.retiring[0].cause) == (True, NOW - 3, "preempted")


@pytest.mark.parametrize(("cause", "moves"), [(Cause.PREEMPTED, True), (Cause.FAILED, True), (None, False)])
def test_a_machine_that_was_stopped_is_left_at_once_and_ended(cause: Cause | None, moves: bool) -> None:
    """Vast and RunPod stop what they take back: its disk costs until it is terminated."""
    stopped = {1: instance(State.STOPPED, cause=cause)}
    after = react(job(), Seen(NOW, instances=stopped, beats={1: beat()}, finals={1: NOTHING}), LIMITS)
    assert (after is not None) is moves
    if after is not None:
        (entry,) = after.retiring
        assert (after.phase, after.go, entry.terminated_at, entry.gone_at) == ("pick", True, None, NOW)


@pytest.mark.parametrize(
    ("listed", "terminated_at", "gone_at"),
    [
        (None, NOW - 30, NOW - 30),
        (None, None, NOW),
        (instance(State.TERMINATED, cause=Cause.BROKER, ended_at=NOW - 20), NOW - 30, NOW - 20),
        (instance(State.TERMINATED, cause=Cause.BROKER), NOW - 30, NOW),
    ],
)
def test_what_is_listed_no_more_cost_nothing_after_its_end_was_accepted(
    listed: Instance | None, terminated_at: float | None, gone_at: float
) -> None:
    entry = Retiring(held(), "moved", "retire", since=NOW - 60, terminate_at=NOW - 50, terminated_at=terminated_at)
    state = job(live=held(2), generation=2, retiring=(entry,))
    after = react(state, Seen(NOW, instances={1: listed, 2: instance(id="m-2")}, beats={2: beat()}), LIMITS)
    assert after is not None
    assert after.retiring[0].gone_at == gone_at


def test_ended_by_hand_is_not_relaunched() -> None:
    gone = {1: instance(State.TERMINATED, cause=Cause.USER)}
    after = react(job(), Seen(NOW, instances=gone, finals={1: NOTHING}), LIMITS)
    assert after is not None
    assert after.outcome is not None
    assert after.outcome.status == "stopped"


@pytest.mark.parametrize(
    ("facts", "silent"),
    [
        (beat(unchanged=301, reads=3), True),
        (beat(unchanged=299, reads=30), False),
        (beat(unchanged=301, reads=2), False),
    ],
)
def test_silence_needs_time_good_reads_and_a_store_that_answers(facts: Beat, silent: bool) -> None:
    after = react(job(), Seen(NOW, instances=RUNNING, beats={1: facts}, probed=True), LIMITS)
    assert (after is not None) is silent
    assert react(job(), Seen(NOW, instances=RUNNING, beats={1: facts}, probed=False), LIMITS) is None


def test_after_silence_the_old_one_is_confirmed_gone_before_a_new_one_is_picked() -> None:
    quiet = Seen(NOW, instances=RUNNING, beats={1: beat(unchanged=400, reads=5)}, probed=True)
    after = react(job(), quiet, LIMITS)
    assert after is not None
    assert after.phase == "retire"
    assert after.retiring[0].blocking
    told = replace(after, retiring=(replace(after.retiring[0], terminated_at=NOW, told_at=NOW),))
    assert react(told.to("watch"), quiet, LIMITS) is None
    gone = react(told.to("watch"), replace(quiet, instances={1: None}), LIMITS)
    assert gone is not None
    assert gone.phase == "retire"
    free = react(told.to("watch", retiring=()), quiet, LIMITS)
    assert free is not None
    assert free.phase == "pick"


def test_silence_longer_than_six_beats_for_slow_beats() -> None:
    slow = job(live=held(beat=100.0))
    quiet = Seen(NOW, instances=RUNNING, beats={1: beat(unchanged=500, reads=5)}, probed=True)
    assert react(slow, quiet, LIMITS) is None


def test_no_first_beat_in_time() -> None:
    early = job(live=held(boot_by=NOW + 1))
    assert react(early, Seen(NOW, instances=RUNNING), LIMITS) is None
    assert wake_at(early, Seen(NOW, instances=RUNNING), LIMITS) == NOW + 1
    after = react(job(), Seen(NOW, instances=RUNNING), LIMITS)
    assert after is not None
    assert (after.phase, after.retiring[0].why, after.strikes) == ("retire", "boot", 1)


def test_machines_that_never_start_end_the_job() -> None:
    after = react(job(strikes=STRIKES - 1), Seen(NOW, instances=RUNNING), LIMITS)
    assert after is not None
    assert after.outcome is not None
    assert after.outcome.exit_code == 100


def test_max_moves_ends_the_job_with_its_snapshot_safe() -> None:
    gone = {1: instance(State.TERMINATED, cause=Cause.PREEMPTED)}
    after = react(job(moves=3), Seen(NOW, instances=gone, finals={1: NOTHING}), LIMITS)
    assert after is not None
    assert after.outcome is not None
    assert (after.outcome.exit_code, after.phase) == (104, "retire")


def test_stop_waits_for_the_save_and_stop_now_does_not() -> None:
    seen = Seen(NOW, want="stop", instances=RUNNING, beats={1: beat()})
    after = react(job(), seen, LIMITS)
    assert after is not None
    assert (after.phase, after.retiring[0].order) == ("retire", "end")
    assert after.retiring[0].terminate_at > NOW + LIMITS.grace
    at_once = react(job(), replace(seen, want="stop-now"), LIMITS)
    assert at_once is not None
    assert at_once.retiring[0].terminate_at == NOW


def test_stop_now_hurries_a_stop_under_way() -> None:
    old = Retiring(held(1), why="stop", order="end", since=NOW - 10, terminate_at=NOW + 100)
    state = job(live=None, retiring=(old,), outcome=Outcome("stopped", 103, "stopped"))
    assert react(state, Seen(NOW, want="stop", instances=RUNNING), LIMITS) is None
    after = react(state, Seen(NOW, want="stop-now", instances=RUNNING), LIMITS)
    assert after is not None
    assert (after.phase, after.retiring[0].terminate_at) == ("retire", NOW)


def test_stop_while_a_launch_is_ambiguous_settles_that_first() -> None:
    """A machine may exist that nobody has seen yet: it is adopted or given to the sweeper before the job ends."""
    unsettled = job(live=None, then="launch", not_before=NOW - 1)
    after = react(unsettled, Seen(NOW, want="stop"), LIMITS)
    assert after is not None
    assert after.phase == "launch"


def test_retiring_is_served_before_anything_else() -> None:
    old = Retiring(held(1), why="notice", order="retire", since=NOW - 10, terminate_at=NOW + 100)
    state = job(generation=2, live=held(2), retiring=(old,))
    both = {1: instance(), 2: instance(id="m-2")}
    beats = {1: beat(), 2: beat()}
    assert react(state, Seen(NOW, instances=both, beats=beats), LIMITS) is None
    closed = react(state, Seen(NOW, instances=both, beats={**beats, 1: beat(closed={"seq": 3})}), LIMITS)
    assert closed is not None
    assert closed.phase == "retire"
    assert closed.retiring[0].closed
    assert closed.retiring[0].terminate_at == NOW
    assert closed.live is not None


@pytest.mark.parametrize("outcome", [None, Outcome("stopped", 103, "stopped"), Outcome("limit", 104, "max_moves")])
def test_a_success_on_the_way_out_beats_the_move_the_stop_and_the_limit(outcome: Outcome | None) -> None:
    old = Retiring(held(1), why="notice", order="retire", since=NOW - 10, terminate_at=NOW + 100)
    live = None if outcome else held(2)
    state = job(generation=2, live=live, retiring=(old,), outcome=outcome)
    seen = Seen(NOW, instances={1: instance(), 2: instance(id="m-2")}, beats={1: beat(result={"outcome": "succeeded"})})
    after = react(state, seen, LIMITS)
    assert after is not None
    assert after.outcome is not None
    assert (after.outcome.status, after.phase, after.live) == ("succeeded", "retire", None)
    if live:
        assert after.retiring[-1].generation == 2
        assert after.retiring[-1].terminate_at == NOW


@pytest.mark.parametrize("started", [False, True])
def test_a_failure_before_the_notice_is_a_failure_unless_another_program_runs(started: bool) -> None:
    """The notice reached the broker first, the result after it."""
    old = Retiring(held(1), why="notice", order="retire", since=NOW - 10, terminate_at=NOW + 100)
    state = job(generation=2, live=held(2), retiring=(old,))
    beats = {
        1: beat(result={"outcome": "failed", "reason": "exit 1"}),
        2: beat(program_started_at=NOW if started else None),
    }
    after = react(state, Seen(NOW, instances={1: instance(), 2: instance(id="m-2")}, beats=beats), LIMITS)
    assert after is not None
    assert (after.outcome is None) is started
    if not started:
        assert after.outcome is not None
        assert (after.outcome.message, after.live) == ("failed: exit 1", None)


def test_closed_without_a_result_yet_is_no_reason_to_move() -> None:
    assert react(job(), Seen(NOW, instances=RUNNING, beats={1: beat(closed={"seq": 3})}), LIMITS) is None


def test_a_second_notice_while_an_older_program_may_still_run() -> None:
    """The third placement must wait for both: the second one's end says nothing about the first one's program."""
    old = Retiring(held(1), why="notice", order="retire", since=NOW - 10, terminate_at=NOW + 100)
    state = job(generation=2, live=held(2), retiring=(old,), after=1, start_by=NOW + 160)
    both = {1: instance(), 2: instance(id="m-2", notice=Notice(NOW, NOW + 30))}
    after = react(state, Seen(NOW, instances=both, beats={1: beat(), 2: beat()}), LIMITS)
    assert after is not None
    assert (after.after, after.go, after.start_by) == (2, False, NOW + 160)
    gone = {1: instance(), 2: instance(State.TERMINATED, id="m-2", cause=Cause.PREEMPTED)}
    lost = react(state, Seen(NOW, instances=gone, beats={1: beat()}, finals={2: NOTHING}), LIMITS)
    assert lost is not None
    assert (lost.go, lost.start_by) == (False, None)
    assert not settled(lost.retiring, 2)


def test_a_parent_is_copied_at_first_sight_and_kept() -> None:
    seen = Seen(NOW, instances=RUNNING, beats={1: beat()}, parents={1: None})
    after = react(job(), seen, LIMITS)
    assert after is not None
    assert (after.phase, dict(after.parents)) == ("watch", {1: None})
    assert react(job(parents={1: None}), replace(seen, parents={1: (7, 7)}), LIMITS) is None


def test_waiting_for_an_offer_ends_in_time() -> None:
    state = job(live=None, not_before=NOW + 5)
    assert react(state, Seen(NOW), LIMITS) is None
    assert wake_at(state, Seen(NOW), LIMITS) == NOW + 5
    after = react(state, Seen(NOW + 5), LIMITS)
    assert after is not None
    assert after.phase == "pick"


def test_an_ended_job_accounts_once_nothing_is_left() -> None:
    ended = job(live=None, outcome=Outcome("succeeded", 0, "succeeded"))
    after = react(ended, Seen(NOW), LIMITS)
    assert after is not None
    assert after.phase == "account"


def test_unconfirmed_after_long_lets_the_next_one_go() -> None:
    old = Retiring(
        held(1), "silence", "end", NOW - 700, blocking=True, terminated_at=NOW - 650, told_at=NOW - 5, unconfirmed=True
    )
    after = react(job(live=None, retiring=(old,)), Seen(NOW, instances=RUNNING), LIMITS)
    assert after is not None
    assert after.phase == "pick"


def test_the_state_survives_its_journey_through_json() -> None:
    import json

    old = Retiring(held(1), why="notice", order="retire", since=NOW)
    state = job(
        generation=2,
        live=held(2),
        retiring=(old,),
        parents={1: None, 2: (1, 4)},
        lost=(1, "notice"),
        outcome=Outcome("failed", 100, "x"),
    )
    assert JobState.from_json(json.loads(json.dumps(state.to_json()))) == state


def test_what_the_guest_advises_is_kept_as_the_jobs_advice() -> None:
    result = {"outcome": "failed", "reason": "no snapshot can be restored", "fix": "look into the home"}
    ended = react(job(), Seen(NOW, instances=RUNNING, beats={1: beat(result=result)}), LIMITS)
    assert ended is not None
    assert ended.outcome is not None
    assert ended.outcome.fix == "look into the home"


def test_a_wish_to_move_is_carried_out_once_and_goes_to_another_offer() -> None:
    seen = Seen(NOW, want=Leaving(1).text, instances=RUNNING, beats={1: beat()})
    moved = react(job(), seen, LIMITS)
    assert moved is not None
    assert (moved.phase, moved.moves, moved.after, moved.lost, moved.go) == ("pick", 1, 1, (1, "asked"), False)
    (old,) = moved.retiring
    assert (old.order, old.why, old.terminate_at) == ("retire", "migrate", NOW + 60 + 2 * 30 + 30)
    second = replace(moved, phase="watch", live=held(2), generation=2, launched=2)
    later = Seen(NOW + 1, want=Leaving(1).text, instances={**RUNNING, 2: instance()}, beats={2: beat()})
    assert react(second, later, LIMITS) is None, "the wish names the machine that has left already"


def test_a_wish_to_move_now_waits_for_no_save() -> None:
    moved = react(job(), Seen(NOW, want=Leaving(1, now=True).text, instances=RUNNING, beats={1: beat()}), LIMITS)
    assert moved is not None
    assert moved.retiring[0].terminate_at == NOW


def test_a_wish_to_move_does_not_outlast_max_moves() -> None:
    moved = react(job(moves=3), Seen(NOW, want=Leaving(1).text, instances=RUNNING, beats={1: beat()}), LIMITS)
    assert moved is not None
    assert moved.outcome == Outcome("limit", 104, moved.outcome.message, moved.outcome.fix)


@pytest.mark.parametrize(
    ("now", "instances", "finals"),
    [(False, RUNNING, {}), (True, RUNNING, {}), (False, {1: TAKEN}, {1: {}})],
)
def test_a_wish_for_a_place_holds_whatever_ends_the_machine(
    now: bool, instances: dict[int, Instance], finals: dict[int, Any]
) -> None:
    """Also where the machine was taken back before any broker had read the wish."""
    wish = Leaving(1, now, ("aws/us-*", "vast/Sweden, SE"))
    assert Leaving.of(wish.text) == wish
    moved = react(job(), Seen(NOW, want=wish.text, instances=instances, beats={1: beat()}, finals=finals), LIMITS)
    assert moved is not None
    assert (moved.phase, moved.places) == ("pick", wish.to)
    assert JobState.from_json(json.loads(json.dumps(moved.to_json()))) == moved
    gone = Seen(NOW, want=wish.text, instances={2: None}, finals={2: {}})
    later = react(job(live=held(2), generation=2), gone, LIMITS)
    assert later is not None
    assert later.places == (), "it was for the machine that has left already"


@pytest.mark.parametrize("leaving", [False, True])
def test_a_success_says_what_of_it_is_missing(leaving: bool) -> None:
    told = beat(result={"outcome": "succeeded", "note": "no file was there that outputs names as out/*"})
    if leaving:
        old = Retiring(held(1), why="notice", order="retire", since=NOW, terminate_at=NOW + 60)
        state = job(live=held(2), generation=2, retiring=(old,))
        after = react(state, Seen(NOW, instances={1: instance(), 2: instance(id="m-2")}, beats={1: told}), LIMITS)
    else:
        after = react(job(), Seen(NOW, instances=RUNNING, beats={1: told}), LIMITS)
    assert after is not None
    assert after.outcome is not None
    assert (after.outcome.status, after.outcome.exit_code) == ("succeeded", 0)
    assert after.outcome.message == "succeeded; no file was there that outputs names as out/*"
