"""`Publisher`: the thread that publishes snapshots while the program runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from broker.complete import Scan
from broker.errors import HomeAccessExpired
from broker.guest.status import Status
from broker.guest.steps import Steps
from broker.guest.uplink import reachable
from broker.snapshot import Manifest, Snapshotter

AFTER_ERROR = 5.0


class Publisher(threading.Thread):
    """Scans every `scan` seconds and publishes what is new, at least `every` seconds apart.

    A store that fails costs a warning and another try; the program never notices. expired: takes fresh access.
    """

    def __init__(
        self,
        snapshotter: Snapshotter,
        *,
        scan: float,
        every: float,
        status: Status,
        steps: Steps,
        expired: Callable[[], None],
    ) -> None:
        super().__init__(name="publisher", daemon=True)
        self.snapshotter, self.status, self.steps = snapshotter, status, steps
        self.published: Manifest | None = None
        self.uploading = False
        self._scan, self._every, self._expired = scan, every, expired
        self._stop_asked = threading.Event()
        self._unfinished: dict[str, float] = {}
        self._next = 0.0

    def run(self) -> None:
        while not self._stop_asked.wait(self._scan):
            self._look()

    def _look(self) -> None:
        try:
            scan = self.snapshotter.scan()
            self._measure(scan)
            if time.monotonic() >= self._next and scan.complete:
                reachable(self.snapshotter.home.url)
                self.uploading = True
                self._take(self.snapshotter.publish(scan, step_at=self.steps.at))
        except Exception as error:  # noqa: BLE001 - whatever it is, the next look may go well
            self.status.warn(f"a snapshot could not be published: {error}")
            if isinstance(error, HomeAccessExpired):
                self._expired()
            self._next = max(self._next, time.monotonic() + min(AFTER_ERROR, 2 * self._scan))
        finally:
            self.uploading = False

    def stop(self, until: float) -> bool:
        """Finish a running upload, but no later than `until` (monotonic), and stop. False: it still hangs."""
        self._stop_asked.set()
        if self.is_alive():
            self.join(max(0.0, until - time.monotonic()))
        return not self.is_alive()

    def final(self, *, killed: bool) -> bool:
        """Publish what the ended program has left; only after `stop`. Raises HomeError."""
        self._take(self.snapshotter.final(killed=killed, step_at=self.steps.at))
        return True

    def _take(self, manifest: Manifest | None) -> None:
        if manifest is None:
            return
        self.published = manifest
        self._next = time.monotonic() + self._every
        self.status.timing("upload", self.snapshotter.upload_seconds)
        self.status.set(seq=manifest.seq, manifest_step=manifest.step)

    def _measure(self, scan: Scan) -> None:
        """How long the program takes to save: from an entry's first, unfinished sight until it is complete."""
        now = time.monotonic()
        for name, begun in list(self._unfinished.items()):
            if name in scan.complete:
                self.status.timing("save", now - begun)
            if name not in scan.skipped:
                del self._unfinished[name]
        for name in scan.skipped:
            self._unfinished.setdefault(name, now)
