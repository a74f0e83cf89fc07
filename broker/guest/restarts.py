"""`Restarts`: what follows a failure. A resume that fails at once is retried, then an older snapshot is tried."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

AT_ONCE = 60.0  # seconds within which a failure is blamed on what was restored


class Again(StrEnum):
    """How to start once more."""

    SAME = "the same snapshot again"
    PREVIOUS = "the snapshot before it"
    NEWEST = "the newest snapshot"


@dataclass(slots=True)
class Restarts:
    """One guest's memory of failures. left: the task's `max_restarts_on_errors` still unused; moves never reset it."""

    left: int
    used: int = 0
    tried: list[str] = field(default_factory=list)
    at_once: int = 0

    def next(
        self, failure: str, *, seconds: float, restored: bool, new_snapshot: bool, free: bool = False
    ) -> Again | None:
        """None: give up. seconds: how long it ran; new_snapshot: it had published one since it started.

        free: the task wants this failure tried again without counting it.
        """
        quick = seconds < AT_ONCE and not new_snapshot
        self.at_once = self.at_once + 1 if quick else 0
        if quick and restored and self.at_once <= 2:
            again = Again.SAME if self.at_once == 1 else Again.PREVIOUS
            self.tried.append(f"{failure} after {seconds:.0f} s; then {again}")
            return again
        # Three failures in a row within a minute of their starts are the program's, whatever may still be left.
        if (free or self.left > 0) and self.at_once < 3:
            self.left -= 0 if free else 1
            self.used += 0 if free else 1
            self.tried.append(f"{failure} after {seconds:.0f} s; then {Again.NEWEST}")
            return Again.NEWEST
        return None

    def story(self) -> str:
        return "; ".join(self.tried)
