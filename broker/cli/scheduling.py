"""The verbs of schedules: add, list, rm, next, and fire, which cron calls."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from broker.cli import completing
from broker.cli.offers import EnvOption, TaskArgument
from broker.cli.screen import Screen, Usage

if TYPE_CHECKING:
    import threading

    from broker.config import Config
    from broker.schedule import Schedule
    from broker.timetable import Entry, Run, Timetable

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="A schedule's name, as `schedule list` shows it.")]
LOOK = 5.0
SAME_RUN = 90.0
"""Seconds after a run's time in which who finds it launched by another follows it, too."""


def add_verb(
    screen: Screen,
    task: TaskArgument,
    env: EnvOption = None,
    systemd: Annotated[bool, typer.Option("--systemd", help="By a systemd user timer, not by cron.")] = False,
    up: Annotated[bool, typer.Option("--up", help="By `broker up` alone: install nothing.")] = False,
    show: Annotated[bool, typer.Option("--print", help="Print the line or the units, and change nothing.")] = False,
) -> None:
    """Run a task by its own schedule from now on.

    Its crontab line needs nothing of your shell: what the environment gives the task's secrets now is kept sealed.
    """
    from broker import crontab
    from broker.cli.offers import pairs
    from broker.config import load
    from broker.task import load as load_task
    from broker.timetable import entry_of

    if systemd and up:
        raise Usage("--systemd and --up are two ways", fix="leave one of them out")
    config, envs = load(), pairs(env)
    loaded = load_task(task, envs=envs)
    entry = entry_of(loaded, os.environ, envs, by="systemd" if systemd else "broker" if up else "cron")
    timetable = open_timetable(config)
    mark = timetable.store.installation()
    if show:
        if systemd:
            units = crontab.units(entry.name, entry.schedule, config, time.time())
            for name, text in units.items():
                screen.line(f"# {crontab.unit_folder() / name}\n{text}")
        elif not up:
            screen.line(crontab.line(entry.name, entry.schedule, config, mark, time.time()))
        return
    known = next((other for other in timetable.entries() if other.name == entry.name), None)
    if known is not None and known.file != entry.file:
        raise Usage(
            f"{known.file} has a schedule of the name {entry.name!r} already",
            fix=f"give this task another name, or broker schedule rm {entry.name!r}",
        )
    timetable.add(entry)
    try:
        _wake(entry, config, mark)
    except BaseException:
        # Half of it would be a schedule that nobody wakes.
        if known is None:
            timetable.remove(entry.name)
        else:
            timetable.add(known)
        raise
    _told_of_adding(screen, timetable, entry)


def _wake(entry: Entry, config: Config, mark: str) -> None:
    """Install what wakes a schedule, and take away what woke it before in another way."""
    from broker import crontab

    now = time.time()
    if entry.by == "cron":
        crontab.install(crontab.line(entry.name, entry.schedule, config, mark, now), entry.name, mark)
    elif entry.by == "systemd":
        crontab.install_units(crontab.units(entry.name, entry.schedule, config, now))
    if entry.by != "cron":
        crontab.uninstall(entry.name, mark)
    if entry.by != "systemd":
        crontab.remove_units(entry.name)


def _told_of_adding(screen: Screen, timetable: Timetable, entry: Entry) -> None:
    """What comes next, what stands in the way, and what a sleeping computer means."""
    from broker import crontab
    from broker.cli.trial import try_bare, try_here

    if screen.json:
        screen.data(_json(entry, None))
    elif screen.quiet:
        screen.line(entry.name)
    else:
        for text in _next(entry.schedule, 3):
            screen.line(text)
    where = {"cron": "cron", "systemd": "a systemd timer", "broker": "`broker up`"}[entry.by]
    screen.say(f"{entry.name} is run by {where}; its words go to {log_file(timetable.config)}")
    if entry.by == "cron" and not crontab.daemon_runs():
        screen.warn("no cron daemon runs here: start it (Debian: service cron start), or keep `broker up` running")
    if entry.by == "systemd":
        screen.say("a user timer runs while you are logged in; for nights: loginctl enable-linger")
    (try_here if entry.by == "broker" else try_bare)(screen, timetable, entry)
    missed = "joined into one run then" if entry.schedule.missed == "join" else "skipped"
    screen.say(f"nothing runs while this computer sleeps: runs that pass are {missed}, and moves wait until it wakes")


