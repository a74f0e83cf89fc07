"""Runs jobs durably. The only module that knows DBOS, and it knows it in one shape.

A job is one workflow that goes from phase to phase; each phase is one recorded step whose result is the whole
`JobState`. After a crash the workflow continues at the phase after the last recorded one, in this process or in
another: every process holds a lock named after itself for as long as it lives, and whoever finds jobs whose holder's
lock is free takes them over. DBOS itself recovers only its own executor's workflows, so that part is ours.

Settings and traps were measured for DBOS 3.4: a constant `application_version`, portable JSON, no recovery limit,
write-ahead logging by a connection class, launch in a thread without a running loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sqlite3
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

from broker import errors, garbage, observing
from broker.config import Config
from broker.home import JobKeys
from broker.launching import launch
from broker.lifecycle import account, retire
from broker.locks import BEAT, lock_of
from broker.messages import Messages
from broker.narration import narrate, status_of, verdict_of
from broker.picking import pick
from broker.policy.budget import STRAY
from broker.state import JobState, NewerVersion, Outcome
from broker.store import ENDED, JobRow, database_url, open_store
from broker.sweep import sweep
from broker.watch import Watcher, watch
from broker.weighing import weigh
from broker.world import World

WORKFLOW = "spotbroker-job"
APPLICATION_VERSION = "1"
RUN = "~"  # between a job's id and the number of its second and later workflows
GOING = ("PENDING", "ENQUEUED", "DELAYED")
CLAIM_EVERY, ADOPT_EVERY, SWEEP_EVERY, TIDY_EVERY = 0.5, 3.0, 60.0, 3600.0
TELL_EVERY = 2.0
ERRORS_BEFORE_GIVING_UP = 20
CLOSE_LIMIT = 60.0

PHASES: dict[str, Callable[[JobState, World], JobState]] = {
    "pick": pick,
    "launch": launch,
    "weigh": weigh,
    "retire": retire,
    "account": account,
}

_current: Engine | None = None
_users = 0
_guard = threading.RLock()


class WalConnection(sqlite3.Connection):
    """DBOS opens SQLite in rollback mode; write-ahead logging lets readers and one writer work side by side.

    On Python 3.12 and newer DBOS 3.4 takes its times from `unixepoch('subsec')`, which SQLite knows from 3.42 on (its
    change log); Debian 12's and Ubuntu 22.04's answer with NULL, and no job begins.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if sqlite3.sqlite_version_info < (3, 42):
            self.create_function("unixepoch", 1, lambda _subsec: round(time.time(), 3))
        self.execute("PRAGMA journal_mode=WAL")
        self.execute("PRAGMA synchronous=FULL")


class HandedOn(BaseException):
    """This broker ends and the workflow stays pending for the next one.

    DBOS records every `Exception` of a workflow as its final error, the cancellation at its own shutdown included
    (3.4: the cancelled future raises concurrent.futures.CancelledError); what is no `Exception` it does not record.
    """


class Closing(Exception):  # noqa: N818 - a state, not an error
    """The engine closes: no further phase starts here."""


