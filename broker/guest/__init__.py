"""What a job may import on its machine: where to save, how far it is, whether it should stop.

Nothing here is needed: a program that saves into `$BROKER_CHECKPOINT_DIR` and ends on SIGTERM is a good citizen.
Standard library only, from Python 3.8, and without effect outside a job, so a script runs unchanged on a laptop::

    from broker import guest

    for step in range(start, total):
        train(step)
        guest.progress(step + 1, total)
        if guest.should_stop():
            save()
            break
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

__all__ = [
    "Progress",
    "checkpoint_dir",
    "on_notice",
    "progress",
    "read_progress",
    "resumed",
    "seconds_left",
    "should_stop",
    "training",
]

RECORD = 128  # bytes of each of the two records in the progress file: the first step, and the last one
_POLL = 0.25  # seconds between two looks for a notice

_open_file = (0, "", -1, (0, 0))  # process, path, descriptor, and which file it is
_terminated = False


class Progress(NamedTuple):
    """How far a program says it is. at: seconds since the epoch; total: None where it was not said."""

    first_step: int
    step: int
    total: int | None
    at: float


def checkpoint_dir() -> str:
    """The folder that outlives the machine; outside a job `checkpoints` in the current folder, made if missing."""
    folder = os.environ.get("BROKER_CHECKPOINT_DIR") or os.path.join(os.getcwd(), "checkpoints")  # noqa: PTH109, PTH118
    os.makedirs(folder, exist_ok=True)  # noqa: PTH103 - `os` alone keeps this import cheap
    return folder


def resumed() -> bool:
    """Has a snapshot been put back before this start?"""
    return os.environ.get("BROKER_RESUMED") == "1"


def progress(step: int, total: int | None = None) -> None:
    """Say that `step` steps of `total` are done. Costs a few microseconds; call it at every step.

    The record survives the program's sudden death, because it is in the system's hands when this returns. What cannot
    be written, on a full disk for instance, is not said: no training ends for that.
    """
    path = os.environ.get("BROKER_PROGRESS")
    if not path:
        return
    record = _record(step, total)
    with contextlib.suppress(OSError):
        os.pwrite(_file(path, record), record, RECORD)


def _file(path: str, first: bytes) -> int:
    """The open progress file, `first` in it where nothing was said yet."""
    global _open_file  # noqa: PLW0603 - one descriptor per process
    pid, known, fd, which = _open_file
    if (pid, known) == (os.getpid(), path):
        try:
            if _which(fd) == which:
                return fd
        except OSError:  # the program has closed what it did not open
            pass
    fd = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
    _open_file = (os.getpid(), path, fd, _which(fd))
    if os.fstat(fd).st_size == 0:
        os.pwrite(fd, first, 0)
    return fd


def _which(fd: int) -> tuple[int, int]:
    """Which file a descriptor is of: its number may have come to be another's."""
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def _record(step: int, total: int | None) -> bytes:
    try:
        of = "null" if total is None else str(int(total))
    except (OverflowError, ValueError):  # of an endless stream
        of = "null"
    words = b'{"step": %d, "total": %s, "at": %.6f}' % (int(step), of.encode(), time.time())
    return words.ljust(RECORD - 1) + b"\n"


def read_progress(path: str) -> Progress | None:
    """What the programs of one start have said through `progress`; None if nothing yet."""
    for _ in range(3):  # a record may be read while it is written
        try:
            with open(path, "rb") as file:  # noqa: PTH123
                data = file.read(2 * RECORD)
            first, last = json.loads(data[:RECORD]), json.loads(data[RECORD:])
            return Progress(first["step"], last["step"], last["total"], last["at"])
        except OSError:
            return None
        except (ValueError, KeyError, TypeError):
            continue
    return None


def should_stop() -> bool:
    """Has the machine been noticed, or the job been asked to stop? Save then, and end.

    The first call makes SIGTERM set this instead of ending the program, unless it has a handler already.
    """
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _on_term)
    return _terminated or _stop_word() is not None


def seconds_left() -> float | None:
    """How long the program has to save and end once it was asked to stop; None where it was not, or nobody knows."""
    ends_at = (_stop_word() or {}).get("ends_at")
    return None if ends_at is None else max(0.0, ends_at - time.time())


def training(
    total: int, *, save: Callable[[int], object], load: Callable[[], int | None], every_s: float | None = None
) -> Iterator[int]:
    """The steps still to be done, saved now and then and on notice: see `broker.guest.loop`."""
    from broker.guest.loop import training as steps

    return steps(total, save=save, load=load, every_s=every_s)


def on_notice(call: Callable[[float | None], object]) -> None:
    """Call `call(seconds_left)` once, from a thread of its own, when the program is asked to stop. None: not known."""
    if "BROKER_PROGRESS" not in os.environ:
        return
    threading.Thread(target=_watch, args=(call,), name="broker-notice", daemon=True).start()


def _watch(call: Callable[[float | None], object]) -> None:
    while True:
        word = _stop_word()
        if word is not None:
            ends_at = word.get("ends_at")
            call(None if ends_at is None else max(0.0, ends_at - time.time()))
            return
        time.sleep(_POLL)


def _on_term(_number: int, _frame: FrameType | None) -> None:
    global _terminated  # noqa: PLW0603
    _terminated = True


def _stop_word() -> dict[str, Any] | None:
    path = os.environ.get("BROKER_PROGRESS")
    if not path:
        return None
    try:
        with open(path + ".stop", "rb") as file:  # noqa: PTH123
            word = json.loads(file.read())
    except (OSError, ValueError):
        return None
    return word if isinstance(word, dict) else {}
