"""From Lambda's instance types to offers, and from its instances to ours."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from broker import gpus
from broker.offer import Market, Offer, OfferQuery
from broker.provider import TAG_JOB, Cause, Instance, LaunchRequest, State
from broker_lambda.api import NAME

# "H100 (80 GB SXM5)", "A10 (24 GB PCIe)", "RTX 6000 (24 GB)"
DESCRIPTION = re.compile(r"(?P<model>[^(]+?)\s*\((?P<memory>\d+)\s*GB\s*(?P<form>[^)]*)\)")
TAG_KEY = re.compile(r"[a-z][a-z0-9-:]{1,54}")
TAG_VALUE, NAME_LENGTH = 128, 64
MINUTE = 1 / 60  # hours that are billed at least: one-minute increments
SIZES = ("gpus", "vcpus", "memory_gib", "storage_gib")
STATES = {
    "booting": State.PENDING,
    "active": State.RUNNING,
    "unhealthy": State.RUNNING,  # still billed; whether anything runs on it the beats tell
    "terminating": State.STOPPING,
    "preempted": State.STOPPED,  # in the enumeration and documented nowhere: taken for lost, and terminated
}


def offers(types: Mapping[str, Mapping[str, Any]], query: OfferQuery, at: float) -> Iterator[Offer]:
    """One per type and region that has it now. Prices are whole US cents per hour and machine, its disk included.

    A type that lacks its price or one of its sizes is left out, and no other for it.
    """
    for name, item in types.items():
        kind = item["instance_type"]
        specs = kind["specs"]
        told = (kind.get("price_cents_per_hour"), *(specs.get(size) for size in SIZES))
        if not all(isinstance(number, int | float) for number in told):
            continue
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
            continue
        for region in item["regions_with_capacity_available"] or ():
            yield Offer(
                provider=NAME,
                region=str(region["name"]),
                zone="",
                instance_type=str(name),
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
    """Ours, and those of the task's labels that Lambda can hold."""
    return [
        {"key": key, "value": value}
        for key, value in request.tags.items()
        if TAG_KEY.fullmatch(key) and len(value) <= TAG_VALUE
    ]


def name_of(request: LaunchRequest) -> str:
    """For people; the tags are what counts."""
    end = f"-{request.generation}"
    return f"sb-{request.job}"[: NAME_LENGTH - len(end)] + end


def instances(rows: Iterable[Mapping[str, Any]]) -> list[Instance]:
    """Ours among all. Terminated ones are left out: Lambda does not say who ended them, or when."""
    found = []
    for row in rows:
        tags = {str(tag["key"]): str(tag["value"]) for tag in row.get("tags") or ()}
        if TAG_JOB not in tags or row["status"] == "terminated":
            continue
        kind = row["instance_type"]
        found.append(
            Instance(
                provider=NAME,
                id=str(row["id"]),
                # A status that nobody knows is a machine that may cost money.
                state=STATES.get(str(row["status"]), State.RUNNING),
                market=Market.ON_DEMAND,
                hourly=kind["price_cents_per_hour"] / 100,
                tags=tags,
                region=str(row["region"]["name"]),
                instance_type=str(kind["name"]),
                cause=Cause.PREEMPTED if row["status"] == "preempted" else None,
            )
        )
    return found
