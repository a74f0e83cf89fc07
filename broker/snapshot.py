"""Snapshots: a job's checkpoint folder, published to its home so that any other machine can take it up.

A snapshot is a manifest, `gen/N/manifest/SEQ`, that names files by the SHA-256 of their content. Blobs go up first, the
manifest last and once: a machine that dies in between leaves none. What is half-written is left out and named; if it
was whole in the snapshot before, that version is carried on. `complete.py` judges, `blobs.py` moves bytes, `restore.py`
puts a snapshot back. Runs on the rented machine: standard library and obstore only.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from broker.blobs import EMPTY, Changed, Pace, Uploads, hash_file, settle
from broker.complete import Judge, Scan, Stat, Tree, read_tree
from broker.entries import containers_of, entry_of, kind_of, newest_step, step_of
from broker.errors import HomeError
from broker.home import Home, JobKeys
from broker.manifest import File, Manifest
from broker.restore import (
    RestoreReport,
    collect_garbage,
    download,
    restore,
    restore_newest,
    snapshots_of,
    upload_tree,
)

__all__ = [
    "File",
    "Manifest",
    "Pace",
    "RestoreReport",
    "Scan",
    "Snapshotter",
    "collect_garbage",
    "download",
    "restore",
    "restore_newest",
    "upload_tree",
]

T = TypeVar("T")
# Seconds for which an entry that has gone is still carried, where nothing of its kind has taken its place.
VANISHED_FOR = 600.0


class Snapshotter:
    """Publishes one checkpoint folder for one generation. One per guest; used by one thread.

    verified: the manifest just restored into `folder`, before the program starts; its files are not read or uploaded
    again. quiet: seconds without change after which an entry of unknown format counts as complete. marker: glob inside
    an entry. keep: how many of its own newest manifests stand for "already uploaded". steady: does the program run
    undisturbed? seen: where the program sees the folder, if elsewhere.
    """

    def __init__(
        self,
        home: Home,
        keys: JobKeys,
        generation: int,
        folder: Path,
        *,
        marker: str | None = None,
        keep: int = 3,
        quiet: float = 5.0,
        verified: Manifest | None = None,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
        seen: Path | None = None,
    ) -> None:
        self.home, self.keys, self.generation, self.folder = home, keys, generation, Path(folder)
        self.keep, self.pace, self.clock = max(1, keep), pace or Pace(), clock
        self.last: Manifest | None = verified
        self.upload_seconds = 0.0
        self.bytes_uploaded = 0
        self._verified = verified
        self.seen = seen or self.folder
        self._judge = Judge(self.folder, marker, quiet, clock, self.seen)
        self.steady: Callable[[], bool] = lambda: False
        self._own: deque[Manifest] = deque(maxlen=self.keep)
        self._seq: int | None = None
        self._hashes: dict[str, tuple[Stat, str]] = {}
        self._gone: dict[str, float] = {}
        if verified is not None:
            self._remember(verified)

    def scan(self) -> Scan:
        """What is complete now, and what is not and why. Stats every file, reads only what has changed."""
        return self._judge.look(steady=self.steady)

    def final(
        self,
        *,
        killed: bool = False,
        step: int | None = None,
        step_at: Callable[[float], int | None] | None = None,
    ) -> Manifest | None:
        """Publish what the ended program has left: nothing changes any more, so all that is well formed counts.

        killed: it was ended by force, so a file of unknown format that was just being written may be cut; such files
        count only if they had been quiet before.
        """
        return self.publish(self._judge.look(ended=not killed), step=step, step_at=step_at)

    def publish(
        self,
        scan: Scan | None = None,
        *,
        step: int | None = None,
        step_at: Callable[[float], int | None] | None = None,
    ) -> Manifest | None:
        """Upload what is new and publish a manifest; None where nothing has changed since the last one.

        step: the training step, where known; otherwise the highest that an entry's name carries, otherwise `step_at`
        of the newest file's time (seconds since the epoch). Raises HomeError; the snapshots before stay as they are.
        """
        scan = scan or self.scan()
        begun = self.clock()
        skipped = dict(scan.skipped)
        taken, uploaded = self._upload(scan, skipped)
        manifest = self._compose(scan, taken, skipped, step, step_at)
        if manifest is None:
            return None
        manifest = self._write(manifest)
        self.upload_seconds, self.bytes_uploaded = self.clock() - begun, self.bytes_uploaded + uploaded
        self._own.append(manifest)
        self.last = manifest
        return manifest

    def _remember(self, verified: Manifest) -> None:
        """A restored file still bears the whole second that `restore` has set: it needs no second reading."""
        for path, file in verified.files.items():
            try:
                found = Stat.of((self.folder / path).lstat())
            except OSError:
                continue
            if found.size == file.size and found.mtime_ns % 1_000_000_000 == 0:
                self._hashes[path] = (found, file.sha256)

    def _known(self) -> set[str]:
        """Hashes whose blobs are certainly in the store. That an object merely exists there never counts."""
        manifests = [*self._own, *([self._verified] if self._verified else [])]
        return {EMPTY}.union(*(manifest.hashes for manifest in manifests))

    def _upload(self, scan: Scan, skipped: dict[str, str]) -> tuple[dict[str, dict[str, File]], int]:
        """Hash and upload every complete entry; entry -> its files, and the bytes sent.

        What changes meanwhile goes to `skipped`. The newest step goes first, in case the time does not suffice for all.
        """
        taken: dict[str, dict[str, File]] = {}
        settle(max((tree.newest for tree in scan.complete.values()), default=0))
        with Uploads(self.home, self.keys, self.pace, self._known()) as uploads:
            for name in sorted(scan.complete, key=lambda name: step_of(name) or -1, reverse=True):
                files: dict[str, File] = {}
                try:
                    for path, found in scan.complete[name].files.items():
                        sha = self._hash(path, found)
                        files[path] = File(sha, found.size, found.mode)
                        uploads.add(sha, self.folder / path, found)
                    taken[name] = files
                except Changed as change:
                    skipped[name] = str(change)
            uploads.finish()
        for name, files in list(taken.items()):
            broken = next((uploads.changed[f.sha256] for f in files.values() if f.sha256 in uploads.changed), None)
            if broken or not self._unchanged(scan.complete[name]):
                skipped[name] = broken or "changed while it was read"
                del taken[name]
        return taken, uploads.sent

    def _unchanged(self, tree: Tree) -> bool:
        try:
            return read_tree(self.folder, tree.name, seen=self.seen) == tree
        except FileNotFoundError:
            return False

    def _hash(self, path: str, found: Stat) -> str:
        known = self._hashes.get(path)
        if known is None or known[0] != found:
            known = self._hashes[path] = (found, hash_file(self.folder / path, found))
        return known[1]

    def _compose(
        self,
        scan: Scan,
        taken: Mapping[str, Mapping[str, File]],
        skipped: Mapping[str, str],
        step: int | None,
        step_at: Callable[[float], int | None] | None,
    ) -> Manifest | None:
        """The next manifest: what was taken, and the last version of what is being rewritten; None without news.

        Folders that a program makes when it starts are no first save.
        """
        last = self.last
        containers = self._containers(scan)
        carried = self._carried(taken, containers)
        names = sorted({*taken, *carried}, key=lambda name: (step_of(name) or -1, *_age(scan, name)))
        files = {path: file for entry in taken.values() for path, file in entry.items()}
        folders = {path: mode for name in taken for path, mode in scan.complete[name].folders.items()}
        links = {path: target for name in taken for path, target in scan.complete[name].links.items()}
        if last is not None:
            files |= _below(last.files, carried, containers)
            folders |= _below(last.folders, carried, containers)
            links |= _below(last.links, carried, containers)
            folders |= {path: last.folders[path] for path in containers_of(carried) & last.folders.keys()}
        folders |= scan.containers
        newest = max((scan.complete[name].newest for name in taken), default=0) / 1e9
        if step is None:
            step = newest_step(names)
        if step is None and step_at is not None and newest:
            step = step_at(newest)
        manifest = Manifest(
            generation=self.generation,
            seq=0,
            at=time.time(),
            step=step,
            entries={name: "carried" if name in carried else scan.how[name] for name in names},
            files=files,
            skipped=skipped,
            folders=folders,
            links=links,
        )
        if not names or (last is not None and manifest.same_content(last)):
            return None
        if last is None and not files and not links:
            return None
        if last is not None and not _news(manifest, last, taken, containers):
            return None  # entries have only gone: a deletion by itself is no checkpoint
        return manifest

    def _containers(self, scan: Scan) -> set[str]:
        """The directories that hold entries now, and those of the last manifest's that are no entry themselves now.

        By these the last manifest's paths belong to the entries of today: a directory that was taken whole may since
        hold checkpoints of their own, or the other way round, and nothing of it may be lost on the way.
        """
        before = containers_of(self.last.entries) if self.last is not None else set()
        found = {*scan.containers, *before} - scan.complete.keys() - scan.skipped.keys()
        return {name for name in found if entry_of(name, found) == name}

    def _carried(self, taken: Collection[str], containers: Collection[str]) -> set[str]:
        """Entries of the last manifest whose last version goes into the next one.

        These are being rewritten, or have gone without another of their kind (the same name but for its numbers) in
        their place: between `rmtree(last)` and the next `last` there must not be a snapshot without either.
        """
        if self.last is None:
            return set()
        now = self.clock()
        kinds = {kind_of(name) for name in taken}
        carried = set()
        paths = {*self.last.files, *self.last.folders, *self.last.links} - set(containers)
        for name in {entry_of(path, containers) for path in paths}:
            if name in taken:
                self._gone.pop(name, None)
            elif (self.folder / name).exists() or (self.folder / name).is_symlink():
                self._gone.pop(name, None)
                carried.add(name)
            elif kind_of(name) not in kinds and now - self._gone.setdefault(name, now) < VANISHED_FOR:
                carried.add(name)
        return carried

    def _write(self, manifest: Manifest) -> Manifest:
        """Put the manifest under the next free number, once. A replay that finds its own bytes there has succeeded."""
        if self._seq is None:
            self._seq = max(snapshots_of(self.home, self.keys, self.generation), default=0)
        manifest = replace(manifest, seq=self._seq + 1)
        key, raw = self.keys.manifest(self.generation, manifest.seq), manifest.to_bytes()
        if not self.home.create(key, raw) and self.home.find(key) != raw:
            raise HomeError(f"{key} exists with another content", fix="does a second guest of this generation run?")
        self._seq = manifest.seq
        return manifest


def _age(scan: Scan, name: str) -> tuple[int, str]:
    tree = scan.complete.get(name)
    return (tree.newest if tree else 0, name)


def _below(members: Mapping[str, T], entries: Collection[str], containers: Collection[str]) -> dict[str, T]:
    """The members that lie in one of the entries."""
    return {
        path: value
        for path, value in members.items()
        if path not in containers and entry_of(path, containers) in entries
    }


def _news(one: Manifest, other: Manifest, taken: Collection[str], containers: Collection[str]) -> bool:
    """Does anything differ between two manifests within the entries that were taken?"""
    pairs: tuple[tuple[Mapping[str, object], Mapping[str, object]], ...] = (
        (one.files, other.files),
        (one.folders, other.folders),
        (one.links, other.links),
    )
    return any(
        mine.get(path) != theirs.get(path) and entry_of(path, containers) in taken
        for mine, theirs in pairs
        for path in mine.keys() | theirs.keys()
    )