def list_verb(screen: Screen) -> None:
    """List the schedules: when each runs next, how it last went."""
    from broker.config import load

    timetable = open_timetable(load())
    entries = timetable.entries()
    rows = [(entry, next(iter(timetable.runs(entry.name, 1)), None)) for entry in entries]
    if screen.json:
        screen.data([_json(entry, last) for entry, last in rows])
    elif screen.quiet:
        for entry in entries:
            screen.line(entry.name)
    elif not entries:
        screen.say("no schedule; broker schedule add TASK makes one")
    else:
        from broker.cli.tables import table
        from broker.timetable import described

        made = table("NAME", "CRON", "NEXT", "BY", "LAST", fold=("LAST",))
        for entry, last in rows:
            zone = "" if entry.schedule.tz == "UTC" else f" {entry.schedule.tz}"
            ended = _ended(timetable, last)
            told = f"{described(last, entry.schedule)}{ended}" if last else "–"
            made.add_row(entry.name, f"{entry.schedule.cron}{zone}", _next(entry.schedule, 1)[0], entry.by, told)
        screen.show(made)


def _ended(timetable: Timetable, run: Run | None) -> str:
    """How the job of a run stands, after the run's own words."""
    from broker.errors import JobNotFound

    if run is None or run.status != "launched":
        return ""
    try:
        row = timetable.store.job(run.job)
    except JobNotFound:
        return ""
    return f", {run.job} {row.status}"


def rm_verb(
    screen: Screen,
    names: Annotated[
        list[str], typer.Argument(metavar="NAME…", help="Schedules.", autocompletion=completing.schedules)
    ],
) -> None:
    """Run a task by its schedule no longer. What has been launched goes on."""
    from broker import crontab
    from broker.config import load

    timetable = open_timetable(load())
    for name in names:
        timetable.entry(name)
    for name in names:
        # Who wakes it first: what cannot be taken out can be tried again while there is the schedule.
        crontab.uninstall(name, timetable.store.installation())
        crontab.remove_units(name)
        timetable.remove(name)
        if screen.quiet:
            screen.line(name)
        else:
            screen.say(f"{name} runs by its schedule no longer")


def next_verb(
    screen: Screen,
    task: Annotated[
        str,
        typer.Argument(
            metavar="TASK",
            help="A task file, a bundled task, or a schedule's name.",
            autocompletion=completing.tasks_and_schedules,
        ),
    ],
    count: Annotated[int, typer.Option("--count", metavar="N", min=1, max=1000, help="How many.")] = 3,
) -> None:
    """Print the next runs, in the schedule's own time zone."""
    from broker.config import load
    from broker.schedule import upcoming
    from broker.task import load as load_task
    from broker.timetable import entry_of

    known = next((entry for entry in open_timetable(load()).entries() if entry.name == task), None)
    schedule = known.schedule if known is not None else entry_of(load_task(task), {}, {}).schedule
    if screen.json:
        moments = upcoming(schedule, time.time(), count)
        screen.data([datetime.fromtimestamp(at, schedule.zone).isoformat() for at in moments])
        return
    for text in _next(schedule, count):
        screen.line(text)


def fire_verb(
    screen: Screen,
    name: NameArgument,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what a run would rent now.")] = False,
) -> int:
    """Do what is due of a schedule, and wait for its end; what cron calls. Quiet where nothing is due.

    Its exit code is the job's: 75 nothing within price, 100 failed, 104 a limit was reached with a safe snapshot.
    """
    from broker import brokers
    from broker.cli.trial import planned
    from broker.config import load
    from broker.errors import BrokerError
    from broker.job import jobs
    from broker.morning import summary

    config = load()
    timetable = open_timetable(config)
    entry = timetable.entry(name)
    if dry_run:
        return planned(screen, timetable, entry)
    log, code = _Log(config, name), 0
    try:
        run = _seen_to(timetable, entry, log)
    except BrokerError as error:
        log.write(f"failed: {error}")
        raise
    if run is None:
        run = _of_another(timetable, entry)
    while run is not None:
        log.write(f"{run.status} {run.job} {run.note}".rstrip())
        if run.status != "launched":
            screen.say(f"{entry.name}: {run.status}: {run.note}")
            break
        brokers.ensure_background(config)
        job = timetable.job(run).wait()
        log.write(f"{run.job} {job.status}: {job.message}")
        screen.line(summary(job, entry.schedule, run))
        code = code or (job.row.exit_code or 0)
        run = timetable.see_to(entry)  # what was queued behind it
    if jobs(active=True, config=config):
        brokers.ensure_background(config)
    return code


