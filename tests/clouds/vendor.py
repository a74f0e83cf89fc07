"""A vendor's own client as judge of a stand-in: installed once into an environment of its own, kept in ~/.cache.

Their pins clash with others', so none of them is installed beside the tests. Without an index the tests are skipped.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

INSTALL_LIMIT = 240.0


def python(*requirements: str) -> str:
    """The interpreter of an environment that has exactly these; made at first need. Skips where it cannot be."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spotbroker-clients"
    root.mkdir(parents=True, exist_ok=True)
    version = ".".join(map(str, sys.version_info[:2]))
    name = "-".join((*(re.sub("[=<>]+", "-", requirement) for requirement in requirements), version))
    place = root / name
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "whole").exists():
            shutil.rmtree(place, ignore_errors=True)
            _make(place, requirements)
            (place / "whole").touch()
    return str(place / "bin" / "python")


def _make(place: Path, requirements: tuple[str, ...]) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True, timeout=INSTALL_LIMIT)
    done = subprocess.run(
        [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-compile", *requirements],
        capture_output=True,
        text=True,
        check=False,
        timeout=INSTALL_LIMIT,
    )
    if done.returncode != 0:
        shutil.rmtree(place, ignore_errors=True)
        pytest.skip(f"{' '.join(requirements)} cannot be installed: {done.stderr.strip()[-300:]}")
