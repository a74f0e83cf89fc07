"""What people are told of a job from how its state stands: events, its status, how one with a kept machine ended."""

from __future__ import annotations

import time
from typing import Any

from broker.provider import Cause
from broker.state import JobState, Retiring
from broker.store import JobRow
from broker.world import World

OUT_WORDS = {
    "notice": ("notice", "its provider takes the machine back"),
    "preempted": ("preempted", "taken back by its provider"),
    "lost": ("lost", "the machine ended without a word"),
    "moved": ("notice", "its program ended after a notice"),
    "silence": ("lost", "no beat for too long; ended before a new one starts"),
    "boot": ("lost", "no first beat in time; ended before a new one starts"),
    "user": ("lost", "ended by hand at the provider"),
    "stop": ("stopping", "told to save and end"),
    "stuck": ("stuck", "its program gives no sign of life"),
    "migrate": ("moved", "told to move to another machine"),
}


def narrate(before: JobState, after: JobState, world: World) -> None:
    """Write down as events what a phase's change of state means to a person."""
    gone = {entry.generation for entry in after.retiring} - {entry.generation for entry in before.retiring}
    for entry in after.retiring:
        if entry.generation not in gone:
            continue
        kind, text = ("kept", kept_words(entry)) if entry.kept else OUT_WORDS.get(entry.why, ("", ""))
        if kind == "lost" and entry.cause == Cause.PREEMPTED:
            kind, text = OUT_WORDS["preempted"]
        if kind:
            name = f"{entry.held.instance} ({entry.held.where})"
            world.store.event(
                after.job, kind, f"{name}: {text}", generation=entry.generation, once="", at=entry.since, why=entry.why
            )


def kept_words(entry: Retiring) -> str:
    """Until when a machine is kept, by this computer's clock, and at what cost."""
    until = time.strftime("%H:%M", time.localtime(entry.terminate_at))
    return f"its program has failed; the machine is kept until {until}, at {entry.held.hourly:.4f} USD/h"


def verdict_of(state: JobState, row: JobRow) -> dict[str, Any]:
    """How a job has ended whose machine is still kept, as its row's columns; nothing for any other."""
    outcome = state.outcome
    kept = next((entry for entry in state.retiring if entry.kept), None)
    if outcome is None or (kept is None and not row.kept):
        return {}
    if kept is None:
        return {"message": outcome.message, "fix": outcome.fix}
    words = kept_words(kept).partition("; ")[2]
    fix = f"broker ssh {state.job} looks at it, broker stop {state.job} ends it now"
    return {"exit_code": outcome.exit_code, "message": f"{outcome.message}; {words}", "fix": fix}


def status_of(state: JobState, row: JobRow, program_runs: bool) -> str:
    """The job's status for people, from where its state stands."""
    if state.outcome is not None and any(entry.kept for entry in state.retiring):
        return "kept"
    if state.outcome is not None:
        return state.outcome.status if state.phase == "done" else "stopping"
    if row.stopping:
        return "stopping"
    if state.live is not None and program_runs:
        return "running"
    return "moving" if state.launched > 1 or (state.launched == 1 and state.live is None) else "starting"
