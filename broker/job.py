"""Jobs as a user sees them: `run`, `offers`, `get`, `jobs`, `costs` and the `Job` they return; `plan` is planning's."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker import errors
from broker.config import Config
from broker.config import load as load_config
from broker.planning import home_of, overridden
from broker.task import Task
from broker.task import load as load_task

if TYPE_CHECKING:
    from broker.home import Home
    from broker.notebook import Offers
    from broker.notify import Notify
    from broker.policy.choose import Decision
    from broker.snapshot import File
    from broker.store import Event, JobRow, PlacementRow, Store

OnEvent = Callable[["Event"], None]
ENDINGS: Mapping[str, type[errors.JobEnded]] = {
    "failed": errors.JobFailed,
    "kept": errors.JobFailed,
    "stopped": errors.JobStopped,
    "limit": errors.LimitReached,
}


class Job:
    """A handle on one job. What it says is as of the last `refresh`."""

    def __init__(self, row: JobRow, config: Config, store: Store) -> None:
        self.row = row
        self.config = config
        self.store = store

    def _repr_html_(self) -> str:
        from broker.notebook import of_job

        return of_job(self)

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.status}>"

    @property
    def id(self) -> str:
        return self.row.id

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def status(self) -> str:
        """pending, starting, running, moving, stopping; or succeeded, failed, stopped, limit, unavailable, error; or
        kept: failed, and its machine stays for a look, as `keep_on_failure` says."""
        return self.row.status

    @property
    def done(self) -> bool:
        return self.row.done

    @property
    def message(self) -> str:
        return self.row.message

    @property
    def exit_code(self) -> int:
        """What a command about this job exits with.

        0 success, 75 nothing to be had, 100 failed, 101 not ended, 103 stopped, 104 limit reached.
        """
        return 101 if self.row.exit_code is None else self.row.exit_code

    @property
    def task(self) -> Task:
        """The task as submitted, without its secrets' values."""
        return Task.from_json(self.row.task)

    @property
    def spent(self) -> float:
        """USD spent so far, by the clock and the prices that were really paid."""
        now = time.time()
        return sum(row.cost(now) for row in self.placements())

    @property
    def home(self) -> Home:
        from broker.access import own
        from broker.home import Home

        return Home(own(self.config, self.row.home), make=False)

    def refresh(self) -> Job:
        self.row = self.store.job(self.id)
        return self

    def placements(self) -> list[PlacementRow]:
        """Every attempt, oldest first."""
        return self.store.placements(self.id)

    def events(self, after: int = 0) -> list[Event]:
        """What happened, in order; `after` is the last `seq` already seen."""
        return self.store.events(self.id, after=after)

    def decisions(self) -> list[dict[str, Any]]:
        """The records of what was decided about its machines, oldest first: all that was known, the alternatives, the
        reasons. `broker.policy.record.replay` makes the same decision of a record again.

        Of decisions that rented nothing only the newest is kept; it stands first.
        """
        from broker.experience import Records

        return Records(self.store).decisions(self.id)

    def wait(self, timeout: float | None = None, on_event: OnEvent | None = None) -> Job:
        """Block until it is known how the job has ended, also where its machine is kept for a look; `on_event` gets
        every event once.

        Waiting needs a live broker somewhere; it does not itself drive the job. Raises JobUnfinished after `timeout`
        seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        seen = 0
        while True:
            done = self.refresh().row.decided
            if on_event is not None:
                for event in self.events(after=seen):
                    seen = event.seq
                    on_event(event)
            if done:
                return self
            if deadline is not None and time.monotonic() > deadline:
                raise errors.JobUnfinished(
                    f"{self.id} is still {self.status} after {timeout:.0f} s",
                    job=self.id,
                    fix=f"broker logs -f {self.id}",
                )
            time.sleep(0.2)

    def check(self) -> Job:
        """Raise what the end calls for: JobFailed, JobStopped, LimitReached, NothingAvailable; itself on success."""
        if self.status in ENDINGS:
            raise ENDINGS[self.status](self.message, job=self.id, fix=self.row.fix)
        if self.status == "unavailable":
            raise errors.NothingAvailable(self.message, fix=self.row.fix)
        if self.status == "error":
            raise errors.BrokerError(self.message, fix=self.row.fix)
        return self

    def logs(self, *, follow: bool = False, after: tuple[int, int] = (0, -1)) -> Iterator[tuple[int, int, str]]:
        """The program's output over all its machines, secrets masked: (generation, part, text).

        `follow` goes on until the job has ended; `after` is the last (generation, part) already seen.
        """
        from broker.home import JobKeys

        keys, home = JobKeys(self.id), self.home
        while True:
            done = self.refresh().row.decided
            for row in self.placements():
                if row.generation < after[0]:
                    continue
                start = after[1] if row.generation == after[0] else -1
                offset = keys.log(row.generation, start) if start >= 0 else None
                for entry in home.numbered(keys.logs(row.generation), after=offset):
                    after = (row.generation, entry.number)
                    yield *after, home.get(entry.key).decode("utf-8", "replace")
            if done or not follow:
                return
            time.sleep(0.5)

    def stop(self, *, now: bool = False) -> None:
        """Ask for the end: the guest saves, uploads and ends its machine; `now` does not wait for it.

        Carried out by a live broker; `wait` sees the end.
        """
        self.store.ask(self.id, "stop-now" if now else "stop")

    def move(self, *, now: bool = False, to: Sequence[str] = (), off: int | None = None) -> None:
        """Ask for another machine: the guest saves and ends while the next one is picked and launched; `now` does not
        wait for the save, as a provider that takes a machine back without a notice.

        to: places as in a task's `infra`, among which this one move chooses; where nothing is to be had there after
        all, it goes wherever the task allows. off: the generation that it is to leave, by default its present one;
        nothing where it has left that already. Carried out once by a live broker; nothing where no machine is rented
        at present. Raises InvalidTaskError for what is no place.
        """
        from broker.leaving import Leaving

        self.task.within(to)
        held = [row for row in self.placements() if row.launched_at is not None and row.ended_at is None]
        if held and off in (None, held[-1].generation):
            self.store.ask(self.id, Leaving(held[-1].generation, now, tuple(to)).text)

    def destination(self, to: Sequence[str] = ()) -> Decision:
        """What `move`, or `resume` of an ended job, would take now, and why; changes nothing.

        Raises JobUnfinished for a job that is between two machines.
        """
        from broker.picking import destination
        from broker.state import JobState
        from broker.world import World

        state = JobState.from_json(self.row.state) if self.row.state else JobState(self.id)
        if self.done:
            state = state.again()
        elif state.live is None:
            raise errors.JobUnfinished(f"{self.id} has no machine at present: {self.status}", job=self.id)
        return destination(state, World(self.config, self.store, time.time, self.store.installation()), to)

    def resume(
        self, secrets: Mapping[str, str] | None = None, *, budget: float | None = None, deadline: str = ""
    ) -> Job:
        """Take an ended job up again, from its newest snapshot, with the task and workdir that it was submitted with.

        Some broker has to drive it then, as after `submit`. secrets: values of the task's secrets, which were forgotten
        at the job's end; those not given are looked for in the environment and in the task's file. budget, deadline: in
        the place of the task's; a budget counts what was spent before, a deadline such as `6h` from now on. Raises
        ConfigError for a secret that is nowhere, for a job that runs or has succeeded, and for a limit that is passed.
        """
        from broker.state import JobState
        from broker.vault import seal

        row = self.refresh().row
        state = JobState.from_json(row.state) if row.state else JobState(self.id)
        found = self._secrets(secrets or {})
        limits, notify = self._limits(budget, deadline), self._notify()
        if not self.store.revive(self.id, state.again().to_json(), seal(self.config.state, found), **limits):
            if self.row.kept:
                raise errors.ConfigError(
                    f"the machine of {self.id} is still kept", fix=f"broker stop {self.id}, and then resume it"
                )
            word = "has succeeded" if self.status == "succeeded" else f"is {self.status}"
            raise errors.ConfigError(f"{self.id} {word}: there is nothing to take up again")
        word = "from its newest snapshot" if state.parents else "from the beginning: no machine of it ever started"
        self.store.event(self.id, "submitted", f"taken up again, {word}", generation=state.generation)
        if notify is not None:
            self._tell_again(notify)
        return self.refresh()

    def _notify(self) -> Notify | None:
        """Whom its task tells. Its URLs were forgotten when the job ended, so they are taken from its file."""
        notify, source = self.task.notify, self.task.source
        if notify is not None and source is not None and source.is_file():
            with contextlib.suppress(errors.BrokerError):
                notify = load_task(source).notify or notify
        return notify.filled(os.environ) if notify is not None else None

    def _tell_again(self, notify: Notify) -> None:
        from broker.messages import Messages

        if notify.whole != notify:
            text = "notify: a URL was forgotten when the job ended, and is not in its task's file: it is told no more"
            self.store.event(self.id, "warning", text)
        Messages(self.config, self.store).expect(self.id, notify.whole, self.events()[-1].seq)

    def _limits(self, budget: float | None, deadline: str) -> dict[str, Any]:
        """The columns that hold a job's limits, as they are when it is taken up again."""
        task = self.task
        if budget is not None or deadline:
            limit = task.budget if budget is None else budget
            task = dataclasses.replace(task, budget=limit, deadline=deadline or task.deadline)
        reached = self.row.message.startswith("budget") and (self.task.budget or 0.0) >= (task.budget or 0.0)
        if task.budget is not None and (reached or task.budget <= self.spent):
            raise errors.ConfigError(
                f"{self.id} has spent {self.spent:.4f} of its budget of {task.budget:g} USD",
                fix=f"broker resume {self.id} --budget USD, with more than that",
            )
        prepared = {**(self.row.prepared or {}), **_deadline(task)}
        if prepared.get("deadline", float("inf")) <= time.time():
            raise errors.ConfigError(
                f"the deadline of {self.id}, {task.deadline}, has passed",
                fix=f"broker resume {self.id} --deadline TIME, such as 6h",
            )
        return {"prepared": prepared, "task": {**self.row.task, "budget": task.budget, "deadline": task.deadline}}

    def _secrets(self, given: Mapping[str, str]) -> dict[str, str]:
        """The values of the task's secrets, from the caller, the environment or the task's file."""
        names = self.task.secrets.keys()
        found = {name: os.environ[name] for name in names if name in os.environ} | dict(given)
        source = self.task.source
        if names - found.keys() and source is not None and source.is_file():
            written = load_task(source, secrets=found).with_hidden_sealed().secrets
            found = {name: written[name] for name in names if name in written} | found
        if absent := sorted(names - found.keys()):
            raise errors.ConfigError(
                f"the secrets of {self.id} were forgotten when it ended; {', '.join(absent)} is nowhere to be found",
                fix=f"set {absent[0]} in the environment and try again",
            )
        return {name: found[name] for name in names}

    def pull(self, to: Path, *, checkpoint: bool = False) -> list[Path]:
        """Download the job's outputs into a folder, or with `checkpoint` its newest snapshot that is whole.

        Where that is an older one, a warning among the job's events says so.
        Raises JobUnfinished while there is nothing yet, SnapshotCorrupt for what does not verify.
        """
        if checkpoint:
            return self._pull_snapshot(to)
        from broker.home import JobKeys
        from broker.snapshot import download

        if files := self.outputs():
            download(self.home, JobKeys(self.id), files, to)
            return [to / path for path in files]
        raise self._without_outputs()

    def outputs(self) -> dict[str, File]:
        """The output files of the newest machine that has left some, by path; empty while there are none.

        Raises SnapshotCorrupt where what it said of them is damaged.
        """
        import json

        from broker.home import JobKeys
        from broker.snapshot import File

        keys, home = JobKeys(self.id), self.home
        for row in reversed(self.placements()):
            key = keys.result(row.generation)
            raw = home.find(key)
            try:
                if raw and (outputs := json.loads(raw).get("outputs")):
                    return {path: File(**fields) for path, fields in outputs.items()}
            except (ValueError, TypeError, AttributeError) as error:
                raise errors.SnapshotCorrupt(f"{key} is damaged, so its outputs are not known: {error}") from error
        return {}

    def _without_outputs(self) -> errors.JobUnfinished:
        """Why there is nothing to pull, and whether waiting helps."""
        wanted = self.task.outputs
        if not wanted:
            what, fix = f"nothing to pull: {self.id} names no `outputs`", "name them in the task file and run it again"
        elif not self.done:
            what, fix = f"{self.id} has no outputs yet: {self.status}", f"broker wait {self.id}"
        elif self.status == "succeeded":
            what = f"nothing to pull: its program made no file that `outputs` names ({', '.join(wanted)})"
            fix = f"broker logs {self.id}"
        else:
            what = f"{self.id} has no outputs: it ended before they were written ({self.status})"
            fix = f"broker pull --checkpoint {self.id} gives its newest snapshot; broker logs {self.id} its output"
        return errors.JobUnfinished(what, job=self.id, fix=fix)

    def _pull_snapshot(self, to: Path) -> list[Path]:
        from broker.home import JobKeys
        from broker.restore import download, read_manifest, walk_lineage
        from broker.state import JobState

        keys, home = JobKeys(self.id), self.home
        state = JobState.from_json(self.row.state) if self.row.state else JobState(self.id)
        problems: list[str] = []
        for generation, seq in walk_lineage(
            home, keys, state.parents, state.generation + 1, expected=state.seqs, problems=problems
        ):
            try:
                manifest = read_manifest(home, keys, generation, seq)
                download(home, keys, manifest.files, to)
            except errors.SnapshotCorrupt as error:
                problems.append(f"snapshot {generation}/{seq}: {error}")
                continue
            for problem in problems:
                self.store.event(self.id, "warning", f"snapshot {generation}/{seq} was pulled, an older one: {problem}")
            return [to / path for path in manifest.files]
        if problems:
            raise errors.SnapshotCorrupt(
                f"no snapshot of {self.id} verifies: {'; '.join(problems)}",
                fix=f"look into {home.url}/{keys.root} for objects that a rule of the store deletes or another program "
                "changes; submit the task again to start from nothing",
            )
        raise errors.JobUnfinished(f"{self.id} has no snapshot", job=self.id, fix=f"broker show {self.id}")


