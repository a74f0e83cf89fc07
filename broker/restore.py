"""Snapshots put back: verified while they are written, put in place only when whole.

Also what else reads or clears a job's blobs: outputs, downloads, garbage collection. Runs on the rented machine and on
the broker's: standard library and obstore only.
"""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from broker.blobs import MIB, Changed, Pace, Uploads, fetch, free_space, hash_file, room, settle
from broker.complete import Stat
from broker.entries import containers_of, entry_of
from broker.errors import HomeError, SnapshotCorrupt
from broker.hearsay import heard
from broker.home import Home, JobKeys, lineage
from broker.manifest import File, Manifest, checked

Fetch = Callable[[Home, JobKeys, Mapping[Path, File], Pace | None], int]
DAY = 86400.0


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What a restore did. seconds: monotonic. aside: where the folder's former content lies now, if it had any."""

    files: int
    bytes_fetched: int
    seconds: float
    aside: Path | None


def restore(
    home: Home, keys: JobKeys, manifest: Manifest, folder: Path, *, pace: Pace | None = None, held: bool = False
) -> RestoreReport:
    """Make `folder` hold exactly what the manifest names, with modes, links and empty directories.

    All is written beside the folder first and renamed into place, so a restore that is broken off leaves the folder as
    it was. What lay in the folder is moved aside (`.NAME.before-…`, kept until the next restore). Modification times
    are set so that their order is that of the steps. held: the folder itself must stay, as something holds it, such as
    a container's mount; a mount point always stays. Raises SnapshotCorrupt for a missing or damaged blob, HomeError for
    a full disk.
    """
    begun = time.monotonic()
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    inside = folder.is_dir() and (held or os.path.ismount(folder) or not os.access(folder.parent, os.W_OK))
    mark = uuid.uuid4().hex[:8]
    place = folder if inside else folder.parent
    for stale in [path for path in place.iterdir() if path.name.startswith(_marks(folder))]:
        shutil.rmtree(stale, ignore_errors=True)
    restoring, before = (prefix + mark for prefix in _marks(folder))
    fresh = place / restoring
    if (wanted := manifest.size) > (free := free_space(folder.parent)):
        raise HomeError(
            f"no space left at {folder}: the snapshot needs {wanted / MIB:,.0f} MiB, {free / MIB:,.0f} MiB are free",
            fix="ask for more disk; the snapshot is kept",
        )
    try:
        fetched = fill(home, keys, manifest, fresh, pace)
        aside = _put_in_place(fresh, folder, before, inside=inside)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return RestoreReport(len(manifest.files), fetched, time.monotonic() - begun, aside)


def _marks(folder: Path) -> tuple[str, str]:
    """How the names begin of what restores leave beside a folder."""
    return f".{folder.name}.restoring-", f".{folder.name}.before-"


def fill(
    home: Home, keys: JobKeys, manifest: Manifest, fresh: Path, pace: Pace | None = None, fetching: Fetch = fetch
) -> int:
    """Make a new folder of what the manifest names; the bytes fetched. Raises as `restore` does."""
    with room(str(fresh)):
        fresh.mkdir()
        for path in sorted(manifest.folders):
            (fresh / path).mkdir(parents=True)
    fetched = fetching(home, keys, {fresh / path: file for path, file in manifest.files.items()}, pace)
    for path, target in manifest.links.items():
        (fresh / path).symlink_to(target)
    # Whole seconds, oldest entry first: order by time is order by step, and the Snapshotter knows restored files by it.
    first = int(time.time()) - len(manifest.entries)
    when = {name: first + rank for rank, name in enumerate(manifest.entries)}
    containers = containers_of(manifest.entries)
    for name in manifest.entries:  # so a container is as old as the newest in it
        when |= dict.fromkeys(containers_of([name]), when[name])
    for path in manifest.files:
        os.utime(fresh / path, (when[entry_of(path, containers)],) * 2)
    for path, mode in sorted(manifest.folders.items(), reverse=True):
        os.utime(fresh / path, (when.get(entry_of(path, containers), first),) * 2)
        (fresh / path).chmod(mode)
    return fetched


def _put_in_place(fresh: Path, folder: Path, aside_name: str, *, inside: bool) -> Path | None:
    """Rename the filled directory over the folder; a mount point cannot be renamed, so there its entries are."""
    if not inside:
        aside = None
        if folder.is_symlink():
            folder = folder.resolve()
        if folder.exists() and any(folder.iterdir()):
            aside = folder.parent / aside_name
            folder.rename(aside)
        fresh.rename(folder)
        return aside
    former = [path for path in folder.iterdir() if path != fresh and path.name != "lost+found"]
    aside = folder / aside_name if former else None
    if aside is not None:
        aside.mkdir()
        for path in former:
            path.rename(aside / path.name)
    for path in list(fresh.iterdir()):
        path.rename(folder / path.name)
    fresh.rmdir()
    return aside


