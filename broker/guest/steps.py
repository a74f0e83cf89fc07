"""`Steps`: how far the program has been, and when."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

from broker.guest import Progress, read_progress

KEPT = 20_000  # samples: at ten a second half an hour, enough for any checkpoint's age


class Steps:
    """Samples one program's progress file. total: the task's own word on the number of steps, where it has one."""

    def __init__(self, file: Path, total: int | None) -> None:
        self.file, self.total = file, total
        self._at: deque[float] = deque(maxlen=KEPT)
        self._step: deque[int] = deque(maxlen=KEPT)

    @property
    def stop_file(self) -> Path:
        return self.file.with_name(self.file.name + ".stop")

    def fresh(self) -> None:
        """A program is about to start: what the last one said is over."""
        # Beside it are the word to stop, and what workers have agreed upon.
        for path in (self.file, *self.file.parent.glob(f"{self.file.name}.*")):
            path.unlink(missing_ok=True)
        self._at.clear()
        self._step.clear()

    def sample(self) -> Progress | None:
        now = read_progress(str(self.file))
        if now is not None and (not self._at or now.at > self._at[-1]):
            self._at.append(now.at)
            self._step.append(now.step)
        return now

    def at(self, moment: float) -> int | None:
        """The step that had been done at `moment`, seconds since the epoch; None where nothing was said yet."""
        self.sample()
        index = bisect_right(self._at, moment)
        return self._step[index - 1] if index else None

    def at_total(self) -> bool:
        now = self.sample()
        if now is None:
            return False
        total = now.total if now.total is not None else self.total
        return total is not None and now.step >= total

    def say_stop(self, word: dict[str, Any]) -> None:
        """Tell `should_stop` and `on_notice` in the program. A full disk only costs them the word."""
        with suppress(OSError):
            new = self.stop_file.with_name(self.stop_file.name + ".new")
            new.write_text(json.dumps(word))
            new.chmod(0o644)
            new.rename(self.stop_file)
