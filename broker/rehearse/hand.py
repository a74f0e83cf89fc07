"""The hand that takes machines back in a rehearsal: when, from which, with whose notice.

Each time is a step drawn from the seed, strictly between two saves, in a generation that has saved at least once. The
program's own progress record on the machine's disk says where it is; the manifests in the home say what is saved.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from broker.guest import Progress
    from broker.job import Job
    from broker.manifest import Manifest
    from broker.store import PlacementRow

SECONDS = {"aws": 120, "gcp": 30, "azure": 30, "runpod": 5, "vast": 0}
"""What each provider's notice leaves."""
NOTICES = tuple(SECONDS)
UNSAVED = 60.0
"""Seconds after which a program that has saved nothing is taken back all the same: some save on a notice only."""
BEGINS = 15.0
"""Seconds that every program may take to begin and to save, however little the task says lies between two saves."""
LOOK, LOOK_FAR = 0.01, 0.1
"""Seconds between two looks at the program's record, and at the store and the home."""
PATIENT_INTERVALS = 4
"""So many save intervals after its step at the latest, a take-back no longer waits for the newest save's upload."""


@dataclass(frozen=True, slots=True)
class TakeBack:
    """One machine taken back. step: where its program was. newest, newest_step: the newest snapshot then."""

    number: int
    generation: int
    notice: str
    at: float
    step: int | None
    newest: tuple[int, int] | None
    newest_step: int | None


@dataclass
class Window:
    """When the next take-back may be. place, phase: drawn once per take-back, in [0, 1)."""

    number: int
    count: int
    place: float
    phase: float

    def target(self, step: int, saved: int, interval: int, total: int | None) -> int:
        """The step to strike at: beyond `step`, in this take-back's share of the run, off the grid of saves."""
        wanted = step + 1
        if total:
            low = total * (self.number - 0.6) / (self.count + 0.5)
            high = total * (self.number - 0.1) / (self.count + 0.5)
            wanted = max(wanted, int(low + self.place * (high - low)))
        if interval < 2:
            return wanted
        phase = 1 + int(self.phase * (interval - 1))
        return wanted + (phase - (wanted - saved)) % interval

    def latest(self, target: int, interval: int, total: int | None) -> int:
        """The step after which it no longer waits for an upload, since that would use up what the run has left."""
        patient = target + PATIENT_INTERVALS * interval
        if not total:
            return patient
        following = total * (self.number + 0.4) / (self.count + 0.5)
        return min(patient, int((target + following) / 2))


