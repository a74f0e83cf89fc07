"""What in a checkpoint folder is complete, judged from outside the program that writes it.

Each entry (`entries.py`: what lies at the folder's top, or in a directory that only holds checkpoints), file or
directory, is judged by itself, by the first of these that applies:

========== ===========================================================================================
unfinished its name says so (`tmp-checkpoint-9`, `x.part`, a leading dot …): never taken
fault      a member whose format is known is cut or empty: not taken
marker     the task's own glob matches a member, and nothing in the entry is newer than that member
hf         a Hugging Face Trainer's checkpoint with all it needs to be resumed from
dcp        torch.distributed.checkpoint: `.metadata`, newer than all else, and the shards that it names
orbax      an Orbax checkpoint that was committed
torch, zip a file that ends as a zip archive must (torch.save, Lightning, numpy.savez)
safetensors a file whose header accounts for every byte of it
renamed    it lay here under an unfinished name before, or replaced its predecessor by a rename
quiet      size, modification time and inode have not changed for `quiet` seconds
closed     a file that no process has open for writing, while the program runs undisturbed (Linux)
========== ===========================================================================================

A link to an entry that is not complete waits for it, and so does a small file that names one (`latest`): a program that
finds it alone would begin anew, and some do so without a word.

Nothing here reads file contents beyond headers, directories and those small files, and a member is looked into again
only after its stat has changed. Standard library only: this runs on the rented machine.
"""

from __future__ import annotations

import fnmatch
import json
import os
import posixpath
import re
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from broker.entries import DEEPEST, NUMBERED, UNFINISHED, entry_of, holds_checkpoints, unfinished
from broker.formats import (
    METADATA,
    ORBAX_TMP,
    SHARD,
    WEIGHTS,
    Finding,
    dcp_fault,
    dcp_settled,
    inspect,
    is_orbax,
    orbax_fault,
    shards_of,
)
from broker.pointers import Pointers
from broker.writers import open_for_writing

NAMED_UNFINISHED = "its name says it is not finished"
TEMPORARY = (*UNFINISHED[:-1], ".~*")
TRAINER = re.compile(r"(optimizer\.pt|scheduler\.pt|scaler\.pt|training_args\.bin|rng_state.*\.pth)$")


@dataclass(frozen=True, slots=True)
class Stat:
    """What tells two states of one file apart without reading it."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    mode: int

    @classmethod
    def of(cls, found: os.stat_result) -> Stat:
        return cls(found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, stat.S_IMODE(found.st_mode))


@dataclass(frozen=True, slots=True)
class Tree:
    """One entry as it lay there at one moment. All paths are POSIX, relative to the checkpoint folder.

    folders: mode of every directory; links: target of every symbolic link that stays inside the checkpoint folder;
    left_out: members that are never taken, with the reason.
    """

    name: str
    inode: int
    is_dir: bool
    files: Mapping[str, Stat]
    folders: Mapping[str, int]
    links: Mapping[str, str]
    left_out: Mapping[str, str]

    @property
    def newest(self) -> int:
        """Nanoseconds since the epoch of the last change of any file's content."""
        return max((found.mtime_ns for found in self.files.values()), default=0)


@dataclass(frozen=True, slots=True)
class Scan:
    """What one look found. complete: entry -> its tree; how: entry -> by which rule.

    skipped: entry, or member that is never taken -> why not. containers: mode of every directory that holds entries.
    """

    complete: Mapping[str, Tree]
    how: Mapping[str, str]
    skipped: Mapping[str, str]
    containers: Mapping[str, int] = field(default_factory=dict)

    @property
    def incomplete(self) -> dict[str, str]:
        """Entry -> why it is not complete."""
        return {name: why for name, why in self.skipped.items() if entry_of(name, self.containers) == name}