def _seen_to(timetable: Timetable, entry: Entry, log: _Log) -> Run | None:
    """Do what is due. While the home is out of reach, as it is for a laptop that has just woken, again and again."""
    from broker.errors import HomeUnavailable
    from broker.schedule import LATE
    from broker.timetable import AGAIN

    until = time.monotonic() + LATE
    while True:
        try:
            return timetable.see_to(entry)
        except HomeUnavailable as error:
            if time.monotonic() > until:
                raise
            log.write(f"waits: {error}")
        time.sleep(AGAIN)


def _of_another(timetable: Timetable, entry: Entry) -> Run | None:
    """The run of this very minute, where another looker such as `broker up` has launched it."""
    last = next(iter(timetable.runs(entry.name, 1)), None)
    if last is None or last.status != "launched" or time.time() - last.slot > SAME_RUN:
        return None
    return None if timetable.job(last).row.decided else last


def keep_schedules(config: Config, ended: threading.Event, *, say: Callable[[str], None]) -> None:
    """Look at every schedule again and again until `ended`, for `broker up`."""
    told = ""
    while True:
        try:
            look_once(config, say)
        except Exception as error:  # noqa: BLE001 - a full disk, or a database that is busy, ends no schedule
            if told != (told := f"the schedules could not be looked at, and are again and again: {error}"):
                say(told)
        else:
            told = ""
        if ended.wait(LOOK):
            return


def look_once(config: Config, say: Callable[[str], None]) -> None:
    """See to every schedule, and say what was launched and what could not be."""
    from broker.errors import BrokerError

    timetable = open_timetable(config)
    try:
        for entry, found in timetable.look():
            text = f"failed: {found}" if isinstance(found, BrokerError) else f"{found.status} {found.job} {found.note}"
            say(f"schedule {entry.name}: {text.rstrip()}")
            _Log(config, entry.name).write(text.rstrip())
    finally:
        timetable.store.close()


def open_timetable(config: Config) -> Timetable:
    from broker.store import open_store
    from broker.timetable import Timetable

    return Timetable(config, open_store(config.state, config.database))


def log_file(config: Config) -> Path:
    return config.state / "schedule.log"


class _Log:
    """One line for each thing that happens, in a file that is rotated. What cannot be written ends nothing."""

    BIGGEST, KEPT = 1_000_000, 2

    def __init__(self, config: Config, name: str) -> None:
        self.path, self.name = log_file(config), name

    def write(self, text: str) -> None:
        from logging import INFO, LogRecord
        from logging.handlers import RotatingFileHandler

        try:
            handler = RotatingFileHandler(self.path, maxBytes=self.BIGGEST, backupCount=self.KEPT, encoding="utf-8")
        except OSError:
            return
        handler.handleError = lambda record: None  # type: ignore[method-assign]  # noqa: ARG005
        stamp = datetime.now().astimezone().isoformat(timespec="seconds")
        one_line = " ".join(text.split())
        handler.emit(LogRecord("spotbroker", INFO, "", 0, f"{stamp} {self.name}: {one_line}", None, None))
        with contextlib.suppress(OSError):
            handler.close()


def _next(schedule: Schedule, count: int) -> list[str]:
    from broker.schedule import told, upcoming

    return [told(at, schedule.zone) for at in upcoming(schedule, time.time(), count)]


def _json(entry: Entry, last: Run | None) -> dict[str, object]:
    import dataclasses

    from broker.schedule import upcoming

    return {
        "name": entry.name,
        "file": str(entry.file),
        "schedule": dataclasses.asdict(entry.schedule),
        "by": entry.by,
        "next": [
            datetime.fromtimestamp(at, entry.schedule.zone).isoformat()
            for at in upcoming(entry.schedule, time.time(), 3)
        ],
        "last": dataclasses.asdict(last) if last is not None else None,
    }
