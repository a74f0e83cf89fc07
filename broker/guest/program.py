"""`Program`: the job's setup or run script as a contained process, its output in one pipe.

Also runs inside the task's container, beside `runner`, with that image's Python: standard library, from 3.8 on.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from broker.guest.contain import Containment

CHUNK = 65536
SHELLS = {"bash", "dash", "sh", "busybox"}
STRAGGLERS = 2.0  # seconds for what left the script's group, once the group has ended after SIGTERM


@dataclass(frozen=True)
class Exit:
    """How a process ended, as its parent read it. code: the shell's number, 128 + signal for a signal.

    oom: how many processes the kernel killed for memory meanwhile. at: seconds since the epoch, this machine's clock.
    after_term: reaped only after our SIGTERM. forced: something of it died of a signal, as far as can be seen, so what
    it was writing may be cut. seconds: how long it ran.
    """

    code: int
    signal: int | None
    oom: int
    at: float
    after_term: bool
    forced: bool
    seconds: float


class Program:
    """One run of a script. Started by the constructor; `poll`, `terminate` and `kill` are called by one thread."""

    def __init__(
        self,
        script: Path,
        *,
        cwd: Path,
        env: Mapping[bytes, bytes],
        contain: Containment,
        output: Callable[[bytes], None],
    ) -> None:
        self.contain = contain
        self.started = time.monotonic()
        self.started_at = time.time()
        self.terminated_at: float | None = None
        self.exit: Exit | None = None
        self._stragglers_since: float | None = None
        self._shell = False
        contain.cut_short = False
        self._oom = contain.oom_kills()
        self._process = subprocess.Popen(
            contain.command([shutil.which("bash") or "/bin/sh", str(script)]),
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, args=(output,), name="output", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def steady(self) -> bool:
        """Does it run, with nothing having asked for its end? Then what it has closed it has closed by itself.

        From any thread: it looks without reaping.
        """
        if self.terminated_at is not None or self.exit is not None:
            return False
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False

    def poll(self) -> Exit | None:
        """How it ended; None while it runs. Once it has ended nothing of it is left alive.

        The script's own end is the program's, and what it leaves behind is killed. After SIGTERM its whole group
        counts: a shell dies of the signal at once while what it runs still saves.
        """
        self.contain.reap(keep=self.pid)
        if self.exit is None and self._process.poll() is not None:
            if self.terminated_at is None:
                self._close(after_term=False)
            elif not self._lingers():
                self._close(after_term=True)
        return self.exit

    def wait(self, seconds: float) -> Exit | None:
        """Like `poll`, but stays up to `seconds` for the end."""
        if self.exit is None:
            if self._process.returncode is not None:
                time.sleep(max(0.0, seconds))
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(max(0.0, seconds))
        return self.poll()

    def terminate(self) -> None:
        """Ask for the end, once: SIGTERM to the script's group, unless it has ended already."""
        if self.poll() is None and self.terminated_at is None:
            self.terminated_at = time.monotonic()
            with contextlib.suppress(OSError):
                self._shell = os.path.basename(os.readlink(f"/proc/{self.pid}/exe")) in SHELLS  # noqa: PTH115, PTH119
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGTERM)

    def kill(self) -> Exit:
        """End it now, with everything it started."""
        if self.poll() is None:
            self.terminated_at = self.terminated_at or time.monotonic()
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)
                self._process.wait()
            self._close(after_term=True, killed=True)
        assert self.exit is not None
        return self.exit

    def _lingers(self) -> bool:
        """Is any of the script's group alive, or were those outside it asked to end just now?"""
        members = self.contain.members()
        if not members:
            return False
        now = time.monotonic()
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(pid) == self.pid:
                    return True
        if self._stragglers_since is None:
            self._stragglers_since = now
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        return now - self._stragglers_since < STRAGGLERS

    def _close(self, *, after_term: bool, killed: bool = False) -> None:
        status = self._process.returncode
        # A shell that died of our SIGTERM says nothing of what it ran; that has come to us as an orphan.
        by_signal = status < 0 and not (after_term and status == -signal.SIGTERM and self._shell)
        forced = killed or by_signal or self.contain.cut_short or (after_term and not self.contain.subreaper)
        before, now = self._oom, self.contain.oom_kills()
        self.contain.kill()
        self._reader.join(5.0)
        self.exit = Exit(
            code=status if status >= 0 else 128 - status,
            signal=-status if status < 0 else None,
            oom=max(0, now - before) if now is not None and before is not None else 0,
            at=time.time(),
            after_term=after_term,
            forced=forced,
            seconds=time.monotonic() - self.started,
        )

    def _read(self, output: Callable[[bytes], None]) -> None:
        stream = self._process.stdout
        assert stream is not None
        while chunk := os.read(stream.fileno(), CHUNK):
            output(chunk)
        stream.close()
