"""A command at a terminal of its own, typed to and read as a person would."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import time
from types import TracebackType
from typing import Self

from cli.command import Cli

LIMIT = 60.0


class Terminal:
    """Runs `broker ARGS`; `shown` is everything that the screen has had on it, without its colours."""

    def __init__(self, cli: Cli, *args: str) -> None:
        self.shown = ""
        self._master, slave = pty.openpty()
        self._process = cli.at_terminal(
            *args,
            terminal=slave,
            env={"TERM": "dumb", "COLUMNS": "160", "NO_COLOR": "1"},
            start_new_session=True,
            preexec_fn=_controlling,
        )
        os.close(slave)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._master)

    def until(self, text: str) -> str:
        """Read until the text is on the screen; everything so far."""
        deadline = time.monotonic() + LIMIT
        while text not in self.shown:
            assert time.monotonic() < deadline, f"{text!r} never came:\n{self.shown}"
            assert self._read(), f"ended without {text!r}:\n{self.shown}"
        return self.shown

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def ended(self) -> int:
        """Read to the end; the exit code."""
        deadline = time.monotonic() + LIMIT
        while self._read():
            assert time.monotonic() < deadline, f"did not end:\n{self.shown}"
        return self._process.wait(timeout=LIMIT)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._master], [], [], 0.2)
        if not ready:
            return self._process.poll() is None or bool(select.select([self._master], [], [], 0.1)[0])
        with contextlib.suppress(OSError):
            if data := os.read(self._master, 65536):
                self.shown += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", data.decode("utf-8", "replace"))
                return True
        return False


def _controlling() -> None:
    """Make stdin the controlling terminal, where passwords are asked for."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
