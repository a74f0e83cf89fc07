"""AWS's own command line from PyPI, in an environment of its own: a client that nobody here wrote."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import platformdirs
import pytest

VERSION = "awscli>=1.40"


def program() -> Path:
    """The `aws` program, installed once and kept; skips where it cannot be had."""
    folder = Path(platformdirs.user_cache_dir("spotbroker-tests"), f"awscli-{sys.version_info.minor}")
    found = folder / "bin" / "aws"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / "whole").exists():
            return found
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, capture_output=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run([*pip, VERSION], capture_output=True, text=True, timeout=280, check=False)
        if done.returncode != 0:
            shutil.rmtree(folder, ignore_errors=True)
            pytest.skip(f"awscli cannot be installed here: {done.stderr.strip()[-200:]}")
        (folder / "whole").touch()
    return found


def asked(variables: Mapping[str, str], *words: str) -> Any:
    """What `aws WORDS` prints, as data; AssertionError with its words where it fails."""
    environment = {"PATH": os.defpath, "HOME": "/nonexistent", "AWS_PAGER": "", **variables}
    done = subprocess.run(
        [str(program()), *words, "--output", "json"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if done.stdout.strip() else None
