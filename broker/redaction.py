"""What must not be in a report that a user passes on: keys, accounts, addresses, names of machines."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from broker.config import Config
from broker.guest.mask import sensitive

PATTERNS = (
    ("address", re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b")),
    ("address", re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{1,4}:){3,7}[0-9a-fA-F]{0,4}(?![\w:])")),
    ("address", re.compile(r"(?<![\w:])[0-9a-fA-F:]*::[0-9a-fA-F:]+")),
    ("mail", re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]+")),
    ("arn", re.compile(r"\barn:[\w-]+:[^\s'\",)]+")),
    ("account", re.compile(r"(?<![\w.])\d{12}(?![\w.])")),
    ("id", re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b")),
    ("id", re.compile(r"\b(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[\w-]{16,}\b")),
)  # fmt: skip
SHORTEST = 5
"""Values shorter than this would redact common words."""


class Redactor:
    """Replaces what is known to be private, and what looks so; the same thing gets the same name everywhere."""

    def __init__(self, private: Iterable[str], public: Iterable[str]) -> None:
        """private: values that are never shown. public: words that look like ids and are none, such as regions."""
        self._private = sorted({value for value in private if len(value) >= SHORTEST}, key=len, reverse=True)
        self._public = set(public)
        self._names: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        for value in self._private:
            text = text.replace(value, "<private>")
        for kind, pattern in PATTERNS:
            text = pattern.sub(lambda found, kind=kind: self._named(kind, found[0]), text)  # type: ignore[misc]
        return text

    def all(self, value: Any) -> Any:
        """The same for all text in plain data."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, Mapping):
            return {key: self.all(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.all(inner) for inner in value]
        return value

    def _named(self, kind: str, value: str) -> str:
        if value in self._public:
            return value
        return self._names.setdefault(value, f"<{kind} {len(self._names) + 1}>")


def private_values(config: Config, provider: str) -> list[str]:
    """Everything that this installation knows to be secret: keys, settings, the environment's, and who runs it."""
    found = [os.environ.get(name, "") for name in ("USER", "LOGNAME", "HOSTNAME", "HOME")]
    found += [value for name, value in os.environ.items() if sensitive(name, value)]
    found += [*config.home_config.values(), config.database, config.home, str(config.state)]
    found += [str(value) for value in config.provider(provider).values() if isinstance(value, str)]
    for path in (config.state / "keys").glob("*"):
        try:
            found.append(path.read_text(encoding="utf-8").strip())
        except (OSError, UnicodeDecodeError):
            continue
    return [value for value in found if value]
