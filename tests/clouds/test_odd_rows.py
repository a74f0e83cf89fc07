"""Rows of the marketplaces' answers in which anything may be missing or of another kind: none of them stops the others,
and none becomes an offer or a machine with a price that is none."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Iterable
from typing import Any

import pytest
from clouds.lambda_cloud.cloud import kind
from clouds.runpod.cloud import CARDS
from clouds.runpod.pods import Pod
from clouds.vast.account import Host

from broker.offer import Market, Offer, OfferQuery
from broker.provider import TAG_GENERATION, TAG_INSTALLATION, TAG_JOB, Instance
from broker_lambda import machines
from broker_runpod import catalog, pods
from broker_vast import contract
from broker_vast import offers as vast
from broker_vast.settings import Settings

ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 0.5, float("nan"), float("inf"), -float("inf"), 10**400, 1e308, "", "0", "-1", "1e400",
    "nan", "9" * 5000, "²", "12.8", "some text", "2026-12-01T00:00:00", [], {}, [None], {"a": 1},
)  # fmt: skip
TIMES = 1500
QUERIES = (OfferQuery(gpu="RTX4090", gpu_count=1), OfferQuery(gpu="24GB+", gpu_count=1))
TAGS = {TAG_INSTALLATION: "i", TAG_JOB: "j", TAG_GENERATION: "1"}


@pytest.fixture
def dice() -> random.Random:
    return random.Random(1)  # the same rows at every run


def changed(dice: random.Random, row: dict[str, Any], count: int = 0, kept: tuple[str, ...] = ()) -> dict[str, Any]:
    """The row with some of its fields odd, or gone; those within it, too."""
    made = dict(row)
    fields = [name for name in row if name not in kept]
    for name in dice.sample(fields, min(len(fields), count or dice.randint(1, 3))):
        value = row[name]
        if isinstance(value, dict) and dice.random() < 0.6:
            made[name] = changed(dice, value, 1)
        elif isinstance(value, list) and value and isinstance(value[0], dict) and dice.random() < 0.6:
            made[name] = [changed(dice, value[0], 1), *value[1:]]
        elif dice.random() < 0.1:
            del made[name]
        else:
            made[name] = dice.choice(ODD)
    return made


def sound(offers: Iterable[Offer]) -> list[Offer]:
    """Every number of an offer is one."""
    found = list(offers)
    for offer in found:
        numbers = [offer.price, offer.disk_price, offer.gpu_memory, offer.cpus, offer.memory, offer.ends_at or 0.0]
        numbers += [offer.extra.get(name) or 0.0 for name in ("bid_floor", "download_per_gib", "upload_per_gib")]
        assert all(math.isfinite(number) for number in numbers), offer
        assert offer.price > 0, offer
        assert offer.disk_price >= 0, offer
    return found


def one(instances: list[Instance | None]) -> None:
    """It is the machine that it is, and costs no less than nothing."""
    (found,) = instances
    assert found is not None
    assert (found.job, found.generation) == ("j", 1)
    assert 0 <= found.hourly < math.inf
    assert found.ended_at is None or found.ended_at <= time.time()


def test_vasts_offers(dice: random.Random) -> None:
    whole = Host(1, 2, 3).row(kind="bid", storage=20.0, month=730.0, now=time.time())
    for _ in range(TIMES):
        rows = [changed(dice, whole), {**whole, "id": 9, "machine_id": 9}]
        found = {Market.SPOT: rows, Market.ON_DEMAND: rows}
        offers = sound(vast.read(found, dice.choice(QUERIES), Settings(), blocked="", now=time.time()))
        assert any(offer.extra["ask"] == 9 for offer in offers)


def test_vasts_contracts(dice: random.Random) -> None:
    whole = {
        "id": 7, "label": "spotbroker:i:j:1", "is_bid": True, "dph_total": 0.2, "dph_base": 0.19,
        "storage_total_cost": 0.01, "actual_status": "running", "intended_status": "running", "cur_state": "running",
        "next_state": "running", "status_msg": "ok", "machine_id": 1, "host_id": 2, "gpu_name": "RTX 4090",
        "num_gpus": 1, "gpu_ram": 24564, "geolocation": "X, PL", "start_date": 1.7e9, "end_date": 1.8e9,
    }  # fmt: skip
    for _ in range(TIMES):
        row = changed(dice, whole, kept=("id", "label"))
        destroyed, paid = dice.choice((None, 1.75e9)), dice.choice((True, False, None))
        one([contract.instance_of(row, now=time.time(), destroyed_at=destroyed, paid=lambda paid=paid: paid)])
        contract.instance_of({**row, "label": dice.choice(ODD)}, now=0.0, destroyed_at=None, paid=lambda: None)


def test_runpods_cards(dice: random.Random) -> None:
    stock = {"minimumBidPrice": 0.3, "minVcpu": 8, "minMemory": 50, "stockStatus": "High", "availableGpuCounts": [1]}
    told = {**CARDS[0], "secureStock": stock, "communityStock": stock}
    listed = {
        "id": told["id"], "memory": 24, "secure": True, "community": True, "price": {"secure": 0.6, "community": 0.3},
        "maxCount": {"secure": 8, "community": 8}, "availability": "HIGH",
        "dataCenters": [{"id": "EU-RO-1", "availability": "HIGH"}],
    }  # fmt: skip
    for _ in range(TIMES):
        rows = [changed(dice, listed), dice.choice(ODD), listed]
        shape = catalog.Shape(dice.choice(QUERIES), 0.0, centres=catalog.centres_of(rows))
        assert len(sound(catalog.offers(catalog.sold_by_rest(rows), shape))) >= 2
        graph = catalog.sold_by_graph([changed(dice, told), dice.choice(ODD), told], 1)
        assert len(sound(catalog.offers(graph, shape))) >= 4


def test_runpods_pods(dice: random.Random) -> None:
    offer = {"key": "runpod/RO/EU-RO-1/1x NVIDIA A40 SECURE/spot", "price": 0.3, "disk": 0.01}
    env = {pods.TAGS: json.dumps(TAGS), pods.OFFER: json.dumps(offer)}
    pod = Pod("sb-i-j-1", "x", "NVIDIA A40", 1, "SECURE", "EU-RO-1", env, 20, "", 0.3, 0.0)
    for end in (False, True):
        pod.end("EXITED", "Outbid") if end else None
        for _ in range(TIMES // 2):
            mine, theirs = (changed(dice, row, kept=("id", "name")) for row in (pod.rest(), pod.graph()))
            found = pods.merged(*dice.choice((([mine], [theirs]), ([mine], []), ([], [theirs]))))
            # One that its user ended in the console is left out, and only that.
            one(list(found)) if found else None
            assert found or "TERMINATED" in (mine.get("status"), theirs.get("desiredStatus"))


def test_lambdas_types_and_machines(dice: random.Random) -> None:
    whole = kind("gpu_1x_a10", "A10 (24 GB PCIe)", 75, 1)
    told = {"instance_type": whole, "regions_with_capacity_available": [{"name": "us-east-1"}]}
    row = {
        "id": "x", "status": "active", "region": {"name": "us-east-1"}, "instance_type": whole,
        "tags": [{"key": key, "value": value} for key, value in TAGS.items()],
    }  # fmt: skip
    for _ in range(TIMES):
        types = {"odd": changed(dice, told), "none": dice.choice(ODD), "whole": told}
        found = sound(machines.offers(types, OfferQuery(gpu="A10", gpu_count=1), 0.0))
        assert found[-1].instance_type == "whole"
        one([*machines.instances([changed(dice, row, kept=("id", "tags"))])])
        machines.instances([{"id": "y", "tags": dice.choice(ODD)}, {"id": "z", "tags": [dice.choice(ODD)]}])