class Engine:
    """One live broker: an executor of DBOS, a watcher, and the upkeep that claims, adopts and sweeps."""

    def __init__(self, config: Config, *, adopts: bool = True) -> None:
        self.config = config
        self.adopts = adopts
        store = open_store(config.state, config.database)
        self.world = World(config, store, time.time, store.installation())
        self.watcher = Watcher(self.world)
        self.messages = Messages(config, store)
        self.executor_id = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self.url = database_url(config.state, config.database, "engine.db")
        self.lock = lock_of(config, self.executor_id)
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = threading.Event()
        self._upkeep: threading.Thread | None = None
        self._news: threading.Thread | None = None
        self._closed = threading.Event()
        self._life: threading.Thread | None = None
        self._observer: threading.Thread | None = None
        self.driving: set[str] = set()
        self._broken: set[str] = set()
        self.closing = False
        self._beginning = threading.Lock()
        self._busy = 0
        self._idle = threading.Condition()

    def phase(self, state: JobState) -> JobState:
        """Run one of the phases that act, in the calling thread; counted, so that `close` can wait for it."""
        with self._idle:
            if self.closing:
                raise Closing
            self._busy += 1
        try:
            return PHASES[state.phase](state, self.world)
        finally:
            with self._idle:
                self._busy -= 1
                self._idle.notify_all()

    def start(self) -> None:
        """Launch DBOS. Raises ConfigError where this process already runs a DBOS of its own."""
        if not self.lock.take():
            raise errors.BrokerError("the engine's own lock is taken")
        # DBOS adopts a loop that runs in the launching thread (a notebook's) and then waits on it for ever.
        failures: list[BaseException] = []
        thread = threading.Thread(target=self._launch, args=(failures,), name="spotbroker launch")
        thread.start()
        thread.join()
        if failures:
            self.lock.release()
            raise failures[0]
        # In a thread of its own: a duty of the upkeep may wait for minutes on a provider without standing still.
        self._life = threading.Thread(target=self._show_life, name="spotbroker life", daemon=True)
        self._life.start()
        self._upkeep = threading.Thread(target=self._keep_up, name="spotbroker upkeep", daemon=True)
        self._upkeep.start()
        self._news = threading.Thread(target=self._tell, name="spotbroker news", daemon=True)
        self._news.start()

    def _launch(self, failures: list[BaseException]) -> None:
        try:
            from dbos import DBOS, DBOSConfig
            from dbos._serialization import DBOSPortableJSONSerializer

            _register()
            config: DBOSConfig = {
                "name": "spotbroker",
                "system_database_url": self.url,
                "application_version": APPLICATION_VERSION,
                "executor_id": self.executor_id,
                "max_executor_threads": 32,
                "log_level": "ERROR",
                "serializer": DBOSPortableJSONSerializer(),
            }
            if self.url.startswith("sqlite"):
                config["db_engine_kwargs"] = {"connect_args": {"factory": WalConnection}}
            instance = DBOS(config=config)
            if instance._config.get("system_database_url") != self.url:  # noqa: SLF001 - there is no public check
                raise errors.ConfigError(
                    "this process already runs a DBOS application of its own",
                    fix="run the job with detach=True, or in a process of its own by `broker run`",
                )
            DBOS.launch()
            self._loop = instance._background_event_loop._loop  # noqa: SLF001 - see `_settle`
        except BaseException as error:  # noqa: BLE001 - handed to the starting thread, which raises it
            failures.append(error)

    def close(self) -> None:
        """Stop driving; what runs goes on running and the next live broker continues it.

        A phase under way is let finish: whoever adopts its job once the lock is free must not meet it half-way.
        """
        from dbos import DBOS

        self._stop.set()
        if self._upkeep is not None:
            self._upkeep.join(timeout=10.0)
        with self._idle:
            self.closing = True
            self._idle.wait_for(lambda: self._busy == 0, timeout=CLOSE_LIMIT)
        self.watcher.close()
        if self._news is not None:
            self._news.join(timeout=CLOSE_LIMIT)
        # Workflows that wait are cancelled here and stay pending, which DBOS would report as an error of theirs.
        logging.getLogger("dbos").setLevel(logging.CRITICAL + 1)
        if os.getpid() == self._pid:
            if self._loop is not None:
                with contextlib.suppress(TimeoutError, RuntimeError):
                    asyncio.run_coroutine_threadsafe(_settle(), self._loop).result(timeout=CLOSE_LIMIT)
            DBOS.destroy(destroy_registry=False)
        self._closed.set()
        if self._life is not None:
            self._life.join()
        self.lock.release()
        self.world.store.close()

    def _tell(self) -> None:
        """Send the jobs' news, beside all else: a mail may take its time."""
        while True:
            ending = self._stop.wait(TELL_EVERY)
            try:
                self.messages.send()
            except Exception as error:  # noqa: BLE001 - news must not end the broker
                print(f"spotbroker: news could not be sent and are tried again: {error}", file=sys.stderr)  # noqa: T201
            if ending:  # a job's end is often why its broker ends, and that was news, too
                return

    def _show_life(self) -> None:
        while True:
            self.lock.beat()
            if self._closed.wait(BEAT):
                return

    def drive(self, job: str) -> None:
        """Take a job that nobody drives and start it here."""
        with self._beginning:
            if self.world.store.claim(job, self.executor_id):
                # In a thread: DBOS refuses to be asked where a loop runs, as in a notebook's cell.
                with ThreadPoolExecutor(1, thread_name_prefix="spotbroker begin") as thread:
                    thread.submit(lambda: self._begin(job, self._runs(job))).result()

    def _runs(self, job: str) -> list[Any]:
        """The workflows that the job has had, oldest first."""
        from dbos import DBOS

        found = DBOS.list_workflows(workflow_id_prefix=job, load_input=False, load_output=False)
        return [status for status in found if status.workflow_id.partition(RUN)[0] == job]

    def _begin(self, job: str, runs: Sequence[Any]) -> None:
        """Start a job's next workflow, from where its state was last shown.

        The id is the job's and the number of the run, so that it starts once however many brokers try.
        """
        from dbos import DBOS, SetWorkflowID

        shown = self.world.store.job(job).state
        state = dict(shown) if shown else JobState(job).to_json()
        self.driving.add(job)
        try:
            with SetWorkflowID(f"{job}{RUN}{len(runs) + 1}" if runs else job):
                DBOS.start_workflow(_workflow(), state)
        except BaseException:
            self.driving.discard(job)
            raise

    def _keep_up(self) -> None:
        start = time.monotonic()
        due = {"claim": 0.0, "adopt": 0.0, "sweep": start + 5.0, "tidy": start + TIDY_EVERY, "observe": start + 20.0}
        duties: dict[str, tuple[float, Callable[[], object]]] = {
            "claim": (CLAIM_EVERY, self.claim),
            "adopt": (ADOPT_EVERY, self.adopt),
            "sweep": (SWEEP_EVERY, self.sweep),
            "tidy": (TIDY_EVERY, self.tidy),
            "observe": (observing.EVERY, self.observe),
        }
        while not self._stop.wait(0.2):
            for name, (every, duty) in duties.items():
                if time.monotonic() < due[name] or (not self.adopts and name != "adopt"):
                    continue
                try:
                    duty()
                except Exception as error:  # noqa: BLE001 - upkeep must outlive whatever one round met
                    print(f"spotbroker: {name} failed and is tried again: {error}", file=sys.stderr)  # noqa: T201
                due[name] = time.monotonic() + every

    def claim(self) -> None:
        """Start every job that was written down and that nobody has started."""
        for job in self.world.store.unclaimed():
            self.drive(job)

    def adopt(self) -> list[str]:
        """Take over the jobs of brokers that have died, and those that this one has lost; returns their ids."""
        from dbos import DBOS

        by_holder: dict[str, list[str]] = {}
        for status in DBOS.list_workflows(status="PENDING", name=WORKFLOW, load_input=False, load_output=False):
            by_holder.setdefault(status.executor_id or "", []).append(status.workflow_id)
        mine = by_holder.pop(self.executor_id, [])
        by_holder.pop("", None)
        adopted = self._broken_off(mine)
        for holder, workflows in by_holder.items():
            if lock_of(self.config, holder).free():
                adopted += workflows
        if adopted:
            DBOS.resume_workflows(adopted)
        return [workflow.partition(RUN)[0] for workflow in adopted] + self._restart_lost()

    def _broken_off(self, pending: Sequence[str]) -> list[str]:
        """Of this broker's own pending workflows those that do not run: they broke off, and not even that could be
        recorded. Seen twice, since one that has just ended is recorded a moment later."""
        idle = {workflow for workflow in pending if workflow.partition(RUN)[0] not in self.driving}
        found, self._broken = idle & self._broken, idle
        for job in sorted(workflow.partition(RUN)[0] for workflow in found):
            self.world.store.event(job, "warning", "its workflow broke off and is taken up again")
        return sorted(found)

    def _restart_lost(self) -> list[str]:
        """Start the jobs that have not ended and have no workflow that could end them.

        A broker that died between claiming a job and starting it, or could not start it, leaves a claim without a
        workflow; a workflow that has ended before its job, by whatever fault, is followed by another from the state
        that was last shown.
        """
        with self._beginning:  # so what this broker holds it is not about to start
            return [row.id for row in self.world.store.jobs(active=True) if row.claimed_by and self._restart(row)]

    def _restart(self, row: JobRow) -> bool:
        """Start one job that is held and has no workflow, unless its holder may be about to."""
        runs = self._runs(row.id)
        if any(status.status in GOING for status in runs) or self.world.store.job(row.id).done:
            return False
        holder = row.claimed_by or ""
        # Another that lives may be about to start it, unless the workflow that it did start has ended.
        fresh = not runs or row.state is None or row.state["phase"] == "pick"
        if fresh and holder != self.executor_id and not lock_of(self.config, holder).free():
            return False
        if runs:
            self.world.store.event(row.id, "warning", f"its workflow ended as {runs[-1].status}; started again")
        self._begin(row.id, runs)
        return True

    def sweep(self) -> list[str]:
        return sweep(self.world)

    def observe(self) -> None:
        """Look at the market for the next jobs' sake, in a thread: providers may take their time, upkeep may not."""

        def look() -> None:
            try:
                observing.observe(self.world)
            except Exception as error:  # noqa: BLE001 - what was not seen now is seen the next time
                print(f"spotbroker: the market was not looked at: {error}", file=sys.stderr)  # noqa: T201

        if self._observer is None or not self._observer.is_alive():
            self._observer = threading.Thread(target=look, name="spotbroker observe", daemon=True)
            self._observer.start()

    def tidy(self) -> int:
        """Delete old blobs of the running jobs that no snapshot needs any more; returns how many.

        A home that does not answer, or a snapshot in it that cannot be read, is left for the next round.
        """
        deleted = 0
        for row in self.world.store.jobs(active=True):
            if row.state is None or row.stopping:
                continue
            keep = int((row.task.get("checkpoint") or {}).get("keep") or 3)
            with contextlib.suppress(errors.BrokerError):
                home = self.world.home(row.home)
                deleted += garbage.collect(home, JobKeys(row.id), JobState.from_json(row.state), keep)
        return deleted

    def idle(self) -> bool:
        """Is there no job left that has not ended, and nothing that may turn up yet?"""
        return not self.world.store.jobs(active=True) and not self.awaits()

    def awaits(self) -> bool:
        """May a machine still turn up that came of a launch without an answer? Somebody must be there to end it."""
        return bool(self.world.store.unclear(self.world.clock() - STRAY))


