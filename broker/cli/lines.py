"""Sentences on a terminal: broken between words, where a pipe or a file gets each as one line."""

from __future__ import annotations

import shutil
import textwrap
from typing import TextIO


def wrapped(text: str, stream: TextIO, *, indent: int = 0) -> str:
    """The text as it goes to `stream`, which has `indent` columns of it behind it; later lines start below these.

    No word is broken: a path or a command stays whole, so that it can be copied.
    """
    if not stream.isatty():
        return text
    space = " " * indent
    lines = textwrap.wrap(
        text,
        max(shutil.get_terminal_size().columns, indent + 20),
        initial_indent=space,
        subsequent_indent=space,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines)[indent:]
