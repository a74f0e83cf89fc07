"""Entries of a checkpoint folder: which paths are judged by themselves, and what their names say.

An entry is what lies at the folder's top, file or directory, and is taken whole or not at all. A directory that only
holds checkpoints, such as Lightning's `version_0/` or `run1/checkpoints/`, is a *container*: a log in it that is
written all the time must not keep the checkpoints beside it from being complete, so its members are entries. An
entry's name is its POSIX path relative to the checkpoint folder: `last.pt`, `version_0/checkpoints/step=5.ckpt`.
Standard library only: this runs on the rented machine.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path

from broker.formats import METADATA, has_format

UNFINISHED = ("tmp-*", "*.tmp", "*.part", "*.partial", "*.incomplete", "*_tmp", "*.orbax-checkpoint-tmp*", ".*")
NUMBERED = re.compile(r"checkpoint-\d+$")
NUMBER = re.compile(r"^(\d+)$")
SURE = (
    re.compile(r"step[-_=.]?(\d+)", re.IGNORECASE),
    re.compile(r"(?:checkpoint|ckpt|iter|iteration)[-_=.]?(\d+)", re.IGNORECASE),
)
EPOCH = re.compile(r"(?:epoch|(?:^|[^a-z])ep)[-_=.]?\d", re.IGNORECASE)
"""An epoch tells one checkpoint from the next, but it is no step: it is never compared with one."""
STEP = (*SURE, re.compile(r"(?:model|state|save)[-_=.](\d+)(?!\d|-of-)", re.IGNORECASE), NUMBER)
DEEPEST = 4
"""How many containers may lie within each other."""
EVIDENCE_BELOW = 3
"""How many levels below a directory a name with a step or an epoch may lie."""
BESIDE = {".txt", ".json", ".jsonl", ".yaml", ".yml", ".csv", ".log", ".md", ".html", ".png", ".jpg"}
"""Files that programs put beside a checkpoint's own, such as `step-500.json`: no checkpoints by themselves."""


def step_of(name: str) -> int | None:
    """The training step in a checkpoint's name, such as `checkpoint-1000`, `epoch=9-step=950.ckpt`, `iter_0000100`.

    Of a path the last part counts.
    """
    name = name.rpartition("/")[2]
    for pattern in STEP:
        if found := pattern.search(name):
            return int(found[1])
    return None


def newest_step(names: Iterable[str]) -> int | None:
    """The highest step among checkpoint names, by number; never by text order or time. None where none carries one."""
    return max((step for name in names if (step := step_of(name)) is not None), default=None)


def unfinished(name: str) -> bool:
    """Does an entry's name say that it is not finished?"""
    name = name.rpartition("/")[2]
    # DCP's own `.metadata` is its last word, not a temporary file.
    return not METADATA.match(name) and any(fnmatch.fnmatchcase(name, pattern) for pattern in UNFINISHED)


def kind_of(name: str) -> str:
    """What stays the same in the names of one program's checkpoints: all but the numbers."""
    return re.sub(r"\d+", "#", name)


def entry_of(path: str, containers: Collection[str]) -> str:
    """The entry that a path belongs to: its shortest beginning that is no container. A container gives itself."""
    end = path.find("/")
    while end != -1 and path[:end] in containers:
        end = path.find("/", end + 1)
    return path if end == -1 else path[:end]


def containers_of(entries: Iterable[str]) -> set[str]:
    """The directories that these entries lie in; none for the names of a folder's top."""
    found: set[str] = set()
    for name in entries:
        while (name := name.rpartition("/")[0]) and name not in found:
            found.add(name)
    return found


def holds_checkpoints(folder: Path, *, once: bool = False) -> bool:
    """Is this directory a container: nameless itself, of no known format, with checkpoints of their own below it?

    once: it was one before, and stays one when its checkpoints have gone for a moment. FileNotFoundError where it has
    gone.
    """
    if step_of(folder.name) is not None or EPOCH.search(folder.name):
        return False
    names = _listed(folder)
    return not _is_whole(names) and (once or _steps_below(folder, names, EVIDENCE_BELOW))


def _is_whole(names: Collection[str]) -> bool:
    """Is a directory with these names in it of a known format, so that all of it belongs together?"""
    # A Trainer's output folder gets a `trainer_state.json` of its own at the end, beside its checkpoints.
    trainers = "trainer_state.json" in names and any(NUMBERED.match(name) for name in names)
    return has_format(names) and not trainers


def _steps_below(folder: Path, names: dict[str, bool], levels: int) -> bool:
    if any(_is_checkpoint(name, is_dir) for name, is_dir in names.items()):
        return True
    if levels == 1:
        return False
    for name, is_dir in names.items():
        if is_dir and not name.startswith("."):
            try:
                below = _listed(folder / name)
            except (FileNotFoundError, NotADirectoryError):
                continue
            if not _is_whole(below) and _steps_below(folder / name, below, levels - 1):
                return True
    return False


def _is_checkpoint(name: str, is_dir: bool) -> bool:
    """Does the name carry a step or an epoch for certain? `model_1.safetensors` may be a part of one checkpoint."""
    if name.startswith(".") or (not is_dir and os.path.splitext(name)[1].lower() in BESIDE):  # noqa: PTH122 - a name
        return False
    return any(pattern.search(name) for pattern in (*SURE, EPOCH)) or (is_dir and NUMBER.match(name) is not None)


def _listed(folder: Path) -> dict[str, bool]:
    """Name -> is it a directory; without links."""
    with os.scandir(folder) as members:
        return {member.name: member.is_dir(follow_symlinks=False) for member in members if not member.is_symlink()}