def submit(
    task: Task, *, config: Config, store: Store, decision: Decision | None = None, job_id: str = ""
) -> Job:  # fmt: skip
    """Write a job down and put what is frozen of it into its home. Nothing is rented yet.

    job_id: of whoever must be able to do this twice and have one job, such as a schedule; else a new one.
    """
    from broker.consent import consented
    from broker.messages import Messages
    from broker.placement import prepare
    from broker.store import JobRow
    from broker.taskfile import placing
    from broker.vault import seal

    task = consented(task.with_hidden_sealed(), config.state)
    notify = task.notify.filled(os.environ) if task.notify is not None else None
    job_id = job_id or f"{task.slug}-{uuid.uuid4().hex[:6]}"
    home = home_of(task, config)
    with placing(task):
        prepared = {**prepare(job_id, task, home, config), **_deadline(task)}
    row = JobRow(
        id=job_id,
        name=task.name,
        created_at=time.time(),
        status="pending",
        home=home,
        task=task.to_json(),
        secrets=seal(config.state, task.secrets),
        prepared=prepared,
        plan=decision.to_json() if decision is not None else None,
    )
    store.add_job(row)
    if notify is not None:
        Messages(config, store).expect(job_id, notify)
    store.event(job_id, "submitted", f"submitted; home {home}", once="")
    return Job(store.job(job_id), config, store)


