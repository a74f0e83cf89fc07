"""A snapshot's manifest: which files it holds, by what content, and how they were judged.

Runs on the rented machine: standard library only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from broker.complete import link_stays_inside
from broker.errors import SnapshotCorrupt


@dataclass(frozen=True, slots=True)
class File:
    """One stored file. size: bytes. mode: permission bits."""

    sha256: str
    size: int
    mode: int


@dataclass(frozen=True)
class Manifest:
    """One snapshot. Paths are POSIX, relative to the checkpoint folder.

    at: seconds since the epoch. step: the training step it stands for, None where unknown. entries: entry ->
    how it was judged complete, the oldest first. skipped: entry or member -> why it is not in. folders: mode of every
    directory. links: target of every symbolic link.
    """

    generation: int
    seq: int
    at: float
    step: int | None
    entries: Mapping[str, str]
    files: Mapping[str, File]
    skipped: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, int] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(file.size for file in self.files.values())

    @property
    def hashes(self) -> frozenset[str]:
        return frozenset(file.sha256 for file in self.files.values())

    def same_content(self, other: Manifest) -> bool:
        """Would restoring the one give what restoring the other gives?"""
        return (dict(self.files), dict(self.folders), dict(self.links)) == (
            dict(other.files),
            dict(other.folders),
            dict(other.links),
        )

    def to_bytes(self) -> bytes:
        return sealed(self.body())

    def body(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "v": 1,
            "generation": self.generation,
            "seq": self.seq,
            "at": self.at,
            "step": self.step,
            "entries": dict(self.entries),
            "files": {path: [f.sha256, f.size, f.mode] for path, f in sorted(self.files.items())},
            "skipped": dict(self.skipped),
            "folders": dict(sorted(self.folders.items())),
            "links": dict(sorted(self.links.items())),
        }

    @classmethod
    def from_bytes(cls, raw: bytes) -> Manifest:
        """Raises SnapshotCorrupt for what was not written by `to_bytes`, or names a path outside its folder."""
        return cls.of(opened(raw))

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Manifest:
        """What `body` gave. Raises SnapshotCorrupt as `from_bytes` does."""
        try:
            rest = dict(body)
            if rest.pop("v") != 1:
                raise SnapshotCorrupt("the manifest is of a version that is not known here")
            rest["files"] = {path: File(*stored) for path, stored in rest["files"].items()}
            manifest = cls(**rest)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SnapshotCorrupt(f"the manifest cannot be read: {error}") from error
        for path in (*manifest.files, *manifest.folders, *manifest.links):
            checked(path)
        for path, target in manifest.links.items():
            if not link_stays_inside(path, target):
                raise SnapshotCorrupt(f"the manifest's link {path} leads outside: {target}")
        return manifest


def sealed(body: Mapping[str, Any]) -> bytes:
    """Plain JSON with its own sum in it."""
    return json.dumps({**body, "sum": _sum(body)}).encode()


def opened(raw: bytes) -> dict[str, Any]:
    """What `sealed` was given. Raises SnapshotCorrupt where it does not hash to its sum."""
    try:
        body: dict[str, Any] = json.loads(raw)
        if body.pop("sum") != _sum(body):
            raise SnapshotCorrupt("the manifest is damaged: it does not hash to its own sum")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SnapshotCorrupt(f"the manifest cannot be read: {error}") from error
    return body


def _sum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def checked(path: str) -> str:
    """A relative path that stays below its folder; what an untrusted machine has written must pass here."""
    if path.startswith("/") or "\0" in path or not path or {"..", ".", ""} & set(path.split("/")):
        raise SnapshotCorrupt(f"the path {path!r} leads outside its folder")
    return path
