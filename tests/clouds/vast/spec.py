"""Vast's own OpenAPI files as the judge of what is said in both directions, as far as they are right.

Where they are known to differ from what the service and its own client do, they are mended here by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import jsonschema
from ruamel.yaml import YAML

FOLDER = Path(__file__).parents[4] / "shared" / "data" / "api" / "vast"
# file, name of the property, what is put there instead. Why: `env` as an object is what the guides and the vendor's
# client send; both of them send `on-demand`; of `order` it is each entry that has two parts; `ports` is a map of lists
# and `extra_env` a list of pairs, as in the list's own file; the client reads null for an unknown id; the words for
# errors are not whole (insufficient_credit, no_such_ask and others are seen).
MENDED = (
    ("create_instance.yaml", "env", {"type": ["string", "object"]}),
    ("create_instance.yaml", "price", {"type": ["number", "null"], "minimum": 0.001, "maximum": 128.0}),
    ("search_offers.yaml", "type", {"enum": ["ondemand", "on-demand", "bid", "reserved"]}),
    ("search_offers.yaml", "order", {"type": "array", "items": {"type": "array", "minItems": 2, "maxItems": 2}}),
    ("show_instance.yaml", "ports", {}),
    ("show_instance.yaml", "instances", {"anyOf": [{"$ref": "#/components/schemas/Instance"}, {"type": "null"}]}),
    ("show_instance.yaml", "extra_env", {"type": "array", "items": {"type": "array", "items": {"type": "string"}}}),
    ("*", "error", {"type": "string"}),
)


@lru_cache(maxsize=1)
def spec_or_none() -> Spec | None:
    """The files, read once; None where they are not here."""
    try:
        return Spec()
    except FileNotFoundError:
        return None


class Spec:
    """The endpoints that have a file. Raises FileNotFoundError where the folder is not here."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self.operations: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {}
        paths = sorted(folder.glob("*.yaml"))
        if not paths:
            raise FileNotFoundError(folder)
        for path in paths:
            document = json.loads(json.dumps(YAML(typ="safe").load(path.read_text(encoding="utf-8"))))
            _mend(document, path.name)
            for place, methods in document["paths"].items():
                for method, operation in methods.items():
                    self.operations[f"{method.upper()} {place}"] = (operation, document)

    def request(self, endpoint: str, query: Mapping[str, str], body: Any) -> list[str]:
        """What is wrong with a request."""
        if endpoint not in self.operations:
            return []
        operation, document = self.operations[endpoint]
        problems: list[str] = []
        known = {p["name"] for p in operation.get("parameters", ()) if p["in"] == "query"}
        problems += [f"unknown parameter {name}" for name in query if name not in known and name != "owner"]
        content = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if content is not None:
            # The client of the vendor sends null for what is not given, and every client an id of its own.
            given = {name: value for name, value in (body or {}).items() if value is not None}
            problems += _errors(content["schema"], given, document)
        return [f"{endpoint}: {problem}" for problem in problems]

    def answer(self, endpoint: str, status: int, body: Any) -> list[str]:
        """What is wrong with an answer in JSON. A status that the file does not know is none of its business."""
        if endpoint not in self.operations:
            return []
        operation, document = self.operations[endpoint]
        content = operation["responses"].get(str(status), {}).get("content", {}).get("application/json")
        if content is None:
            return []
        return [f"{endpoint} {status}: {problem}" for problem in _errors(content["schema"], body, document)]


def _errors(schema: Any, value: Any, document: Mapping[str, Any]) -> Iterator[str]:
    validator = jsonschema.Draft202012Validator({**schema, "components": document.get("components", {})})
    for error in validator.iter_errors(value):
        yield f"{'/'.join(map(str, error.absolute_path))}: {error.message[:200]}"


def _mend(node: Any, file: str) -> None:
    """OpenAPI 3.0's `nullable` as JSON Schema has it, and the known mistakes."""
    if isinstance(node, list):
        for item in node:
            _mend(item, file)
    if not isinstance(node, dict):
        return
    if node.pop("nullable", False) and isinstance(node.get("type"), str):
        node["type"] = [node["type"], "null"]
    properties = node.get("properties")
    if isinstance(properties, dict):
        for name in properties:
            for where, what, instead in MENDED:
                if where in (file, "*") and what == name:
                    properties[name] = dict(instead)
    for value in list(node.values()):
        _mend(value, file)
