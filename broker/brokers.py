"""The brokers of an installation: one that stands (`up`), one in the background, one round of one (`tick`).

What a broker is in one process is `broker.engine`'s.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from broker import errors, observing
from broker.config import Config
from broker.engine import Engine, running
from broker.locks import AdvisoryLock, FileLock, gate_of

BACKGROUND_IDLE = 5.0


def alive(config: Config) -> bool:
    """Is there a live broker that takes new jobs?"""
    return not gate_of(config).free()


@contextlib.contextmanager
def running_to_the_end(config: Config) -> Iterator[Engine]:
    """As `running`; what may still turn up when the block ends, and what is kept, is left to a background broker."""
    awaits = False
    with running(config) as engine:
        yield engine
        awaits = engine.awaits() or any(row.kept for row in engine.world.store.jobs(active=True))
    if awaits:
        ensure_background(config)


def ensure_background(config: Config, *, timeout: float = 60.0) -> None:
    """Start a broker in the background unless one is alive; returns once it is. Its words go to `up.log`."""
    if alive(config):
        return
    config.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    log = config.state / "up.log"
    environment = {**os.environ, "SPOTBROKER_STATE": str(config.state), "SPOTBROKER_CONFIG": str(config.file)}
    with log.open("a") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "broker", "up", "--until-idle"],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            cwd="/",
            env=environment,
            start_new_session=True,
        )
    deadline = time.monotonic() + timeout
    while not alive(config):
        if process.poll() is not None and not alive(config):
            raise errors.BrokerError(f"the background broker ended at once; see {log}", fix="broker up")
        if time.monotonic() > deadline:
            raise errors.BrokerError(f"the background broker did not start within {timeout:.0f} s; see {log}")
        time.sleep(0.1)


def up(
    config: Config,
    *,
    until_idle: bool = False,
    on_line: Callable[[str], None] = print,
    beside: Callable[[threading.Event], None] | None = None,
) -> None:
    """Drive all jobs until SIGINT or SIGTERM, or with `until_idle` until there is nothing left to drive.

    One per installation: a second one waits until it can take the first one's place; with `until_idle` it says so and
    returns. Jobs go on running when it ends. beside: what else this broker does, in a thread of its own, until the
    event that it is given is set.
    """
    gate, ended = gate_of(config), threading.Event()

    def end(_signal: int, _frame: FrameType | None) -> None:
        ended.set()

    before = [(which, signal.signal(which, end)) for which in (signal.SIGINT, signal.SIGTERM)]
    try:
        with contextlib.ExitStack() as leaving:
            if beside is not None:
                also = threading.Thread(target=beside, args=(ended,), name="spotbroker beside", daemon=True)
                also.start()
                leaving.callback(also.join, 30.0)
                leaving.callback(ended.set)
            if _taken(gate, ended, on_line, wait=not until_idle):
                _drive_all(config, gate, ended, on_line, until_idle=until_idle)
    finally:
        gate.release()
        for which, handler in before:
            signal.signal(which, handler)


def _taken(
    gate: FileLock | AdvisoryLock, ended: threading.Event, on_line: Callable[[str], None], *, wait: bool
) -> bool:  # fmt: skip
    """Take the gate, at once or when the broker that holds it ends; False where this one is not to be."""
    if _take(gate):
        return True
    if not wait:
        on_line("a broker is already up here; it drives all jobs")
        return False
    on_line("a broker is already up here and drives all jobs; this one takes its place when it ends")
    while not ended.wait(1.0):
        if gate.take():
            return True
    return False


def _drive_all(
    config: Config,
    gate: FileLock | AdvisoryLock,
    ended: threading.Event,
    on_line: Callable[[str], None],
    *,
    until_idle: bool,
) -> None:
    with running(config) as engine:
        on_line(f"broker up, state in {config.state}")
        idle_since: float | None = None
        while not ended.wait(0.5):
            idle_since = (idle_since or time.monotonic()) if engine.idle() else None
            if until_idle and idle_since is not None and time.monotonic() - idle_since > BACKGROUND_IDLE:
                on_line("nothing left to drive")
                break
        # Taken jobs are handed over by the locks; the gate goes first so that the next one can start at once.
        gate.release()


def _take(gate: FileLock | AdvisoryLock) -> bool:
    """Take the gate; whoever only looks whether it is free holds it for a moment, too."""
    for _ in range(3):
        if gate.take():
            return True
        time.sleep(0.1)
    return False


def tick(config: Config, *, wait: float = 30.0) -> None:
    """One round for cron: adopt and claim all jobs, let each act on what its providers say now, sweep, and return."""
    with running(config) as engine:
        engine.claim()
        engine.adopt()
        deadline = time.monotonic() + wait
        while time.monotonic() < deadline:
            active = {row.id for row in engine.world.store.jobs(active=True)}
            if engine.watcher.settled(active):
                break
            time.sleep(0.2)
        engine.sweep()
        observing.observe(engine.world)
