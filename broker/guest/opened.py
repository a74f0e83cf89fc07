"""`Opened`: does the program read what was restored? The kernel says, by inotify, for each file by itself.

Access times would not do: mounts with `noatime` never change them, and a file that is read and removed between two
looks leaves none. An inotify watch misses nothing, costs nothing after the first event and needs no rights. Whoever
reads first counts, and this guest reads a restored file only after something has changed it, which comes first in the
same queue. Where the kernel or the file system does not report reads, that is found out beforehand, and said.

Linux only; see inotify(7). Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path

ACCESS, MODIFY, ATTRIB, CLOSE_WRITE, CLOSE_NOWRITE, OPEN = 0x1, 0x2, 0x4, 0x8, 0x10, 0x20
DELETE_SELF, MOVE_SELF = 0x400, 0x800
OVERFLOW, IGNORED = 0x4000, 0x8000
ASKED = ACCESS | MODIFY | ATTRIB | CLOSE_WRITE | CLOSE_NOWRITE | OPEN | DELETE_SELF | MOVE_SELF
READ = ACCESS | CLOSE_NOWRITE
EVENT = struct.Struct("iIII")
MOST = 2000  # files that are watched; a system allows 8,192 watches or more
BUFFER = 1 << 16


class Opened:
    """Watches restored files from just before the program's start. Used by one thread; `poll` never blocks.

    why: why it cannot tell, empty where it can. first: the file that was read first, None while none was.
    """

    def __init__(self, folder: Path, paths: Iterable[str]) -> None:
        """paths: relative to the folder, the most telling first; empty files say nothing and are left out."""
        self.folder = folder
        self.why, self.read = "", 0
        self.first: str | None = None
        self._open: set[int] = set()
        self._changed: set[int] = set()
        self._watched: dict[int, str] = {}
        self._fd = -1
        wanted = [path for path in paths if _size(folder / path)][:MOST]
        self.of = len(wanted)
        if not wanted:
            self.why = "every restored file is empty"
            return
        try:
            self._begin(wanted)
        except (OSError, AttributeError, ImportError) as error:
            self._cannot_tell(f"the system does not report reads: {error}")

    def poll(self) -> bool:
        """Take in what has happened; has anything become known?"""
        before = self.read, self.why
        for watch, mask in self._events():
            if mask & OVERFLOW:
                self._cannot_tell("more happened than the system could report")
                break
            self._event(watch, mask)
        if self._fd >= 0 and not self._watched:
            self._close()
        return (self.read, self.why) != before

    def end(self) -> None:
        """The program has ended: what it had opened and did not write to was mapped into memory, and read so."""
        self.poll()
        for watch in sorted(self._open):
            self._count(watch)
        self._close()

    def to_json(self) -> dict[str, object]:
        return {"read": self.read, "of": self.of, "first": self.first, "why": self.why}

    def _begin(self, wanted: list[str]) -> None:
        libc = self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = _checked(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        for path in wanted:
            name = os.fsencode(self.folder / path)
            self._watched[_checked(libc.inotify_add_watch(self._fd, name, ASKED))] = path
        smallest = min(wanted, key=lambda path: _size(self.folder / path))
        with (self.folder / smallest).open("rb", buffering=0) as file:
            file.read(1)
        if not any(mask & ACCESS for _watch, mask in self._events()):
            self._cannot_tell("the file system does not report reads")

    def _event(self, watch: int, mask: int) -> None:
        if watch not in self._watched:
            return
        was_open = watch in self._open
        if mask & READ and watch not in self._changed:
            self._count(watch)
        elif mask & OPEN and watch not in self._changed:
            self._open.add(watch)
        elif mask & (MODIFY | CLOSE_WRITE):
            self._drop(watch)
        elif mask & (DELETE_SELF | IGNORED):
            self._count(watch) if was_open else self._drop(watch)
        elif mask & (ATTRIB | MOVE_SELF):
            # From here on others read it too. What is open may yet turn out to be written to.
            self._changed.add(watch) if was_open else self._drop(watch)

    def _count(self, watch: int) -> None:
        self.first = self.first or self._watched[watch]
        self.read += 1
        self._drop(watch)

    def _drop(self, watch: int) -> None:
        del self._watched[watch]
        self._open.discard(watch)
        self._changed.discard(watch)
        self._libc.inotify_rm_watch(self._fd, watch)  # it may have gone with its file

    def _events(self) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        while self._fd >= 0:
            try:
                data = os.read(self._fd, BUFFER)
            except OSError:  # nothing more
                break
            at = 0
            while at < len(data):
                watch, mask, _cookie, length = EVENT.unpack_from(data, at)
                found.append((watch, mask))
                at += EVENT.size + length
        return found

    def _cannot_tell(self, why: str) -> None:
        if not self.read:
            self.why = why
        self._close()

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
        self._watched.clear()
        self._open.clear()


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
