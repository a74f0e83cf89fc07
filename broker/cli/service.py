"""The verbs that keep jobs moving: up and tick."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from broker.cli.screen import Screen


def up_verb(
    screen: Screen,
    until_idle: Annotated[bool, typer.Option("--until-idle", help="End when no job is left to move.")] = False,
) -> None:
    """Keep moving all jobs, until interrupted.

    For a small machine that is always on.
    """
    from broker import engine
    from broker.config import load

    if not until_idle:
        screen.say("Ctrl-C ends the broker and leaves the jobs running")
    engine.up(load(), until_idle=until_idle, on_line=screen.say)


def tick_verb(
    screen: Screen,
    wait: Annotated[float, typer.Option("--wait", metavar="S", min=0, help="Stay for so many seconds.")] = 30.0,
) -> None:
    """Look after all jobs once, and return; for cron.

    Machines that no job owns are ended, too.
    """
    from broker import engine
    from broker.config import load
    from broker.job import jobs

    config = load()
    with screen.waiting("every active job to be looked after"):
        engine.tick(config, wait=wait)
    active = jobs(active=True, config=config)
    if screen.json:
        from broker.cli.tables import job_row

        return screen.data([job_row(job, time.time()) for job in active])
    for job in active:
        screen.line(job.id if screen.quiet else f"{job.id} {job.status}")
    return None
