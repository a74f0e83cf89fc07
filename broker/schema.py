"""The JSON Schema of a task file, made from `broker.fields`, for editors that complete and check as one types.

`task.schema.json` beside this module is its text, kept current by a test.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("task.schema.json")
# `.spotbroker` never travels with a workdir.
BESIDE = Path(".spotbroker") / FILE.name
HEADER = f"# yaml-language-server: $schema={BESIDE.as_posix()}\n"
_OURS = ("how", "why", "title", "default")


def schema() -> dict[str, Any]:
    """The schema as plain JSON, in draft 2020-12."""
    from broker.fields import TaskFields

    made = _plain(TaskFields.model_json_schema(by_alias=True))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "spotbroker task",
        **made,
        "description": "What to run, and on what kind of machine.",
        "required": ["run"],
    }


def text() -> str:
    """The schema as the text of a file."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def attach(task: Path) -> None:
    """Put the schema beside a task file, and a first line into it by which editors find it."""
    beside = task.parent / BESIDE
    beside.parent.mkdir(exist_ok=True)
    beside.write_bytes(FILE.read_bytes())
    written = task.read_text(encoding="utf-8")
    if not written.startswith(HEADER):
        task.write_text(HEADER + written, encoding="utf-8")


def _plain(value: Any, *, named: bool = False) -> Any:
    """Without what is ours or says nothing. named: the keys are names of fields or of definitions."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _plain(inner, named=not named and key in ("properties", "$defs"))
        for key, inner in value.items()
        if named or key not in _OURS
    }


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