@dataclass
class Hand:
    """Works in a thread of its own between `with` and its end. taken: what it did; reached: last steps seen."""

    job: Job
    root: Path
    count: int
    notices: Sequence[str]
    seed: int
    baseline: Job | None = None
    taken: list[TakeBack] = field(default_factory=list, init=False)
    reached: dict[int, int] = field(default_factory=dict, init=False)
    interval: int | None = field(default=None, init=False)
    failure: BaseException | None = field(default=None, init=False)
    plan: str = field(default="", init=False)

    def __post_init__(self) -> None:
        lots = random.Random(self.seed)
        self._windows = [Window(n, self.count, lots.random(), lots.random()) for n in range(1, self.count + 1)]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name="rehearsal hand", daemon=True)
        self._seen: dict[int, list[Manifest]] = {}
        self._spacing: float | None = None
        self._first_save = 0.0
        self._running_since: dict[int, float] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(timeout=10.0)
        if self.failure is not None and _error is None:
            raise self.failure

    def _guarded(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits for us
            self.failure = error

    def _work(self) -> None:
        if self.baseline is not None:
            self._learn(self.baseline)
        generation = 0
        for window in self._windows:
            found = self._next_generation(after=generation)
            if found is None:
                return
            generation = found.generation
            if not self._strike(window, found):
                return
        self._follow_last(generation)

    def _learn(self, job: Job) -> None:
        """The distance between two saves, and what the first one takes, from a run that nobody disturbed."""
        manifests = [m for several in self._manifests(job, [p.generation for p in job.placements()]) for m in several]
        steps = [m.step for m in manifests if m.step is not None]
        # The last one is taken when the program has ended, wherever that was.
        self.interval = distance(steps[:-1]) or distance(steps)
        began = [row.program_at for row in job.placements() if row.program_at is not None]
        self._first_save = manifests[0].at - began[0] if manifests and began else 0.0
        gaps = [b.at - a.at for a, b in itertools.pairwise(manifests)]
        self._spacing = sorted(gaps)[len(gaps) // 2] if gaps else None

    def _manifests(self, job: Job, generations: Sequence[int]) -> list[list[Manifest]]:
        from broker.report import read_manifests

        found = read_manifests(job.home, job.id, generations)
        return [found.get(generation, []) for generation in generations]

    def _next_generation(self, *, after: int) -> PlacementRow | None:
        """Wait for a placement newer than `after` whose program has saved; None if the job ends before."""
        while not self._stop.is_set():
            for row in self.job.placements():
                if after > 0 and row.generation == after:
                    self._sample(row)
                if row.generation <= after or row.instance is None or row.ended_at is not None:
                    continue
                self._sample(row)
                self._seen[row.generation] = self._manifests(self.job, [row.generation])[0]
                if self._ready(row):
                    return row
            if self.job.refresh().done:
                return None
            self._stop.wait(LOOK_FAR)
        return None

    def _ready(self, row: PlacementRow) -> bool:
        """Has its program gone on past its start and saved since?"""
        manifests, progress = self._seen[row.generation], self._sample(row)
        if not manifests:
            return self._waited(row)
        if progress is None or manifests[-1].step is None:
            return True
        if self.interval is None:
            self.interval = distance([m.step for m in manifests if m.step is not None])
            if self.interval is None and not _late(progress):
                return False
        return progress.step > progress.first_step

    def _waited(self, row: PlacementRow) -> bool:
        """Has its program run for so long that it will hardly save before a notice?"""
        if not (row.beat or {}).get("program_started_at"):
            return False
        now = time.monotonic()
        # What a task says of its saves does not count how long its program takes to begin, on a busy computer at that.
        checkpoint = self.job.task.checkpoint
        said = max(BEGINS, 3 * checkpoint.every) if checkpoint and checkpoint.every else UNSAVED
        patience = max(min(said, UNSAVED), 2 * self._first_save)
        return now - self._running_since.setdefault(row.generation, now) > patience

    def _strike(self, window: Window, row: PlacementRow) -> bool:
        """Take the machine back at the moment that the lots say; False if the job ended before."""
        moment = _Moment(self, window, row)
        next_look = 0.0
        while not self._stop.is_set():
            progress = self._sample(row)
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + LOOK_FAR
                self._seen[row.generation] = self._manifests(self.job, [row.generation])[0]
                if self.job.refresh().done or self._lost(row):
                    return False
            if moment.come(progress):
                return self._take(window, row, progress)
            self._stop.wait(LOOK)
        return False

    def _lost(self, row: PlacementRow) -> bool:
        """Has the machine ended though nobody here took it?"""
        found = next(p for p in self.job.placements() if p.generation == row.generation)
        return found.ended_at is not None

    def _take(self, window: Window, row: PlacementRow, progress: Progress | None) -> bool:
        from broker_local import cloud

        notice = self.notices[(window.number - 1) % len(self.notices)]
        manifests = self._seen[row.generation]
        newest = manifests[-1] if manifests else None
        cloud.take_back(self.root, row.instance or "", notice=notice)
        self.taken.append(
            TakeBack(
                number=window.number,
                generation=row.generation,
                notice=notice,
                at=time.time(),
                step=progress.step if progress else None,
                newest=(newest.generation, newest.seq) if newest else None,
                newest_step=newest.step if newest else None,
            )
        )
        return True

    def _follow_last(self, generation: int) -> None:
        """After the last take-back only where the programs come to is of interest."""
        while not self._stop.is_set():
            rows = [row for row in self.job.placements() if row.generation >= generation]
            until = time.monotonic() + 1.0
            while time.monotonic() < until and not self._stop.is_set():
                for row in rows:
                    if row.instance is not None:
                        self._sample(row)
                self._stop.wait(LOOK)

    def _sample(self, row: PlacementRow) -> Progress | None:
        """Where the program on a machine is now, or was last; its disk outlives it in a rehearsal."""
        from broker.guest import read_progress
        from broker_local.machine import find

        machine = find(self.root, row.instance or "")
        if machine is None:
            return None
        progress = read_progress(str(machine.disk / "spotbroker" / "task" / "progress"))
        if progress is not None:
            self.reached[row.generation] = max(progress.step, self.reached.get(row.generation, 0))
        return progress


class _Moment:
    """Decides whether the moment has come, by steps where the program reports them, by time where not."""

    def __init__(self, hand: Hand, window: Window, row: PlacementRow) -> None:
        self.hand, self.window, self.row = hand, window, row
        self.target: int | None = None
        self.due: float | None = None

    def come(self, progress: Progress | None) -> bool:
        manifests = self.hand._seen[self.row.generation]  # noqa: SLF001 - one piece of work in two classes
        saved = manifests[-1].step if manifests else None
        interval = self.hand.interval
        if progress is None or saved is None or interval is None:
            return self._by_time(len(manifests))
        if self.target is None:
            self.target = self.window.target(progress.step, saved, interval, progress.total)
            self.hand.plan = f"take-back {self.window.number} at step {self.target}"
        if progress.step < self.target:
            return False
        between = interval < 2 or (progress.step - saved) % interval != 0
        uploaded = progress.step - saved < interval
        return between and (uploaded or progress.step > self.window.latest(self.target, interval, progress.total))

    def _by_time(self, count: int) -> bool:
        """A drawn part of the time between two snapshots after the present one."""
        now = time.monotonic()
        if self.due is None:
            checkpoint = self.hand.job.task.checkpoint
            spacing = self.hand._spacing or (checkpoint.every if checkpoint else None) or 2.0  # noqa: SLF001
            self.due = now + self.window.phase * spacing
            self.hand.plan = f"take-back {self.window.number} after snapshot {count}"
        return now >= self.due


def distance(steps: Sequence[int]) -> int | None:
    """The steps between two saves, as most pairs of neighbours have it; None with fewer than two."""
    gaps = [b - a for a, b in itertools.pairwise(steps) if b > a]
    return min(gaps, key=lambda gap: (-gaps.count(gap), gap)) if gaps else None


def _late(progress: Progress) -> bool:
    """Is so much done that waiting for a second save would be the end of it?"""
    return progress.total is not None and progress.step > 0.6 * progress.total
