"""The verbs that keep jobs moving: up and tick."""

from __future__ import annotations

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

    config = load()
    if not until_idle:
        screen.say("a broker is up; Ctrl-C ends it and leaves the jobs running")
    engine.up(config, until_idle=until_idle, on_line=screen.line)


def tick_verb(
    screen: Screen,
    wait: Annotated[float, typer.Option("--wait", metavar="S", min=0, help="Stay for so many seconds.")] = 30.0,
) -> None:
    """Look after all jobs once, and return; for cron.

    Machines that no job owns are ended, too.
    """
    from broker import engine
    from broker.config import load

    engine.tick(load(), wait=wait)
    if screen.json:
        import time

        from broker.cli.tables import job_row
        from broker.job import jobs

        screen.data([job_row(job, time.time()) for job in jobs(active=True)])
