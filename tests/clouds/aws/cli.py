"""AWS's own command line from PyPI, in an environment of its own: a client that nobody here wrote."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from clouds import vendor

VERSION = "awscli>=1.40"
# What the `aws` program does, once for each line of words: its start is most of what a command costs.
PROGRAM = """
import contextlib, io, json, sys
from awscli.clidriver import create_clidriver

driver = create_clidriver()
for line in sys.stdin:
    out, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
        code = driver.main(json.loads(line))
    print(json.dumps([code, out.getvalue(), said.getvalue()]), flush=True)
"""


@contextlib.contextmanager
def client(variables: Mapping[str, str]) -> Iterator[Callable[..., Any]]:
    """`asked(*words)`: what `aws WORDS` prints, as data; AssertionError with its words where it fails.

    Skips where the client cannot be had.
    """
    environment = {"PATH": os.defpath, "HOME": "/nonexistent", "AWS_PAGER": "", **variables}
    with subprocess.Popen(
        [vendor.python(VERSION), "-c", PROGRAM],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def asked(*words: str) -> Any:
            print(json.dumps([*words, "--output", "json"]), file=process.stdin, flush=True)
            code, out, said = json.loads(process.stdout.readline())
            assert code == 0, said
            return json.loads(out) if out.strip() else None

        yield asked