def read_tree(folder: Path, name: str, *, whatever: bool = False, seen: Path | None = None) -> Tree:
    """Stat one entry and all below it. FileNotFoundError where the entry itself has gone.

    A link's target is relative to the link; one that was absolute is, too, where it lies in the folder. seen: where the
    program sees the folder, if elsewhere. whatever: names say nothing, so a file counts also where its name says that
    it is not finished.
    """
    top = folder / name
    here = top.lstat()
    files: dict[str, Stat] = {}
    folders: dict[str, int] = {}
    links: dict[str, str] = {}
    left_out: dict[str, str] = {}

    def take(path: Path, relative: str, found: os.stat_result) -> None:
        if stat.S_ISLNK(found.st_mode):
            target = _beside(relative, str(path.readlink()), seen or folder)
            if link_stays_inside(relative, target):
                links[relative] = target
            else:
                left_out[relative] = f"a link that leads outside the checkpoint folder: {target}"
        elif stat.S_ISREG(found.st_mode):
            if not whatever and any(fnmatch.fnmatchcase(path.name, pattern) for pattern in TEMPORARY):
                left_out[relative] = NAMED_UNFINISHED
            else:
                files[relative] = Stat.of(found)
        elif not whatever and stat.S_ISDIR(found.st_mode) and fnmatch.fnmatchcase(path.name, ORBAX_TMP):
            left_out[relative] = NAMED_UNFINISHED
        elif stat.S_ISDIR(found.st_mode):
            folders[relative] = stat.S_IMODE(found.st_mode)
            with os.scandir(path) as members:
                for member in members:
                    try:
                        take(Path(member.path), f"{relative}/{member.name}", member.stat(follow_symlinks=False))
                    except FileNotFoundError:
                        continue  # gone between the listing and the stat: the next look differs anyway
        else:
            left_out[relative] = "neither a file, a directory nor a link"

    take(top, name, here)
    return Tree(name, here.st_ino, stat.S_ISDIR(here.st_mode), files, folders, links, left_out)


def _beside(path: str, target: str, folder: Path) -> str:
    """A link's target from where the link lies, where it is absolute and within the folder; else as it is."""
    plain = Path(os.path.normpath(target))
    for place in (folder, folder.resolve()) if plain.is_absolute() else ():
        if plain.is_relative_to(place):
            return os.path.relpath(plain.relative_to(place), os.path.dirname(path) or ".")  # noqa: PTH120 - both relative
    return target


def link_stays_inside(path: str, target: str) -> bool:
    """Does a link at `path` (relative to the checkpoint folder) with this target stay inside that folder?"""
    parts = path.split("/")[:-1]
    for part in target.split("/"):
        if part == "..":
            if not parts:
                return False
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return not target.startswith("/")