def _workflow() -> Any:
    return _registered["workflow"]


_registered: dict[str, Any] = {}


def _register() -> None:
    """Register the one workflow, once per process. Its name and its loop must never change: recorded jobs replay it."""
    if _registered:
        return
    from dbos import DBOS

    @DBOS.workflow(name=WORKFLOW, max_recovery_attempts=None)
    async def job(data: dict[str, Any]) -> dict[str, Any]:
        engine, name = _current, str(data["job"])
        if engine is not None:
            engine.driving.add(name)
        try:
            while data["phase"] != "done":
                data = await DBOS.run_step_async({"name": data["phase"]}, _step, data)
        except asyncio.CancelledError:
            raise HandedOn from None
        finally:
            if engine is not None:
                engine.driving.discard(name)
        return data

    _registered["workflow"] = job


async def _settle() -> None:
    """Cancel what runs in this loop, and let whoever waits for it hear of its end.

    DBOS does the first too, but not the second (3.4): it stops its loop in the very round in which a workflow may have
    ended, and the thread that waits for that one waits for ever, and the process's exit with it.
    """
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.sleep(0)


async def _step(data: dict[str, Any]) -> dict[str, Any]:
    """Run one phase. Never raises: a phase that failed is tried again after a pause, with the state as it was."""
    engine = _current
    if engine is None:
        raise RuntimeError("no engine runs in this process")
    world = engine.world
    try:
        state = JobState.from_json(data)
    except NewerVersion as error:
        return await _left_alone(str(data["job"]), error, world)
    try:
        if state.phase == "watch":
            following = await watch(state, world, engine.watcher)
        else:
            following = await asyncio.to_thread(engine.phase, state)
        # The pause after a failed phase is no success of it: its errors count on.
        if not (state.phase == "watch" and state.not_before is not None and following.phase == state.then):
            following = following.to(following.phase, errors=0)
    except NewerVersion as error:
        return await _left_alone(state.job, error, world)
    except Closing:
        # Nothing is recorded: the next live broker runs this phase.
        await asyncio.Event().wait()
        raise
    except Exception as error:  # noqa: BLE001 - a raised step would end the workflow and orphan its machine
        following = await asyncio.to_thread(_failed, state, error, world)
    await asyncio.to_thread(_show, state, following, world)
    return following.to_json()


