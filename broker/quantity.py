"""Numbers, sizes and times as people write them in a task file, read strictly.

Every function takes the text as typed and raises ValueError with a sentence that fits behind the field's name.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_COUNT = re.compile(r"\d+", re.ASCII)
_SIZE = re.compile(r"(?P<number>.*?)\s*(?P<unit>[kmgt]i?b?|b)?", re.ASCII | re.IGNORECASE)
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)\s*([dhms])\s*)+", re.ASCII)
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([dhms])", re.ASCII)
_CLOCK = re.compile(r"([01]?\d|2[0-3]):[0-5]\d", re.ASCII)
_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_WITH_UNIT = re.compile(r"\$? ?(\d+(?:\.\d+)?) ?(?:\$|USD|h|hours?)?", re.IGNORECASE)
# Machines are sold by nominal size: the 32 GB of one provider are the 32 GiB of another. So GB and GiB mean the same.
_GIB = {"k": 1 / 1024**2, "m": 1 / 1024, "g": 1.0, "t": 1024.0}
_TRUTH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}

MOST = 1e9
"""Beyond every price, size and count that anybody means; what is reckoned with larger ones overflows."""
LONGEST = 100 * 365.25 * 86_400
"""Seconds of a hundred years: clocks and calendars end not long after."""


def number(text: str) -> float:
    """A finite decimal number. `nan`, `inf`, `1_000` and hexadecimal are refused."""
    if not _NUMBER.fullmatch(text.strip()) or not math.isfinite(value := float(text)):
        plain = _WITH_UNIT.fullmatch(text.strip())
        raise ValueError(f"must be a number, not {text!r}" + (f"; write {plain[1]}" if plain else ""))
    return value


def positive(text: str) -> float:
    """A number above zero and at most `MOST`."""
    value = number(text)
    if not value > 0:
        raise ValueError(f"must be above zero, not {text!r}")
    if value > MOST:
        raise ValueError(f"must be at most {MOST:,.0f}, not {text!r}")
    return value


def count(text: str) -> int:
    """A whole number, zero or more."""
    if not _COUNT.fullmatch(text.strip()) or len(text) > 15:
        raise ValueError(f"must be a whole number, zero or more, not {text!r}")
    return int(text)


def at_least(text: str) -> float:
    """`4` or `4+`, a number above zero. Both mean at least that much: a bigger machine at a lower price is welcome."""
    return positive(text.strip().removesuffix("+"))


def size(text: str) -> float:
    """GiB from `16`, `16+`, `32GB`, `32GB+`, `512MB`, `1TiB`; above zero. GB and GiB are taken as the same."""
    bare = text.strip().removesuffix("+").strip()
    match = _SIZE.fullmatch(bare)
    unit = (match["unit"] or "g").lower() if match else ""
    if match is None or unit == "b":
        raise ValueError(f"must be a size such as 16 or 32GB, not {text!r}")
    try:
        value = number(match["number"]) * _GIB[unit[0]]
    except ValueError:
        value = 0.0
    if not 0 < value <= MOST:
        limit = f"of at most {MOST:,.0f} GiB" if value > MOST else "above zero such as 16 or 32GB"
        raise ValueError(f"must be a size {limit}, not {text!r}")
    return value


def data(text: str) -> float:
    """GiB from `400`, `400GB` or `400GiB`, above zero. Data is charged by the GB, so that here it is no GiB."""
    gib, match = size(text), _SIZE.fullmatch(text.strip().removesuffix("+").strip())
    unit = (match["unit"] or "g").lower() if match else "g"
    return gib if "i" in unit else gib * (1000 / 1024) ** ("kmgt".index(unit[0]) + 1)


@dataclass(frozen=True, slots=True)
class Times:
    """A size given as so many GiB for each CPU."""

    factor: float


def memory(text: str) -> float | Times:
    """As `size`, or `4x`: so many GiB for each CPU."""
    bare = text.strip().removesuffix("+").strip()
    return Times(positive(bare[:-1])) if bare[-1:] in ("x", "X") else size(text)


def duration(text: str) -> float:
    """Seconds from `30s`, `5m`, `1h30m`, `2d` or a bare number of seconds; above zero."""
    bare = text.strip().lower()
    seconds = (
        sum(float(amount) * _SECONDS[unit] for amount, unit in _PART.findall(bare))
        if _DURATION.fullmatch(bare)
        else _seconds(bare, text)
    )
    if not (seconds > 0 and math.isfinite(seconds)):
        raise ValueError(f"must be a time above zero such as 30s or 5m, not {text!r}")
    if seconds > LONGEST:
        raise ValueError(f"must be at most 100 years, not {text!r}")
    return seconds


def past(text: str, now: float, zone: tzinfo | None = None) -> float:
    """Seconds since the epoch of `10m` before now, of the last `22:00`, or of a date and time as ISO 8601 has them.

    zone: of what says none; None for this computer's.
    """
    bare = text.strip()
    if _CLOCK.fullmatch(bare):
        hour, minute = (int(part) for part in bare.split(":"))
        day = datetime.fromtimestamp(now, zone)
        days = (datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone) - timedelta(days=n) for n in range(3))
        return next(at for local in days if (at := local.timestamp()) <= now)
    try:
        given = datetime.fromisoformat(bare.replace(" ", "T", 1)) if "-" in bare else None
    except ValueError:
        given = None
    if given is None:
        try:
            return now - duration(bare)
        except ValueError:
            wanted = "a time such as 10m, a clock time such as 22:00, or a date"
            raise ValueError(f"must be {wanted}, not {text!r}") from None
    at = (given if given.tzinfo else given.replace(tzinfo=zone)).timestamp()
    if at > now:
        raise ValueError("has not come yet")
    return at


def deadline(text: str) -> str:
    """A time from now such as `6h`, a clock time `07:30`, or a date and time as ISO 8601 has them; as it was typed."""
    bare = text.strip()
    if _CLOCK.fullmatch(bare):
        return bare
    try:
        given = datetime.fromisoformat(bare.replace(" ", "T", 1))
    except ValueError:
        pass
    else:
        if "-" in bare and 1970 <= given.year < 3000:
            return bare
    if not _DURATION.fullmatch(bare.lower()):
        raise ValueError(f"must be a time such as 6h, a clock time such as 07:30, or a date and time, not {text!r}")
    duration(bare)
    return bare


def _seconds(bare: str, text: str) -> float:
    try:
        return number(bare)
    except ValueError:
        raise ValueError(f"must be a time such as 30s, 5m or 1h, not {text!r}") from None


def truth(text: str) -> bool:
    """true or false; yes, no, on and off too, as files written for YAML 1.1 have them."""
    value = _TRUTH.get(text.strip().lower())
    if value is None:
        raise ValueError(f"must be true or false, not {text!r}")
    return value
