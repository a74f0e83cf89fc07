"""The process that watches over one machine: starts it, carries out orders on time, ends all of it.

Run by `broker_local.provider` as a process of its own, which outlives the broker. It belongs to no terminal, holds
none of the broker's files and imports the standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from broker_local import processes
from broker_local.machine import FAILED, PREEMPTED, SELF, Machine

POLL = 0.5  # seconds between two looks at the folder; a signal makes it look at once
PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>


class Supervisor:
    """Watches over one machine until it has ended."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.first: subprocess.Popen[bytes] | None = None
        self.exit: int | None = None
        self.warned = False

    def run(self, env: Mapping[str, str]) -> None:
        """Start the machine and stay until its end is written down."""
        wake = _wakeable()
        cause, why = self.machine.cause(time.time()), "ordered before it started"
        if cause is None:
            self._boot(env)
        while cause is None:
            with contextlib.suppress(InterruptedError):
                select.select([wake], [], [], self._until_due())
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 4096)
            self._reap()
            self._warn()
            cause, why = self.machine.cause(time.time()), "ordered"
            if cause is None and self.exit is not None:
                cause, why = self._after_first()
        while not self.machine.bury(cause, why, below=os.getpid()):
            self._reap()

    def _boot(self, env: Mapping[str, str]) -> None:
        for name in ("SPOTBROKER_DIR", "TMPDIR"):
            folder = Path(env[name])
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if folder.stat().st_uid != os.getuid():
                raise PermissionError(f"{folder} belongs to somebody else")
        console = (self.machine.folder / "console.log").open("ab")
        with console:
            self.first = subprocess.Popen(
                ["/bin/sh", str(self.machine.folder / "user-data")],
                cwd=self.machine.disk,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _until_due(self) -> float:
        """Seconds to sleep: to the next look, or to the moment at which the machine is taken back."""
        reclaim = self.machine.read("reclaim.json")
        return min(POLL, max(0.0, reclaim["ends_at"] - time.time())) if reclaim else POLL

    def _reap(self) -> None:
        for pid, code in processes.reap():
            if self.first is not None and pid == self.first.pid:
                self.exit = self.first.returncode = code

    def _warn(self) -> None:
        """Where the provider gives its warning by signal, it goes to the machine's first process, once."""
        if self.warned or self.first is None or self.exit is not None:
            return
        reclaim = self.machine.read("reclaim.json")
        if reclaim and reclaim.get("sigterm"):
            self.warned = True
            self.first.send_signal(signal.SIGTERM)

    def _after_first(self) -> tuple[str | None, str]:
        """First process ended: a failure ends the machine as it would a container, success waits for the rest."""
        if self.warned:
            return PREEMPTED, "its first process heeded the warning"
        if self.exit:
            return FAILED, f"its first process ended with {self.exit}"
        if processes.has_children() or processes.of_machine(self.machine.id, below=os.getpid()):
            return None, ""
        return SELF, "its last process ended"


def _wakeable() -> int:
    """A file descriptor that turns readable at a signal."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    return reading


def _detach() -> None:
    """Leave the starter: no terminal, a session of our own, default signals, no parent but init."""
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    os.umask(0o077)
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which the machine's processes would inherit
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def main(folder: str) -> None:
    """Watch over the machine in `folder`, unless somebody does or did so already."""
    machine = Machine(Path(folder))
    _detach()
    me = processes.look(os.getpid())
    assert me is not None
    if machine.write_once("supervisor.json", {"pid": me.pid, "start": me.start}):
        Supervisor(machine).run(machine.read("env.json") or {})
