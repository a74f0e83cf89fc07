"""Are a dataclass's values of the types that it says? For what a Python program wrote; a task file is read typed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from broker.document import Problem

_NAMES: dict[Any, str] = {
    float: "a number",
    int: "a whole number",
    str: "text",
    bool: "True or False",
    Path: "a path",
    NoneType: "None",
}


def problems(made: Any, place: str = "", *, skip: Collection[str] = ()) -> Iterator[Problem]:
    """One for each value of another type, in what it holds too. place: the field that it is in. Never shows a value."""
    kind: Any = type(made)
    hints = _hints(kind)
    for entry in fields(made):
        value, path = getattr(made, entry.name), f"{place}.{entry.name}".lstrip(".")
        if entry.name in skip:
            continue
        if not _fits(value, hints[entry.name]):
            yield Problem(path, f"must be {_named(hints[entry.name])}, not {_told(value)}")
            continue
        for inner in value if isinstance(value, tuple | list) else (value,):
            if is_dataclass(inner):
                yield from problems(inner, path)


@lru_cache(maxsize=64)
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _fits(value: Any, hint: Any) -> bool:
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is tuple:
        return isinstance(value, tuple | list) and all(_fits(item, parts[0]) for item in value)
    if origin is not None and issubclass(origin if isinstance(origin, type) else NoneType, Mapping):
        return isinstance(value, Mapping) and all(_fits(k, parts[0]) and _fits(v, parts[1]) for k, v in value.items())
    if origin is Literal or hint is Any:
        return True  # which words there are is told where they are checked
    if hint in (float, int):
        return isinstance(value, Real if hint is float else Integral) and not isinstance(value, bool)
    return isinstance(value, hint)


def _named(hint: Any) -> str:
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(_named(part) for part in parts)
    if origin is tuple:
        return f"a list, each {_named(parts[0])}"
    if origin is not None:
        return f"a map from {_named(parts[0])} to {_named(parts[1])}"
    return _NAMES.get(hint) or f"a {hint.__name__}"


def _told(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {', '.join(sorted({type(item).__name__ for item in value})) or 'nothing'}"
    if isinstance(value, Mapping):
        return f"a map to {', '.join(sorted({type(item).__name__ for item in value.values()})) or 'nothing'}"
    return "None" if value is None else type(value).__name__
