"""Which card a job gets: the policy over real price tables, and what it says of it."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from broker.offer import Market, Offer, OfferQuery
from broker.policy import Decision, Memory, Wish, choose

CATALOG = Path(__file__).parents[3] / "shared" / "data" / "catalog" / "v6_azure_gpu_rows.csv"
# Azure's machines with eight A100s, USD per hour on spot: the two are close in price.
ROWS = [
    ("Standard_ND96asr_v4", "A100", "eastus", 2.99167), ("Standard_ND96asr_v4", "A100", "westus2", 2.99167),
    ("Standard_ND96asr_v4", "A100", "southcentralus", 3.5893),
    ("Standard_ND96amsr_A100_v4", "A100-80GB", "eastus", 3.6047),
]  # fmt: skip


def rented(kind: str, gpu: str, region: str, price: float, count: int = 8, memory: float = 0.0) -> Offer:
    return Offer("azure", region, "", kind, Market.SPOT, price, gpu=gpu, gpu_count=count, gpu_memory=memory)


def decide(offers: list[Offer], gpu: str, count: int = 8) -> Decision:
    return choose(offers, wish=Wish((OfferQuery(gpu=gpu, gpu_count=count),), spot="only"), memory=Memory(), now=0.0)


def from_catalog() -> list[Offer]:
    if not CATALOG.is_file():
        pytest.skip("the shared catalogs are not here")
    with CATALOG.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["AcceleratorName"] and row["SpotPrice"]]
    return [
        rented(r["InstanceType"], r["AcceleratorName"], r["Region"], float(r["SpotPrice"]),
               int(float(r["AcceleratorCount"])))
        for r in rows
    ]  # fmt: skip


def check_a100s(offers: list[Offer]) -> None:
    """The 80 GB card never comes for the 40 GB one, nor the other way."""
    small, large = decide(offers, "A100"), decide(offers, "A100-80GB")
    assert {c.offer.instance_type for c in small.ranked} == {"Standard_ND96asr_v4"}
    assert {round(c.cost, 5) for c in small.ranked} == {2.99167, 3.5893}
    assert large.offer is not None
    assert (large.offer.instance_type[:18], large.offer.region) == ("Standard_ND96amsr_", "eastus")
    assert round(large.ranked[0].cost, 4) == 3.6047


def test_an_a100_is_not_an_a100_80gb() -> None:
    check_a100s([rented(*row) for row in ROWS])


def test_an_a100_is_not_an_a100_80gb_in_a_real_catalog() -> None:
    check_a100s(from_catalog())


def test_the_reported_memory_unmasks_a_card_of_another_size() -> None:
    masked = rented("m", "A100", "eastus", 1.0, memory=80.0)
    decision = decide([masked], "A100")
    assert decision.offer is None
    assert decision.rejected[0].reason == "has A100-80GB:8, not A100:8"
    assert decide([masked], "A100-80GB").offer == masked
    share = rented("g6f", "L4", "eastus", 0.1, count=1, memory=5.59)
    assert decide([share], "L4", 1).rejected[0].reason == "has L4:1 with 5.59 GB, not L4:1"


def test_a_request_without_a_form_takes_the_cheapest_form_and_says_which() -> None:
    forms = [
        rented(form, form, "r", price) for form, price in (("H100-SXM", 20.0), ("H100-PCIe", 18.0), ("H100-NVL", 19.0))
    ]
    decision = decide(forms, "H100")
    assert decision.reasons[0] == "H100-PCIe, spot in azure/r at 18.0000 USD/h"
    assert decision.ranked[0].taken == "H100-PCIe"
    assert [c.offer.gpu for c in decide(forms, "H100-SXM").ranked] == ["H100-SXM"]
    assert decide(forms, "H100-SXM").ranked[0].taken == ""


def test_a_wish_for_memory_takes_any_card_that_has_it() -> None:
    offers = [
        rented("a", "RTX4090", "r", 0.4, count=1, memory=23.99), rented("b", "L4", "r", 0.3, count=1, memory=22.35),
        rented("c", "T4", "r", 0.1, count=1, memory=16.0), rented("d", "MI300X", "r", 0.2, count=1, memory=192.0),
    ]  # fmt: skip
    assert [c.taken for c in decide(offers, "nvidia:24GB+", 1).ranked] == ["L4 with 24 GB", "RTX4090 with 24 GB"]
    assert decide(offers, "24GB+", 1).reasons[0].startswith("L4 with 24 GB, spot in"), "images and programs are CUDA's"
    assert decide(offers, "amd:24GB+", 1).reasons[0].startswith("MI300X with 192 GB, spot in")
    assert decide([replace(offers[0], gpu_count=2)], "24GB+", 1).offer is None
