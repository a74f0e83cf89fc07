"""`Check`: one thing that a rehearsal looked at, and what it makes of the verdict."""

from __future__ import annotations

from dataclasses import dataclass

SURVIVES, FAILS, UNPROVEN = 0, 100, 101


@dataclass(frozen=True, slots=True)
class Check:
    """code: SURVIVES where it holds, else what it makes of the verdict. advice: one line on what to change."""

    text: str
    code: int = SURVIVES
    advice: str = ""

    @property
    def good(self) -> bool:
        return self.code == SURVIVES


def steps(count: float) -> str:
    return f"{count:g} step{'s' * (count != 1)}"
