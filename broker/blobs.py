"""Files kept in a home under the SHA-256 of their content: hashed, uploaded and fetched with bounded memory.

What is stored under a hash hashes to it: an upload reads the very file that was hashed and is broken off if that file
has changed since. What is fetched is hashed while it is written. Both go by parts, several at once.
Runs on the rented machine: standard library and obstore only.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from broker.complete import Stat
from broker.errors import HomeError, HomeUnavailable, SnapshotCorrupt
from broker.home import Home, JobKeys, translated
from broker.manifest import File

Gate = Callable[[int], None]
"""Told of every piece that is about to go up or has come down, in bytes; may wait, and breaks it off by raising."""
MIB = 1 << 20
PIECE = MIB // 4  # hashed and written while it is in the processor's cache
EMPTY = hashlib.sha256(b"").hexdigest()
FULL = re.compile(r"No space left|os error 28|StorageFull|InsufficientStorage|\b507\b", re.IGNORECASE)
# A file's times move by the kernel's tick (at most 10 ms): a stat taken sooner after a write could miss the next one.
TICK = 0.05


@dataclass(frozen=True, slots=True)
class Pace:
    """How much goes on at once. Memory is about files * parts * chunk (bytes) each way, 64 MiB as it stands.

    That much in flight needs an uplink of 0.5 MiB/s for a part to arrive within the store's time-out of 120 s.
    """

    chunk: int = 8 * MIB
    files: int = 2
    parts: int = 4

    @property
    def memory(self) -> int:
        """Bytes that may be in flight at once."""
        return self.files * self.parts * self.chunk

    def part(self, size: int) -> int:
        """The size of one part of an upload: S3 takes 10,000 parts at most."""
        return max(self.chunk, -(-size // 9_500 // MIB) * MIB)


def _open(_size: int) -> None:
    """The gate of what nobody watches."""


class Changed(Exception):  # noqa: N818 - not an error: the program goes on writing
    """A file changed, or went away, while it was read. Its text names the file."""


def settle(newest_ns: int) -> None:
    """Wait until a write after a change at `newest_ns` would show in the file's times."""
    wait = TICK - (time.time() - newest_ns / 1e9)
    if 0 < wait <= TICK:
        time.sleep(wait)


def hash_file(
    path: Path, expected: Stat, chunk: int = MIB, see: Callable[[memoryview], None] = lambda _: None
) -> str:  # fmt: skip
    """SHA-256 of a file that is, before and after, in the state `expected`. Raises Changed.

    see: told of each piece; what it raises is raised.
    """
    digest = hashlib.sha256()
    block = memoryview(bytearray(min(chunk, max(expected.size, 1))))
    with _same(path, expected) as file:
        while length := file.readinto(block):
            digest.update(block[:length])
            see(block[:length])
    return digest.hexdigest()


@contextmanager
def _same(path: Path, expected: Stat) -> Iterator[Any]:
    """An open file in the state `expected`, at the begin and at the end."""
    try:
        file = path.open("rb", buffering=0)
    except FileNotFoundError as error:
        raise Changed(f"{path.name} went away while it was read") from error
    with file:
        if Stat.of(os.fstat(file.fileno())) != expected:
            raise Changed(f"{path.name} changed while it was read")
        yield file
        if Stat.of(os.fstat(file.fileno())) != expected:
            raise Changed(f"{path.name} changed while it was read")


def read_file(path: Path, expected: Stat) -> bytes:
    """All of a small file in the state `expected`. Raises Changed."""
    with _same(path, expected) as file:
        data = bytes(file.read())
    if len(data) != expected.size:
        raise Changed(f"{path.name} changed while it was read")
    return data


def upload_file(home: Home, key: str, path: Path, expected: Stat, pace: Pace, gate: Gate = _open) -> None:
    """Store a file in the state `expected` under `key`; Changed, with nothing stored, if it is in another."""
    part = pace.part(expected.size)
    with room(home.url), translated(key):
        if expected.size <= part:
            gate(expected.size)
            home.store.put(key, read_file(path, expected), use_multipart=False)
        else:
            home.store.put(key, _parts(path, expected, part, gate), chunk_size=part, max_concurrency=pace.parts)


