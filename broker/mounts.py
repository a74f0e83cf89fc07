"""What a task brings along besides its workdir: `Mount`, and how it gets into the job's home.

A mount's content is packed once, when the job is submitted, so every machine of the job starts from the same files. A
bucket's content is read with the broker's own key and packed likewise: machines hold keys for their job only.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from broker.document import Problem
from broker.errors import HomeError, TaskError

if TYPE_CHECKING:
    from broker.config import Config
    from broker.home import Home

Mode = Literal["COPY", "MOUNT", "MOUNT_CACHED"]
MODES: tuple[Mode, ...] = ("COPY", "MOUNT", "MOUNT_CACHED")
LARGEST = 20 * 1024**3
"""Bytes of a bucket that are brought along through this computer; what is bigger is better fetched by `setup`."""


@dataclass(frozen=True, slots=True)
class Mount:
    """target: where it goes on the machine, `~/…` or absolute. source: a local path, or a URL such as s3://BUCKET/PATH.

    An empty source is a folder that is empty at first, SkyPilot's bucket without a source. mode: the mount modes are
    emulated by a copy before `setup`; only the checkpoint's folder and the outputs are kept of what is written.
    """

    target: str
    source: str = ""
    mode: Mode = "COPY"

    @property
    def is_url(self) -> bool:
        return "://" in self.source

    def covers(self, path: str) -> bool:
        """Is this path on the machine the target, or below it?"""
        return PurePosixPath(path).is_relative_to(PurePosixPath(self.target))

    def problems(self) -> Iterator[Problem]:
        field, path = f"file_mounts.{self.target}", PurePosixPath(self.target)
        if not self.target.startswith(("~/", "/")) or len(path.parts) < 2 or "\0" in self.target or ".." in path.parts:
            yield Problem(field, "must go to a path below ~/ or /, without ..")
        elif path.is_relative_to("/var/lib/spotbroker"):
            yield Problem(field, "/var/lib/spotbroker is the broker's own folder")
        if self.mode not in MODES:
            yield Problem(field, f"mode must be COPY, MOUNT or MOUNT_CACHED, not {self.mode!r}")
        if self.is_url and not urlsplit(self.source).netloc and urlsplit(self.source).scheme != "file":
            yield Problem(field, f"{self.source} names no bucket")


@dataclass(frozen=True, slots=True)
class Measured:
    """A mount, and how many bytes in how many files it brings along."""

    mount: Mount
    bytes: int
    files: int


def measure(mounts: Sequence[Mount], config: Config, home_url: str, disk: float) -> tuple[Measured, ...]:
    """How big the mounts are; proves that each can be had. disk: GiB that a machine has for all.

    Raises TaskError for a source that is missing, cannot be reached, or is too big, before anything is rented.
    """
    found = tuple(_measured(mount, config, home_url) for mount in mounts)
    if (total := sum(each.bytes for each in found)) > disk * 1024**3:
        raise TaskError(
            f"file_mounts: {total / 1024**3:.1f} GiB do not fit a disk of {disk:g} GiB",
            field="file_mounts",
            fix="raise resources.disk_size",
        )
    return found


def _measured(mount: Mount, config: Config, home_url: str) -> Measured:
    from broker import workdir

    if not mount.source:
        return Measured(mount, 0, 0)
    if mount.is_url:
        entries = _reached(mount, config, home_url)[1]
        total = sum(entries.values())
        if total > LARGEST:
            raise _refused(
                mount,
                f"{mount.source} holds {total / 1024**3:.0f} GiB, too much to be brought along through this computer",
                "fetch it in setup, from the bucket to the machine",
            )
        return Measured(mount, total, len(entries))
    path = Path(mount.source)
    if path.is_file():
        return Measured(mount, path.stat().st_size, 1)
    if not path.is_dir():
        raise _refused(mount, f"no such file or folder: {path}")
    size = workdir.measure(path, everything=True)
    return Measured(mount, size.bytes, size.files)


def pack(mounts: Sequence[Mount], config: Config, home: Home, artefact: Any) -> list[dict[str, Any]]:
    """Put every mount's content into the job's home; what a guest is told of each. Raises as `measure` does.

    artefact: the key of an artefact by its hash, `JobKeys.artefact`.
    """
    from broker import workdir

    told = []
    for mount in sorted(mounts, key=lambda each: PurePosixPath(each.target).parts):
        with tempfile.TemporaryDirectory(prefix="spotbroker-mount-") as folder:
            if not mount.source:
                told.append({"target": mount.target, "key": None, "sha256": "", "single": False})
                continue
            source = Path(mount.source)
            single = not mount.is_url and source.is_file()
            if mount.is_url:
                source = _downloaded(mount, config, home.url, Path(folder) / "content")
            packed = workdir.pack_file(source) if single else workdir.pack(source, everything=True)
            try:
                home.put_file(artefact(packed.sha256), packed.path)
            finally:
                packed.path.unlink(missing_ok=True)
        told.append({"target": mount.target, "key": artefact(packed.sha256), "sha256": packed.sha256, "single": single})
    return told


def _reached(mount: Mount, config: Config, home_url: str) -> tuple[Any, Mapping[str, int]]:
    """The store below a mount's URL, and its objects with their sizes. Raises TaskError where it cannot be read."""
    from broker.access import own
    from broker.home import Home

    scheme, home_scheme = urlsplit(mount.source).scheme, urlsplit(home_url).scheme
    if scheme not in ("file", home_scheme) and not (scheme == "s3" and _keys_for_s3(config, home_scheme)):
        raise _refused(
            mount,
            f"{mount.source} cannot be reached: the broker's only key is that of its home, {home_scheme}://",
            "set keys for it in [home_config] or AWS_ACCESS_KEY_ID, fetch it in setup, or bring a local folder along"
            if scheme == "s3"
            else "fetch it in setup, or bring a local folder along",
        )
    if scheme == "file" and not Path(urlsplit(mount.source).path).is_dir():
        raise _refused(mount, f"{mount.source}: no such folder")
    try:
        # A key of another store's home says nothing to S3: there the environment's own is taken.
        known = config if scheme == home_scheme or home_scheme == "file" else replace(config, home_config={})
        store = Home(own(known, mount.source), make=False)
        entries = {entry.key: entry.size for entry in store.list("")}
    except (HomeError, FileNotFoundError) as error:
        raise _refused(
            mount,
            f"{mount.source} cannot be read with the home's key: {error}",
            "let the key read it, or fetch it in setup",
        ) from error
    if not entries:
        raise _refused(mount, f"{mount.source} is empty, or not there")
    return store, entries


