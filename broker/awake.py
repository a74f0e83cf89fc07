"""Holds off this computer's sleep while a broker drives jobs, where the system allows it: a sleeping one moves none.

On Linux by systemd's inhibitors (systemd-inhibit(1)), on macOS by caffeinate(8). Both end with the program that asked.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

SETTLES = 0.5
"""Seconds after which an inhibitor that lives has been granted."""


def _command(why: str) -> list[str] | None:
    if sys.platform == "darwin":
        return ["caffeinate", "-i", "-w", str(os.getpid())]
    if shutil.which("systemd-inhibit") is None:
        return None
    asked = ["--what=sleep:idle", "--who=spotbroker", f"--why={why}", "--mode=block"]
    # `cat` ends when our end of its stdin is closed, however this process ends.
    return ["systemd-inhibit", *asked, "cat"]


@contextlib.contextmanager
def held(why: str) -> Iterator[bool]:
    """Hold off sleep for as long as the block runs; False where the system has no way or does not allow it."""
    command = _command(why)
    if command is None:
        yield False
        return
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
    except OSError:
        yield False
        return
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(SETTLES)
        yield process.poll() is None
    finally:
        process.terminate()
        if process.stdin is not None:
            process.stdin.close()
        process.wait()