def _parts(path: Path, expected: Stat, part: int, gate: Gate = _open) -> Iterator[bytes]:
    # What is raised here aborts the multipart upload (obstore 0.12.1), so a changed file never gets a name.
    with _same(path, expected) as file:
        left = expected.size
        while left:
            gate(min(part, left))
            data = file.read(min(part, left))
            if not data:
                raise Changed(f"{path.name} became shorter while it was read")
            left -= len(data)
            yield data


class Uploads:
    """Uploads side by side, as many as `pace` has memory for. Adding another waits for room.

    known: hashes whose blobs are in the store already. gate: what every part passes. After `finish`, `changed` holds
    the hashes that could not be stored because their file was written to meanwhile, with the reason, and `sent` the
    bytes that were.
    """

    def __init__(self, home: Home, keys: JobKeys, pace: Pace, known: Iterable[str], gate: Gate = _open) -> None:
        self.home, self.keys, self.pace, self.gate = home, keys, pace, gate
        self.known = set(known)
        self.changed: dict[str, str] = {}
        self.sent = 0
        self._running: deque[tuple[str, int, Future[None]]] = deque()
        self._flying = 0
        self._pool = ThreadPoolExecutor(2 * pace.files * pace.parts, thread_name_prefix="upload")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for _sha, _size, future in self._running:
            future.cancel()
        self._pool.shutdown(wait=True)

    def add(self, sha256: str, path: Path, found: Stat) -> None:
        """Send one file, unless its content is known; HomeError of an earlier one."""
        if sha256 in self.known:
            return
        self.known.add(sha256)
        weight = self._weight(found.size)
        while self._running and self._flying + weight > self.pace.memory:
            self._take()
        key = self.keys.blob(sha256)
        future = self._pool.submit(upload_file, self.home, key, path, found, self.pace, self.gate)
        self._running.append((sha256, found.size, future))
        self._flying += weight

    def finish(self) -> None:
        while self._running:
            self._take()

    def _weight(self, size: int) -> int:
        return min(size, self.pace.parts * self.pace.part(size))

    def _take(self) -> None:
        sha256, size, future = self._running.popleft()
        try:
            future.result()
            self.sent += size
        except Changed as change:
            self.changed[sha256] = str(change)
        self._flying -= self._weight(size)


@contextmanager
def room(where: str) -> Iterator[None]:
    """Say of a full disk which one it is, instead of passing on an error number."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise _full(where) from error
    except HomeUnavailable as error:
        if not FULL.search(f"{error} {error.__cause__}"):
            raise
        raise _full(where) from error


def _full(where: str) -> HomeError:
    folder = Path(where.removeprefix("file://"))
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    free = "" if "://" in where and not where.startswith("file://") else f" ({free_space(folder) / MIB:,.0f} MiB free)"
    return HomeError(f"no space left at {where}{free}", fix=f"free space at {where}; the last snapshot is kept")


def free_space(folder: Path) -> int:
    """Bytes free to this user on the folder's file system."""
    return shutil.disk_usage(folder).free


def fetch(home: Home, keys: JobKeys, wanted: Mapping[Path, File], pace: Pace | None = None, gate: Gate = _open) -> int:
    """Write stored files to new paths in existing folders, with their modes; return the bytes fetched.

    Each is hashed while it is written. Raises SnapshotCorrupt for a blob that is missing or hashes to something
    else, HomeError for a full disk. Files of equal content are fetched once.
    """
    pace = pace or Pace()
    first: dict[str, Path] = {}
    copies: list[tuple[Path, File]] = []
    for path, file in wanted.items():
        if file.size == 0:
            path.touch()
            path.chmod(file.mode)
        elif first.setdefault(file.sha256, path) is not path:
            copies.append((path, file))
    streams = pace.files * pace.parts
    total = sum(wanted[path].size for path in first.values())
    with ThreadPoolExecutor(streams, thread_name_prefix="fetch") as pool:
        fetching = _Fetching(home, keys, pace, pool, gate)
        try:
            # One stream per file costs least, but a file of more than its share would be waited for alone at the end.
            for path in sorted(first.values(), key=lambda path: wanted[path].size, reverse=True):
                if wanted[path].size * streams > total:
                    fetching.in_parts(path, wanted[path])
                else:
                    fetching.as_one(path, wanted[path])
            fetching.finish()
        finally:
            fetching.close()
    for path, file in copies:
        with room(str(path.parent)):
            shutil.copyfile(first[file.sha256], path)
            path.chmod(file.mode)
    return total


