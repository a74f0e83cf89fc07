"""What the table of offers says beside the price."""

from __future__ import annotations

import io
import time
from dataclasses import replace

import pytest
from rich.console import Console

from broker.cli.tables import costs_table, offers_table
from broker.cli.timeline import render
from broker.ledger import Line
from broker.offer import Market, Offer
from broker.report import Move, Report, Stay

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
    assert "SAVES" in head
    assert not {"MACHINE", "TAKEN/MONTH"} & set(head.split())


def test_an_address_that_costs_something_is_a_part_of_the_price() -> None:
    assert "ADDRESS" not in shown(USUAL)[0]
    head, spot, _ = shown(replace(SPOT, address_price=0.005), USUAL, width=180)
    assert head.split()[5:9] == ["MACHINE", "DISK", "ADDRESS", "USD/h"]
    assert "0.0050" in spot


STAY = Stay(
    1, "runpod/eu/eu-ro-1", "on_demand", "m", "RTX4090", 0.44, "on-demand in runpod/eu/eu-ro-1 at 0.4400 USD/h",
    (), (), 0.0, 3600.0, 0.0123, 0.44, 75.0, 1, 12000, 30, None,
)  # fmt: skip
MOVE = Move(1, 2, "preempted", 12000, (1, 30), 11900, 11901, 100, 45.0, 80.0, 95.0)


@pytest.mark.parametrize("width", [80, 100, 160])
def test_what_does_not_fit_leaves_whole_columns_out(width: int) -> None:
    report = Report("train-1", "train", "failed", "", 0.0, 3600.0, (STAY, STAY), (MOVE,), 0.0246, 0.88, False)
    console = Console(width=width, file=io.StringIO())
    console.print(offers_table([replace(SPOT, region="us-east-1", zone="us-east-1a")] * 2, width))
    for part in render(report, width):
        console.print(part)
    console.print(costs_table([Line("hf-finetune-a1b2c3", 4e-5, 1e-3, 1.0, 1, True)] * 2, "job", width))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, map(str.rstrip, text.splitlines()))) <= width
    for whole in ("aws/us-east-1a", "40.50", "runpod/eu-ro-1", "1–12000", "best offer", "100 steps", "45.0 s"):
        assert whole in text, whole
    assert "< $0.0001 (simulated)" in text
    assert ("STARTUP" in text, "SNAPSHOTS" in text, "DISK" in text) == (True, width > 80, width > 100)
