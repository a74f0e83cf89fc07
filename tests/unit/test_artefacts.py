"""The guest's runtime: what is pinned, fetched once, checked, and put into homes."""

from __future__ import annotations

import dataclasses
import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from broker.artefacts import PINNED, Artefact, Artefacts, Runtime
from broker.errors import ConfigError
from broker.home import Home, JobKeys


def pinned(folder: Path, content: bytes = b"a static Python") -> Artefacts:
    """A table of two files that lie in a folder."""
    made = []
    for name in ("obstore", "python"):
        file = folder / f"{name}.file"
        file.write_bytes(name.encode() + content)
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
        made.append(Artefact(name, "1", file.name, sha256, file.stat().st_size, url=file.as_uri()))
    return Artefacts(folder / "cache", {"x86_64": Runtime(*made)})


@pytest.mark.parametrize("architecture", sorted(PINNED))
def test_the_pinned_wheel_is_the_one_that_pip_brings(tmp_path, architecture):
    """Asks the package index once; the file is the pinned one, and obstore's whole runtime is in it."""
    wheel = PINNED[architecture].obstore
    file = Artefacts(tmp_path / "cache").fetch(wheel)
    assert (file.stat().st_size, hashlib.sha256(file.read_bytes()).hexdigest()) == (wheel.size, wheel.sha256)
    assert "obstore/_obstore.abi3.so" in zipfile.ZipFile(file).namelist()
    begun = file.stat().st_mtime_ns
    assert Artefacts(tmp_path / "cache").fetch(dataclasses.replace(wheel, tag="nowhere")) == file
    assert file.stat().st_mtime_ns == begun


def test_the_wheel_loads_unpacked_and_needs_nothing_else(tmp_path):
    with zipfile.ZipFile(Artefacts().fetch(PINNED["x86_64"].obstore)) as wheel:
        wheel.extractall(tmp_path)
    code = "import sys; sys.path.insert(0, sys.argv[1]); import obstore.store; print(obstore.__file__)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith(str(tmp_path)), done.stderr


def test_every_architecture_has_both_and_nothing_floats():
    for name, runtime in PINNED.items():
        assert runtime.python is not None
        for artefact in (runtime.obstore, runtime.python):
            assert len(artefact.sha256) == 64
            assert artefact.version in artefact.file
            assert name in artefact.file
            assert bool(artefact.tag) != artefact.url.startswith("https://")


def test_a_home_gets_what_is_missing_and_later_jobs_copy(home: Home, tmp_path):
    artefacts = pinned(tmp_path)
    first = artefacts.provide(home, JobKeys("A"), "x86_64")
    assert home.get(JobKeys("A").artefact(first.obstore)) == b"obstorea static Python"
    assert home.get(JobKeys("A").artefact(first.python)) == b"pythona static Python"
    for file in (tmp_path / "cache").iterdir():
        file.unlink()
    for file in tmp_path.glob("*.file"):
        file.unlink()
    assert artefacts.provide(home, JobKeys("B"), "x86_64") == first
    assert home.get(JobKeys("B").artefact(first.python)) == b"pythona static Python"
    only = artefacts.provide(home, JobKeys("C"), "x86_64", wheel=False)
    assert (only.obstore, only.python) == (None, first.python)
    assert not home.has(JobKeys("C").artefact(first.obstore))


def test_what_does_not_hash_is_never_used(home: Home, tmp_path):
    artefacts = pinned(tmp_path)
    (tmp_path / "obstore.file").write_bytes(b"changed on its way")
    with pytest.raises(ConfigError, match="does not hash to what is pinned") as raised:
        artefacts.provide(home, JobKeys("A"), "x86_64")
    assert str(tmp_path / "cache") in raised.value.fix
    assert home.list("") == []
    kept = tmp_path / "cache" / artefacts.table["x86_64"].obstore.sha256
    kept.write_bytes(b"damaged on this disk")
    with pytest.raises(ConfigError):
        artefacts.provide(home, JobKeys("A"), "x86_64")


def test_without_a_static_python_the_rest_is_there(home: Home, tmp_path):
    artefacts = pinned(tmp_path)
    (tmp_path / "python.file").unlink()
    given = artefacts.provide(home, JobKeys("A"), "x86_64")
    assert given.python is None
    assert "could not be fetched" in given.missing
    # It is not asked for again at every launch, but a file put there by hand counts at once.
    (tmp_path / "cache" / artefacts.table["x86_64"].python.sha256).write_bytes(b"pythona static Python")
    assert artefacts.provide(home, JobKeys("A"), "x86_64").python


def test_an_architecture_that_nothing_is_pinned_for(home: Home):
    with pytest.raises(ConfigError, match="riscv64"):
        Artefacts().provide(home, JobKeys("A"), "riscv64")
