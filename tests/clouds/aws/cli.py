"""AWS's own command line from PyPI, in an environment of its own: a client that nobody here wrote."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clouds import vendor

VERSION = "awscli>=1.40"


def program() -> Path:
    """The `aws` program; skips where it cannot be had."""
    return Path(vendor.python(VERSION)).with_name("aws")


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
