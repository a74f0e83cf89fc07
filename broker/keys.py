"""A provider's key: where one may lie, and how `broker check` puts it away.

Looked for in this order: the provider's table in the configuration (`key`), the vendor's own environment variable, the
file `keys/NAME` in the state folder, which only its owner can read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Key:
    """A provider's key and, for people, where it was found."""

    value: str = field(repr=False)
    source: str


def find(name: str, settings: Mapping[str, Any], state: Path, *, variable: str) -> Key | None:
    """The key of the provider `name`; None where there is none.

    variable: the vendor's environment variable, such as `VAST_API_KEY`. Raises ConfigError for a key that cannot be
    read or sent.
    """
    if "key" in settings:
        return _sound(name, str(settings["key"]), f"[providers.{name}] key")
    if os.environ.get(variable):
        return _sound(name, os.environ[variable], f"${variable}")
    path = place(name, state)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} cannot be read: {error}", fix=f"broker check {name} asks for the key anew"
        ) from error
    return _sound(name, text, str(path))


def place(name: str, state: Path) -> Path:
    return state / "keys" / name


def keep(name: str, value: str, state: Path) -> Key:
    """Write the key down, whole, readable by its owner only. Raises ConfigError for what no header can carry."""
    path = place(name, state)
    key = _sound(name, value, str(path))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(key.value + "\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    return key


def _sound(name: str, value: str, source: str) -> Key:
    """A header cannot carry blanks and line ends; what was pasted with them around it is meant without."""
    value = value.strip()
    if not value or not value.isascii() or not value.isprintable() or " " in value:
        raise ConfigError(f"{source} holds no key that can be sent", fix=f"broker check {name} asks for the key anew")
    return Key(value, source)
