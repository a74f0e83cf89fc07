"""`Notices`: asks the provider's guest half, each second, whether this machine will be taken back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

EVERY = 1.0
WORRY = 30.0  # seconds of unknown after which it is said
USUAL = 25.0  # seconds left after a notice without an end, where the provider has no usual one


@dataclass(frozen=True, slots=True)
class Word:
    """A notice as the guest keeps it. at, ends_at: seconds since the epoch; ends: the monotonic moment of the end."""

    at: float
    ends_at: float | None
    kind: str
    ends: float

    def to_json(self) -> dict[str, Any]:
        return {"at": self.at, "ends_at": self.ends_at, "kind": self.kind}


class Notices(threading.Thread):
    """`word` is the first notice, or None. A provider that cannot be asked means unknown, never none.

    ask: the provider's `notice()`. usual: seconds between notice and end where the notice does not say. now: seconds
    since the epoch. seen: called from any thread.
    """

    def __init__(
        self,
        ask: Callable[[], Mapping[str, Any] | None],
        *,
        usual: float | None,
        now: Callable[[], float] = time.time,
        seen: Callable[[], None],
        warn: Callable[[str], None],
    ) -> None:
        super().__init__(name="notices", daemon=True)
        self._ask, self._usual, self._now, self._seen, self._warn = ask, usual or USUAL, now, seen, warn
        self._lock = threading.Lock()
        self._unknown_since: float | None = None
        self.word: Word | None = None

    def run(self) -> None:
        while self.word is None:
            self.look()
            time.sleep(EVERY)

    def look(self) -> Word | None:
        """Ask now."""
        if self.word is None:
            try:
                answer = self._ask()
            except Exception as error:  # noqa: BLE001 - a provider's own code; whatever it raises means unknown
                self._worry(error)
                return self.word
            self._unknown_since = None
            if answer is not None:
                now = self._now()
                at, ends_at = float(answer.get("at") or now), answer.get("ends_at")
                left = self._usual if ends_at is None else float(ends_at) - now
                if left <= 0:  # seen within a second of being given, so a clock is wrong
                    left = self._usual
                self._take(Word(at, ends_at, str(answer.get("kind", "terminate")), time.monotonic() + left))
        return self.word

    def signalled(self, seconds: float) -> None:
        """The machine's first process got SIGTERM: `seconds` are left."""
        now = time.time()
        self._take(Word(now, now + seconds, "sigterm", time.monotonic() + seconds))

    def _take(self, word: Word) -> None:
        with self._lock:
            if self.word is not None and self.word.ends <= word.ends:
                return
            self.word = word
        self._seen()

    def _worry(self, error: Exception) -> None:
        now = time.monotonic()
        if self._unknown_since is None:
            self._unknown_since = now
        elif now - self._unknown_since > WORRY:
            self._unknown_since = now
            self._warn(f"whether this machine will be taken back has been unknown for {WORRY:.0f} s: {error}")
