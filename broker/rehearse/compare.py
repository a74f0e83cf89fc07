"""Compares what two runs have made, to the last bit."""

from __future__ import annotations

import fnmatch
import json
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.job import Job
    from broker.manifest import File

CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Difference:
    """One path that is not the same in both. what: how it differs; `missing` where it is nowhere to compare."""

    path: str
    what: str
    missing: bool = False


def compared(patterns: Sequence[str], left: Job, right: Job) -> tuple[Difference, ...]:
    """Every difference in the outputs named by the patterns; left is the run without interruption."""
    ours, theirs = outputs(left), outputs(right)
    found: list[Difference] = []
    for pattern in patterns:
        names = sorted(name for name in {*ours, *theirs} if fnmatch.fnmatchcase(name, pattern))
        if not names:
            found.append(Difference(pattern, "neither run has made it", missing=True))
        for name in names:
            if name not in ours or name not in theirs:
                where = "without" if name not in theirs else "with"
                found.append(Difference(name, f"only the run {where} interruption has made it"))
            elif ours[name].sha256 != theirs[name].sha256:
                found.append(Difference(name, _described(name, left, right, ours[name], theirs[name])))
    return tuple(found)


def outputs(job: Job) -> Mapping[str, File]:
    """The outputs of a job's last placement that has a result."""
    from broker.home import JobKeys
    from broker.manifest import File

    keys = JobKeys(job.id)
    for row in reversed(job.placements()):
        raw = job.home.find(keys.result(row.generation))
        if raw:
            return {path: File(**fields) for path, fields in (json.loads(raw).get("outputs") or {}).items()}
    return {}


def _described(name: str, left: Job, right: Job, ours: File, theirs: File) -> str:
    """How two files differ, as exactly as their format allows."""
    from broker.home import JobKeys
    from broker.snapshot import download

    with tempfile.TemporaryDirectory() as folder:
        places = [Path(folder) / side for side in ("left", "right")]
        for job, file, place in ((left, ours, places[0]), (right, theirs, places[1])):
            download(job.home, JobKeys(job.id), {name: file}, place)
        return difference(places[0] / name, places[1] / name)


def difference(left: Path, right: Path) -> str:
    """Which members of two archives (npz, torch, any zip) differ; for other files from which byte on."""
    if zipfile.is_zipfile(left) and zipfile.is_zipfile(right):
        with zipfile.ZipFile(left) as a, zipfile.ZipFile(right) as b:
            ours = {info.filename: (info.CRC, info.file_size) for info in a.infolist()}
            theirs = {info.filename: (info.CRC, info.file_size) for info in b.infolist()}
        names = [n.removesuffix(".npy") for n in sorted({*ours, *theirs}) if ours.get(n) != theirs.get(n)]
        if not names:
            return "its members are equal, only their times or order differ"
        what = "arrays" if left.suffix == ".npz" else "members"
        return f"{what} differ: {', '.join(names[:8])}" + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    at = _first_difference(left, right)
    return f"{left.stat().st_size} bytes against {right.stat().st_size}, different from byte {at} on"


def _first_difference(left: Path, right: Path) -> int:
    at = 0
    with left.open("rb") as a, right.open("rb") as b:
        while True:
            one, two = a.read(CHUNK), b.read(CHUNK)
            if one != two or not one:
                pairs = enumerate(zip(one, two, strict=False))
                return at + next((i for i, (x, y) in pairs if x != y), min(len(one), len(two)))
            at += len(one)
