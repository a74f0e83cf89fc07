"""From the `resources` of a task file to the alternatives of a Task: inheritance, cross products, SkyPilot's words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from broker.document import Problem
from broker.fields import Cards, RecoveryFields, ResourcesFields
from broker.quantity import Times
from broker.resources import Resources

PLACES = ("cloud", "region", "zone")


@dataclass(slots=True)
class Alternatives:
    """ordered: the first that can be had wins, whatever the prices. spot: as use_spot says, None where it says nothing.

    restarts and codes: of `job_recovery`. labels: of every machine. problems and warnings: what is wrong, and what the
    user should be told.
    """

    resources: tuple[Resources, ...] = (Resources(),)
    ordered: bool = False
    spot: str | None = None
    max_price: float | None = None
    restarts: int | None = None
    codes: tuple[int, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def read(model: ResourcesFields | None) -> Alternatives:
    """An entry of any_of or ordered takes over what stands around it; each goes with each of the accelerators."""
    outer = model or ResourcesFields()
    made = Alternatives()
    if outer.any_of is not None and outer.ordered is not None:
        made.problems.append(Problem("resources.ordered", "stands beside any_of", "keep one of the two"))
    name = "any_of" if outer.any_of is not None else "ordered"
    entries = outer.any_of if outer.any_of is not None else outer.ordered
    if entries == []:
        made.problems.append(Problem(f"resources.{name}", "must not be an empty list"))
    around = {key: getattr(outer, key) for key in outer.model_fields_set - {"any_of", "ordered"}}
    wishes = [
        _inherited(around, {key: getattr(entry, key) for key in entry.model_fields_set}) for entry in entries or ()
    ]
    wishes = wishes or [around]
    paths = [f"resources.{name}.{index}" if entries else "resources" for index in range(len(wishes))]
    spots = [wish.get("use_spot") for wish in wishes]
    mixed = False in spots and set(spots) != {False}
    made.ordered = outer.ordered is not None or _in_order(outer)
    made.resources = tuple(
        one for path, wish in zip(paths, wishes, strict=True) for one in _expanded(path, wish, made, mixed=mixed)
    )
    if set(spots) == {False}:
        made.spot = "never"
    elif True in spots:
        made.spot = "auto"
    made.max_price = _agreed(made, "max_hourly_cost", [wish.get("max_hourly_cost") for wish in wishes])
    made.labels = _agreed(made, "labels", [dict(wish.get("labels") or {}) for wish in wishes])
    _recover(made, wishes)
    return made


def _in_order(outer: ResourcesFields) -> bool:
    """Is there a list of GPUs, which is in order of preference, and nothing that would multiply it?"""
    return (
        outer.any_of is None
        and isinstance(outer.accelerators, Cards)
        and (outer.accelerators.ordered and len(outer.accelerators) > 1)
    )


def _inherited(around: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """A place in an entry replaces the place around it, in whatever words the two are written."""
    base = dict(around)
    if "infra" in own:
        base = {key: value for key, value in base.items() if key not in PLACES}
    elif any(key in own for key in PLACES):
        base.pop("infra", None)
        if own.get("cloud") is not None and own["cloud"] != base.get("cloud"):
            base = {key: value for key, value in base.items() if key not in ("region", "zone")}
    for one, other in (("job_recovery", "spot_recovery"), ("spot_recovery", "job_recovery")):
        if one in own:
            base.pop(other, None)
    return {**base, **own}


def _expanded(path: str, wish: Mapping[str, Any], made: Alternatives, *, mixed: bool) -> Iterator[Resources]:
    infra = _infra(path, wish, made)
    memory = wish.get("memory")
    if isinstance(memory, Times):
        if wish.get("cpus") is None:
            message = f"{memory.factor:g}x is so much for each CPU, and no cpus are asked for"
            made.problems.append(Problem(f"{path}.memory", message, "add cpus, or give the memory in GiB"))
        memory = memory.factor * (wish.get("cpus") or 1)
    given = {"cpus": wish.get("cpus"), "memory": memory, "disk": wish.get("disk_size")}
    given |= {"instance_type": wish.get("instance_type")}
    known: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    images = wish.get("image_id") or {"": None}
    for gpu, many in wish.get("accelerators") or ((None, 0),):
        for region, image in images.items():
            places = _in_region(infra, region)
            if region and not places:
                text = f"no place of infra is in the region {region}, so its image is never used"
                made.warnings.append(text)
                continue
            yield Resources(
                gpu=gpu, gpu_count=many, infra=places, image=image,
                on_demand=mixed and wish.get("use_spot") is False, **known,
            )  # fmt: skip


def _infra(path: str, wish: Mapping[str, Any], made: Alternatives) -> tuple[str, ...]:
    infra = tuple(wish.get("infra") or ())
    cloud, region, zone = (wish.get(key) for key in PLACES)
    if cloud is None and region is None and zone is None:
        return infra
    if infra:
        named = next(key for key in PLACES if wish.get(key) is not None)
        made.problems.append(Problem(f"{path}.{named}", "stands beside infra", "keep infra only"))
        return infra
    parts = [cloud or "*", region or ("*" if zone else ""), zone or ""]
    return ("/".join(part for part in parts if part),)


def _in_region(infra: tuple[str, ...], region: str) -> tuple[str, ...]:
    """The patterns narrowed to one region; those that lie elsewhere fall out."""
    if not region:
        return infra
    narrowed = []
    for pattern in infra or ("*",):
        provider, wanted, zone = [*pattern.split("/"), "", ""][:3]
        if fnmatchcase(region.lower(), (wanted or "*").lower()):
            narrowed.append("/".join(part for part in (provider, region, zone) if part))
    return tuple(narrowed)


def _recover(made: Alternatives, wishes: list[dict[str, Any]]) -> None:
    found: list[RecoveryFields | None] = []
    for wish in wishes:
        both = [wish[name] for name in ("job_recovery", "spot_recovery") if wish.get(name) is not None]
        if len(both) == 2:
            made.problems.append(Problem("resources.spot_recovery", "stands beside job_recovery", "keep job_recovery"))
        found.append(both[0] if both else None)
    values = [(r.max_restarts_on_errors, r.recover_on_exit_codes) if r else (None, None) for r in found]
    agreed = _agreed(made, "job_recovery", values) or (None, None)
    made.restarts, made.codes = agreed[0], agreed[1] or ()


def _agreed(made: Alternatives, name: str, values: list[Any]) -> Any:
    """One value for all alternatives: it is the whole job's. Raises nothing; notes where they differ."""
    if any(value != values[0] for value in values):
        made.problems.append(Problem(f"resources.{name}", "must be the same for all alternatives"))
    return values[0]


__all__ = ["Alternatives", "read"]
