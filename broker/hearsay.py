"""What a machine says of itself in the home: `heard`.

Whoever has the machine may write what they like there. What is of the wrong kind counts as not said, so that nobody's
words keep a job, or the other jobs of its home, from being looked after.
"""

from __future__ import annotations

import json
import math
from typing import Any

NUMBERS = frozenset(
    (
        *("n", "at", "uptime", "manifest_step", "first_step", "last_step", "step", "total", "restarts", "exit"),
        *("signal", "program_started_at", "access_expires", "ends_at", "kept_until"),
    )
)
TEXTS = frozenset(("state", "kind", "outcome", "reason", "why", "fix", "cache"))
TABLES = frozenset(("notice", "closed", "result", "progress", "opened", "outputs"))
LARGEST = 1e15
"""Beyond every moment, step and count that there is."""


def heard(raw: bytes | None) -> dict[str, Any] | None:
    """An object's content, without the fields that are of the wrong kind; None without one, and where it is damaged."""
    try:
        said = json.loads(raw) if raw else None
    except (ValueError, RecursionError):
        return None
    return _sound(said) if isinstance(said, dict) else None


def _sound(said: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in said.items():
        if value is None or (name not in KINDS and name not in TABLES) or (name in KINDS and KINDS[name](value)):
            found[name] = value
        elif name in TABLES and isinstance(value, dict):
            found[name] = _sound(value)
    return found


def _number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and abs(value) < LARGEST


KINDS = {
    **dict.fromkeys(NUMBERS, _number),
    "seq": lambda value: isinstance(value, int) and 0 <= value < LARGEST,
    **dict.fromkeys(TEXTS, lambda value: isinstance(value, str)),
    "warnings": lambda value: isinstance(value, list) and all(isinstance(text, str) for text in value),
    "restored": lambda value: isinstance(value, list) and len(value) == 2 and all(map(_number, value)),
    "timings": lambda value: isinstance(value, dict) and all(took is None or _number(took) for took in value.values()),
}
