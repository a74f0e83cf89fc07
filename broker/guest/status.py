"""`Status`: what the guest says of itself in its beats; shared by its threads."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from broker.guest import read_progress
from broker.guest.clock import Clock

WARNINGS = 5


class Status:
    """The beat's content. `set` wakes whoever sends beats if anything changed; figures that flow do not.

    shown: masks a text before it leaves the machine. changed: called after a change, from any thread.
    """

    def __init__(self, clock: Clock, progress: Path, shown: Callable[[str], str] = str) -> None:
        self.shown = shown
        self.changed: Callable[[], None] = lambda: None
        self._clock, self._progress = clock, progress
        self._lock = threading.Lock()
        self._count = 0
        self._warnings: list[str] = []
        self._said: dict[str, float] = {}
        self._timings: dict[str, float] = {}
        self._facts: dict[str, Any] = {
            "state": "fetching",
            "since": clock.now(),
            "program_started_at": None,
            "restored": None,
            "first_step": None,
            "opened": None,
            "cache": None,
            "seq": 0,
            "manifest_step": None,
            "notice": None,
            "parent_written": False,
            "closed": None,
            "result": None,
            "restarts": 0,
            "access_expires": None,
        }

    def set(self, **facts: Any) -> None:
        with self._lock:
            new = {k: v for k, v in facts.items() if self._facts[k] != v}
            if "state" in new:
                new["since"] = self._clock.now()
            self._facts |= new
        if new:
            self.changed()

    def get(self, name: str) -> Any:
        with self._lock:
            return self._facts[name]

    @property
    def state(self) -> str:
        return str(self.get("state"))

    def timing(self, name: str, seconds: float) -> None:
        """A measured time: pull, cache, setup, restore, upload, save."""
        with self._lock:
            self._timings[name] = round(seconds, 3)

    def measured(self, name: str) -> float | None:
        with self._lock:
            return self._timings.get(name)

    def warn(self, text: str) -> None:
        """Keep a warning, the same one once a minute at most."""
        text = self.shown(text)
        now = time.monotonic()
        with self._lock:
            if now - self._said.get(text, -60.0) < 60.0:
                return
            self._said[text] = now
            self._warnings = [*self._warnings, text][-WARNINGS:]

    def beat(self) -> bytes:
        """The next beat, its counter one higher than the last."""
        progress = read_progress(str(self._progress))
        with self._lock:
            self._count += 1
            facts = dict(self._facts)
            if progress is not None and facts["first_step"] is None:
                self._facts["first_step"] = facts["first_step"] = progress.first_step
            return json.dumps(
                {
                    **facts,
                    "n": self._count,
                    "at": self._clock.now(),
                    "uptime": time.monotonic() - self._clock.started,
                    "progress": progress and {"step": progress.step, "total": progress.total, "at": progress.at},
                    "timings": self._timings,
                    "warnings": self._warnings,
                }
            ).encode()
