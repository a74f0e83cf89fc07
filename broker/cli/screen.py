"""Where a verb's words go: data to stdout, talk to stderr, and questions only to a person at a terminal."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.errors import BrokerError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

PIPED_WIDTH = 120
UNWRAPPED = 1000
"""Columns of a file or pipe: its lines are searched and cut by programs, so nothing is wrapped."""
PATIENCE = 2.0
"""Seconds after which a wait says what it waits for."""


class Usage(BrokerError):  # noqa: N818 - named as sysexits and click name it
    """The command was not called rightly."""

    exit_code = 2


class OutputLost(OSError):  # noqa: N818 - what has happened
    """stdout or stderr cannot be written any more: its reader has gone, or its disk is full."""


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputLost(error.errno, error.strerror) from error


@dataclass
class Screen:
    """One verb's output, as the global options ask for it.

    json: data as JSON. quiet: ids only. color: False switches colours off, as NO_COLOR does.
    """

    json: bool = False
    quiet: bool = False
    color: bool = True
    verb: str = field(default="", compare=False)

    @cached_property
    def out(self) -> Console:
        """Data for people."""
        return self._console(stderr=False)

    @cached_property
    def err(self) -> Console:
        """Talk."""
        return self._console(stderr=True)

    def _console(self, *, stderr: bool) -> Console:
        from rich.console import Console

        stream = sys.stderr if stderr else sys.stdout
        color = self.color and not os.environ.get("NO_COLOR")
        width = None
        if not stream.isatty() and "COLUMNS" not in os.environ:
            width = UNWRAPPED
        return Console(
            stderr=stderr, no_color=not color, highlight=False, emoji=False, soft_wrap=False, width=width, markup=False
        )

    @property
    def interactive(self) -> bool:
        """A person can be asked: stdin and stderr are terminals."""
        return sys.stdin.isatty() and sys.stderr.isatty()

    @property
    def live(self) -> bool:
        """A line may be redrawn in place."""
        return sys.stderr.isatty() and not self.quiet and os.environ.get("TERM") != "dumb"

    @property
    def width(self) -> int:
        """Columns for what is drawn to fit."""
        return min(self.out.width, shutil.get_terminal_size((PIPED_WIDTH, 24)).columns)

    def say(self, *parts: RenderableType, style: str | None = None) -> None:
        """Talk, unless `--quiet`."""
        if not self.quiet:
            _print(self.err, parts, style)

    def warn(self, text: str) -> None:
        self.say(f"warning: {text}", style="yellow")

    def show(self, *parts: RenderableType) -> None:
        """Data for people."""
        _print(self.out, parts, None)

    def line(self, text: str) -> None:
        """One line of data exactly as it is."""
        with _writing():
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    def data(self, value: Any) -> None:
        """Data for programs: one JSON document."""
        self.line(json.dumps(value, indent=2, default=str))

    def ask(self, question: str, *, instead: str) -> bool:
        """A yes or no; Enter is no. `instead` is the option that answers it where nobody can be asked."""
        if not self.interactive:
            raise Usage(f"without a terminal nobody can be asked: {question}", fix=f"add {instead} to answer yes")
        return self.choose(f"{question} [y/N] ") in ("y", "yes")

    def choose(self, question: str) -> str:
        """What the person types, in lower case; empty for Enter or the end of input."""
        sys.stderr.write(question)
        sys.stderr.flush()
        answer = sys.stdin.readline()
        if not answer:
            sys.stderr.write("\n")
        return answer.strip().lower()

    @contextlib.contextmanager
    def waiting(self, what: str | Callable[[], str]) -> Iterator[None]:
        """Say what is waited for once it takes more than two seconds; a spinner at a terminal, one line elsewhere."""
        text = what if callable(what) else lambda: what
        if self.quiet:
            yield
            return
        if self.live:
            from rich.text import Text

            status = self.err.status("")

            def begin() -> None:
                status.update(Text(f"waiting for {text()}"))
                status.start()

        else:
            status = None

            def begin() -> None:
                self.say(f"waiting for {text()}")

        timer = threading.Timer(PATIENCE, begin)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            if status is not None:
                status.stop()


def open_streams() -> None:
    """Give the program the standard streams that it was started without: Python has None for them. What stdout cannot
    write is a question mark there.

    Otherwise the next file that is opened becomes its stdout, a database for instance.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
        setattr(sys, name, Path(os.devnull).open("r" if name == "stdin" else "w"))  # noqa: SIM115 - for good
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper) and (out.errors == "strict" or out.encoding.lower() not in ("utf-8", "utf8")):
        out.reconfigure(errors="replace")  # a terminal that is older than UTF-8 lacks a dash, and no more than that


def mute_broken() -> None:
    """Point stdout and stderr at nothing where they cannot be written: Python would complain when it ends."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)


def _print(console: Console, parts: Sequence[RenderableType], style: str | None) -> None:
    if console.is_terminal:
        with _writing():
            return console.print(*parts, style=style)
    with console.capture() as captured:
        console.print(*parts, style=style)
    # Tables pad their last column, which nobody wants in a file.
    lines = [line.rstrip() for line in captured.get().split("\n")]
    with _writing():
        console.file.write("\n".join(lines))
        console.file.flush()
    return None