def _deadline(task: Task) -> dict[str, float]:
    """When the work must be done, fixed now, so that `6h` does not begin anew with every broker."""
    from broker.schedule import moment

    return {"deadline": moment(task.deadline, time.time())} if task.deadline else {}


def run(
    task: Task | Path | str,
    *,
    spot: str | None = None,
    max_price: float | None = None,
    infra: Sequence[str] = (),
    detach: bool = False,
    on_event: OnEvent | None = None,
    config: Config | None = None,
) -> Job:
    """Run a task to its end: pick, launch, follow, move, account. Returns the ended job, whatever its end.

    This process drives the job. `detach` returns as soon as the job is written down; a broker in the background,
    started if none is alive, drives it; one is also started where Ctrl-C or an error of `on_event` leaves the job.
    Raises ConfigError and TaskError before anything is rented; how the job itself ended is `job.status`, and
    `job.check()` raises it.
    """
    from broker import brokers
    from broker.store import open_store

    config = config or load_config()
    settled = overridden(load_task(task), {"spot": spot, "max_price": max_price, "infra": infra})
    store = open_store(config.state, config.database)
    job = submit(settled, config=config, store=store)
    if detach:
        brokers.ensure_background(config)
        return job
    with brokers.running_to_the_end(config) as live:
        try:
            live.drive(job.id)
            job.wait(on_event=on_event)
        except BaseException as error:
            _left_in_hands(job, error)
            raise
    return job


