"""The mover of a rehearsal on rented machines: when the job is to leave its first machine, and when enough was seen.

It knows the job's rows and its home and nothing of any provider. The first machine ends by the broker's own hand, as a
provider would take it: told in good time, or at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self

from broker.rehearse.hand import SECONDS, TakeBack, distance

if TYPE_CHECKING:
    from broker.job import Job
    from broker.manifest import Manifest
    from broker.store import PlacementRow

ENOUGH_SAVES = 2
SHARE = 0.6
"""Of a machine's time: after so much of it the move is made, whatever was saved."""
UNSAVED = 60.0
"""Seconds after which a program that has saved nothing is moved all the same: some save on a notice only."""
NO_SECOND = 600.0
"""Seconds after the move within which the second machine must have been found."""
LOOK, LOOK_FAR = 0.3, 2.0
"""Seconds between two looks: into a folder on this computer, and into a store that is billed by request."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the checkpoints' way costs. up, down: USD per GiB that a machine sends and receives; purse: USD at most."""

    up: float = 0.0
    down: float = 0.0
    purse: float = 0.0

    def too_much(self, manifests: Sequence[Manifest]) -> bool:
        """Would what these snapshots have sent, and the next machine's restore of the newest, be beyond the purse?"""
        sent = {file.sha256: file.size for manifest in manifests for file in manifest.files.values()}
        restored = manifests[-1].size if manifests else 0
        return (sum(sent.values()) * self.up + restored * self.down) / 1024**3 > self.purse


@dataclass
class Mover:
    """Works in a thread of its own between `with` and its end.

    seconds: of each machine, from its launch to its own end. notice: whose way of taking back. taken: what it did.
    reached: last steps seen, by generation. satisfied: the second machine has shown all that is needed. problem: why it
    never did.
    """

    job: Job
    notice: str
    seconds: float
    traffic: Traffic = Traffic()
    count: int = 1
    taken: list[TakeBack] = field(default_factory=list, init=False)
    reached: dict[int, int] = field(default_factory=dict, init=False)
    interval: int | None = field(default=None, init=False)
    satisfied: bool = field(default=False, init=False)
    problem: str = field(default="", init=False)
    failure: BaseException | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name="rehearsal mover", daemon=True)
        self._look = LOOK if self.job.row.home.startswith("file:") else LOOK_FAR

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(timeout=30.0)
        if self.failure is not None and error is None:
            raise self.failure

    def _guarded(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits for us
            self.failure = error
            self.job.stop()

    def _work(self) -> None:
        first = self._saved_twice()
        if first is None:
            return
        second = self._second(after=first.generation)
        if second is not None:
            self._watch_going_on(second)
        if not self._stop.is_set() and not self.job.refresh().done:
            self.job.stop()

    def _rounds(self) -> bool:
        """Wait for the next look; False once the job has ended, or nobody wants to know any more."""
        return not self._stop.wait(self._look) and not self.job.refresh().done

    def _saved_twice(self) -> PlacementRow | None:
        """Wait until the first machine's program has saved often enough, and have the job moved away from it."""
        while self._rounds():
            rows = self._rented()
            if not rows:
                continue
            row = rows[0]
            if len(rows) > 1 or row.ended_at is not None:
                return self._went_by_itself(row)
            manifests = self._manifests(row.generation)
            if self.traffic.too_much(manifests):
                self.problem = "its checkpoints' traffic would cost more than was set aside for it"
                self.job.stop()
                return None
            if self._ripe(row, manifests):
                self._take(row, manifests)
                self.job.move(now=SECONDS[self.notice] == 0)
                return row
        return None

    def _ripe(self, row: PlacementRow, manifests: Sequence[Manifest]) -> bool:
        if len(manifests) >= ENOUGH_SAVES:
            return True
        running = (row.beat or {}).get("program_started_at")
        if not running:
            return False
        now = time.time()
        late = now - (row.launched_at or now) > SHARE * self.seconds
        return late or (not manifests and now - running > UNSAVED and self._patience() <= UNSAVED)

    def _patience(self) -> float:
        """Seconds within which a program of this task should have saved, as far as the task says."""
        checkpoint = self.job.task.checkpoint
        return 2 * checkpoint.every if checkpoint is not None and checkpoint.every else UNSAVED

    def _went_by_itself(self, row: PlacementRow) -> PlacementRow | None:
        """The first machine has gone before it was its turn: its provider's own take-back serves as well."""
        if (row.beat or {}).get("program_started_at"):
            self._take(row, self._manifests(row.generation))
            return row
        self.problem = "its first machine ended before the program started"
        self.job.stop()
        return None

    def _take(self, row: PlacementRow, manifests: Sequence[Manifest]) -> None:
        self.interval = distance([m.step for m in manifests if m.step is not None])
        newest, progress = (manifests[-1] if manifests else None), (row.beat or {}).get("progress") or {}
        self.taken.append(
            TakeBack(
                number=1,
                generation=row.generation,
                notice=self.notice,
                at=time.time(),
                step=progress.get("step"),
                newest=(newest.generation, newest.seq) if newest else None,
                newest_step=newest.step if newest else None,
            )
        )

    def _second(self, *, after: int) -> PlacementRow | None:
        """Wait for the machine that the job goes on with."""
        until = time.monotonic() + NO_SECOND
        while self._rounds():
            if (row := next((r for r in self._rented() if r.generation > after), None)) is not None:
                return row
            if time.monotonic() > until:
                self.problem = f"no second machine could be had within {NO_SECOND / 60:.0f} minutes"
                return None
        return None

    def _watch_going_on(self, row: PlacementRow) -> None:
        """Wait until the second machine's program has saved, or has gone on for as long as a save usually takes."""
        while self._rounds():
            row = next(r for r in self._rented() if r.generation == row.generation)
            if row.ended_at is not None:
                return
            if self._manifests(row.generation) or self._gone_on(row):
                self.satisfied = True
                return

    def _gone_on(self, row: PlacementRow) -> bool:
        beat = row.beat or {}
        running = beat.get("program_started_at")
        seen = beat.get("first_step") is not None or (beat.get("opened") or {}).get("read")
        return bool(running and seen and time.time() - running > max(UNSAVED, self._patience()))

    def _rented(self) -> list[PlacementRow]:
        rows = [row for row in self.job.placements() if row.launched_at is not None]
        for row in rows:
            step = ((row.beat or {}).get("progress") or {}).get("step")
            if step is not None:
                self.reached[row.generation] = max(step, self.reached.get(row.generation, 0))
        return rows

    def _manifests(self, generation: int) -> list[Manifest]:
        """The snapshots of one generation; none while the home does not answer."""
        from broker.errors import HomeError
        from broker.report import read_manifests

        try:
            return read_manifests(self.job.home, self.job.id, [generation]).get(generation, [])
        except HomeError:
            return []
