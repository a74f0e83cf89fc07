"""A user's wish that a job leaves its machine, as the store keeps it until the job's watch has carried it out."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

MOVE, MOVE_NOW = "move", "move-now"
WISH = re.compile(rf"({MOVE}|{MOVE_NOW}) (\d+)(?: (\[.*\]))?")


@dataclass(frozen=True, slots=True)
class Leaving:
    """Off the machine of a generation: it names it, so that it is carried out once however often it is read.

    now: without a last save. to: patterns as in a task's `infra`, among which the next placement is chosen; none: as
    ever.
    """

    generation: int
    now: bool = False
    to: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """What is written down."""
        where = f" {json.dumps(self.to)}" if self.to else ""
        return f"{MOVE_NOW if self.now else MOVE} {self.generation}{where}"

    @classmethod
    def of(cls, want: str | None) -> Leaving | None:
        """What a job's `want` says of it; None where it says another thing, or nothing."""
        found = WISH.fullmatch(want or "")
        return cls(int(found[2]), found[1] == MOVE_NOW, tuple(json.loads(found[3] or "[]"))) if found else None
