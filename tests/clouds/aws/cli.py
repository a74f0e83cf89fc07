"""AWS's own command line from PyPI, in an environment of its own: a client that nobody here wrote."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from clouds import vendor

VERSION = "awscli>=1.40"
PROGRAM = """
from awscli.clidriver import create_clidriver
run = create_clidriver().main
"""


@contextlib.contextmanager
def client(variables: Mapping[str, str]) -> Iterator[Callable[..., Any]]:
    """`asked(*words)`: what `aws WORDS` prints, as data; AssertionError with its words where it fails.

    Skips where the client cannot be had.
    """
    with vendor.commands(PROGRAM, {"HOME": "/nonexistent", "AWS_PAGER": "", **variables}, VERSION) as said:

        def asked(*words: str) -> Any:
            out = said(*words, "--output", "json")
            return json.loads(out) if out.strip() else None

        yield asked
