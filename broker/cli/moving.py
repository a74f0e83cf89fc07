"""`broker migrate`: move a job to another machine by hand."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from broker.cli.jobs import JobArgument
from broker.cli.screen import Screen, Usage
from broker.cli.still import telling_still

if TYPE_CHECKING:
    from broker.job import Job
    from broker.offer import Offer
    from broker.policy.decision import Decision
    from broker.store import PlacementRow
    from broker.task import Task

WITHIN = 1800.0
"""Seconds that a new machine may take from the wish to its first beat."""
LOOK = 0.5
ELSEWHERE = 75


def migrate_verb(
    screen: Screen,
    name: JobArgument,
    to: Annotated[
        list[str] | None,
        typer.Option("--to", metavar="PLACE", help="Only there: provider[/region[/zone]], * for any. Repeatable."),
    ] = None,
    now: Annotated[bool, typer.Option("--now", help="Do not let the program save first.")] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Ask nothing.")] = False,
) -> int:
    """Move a running job to the next-best offer.

    A fire drill, or a way off a slow machine.

    Its program saves and ends, the next machine goes on from there, the old one is ended. --to chooses among these
    places for this move only: later moves go where the task and the prices say.
    """
    from broker import brokers
    from broker.config import load
    from broker.job import get

    config = load()
    job = get(name, config=config)
    old = _machine(job)
    decision = _destination(screen, job, to or ())
    if not _agreed(screen, job, old, decision, yes=yes):
        return 1
    job.move(now=now, to=to or (), off=old.generation)
    brokers.ensure_background(config)
    new = _moved(screen, job, old)
    if new is None:
        screen.say(f"{job.id} {job.status} before it had moved")
        return job.row.exit_code or 0
    return _told(screen, job, old, new, to or ())


def _machine(job: Job) -> PlacementRow:
    """The machine that it runs on. Raises ConfigError where a move is nothing that could be made."""
    from broker.errors import ConfigError

    held = [row for row in job.placements() if row.launched_at is not None and row.ended_at is None]
    if job.done or job.row.kept or not held:
        raise ConfigError(f"{job.id} is {job.status}: it has no machine to be moved from", fix=f"broker show {job.id}")
    moves = int((job.row.state or {}).get("moves", 0))
    if moves >= job.task.max_moves:
        raise ConfigError(
            f"{job.id} has moved {moves} times, as often as its max_moves allows: one more would end it",
            fix="raise max_moves in the task file before the next run",
        )
    return held[-1]


def _destination(screen: Screen, job: Job, to: Sequence[str]) -> Decision:
    """What the move would take now. Raises what says why it would find nothing, before anything is touched."""
    from broker.cli.offers import must_be_installed, nothing
    from broker.errors import NothingAvailable, TaskError

    must_be_installed(screen, [to])
    try:
        with screen.waiting("the providers' answers"):
            decision = job.destination(to)
    except TaskError as error:
        raise Usage(f"--to: {error.message}", fix="--to aws/us-*, or another place as in a task's infra") from error
    if decision.offer is None:
        why = nothing(job.task.within(to).queries, {}, decision)
        within = f" within {', '.join(to)}" if to else ""
        fix = "widen --to, or leave it out" if to else "try again later"
        raise NothingAvailable(f"{job.id} stays where it is, nothing to move to{within}: {why}", fix=fix)
    return decision


def _agreed(screen: Screen, job: Job, old: PlacementRow, decision: Decision, *, yes: bool) -> bool:
    """Ask before a move: it costs a restart, and what the new machine costs more."""
    from broker.cli.tables import market, price

    offer, now = decision.offer, old.hourly or 0.0
    assert offer is not None
    dearer = f", {100 * (offer.hourly / now - 1):.0f}% dearer" if now and offer.hourly > now * 1.005 else ""
    where = f"{old.instance} in {_offer(old).where} at {price(now)} USD/h"
    there = f"{offer.where} {market(offer.market)} at {price(offer.hourly)} USD/h{dearer}"
    there += lost_by(job.task, job.placements())
    if yes:
        screen.say(f"moving {job.id} off {where}, to {there}")
        return True
    return screen.ask(f"Move {job.id} off {where}, to {there}?", instead="-y")


def lost_by(task: Task, rows: Sequence[PlacementRow]) -> str:
    """What a move loses beside time, where nothing of the job has been saved."""
    if task.checkpoint is None:
        return ", and from the beginning: the task has no checkpoint, so nothing of it is saved"
    if any((row.beat or {}).get("seq") for row in rows):
        return ""
    return ", and from the beginning, unless it saves when it is told to end: nothing of it is saved yet"


def _moved(screen: Screen, job: Job, old: PlacementRow) -> PlacementRow | None:
    """Wait for the next machine's first beat; None where the job has ended before. Raises JobUnfinished."""
    from broker.errors import JobUnfinished

    deadline = time.monotonic() + WITHIN
    with telling_still(screen, job.config), screen.waiting(f"{job.id} to move"):
        while True:
            done = job.refresh().row.decided
            fresh = [row for row in job.placements() if row.generation > old.generation and row.first_beat_at]
            if fresh or done:
                return fresh[-1] if fresh else None
            if time.monotonic() > deadline:
                what = f"{job.id} has not moved within {WITHIN / 60:.0f} minutes"
                raise JobUnfinished(what, fix=f"broker show {job.id}")
            time.sleep(LOOK)


def _told(screen: Screen, job: Job, old: PlacementRow, new: PlacementRow, to: Sequence[str]) -> int:
    """Where it is now; exit code 75 where that is not where it was wanted."""
    from broker.policy.infra import matcher

    there = _offer(new)
    found = matcher(to)(there)
    if screen.json:
        data = {"id": job.id, "from": old.instance, "to": new.instance, "where": there.where, "hourly": new.hourly}
        screen.data({**data, "wanted": found})
    else:
        screen.line(f"{job.id} moved from {old.instance} in {_offer(old).where} to {new.instance} in {there.where}")
    if to and found:
        screen.say("later moves go where the task and the prices say")
    elif not found:
        screen.warn(_elsewhere(job, to))
    return 0 if found else ELSEWHERE


def _elsewhere(job: Job, to: Sequence[str]) -> str:
    """Why a job is not where this move was to take it."""
    from broker.picking import NOTHING

    there = f"within {', '.join(to)}"
    if any(event.text.startswith(f"{NOTHING} {there}:") for event in job.events()):
        return f"nothing {there} was to be had after all; broker show {job.id} says why"
    again = " ".join(["broker migrate", job.id, *(f"--to {shlex.quote(place)}" for place in to)])
    return f"it was on its way before this move was heard of, or another one was asked for: {again}"


def _offer(row: PlacementRow) -> Offer:
    from broker.offer import Offer

    return Offer.from_json(row.request["offer"])
