"""Follows a job: its events and its program's output as they come, with one live line below at a terminal."""

from __future__ import annotations

import contextlib
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Self

from broker.cli.screen import Screen

if TYPE_CHECKING:
    from rich.status import Status
    from rich.table import Table
    from rich.text import Text

    from broker.job import Job
    from broker.output import Output
    from broker.store import Event, PlacementRow

SNAPSHOT_EVERY = 10.0
"""Seconds between two snapshots of a placement that are told, beside its first."""

LOCAL_POLL, FAR_POLL = 0.3, 2.0
"""Seconds between two looks: at a folder on this computer, and at a store that is billed by request."""

SILENT = {"booted", "first_step", "closed", "submitted", "terminated", "confirmed", "result", "stopped"}
"""Events that tell a person nothing that another one does not."""

STATES = {
    "pulling": "the task's image is brought",
    "setup": "the task's setup runs",
    "restoring": "the newest snapshot is put back",
    "running": "the program runs",
}

COLORS = {
    "picked": "cyan", "launched": "cyan", "running": "green", "resumed": "green", "notice": "bold yellow",
    "preempted": "bold red", "lost": "bold red", "refused": "yellow", "nothing": "yellow", "warning": "yellow",
    "unconfirmed": "bold red", "snapshot": "dim", "setup": "blue", "restoring": "magenta", "waiting": "dim",
    "ended": "bold", "pulling": "dim", "kept": "bold yellow",
}  # fmt: skip