@dataclass(slots=True)
class Judge:
    """Looks at a checkpoint folder again and again and says what is complete. Remembers between looks.

    marker: glob matched against members' paths within an entry and their names. quiet: seconds. clock: monotonic. seen:
    as in `read_tree`.
    """

    folder: Path
    marker: str | None = None
    quiet: float = 5.0
    clock: Callable[[], float] = time.monotonic
    seen: Path | None = None
    _since: dict[str, tuple[Tree, float]] = field(default_factory=dict)
    _findings: dict[str, tuple[Stat, Finding]] = field(default_factory=dict)
    _formats: dict[str, tuple[Tree, bool, Finding]] = field(default_factory=dict)
    _pointers: Pointers = field(default_factory=Pointers)
    _inodes: dict[str, int] = field(default_factory=dict)
    _containers: dict[str, int] = field(default_factory=dict)
    _temporary: frozenset[int] = frozenset()
    _renamed: dict[str, Tree] = field(default_factory=dict)

    def look(self, *, ended: bool = False, steady: Callable[[], bool] = lambda: False) -> Scan:
        """Judge every entry now. ended: the program has ended by itself, so nothing changes any more.

        steady: asked last, whether the program runs and nothing has asked it to end.
        """
        now = self.clock()
        complete: dict[str, Tree] = {}
        how: dict[str, str] = {}
        skipped: dict[str, str] = {}
        trees: dict[str, Tree] = {}
        temporary: set[int] = set()
        containers: dict[str, os.stat_result] = {}
        for name in self._names("", containers):
            try:
                if unfinished(name):
                    temporary |= self._inodes_below(name)
                    skipped[name] = NAMED_UNFINISHED
                else:
                    trees[name] = read_tree(self.folder, name, seen=self.seen)
            except FileNotFoundError:
                continue
        self._containers = {name: found.st_ino for name, found in containers.items()}
        self._note_renames(trees)
        # Where one Trainer's checkpoint lies, its neighbours are meant to become such too.
        trainers = {_place(name) for name, tree in trees.items() if f"{name}/trainer_state.json" in tree.files}
        for name, tree in sorted(trees.items()):
            try:
                verdict, reason = self._judge(tree, now, ended, _place(name) in trainers, steady)
            except FileNotFoundError:
                verdict, reason = "", "changed while it was looked at"
            skipped.update(tree.left_out)
            if verdict:
                complete[name], how[name] = tree, verdict
            else:
                skipped.setdefault(name, reason)
        members, fault = self._together(trees, now, ended)
        for name in members:
            complete[name], how[name], skipped[name] = trees[name], "dcp", fault
            for holder in (complete, how) if fault else (skipped,):
                del holder[name]
        for name, why in list(self._ahead(complete, trees, containers)):
            del complete[name], how[name]
            skipped[name] = why
        self._forget(trees)
        self._temporary = frozenset(temporary)
        modes = {name: stat.S_IMODE(found.st_mode) for name, found in containers.items()}
        return Scan(complete, how, skipped, modes)

    def _ahead(
        self, complete: Mapping[str, Tree], trees: Mapping[str, Tree], containers: Collection[str]
    ) -> Iterator[tuple[str, str]]:
        """What only leads to an entry, or names one, that is not complete; and why that counts."""
        for name, tree in complete.items():
            if name in tree.links:
                target = entry_of(posixpath.normpath(f"{_place(name)}{tree.links[name]}"), containers)
                if target not in complete and target not in containers:
                    yield name, f"leads to {target}, which is not complete"
            elif name in tree.files:
                named = self._pointers.named(self.folder, name, tree.files[name], trees)
                if late := next((other for other in named if other not in complete), ""):
                    yield name, f"names {late}, which is not complete"

    def _names(self, place: str, containers: dict[str, os.stat_result]) -> list[str]:
        """The entries in the folder, or in a container in it (`place`, with a slash at its end); fills `containers`."""
        try:
            found = sorted(f"{place}{path.name}" for path in (self.folder / place).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        names: list[str] = []
        for name in found:
            if (seen := self._container(name)) is None:
                names.append(name)
            else:
                containers[name] = seen
                names += self._names(f"{name}/", containers)
        return names

    def _container(self, name: str) -> os.stat_result | None:
        """The directory's state if it is a container. With a marker every directory is judged by that."""
        if self.marker or unfinished(name) or name.count("/") >= DEEPEST:
            return None
        try:
            found = (self.folder / name).lstat()
            once = self._containers.get(name) == found.st_ino
            holds = stat.S_ISDIR(found.st_mode) and holds_checkpoints(self.folder / name, once=once)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found if holds else None

    def _inodes_below(self, name: str) -> set[int]:
        """The entry's inode, and those directly inside it: files are also moved out of a temporary directory."""
        path = self.folder / name
        found = path.lstat()
        inodes = {found.st_ino}
        if stat.S_ISDIR(found.st_mode):
            with os.scandir(path) as members:
                inodes.update(member.inode() for member in members)
        return inodes

    def _note_renames(self, trees: Mapping[str, Tree]) -> None:
        moved = [f"{name}/" for name, inode in self._containers.items() if inode in self._temporary]
        for name, tree in trees.items():
            before = self._inodes.get(name)
            if before == tree.inode:
                continue
            found = tree.files.get(name)
            # A rename sets the change time only, writing sets both: a new inode under a known name whose content is
            # older than its change time was put there whole.
            replaced = before is not None and found is not None and 0 < found.mtime_ns < found.ctime_ns
            whole = tree.inode in self._temporary or any(name.startswith(place) for place in moved)
            if whole or (replaced and found is not None and found.size > 0):
                self._renamed[name] = tree
        self._inodes = {name: tree.inode for name, tree in trees.items()}

    def _closed(self, tree: Tree, steady: Callable[[], bool]) -> bool:
        """Is this a file with something in it that its running program has closed?

        Saves that follow each other faster than `quiet`, and renames within one tick of the kernel's clock, are seen
        by this alone. The program is looked at last: what a dying one leaves behind is closed too, and may be cut.
        """
        found = tree.files.get(tree.name)
        if found is None or not found.size:
            return False
        return open_for_writing(self.folder / tree.name) is False and steady()

    def _judge(self, tree: Tree, now: float, ended: bool, trainer: bool, steady: Callable[[], bool]) -> tuple[str, str]:
        """(rule, "") where the entry is complete, otherwise ("", why not)."""
        if tree.name in tree.left_out:
            return "", tree.left_out[tree.name]
        known = self._since.get(tree.name)
        if known is None or known[0] != tree:
            known = self._since[tree.name] = (tree, now)
        findings = {path: self._finding(path, found) for path, found in tree.files.items()}
        for path, finding in findings.items():
            if finding.fault:
                return "", f"{path} {finding.fault}"
        still = now - known[1]
        if ended or still >= self.quiet:
            settled, waiting = True, ""
        else:
            settled, waiting = False, f"changed {still:.0f} s ago, {self.quiet:g} s without change are needed"
        if self.marker and tree.is_dir:
            return self._by_marker(tree, settled, waiting)
        if tree.is_dir and (found := self._directory(tree, trainer)) != Finding():
            late = found.form == "dcp" and not settled and not dcp_settled(tree.name, tree.files)
            return ("", found.fault or waiting) if found.fault or late else (found.form, "")
        if not tree.is_dir and tree.name in findings and findings[tree.name].form:
            return findings[tree.name].form, ""
        if self._renamed.get(tree.name) == tree:
            return "renamed", ""
        if settled:
            return "quiet", ""
        return ("closed", "") if self._closed(tree, steady) else ("", waiting)

    def _by_marker(self, tree: Tree, settled: bool, waiting: str) -> tuple[str, str]:
        marker = self.marker or ""
        marks = [found for path, found in tree.files.items() if _matches(path.removeprefix(f"{tree.name}/"), marker)]
        if not marks:
            return "", f"holds no {marker} yet"
        # A marker left over from before an overwrite in place says nothing about what is newer than it.
        if settled or max(found.mtime_ns for found in marks) >= tree.newest:
            return "marker", ""
        return "", f"is newer than its {marker}; {waiting}"

    def _finding(self, path: str, found: Stat) -> Finding:
        known = self._findings.get(path)
        if known is None or known[0] != found:
            known = self._findings[path] = (found, inspect(self.folder / path, found.size))
        return known[1]

    def _directory(self, tree: Tree, trainer: bool) -> Finding:
        """The format of a directory, looked into once for each state that it is in."""
        known = self._formats.get(tree.name)
        if known is None or known[:2] != (tree, trainer):
            known = self._formats[tree.name] = (tree, trainer, self._looked_into(tree, trainer))
        return known[2]

    def _looked_into(self, tree: Tree, trainer: bool) -> Finding:
        shards = shards_of(tree.files)
        for folder in shards:
            if fault := dcp_fault(self.folder, folder, tree.files):
                return Finding(fault=fault)
        if _is_trainers(tree, trainer):
            return Finding("hf", self._trainer_fault(tree))
        if is_orbax(tree):
            return Finding("orbax", orbax_fault(self.folder, tree))
        return Finding("dcp" if tree.name in shards else "")

    def _together(self, trees: Mapping[str, Tree], now: float, ended: bool) -> tuple[list[str], str]:
        """What lies at the top of a folder that is itself a DCP checkpoint, and why that is not whole."""
        if "" not in shards_of(trees):
            return [], ""
        members = [name for name in trees if SHARD.match(name) or METADATA.match(name)]
        files = {name: trees[name].files[name] for name in members if name in trees[name].files}
        if fault := dcp_fault(self.folder, "", files):
            return members, fault
        quiet = all(now - self._since[name][1] >= self.quiet for name in members)
        return members, "" if ended or quiet or dcp_settled("", files) else "its shards are being written"

    def _trainer_fault(self, tree: Tree) -> str:
        """Why a Trainer's checkpoint cannot be resumed from; empty where it can."""
        state = f"{tree.name}/trainer_state.json"
        if state not in tree.files:
            return f"{state} is missing"
        try:
            step = json.loads((self.folder / state).read_bytes())["global_step"]
        except (ValueError, KeyError, TypeError):
            return f"{state} is cut or has no global_step"
        if not isinstance(step, int):
            return f"{state} has no global_step"
        weights = 0
        for path, found in tree.files.items():
            name = path.rpartition("/")[2]
            if Path(name).suffix in WEIGHTS and not found.size:
                return f"{path} is empty (0 bytes)"
            weights += Path(name).suffix in WEIGHTS and not TRAINER.match(name) and name != "optimizer.bin"
            if name.endswith(".index.json") and (fault := self._index_fault(tree, path)):
                return fault
        return "" if weights else f"{tree.name} holds no model weights"

    def _index_fault(self, tree: Tree, path: str) -> str:
        try:
            shards = set(json.loads((self.folder / path).read_bytes())["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError):
            return f"{path} is cut or names no shards"
        base = path.rpartition("/")[0]
        absent = sorted(shard for shard in shards if f"{base}/{shard}" not in {*tree.files, *tree.links})
        return f"{base}/{absent[0]} is missing" if absent else ""

    def _forget(self, trees: Mapping[str, Tree]) -> None:
        for memory in (self._since, self._renamed, self._formats, self._pointers.words):
            for name in memory.keys() - trees.keys():
                del memory[name]
        paths = {path for tree in trees.values() for path in tree.files}
        for path in self._findings.keys() - paths:
            del self._findings[path]


def _is_trainers(tree: Tree, trainer: bool) -> bool:
    """Is this a Hugging Face Trainer's checkpoint, or was it to become one? `trainer`: one lies in the same folder.

    Other programs name directories `checkpoint-9` too (accelerate, diffusers), so the Trainer's own files decide.
    """
    if f"{tree.name}/trainer_state.json" in tree.files:
        return True
    if not NUMBERED.match(tree.name.rpartition("/")[2]):
        return False
    return trainer or any(TRAINER.match(path.rpartition("/")[2]) for path in tree.files)


def _place(name: str) -> str:
    """Where an entry lies: empty, or its container with a slash."""
    return name[: name.rfind("/") + 1]


def _matches(path: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(path.rpartition("/")[2], pattern)
