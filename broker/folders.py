"""Folders on a machine as a task names them: `~/x`, `/x`, or relative to the workdir; and what is wrong with them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from broker.document import Problem

HOME = PurePosixPath("/root")
"""What `~` is on a rented machine."""
WORK = PurePosixPath("/workdir")
"""Stands for the workdir, wherever that is."""
OWN = PurePosixPath("/var/lib/spotbroker")
SYSTEM = tuple(
    map(PurePosixPath, ("/proc", "/sys", "/dev", "/run", "/etc", "/bin", "/sbin", "/lib", "/lib64", "/boot"))
)
MEMORY = PurePosixPath("/dev/shm")  # noqa: S108 - a folder like any other, and fast
WHOLE = {PurePosixPath(name) for name in ("/", "/root", "/home", "/usr", "/var", "/opt", "/tmp", "/mnt", "/srv")}  # noqa: S108
LITERAL = "write the path itself, relative to the workdir"
VARIABLE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)")


def place(name: str) -> PurePosixPath:
    """Where a name leads, so that two can be compared."""
    path = PurePosixPath(name)
    if path.parts[:1] == ("~",):
        return HOME.joinpath(*path.parts[1:])
    return WORK / path


def cache_problems(names: Sequence[str], checkpoint: str | None) -> Iterator[Problem]:
    """What is wrong with the folders of `cache`. checkpoint: the folder of `checkpoint.path`, None without one."""
    sound: dict[PurePosixPath, str] = {}
    for number, name in enumerate(names):
        field = f"cache.{number}"
        if (wrong := _wrong(name)) is not None:
            yield Problem(field, *wrong)
            continue
        here = place(name)
        if checkpoint is not None and _overlap(here, kept := place(checkpoint)):
            how = "is" if here == kept else "holds" if kept.is_relative_to(here) else "lies in"
            fix = "keep them apart: what lies in checkpoint.path is kept by snapshots, and a cache may be lost"
            yield Problem(field, f"{name} {how} the checkpoint's folder {checkpoint}", fix)
        for other, given in sound.items():
            if here == other:
                yield Problem(field, f"{name} is given twice", "keep one of them")
            elif _overlap(here, other):
                inner, outer = (name, given) if here.is_relative_to(other) else (given, name)
                yield Problem(field, f"{inner} lies in {outer}, which is kept too", "keep one of them")
        sound.setdefault(here, name)


def checkpoint_problem(path: str) -> tuple[str, str] | None:
    """Message and fix for a checkpoint's folder that could never be one; None for any other."""
    here = PurePosixPath(path)
    if found := VARIABLE.search(path):
        said = (
            "is set by the broker itself" if found[1].startswith("BROKER_") else "is filled in only as ${NAME} of envs"
        )
        return f"${found[1]} in {path!r} {said}: the program would save elsewhere", f"{LITERAL}, or ~/…"
    owner = "the broker" if here.is_relative_to(OWN) else "the system"
    system = any(here.is_relative_to(place) for place in (OWN, *SYSTEM)) and not here.is_relative_to(MEMORY)
    return (f"{path} lies in a folder of {owner}'s own", "name one of the program's own") if system else None


def _wrong(name: str) -> tuple[str, str] | None:
    """Message and fix for a name that cannot be a cache folder; None for one that can."""
    instead = "name the folder that a program downloads to, such as ~/.cache/huggingface"
    path = PurePosixPath(name)
    if found := VARIABLE.match(name):
        ours = found[1].startswith("BROKER_")
        said = "is the broker's own folder" if ours else "is filled in only as ${NAME} of the task's envs"
        return f"{name} {said}", instead if ours else "write the folder itself"
    if not name.strip() or "\0" in name or not path.parts or ".." in path.parts:
        return f"must be a folder, without .., not {name!r}", instead
    if name.startswith("~") and path.parts[0] != "~":
        return f"must be a folder below ~/, not {name!r}", instead
    if path.parts == ("~",) or path in WHOLE:
        return f"{name} is too much: all that a program writes would be kept", instead
    if path == OWN or path.is_relative_to(OWN):
        return f"{OWN} is the broker's own folder", instead
    if any(path.is_relative_to(system) for system in SYSTEM):
        return f"{name} is the system's own", instead
    return None


def _overlap(one: PurePosixPath, other: PurePosixPath) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)
