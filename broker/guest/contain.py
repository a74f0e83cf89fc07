"""Containment: every process of the job, wherever it hid, can be found and killed.

Three nets, used together: cgroups where one is writable (v2, and v1's memory controller, whose counters also tell
out-of-memory kills); descent, with the guest as subreaper so that orphans come to it; and a mark in the environment.
Other systems than Linux have the last two only, through `ps`.

Also runs inside the task's container, beside `runner`, with that image's Python: standard library, from 3.8 on.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

LINUX = sys.platform.startswith("linux")
PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>
VARIABLE = "BROKER_PLACEMENT"
# Joins the groups named before `--`, then becomes the program; a group that vanished is no reason not to start. What
# the program writes is readable as a shell's of its own would make it, whatever the guest's own umask is.
JOIN = 'umask 022; while [ "$1" != -- ]; do { echo $$ >"$1/cgroup.procs"; } 2>/dev/null; shift; done; shift; exec "$@"'


@dataclass
class Containment:
    """The job's processes on this machine. spared: process ids of the guest's own children, with their descendants.
    cut_short: some orphan collected since this was last cleared had died of a signal.
    """

    mark: str
    groups: list[Path] = field(default_factory=list)
    spared: set[int] = field(default_factory=set)
    subreaper: bool = False
    cut_short: bool = False

    @classmethod
    def open(cls, mark: str) -> Containment:
        """Make this process the subreaper and make what groups can be made."""
        made = cls(mark)
        if LINUX:
            made.subreaper = ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
            name = "spotbroker-" + re.sub(r"[^A-Za-z0-9_.-]", "-", mark)
            made.groups = [group for parent in _own_groups() if (group := _make(parent, f"{name}-{os.getpid()}"))]
        return made

    def command(self, argv: list[str]) -> list[str]:
        """The command that runs `argv` inside the groups."""
        for group in self.groups:
            with contextlib.suppress(OSError):
                group.mkdir(exist_ok=True)
        return ["/bin/sh", "-c", JOIN, "sh", *map(str, self.groups), "--", *argv]

    def members(self) -> set[int]:
        """Every living process of the job."""
        grouped = {pid for group in self.groups for pid in _pids_in(group)}
        parents = _parents()
        found = grouped & parents.keys()
        spared = _below(parents, self.spared) | self.spared
        if self.subreaper:
            found |= _below(parents, {os.getpid()})
        found |= {pid for pid in parents if pid not in found and self._marked(pid)}
        return found - spared - {os.getpid()}

    def kill(self, patience: float = 30.0) -> set[int]:
        """Kill everything, again and again until nothing is left; what will not die within `patience` is returned."""
        until = time.monotonic() + patience
        quiet = 0
        while True:
            for group in self.groups:
                with contextlib.suppress(OSError):
                    (group / "cgroup.kill").write_text("1")
            left = self.members()
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            self.reap()
            quiet = 0 if left else quiet + 1
            # One empty look may have fallen between a fork and the death of its parent.
            if quiet == 2 or time.monotonic() > until:
                return left
            if left:
                time.sleep(0.01)

    def reap(self, keep: int | None = None) -> None:
        """Collect dead orphans, but not `keep`, whose exit somebody waits for. Cheap where nothing has died."""
        while LINUX:
            try:
                dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if dead is None:
                return
            if dead.si_pid == keep:
                for pid in _children():
                    if pid != keep:
                        self._collect(pid)
                return
            self._collect(dead.si_pid)

    def _collect(self, pid: int) -> None:
        with contextlib.suppress(ChildProcessError):
            collected, status = os.waitpid(pid, os.WNOHANG)
            if collected and pid not in self.spared:
                self.cut_short |= os.WIFSIGNALED(status)
            elif collected:
                self.spared.discard(pid)

    def oom_kills(self) -> int | None:
        """Processes the kernel has killed for memory in our groups, or around them; None where nobody counts."""
        for groups in (self.groups, list(_own_groups())):
            counts = [count for group in groups if (count := _oom_count(group)) is not None]
            if counts:
                return max(counts)
        return None

    def close(self) -> None:
        for group in self.groups:
            with contextlib.suppress(OSError):
                group.rmdir()

    def _marked(self, pid: int) -> bool:
        if not LINUX:
            return pid in _marked_by_ps(f"{VARIABLE}={self.mark}")
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False
        return f"{VARIABLE}={self.mark}".encode() in environ.split(b"\0")


def _own_groups() -> Iterator[Path]:
    """The cgroup folders this process lies in, of the hierarchies that matter: v2's only one, v1's memory."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        wanted = [
            m
            for m in mounts
            if (m[2] == "cgroup2" and number == "0")
            or (m[2] == "cgroup" and "memory" in controllers.split(",") and "memory" in m[3].split(","))
        ]
        if wanted:
            folder = Path(wanted[0][1]) / path.lstrip("/")
            # In a container without a cgroup namespace the path is the host's, and the mount is already ours.
            yield folder if folder.is_dir() else Path(wanted[0][1])


