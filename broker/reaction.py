"""What a job does about what was seen of its machines. Pure: facts and the time in, the next state out.

`watch` calls `react` at every change. It is level-triggered: it looks at how things stand, not at what changed, so a
broker that was away and comes back decides the same. Unknown is not gone: a generation that the facts do not mention
stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from broker.keeping import Keep
from broker.leaving import Leaving
from broker.provider import Cause, Instance, State
from broker.state import KEEP, Held, JobState, Outcome, Retiring

UNCONFIRMED_AFTER = 600.0
TELL_AGAIN_AFTER = 60.0
NOTICE_MARGIN = 60.0
END_MARGIN = 5.0
"""Seconds past `end_by` after which a machine that should have ended itself is ended from here."""
LAST_SAVE = 150.0
"""Seconds that a program which makes room gets to save and end."""
JOB_LIMITS = ("deadline", "budget", "monthly_budget")
"""Reasons of `end_by` that end the whole job, not only the machine."""
STRIKES = 3


@dataclass(frozen=True, slots=True)
class Beat:
    """A guest's last beat. unchanged: seconds of the broker's own monotonic time since its counter last changed.

    reads: good reads of the store since then.
    """

    data: Mapping[str, Any]
    unchanged: float = 0.0
    reads: int = 0

    @property
    def result(self) -> Mapping[str, Any] | None:
        found: Mapping[str, Any] | None = self.data.get("result")
        return found

    @property
    def closed(self) -> Mapping[str, Any] | None:
        found: Mapping[str, Any] | None = self.data.get("closed")
        return found


@dataclass(frozen=True, slots=True)
class Seen:
    """The facts of one moment.

    instances: by generation; None means gone (absent from two good lists), a missing key means unknown.
    finals: result, closed and last beat of a generation read straight from the home after its instance ended; missing:
    not read.
    probed: the store took a write and gave it back just now. parents: `parent` objects as read.
    heard: the home has been read well since this job is followed; False: not yet, None: not in good time. Until then
    a generation without a beat is unknown, not silent.
    """

    now: float
    want: str | None = None
    instances: Mapping[int, Instance | None] = field(default_factory=dict)
    beats: Mapping[int, Beat] = field(default_factory=dict)
    finals: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    parents: Mapping[int, tuple[int, int] | None] = field(default_factory=dict)
    probed: bool = False
    heard: bool | None = True

    def beat(self, generation: int) -> Beat | None:
        return self.beats.get(generation)

    def leaving(self, generation: int) -> Leaving | None:
        """The user's wish that the job leaves the machine of this generation, if there is one."""
        wish = Leaving.of(self.want)
        return wish if wish is not None and wish.generation == generation else None

    def result(self, generation: int) -> Mapping[str, Any] | None:
        beat = self.beats.get(generation)
        return (beat.result if beat else None) or self.finals.get(generation, {}).get("result")

    def closed(self, generation: int) -> bool:
        beat = self.beats.get(generation)
        return bool((beat.closed if beat else None) or self.finals.get(generation, {}).get("closed"))

    def seq(self, generation: int) -> int:
        """The newest snapshot that this generation is known to have published; 0 without one."""
        final = self.finals.get(generation, {})
        beat = self.beats.get(generation)
        told = (beat.data if beat else None, final.get("beat"), final.get("result"), final.get("closed"))
        found = [(words or {}).get("seq") for words in told]
        return max(seq if isinstance(seq, int) else 0 for seq in found)

    def over(self, generation: int) -> tuple[float, Cause | None] | None:
        """When and why the provider says this instance has ended; None while it has not, or nobody knows.

        One that was stopped for a known cause has ended too: its program has, and its disk goes once it is terminated.
        """
        if generation not in self.instances:
            return None
        instance = self.instances[generation]
        if instance is None:
            return self.now, None
        stopped = instance.state is State.STOPPED and instance.cause is not None
        if stopped or instance.state is State.TERMINATED:
            return instance.ended_at or self.now, instance.cause
        return None


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds that a job's machines are held to. silence: without a changed beat; grace: to save after an order.

    keep: how long, and for how much, the machine of a program that failed is kept. saves: the task has a checkpoint.
    """

    silence: float = 300.0
    grace: float = 60.0
    max_moves: int = 50
    keep: Keep | None = None
    saves: bool = True


def react(state: JobState, seen: Seen, limits: Limits) -> JobState | None:
    """The next state, or None to go on waiting."""
    fresh = {n: p for n, p in seen.parents.items() if n not in state.parents}
    if fresh:
        # The broker's copy of each parent wins from now on; a recorded step makes it durable.
        return state.to("watch", parents={**state.parents, **fresh})
    if (finished := _finished(state, seen)) is not None:
        return finished
    if (changed := _retire(state, seen)) is not None:
        return changed
    if state.outcome is None and seen.want in ("stop", "stop-now") and (state.live or state.then != "launch"):
        if seen.want == "stop" and state.live is not None and seen.heard is False:
            return None
        return _stop(state, seen, limits)
    if state.live is not None:
        return _live(state, state.live, seen, limits)
    if state.outcome is not None:
        return state.to("account") if not state.retiring else None
    if any(entry.blocking and entry.gone_at is None and not entry.unconfirmed for entry in state.retiring):
        return None
    if state.not_before is not None and seen.now < state.not_before:
        return None
    return state.to(state.then, not_before=None, then="pick")


def wake_at(state: JobState, seen: Seen, limits: Limits) -> float:
    """The next moment at which `react` may answer otherwise without any news, seconds since the epoch."""
    times = [state.not_before] if state.not_before else []
    times += [entry.terminate_at for entry in state.retiring if entry.terminated_at is None]
    times += [(entry.told_at or 0.0) + TELL_AGAIN_AFTER for entry in state.retiring if entry.terminated_at is not None]
    if state.live is not None:
        times += [state.live.boot_by, state.live.end_by + END_MARGIN, state.live.end_by + limits.grace]
        times += [state.weigh_at] if state.weigh_at is not None else []
    ahead = [moment for moment in times if moment > seen.now]
    return min([*ahead, seen.now + limits.silence / 4])


def _retire(state: JobState, seen: Seen) -> JobState | None:
    """Note what the facts say of the retiring ones; a state in phase `retire` when something is to be done."""
    entries: list[Retiring] = []
    act = False
    beat = seen.beat(state.live.generation) if state.live is not None else None
    ready = beat is not None and beat.data.get("state") in ("waiting", "restoring", "running")
    ends = state.outcome is not None or seen.want in ("stop", "stop-now")
    for standing in state.retiring:
        entry = standing
        over = seen.over(entry.generation)
        closed = entry.closed or seen.closed(entry.generation) or seen.result(entry.generation) is not None
        told = (entry.order == "run" and (ready or ends)) or (entry.kept and seen.want in ("stop", "stop-now"))
        if told:
            # The machine that it has made room for is there, or nothing goes on: its program ends now. One that was
            # kept has been looked at.
            by = min(entry.terminate_at, seen.now + LAST_SAVE)
            entry = replace(entry, order="end" if ends else "retire", terminate_at=by)
        if over is not None and entry.gone_at is None:
            ended_at, cause = over
            if seen.instances.get(entry.generation) is None and entry.terminated_at is not None:
                # Listed no more: it cost something until its end was accepted, not until two lists had left it out.
                ended_at = min(ended_at, entry.terminated_at)
            at_once = min(entry.terminate_at, seen.now)
            entry = replace(entry, gone_at=ended_at, cause=str(cause) if cause else entry.cause, terminate_at=at_once)
        if seen.want == "stop-now" and entry.terminate_at > seen.now:
            entry = replace(entry, terminate_at=seen.now)
        if closed and not entry.closed and not entry.kept:
            entry = replace(entry, closed=True, terminate_at=min(entry.terminate_at, seen.now))
        if entry.terminated_at is None:
            due = seen.now >= entry.terminate_at
        else:
            due = entry.gone_at is not None or seen.now >= (entry.told_at or 0.0) + TELL_AGAIN_AFTER
        act = act or due or told
        entries.append(entry)
    seqs = _seqs(state, seen, [entry.generation for entry in entries])
    return state.to("retire", retiring=tuple(entries), seqs=seqs) if act else None


def _seqs(state: JobState, seen: Seen, left: Iterable[int]) -> Mapping[int, int]:
    """The newest snapshot heard of from each generation that leaves or has left.

    Noted only where the state changes anyway, so that no row is written for every snapshot: it may be too low, never
    too high.
    """
    heard = {generation: max(seen.seq(generation), state.seqs.get(generation, 0)) for generation in left}
    return {**state.seqs, **{generation: seq for generation, seq in heard.items() if seq}}


def _finished(state: JobState, seen: Seen) -> JobState | None:
    """A program that has succeeded has, whatever was going on: it beats a move under way, a stop and a limit.

    One that has failed, with the notice coming after its end, has failed too, as long as no other has been started.
    """
    if state.outcome is not None and state.outcome.status == "succeeded":
        return None
    results = [seen.result(entry.generation) or {} for entry in state.retiring]
    if done := [result for result in results if result.get("outcome") == "succeeded"]:
        outcome = _succeeded(done[0])
    else:
        beat = seen.beat(state.live.generation) if state.live else None
        started = beat is not None and beat.data.get("program_started_at") is not None
        last = results[-1] if results else {}
        if state.outcome is not None or started or last.get("outcome") != "failed":
            return None
        outcome = Outcome("failed", 100, f"failed: {last.get('reason') or 'no reason given'}")
    state = replace(state, outcome=outcome)
    if state.live is not None:
        state = _out(state, state.live, seen, why=outcome.status, order="end")
    return state.to("retire")


def _stop(state: JobState, seen: Seen, limits: Limits) -> JobState:
    outcome = Outcome("stopped", 103, "stopped by its user")
    if state.live is None:
        return state.to("retire" if state.retiring else "account", outcome=outcome)
    started = seen.beat(state.live.generation) is not None or not seen.heard
    patience = limits.grace + 2 * state.live.beat + 30.0 if seen.want == "stop" and started else 0.0
    return _out(state, state.live, seen, why="stop", order="end", patience=patience).to("retire", outcome=outcome)


def _live(state: JobState, live: Held, seen: Seen, limits: Limits) -> JobState | None:
    generation = live.generation
    result = seen.result(generation)
    if result is not None:
        return _ended(state, live, result, seen, limits)
    over = seen.over(generation)
    if over is not None:
        if generation not in seen.finals:
            return None
        return _lost(state, live, over[1], seen, limits)
    late = END_MARGIN if live.end_why in JOB_LIMITS else limits.grace
    if seen.now >= live.end_by + late:
        return _overdue(state, live, seen, limits)
    beat = seen.beat(generation)
    instance = seen.instances.get(generation)
    notice = instance.notice if instance is not None else None
    told = beat.data.get("notice") if beat else None
    if notice is not None or told:
        ends_at = notice.ends_at if notice is not None else (told or {}).get("ends_at")
        return _move(state, live, seen, limits, why="notice", ends_at=ends_at)
    if seen.leaving(generation) is not None:
        moved = _move(state, live, seen, limits, why="migrate", ends_at=None)
        # To another offer: this one's host may have nothing else free while we are still on it.
        return replace(moved, lost=(generation, "asked"))
    if beat is None:
        if seen.now >= live.boot_by and seen.heard:
            return _silent(state, live, seen, limits, why="boot")
        return None
    if beat.unchanged >= max(limits.silence, 6 * live.beat) and beat.reads >= 3 and seen.probed:
        return _silent(state, live, seen, limits, why="silence")
    if state.weigh_at is not None and seen.now >= state.weigh_at and beat.data.get("state") == "running":
        return state.to("weigh")
    return None


def _ended(state: JobState, live: Held, result: Mapping[str, Any], seen: Seen, limits: Limits) -> JobState:
    """The guest says how the program ended."""
    word, reason = result.get("outcome"), str(result.get("reason") or "")
    state = replace(state, restarts=state.restarts + int(result.get("restarts") or 0))
    if word == "moved" and result.get("why") == "stuck":
        if state.stuck:
            # Another machine did not help, so it is not the machine.
            fix = f"broker logs {state.job} shows where it stands; broker resume {state.job} goes on from its snapshot"
            outcome = Outcome("failed", 100, f"{reason}, on a second machine too; the newest snapshot is safe", fix)
            return _out(state, live, seen, why="stuck", order="end").to("retire", outcome=outcome)
        return _move(replace(state, stuck=state.stuck + 1), live, seen, limits, why="stuck", ends_at=None)
    if word == "moved":
        return _move(state, live, seen, limits, why="moved", ends_at=None)
    if word == "ended":
        if live.end_why in JOB_LIMITS:
            return _limit(state, live, seen)
        state, vain = _in_vain(state, live, seen, limits)
        if vain is not None:
            return _out(state, live, seen, why=live.end_why, order="end").to("retire", outcome=vain)
        return _move(state, live, seen, limits, why=live.end_why, ends_at=None)
    outcome = {
        "succeeded": _succeeded(result),
        "stopped": Outcome("stopped", 103, "stopped by its user"),
    }.get(str(word), Outcome("failed", 100, f"failed: {reason}" if reason else "failed", str(result.get("fix") or "")))
    if outcome.status == "failed" and (until := _kept_until(result, live, seen, limits)) is not None:
        return _out(state, live, seen, why="kept", order=KEEP, patience=until - seen.now).to("retire", outcome=outcome)
    return _out(state, live, seen, why=str(word), order="end").to("retire", outcome=outcome)


def _succeeded(result: Mapping[str, Any]) -> Outcome:
    """With what its user should know of it, such as that an output was not there."""
    note = str(result.get("note") or "")
    return Outcome("succeeded", 0, f"succeeded; {note}" if note else "succeeded")


def _kept_until(result: Mapping[str, Any], live: Held, seen: Seen, limits: Limits) -> float | None:
    """Until when a machine is kept whose guest says that it is; None for one that is none, or is gone already.

    Its guest reckons with the price that was asked for, which the one that it is billed by may be above.
    """
    told = result.get("kept_until")
    if not isinstance(told, int | float) or limits.keep is None or seen.over(live.generation) is not None:
        return None
    lasts = limits.keep.lasts(max(live.hourly, live.bid or 0.0))
    paid = min(float(result.get("at") or seen.now), seen.now) + lasts
    until = min(float(told), paid, live.end_by)
    return until if until > seen.now else None


def _limit(state: JobState, live: Held, seen: Seen) -> JobState:
    outcome = Outcome("limit", 104, f"{live.end_why} reached; the newest snapshot is safe")
    return _out(state, live, seen, why=live.end_why, order="end").to("retire", outcome=outcome)


def _overdue(state: JobState, live: Held, seen: Seen, limits: Limits) -> JobState:
    """The machine should have ended itself by now, and its guest has not said that it does."""
    if live.end_why in JOB_LIMITS:
        return _limit(state, live, seen)
    state, outcome = _in_vain(state, live, seen, limits)
    out = _out(state, live, seen, why=live.end_why, order="end", blocking=True)
    if outcome is not None:
        return out.to("retire", outcome=outcome)
    moved = _next(replace(out, after=live.generation, start_by=None, go=False), limits)
    return moved if moved.outcome else moved.to("retire")


def _in_vain(state: JobState, live: Held, seen: Seen, limits: Limits) -> tuple[JobState, Outcome | None]:
    """Count a machine that met its own end and has saved nothing new; the end of a job that would go on so for ever."""
    state = replace(state, vain=0 if seen.seq(live.generation) else state.vain + 1)
    if state.vain < (STRIKES if limits.saves else 1):
        return state, None
    raised = "raise max_hours, or " if live.end_why == "max_hours" else ""
    if limits.saves:
        why = f"{STRIKES} machines in a row reached {live.end_why} without a new snapshot"
        return state, Outcome("limit", 104, why, f"{raised}save more often: each next one starts where they did")
    why = f"{live.end_why} reached, and nothing is saved: another machine would start from the beginning"
    return state, Outcome("limit", 104, why, f"{raised}name the folder that the program saves to, as checkpoint.path")


def _lost(state: JobState, live: Held, cause: Cause | None, seen: Seen, limits: Limits) -> JobState:
    """The machine has ended without a result: the provider's word decides what that was."""
    if cause is Cause.USER:
        outcome = Outcome(
            "stopped",
            103,
            f"its machine {live.instance} was ended by hand at {live.provider}; the newest snapshot is safe",
            fix="run the task again to start over, or stop jobs with `broker stop`",
        )
        return _out(state, live, seen, why="user", order="end").to("retire", outcome=outcome)
    if cause is Cause.PREEMPTED:
        return _move(state, live, seen, limits, why="preempted", ends_at=None)
    state = replace(state, strikes=state.strikes + 1 if seen.beat(live.generation) is None else 0)
    if state.strikes >= STRIKES:
        outcome = Outcome(
            "failed",
            100,
            f"{STRIKES} machines in a row ended before their first beat",
            fix="broker show JOB tells what each of them said",
        )
        return _out(state, live, seen, why="lost", order="end").to("retire", outcome=outcome)
    return _move(state, live, seen, limits, why="lost", ends_at=None)


