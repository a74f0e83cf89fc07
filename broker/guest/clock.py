"""`Clock`: the store's time, and when this machine must end, by a clock that nobody can set."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Clock:
    """Two bounds for `end_by`: counted from boot, and by the store's time once that is known; the earlier counts.

    end_by, frozen_at: seconds since the epoch, the store's time.
    """

    end_by: float
    end_why: str
    frozen_at: float
    started: float = field(default_factory=time.monotonic)
    offset: float | None = None

    def observe(self, store_time: float, at: float) -> None:
        """The store said `store_time` at the monotonic moment `at`."""
        self.offset = store_time - at

    def now(self) -> float:
        """Seconds since the epoch: the store's time, or this machine's while that is unknown."""
        return time.time() if self.offset is None else time.monotonic() + self.offset

    def latest(self) -> float:
        """The later of both clocks: a notice's end must not be missed because one of them is slow."""
        return max(time.time(), self.now())

    def extend(self, end_by: float, why: str) -> bool:
        """Take the broker's newer word; was it a change?"""
        changed = (end_by, why) != (self.end_by, self.end_why)
        self.end_by, self.end_why = end_by, why
        return changed

    @property
    def deadline(self) -> float:
        """The monotonic moment at which the machine must be gone."""
        by_boot = self.started + max(0.0, self.end_by - self.frozen_at)
        return by_boot if self.offset is None else min(by_boot, self.end_by - self.offset)

    @property
    def left(self) -> float:
        """Seconds until then; negative afterwards."""
        return self.deadline - time.monotonic()

    @property
    def lifetime(self) -> float:
        return max(0.0, self.end_by - self.frozen_at)
