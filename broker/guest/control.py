"""What, if anything, asks the program to end now: the broker's order, a notice, the machine's own end."""

from __future__ import annotations

import time
from dataclasses import dataclass

from broker.guest.bootfile import Boot
from broker.guest.clock import Clock
from broker.guest.ending import Cause
from broker.guest.notice import Notices
from broker.guest.status import Status
from broker.guest.uplink import Uplink

MARGIN = 1.0  # seconds before the machine's end by which the program is dead
UNKNOWN = 15.0  # seconds that a save or an upload is taken to need before any was measured, for the machine's own end


@dataclass(slots=True)
class Stop:
    """A stop under way. ask: the program gets SIGTERM; kill_at: the monotonic moment after which it is killed."""

    cause: Cause
    ask: bool
    kill_at: float


@dataclass(slots=True)
class Watchman:
    """Sees everything that may end the program, and decides how much time it gets."""

    boot: Boot
    clock: Clock
    status: Status
    uplink: Uplink
    notices: Notices

    def cause(self) -> Cause | None:
        """The strongest reason to end that holds now."""
        if self.uplink.stale:
            return Cause("stale", "stale", f"generation {self.boot.generation} no longer stands")
        word, order = self.notices.word, self.uplink.order
        ends = word.ends if word else None
        if order is not None and (order.order == "end" or (order.order == "retire" and word is None)):
            return Cause(
                "order", order.why or order.order, f"the broker asked for it: {order.why or order.order}", ends
            )
        if word is not None:
            left = max(0.0, word.ends - time.monotonic())
            return Cause("notice", word.kind, f"notice ({word.kind}): the machine goes in {left:.0f} s", ends)
        if time.monotonic() >= self.clock.deadline - self._reserve():
            return Cause("end_by", self.clock.end_why, f"the machine's time is over: {self.clock.end_why}", ends)
        return None

    def limit(self, cause: Cause) -> float:
        """The monotonic moment at which the machine may be gone."""
        return self.clock.deadline if cause.ends is None else min(cause.ends, self.clock.deadline)

    def plan(self, cause: Cause) -> Stop:
        """How to stop for this cause.

        On notice a save is asked for only if it and its upload fit the time left, as far as they were measured; else
        the running upload is finished. In every case the program is dead before the machine may be gone.
        """
        now = time.monotonic()
        left = max(0.0, self.limit(cause) - now)
        last = now + left - min(MARGIN, 0.1 * left)
        save, upload = self.status.measured("save"), self.status.measured("upload")
        if cause.kind == "notice" and (save or 0.0) + (upload or 0.0) > last - now:
            return Stop(cause, ask=False, kill_at=last)
        reserve = min(upload, 0.5 * left) if upload is not None else 0.25 * left
        kill_at = max(now, last - reserve)
        hasty = cause.kind in ("order", "stuck")
        return Stop(cause, ask=True, kill_at=min(kill_at, now + self.boot.grace) if hasty else kill_at)

    def hurry(self, stop: Stop, cause: Cause) -> None:
        """Another cause came up while stopping: it can only shorten the time."""
        if cause.ends is not None:
            stop.kill_at = min(stop.kill_at, self.plan(cause).kill_at)

    def _reserve(self) -> float:
        """Seconds before the machine's end at which the program is asked to save."""
        save, upload = self.status.measured("save"), self.status.measured("upload")
        known = (UNKNOWN if save is None else 1.5 * save) + (UNKNOWN if upload is None else 1.5 * upload)
        return min(known + 2 * MARGIN, 0.2 * self.clock.lifetime)
