"""`Log`: what setup and run print, masked, kept in a file and handed on in parts."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from broker.guest.mask import Mask

PART = 1 << 20  # bytes of one part at most
BACKLOG = 64 << 20  # bytes that may wait for a store; more is left out, and the log says so
TAIL = 1 << 20  # bytes of the end of what was left out that are kept: a traceback comes last
OURS = "[spotbroker] "  # what lines of the guest's own begin with
STARTS = "the program starts"  # such a line, before each run of it
SHRINK = 256 << 20  # the file starts anew beyond this size, once all of it has been handed on


class Log:
    """Written by the program's reader, read by the uplink; safe between threads. Never raises for a full disk."""

    def __init__(self, file: Path, mask: Mask) -> None:
        self.mask = mask
        self._lock = threading.Lock()
        self._fd = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        self._size = self._sent = os.fstat(self._fd).st_size
        self._left_out = 0
        self._tail = bytearray()
        self._begun = False
        self._written = 0

    def write(self, data: bytes) -> None:
        with self._lock:
            self._written += len(data)
            data = self.mask.feed(data)
            if self._size - self._sent > BACKLOG:
                self._hold(data)
            else:
                self._append(data)

    def say(self, text: str) -> None:
        """A line of the guest's own, on a line by itself; never left out."""
        with self._lock:
            self._release()
            self._append(b"\n" * self._begun + OURS.encode() + self.mask.text(text).encode() + b"\n")

    def end(self) -> None:
        """The program has ended: nothing is held back any more."""
        with self._lock:
            self._append(self.mask.end())

    @property
    def written(self) -> int:
        """A number that changes whenever something was written."""
        with self._lock:
            return self._written

    def part(self) -> bytes:
        """The next part to hand on; empty if there is none. The same until `sent`."""
        with self._lock:
            return os.pread(self._fd, min(PART, self._size - self._sent), self._sent)

    def sent(self, size: int) -> None:
        with self._lock:
            self._sent += size
            if self._sent == self._size > SHRINK:
                os.ftruncate(self._fd, 0)
                self._sent = self._size = 0

    def _hold(self, data: bytes) -> None:
        """Leave out what there is no room for, but for its end."""
        self._left_out += len(data)
        self._tail += data
        if len(self._tail) > 2 * TAIL:
            del self._tail[:-TAIL]

    def _release(self) -> None:
        """Say how much was left out, and give its end."""
        if not self._left_out:
            return
        tail = bytes(self._tail[-TAIL:])
        lost = self._left_out - len(tail)
        self._left_out = 0
        self._tail.clear()
        notice = b"\n%s%d bytes of output were left out here\n" % (OURS.encode(), lost) if lost else b""
        self._store(notice + tail)

    def _append(self, data: bytes) -> None:
        self._release()
        self._store(data)

    def _store(self, data: bytes) -> None:
        self._begun = data[-1:] != b"\n" if data else self._begun
        with contextlib.suppress(OSError):
            while data:
                done = os.pwrite(self._fd, data, self._size)
                self._size += done
                data = data[done:]
