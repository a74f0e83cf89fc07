"""Finding and killing the processes of one machine. Standard library only.

A process belongs to a machine when the mark `SPOTBROKER_MACHINE=<id>` is in its environment, which `setsid` and double
forks do not shed, or when it descends from the machine's supervisor, which as a subreaper also inherits orphans.
A process is told from a later one with the same number by the moment it started.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MARK = "SPOTBROKER_MACHINE"
PROC = Path("/proc")
LINUX = sys.platform.startswith("linux")
LOOK_AGAIN = 0.02  # seconds between two looks while processes are dying


@dataclass(frozen=True, slots=True)
class Process:
    """One process. start tells it from a later owner of its number: boot and moment, opaque."""

    pid: int
    parent: int
    start: str
    zombie: bool = False


def look(pid: int) -> Process | None:
    """The process of that number now; None where there is none."""
    if not LINUX:
        return next(iter(_ps("-p", str(pid))), None)
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The command in parentheses may hold spaces and parentheses itself: split behind the last one.
    fields = text.rpartition(")")[2].split()
    return Process(pid, int(fields[1]), f"{_boot()}:{fields[19]}", fields[0] in "ZX")


def alive(pid: int, start: str) -> bool:
    """Whether that very process, not a later one of its number, still runs."""
    process = look(pid)
    return process is not None and process.start == start and not process.zombie


def of_machine(machine: str, *, below: int | None = None) -> list[Process]:
    """The living processes of a machine: marked ones, descendants of those, and descendants of `below`."""
    everything = {process.pid: process for process in _all()}
    ours = {pid for pid in everything if _marked(pid, machine)}
    if below is not None:
        ours.add(below)
    grown = True
    while grown:
        more = {pid for pid, process in everything.items() if process.parent in ours and pid not in ours}
        ours |= more
        grown = bool(more)
    ours -= {os.getpid(), below}
    return [everything[pid] for pid in ours if pid in everything and not everything[pid].zombie]


def send(process: Process, number: int) -> bool:
    """Signal that very process; False where it is gone already. Never hits a later owner of its number."""
    if not hasattr(os, "pidfd_open"):
        if not alive(process.pid, process.start):
            return False
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            return False
        return True
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        if not alive(process.pid, process.start):
            return False
        signal.pidfd_send_signal(handle, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)


def kill_all(machine: str, *, below: int | None = None, patience: float = 5.0) -> list[Process]:
    """KILL every process of a machine until none is left; return what still stands after `patience` seconds."""
    deadline = time.monotonic() + patience
    while left := of_machine(machine, below=below):
        for process in left:
            send(process, signal.SIGKILL)
        if below is not None:
            reap()
        if time.monotonic() > deadline:
            return left
        time.sleep(LOOK_AGAIN)
    return []


def reap() -> list[tuple[int, int]]:
    """Collect every ended child: (pid, exit code; minus the signal's number where one ended it)."""
    ended = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if pid == 0:
            break
        ended.append((pid, os.waitstatus_to_exitcode(status)))
    return ended


def has_children() -> bool:
    """Whether any child of this process is left, ended or not."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


@functools.cache
def _boot() -> str:
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:8]
    except OSError:
        return ""


def _all() -> Iterator[Process]:
    if not LINUX:
        yield from _ps("-ax")
        return
    for name in os.listdir(PROC):  # noqa: PTH208 - hundreds of entries, many times a second while killing
        if name.isdigit() and (process := look(int(name))) is not None:
            yield process


def _marked(pid: int, machine: str) -> bool:
    mark = f"{MARK}={machine}"
    if not LINUX:
        shown = subprocess.run(["ps", "-E", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, check=False)
        return mark.encode() in shown.stdout.split()
    try:
        return mark.encode() in (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _ps(*which: str) -> Iterator[Process]:
    """macOS has no /proc: the same by `ps`."""
    shown = subprocess.run(
        ["ps", *which, "-o", "pid=,ppid=,stat=,lstart="], capture_output=True, text=True, check=False
    ).stdout
    for line in shown.splitlines():
        pid, parent, state, start = line.split(None, 3)
        yield Process(int(pid), int(parent), start, state.startswith("Z"))
