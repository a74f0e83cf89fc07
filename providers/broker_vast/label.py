"""Our tags within a contract's label, the one text of ours that Vast keeps: at most 256 characters at its creation.

`spotbroker:INSTALLATION:JOB:GENERATION`, each part percent-encoded, then as many of the task's own labels as fit, as
`name=value` with a space before each. The label can be seen in Vast's console, and no filter knows its beginning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

from broker.errors import InvalidRequest
from broker.provider import TAG_GENERATION, TAG_INSTALLATION, TAG_JOB

MARK = "spotbroker"
LONGEST = 256  # Vast API reference, PUT /asks/{id}: x-input-validation of label
OURS = (TAG_INSTALLATION, TAG_JOB, TAG_GENERATION)


def encode(tags: Mapping[str, str]) -> str:
    """The label that carries these tags. Raises InvalidRequest where our own three do not fit."""
    label = ":".join((MARK, *(quote(tags.get(name, ""), safe="") for name in OURS)))
    if len(label) > LONGEST:
        raise InvalidRequest(f"a label of {len(label)} characters is too long for Vast", provider="vast", code="label")
    for name, value in tags.items():
        word = f" {quote(name, safe='')}={quote(value, safe='')}"
        if name not in OURS and len(label) + len(word) <= LONGEST:
            label += word
    return label


def whose(tags: Mapping[str, str]) -> tuple[str, str, int]:
    """Installation, job and generation."""
    installation, job, generation = (tags.get(name, "") for name in OURS)
    return installation, job, int(generation or 0)


def decode(label: Any) -> dict[str, str] | None:
    """The tags in a label; None for one that is not ours, whatever it is."""
    head, *words = label.split(" ") if isinstance(label, str) else ("",)
    mark, *parts = head.split(":")
    if mark != MARK or len(parts) != len(OURS) or not (parts[2].isascii() and parts[2].isdigit()):
        return None
    tags = {name: unquote(part) for name, part in zip(OURS, parts, strict=True)}
    for word in words:
        name, _, value = word.partition("=")
        if name:
            tags.setdefault(unquote(name), unquote(value))
    return tags