async def _left_alone(job: str, error: errors.ConfigError, world: World) -> NoReturn:
    """Hold a job that a newer version has driven without touching it: the next broker that knows it takes it over."""

    def say() -> None:
        world.store.event(job, "warning", f"left alone: {error}; {error.fix}", once="newer")
        world.store.update_job(job, message=str(error), fix=error.fix)

    print(f"spotbroker: {job} is left alone: {error}; {error.fix}", file=sys.stderr)  # noqa: T201
    await asyncio.to_thread(say)
    while True:
        await asyncio.sleep(3600.0)


def _failed(state: JobState, error: Exception, world: World) -> JobState:
    """The state after a phase that raised: the same phase later, or the end where it can never succeed."""
    import traceback

    text = f"{state.phase} failed: {type(error).__name__}: {error}"
    story = "".join(traceback.format_exception(error))[-4000:]
    try:
        world.store.event(state.job, "warning", text, generation=state.generation, once=text[:200], traceback=story)
    except Exception as other:  # noqa: BLE001 - it may be the store that failed, and then it fails here too
        print(f"spotbroker: {state.job}: {text}; nor could that be written down: {other}", file=sys.stderr)  # noqa: T201
    hopeless = isinstance(error, errors.ConfigError) or state.errors >= ERRORS_BEFORE_GIVING_UP
    if hopeless and state.phase == "pick" and state.live is None and state.outcome is None:
        code = error.exit_code if isinstance(error, errors.BrokerError) else 1
        fix = error.fix if isinstance(error, errors.BrokerError) else ""
        outcome = Outcome("error", code, str(error), fix)
        return state.to("retire" if state.retiring else "account", outcome=outcome, errors=0)
    pause = min(2.0 ** min(state.errors, 8), 120.0)
    if state.phase in ("pick", "launch"):
        again = world.clock() + pause
        return state.to("watch", not_before=again, then=state.phase, errors=state.errors + 1)
    time.sleep(pause)
    return state.to(state.phase, errors=state.errors + 1)