def write_parent(home: Home, keys: JobKeys, generation: int, parent: tuple[int, int] | None) -> bool:
    """Record once which (generation, seq) a generation starts from; None: from nothing. False if it was recorded."""
    return home.create(keys.parent(generation), json.dumps(list(parent) if parent else None).encode())


def read_parent(raw: bytes) -> tuple[int, int] | None:
    """What `write_parent` wrote. Raises ValueError, TypeError, LookupError for what it did not."""
    value = json.loads(raw)
    return None if value is None else (int(value[0]), int(value[1]))


class _Lineage:
    """The chain that a generation may restore from, as home and broker have it. The broker's word wins."""

    def __init__(
        self,
        home: Home,
        keys: JobKeys,
        parents: Mapping[int, tuple[int, int] | None],
        seqs: Mapping[int, int] | None = None,
    ) -> None:
        self.home, self.keys, self.parents, self.seqs = home, keys, dict(parents), dict(seqs or {})
        self._objects: dict[int, bytes | None] = {}
        self._limits: dict[int, int] = {}
        self.expected = False
        self.problems: list[str] = []

    def started(self, generation: int) -> bool:
        if generation in self.parents or self.seqs.get(generation):
            return True
        if generation not in self._objects:
            self._objects[generation] = self.home.find(self.keys.parent(generation))
        return self._objects[generation] is not None

    def parent_of(self, generation: int) -> tuple[int, int] | None:
        if generation in self.parents:
            parent = self.parents[generation]
        else:
            raw = self._objects.get(generation) or self.home.find(self.keys.parent(generation))
            try:
                parent = read_parent(raw) if raw else None
            except (ValueError, TypeError, LookupError):
                self.problems.append(f"what machine {generation} started from is damaged")
                parent = None
        if parent is not None:
            self.expected = True
            self._limits[parent[0]] = parent[1]
        return parent

    def manifests_of(self, generation: int) -> list[int]:
        found = snapshots_of(self.home, self.keys, generation)
        told = self.seqs.get(generation, 0)
        newest, least = max(found, default=0), min(told, self._limits.get(generation, told))
        if newest < least:
            self.expected = True
            there = f"the newest there is {newest}" if found else "none is there"
            self.problems.append(
                f"machine {generation} had published snapshots up to {generation}/{least}, but {there}"
            )
        return found

    def closed_seq(self, generation: int) -> int | None:
        said = heard(self.home.find(self.keys.closed(generation)))
        seq = said.get("seq") if said is not None else None
        self.expected |= bool(seq)
        return None if seq is None else int(seq)

    def walk(self, below: int) -> Iterable[tuple[int, int]]:
        return lineage(below, self.parent_of, self.started, self.manifests_of, self.closed_seq)


def snapshots_of(home: Home, keys: JobKeys, generation: int) -> list[int]:
    """The numbers of a generation's snapshots, oldest first; whatever else its machine has put there is none."""
    return sorted(entry.number for entry in home.numbered(keys.manifests(generation)))


def walk_lineage(
    home: Home,
    keys: JobKeys,
    parents: Mapping[int, tuple[int, int] | None],
    below: int,
    *,
    expected: Mapping[int, int] | None = None,
    problems: list[str] | None = None,
) -> Iterable[tuple[int, int]]:
    """The snapshots that generation `below` might restore, newest first: (generation, seq).

    expected: as for `restore_newest`. problems: gets what is not as it should be, in words.
    """
    chain = _Lineage(home, keys, parents, expected)
    if problems is not None:
        chain.problems = problems
    return chain.walk(below)


def restore_newest(
    home: Home,
    keys: JobKeys,
    below: int,
    folder: Path,
    parents: Mapping[int, tuple[int, int] | None],
    *,
    expected: Mapping[int, int] | None = None,
    avoid: Collection[tuple[int, int]] = (),
    pace: Pace | None = None,
    held: bool = False,
) -> tuple[Manifest | None, tuple[str, ...]]:
    """Restore the newest whole snapshot that generation `below` may read; with the problems met on the way.

    None only where the job has never published one. A damaged snapshot falls back to its predecessor; where there were
    snapshots and none can be restored, SnapshotCorrupt: a job never starts from nothing in silence. parents: the
    broker's copy of the lineage. expected: generation -> the newest snapshot that it told the broker of; where these
    are missing from the home, that is a problem like a damaged one. avoid: snapshots not to be taken, because resuming
    from them failed. held: as for `restore`.
    """
    chain = _Lineage(home, keys, parents, expected)
    problems = chain.problems
    for generation, seq in chain.walk(below):
        if (generation, seq) in avoid:
            problems.append(f"snapshot {generation}/{seq} is passed over")
            continue
        try:
            manifest = read_manifest(home, keys, generation, seq)
            restore(home, keys, manifest, folder, pace=pace, held=held)
        except SnapshotCorrupt as error:
            problems.append(f"snapshot {generation}/{seq} cannot be restored: {error}")
            continue
        return manifest, tuple(problems)
    if problems or chain.expected:
        raise SnapshotCorrupt(
            "no snapshot can be restored, though there were some: " + ("; ".join(problems) or "all have gone"),
            fix=f"look into {home.url}/{keys.root} for objects that a rule of the store deletes or another program "
            "changes; submit the task again to start from nothing",
        )
    return None, ()


