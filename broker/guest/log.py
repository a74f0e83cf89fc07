"""`Log`: what setup and run print, masked, kept in a file and handed on in parts."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from broker.guest.mask import Mask

PART = 1 << 20  # bytes of one part at most
BACKLOG = 64 << 20  # bytes that may wait for a store; more is left out, and the log says so
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
        self._begun = False

    def write(self, data: bytes) -> None:
        with self._lock:
            self._append(self.mask.feed(data))

    def say(self, text: str) -> None:
        """A line of the guest's own, on a line by itself."""
        with self._lock:
            self._append(b"\n" * self._begun + OURS.encode() + self.mask.text(text).encode() + b"\n")

    def end(self) -> None:
        """The program has ended: nothing is held back any more."""
        with self._lock:
            self._append(self.mask.end())

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

    def _append(self, data: bytes) -> None:
        if self._size - self._sent > BACKLOG:
            self._left_out += len(data)
            return
        if self._left_out:
            data = b"\n[spotbroker] %d bytes of output were left out here\n" % self._left_out + data
            self._left_out = 0
        self._begun = data[-1:] != b"\n" if data else self._begun
        with contextlib.suppress(OSError):
            while data:
                done = os.pwrite(self._fd, data, self._size)
                self._size += done
                data = data[done:]
