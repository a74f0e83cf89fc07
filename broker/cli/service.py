"""The verbs that keep jobs moving: up and tick."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Annotated

import typer

from broker.cli.asking import AwakeOption, awake
from broker.cli.screen import Screen
from broker.cli.still import tell_still, telling_still

if TYPE_CHECKING:
    from broker.config import Config

WATCH = 0.5
"""Seconds between two looks at another broker."""


def up_verb(
    screen: Screen,
    until_idle: Annotated[bool, typer.Option("--until-idle", help="End when no job is left to move.")] = False,
    stay_awake: AwakeOption = False,
) -> None:
    """Keep moving all jobs and run all schedules, until interrupted.

    For a small machine that is always on.
    """
    from broker import brokers
    from broker.cli.scheduling import keep_schedules
    from broker.config import load

    config = load()
    if not until_idle:
        screen.say("Ctrl-C ends the broker and leaves the jobs running")
    elif not _others_work(screen, config):
        return
    # One that ends when nothing is left to do waits for no schedule.
    beside = None if until_idle else functools.partial(keep_schedules, config, say=screen.say)
    with awake(screen, asked=stay_awake):
        brokers.up(config, until_idle=until_idle, on_line=screen.say, beside=beside)


def _others_work(screen: Screen, config: Config) -> bool:
    """Wait while another broker drives all jobs. False once nothing is left, True where that one has ended before."""
    from broker import brokers
    from broker.job import jobs

    told = False
    still: set[str] = set()
    while brokers.alive(config):
        tell_still(screen, config, still)
        if not jobs(active=True, config=config):
            screen.say("nothing left to drive")
            return False
        if not told:
            told = True
            screen.say("a broker is already up here and drives all jobs; waiting until they have ended, or it has")
        time.sleep(WATCH)
    return True


def tick_verb(
    screen: Screen,
    wait: Annotated[float, typer.Option("--wait", metavar="SECONDS", min=0, help="Stay for so many at most.")] = 30.0,
) -> None:
    """Look after all jobs and schedules once; for cron.

    Machines that no job owns are ended, too.
    """
    from broker import brokers
    from broker.cli.scheduling import look_once
    from broker.config import load
    from broker.job import jobs

    config = load()
    look_once(config, screen.say)
    other = "; a broker is up here too, and it drives most of them" if brokers.alive(config) else ""
    with telling_still(screen, config), screen.waiting(f"every active job to be looked after{other}"):
        brokers.tick(config, wait=wait)
    active = jobs(active=True, config=config)
    if screen.json:
        from broker.cli.tables import job_row

        return screen.data([job_row(job, time.time()) for job in active])
    for job in active:
        screen.line(job.id if screen.quiet else f"{job.id} {job.status}")
    return None
