"""A task's cache folders as the home has them: what `setup` downloads, such as models and packages.

They are kept below `jobs/J/cache/`, apart from the snapshots, since nothing depends on them: whatever goes wrong costs
the time of another download. `cache/manifest/N` is written by generation N over its own last one. Small files travel
together in packs, for a package cache has tens of thousands, and a store asks as much time and money for each as for a
large one. `cachefolders.py` saves and restores them. Runs on the rented machine and on the broker's: standard library
and obstore only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from broker.errors import SnapshotCorrupt
from broker.home import Home, JobKeys
from broker.manifest import Manifest, opened, sealed

VERSION = 1
NUMBER = re.compile("0|[1-9][0-9]{0,8}")
HASH = re.compile("[0-9a-f]{64}")


class CacheKeys(JobKeys):
    """A job's names, with its cache's blobs in the place of its snapshots'."""

    __slots__ = ()

    def blob(self, sha256: str) -> str:
        return self.cached(sha256)


@dataclass(frozen=True, slots=True)
class Pack:
    """Small contents one after the other in one blob. members: content's hash -> (offset, size)."""

    size: int
    members: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Folder:
    """One folder as it was saved. times: of each file, when it was last written, nanoseconds since the epoch.

    packs: by the hash of their blob.
    """

    manifest: Manifest
    times: Mapping[str, int]
    packs: Mapping[str, Pack]

    @property
    def blobs(self) -> dict[str, int]:
        """Hash -> bytes of every blob that it needs."""
        packed = {content for pack in self.packs.values() for content in pack.members}
        alone = {f.sha256: f.size for f in self.manifest.files.values() if f.size and f.sha256 not in packed}
        return alone | {sha: pack.size for sha, pack in self.packs.items()}


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds that starting took without the cache and with it, None where that was not measured.

    by_setup: setup fetches what is in it, so that is what was timed; else the program does, and it was timed up to its
    first step, with setup before it.
    """

    cold: float | None = None
    warm: float | None = None
    by_setup: bool = True


UNTIMED = Times()


@dataclass(frozen=True, slots=True)
class Cache:
    """All cache folders of a task, by their names in it.

    times: what starting took with and without them. at: seconds since the epoch.
    """

    folders: Mapping[str, Folder]
    times: Times = UNTIMED
    at: float = 0.0

    @property
    def blobs(self) -> dict[str, int]:
        """Hash -> bytes of every blob that it needs."""
        found: dict[str, int] = {}
        for folder in self.folders.values():
            found |= folder.blobs
        return found

    @property
    def size(self) -> int:
        return sum(folder.manifest.size for folder in self.folders.values())

    @property
    def files(self) -> int:
        return sum(len(folder.manifest.files) for folder in self.folders.values())

    def same_content(self, other: Cache) -> bool:
        """Would restoring the one give what restoring the other gives?"""
        return self.folders.keys() == other.folders.keys() and all(
            folder.manifest.same_content(other.folders[name].manifest) for name, folder in self.folders.items()
        )

    def to_bytes(self) -> bytes:
        folders = {
            name: {
                "manifest": folder.manifest.body(),
                "times": dict(folder.times),
                "packs": {sha: [pack.size, dict(pack.members)] for sha, pack in folder.packs.items()},
            }
            for name, folder in self.folders.items()
        }
        times = [self.times.cold, self.times.warm, self.times.by_setup]
        return sealed({"v": VERSION, "at": self.at, "times": times, "folders": folders})

    @classmethod
    def from_bytes(cls, raw: bytes) -> Cache:
        """Raises SnapshotCorrupt for what was not written by `to_bytes`, or names a path outside its folder."""
        body = opened(raw)
        try:
            if body["v"] != VERSION:
                raise SnapshotCorrupt(f"the cache has version {body['v']!r}, which is not known here")
            folders = {
                name: Folder(
                    Manifest.of(folder["manifest"]),
                    {path: int(at) for path, at in folder["times"].items()},
                    {
                        sha: Pack(
                            int(size), {content: (int(at), int(length)) for content, (at, length) in held.items()}
                        )
                        for sha, (size, held) in folder["packs"].items()
                    },
                )
                for name, folder in body["folders"].items()
            }
            for folder in folders.values():
                # Each is the name of an object, and of a file on the machine.
                if bad := next((sha for sha in folder.blobs if not HASH.fullmatch(sha)), None):
                    raise SnapshotCorrupt(f"the cache names a blob {bad!r}, which is no hash")
            *seconds, by_setup = body["times"]
            cold, warm = (None if took is None else float(took) for took in seconds)
            return cls(folders, Times(cold, warm, bool(by_setup)), float(body["at"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SnapshotCorrupt(f"the cache's manifest cannot be read: {error}") from error


def newest(home: Home, keys: JobKeys) -> tuple[int, Cache] | None:
    """The cache that the latest generation saved, with that generation; 0 is what the broker took from another job.

    A damaged one is passed over, and what is none.
    """
    names = [e.key.rpartition("/")[2] for e in home.list(keys.caches)]
    for generation in sorted((int(name) for name in names if NUMBER.fullmatch(name)), reverse=True):
        try:
            if (raw := home.find(keys.cache(generation))) is not None:
                return generation, Cache.from_bytes(raw)
        except SnapshotCorrupt:
            continue
    return None


def told_size(octets: float) -> str:
    """`3.2 GiB`, `12.0 MiB`, `4.5 KiB`, `7 B`."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if octets >= size:
            return f"{octets / size:.1f} {unit}"
    return f"{octets:.0f} B"