def _show(before: JobState, after: JobState, world: World) -> None:
    """Keep what people look at in step with the state. Losing it loses no money and no work."""
    try:
        narrate(before, after, world)
        row = world.store.job(after.job)
        # `account` has shown the end itself, and the job may have been taken up again since.
        if row.status not in ENDED and after.phase != "done":
            runs = after.live is not None and any(
                p.program_at is not None
                for p in world.store.placements(after.job)
                if p.generation == after.live.generation
            )
            told = {"status": status_of(after, row, runs), **verdict_of(after, row)}
            world.store.update_job(after.job, state=after.to_json(), **told)
    except Exception as error:  # noqa: BLE001 - the state itself is recorded by the engine
        print(f"spotbroker: {after.job}: {error}", file=sys.stderr)  # noqa: T201


# Brokers


@contextlib.contextmanager
def running(config: Config, *, adopts: bool = True) -> Iterator[Engine]:
    """A live broker in this process for as long as the block runs; nested and concurrent blocks share one.

    Raises ConfigError where this process runs one for another state folder.
    """
    global _current, _users  # noqa: PLW0603 - DBOS is one per process, so the broker is too
    with _guard:
        if _current is None:
            engine = Engine(config, adopts=adopts)
            _current = engine
            try:
                engine.start()
            except BaseException:
                _current = None
                raise
        elif _current.config.state != config.state or _current.config.database != config.database:
            raise errors.ConfigError(
                f"this process already runs a broker for {_current.config.state}",
                fix="use one state folder per process, or detach=True",
            )
        engine = _current
        _users += 1
    try:
        yield engine
    finally:
        with _guard:
            _users -= 1
            if _users == 0:
                try:
                    engine.close()
                finally:
                    _current = None
