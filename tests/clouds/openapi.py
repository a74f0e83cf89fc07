"""A vendor's own OpenAPI file as judge of a stand-in: what comes in and what goes out must be as it says."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

API = Path(__file__).parents[3] / "shared" / "data" / "api"


class Judge:
    """Checks values against the schemas of one file; without the file nothing is wrong, and `present` is False."""

    def __init__(self, path: Path) -> None:
        self.present = path.is_file()
        self.document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if self.present else {}

    def wrong(self, schema: str, value: Any) -> list[str]:
        """What is wrong with a value that should be `#/components/schemas/SCHEMA`, one line for each fault."""
        return self.wrong_at(f"#/components/schemas/{schema}", value)

    def wrong_at(self, pointer: str, value: Any) -> list[str]:
        """The same for a schema anywhere in the document, named by its JSON pointer."""
        if not self.present:
            return []
        validator = self._validator(pointer)
        return sorted(
            f"${''.join(f'[{part!r}]' for part in error.absolute_path)}: {error.message[:300]}"
            for error in validator.iter_errors(value)
        )

    @cache  # noqa: B019 - a judge lives as long as the tests do
    def _validator(self, pointer: str) -> Any:
        return jsonschema.Draft202012Validator({**self.document, "$ref": pointer})