def _make(parent: Path, name: str) -> Path | None:
    for old in parent.glob("spotbroker-*"):
        # What a killed guest has left. A living one's may be empty just now: it is between two programs.
        if not Path("/proc", old.name.rpartition("-")[2]).exists():
            with contextlib.suppress(OSError):
                old.rmdir()
    group = parent / name
    try:
        group.mkdir(exist_ok=True)
    except OSError:
        return None
    if os.access(group / "cgroup.procs", os.W_OK):
        return group
    with contextlib.suppress(OSError):
        group.rmdir()
    return None


def _oom_count(group: Path) -> int | None:
    for name in ("memory.events", "memory.oom_control"):
        try:
            text = (group / name).read_text()
        except OSError:
            continue
        found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
        if found:
            return int(found[1])
    return None


def _pids_in(group: Path) -> set[int]:
    pids: set[int] = set()
    for file in group.rglob("cgroup.procs"):
        with contextlib.suppress(OSError):
            pids |= {int(pid) for pid in file.read_text().split()}
    return pids


def _parents() -> dict[int, int]:
    """Process -> its parent, of all that live (a zombie is dead)."""
    if not LINUX:
        return _parents_by_ps()
    found: dict[int, int] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - names only, thousands of them
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError, IndexError):
            # The name in parentheses may hold anything, so count from its end: state, parent.
            state, parent = Path(f"/proc/{entry}/stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state not in "ZX":
                found[int(entry)] = int(parent)
    return found


def _below(parents: dict[int, int], roots: set[int]) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    todo = list(roots)
    while todo:
        for pid in children.get(todo.pop(), ()):
            if pid not in found:
                found.add(pid)
                todo.append(pid)
    return found


def _children() -> list[int]:
    """Our direct children, the dead ones included."""
    if not LINUX:
        return []
    me, found = str(os.getpid()), []
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if entry.isdigit():
            with contextlib.suppress(OSError, IndexError):
                stat = Path(f"/proc/{entry}/stat").read_text(errors="replace").rpartition(")")[2].split()
                if stat[1] == me:
                    found.append(int(entry))
    return found


def _parents_by_ps() -> dict[int, int]:
    done = subprocess.run(["ps", "-axo", "pid=,ppid=,state="], capture_output=True, text=True, check=False)
    rows = [line.split() for line in done.stdout.splitlines()]
    return {int(r[0]): int(r[1]) for r in rows if len(r) == 3 and not r[2].startswith("Z")}


def _marked_by_ps(mark: str) -> set[int]:
    done = subprocess.run(["ps", "-axEwwo", "pid=,command="], capture_output=True, text=True, check=False)
    return {int(row.split()[0]) for row in done.stdout.splitlines() if mark in row.split()}