def _move(state: JobState, live: Held, seen: Seen, limits: Limits, *, why: str, ends_at: float | None) -> JobState:
    """The next placement is picked at once while this one retires."""
    if why == "notice" or why == "moved":
        patience = (ends_at - seen.now + 5.0) if ends_at is not None else limits.grace + 60.0
    elif why == "migrate" and not ((wish := seen.leaving(live.generation)) and wish.now):
        patience = limits.grace + 2 * live.beat + 30.0
    else:
        patience = 0.0
    start_by = ends_at + NOTICE_MARGIN if ends_at is not None else None
    if not settled(state.retiring, live.generation):
        # An older program may still run too, so the next one waits for the later of both ends, if both are known.
        start_by = max(start_by, state.start_by) if start_by is not None and state.start_by is not None else None
    out = _out(state, live, seen, why=why, order="retire", patience=max(0.0, patience))
    out = replace(
        out,
        after=live.generation,
        start_by=start_by,
        go=settled(out.retiring, live.generation),
        lost=out.lost if why in (live.end_why, "migrate") else (live.generation, why),
    )
    return _next(out, limits)


def settled(retiring: tuple[Retiring, ...], after: int) -> bool:
    """Has every program up to that generation ended for certain, or been given up as unconfirmed?"""
    return all(
        entry.closed or entry.gone_at is not None or entry.unconfirmed
        for entry in retiring
        if entry.generation <= after
    )


