"""What the table of offers says beside the price."""

from __future__ import annotations

import io
import time
from dataclasses import replace

from rich.console import Console

from broker.cli.tables import offers_table
from broker.offer import Market, Offer

SPOT = Offer(
    "aws",
    "us-1",
    "us-1a",
    "p5",
    Market.SPOT,
    price=40.0,
    disk_price=0.5,
    gpu="H100-SXM",
    gpu_count=8,
    cpus=192,
    memory=2048,
    notice=120.0,
    extra={"on_demand": 98.32, "band": 1, "price_at": time.time() - 3 * 3600 - 5},
)
USUAL = Offer("aws", "us-1", "us-1a", "p5", Market.ON_DEMAND, price=100.0, disk_price=0.5, memory=2048)


def shown(*offers: Offer, width: int = 160) -> list[str]:
    console = Console(width=width, file=io.StringIO())
    console.print(offers_table(offers, width))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


def test_saving_band_and_age_of_the_price() -> None:
    head, spot = shown(SPOT)
    assert head.split()[-5:-1] == ["SAVES", "TAKEN/MONTH", "PRICE", "OF"]
    assert "59%" in spot  # of the listed 98.32
    assert "5-10 %" in spot
    assert "3h ago" in spot
    assert "2048 GiB" in spot
    _, spot, usual = shown(SPOT, USUAL)
    assert "60%" in spot  # of what is offered beside it
    assert "%" not in usual


def test_what_nobody_says_has_no_column() -> None:
    head, _ = shown(USUAL)
    assert not {"SAVES", "TAKEN/MONTH", "PRICE"} & set(head.split())
    head, *_ = shown(SPOT, width=80)
    assert "SAVES" not in head


def test_an_address_that_costs_something_is_a_part_of_the_price() -> None:
    assert "ADDRESS" not in shown(USUAL)[0]
    head, spot, _ = shown(replace(SPOT, address_price=0.005), USUAL, width=180)
    assert head.split()[5:9] == ["MACHINE", "DISK", "ADDRESS", "USD/h"]
    assert "0.0050" in spot
