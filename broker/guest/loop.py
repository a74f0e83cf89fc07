"""`training`: a loop that saves now and then, on notice, and at its end, and goes on from where it was.

Standard library only, from Python 3.8; a job calls it as `broker.guest.training`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator

from broker import guest

__all__ = ["EVERY", "Saves", "Workers", "every_seconds", "training"]

EVERY = 600.0  # seconds between two saves, where nothing better is known
MARGIN = 1.5  # a save may take so many times as long as the longest one so far


def every_seconds() -> float:
    """Seconds between two saves that pay best, as the broker reckons; it may change while the program runs."""
    path = os.environ.get("BROKER_CHECKPOINT_EVERY_FILE", "")
    for text in (_read(path) if path else "", os.environ.get("BROKER_CHECKPOINT_EVERY", "")):
        try:
            seconds = float(text)
        except ValueError:
            continue
        if seconds > 0:
            return seconds
    return EVERY


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:  # noqa: PTH123
            return file.read().strip()
    except (OSError, ValueError):
        return ""


class Saves:
    """When to save, and whether a save would still be whole: it measures those that were made."""

    def __init__(self, every_s: float | None = None) -> None:
        self.every_s = every_s
        self.longest = 0.0
        self.last = time.monotonic()

    def due(self) -> bool:
        """Has the interval gone by?"""
        every = every_seconds() if self.every_s is None else self.every_s
        return time.monotonic() - self.last >= every

    def fits(self) -> bool:
        """Would a save end in the time that is left? Yes where no end is known."""
        left = guest.seconds_left()
        return left is None or left >= MARGIN * self.longest

    def begin(self) -> None:
        self.last = time.monotonic()

    def end(self) -> None:
        now = time.monotonic()
        self.longest, self.last = max(self.longest, now - self.last), now


class Workers:
    """What the workers of one program agree upon, as torchrun starts them on a machine: all save, and all end, after
    the same step. One of them alone in the next step, or in a save, would wait for the others until the machine is
    gone.

    Whoever wants it first names the next step: of workers that wait for one another in each step none is beyond it.
    """

    def __init__(self) -> None:
        several = os.environ.get("WORLD_SIZE", "1") not in ("", "0", "1")
        self.path = os.environ.get("BROKER_PROGRESS", "") if several else ""
        self.saves = 0

    def stop(self, step: int) -> bool:
        """Does the program end after this step?"""
        return self._agreed("ends", step, guest.should_stop())

    def save(self, step: int, due: bool) -> bool:
        """Do all save after this step? due: this one would."""
        if not self._agreed(f"save-{self.saves}", step, due):
            return False
        self.saves += 1
        return True

    def _agreed(self, what: str, step: int, wanted: bool) -> bool:
        if not self.path:
            return wanted
        start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        file = f"{self.path}.{what}.{start}"
        if wanted:
            _write_once(file, str(step + 1))
        try:
            return step >= int(_read(file))
        except ValueError:
            return False


def _write_once(path: str, text: str) -> None:
    """Write a file unless it is there; nobody sees half of it. Without a disk nothing is agreed."""
    beside = f"{path}.{os.getpid()}"
    with contextlib.suppress(OSError):
        with open(beside, "w", encoding="ascii") as file:  # noqa: PTH123
            file.write(text)
        os.link(beside, path)
    with contextlib.suppress(OSError):
        os.unlink(beside)  # noqa: PTH108


def training(
    total: int,
    *,
    save: Callable[[int], object],
    load: Callable[[], int | None],
    every_s: float | None = None,
) -> Iterator[int]:
    """The steps that are still to be done, from where `load` says up to `total`; each is counted once it is done::

        for step in training(1000, save=save, load=load):
            train(step)

    load: puts the newest checkpoint back and returns how many steps it holds; None or 0 without one. save: called with
    the number of steps done; every `every_s` seconds (by default as the broker reckons, ten minutes where it says
    nothing), at the end, and when the machine is to be taken away, if the time left suffices. The program then ends
    with 143, in the loop. Workers that torchrun has started do all of that after the same step.
    """
    guest.should_stop()  # from here on SIGTERM asks instead of ending the program
    done = load() or 0
    saves, saved, workers = Saves(every_s), done, Workers()
    for step in range(done, total):
        yield step
        guest.progress(step + 1, total)
        stop = workers.stop(step + 1)
        due = workers.save(step + 1, saves.due())
        if (due or step + 1 == total or stop) and (not stop or saves.fits()):
            saves.begin()
            save(step + 1)
            saves.end()
            saved = step + 1
        if stop and step + 1 < total:
            sys.stderr.write(f"asked to stop after step {step + 1}: step {saved} is saved\n")
            sys.exit(143)