def read_manifest(home: Home, keys: JobKeys, generation: int, seq: int) -> Manifest:
    """One manifest. SnapshotCorrupt where it is missing or damaged."""
    key = keys.manifest(generation, seq)
    try:
        return Manifest.from_bytes(home.get(key))
    except FileNotFoundError as error:
        raise SnapshotCorrupt(f"{key} is missing") from error


def upload_tree(
    home: Home, keys: JobKeys, folder: Path, patterns: Iterable[str], *, pace: Pace | None = None
) -> dict[str, File]:
    """Store the files below `folder` that match any of the globs (a directory that matches means all in it).

    Returns path -> file. Links are followed only to files inside the folder. A file that changes while it is read is
    read again, three times at most, then HomeError.
    """
    folder = Path(folder)
    patterns = tuple(patterns)
    pace = pace or Pace()
    wanted = [path for path in sorted(folder.rglob("*")) if path.is_file() and _is_output(path, folder, patterns)]
    for _attempt in range(3):
        found = {path: Stat.of(path.stat()) for path in wanted}
        settle(max((state.mtime_ns for state in found.values()), default=0))
        try:
            with Uploads(home, keys, pace, ()) as uploads:
                files: dict[str, File] = {}
                for path, state in found.items():
                    sha256 = hash_file(path, state)
                    uploads.add(sha256, path, state)
                    files[path.relative_to(folder).as_posix()] = File(sha256, state.size, state.mode)
                uploads.finish()
            if not uploads.changed:
                return files
        except Changed:
            continue
    raise HomeError(f"the outputs below {folder} keep changing while they are read", fix="are all writers ended?")


def unmatched(files: Iterable[str], patterns: Iterable[str]) -> tuple[str, ...]:
    """The patterns of outputs that none of these files is one of. files: relative to their folder."""
    there = [Path(file) for file in files]
    return tuple(pattern for pattern in patterns if not any(_matches(path, (pattern,)) for path in there))


def _is_output(path: Path, folder: Path, patterns: tuple[str, ...]) -> bool:
    if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
        return False
    return _matches(path.relative_to(folder), patterns)


def _matches(relative: Path, patterns: tuple[str, ...]) -> bool:
    names = [relative.as_posix(), *(parent.as_posix() for parent in relative.parents if parent.name)]
    wanted = [pattern.removeprefix("./").rstrip("/") for pattern in patterns]
    return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in wanted)


def download(home: Home, keys: JobKeys, files: Mapping[str, File], to: Path, *, pace: Pace | None = None) -> None:
    """Write stored files below `to`, each whole or not at all; files of the same name are replaced.

    Raises SnapshotCorrupt for a path that leads outside `to`, and for a missing or damaged blob.
    """
    to = Path(to)
    fresh = to / f".fetching-{uuid.uuid4().hex[:8]}"
    for path in files:
        checked(path)
    with room(str(to)):
        fresh.mkdir(parents=True)
    try:
        parts = {fresh / str(rank): (path, file) for rank, (path, file) in enumerate(sorted(files.items()))}
        fetch(home, keys, {part: file for part, (_path, file) in parts.items()}, pace)
        for part, (path, _file) in parts.items():
            (to / path).parent.mkdir(parents=True, exist_ok=True)
            part.replace(to / path)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def collect_garbage(home: Home, keys: JobKeys, keep_manifests: Collection[tuple[int, int]], now: float) -> int:
    """Delete blobs that no kept manifest names and that are older than a day; return how many.

    keep_manifests: (generation, seq) of all that may be restored or that a living guest relies on. now: the store's
    time, seconds since the epoch. A kept manifest that cannot be read stops everything: nothing is deleted then.
    """
    kept: set[str] = set()
    for generation, seq in keep_manifests:
        kept |= read_manifest(home, keys, generation, seq).hashes
    stale = [
        entry.key
        for entry in home.list(f"{keys.root}/blobs")
        if entry.key.rpartition("/")[2] not in kept and now - entry.modified > DAY
    ]
    home.delete(stale)
    return len(stale)
