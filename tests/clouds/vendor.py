"""A vendor's own client as judge of a stand-in: installed once into an environment of its own, kept in ~/.cache.

Their pins clash with others', so none of them is installed beside the tests. Without an index the tests are skipped.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

INSTALL_LIMIT = 240.0
QUIETLY = ("--quiet", "--disable-pip-version-check", "--no-compile", "--retries=1", "--timeout=20")
LOOP = """
import contextlib, io, json, sys
for line in sys.stdin:
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            code = run(json.loads(line))
        except SystemExit as end:
            code = end.code
    print(json.dumps([code or 0, out.getvalue(), error.getvalue()]), flush=True)
"""


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
    """By this environment's pip, where it has one: a pip in each of them would take longer than some clients."""
    pip = [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python")]
    bare = find_spec("pip") is not None
    made = [sys.executable, "-m", "venv", *(["--without-pip"] if bare else []), str(place)]
    subprocess.run(made, check=True, timeout=INSTALL_LIMIT)
    done = subprocess.run(
        [*(pip if bare else [str(place / "bin" / "python"), "-m", "pip"]), "install", *QUIETLY, *requirements],
        capture_output=True,
        text=True,
        check=False,
        timeout=INSTALL_LIMIT,
    )
    if done.returncode != 0:
        shutil.rmtree(place, ignore_errors=True)
        pytest.skip(f"{' '.join(requirements)} cannot be installed: {done.stderr.strip()[-300:]}")


@contextlib.contextmanager
def commands(program: str, variables: Mapping[str, str], *requirements: str) -> Iterator[Callable[..., str]]:
    """`said(*words)`: what a client's command prints; AssertionError with its words where it fails.

    program: what its command does, as a Python function `run(words)` that returns its exit code. It is started once
    for all commands, since its start is most of what one costs.
    """
    with subprocess.Popen(
        [python(*requirements), "-c", program + LOOP],
        env={"PATH": os.defpath, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def said(*words: str) -> str:
            print(json.dumps(words), file=process.stdin, flush=True)
            code, out, error = json.loads(process.stdout.readline())
            assert code == 0, out + error
            return str(out)

        yield said