@dataclass
class Follower:
    """Prints what is new about one job each time it is asked to look.

    output: show the program's output too. note: what stands before the live line's own words.
    """

    screen: Screen
    job: Job
    output: bool = True
    seen: int = 0
    at: int = 0
    placements: list[PlacementRow] = field(default_factory=list)
    note: Callable[[], str] = lambda: ""
    snapshots: dict[int, float] = field(default_factory=dict)
    _output: Output | None = None
    _status: Status | None = None
    _next_log: float = 0.0

    def look(self) -> bool:
        """Print what is new; is it known how the job has ended?"""
        done = self.job.refresh().row.decided
        self.placements = self.job.placements()
        for event in self.job.events(after=self.seen):
            self.seen = event.seq
            self.event(event)
        if self.output and (done or time.monotonic() >= self._next_log):
            self._next_log = time.monotonic() + (LOCAL_POLL if self.job.row.home.startswith("file:") else FAR_POLL)
            self.log(final=done)
        if self._status is not None:
            self._status.update(self.status())
        return done

    def event(self, event: Event) -> None:
        if event.kind in SILENT:
            return
        if event.kind == "snapshot":
            # A program that saves every other second would drown everything else.
            if event.at - self.snapshots.get(event.generation, 0.0) < SNAPSHOT_EVERY:
                return
            self.snapshots[event.generation] = event.at
        self.screen.say(event_line(event))

    def log(self, *, final: bool = False) -> None:
        from broker.errors import HomeError
        from broker.output import Output

        try:
            self._output = self._output or Output(self.job)
            for generation, line in self._output.lines(self.placements, final=final):
                if generation != self.at:
                    self.at = generation
                    self.screen.say(marker(self.placements, generation), style="dim")
                self.line(line)
        except HomeError as error:
            self.screen.warn(f"the output cannot be read now: {error}")
            self._next_log = time.monotonic() + 10.0

    def line(self, text: str) -> None:
        """One line of the program's: below a live line through the same console, else to stdout as it came."""
        from broker.guest.log import OURS

        if self.screen.quiet:
            return
        if text.startswith(OURS):
            self.screen.say(text, style="dim")
        elif self.screen.json or (self._status is not None and sys.stdout.isatty()):
            from rich.text import Text

            self.screen.err.print(Text.from_ansi(text.rpartition("\r")[2] if "\r" in text else text))
        else:
            self.screen.line(text)

    @contextlib.contextmanager
    def live(self) -> Iterator[None]:
        """Keep a line with the job's present state below everything else, at a terminal."""
        if not self.screen.live:
            yield
            return
        self._status = self.screen.err.status(self.status(), spinner="dots")
        with self._status:
            yield
        self._status = None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Take the live line away while a question is asked."""
        status = self._status
        if status is not None:
            status.stop()
        try:
            yield
        finally:
            if status is not None:
                status.start()

    def status(self) -> Text:
        """Where the job is, how far, and what it has cost."""
        from rich.text import Text

        from broker.cli.tables import duration, money

        row = next((p for p in reversed(self.placements) if p.launched_at is not None and p.ended_at is None), None)
        now = time.time()
        parts = [self.note()] if self.note() else []
        if row is None:
            looking = self.placements and not self.job.done and self.job.status != "stopping"
            parts.append(f"{self.job.status}: looking for a machine" if looking else self.job.status)
        else:
            beat = row.beat or {}
            state = {"fetching": "booting", None: "booting"}.get(beat.get("state"), beat.get("state"))
            parts.append(f"{state} on {place(row)}")
            progress = beat.get("progress") or {}
            if progress.get("step") is not None:
                parts.append(gauge(progress["step"], progress.get("total")))
            if beat.get("manifest_step") is not None:
                parts.append(f"saved {beat['manifest_step']}")
        spent = sum(p.cost(now) for p in self.placements)
        parts += [money(spent)] if spent else []
        parts.append(duration(now - self.job.row.created_at))
        # Cut rather than wrapped: a status of two lines flickers.
        text = Text(" · ".join(parts), overflow="ellipsis", no_wrap=True)
        text.truncate(max(20, self.screen.err.width - 3), overflow="ellipsis")
        return text


def gauge(step: int, total: int | None) -> str:
    if not total:
        return f"step {step}"
    full = round(12 * min(1.0, step / total))
    return f"step {step}/{total} {'━' * full}{'┄' * (12 - full)}"


def place(row: PlacementRow) -> str:
    """`2 south spot`: the placement, where, and how it is rented."""
    from broker.cli.tables import market, where

    offer = row.request["offer"]
    return f"{where(offer['provider'], offer['region'], offer['zone'])} {market(row.market or offer['market'])}"


def marker(placements: list[PlacementRow], generation: int) -> str:
    """The line between the output of one placement and the next."""
    row = next((p for p in placements if p.generation == generation), None)
    return f"──── {generation} {place(row) if row else ''} ────"


def event_line(event: Event) -> Table:
    """When, which placement, what, and its words, which wrap in their own column."""
    from broker.cli.tables import clock

    style = "dim" if event.kind == "snapshot" else COLORS.get(event.kind, "")
    return event_row(clock(event.at), event.generation, event.kind, told(event), style)


def event_row(at: str, generation: int, kind: str, text: str, style: str) -> Table:
    from rich.table import Table
    from rich.text import Text

    row = Table.grid(padding=(0, 1, 0, 0))
    for width in (8, 2, 11):
        row.add_column(width=width, no_wrap=True)
    row.add_column(overflow="fold")
    row.add_row(
        Text(at, style="dim"), Text(f"{generation or '':>2}", style="bold"), Text(kind, style=style),
        Text(text, style="dim" if style == "dim" else ""),
    )  # fmt: skip
    return row


def told(event: Event) -> str:
    """An event's text without what its own columns, or itself, say already."""
    text = event.text.removeprefix(event.kind).lstrip(" :;")
    if event.kind == "picked":
        where, _, reason = text.partition(": ")
        return re.sub(r" \(machine [^)]*\)", "", reason.removeprefix("spot in ").removeprefix("on-demand in ")) or where
    if event.kind == "ended":
        status, _, message = text.partition(": ")
        return message if message.startswith(status) else text
    return text or STATES.get(event.kind, "")


class Interrupts:
    """Notes SIGINT, SIGTERM and SIGHUP instead of dying of them, so that what is under way is never cut."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.came = threading.Event()
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.signal is None or number != signal.SIGINT:
            self.signal = number
        self.came.set()

    def wait(self, seconds: float) -> int | None:
        """Sleep; the signal that came meanwhile or before, once."""
        self.came.wait(seconds)
        number, self.signal = self.signal, None
        self.came.clear()
        return number

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """Let Ctrl-C end a question."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, self._note)