def _silent(state: JobState, live: Held, seen: Seen, limits: Limits, *, why: str) -> JobState:
    """Nothing heard: the old one is ended, and its end confirmed, before there is a new one."""
    strikes = state.strikes + 1 if why == "boot" else 0
    out = _out(replace(state, strikes=strikes), live, seen, why=why, order="end", blocking=True)
    out = replace(out, after=live.generation, start_by=None, go=False, lost=(live.generation, why))
    if strikes >= STRIKES:
        outcome = Outcome("failed", 100, f"{STRIKES} machines in a row never gave a beat in time")
        return out.to("retire", outcome=outcome)
    moved = _next(out, limits)
    return moved if moved.outcome else moved.to("retire")


def _next(out: JobState, limits: Limits) -> JobState:
    if (back := _back(out)) is not None:
        return back
    if out.moves >= limits.max_moves:
        outcome = Outcome(
            "limit",
            104,
            f"max_moves: {limits.max_moves} reached; the newest snapshot is safe",
            fix="raise max_moves, or use spot: never",
        )
        return out.to("retire", outcome=outcome)
    return out.to("pick", moves=out.moves + 1)


def _back(out: JobState) -> JobState | None:
    """The machine that was to make room and has not been told yet goes on: the one that it made room for is lost."""
    for entry in out.retiring:
        if entry.order == "run" and entry.gone_at is None and entry.terminated_at is None and not entry.closed:
            rest = tuple(other for other in out.retiring if other is not entry)
            back = replace(out, live=entry.held, retiring=rest, after=None, start_by=None, go=False, places=())
            return back.to("retire", weigh_at=0.0)
    return None


def leave(state: JobState, seen: Seen, limits: Limits) -> JobState:
    """Let the live machine save and end although nobody takes it back, and pick again."""
    assert state.live is not None
    return _move(state, state.live, seen, limits, why="migrate", ends_at=None)


def _out(
    state: JobState,
    live: Held,
    seen: Seen,
    *,
    why: str,
    order: str,
    patience: float = 0.0,
    blocking: bool = False,
) -> JobState:
    """Move the live placement to the retiring ones, to be terminated after `patience` seconds at the latest."""
    over = seen.over(live.generation)
    closed = order != KEEP and seen.closed(live.generation)
    entry = Retiring(
        held=live,
        why=why,
        order=order,
        since=seen.now,
        blocking=blocking,
        terminate_at=seen.now if over or closed else seen.now + patience,
        gone_at=over[0] if over else None,
        cause=str(over[1]) if over and over[1] else None,
        closed=closed,
    )
    # Whatever ends it: where the user wants the job off this machine, it goes to where they want it.
    wish = seen.leaving(live.generation)
    places = wish.to if wish is not None else state.places
    out = replace(state, live=None, retiring=(*state.retiring, entry), places=places, not_before=None, then="pick")
    return replace(out, seqs=_seqs(state, seen, [live.generation]))
