"""From Lambda's instance types to offers, and from its instances to ours."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from broker import gpus
from broker.errors import InvalidRequest
from broker.offer import Market, Offer, OfferQuery
from broker.provider import TAG_GENERATION, TAG_INSTALLATION, TAG_JOB, Cause, Instance, LaunchRequest, State
from broker.rest import number
from broker_lambda.api import NAME

# "H100 (80 GB SXM5)", "A10 (24 GB PCIe)", "RTX 6000 (24 GB)"
DESCRIPTION = re.compile(r"(?P<model>[^(]+?)\s*\((?P<memory>\d+)\s*GB\s*(?P<form>[^)]*)\)")
TAG_KEY = re.compile(r"[a-z][a-z0-9-:]{1,54}")
TAG_VALUE, NAME_LENGTH = 128, 64
MINUTE = 1 / 60  # hours that are billed at least: one-minute increments
SIZES = ("gpus", "vcpus", "memory_gib", "storage_gib")
ODD = (AttributeError, KeyError, OverflowError, TypeError, ValueError)  # what a row that is none of theirs leads to
STATES = {
    "booting": State.PENDING,
    "active": State.RUNNING,
    "unhealthy": State.RUNNING,  # still billed; whether anything runs on it the beats tell
    "terminating": State.STOPPING,
    "preempted": State.STOPPED,  # in the enumeration and documented nowhere: taken for lost, and terminated
}


def offers(types: Mapping[str, Any], query: OfferQuery, at: float) -> Iterator[Offer]:
    """One per type and region that has it now. Prices are whole US cents per hour and machine, its disk included.

    A type that lacks its price or one of its sizes is left out, and no other for it.
    """
    for name, item in types.items():
        with contextlib.suppress(*ODD):
            yield from [*_of_type(str(name), item, query, at)]


def _of_type(name: str, item: Mapping[str, Any], query: OfferQuery, at: float) -> Iterator[Offer]:
    kind = item["instance_type"]
    specs = kind["specs"]
    told = (kind.get("price_cents_per_hour"), *(specs.get(size) for size in SIZES))
    if not all(isinstance(n, int | float) and not isinstance(n, bool) and math.isfinite(n) for n in told):
        return
    count = int(specs["gpus"])
    card, memory = card_of(str(kind.get("gpu_description", ""))) if count else (None, 0.0)
    if (
        Market.ON_DEMAND not in query.markets
        or count != query.gpu_count
        or (query.gpu and not (card and gpus.matches(query.gpu, card, memory)))
        or specs["vcpus"] < query.cpus
        or specs["memory_gib"] < query.memory
        or specs["storage_gib"] < query.disk
        or not kind["price_cents_per_hour"] > 0
    ):
        return
    for region in item["regions_with_capacity_available"] or ():
        yield Offer(
            provider=NAME,
            region=str(region["name"]),
            zone="",
            instance_type=name,
            market=Market.ON_DEMAND,
            price=kind["price_cents_per_hour"] / 100,
            gpu=card,
            gpu_count=count,
            gpu_memory=memory,
            cpus=float(specs["vcpus"]),
            memory=float(specs["memory_gib"]),
            disk=float(specs["storage_gib"]),
            fetched_at=at,
            extra={"minimum_hours": MINUTE, "download_per_gib": 0.0, "upload_per_gib": 0.0, **_architecture(card)},
        )


def card_of(description: str) -> tuple[str | None, float]:
    """The card and its memory in GiB, from `gpu_description`. (None, 0) for one that nobody knows."""
    found = DESCRIPTION.match(description)
    if found is None:
        return None, 0.0
    memory = float(found["memory"])
    for text in (f"{found['model']} {found['form']}".strip(), found["model"]):
        try:
            return gpus.card(text, memory).name, memory
        except ValueError:
            continue
    return None, 0.0


def _architecture(card: str | None) -> dict[str, str]:
    """GH200 and its kin have Arm hosts."""
    return {"architecture": "aarch64"} if card and card.startswith(("GH", "GB")) else {}


def tags_of(request: LaunchRequest) -> list[dict[str, str]]:
    """Ours, and those of the task's labels that Lambda can hold. Raises InvalidRequest for ours that it cannot."""
    kept = {key: value for key, value in request.tags.items() if TAG_KEY.fullmatch(key) and len(value) <= TAG_VALUE}
    for key in (TAG_INSTALLATION, TAG_JOB, TAG_GENERATION):
        if key in request.tags and key not in kept:
            raise InvalidRequest(f"Lambda's tags hold no {key} of {len(request.tags[key])} characters", provider=NAME)
    return [{"key": key, "value": value} for key, value in kept.items()]


def name_of(request: LaunchRequest) -> str:
    """For people; the tags are what counts."""
    end = f"-{request.generation}"
    return f"sb-{request.job}"[: NAME_LENGTH - len(end)] + end


def instances(rows: Iterable[Mapping[str, Any]]) -> list[Instance]:
    """Ours among all. Terminated ones are left out: Lambda does not say who ended them, or when.

    Whatever else a row of ours lacks, it is a machine; one whose price is not told has 0 for it.
    """
    found = []
    for row in rows:
        tags = _tags(row.get("tags"))
        if TAG_JOB not in tags or row.get("status") == "terminated":
            continue
        kind, region = _part(row, "instance_type"), _part(row, "region")
        cents = number(kind.get("price_cents_per_hour")) or 0.0
        found.append(
            Instance(
                provider=NAME,
                id=str(row["id"]),
                # A status that nobody knows is a machine that may cost money.
                state=STATES.get(str(row.get("status")), State.RUNNING),
                market=Market.ON_DEMAND,
                hourly=max(0.0, cents / 100),
                tags=tags,
                region=str(region.get("name") or ""),
                instance_type=str(kind.get("name") or ""),
                cause=Cause.PREEMPTED if row.get("status") == "preempted" else None,
            )
        )
    return found


def _tags(found: Any) -> dict[str, str]:
    tags = [tag for tag in found if isinstance(tag, Mapping)] if isinstance(found, list) else []
    return {str(tag["key"]): str(tag["value"]) for tag in tags if "key" in tag and "value" in tag}


def _part(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = row.get(name)
    return found if isinstance(found, Mapping) else {}
