"""What the guest fetches from the home before the job can start, checked against the hashes it was told."""

from __future__ import annotations

import hashlib
from pathlib import Path

from broker.errors import HomeError
from broker.guest.bootfile import Boot
from broker.guest.spec import Spec
from broker.home import Home, JobKeys, translated
from broker.workdir import unpack


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
    if boot.workdir is None:
        return
    key, digest = boot.workdir["key"], hashlib.sha256()
    try:
        with translated(key), archive.open("wb") as file:
            for chunk in home.store.get(key).stream():
                digest.update(chunk)
                file.write(chunk)
    except FileNotFoundError as error:
        raise HomeError(f"{key} is missing") from error
    if digest.hexdigest() != boot.workdir["sha256"]:
        raise HomeError(f"{key} does not hash to its name")
    unpack(archive, to)
    archive.unlink()
