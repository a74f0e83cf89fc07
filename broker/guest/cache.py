"""`Keeper`: brings the task's cache folders back before setup, and keeps what setup and the program add to them.

A cache is never a reason to fail, to lose work or to hold anything up: whatever goes wrong here is said, and the job
goes on without it. Snapshots come first: while one is being uploaded nothing of a cache is.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from broker.allowance import Stopwatch, TooSlow, to_restore, to_send
from broker.blobs import Pace
from broker.cache import Folder, Times, told_size
from broker.cachefolders import CacheFolders, Look, Moving, size_of
from broker.errors import HomeAccessExpired, SnapshotCorrupt
from broker.guest.context import Context
from broker.guest.places import Places
from broker.guest.spec import Spec
from broker.offer import hourly_of

LOOKS = 30.0  # times the scan of the checkpoint folder, between two looks at the cache folders
SLOWEST_LOOK = 20.0  # and at least so many times what a look takes
SECRET = 12  # characters from which a value in a file is taken for a secret: shorter ones are words of any program
LAST_SAVE = 20.0  # seconds for which the end of a program's machine may wait for a last save
PACE = Pace(files=1, parts=2)


class Stopped(Exception):  # noqa: N818 - a decision
    """A save that is given up, as the machine has something better to do."""


def folders_of(spec: Spec, machine: Path, places: Places) -> dict[str, tuple[Path, Path]]:
    """Name in the task -> (where the folder lies on the machine, where the program sees it).

    machine: the guest's own folder. On a machine shared with its owner absolute paths are left out.
    """
    found = {}
    for name in spec.cache:
        path = Path(name)
        if ".." in path.parts or (path.is_absolute() and places.shared):
            continue
        if path.parts[:1] == ("~",):
            path = places.home / Path(*path.parts[1:])
        elif not path.is_absolute():
            path = machine / "work" / path
        found[name] = (places.here(path), path)
    return found


class Keeper(threading.Thread):
    """`restore` before setup, `start` after it, `finish` when the program has ended.

    busy: is a snapshot being uploaded just now?
    """

    def __init__(self, context: Context, spec: Spec, places: Places) -> None:
        super().__init__(name="cache", daemon=True)
        c = self.context = context
        folders = folders_of(spec, c.folder, places)
        self.folders = CacheFolders(c.home, c.keys.job, c.generation, folders, self._hides, PACE)
        self.busy: Callable[[], bool] = lambda: False
        self._left_out = [name for name in spec.cache if name not in folders]
        self._times = Times()
        self._began_with: str | None = None
        self._setup: float | None = None
        self._first: float | None = None
        self._after_setup: int | None = None
        self._saved: tuple[dict[str, Look], Times] | None = None
        self._limit: float | None = None
        self._brought: dict[str, Folder] = {}
        self._said = ""
        self._given_up = threading.Event()
        self._hold = threading.Event()
        self._last = threading.Event()
        self._wake = threading.Event()

    # Before setup

    def restore(self) -> None:
        """Put the cache into place if that pays; whatever comes of it is said."""
        if self._left_out:
            self._say(f"cache: {', '.join(self._left_out)}: absolute, so not kept on a machine shared with its owner")
        try:
            self._restore()
        except TooSlow as slow:
            pays = (
                f"and that pays up to {self._limit or 0.0:.0f} s: fetching again took {self._times.cold or 0.0:.0f} s"
            )
            self._say(f"cache not restored: {slow} here, {pays}")
        except Stopped:
            return
        except SnapshotCorrupt as error:
            self.folders.distrust()
            self._say(f"cache not restored, so it is fetched again: {error}")
        except Exception as error:  # noqa: BLE001 - the job goes on without it
            self._say(f"cache not restored, so it is fetched again: {error or type(error).__name__}")

    @contextmanager
    def laying(self) -> Iterator[None]:
        """While the task's own files are put in place: they may lie in the folders, or take the place of what does."""
        before: dict[str, Look] | None = None
        with suppress(OSError):
            before = self.folders.look()
        yield
        with suppress(OSError):
            if before is not None:
                self.folders.lain(before)

    def _restore(self) -> None:
        c = self.context
        self._began_with = "nothing"
        cache = self.folders.find()
        if cache is None:
            if size_of(self.folders.look()):
                self._began_with = None  # of an image, or this machine's own from before it came back
            return
        self._times = cache.times
        missing = self.folders.missing()
        octets = sum(size for folder in missing.values() for size in folder.blobs.values())
        if not missing:
            self._began_with = None
            return
        self._limit, why = to_restore(octets, cache.times, self._hourly(), c.boot.egress)
        if why:
            self._say(f"cache not restored: {why}")
            return
        begun = time.monotonic()
        watch = Stopwatch(octets, self._limit)

        def gate(passed: int) -> None:
            if self._given_up.is_set():
                raise Stopped
            watch(passed)

        for name, folder in missing.items():
            self.folders.bring({name: folder}, gate)
            self._brought[name] = folder
        taken = time.monotonic() - begun
        c.status.timing("cache", taken)
        self._began_with = "all"
        again = f"; fetching again took {cache.times.cold:.0f} s" if cache.times.cold is not None else ""
        source = "" if self.folders.source else ", of an earlier job"
        self._say(f"cache restored{source}: {told_size(octets)} in {taken:.1f} s{again}")

    def _hourly(self) -> float:
        return hourly_of(self.context.boot.offer) if self.context.boot.offer else 0.0

    def take_out(self) -> bool:
        """Setup has failed: take out again what was restored, if anything was, so that it can be tried without."""
        if not self._brought:
            return False
        self.folders.remove(self._brought)
        self._brought, self._began_with = {}, "nothing"
        self._say("setup failed with the cache restored: once more without it")
        return True

    # While setup and the program run

    def ready(self, seconds: float, *, setup: bool) -> None:
        """Setup took so long, or else the program to its first step."""
        if setup:
            self._setup = seconds
        elif self._first is None:
            self._first = seconds

    def _timed(self, octets: int) -> Times:
        """What starting took, as far as that is known by now. octets: that lie in the folders.

        What mostly lies there when setup has ended was fetched by setup.
        """
        known = self._times
        by_setup = known.by_setup
        if self._began_with == "nothing":
            by_setup = self._setup is not None and 2 * (self._after_setup or 0) >= octets
        took = self._setup if by_setup else None if self._first is None else (self._setup or 0.0) + self._first
        if took is None or self._began_with is None:
            return known
        if self._began_with == "all":
            return replace(known, warm=took)
        return Times(took, known.warm if by_setup == known.by_setup else None, by_setup)

    def run(self) -> None:
        with suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        before: dict[str, Look] | None = None
        while not self._given_up.is_set():
            last, begun = self._last.is_set(), time.monotonic()
            before = self._look(before, settled=last or before is None)
            if last:
                return
            taken = time.monotonic() - begun
            self._wake.wait(max(LOOKS * self.context.boot.scan, SLOWEST_LOOK * taken))
            self._wake.clear()

    def _look(self, before: dict[str, Look] | None, *, settled: bool) -> dict[str, Look] | None:
        """Save what has changed since the last save, once it has not since `before`. settled: nothing writes now."""
        c = self.context
        try:
            now = self.folders.look()
            octets = size_of(now)
            if self._after_setup is None:
                self._after_setup = octets
            times = self._timed(octets)
            news = octets > 0 and (now, times) != self._saved and (settled or now == before)
            if news and not self._over and self._worth(now, times):
                begun = time.monotonic()
                cache = self.folders.save(now, self._gate, times)
                self._saved = (now, times)
                if cache is not None:
                    left = f"; left out: {', '.join(sorted(self.folders.left)[:3])}" if self.folders.left else ""
                    self._say(
                        f"cache saved: {told_size(cache.size)} in {cache.files:,} files, "
                        f"in {time.monotonic() - begun:.1f} s{left}"
                    )
            return now
        except (Stopped, Moving):
            return None
        except HomeAccessExpired:
            c.uplink.renew()
        except Exception as error:  # noqa: BLE001 - whatever it is, the next look may go well
            c.status.warn(f"the cache could not be saved: {error or type(error).__name__}")
        return None

    def _worth(self, now: Mapping[str, Look], times: Times) -> bool:
        """May it be sent, by what that costs? What speaks against it is said once."""
        octets = self.folders.unsent(now)
        if why := to_send(octets, times.cold, self._hourly(), self.context.boot.leaving):
            if not self._said:
                self._say(f"cache not saved: {why}")
            self._said = why
        return not why

    def _gate(self, _octets: int) -> None:
        """Raises Stopped, or waits while something more important is on its way."""
        while not self._over and (self._hold.is_set() or self.busy()):
            self._given_up.wait(0.2)
        if self._over:
            raise Stopped

    @property
    def _over(self) -> bool:
        """Is the machine about to go, or its program about to be ended?"""
        return self._given_up.is_set() or self.context.status.state == "stopping"

    def hold(self) -> None:
        """The program has ended: its outputs and its last snapshot come first."""
        self._hold.set()

    def finish(self, seconds: float) -> None:
        """Save what is new, for so many seconds at most; then nothing more is uploaded."""
        self._hold.clear()
        if self.is_alive() and seconds > 0:
            self._last.set()
            self._wake.set()
            self.join(seconds)
        self._given_up.set()
        self._wake.set()

    def _say(self, text: str) -> None:
        c = self.context
        c.log.say(c.status.shown(text))
        c.status.set(cache=c.status.shown(text))

    def _hides(self, data: bytes) -> bool:
        return any(value in data for value in self.context.mask.values if len(value) >= SECRET)
