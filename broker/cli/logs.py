"""`broker logs`: a job's output over all its machines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from broker.cli.jobs import JobArgument, warn_without_broker
from broker.cli.screen import Screen, Usage

if TYPE_CHECKING:
    from broker.job import Job
    from broker.output import Line, Output

CLEAR = "\r\x1b[K"


def logs_verb(
    screen: Screen,
    name: JobArgument,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the job has ended.")] = False,
    since: Annotated[
        str, typer.Option("--since", metavar="TIME", help="What came in the last 10m, or since 22:00, or a date.")
    ] = "",
    tail: Annotated[int | None, typer.Option("--tail", metavar="N", min=0, help="Only the last N lines.")] = None,
) -> None:
    """Print a job's output over all its machines.

    Lines on stderr say where it moved, and what the broker did on the machine.
    """
    from broker.job import get
    from broker.output import Output

    after = moment(since, "--since") if since else 0.0
    job = get(name)
    printer, output = _Printer(screen, job, follow), Output(job)
    done = job.refresh().row.decided
    if follow and not done:
        warn_without_broker(screen, [job])
    rows = job.placements()
    whole = tail is None and not since
    if not (follow and whole):
        printer.put(output.lines(rows, final=done) if whole else output.last(rows, tail, since=after, final=done))
        printer.unfinished(output.pending(), live=follow)
        printer.document()
    if follow:
        _follow(screen, job, printer, output, done=done and not whole)
        screen.say(f"{job.id} {job.status}" + (f": {job.message}" if job.message not in ("", job.status) else ""))
    elif not printer.lines and tail != 0:
        screen.say(f"no output since {since}" if since and output.seen else _silence(job, done=done))


def _follow(screen: Screen, job: Job, printer: _Printer, output: Output, *, done: bool) -> None:
    """Print what comes until the job has ended. A home that is out of reach for a while ends nothing."""
    from broker.errors import HomeUnavailable

    told = ""
    while not done:
        ended = job.refresh().row.decided
        try:
            printer.put(output.lines(job.placements(), final=ended))
        except HomeUnavailable as error:
            if told != (told := error.message):
                screen.warn(f"the output cannot be read now, and is tried again: {error}")
        else:
            done, told = ended, ""
            printer.unfinished(output.pending(), live=True)
        if not done:
            time.sleep(0.5 if output.home.is_local else 2.0)


def moment(text: str, option: str) -> float:
    """A time that has passed, as given to an option, in seconds since the epoch. Raises Usage."""
    from broker import quantity

    try:
        return quantity.past(text, time.time())
    except ValueError as error:
        fix = f"{option} 10m, {option} 30d, {option} 22:00, or {option} 2026-03-29T22:00"
        raise Usage(f"{option} {text}: {error}", fix=fix) from error


@dataclass
class _Printer:
    """The program's lines on stdout, the broker's and where it moved on stderr. lines: of the program's, so far.

    As JSON they are one document, or one a line for who follows.
    """

    screen: Screen
    job: Job
    follow: bool = False
    at: int = 0
    lines: int = 0
    shown: str = ""
    found: list[dict[str, int | str]] = field(default_factory=list)

    def put(self, lines: Iterable[Line]) -> None:
        from broker.guest.log import OURS

        for generation, line in lines:
            self._clear()
            self._mark(generation)
            if line.startswith(OURS):
                self.screen.say(line, style="dim")
            else:
                self._line(generation, line)

    def _line(self, generation: int, line: str) -> None:
        self.lines += 1
        if not self.screen.json:
            self.screen.line(line)
            return
        found: dict[str, int | str] = {"generation": generation, "line": line}
        if self.follow:
            self.screen.line(json.dumps(found))
        else:
            self.found.append(found)

    def document(self) -> None:
        """The lines so far, where they are one document of JSON."""
        if self.screen.json and not self.follow:
            self.screen.data(self.found)

    def unfinished(self, line: Line | None, *, live: bool) -> None:
        """The line that has not ended yet, such as a progress bar: redrawn in place at a terminal, once elsewhere."""
        if line is None or (live and (self.screen.json or not sys.stdout.isatty())):
            return
        self._mark(line[0])
        if not live:
            self._line(*line)
        elif line[1] != self.shown:
            self._clear()
            self.shown = line[1]
            sys.stdout.write(line[1][: max(1, self.screen.width - 1)])
            sys.stdout.flush()

    def _clear(self) -> None:
        if self.shown:
            sys.stdout.write(CLEAR)
            self.shown = ""

    def _mark(self, generation: int) -> None:
        from broker.cli.follow import marker

        if generation != self.at:
            self.at = generation
            self.screen.say(marker(self.job.placements(), generation), style="dim")


def _silence(job: Job, *, done: bool) -> str:
    """Why a job has no output."""
    if not done:
        return f"no output yet: {job.status}; broker logs -f {job.id} waits for it"
    if any(row.program_at is not None or (row.beat or {}).get("program_started_at") for row in job.placements()):
        return "the program printed nothing"
    return f"the program never started: {job.message or job.status}"