def _keys_for_s3(config: Config, home_scheme: str) -> bool:
    """Are there keys for S3 though the home is no S3 store? [home_config]'s are, where the home is a folder."""
    return bool((home_scheme == "file" and config.home_config) or os.environ.get("AWS_ACCESS_KEY_ID"))


def brought(mounts: Sequence[Mount], config: Config, home_url: str, folder: Path) -> tuple[Mount, ...]:
    """The same mounts, with the content of every bucket in a folder here, below `folder`.

    For a rehearsal, whose own home and machines have no key for the bucket. Raises as `measure` does.
    """
    made = []
    for number, mount in enumerate(mounts):
        if not mount.is_url:
            made.append(mount)
            continue
        _measured(mount, config, home_url)
        place = folder / str(number)
        place.mkdir(parents=True)
        made.append(replace(mount, source=str(_downloaded(mount, config, home_url, place / "content"))))
    return tuple(made)


def _downloaded(mount: Mount, config: Config, home_url: str, to: Path) -> Path:
    from broker.home import translated

    store, entries = _reached(mount, config, home_url)
    to.mkdir()
    for key in entries:
        path = to / key
        if ".." in PurePosixPath(key).parts or key.endswith("/"):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        with translated(key), path.open("wb") as file:
            for chunk in store.store.get(key).stream():
                file.write(chunk)
    return to


def _refused(mount: Mount, message: str, fix: str = "") -> TaskError:
    return TaskError(f"file_mounts.{mount.target}: {message}", field=f"file_mounts.{mount.target}", fix=fix)
