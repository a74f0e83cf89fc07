"""Tasks that run by a schedule, and their runs: each is launched once, whoever looks and however many do.

Cron, a systemd timer, `broker up` and `broker tick` all only look (`Timetable.look`). A run belongs to whoever writes
it down first; the job's id is made of the schedule's name and the run's moment, so that a looker that died half-way is
followed by another that finishes the same job and makes no second one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from broker.config import Config
from broker.errors import BrokerError, ConfigError, HomeUnavailable, JobNotFound, TaskError
from broker.schedule import SLACK, Due, Schedule, chosen_start, due, iso, moment, told, upcoming
from broker.store import Store, insert_into, made, metadata
from broker.vault import seal, unseal

if TYPE_CHECKING:
    from broker.job import Job
    from broker.task import Task

STALE = 120.0
"""Seconds after which a run that was claimed and not launched is taken over: its looker has died."""
AGAIN = 60.0
"""Seconds after which a run is tried again whose home was out of reach, until the next one comes."""
CHANGED = "its file has another schedule now, which counts once it is added again"
SET_BACK = 31 * 86400.0
"""By how much a clock may be set back without a run that was joined or skipped coming again. Runs further ahead were
written by a clock that went wrong, and hold up nothing.
"""
KEPT = 365 * 86400.0

schedules = sa.Table(
    "spotbroker_schedules",
    metadata,
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("file", sa.String, nullable=False),
    sa.Column("schedule", sa.JSON, nullable=False),
    sa.Column("added_at", sa.Float, nullable=False),
    sa.Column("by", sa.String, nullable=False),
    sa.Column("given", sa.LargeBinary),
)

runs = sa.Table(
    "spotbroker_runs",
    metadata,
    sa.Column("schedule", sa.String, primary_key=True),
    sa.Column("slot", sa.Float, primary_key=True),
    sa.Column("status", sa.String, nullable=False),
    sa.Column("job", sa.String, nullable=False),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("note", sa.String, nullable=False, default=""),
    sa.Column("start", sa.Float),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One task with a schedule. file: of the task. added_at: seconds since the epoch. by: cron, systemd or broker.

    given: what the environment or `--env` gave when it was added, kept sealed: cron has neither. sealed_off: why that
    cannot be read any more.
    """

    name: str
    file: Path
    schedule: Schedule
    added_at: float
    by: str = "broker"
    given: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    sealed_off: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a schedule. slot: its moment. status: claimed, launched, queued, skipped, missed or failed.

    start: not before this, for one that is queued for cheaper hours.
    """

    schedule: str
    slot: float
    status: str
    job: str
    at: float
    note: str = ""
    start: float | None = None


class Timetable:
    """All schedules of an installation."""

    def __init__(self, config: Config, store: Store) -> None:
        self.config, self.store = config, store
        made(store.engine, (schedules, runs))

    def add(self, entry: Entry) -> None:
        """Keep a schedule; one of the same name is replaced, and what it has run stays run."""
        values = {
            "name": entry.name,
            "file": str(entry.file),
            "schedule": dataclasses.asdict(entry.schedule),
            "added_at": entry.added_at,
            "by": entry.by,
            "given": seal(self.config.state, {"given": json.dumps(entry.given)}) if any(entry.given.values()) else None,
        }
        insert = insert_into(self.store.engine, schedules).values(**values)
        with self.store.engine.begin() as db:
            db.execute(insert.on_conflict_do_update(index_elements=["name"], set_=values))

    def remove(self, name: str) -> bool:
        """Forget a schedule; its jobs go on. False where there is none."""
        with self.store.engine.begin() as db:
            return db.execute(sa.delete(schedules).where(schedules.c.name == name)).rowcount == 1

    def entries(self) -> list[Entry]:
        """Every schedule, by name."""
        with self.store.engine.connect() as db:
            rows = db.execute(sa.select(schedules).order_by(schedules.c.name)).mappings().all()
        return [self._entry(row) for row in rows]

    def entry(self, name: str) -> Entry:
        """One schedule. Raises JobNotFound."""
        found = next((entry for entry in self.entries() if entry.name == name), None)
        if found is None:
            raise JobNotFound(f"no schedule {name!r} here", fix="broker schedule list lists them")
        return found

    def _entry(self, row: Any) -> Entry:
        given, sealed_off = {}, ""
        try:
            given = unseal(self.config.state, row["given"])
        except ConfigError as error:
            sealed_off = error.message
        return Entry(
            name=row["name"],
            file=Path(row["file"]),
            schedule=Schedule.from_json(row["schedule"]),
            added_at=row["added_at"],
            by=row["by"],
            given=json.loads(given["given"]) if given else {},
            sealed_off=sealed_off,
        )

    def runs(self, name: str, count: int = 100) -> list[Run]:
        """The runs of a schedule, the newest first."""
        query = sa.select(runs).where(runs.c.schedule == name).order_by(runs.c.slot.desc()).limit(count)
        with self.store.engine.connect() as db:
            return [Run(**row) for row in db.execute(query).mappings()]

    def look(self, now: float | None = None) -> Iterator[tuple[Entry, Run | BrokerError]]:
        """See to every schedule; gives what became of each run that was due, or why it could not be launched."""
        for entry in self.entries():
            try:
                run = self.see_to(entry, now)
            except BrokerError as error:
                yield entry, error
                continue
            except Exception as error:  # noqa: BLE001 - one schedule's trouble holds up no other
                yield entry, BrokerError(f"unexpected {type(error).__name__}: {error}")
                continue
            if run is not None:
                yield entry, run

    def see_to(self, entry: Entry, now: float | None = None) -> Run | None:
        """Do what is due of one schedule now: the run that was made, or None.

        Raises what reading the task and writing the job down raise; the run is `failed` then.
        """
        now = time.time() if now is None else now
        known = self.runs(entry.name)
        if (
            stale := next((run for run in known if run.status == "claimed" and now - run.at > STALE), None)
        ) is not None:
            return self._launch(entry, stale, now) if self._move(stale, "claimed", now) else None
        active = self._active(known)
        waiting = next((run for run in known if run.status == "queued"), None)
        if waiting is not None and active is None and now >= (waiting.start or 0.0):
            if self._is_over(entry, waiting, now):
                return self._pass(waiting, now)
            return self._launch(entry, waiting, now) if self._move(waiting, "claimed", now) else None
        since = next((run.slot for run in known if run.slot <= now + SET_BACK), 0.0)
        found = due(entry.schedule, max(entry.added_at, since), now)
        if found is None:
            return None
        run = self._run_of(entry, found, active, waiting, now)
        if not self._claim(run):
            return None
        return self._launch(entry, run, now) if run.status == "claimed" else run

    def _run_of(self, entry: Entry, found: Due, active: Run | None, waiting: Run | None, now: float) -> Run:
        """What becomes of a run that is due."""
        run = Run(entry.name, found.slot, "claimed", self._job_id(entry, found.slot), now, _missed(found))
        if not found.launch:
            return dataclasses.replace(run, status="missed", note=f"{found.missed} passed while nothing was awake")
        if active is None and waiting is None:
            return self._in_window(entry, run, now)
        if active is None and waiting is not None:
            return dataclasses.replace(run, status="skipped", note=f"one waits already: {waiting.note}")
        assert active is not None
        if entry.schedule.overlap == "queue" and waiting is None:
            return dataclasses.replace(run, status="queued", note=f"behind {active.job}")
        what = f"{active.job} still runs" if waiting is None else f"one waits behind {active.job} already"
        return dataclasses.replace(run, status="skipped", note=what)

    def _is_over(self, entry: Entry, run: Run, now: float) -> bool:
        """Has the window of a run that waits in it passed, asleep, where what is missed is skipped?"""
        window = entry.schedule.window
        if window is None or run.start is None or entry.schedule.missed != "skip":
            return False
        return now >= window.around(run.slot, entry.schedule.zone)[1]

    def _pass(self, run: Run, now: float) -> Run | None:
        note = "its window passed while nothing was awake"
        return dataclasses.replace(run, status="missed", note=note) if self._move(run, "missed", now, note) else None

    def _in_window(self, entry: Entry, run: Run, now: float) -> Run:
        """The run as it is, or queued until the cheapest hours of its window."""
        window, zone = entry.schedule.window, entry.schedule.zone
        if window is None:
            return run
        begin, end = window.around(run.slot, zone)
        if now < begin:
            return dataclasses.replace(run, status="queued", start=begin, note=f"waits until {told(begin, zone)}")
        if window.start != "cheapest" or now >= end:
            return run
        task = self.task(entry, run.slot, now)
        hours = (task.work.hours if task.work is not None else None) or 1.0
        latest = end
        if entry.schedule.deadline:
            latest = min(latest, moment(entry.schedule.deadline, run.slot, zone) - SLACK * hours * 3600)
        chosen = chosen_start(now, latest, SLACK * hours, self._past_prices(task, now), zone)
        if chosen.at <= now:
            note = "; ".join(part for part in (run.note, chosen.why) if part)
            return dataclasses.replace(run, note=note)
        note = f"waits until {told(chosen.at, zone)}: {chosen.why}"
        return dataclasses.replace(run, status="queued", start=chosen.at, note=note)

    def _past_prices(self, task: Task, now: float) -> list[tuple[float, float]]:
        """What the cheapest of the offers that the task could take now cost in the last weeks, hour by hour."""
        from broker.experience import Records
        from broker.planning import plan

        ranked = plan(dataclasses.replace(task, deadline=""), config=self.config).decision.ranked
        keys = [candidate.offer.key for candidate in ranked]
        lowest: dict[int, tuple[float, float]] = {}
        for _, samples in Records(self.store).samples(keys, now):
            for at, price in samples:
                least = lowest.setdefault(int(at // 3600), (at, price))
                if price < least[1]:
                    lowest[int(at // 3600)] = (at, price)
        return list(lowest.values())

    def _active(self, known: list[Run]) -> Run | None:
        """The newest run whose job has not ended."""
        for run in known:
            if run.status == "claimed":
                return run
            if run.status == "launched" and not self._done(run.job):
                return run
        return None

    def _done(self, job: str) -> bool:
        try:
            return self.store.job(job).decided
        except JobNotFound:
            return True

    def _job_id(self, entry: Entry, slot: float) -> str:
        from broker.task import slug_of

        text = f"{self.store.installation()}|{entry.name}|{slot:.0f}"
        return f"{slug_of(entry.name)}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"

    def _claim(self, run: Run) -> bool:
        """Write a run down; False where another was first."""
        insert = insert_into(self.store.engine, runs).values(**dataclasses.asdict(run))
        with self.store.engine.begin() as db:
            db.execute(sa.delete(runs).where(runs.c.schedule == run.schedule, runs.c.slot < run.slot - KEPT))
            return db.execute(insert.on_conflict_do_nothing()).rowcount == 1

    def _move(
        self, run: Run, status: str, at: float, note: str | None = None, start: float | None = None
    ) -> bool:  # fmt: skip
        """Change a run's status; False where somebody else has changed it since it was read."""
        same = (
            runs.c.schedule == run.schedule,
            runs.c.slot == run.slot,
            runs.c.status == run.status,
            runs.c.at == run.at,
        )
        values: dict[str, Any] = {"status": status, "at": at}
        values |= {name: value for name, value in (("note", note), ("start", start)) if value is not None}
        with self.store.engine.begin() as db:
            return db.execute(sa.update(runs).where(*same).values(**values)).rowcount == 1

    def _launch(self, entry: Entry, run: Run, now: float) -> Run:
        """Write the job of a claimed run down, for a live broker to drive."""
        from broker.job import submit

        claimed = next(found for found in self.runs(entry.name) if found.slot == run.slot)
        try:
            task = self.task(entry, run.slot, now)
            submit(task, config=self.config, store=self.store, job_id=run.job)
        except HomeUnavailable as error:
            # A laptop that has just woken has no network yet.
            if upcoming(entry.schedule, run.slot, 1)[0] > now:
                self._move(claimed, "queued", now, note=f"tried again, since {error}", start=now + AGAIN)
            else:
                self._move(claimed, "failed", now, note=str(error))
            raise
        except BrokerError as error:
            self._move(claimed, "failed", now, note=str(error))
            raise
        if task.schedule != entry.schedule:
            claimed = dataclasses.replace(claimed, note="; ".join(filter(None, (claimed.note, CHANGED))))
        self._move(claimed, "launched", now, note=claimed.note)
        return dataclasses.replace(claimed, status="launched", at=now)

    def task(self, entry: Entry, slot: float, now: float) -> Task:
        """The task as this run launches it: its file as it is now, with the schedule's own limits over it."""
        from broker.task import load

        if not entry.file.is_file():
            raise TaskError(
                f"{entry.file} is not there any more", file=str(entry.file), fix=f"broker schedule rm {entry.name}"
            )
        if entry.sealed_off:
            raise ConfigError(entry.sealed_off, fix=f"add the schedule again: broker schedule add {entry.file}")
        given = entry.given
        task = load(entry.file, envs=given.get("envs"), environ={**given.get("secrets", {}), **os.environ})
        changes: dict[str, Any] = {}
        if task.notify is not None:
            changes["notify"] = task.notify.filled({**given.get("notify", {}), **os.environ})
        if entry.schedule.deadline:
            at = moment(entry.schedule.deadline, max(slot, now), entry.schedule.zone)
            changes["deadline"] = iso(at, entry.schedule.zone)
        if entry.schedule.max_price is not None:
            changes["max_price"] = min(entry.schedule.max_price, task.max_price or entry.schedule.max_price)
        return dataclasses.replace(task, **changes)

    def job(self, run: Run) -> Job:
        """The job of a run that was launched."""
        from broker.job import Job

        return Job(self.store.job(run.job), self.config, self.store)