class _Fetching:
    """What is on its way down. A file goes as one stream, which hashes and writes piece by piece, or in parts: workers
    fetch and write these in any order, and the caller hashes them in theirs.
    """

    def __init__(self, home: Home, keys: JobKeys, pace: Pace, pool: ThreadPoolExecutor, gate: Gate) -> None:
        self.home, self.keys, self.pace, self.pool, self.gate = home, keys, pace, pool, gate
        self.window: deque[tuple[Future[Any], Any, File, bool]] = deque()
        self.streams: deque[Future[None]] = deque()
        self.flying = 0
        self.digest = hashlib.sha256()
        self.open: set[Any] = set()
        self.stopped = False

    def as_one(self, path: Path, file: File) -> None:
        while len(self.streams) >= 256:
            self.streams.popleft().result()
        self.streams.append(self.pool.submit(self._stream, path, file))

    def in_parts(self, path: Path, file: File) -> None:
        with room(str(path.parent)):
            out = path.open("xb", buffering=0)
        self.open.add(out)
        for start in range(0, file.size, self.pace.chunk):
            length = min(self.pace.chunk, file.size - start)
            while self.window and self.flying + length > self.pace.memory:
                self._take()
            future = self.pool.submit(self._part, file, out.fileno(), start, length, path.parent)
            self.flying += length
            self.window.append((future, out, file, start + length == file.size))

    def _stream(self, path: Path, file: File) -> None:
        digest = hashlib.sha256()
        with room(str(path.parent)):
            out = path.open("xb", buffering=0)
        with out:
            # By ranges all the same: the store's time-out is for a whole answer. obstore resumes one that breaks off.
            for start in range(0, file.size, self.pace.chunk):
                at, end = start, min(start + self.pace.chunk, file.size)
                with self._reading(file):
                    for piece in self.home.store.get(
                        self.keys.blob(file.sha256), options={"range": (start, end)}
                    ).stream(min_chunk_size=PIECE):
                        if self.stopped:
                            return
                        digest.update(piece)
                        _write(out.fileno(), piece, at, path.parent)
                        at += len(piece)
                        self.gate(len(piece))
            self._verify(file, digest.hexdigest())
            os.fchmod(out.fileno(), file.mode)

    def _part(self, file: File, descriptor: int, start: int, length: int, folder: Path) -> Any:
        with self._reading(file):
            data = self.home.store.get_range(self.keys.blob(file.sha256), start=start, length=length)
        _write(descriptor, data, start, folder)
        self.gate(length)
        return data

    @contextmanager
    def _reading(self, file: File) -> Iterator[None]:
        key = self.keys.blob(file.sha256)
        try:
            with translated(key):
                yield
        except FileNotFoundError as error:
            raise SnapshotCorrupt(f"{key} is missing from {self.home.url}") from error
        except HomeUnavailable as error:
            # A range beyond the end is a GenericError like any other; the size tells them apart.
            with translated(key):
                size = int(self.home.store.head(key)["size"])
            if size != file.size:
                raise SnapshotCorrupt(f"{key} has {size} bytes instead of {file.size}") from error
            raise

    def _verify(self, file: File, sha256: str) -> None:
        if sha256 != file.sha256:
            raise SnapshotCorrupt(f"{self.keys.blob(file.sha256)} does not hash to its name")

    def _take(self) -> None:
        future, out, file, last = self.window.popleft()
        data = future.result()
        self.flying -= len(data)
        self.digest.update(data)
        if last:
            self._verify(file, self.digest.hexdigest())
            self.digest = hashlib.sha256()
            os.fchmod(out.fileno(), file.mode)
            self.open.discard(out)
            out.close()

    def finish(self) -> None:
        while self.window:
            self._take()
        while self.streams:
            self.streams.popleft().result()

    def close(self) -> None:
        self.stopped = True
        for future in (*self.streams, *(entry[0] for entry in self.window)):
            future.cancel()
        self.pool.shutdown(wait=True)
        for out in self.open:
            out.close()


def _write(descriptor: int, data: Any, at: int, folder: Path) -> None:
    with room(str(folder)):
        view, written = memoryview(data), 0
        while written < len(view):
            written += os.pwrite(descriptor, view[written:], at + written)
