"""Small files that name a checkpoint beside them, such as DeepSpeed's `latest` or Megatron's iteration: `Pointers`.

A program that finds such a file without the checkpoint that it names begins anew, and some do so without a word.
Standard library only: this runs on the rented machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from broker.entries import step_of

if TYPE_CHECKING:
    from broker.complete import Stat

LARGEST = 1024
"""Bytes of such a file at the most."""
BETWEEN = re.compile(r"[\s\"',:=\[\]{}()]+")


@dataclass(slots=True)
class Pointers:
    """words: what is known of each file by its state, so that it is read once."""

    words: dict[str, tuple[Stat, frozenset[str]]] = field(default_factory=dict)

    def named(self, folder: Path, name: str, found: Stat, entries: Iterable[str]) -> Iterator[str]:
        """The entries beside a file that its text names: by their names, by these without an ending, or by their step
        where all it says is a number."""
        if not 0 < found.size <= LARGEST:
            return
        known = self.words.get(name)
        if known is None or known[0] != found:
            known = self.words[name] = (found, _words(folder / name))
        words, place = known[1], name[: name.rfind("/") + 1]
        only = next(iter(words)) if len(words) == 1 else ""
        step = int(only) if only.isascii() and only.isdecimal() else None
        begins = tuple(f"{word}." for word in words if any(map(str.isdigit, word)))
        for entry in entries:
            if entry == name or entry[: entry.rfind("/") + 1] != place:
                continue
            its = entry.removeprefix(place)
            if its in words or its.startswith(begins) or (step is not None and step_of(its) == step):
                yield entry


def _words(file: Path) -> frozenset[str]:
    """What it says, without the folders of paths; nothing for what is no text."""
    try:
        text = file.read_bytes()[:LARGEST].decode()
    except (OSError, UnicodeDecodeError):
        return frozenset()
    return frozenset(word.rstrip("/").rpartition("/")[2] for word in BETWEEN.split(text)) - {""}
