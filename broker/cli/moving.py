"""`broker migrate`: move a job to another machine by hand."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from broker.cli.jobs import JobArgument
from broker.cli.screen import Screen

WITHIN = 1800.0
"""Seconds that a new machine may take from the wish to its first beat."""
LOOK = 0.5


def migrate_verb(
    screen: Screen,
    name: JobArgument,
    now: Annotated[bool, typer.Option("--now", help="Do not let the program save first.")] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Ask nothing.")] = False,
) -> int:
    """Move a running job to the next-best offer.

    A fire drill, or a way off a slow machine.

    Its program saves and ends, the next machine goes on from there, the old one is ended.
    """
    from broker import engine
    from broker.config import load
    from broker.errors import ConfigError, JobUnfinished
    from broker.job import get
    from broker.offer import Offer

    config = load()
    job = get(name, config=config)
    held = [row for row in job.placements() if row.launched_at is not None and row.ended_at is None]
    if job.done or not held:
        raise ConfigError(f"{job.id} is {job.status}: it has no machine to be moved from", fix=f"broker show {job.id}")
    old = held[-1]
    where = Offer.from_json(old.request["offer"]).where
    if not yes and not screen.ask(f"Move {job.id} off {old.instance} in {where}?", instead="-y"):
        return 1
    job.move(now=now)
    engine.ensure_background(config)
    deadline = time.monotonic() + WITHIN
    with screen.waiting(f"{job.id} to move"):
        while True:
            job.refresh()
            fresh = [row for row in job.placements() if row.generation > old.generation and row.first_beat_at]
            if fresh or job.done:
                break
            if time.monotonic() > deadline:
                raise JobUnfinished(
                    f"{job.id} has not moved within {WITHIN / 60:.0f} minutes", fix=f"broker show {name}"
                )
            time.sleep(LOOK)
    if not fresh:
        screen.say(f"{job.id} {job.status} before it had moved")
        return job.row.exit_code or 0
    new = fresh[-1]
    there = Offer.from_json(new.request["offer"]).where
    if screen.json:
        screen.data({"id": job.id, "from": old.instance, "to": new.instance, "where": there, "hourly": new.hourly})
    else:
        screen.line(f"{job.id} moved from {old.instance} in {where} to {new.instance} in {there}")
    return 0
