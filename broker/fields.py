"""The fields of a task file and the type of each: pydantic's part of reading it, and its complaints in our words.

Values come as they were typed (`broker.document`): text, null, maps and lists. Types only; what values mean together is
`Task`'s to check.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict

from broker import gpus, quantity

T = TypeVar("T")
Cards = tuple[tuple[str, int], ...]  # alternatives: any of them will do

# Names that people bring along from elsewhere, and what to write here.
_ELSEWHERE = {
    "resources.cloud": "write `infra: PROVIDER`",
    "resources.region": "write `infra: PROVIDER/REGION`",
    "resources.zone": "write `infra: PROVIDER/REGION/ZONE`",
    "resources.max_hourly_cost": "write `max_price` at the top level",
    "resources.job_recovery": "write `max_restarts_on_errors` at the top level",
    "resources.spot_recovery": "moving on is what always happens; leave it out",
    "resources.spot": "write `spot` at the top level",
    "env": "write `envs`",
}


def _scalar(parse: Callable[[str], T]) -> BeforeValidator:
    def validate(value: object) -> T:
        if not isinstance(value, str):
            what = "a map" if isinstance(value, dict) else "a list"
            raise ValueError(f"must be one value, not {what}")  # noqa: TRY004 - pydantic collects ValueErrors only
        return parse(value)

    return BeforeValidator(validate)


def _list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _cards(value: object) -> Cards:
    """`A100`, `A100:8`, {A100: 8}, {A100: 1, L4: 1} and [A100:1, L4:1], the last two meaning any of them."""
    if isinstance(value, str):
        name, colon, number = value.partition(":")
        return ((gpus.canonical(name), _how_many(number, value) if colon else 1),)
    if isinstance(value, list):
        if not value:
            raise ValueError("must not be an empty list")
        return tuple(card for item in value for card in _cards(item))
    if not isinstance(value, dict) or not value:
        raise ValueError("must be a GPU such as A100 or A100:8")
    cards = []
    for name, number in value.items():
        if ":" in name:
            raise ValueError(f"a space is missing after the colon in {name!r}: write {name.replace(':', ': ', 1)}")
        cards.append((gpus.canonical(name), _how_many(number, name) if number is not None else 1))
    return tuple(cards)


def _how_many(number: object, what: str) -> int:
    try:
        many = quantity.count(number) if isinstance(number, str) else 0
    except ValueError:
        many = 0
    if not many:
        raise ValueError(f"the number of GPUs must be a whole number above zero: {what!r}")
    return many


def _image(value: str) -> str:
    if not value.strip() or value != value.strip() or any(mark.isspace() for mark in value):
        raise ValueError("must be the name of a container image")
    return value


Truth = Annotated[bool, _scalar(quantity.truth)]
Count = Annotated[int, _scalar(quantity.count)]
Positive = Annotated[float, _scalar(quantity.positive)]
Size = Annotated[float, _scalar(quantity.size)]
Texts = Annotated[list[str], BeforeValidator(_list)]


class Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


class AlternativeFields(Fields):
    accelerators: Annotated[Cards, BeforeValidator(_cards)] | None = None
    cpus: Annotated[float, _scalar(quantity.at_least)] | None = None
    memory: Size | None = None
    disk_size: Size | None = None
    infra: Texts | None = None
    use_spot: Truth | None = None
    image_id: Annotated[str, _scalar(_image)] | None = None


class ResourcesFields(AlternativeFields):
    any_of: list[AlternativeFields] | None = None


class CheckpointFields(Fields):
    path: str | None = None
    every: Annotated[float, _scalar(quantity.duration)] | None = None
    keep: Count | None = None
    complete: str | None = None


class WorkFields(Fields):
    hours: Positive | None = None
    on: str | None = None
    steps: Count | None = None


class RehearseFields(Fields):
    deterministic: Truth | None = None
    compare: Texts | None = None
    envs: dict[str, str] | None = None


class TaskFields(Fields):
    name: str | None = None
    workdir: str | None = None
    setup: str | None = None
    run: str | None = None
    envs: dict[str, str] | None = None
    secrets: dict[str, str] | None = None
    resources: ResourcesFields | None = None
    checkpoint: CheckpointFields | None = None
    outputs: Texts | None = None
    work: WorkFields | None = None
    spot: Literal["auto", "only", "never"] | None = None
    max_price: Positive | None = None
    max_hours: Positive | None = None
    max_moves: Count | None = None
    max_restarts_on_errors: Count | None = None
    home: str | None = None
    rehearse: RehearseFields | None = None


_MODELS: dict[str, type[Fields]] = {
    "": TaskFields,
    "resources": ResourcesFields,
    "resources.any_of": AlternativeFields,
    "checkpoint": CheckpointFields,
    "work": WorkFields,
    "rehearse": RehearseFields,
}


def explained(detail: Any) -> tuple[str, str, str]:
    """pydantic's word as field, message and fix."""
    path: tuple[str | int, ...] = detail["loc"]
    field, kind = ".".join(map(str, path)), detail["type"]
    if kind == "extra_forbidden":
        plain = ".".join(step for step in path if isinstance(step, str))
        outer = plain.rpartition(".")[0]
        if advice := _ELSEWHERE.get(plain.replace(".any_of", "")):
            return field, f"unknown field; {advice}", advice
        known = list(_MODELS[outer].model_fields) if outer in _MODELS else []
        near = difflib.get_close_matches(str(path[-1]), known, n=1)
        if near:
            return field, f"unknown field; did you mean {near[0]}?", f"write `{near[0]}`"
        return field, "unknown field", f"known here: {', '.join(known)}"
    if kind == "value_error":
        return field, str(detail["ctx"]["error"]), ""
    if kind == "literal_error":
        return field, f"must be {detail['ctx']['expected']}", ""
    wanted = {"string_type": "must be text", "list_type": "must be a list", "model_type": "must be a map"}
    return field, wanted.get(kind, detail["msg"]), ""
