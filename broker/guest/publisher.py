"""`Publisher`: the thread that publishes snapshots while the program runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from broker.complete import NAMED_UNFINISHED, Scan
from broker.entries import kind_of, step_of
from broker.errors import HomeAccessExpired
from broker.guest.status import Status
from broker.guest.steps import Steps
from broker.guest.uplink import reachable
from broker.snapshot import Manifest, Snapshotter

AFTER_ERROR = 5.0
EMPTY = 30.0
"""Times the patience with an entry that is not complete, after which it is said that there is none at all."""


class Publisher(threading.Thread):
    """Scans every `scan` seconds and publishes what is new, at least `every` seconds apart.

    A store that fails costs a warning and another try; the program never notices. patience: seconds after which an
    entry that is still not complete is warned of, and many times that a folder with nothing in it. expired: takes fresh
    access.
    """

    def __init__(
        self,
        snapshotter: Snapshotter,
        *,
        scan: float,
        every: float,
        patience: float,
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
        self._patience = patience
        self._unfinished: dict[str, float] = {}
        self._warned: set[str] = set()
        self._next = 0.0
        self._began = time.monotonic()

    def run(self) -> None:
        while not self._stop_asked.wait(self._scan):
            self._look()

    def _look(self) -> None:
        try:
            scan = self.snapshotter.scan()
            self._measure(scan)
            self._warn(scan)
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
            # A log in a container is written all the time: that it was quiet once says nothing of a save.
            log = "/" in name and step_of(name) is None and scan.how.get(name) in ("quiet", "closed")
            if name in scan.complete and not log:
                self.status.timing("save", now - begun)
            if name not in scan.skipped:
                del self._unfinished[name]
        for name in scan.skipped:
            self._unfinished.setdefault(name, now)

    def _warn(self, scan: Scan) -> None:
        """Say once of each kind of entry that it does not become complete. Temporary names are meant not to."""
        now = time.monotonic()
        files = any(tree.files for tree in scan.complete.values())
        nothing = self.published is None and not files and not scan.incomplete
        if nothing and now - self._began > EMPTY * self._patience and "" not in self._warned:
            self._warned.add("")
            self.status.warn(
                f"nothing lies in the checkpoint folder {self.snapshotter.seen} {(now - self._began) / 60:.0f} minutes "
                "after the program's start: what it does is lost with its machine. Does it save there, to "
                "$BROKER_CHECKPOINT_DIR?"
            )
        for name, why in scan.incomplete.items():
            waited = now - self._unfinished.get(name, now)
            if why == NAMED_UNFINISHED or waited <= self._patience or kind_of(name) in self._warned:
                continue
            self._warned.add(kind_of(name))
            self.status.warn(
                f"{name} in the checkpoint folder has been incomplete for {waited:.0f} s, and no snapshot takes it so: "
                f"{why}; write to a temporary name and rename it into place, or set checkpoint.complete"
            )
