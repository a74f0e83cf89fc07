"""What the guest fetches from the home before the job can start, checked against the hashes it was told."""

from __future__ import annotations

import hashlib
from pathlib import Path

from broker.errors import HomeError
from broker.guest.bootfile import Boot
from broker.guest.places import Places
from broker.guest.spec import Spec
from broker.home import Home, JobKeys, translated
from broker.workdir import SINGLE, unpack


def fetch_spec(home: Home, keys: JobKeys, boot: Boot) -> Spec:
    """The frozen task. Raises HomeError, ValueError where it is not the one that was frozen."""
    try:
        raw = home.get(keys.spec)
    except FileNotFoundError as error:
        raise HomeError(f"{keys.spec} is missing") from error
    if hashlib.sha256(raw).hexdigest() != boot.spec_sha256:
        raise ValueError(f"{keys.spec} is not the task that was frozen: its hash differs")
    return Spec.from_bytes(raw)


def fetch_workdir(home: Home, boot: Boot, archive: Path, to: Path) -> None:
    """Fetch and unpack the workdir into `to`; without one `to` is an empty folder. Raises as `fetch_spec`."""
    to.mkdir(mode=0o755, parents=True, exist_ok=True)
    if boot.workdir is not None:
        fetch(home, boot.workdir["key"], boot.workdir["sha256"], archive)
        unpack(archive, to)
        archive.unlink()


def fetch_mounts(home: Home, boot: Boot, archive: Path, places: Places) -> list[Path]:
    """Put what the task brings along into place; where the program sees each.

    Raises as `fetch_spec`; ValueError for a target that leaves the machine's folders.
    """
    seen = []
    for mount in boot.mounts:
        seen.append(_target(mount["target"], places))
        target = places.here(seen[-1])
        target.parent.mkdir(parents=True, exist_ok=True)
        if mount["key"] is None:
            target.mkdir(exist_ok=True)
            continue
        fetch(home, mount["key"], mount["sha256"], archive)
        if mount["single"]:
            beside = target.parent / f".{target.name}.fetching"
            unpack(archive, beside)
            (beside / SINGLE).replace(target)
            beside.rmdir()
        else:
            unpack(archive, target)
        archive.unlink()
    return seen


def _target(text: str, places: Places) -> Path:
    path = Path(text)
    if ".." in path.parts:
        raise ValueError(f"file_mounts.{text} must not contain ..")
    if path.parts[:1] == ("~",):
        return places.home / Path(*path.parts[1:])
    if places.shared:
        raise ValueError(f"file_mounts.{text} is absolute: not on a machine shared with its owner")
    return path


def fetch(home: Home, key: str, sha256: str, archive: Path) -> None:
    """Fetch one artefact and check it. Raises HomeError."""
    digest = hashlib.sha256()
    try:
        with translated(key), archive.open("wb") as file:
            for chunk in home.store.get(key).stream():
                digest.update(chunk)
                file.write(chunk)
    except FileNotFoundError as error:
        raise HomeError(f"{key} is missing") from error
    if digest.hexdigest() != sha256:
        raise HomeError(f"{key} does not hash to its name")
