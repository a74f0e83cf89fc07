"""`Mask`: takes secret values out of a stream of bytes, also where a value is cut by the border of two chunks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote, quote_plus

LEAST = 4  # values shorter than this are left: masking "on" or "1" would hide the log itself
LEAST_LINE = 2 * LEAST  # and shorter lines of a longer value: its lines are often common words
SHOWN = b"***"


def too_short(secrets: Mapping[str, str]) -> tuple[str, ...]:
    """The names of secrets that a log may show, whole or a line of them, as they are too short to be masked."""
    return tuple(name for name, value in secrets.items() if _unmasked(value.strip()))


def _unmasked(value: str) -> bool:
    if 0 < len(value.encode("utf-8", "surrogateescape")) < LEAST:
        return True
    lines = [line.strip() for line in value.splitlines()]
    # A line of brackets alone, as in JSON, gives nothing away.
    return len(lines) > 1 and any(
        0 < len(x.encode("utf-8", "surrogateescape")) < LEAST_LINE and any(map(str.isalnum, x)) for x in lines
    )


def _spellings(value: str) -> set[bytes]:
    """A value as programs print it inside other text."""
    written = (
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        repr(value)[1:-1],
        quote(value, safe="", errors="surrogateescape"),
        quote_plus(value, errors="surrogateescape"),
    )
    return {text.encode("utf-8", "surrogateescape") for text in written}


class Mask:
    """One stream's mask. Values of several lines are also masked line by line, since logs are read by lines, and every
    value also as JSON, URLs and Python's `repr` write it.

    Known limit: a value inside base64 or another encoding is not found.
    """

    def __init__(self, values: Iterable[str]) -> None:
        self.values: list[bytes] = []
        self.pattern: re.Pattern[bytes] | None = None
        self.held = b""
        self.extend(values)

    def extend(self, values: Iterable[str]) -> None:
        """Mask these too, from here on."""
        raw = set(self.values)
        for value in values:
            data = value.encode("utf-8", "surrogateescape")
            raw |= {data, data.strip(), *_spellings(value), *_spellings(value.strip())}
            if b"\n" in data:
                raw |= {line.strip() for line in data.splitlines() if len(line.strip()) >= LEAST_LINE}
        self.values = sorted((v for v in raw if len(v) >= LEAST), key=lambda v: (-len(v), v))
        self.pattern = re.compile(b"|".join(re.escape(v) for v in self.values)) if self.values else None

    def feed(self, data: bytes) -> bytes:
        """What of the stream may be shown now; what may yet turn out to be a value is held back."""
        if self.pattern is None:
            return data
        text = self.held + data
        cut = len(text) - self._begun(text)
        for match in self.pattern.finditer(text):
            if match.start() < cut < match.end():
                # A whole value that is also the beginning of a longer one: wait for what follows.
                cut = match.start()
        self.held = text[cut:]
        return self.pattern.sub(SHOWN, text[:cut])

    def end(self) -> bytes:
        """The rest, once nothing follows."""
        text, self.held = self.held, b""
        return text if self.pattern is None else self.pattern.sub(SHOWN, text)

    def text(self, text: str) -> str:
        """A text of our own that may quote a value."""
        if self.pattern is None:
            return text
        return self.pattern.sub(SHOWN, text.encode("utf-8", "surrogateescape")).decode("utf-8", "replace")

    def _begun(self, text: bytes) -> int:
        """The length of the longest end of `text` that is a proper beginning of some value."""
        longest = 0
        for value in self.values:
            for size in range(min(len(value) - 1, len(text)), longest, -1):
                if value[size - 1] == text[-1] and text.endswith(value[:size]):
                    longest = size
                    break
        return longest
