"""Control groups of machines: one directory of the machine's name in every hierarchy of this computer (version 1)."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from functools import cache
from pathlib import Path

TOP = Path("/sys/fs/cgroup")
GONE_WITHIN = 10.0
# What docker lets a container use, and devices that may be made though not used. Never this computer's disks.
DEVICES = ("c *:* m", "b *:* m", *(f"c 1:{n} rwm" for n in (3, 5, 7, 8, 9)), "c 5:0 rwm", "c 5:1 rwm", "c 5:2 rwm")
DEVICES += ("c 136:* rwm", "c 10:200 rwm")


@cache
def hierarchies() -> tuple[tuple[str, str, str], ...]:
    """Directory below TOP, file system type and mount options of each hierarchy."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        place, (kind, _, options) = Path(left.split()[4]), right.split()[:3]
        if kind in ("cgroup", "cgroup2") and place.parent == TOP:
            words = [word for word in options.split(",") if word not in ("rw", "ro", "xattr", "nsdelegate")]
            if any(word.startswith("name=") for word in words):
                words.insert(0, "none")
            found.append((place.name, kind, ",".join(words) if kind == "cgroup" else ""))
    return tuple(found)


def missing() -> str:
    """Why there can be no groups here; empty where there can."""
    names = {name for name, _, _ in hierarchies()}
    if not {"memory", "devices", "pids"} <= names:
        return "machines need control groups of version 1, memory, devices and pids among them"
    if not os.access(TOP / "memory", os.W_OK) or os.statvfs(TOP / "memory").f_flag & os.ST_RDONLY:
        return "machines need control groups that can be written"
    return ""


def make(name: str, *, memory: int | None) -> list[Path]:
    """The groups of one machine. memory: its limit in bytes."""
    groups = []
    for hierarchy, _, _ in hierarchies():
        group = TOP / hierarchy / name
        group.mkdir()
        groups.append(group)
        if (group / "cpuset.cpus").exists():  # empty at first, and then nothing may join
            for file in ("cpuset.cpus", "cpuset.mems"):
                (group / file).write_text((group.parent / file).read_text())
            (group / "cgroup.clone_children").write_text("1")
        if (group / "devices.deny").exists():
            (group / "devices.deny").write_text("a")
            for rule in DEVICES:
                (group / "devices.allow").write_text(rule)
        if memory and (group / "memory.limit_in_bytes").exists():
            (group / "memory.limit_in_bytes").write_text(str(memory))
    return groups


def names(prefix: str) -> set[str]:
    """The machines whose groups are there."""
    return {group.name for name, _, _ in hierarchies() for group in (TOP / name).glob(prefix + "*")}


def processes(name: str) -> set[int]:
    found: set[int] = set()
    for hierarchy, _, _ in hierarchies():
        for file in (TOP / hierarchy / name).rglob("cgroup.procs"):
            with contextlib.suppress(OSError):
                found |= {int(pid) for pid in file.read_text().split()}
    return found


def remove(name: str) -> None:
    """Kill all that is in a machine's groups, and the groups. OSError where they do not go."""
    until = time.monotonic() + GONE_WITHIN
    while True:
        for pid in processes(name) - {0, os.getpid()}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            for hierarchy, _, _ in hierarchies():
                _remove(TOP / hierarchy / name)
        except OSError:
            # A killed process counts until it is reaped.
            if time.monotonic() > until:
                raise
            time.sleep(0.005)
        else:
            return


def _remove(group: Path) -> None:
    if group.is_dir():
        for below in group.iterdir():
            if below.is_dir():
                _remove(below)
        with contextlib.suppress(FileNotFoundError):
            group.rmdir()
