"""What a job's program has printed, over all its machines, as the home keeps it: in parts, each with its time.

No line is left out or comes twice, whichever machine is late with its last part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from broker.guest.log import OURS

if TYPE_CHECKING:
    from broker.home import Entry
    from broker.job import Job
    from broker.store import PlacementRow

ENDS = 256 * 1024
Line = tuple[int, str]
"""A generation, and one line of its output without its end."""


class Output:
    """Reads it once from the beginning, or from near its end. Every method raises HomeError.

    seen: the newest part read of each generation. rest: what came of a line whose end has not come yet.
    """

    def __init__(self, job: Job) -> None:
        from broker.home import JobKeys

        self.job, self.keys, self.home = job, JobKeys(job.id), job.home
        self.seen: dict[int, str] = {}
        self.rest: dict[int, bytes] = {}

    def lines(self, placements: Sequence[PlacementRow], *, final: bool = False) -> Iterator[Line]:
        """New whole lines; of a machine that has ended also a last one without its end, with `final` of every one."""
        for row in placements:
            generation = row.generation
            for entry in self.home.numbered(self.keys.logs(generation), after=self.seen.get(generation)):
                raw = self.home.find(entry.key) or b""
                self.seen[generation] = entry.key
                *whole, rest = (self.rest.pop(generation, b"") + raw).split(b"\n")
                if rest:
                    self.rest[generation] = rest
                yield from ((generation, _text(line)) for line in whole)
            if (final or row.ended_at is not None) and (last := self.rest.pop(generation, b"")):
                yield generation, _text(last)

    def last(
        self, placements: Sequence[PlacementRow], count: int | None = None, *, since: float = 0.0, final: bool = False
    ) -> list[Line]:
        """The last `count` lines of the program's own, of what came at `since` or later; `lines` goes on behind them.

        Only the parts that hold them are read. since: seconds since the epoch, by the store's clock. A part is
        written every few seconds, so that some older lines may stand before the first; a line is never cut.
        """
        parts = [(row, self.home.numbered(self.keys.logs(row.generation))) for row in placements]
        found: list[Line] = []
        for row, entries in reversed(parts):
            if not entries:
                continue
            self.seen[row.generation] = entries[-1].key
            ended = final or row.ended_at is not None
            # Stores round their times down to a second.
            first = next((n for n, entry in enumerate(entries) if entry.modified >= int(since)), len(entries))
            left = None if count is None else count - _own(found)
            if ended and (first == len(entries) or (left is not None and left <= 0)):
                continue
            lines, rest = self._back(entries, first, left)
            if rest and ended:
                lines.append(rest)
            elif rest:
                self.rest[row.generation] = rest
            found[:0] = [(row.generation, _text(line)) for line in lines]
        return found if count is None else _tail(found, count)

    def _back(self, entries: Sequence[Entry], first: int, count: int | None) -> tuple[list[bytes], bytes]:
        """The lines of the parts from `first` on, or of as few as hold `count` of them; and the last one's beginning.

        Read from behind; the first line is whole, though it may begin in an earlier part.
        """
        read: list[bytes] = []
        own, at = 0, len(entries)
        while at > first and (count is None or own <= count):
            at -= 1
            read.append(self.home.find(entries[at].key) or b"")
            own += sum(1 for line in read[-1].split(b"\n")[:-1] if not line.startswith(OURS.encode()))
        begun = True
        while begun and at > 0:
            at -= 1
            before, newline, end = (self.home.find(entries[at].key) or b"").rpartition(b"\n")
            read.append(end if newline else before + end)
            begun = not newline
        *whole, rest = b"".join(reversed(read)).split(b"\n")
        return whole, rest

    def ends(self, generation: int, most: int = ENDS) -> str:
        """The beginning and the end of what one machine printed, so many bytes of each; all of a short one."""
        entries = self.home.numbered(self.keys.logs(generation))
        first, last = _within(entries, most), _within(entries[::-1], most)
        if first + last < len(entries):
            entries = [*entries[:first], *entries[len(entries) - last :]]
        return b"".join(self.home.find(entry.key) or b"" for entry in entries).decode("utf-8", "replace")

    def when(self, generation: int, line: str, most: int = ENDS) -> float | None:
        """When the part was written in which a line is first seen whole, seconds since the epoch by the store's clock.

        None where it is not among so many bytes of the beginning.
        """
        wanted, text = line.encode(), b""
        entries = self.home.numbered(self.keys.logs(generation))
        for entry in entries[: _within(entries, most)]:
            text += self.home.find(entry.key) or b""
            if wanted in text:
                return entry.modified
        return None

    def pending(self) -> Line | None:
        """The newest line that has not ended yet, as a terminal shows it: a progress bar's last state."""
        if not self.rest:
            return None
        generation = max(self.rest)
        # What a bar has shown before may be megabytes.
        last = self.rest[generation].rstrip(b"\r").rpartition(b"\r")[2]
        return generation, _text(last)


def _within(entries: Sequence[Entry], most: int) -> int:
    """How many of the first parts come to so many bytes; one at the least."""
    sizes = accumulate(entry.size for entry in entries)
    return max(1, sum(1 for size in sizes if size <= most))


def shown(line: str) -> str:
    """What a terminal shows of a line in the end: a progress bar's last state."""
    return line.rstrip("\r").rpartition("\r")[2]


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace")


def _own(lines: Sequence[Line]) -> int:
    return sum(1 for _, line in lines if not line.startswith(OURS))


def _tail(lines: Sequence[Line], count: int) -> list[Line]:
    """From the last `count` lines of the program's own on, without the broker's."""
    own = [line for line in lines if not line[1].startswith(OURS)]
    return own[len(own) - min(count, len(own)) :]
