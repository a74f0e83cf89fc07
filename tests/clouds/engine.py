"""A container engine on this computer for tests: podman with folders and locks of its own, and two images.

`IMAGE` has Python 3.11; `PLAIN` is the same without any Python. What is left of a test's containers goes with it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from clouds.image import IMAGE, image, missing

__all__ = ["IMAGE", "PLAIN", "Podman", "podman"]

PLAIN = "spotbroker.test/plain:1"
# Without CAP_SYS_RESOURCE podman's own limits are refused, so every run names some.
LIMITS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")
CONFIG = """[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
events_logger = "file"
lock_type = "file"
tmp_dir = "{folder}/tmp"
"""
STORAGE = """[storage]
driver = "overlay"
graphroot = "{folder}/store"
runroot = "{folder}/run"
[storage.options]
additionalimagestores = ["{images}"]
"""

# A registry on this computer speaks HTTP.
REGISTRIES = """[[registry]]
prefix = "127.0.0.1"
location = "127.0.0.1"
insecure = true
"""


@dataclass(frozen=True, slots=True)
class Podman:
    """settings: what an offer tells a guest of its engine."""

    folder: Path

    @property
    def environ(self) -> dict[str, str]:
        return {
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
            "CONTAINERS_REGISTRIES_CONF": str(self.folder / "registries.conf"),
        }

    @property
    def settings(self) -> dict[str, Any]:
        return {"argv": ["podman"], "run": list(LIMITS), "environ": self.environ}

    def __call__(self, *arguments: str) -> str:
        done = subprocess.run(
            ["podman", *arguments], env={**os.environ, **self.environ}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def running(self) -> list[str]:
        """The names of all containers that are there, ended ones too."""
        return self("ps", "--all", "--format", "{{.Names}}").split()


@contextmanager
def opened() -> Iterator[Podman]:
    layers = image()
    # A short path: podman's sockets lie below it.
    folder = Path(tempfile.mkdtemp(prefix="pm-", dir="/var/tmp"))
    (folder / "containers.conf").write_text(CONFIG.format(folder=folder))
    (folder / "storage.conf").write_text(STORAGE.format(folder=folder, images=layers.store))
    (folder / "registries.conf").write_text(REGISTRIES)
    made = Podman(folder)
    try:
        pack = ["tar", "-C", str(layers.base), "--exclude=./usr/bin/python*", "--exclude=./usr/lib/python*", "-c", "."]
        with subprocess.Popen(pack, stdout=subprocess.PIPE) as tar:
            env = {**os.environ, **made.environ}
            subprocess.run(["podman", "import", "--quiet", "-", PLAIN], stdin=tar.stdout, env=env, check=True)
        yield made
    finally:
        made("rm", "--all", "--force", "--time", "0")
        # podman binds its layers' folder to itself where it has mounted something.
        subprocess.run(["umount", "--lazy", folder / "store" / "overlay"], capture_output=True, check=False)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def podman() -> Iterator[Podman]:
    """One engine for the session; skips where there can be none."""
    if os.geteuid() or shutil.which("podman") is None or missing():
        pytest.skip(
            "the tests of containers need Linux, root, podman and Debian's " + ", ".join(missing() or ("podman",))
        )
    with opened() as made:
        yield made