def _left_in_hands(job: Job, error: BaseException) -> None:
    """Start a background broker for a job whose caller leaves it by an error, and note on the error how to stop it."""
    from broker import brokers

    try:
        if job.refresh().done:
            return
        brokers.ensure_background(job.config)
        error.add_note(f"spotbroker: {job.id} goes on in the background; `broker stop {job.id}` ends it")
    except Exception as other:  # noqa: BLE001 - the error that came first is the one to raise
        error.add_note(f"spotbroker: {job.id} may go on with no broker: start one with `broker up` ({other})")


def get(job: str, *, config: Config | None = None) -> Job:
    """A job by id, or the newest of a name or of an id's stem. Raises JobNotFound."""
    from broker.store import open_store

    config = config or load_config()
    store = open_store(config.state, config.database)
    try:
        row = store.find(job)
    except errors.JobNotFound:
        # An id is the name as clouds can hold it, and six more characters.
        stems = (row for row in store.jobs() if row.id.rpartition("-")[0] == job)
        if (found := next(stems, None)) is None:
            raise
        row = found
    return Job(row, config, store)


def jobs(*, active: bool = False, since: float | None = None, config: Config | None = None) -> list[Job]:
    """All jobs, the newest first; `active`: only those not ended; `since`: seconds since the epoch."""
    from broker.store import open_store

    config = config or load_config()
    store = open_store(config.state, config.database)
    return [Job(row, config, store) for row in store.jobs(active=active, since=since)]


def costs(*, since: float | None = None, config: Config | None = None) -> dict[str, float]:
    """USD spent by job id."""
    return {job.id: job.spent for job in jobs(since=since, config=config)}


def offers(
    gpu: str | None = None,
    *,
    cpus: float = 0.0,
    memory: float = 0.0,
    disk: float = 20.0,
    spot: bool | None = None,
    infra: Sequence[str] = (),
    config: Config | None = None,
) -> Offers:
    """What can be rented now, cheapest first. gpu: `A100`, `A100:8` or `24GB+`, None for machines without one.

    Raises ConfigError for what nobody can have, such as an unknown card or a disk of -5.
    """
    from broker import resources
    from broker.market import Marketplace
    from broker.notebook import Offers
    from broker.policy.shape import fits

    query = resources.asked(gpu, cpus=cpus, memory=memory, disk=disk, infra=infra, spot=spot)
    book = Marketplace(config or load_config()).offers([query])
    fitting = (offer for offer in book.offers if fits(offer, query))
    return Offers(sorted(fitting, key=lambda offer: offer.hourly))
