"""`Kept`: what AWS said that does not change by the minute, on disk for every process: zones, types, list prices."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
HOUR, DAY = 3600.0, 86_400.0
EMPTY = 60.0  # seconds for which "nothing" is kept: as often as not something is wrong there


class Kept:
    """JSON files in a folder, each with the moment it was fetched."""

    def __init__(self, folder: Path, now: Callable[[], float] = time.time) -> None:
        self.folder, self._now = folder, now
        self._locks: dict[str, threading.Lock] = defaultdict(threading.Lock)

    def get(self, name: str, age: float, fetch: Callable[[], T]) -> T:
        """The value of that name, at most `age` seconds old; fetched and put down where there is none.

        What `fetch` gives must survive JSON. A folder that cannot be written only costs the call again.
        """
        path = self.folder / f"{re.sub(r'[^A-Za-z0-9._-]', '_', name)}.json"
        with self._locks[name]:  # regions are asked side by side, and some need the same
            found = self._read(path, age)
            if found is not None:
                kept: T = found["value"]
                return kept
            value = fetch()
            self._write(path, value)
        return value

    def _write(self, path: Path, value: Any) -> None:
        with contextlib.suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft = path.with_suffix(f".{os.getpid()}.{time.monotonic_ns()}")
            draft.write_text(json.dumps({"at": self._now(), "value": value}), encoding="utf-8")
            draft.replace(path)

    def _read(self, path: Path, age: float) -> dict[str, Any] | None:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            # A clock that was set back must not keep what is old for as long as it went.
            fresh = 0 <= self._now() - data["at"] <= (age if data["value"] else min(age, EMPTY))
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return data if fresh else None