def entry_of(task: Task, environ: Mapping[str, str], envs: Mapping[str, str], *, by: str = "broker") -> Entry:
    """The schedule of a task, as it is added now.

    environ: where the values of secrets were taken from; envs: given by hand. Raises ConfigError for a task without
    a schedule or a file.
    """
    if task.source is None:
        raise ConfigError("a schedule needs a task file: it is read anew for each run")
    if task.schedule is None:
        raise ConfigError(
            f"{task.source} has no schedule",
            fix='add one, such as `schedule: {cron: "0 22 * * 1-5", tz: Europe/Lisbon}`',
        )
    secrets = {name: value for name, value in task.secrets.items() if environ.get(name) == value}
    notify = {name: environ[name] for name in (task.notify.variables if task.notify else ()) if name in environ}
    given = {"envs": dict(envs), "secrets": secrets, "notify": notify}
    return Entry(task.name, task.source, task.schedule, time.time(), by, given)


def _missed(found: Due) -> str:
    if not found.missed:
        return ""
    return f"joins {found.missed} run{'s' * (found.missed != 1)} that passed while nothing was awake"


def described(run: Run, schedule: Schedule) -> str:
    """A run for people: its moment in the schedule's zone, and what became of it."""
    note = f": {run.note}" if run.note else ""
    return f"{told(run.slot, schedule.zone)} {run.status}{note}"
