"""What becomes of each field of a task file: honoured, emulated, ignored or refused, and why.

For people who bring a file along from SkyPilot: nothing that they wrote is passed over in silence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from broker.fields import MODELS, general


@dataclass(frozen=True, slots=True)
class FieldReport:
    """field: its path, such as `resources.any_of.0.use_spot`. how: honoured, emulated, ignored or refused, and why."""

    field: str
    how: str
    why: str = ""


Word = tuple[str, str]
HONOURED: Word = ("honoured", "")
COPIED = "by a copy"
UNKNOWN: Word = ("refused", "unknown field")
_SHARE = re.compile(r":\s*0?\.\d+")


def fields_report(document: Mapping[str, Any]) -> list[FieldReport]:
    """One line for each field of a task file, in its order. document: its plain map (`broker.taskfile.document`).

    The file may be wrong: what is unknown is reported as refused.
    """
    return list(_walked(document, (), ""))


def warnings_of(document: Mapping[str, Any]) -> list[str]:
    """What the user should be told without asking: fields passed over, and copies that are no mounts."""
    reports = fields_report(document)
    ignored = [report.field for report in reports if report.how == "ignored"]
    told = [f"ignored: {', '.join(ignored)} (`broker plan` says why)"] if ignored else []
    mounts = [
        r.field for r in reports if r.how == "emulated" and r.field.startswith("file_mounts.") and COPIED in r.why
    ]
    if mounts:
        text = "mounting is emulated by a copy: of what is written there, only checkpoint.path and outputs are kept"
        told.append(f"{', '.join(mounts)}: {text}")
    return told


def _walked(value: Mapping[str, Any], path: tuple[str | int, ...], model: str) -> Iterator[FieldReport]:
    fields = {info.alias or name: info for name, info in MODELS[model].model_fields.items()}
    for key, inner in value.items():
        here = (*path, key)
        plain = general(here)
        field = ".".join(map(str, here))
        info = fields.get(key)
        if key == "_metadata" and isinstance(inner, Mapping):
            yield from _metadata(inner)
        elif info is None:
            yield FieldReport(field, *UNKNOWN)
        elif key == "file_mounts" and isinstance(inner, Mapping):
            for target, mount in inner.items():
                yield FieldReport(f"file_mounts.{target}", *_mount(mount))
                if isinstance(mount, Mapping):
                    yield from (r for r in _walked(mount, (*here, target), "file_mounts.*") if r.how != "honoured")
        elif isinstance(inner, list) and plain in MODELS:
            for index, entry in enumerate(inner):
                if isinstance(entry, Mapping):
                    yield from _walked(entry, (*here, index), plain)
        elif isinstance(inner, Mapping) and plain in MODELS:
            yield from _walked(inner, here, plain)
        else:
            extra: Any = info.json_schema_extra or {}
            special = _SPECIAL.get(key)
            yield FieldReport(field, *(special(inner) if special else None) or (extra["how"], extra["why"]))


def _metadata(value: Mapping[str, Any]) -> Iterator[FieldReport]:
    for key, inner in value.items():
        if key == "broker" and isinstance(inner, Mapping):
            for report in _walked(inner, (), ""):
                yield FieldReport(f"_metadata.broker.{report.field}", report.how, report.why)
        else:
            yield FieldReport(f"_metadata.{key}", "ignored", "it is a note of somebody else's")


def _mount(mount: Any) -> Word:
    if not isinstance(mount, Mapping):
        return ("honoured", "copied before setup" if "://" in str(mount) else "packed, and in place before setup")
    mode = str(mount.get("mode") or ("COPY" if mount.get("source") else "MOUNT")).upper()
    if not mount.get("source"):
        return ("emulated", "no bucket is made: what is written there is kept by snapshots, as the checkpoint's folder")
    if mode == "COPY":
        return ("honoured", "copied before setup")
    return ("emulated", f"{mode} {COPIED} before setup; only checkpoint.path and outputs are kept of what is written")


def _cards(value: Any) -> Word | None:
    if isinstance(value, str) and _SHARE.search(value):
        return ("emulated", "a share of a card is rented as the whole card")
    if isinstance(value, Mapping) and any(_SHARE.fullmatch(f":{number}") for number in value.values()):
        return ("emulated", "a share of a card is rented as the whole card")
    if isinstance(value, list) and len(value) > 1:
        return ("honoured", "in this order; inside any_of the cheapest of them")
    return None


def _at_least(value: Any) -> Word | None:
    if isinstance(value, str) and not value.strip().endswith(("+", "x", "X")):
        return ("honoured", "at least: a bigger machine at a lower price is welcome")
    return None


def _spot(value: Any) -> Word | None:
    falsy = isinstance(value, str) and value.strip().lower() in ("false", "no", "off")
    return ("honoured", "spot: never") if falsy else None


_SPECIAL: dict[str, Callable[[Any], Word | None]] = {
    "accelerators": _cards,
    "cpus": _at_least,
    "memory": _at_least,
    "use_spot": _spot,
    "outputs": lambda value: (
        ("ignored", "SkyPilot's {URL: GB}; here outputs are files to keep") if isinstance(value, Mapping) else None
    ),
    "job_recovery": lambda value: (
        ("ignored", "a move always goes to the best offer there is") if isinstance(value, str) else None
    ),
    "spot_recovery": lambda value: (
        ("ignored", "a move always goes to the best offer there is") if isinstance(value, str) else None
    ),
    "num_nodes": lambda value: HONOURED if value == "1" else ("refused", "a job runs on one machine"),
}
