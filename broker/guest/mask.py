"""What is secret, and `Mask`, which takes it out of a stream of bytes, also where a value is cut by the border of two
chunks.
"""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote, quote_plus

LEAST = 4  # values shorter than this are left: masking "on" or "1" would hide the log itself
LEAST_LINE = 2 * LEAST  # and shorter lines of a longer value: its lines are often common words
SHOWN = b"***"
SENSITIVE = re.compile(r"KEY|TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|(?:^|_)(?:AUTH|PASS|PAT|PWD)$", re.IGNORECASE)
_LOGIN = re.compile(r"://[^\s/?#:@]*:([^\s/?#@]+)@")  # user and password in an address
_SHELL = re.compile(r'(["$`\\])')
_ESCAPE = re.compile(r"%[0-9A-F]{2}")


def sensitive(name: str, value: str = "") -> bool:
    """Does a variable count as a secret: for its name, or for an address in it with a password?"""
    return bool(SENSITIVE.search(name) or _LOGIN.search(value))


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
    data = value.encode("utf-8", "surrogateescape")
    inside = (json.dumps(value), json.dumps(value, ensure_ascii=False), repr(value), repr(data)[1:], shlex.quote(value))
    escaped = [quote(data, safe=safe) for safe in ("", "/")] + [quote_plus(data, safe=safe) for safe in ("", "/")]
    escaped += [_ESCAPE.sub(lambda found: found[0].lower(), text) for text in escaped]
    written = {
        *(text[1:-1] if text[0] in "\"'" else text for text in inside),
        json.dumps(value)[1:-1].replace("/", "\\/"),
        *escaped,
        html.escape(value),
        _SHELL.sub(r"\\\1", value),  # as bash's `declare -p` and `export -p` do
        value.replace("'", "'\\''"),  # as its `set -x` does
    }
    return {text.encode("utf-8", "surrogateescape") for text in written}


def _whole(values: Iterable[str]) -> Iterator[str]:
    """The values, and passwords within them that are long enough not to be words of the log."""
    for value in values:
        yield value
        yield from (word for word in _LOGIN.findall(value) if len(word) >= LEAST_LINE)


class Mask:
    """One stream's mask. Values of several lines are also masked line by line, since logs are read by lines, and every
    value also as JSON, URLs, HTML, shells and Python's `repr` write it.

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
        for value in _whole(values):
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
