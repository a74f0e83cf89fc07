"""`broker estimate`: the table before any run, from stated prices and from today's offers."""

from __future__ import annotations

import re

import pytest
from cli.command import Cli

from broker.experience import Lesson, Records
from broker.offer import Market, Offer
from broker.store import open_store

STATED = ("--price", "runpod:on_demand=1.89", "--price", "runpod:spot=1.09", "--price", "vast:spot=0.89")


def test_stated_prices(cli: Cli) -> None:
    shown = cli("estimate", "--hours", "48", "--gpu", "A100-80GB", *STATED, "--checkpoint-gb", "20").stdout
    for pattern in (
        r"runpod +on-demand +1\.89 +90\.72 +90\.72",
        r"runpod +spot +1\.09 +52\.32 +42%",
        r"vast +spot +0\.8900 +42\.72 +53%",
        r"storage +0\.0907 for 3 checkpoints of 20 GB",
        r"break-even +interruptions at which spot costs 90\.72",
        r"golden rule +vast spot saves 47\.\d\d against runpod on-demand; worth it while it takes less than 57 m",
    ):
        assert re.search(pattern, shown), (pattern, shown)
    made = cli.json("estimate", "--hours", "48", "--gpu", "A100-80GB", *STATED)
    assert [row["cost"] for row in made["rows"]] == [90.72, 52.32, 42.72]
    assert cli("estimate", "--hours", "48", *STATED, "-q").stdout == "vast:spot\n"
    rough = ("--interruptions-per-hour", "3", "--checkpoint-min", "60", "--restart-min", "10", "--hourly-value", "20")
    worse = cli.json("estimate", "--hours", "48", "--gpu", "A100-80GB", *STATED, *rough)
    assert worse["best"]["market"] == "on_demand"
    assert "spot saves nothing here" in cli("estimate", "--hours", "48", *STATED, *rough).stdout


def test_a_price_per_card_is_for_all_of_them(cli: Cli) -> None:
    made = cli.json("estimate", "--hours", "1", "--gpu", "H100:8", "--price", "aws:on-demand=12.29/gpu")
    assert made["rows"][0]["cost"] == pytest.approx(98.32)


def test_todays_offers(cli: Cli) -> None:
    made = cli.json("estimate", "--hours", "4")
    offers = cli.json("offers")
    for row in made["rows"]:
        least = min(offer["hourly"] for offer in offers if offer["market"] == row["market"])
        assert row["cost"] == pytest.approx(4 * least, abs=1e-5)
    assert {row["market"] for row in made["rows"]} == {"spot", "on_demand"}
    assert "simulated" in cli("estimate", "--hours", "4").stderr


@pytest.mark.parametrize(
    ("args", "code", "what"),
    [
        (["--hours", "0"], 2, "--hours must be above 0"),
        (["--hours", "nan"], 2, "--hours must be above 0"),
        (["--hours", "1e300"], 2, "--hours must be at most 1,000,000,000"),
        (["--hours", "1", "--price", "x=3"], 2, "'x=3' is not a price"),
        (["--hours", "1", "--price", "x:spot=0"], 2, "'x:spot=0' is not a price"),
        (["--hours", "1", "--price", "x:spot=1", "--restart-min", "-1"], 2, "--restart-min must be at least 0"),
        (["--hours", "1", "--gpu", "A1OO", "--price", "x:spot=1"], 2, "did you mean"),
        (["--hours", "1", "--gpu", "H100"], 78, "no provider that rents out GPUs can be asked"),
    ],
)
def test_what_cannot_be_reckoned_is_refused(cli: Cli, args: list[str], code: int, what: str) -> None:
    assert what in cli("estimate", *args, code=code).stderr


TASK = """\
name: digits
resources: {any_of: [{accelerators: "A100-80GB:2"}, {accelerators: "H100:2"}]}
checkpoint: {path: checkpoints, every: 20m}
work: {hours: 48, on: A100-80GB}
speed: {A100-80GB: 1, H100: 2}
run: python3 train.py
"""


def test_a_task_says_the_hours_the_card_and_its_checkpoints(cli: Cli) -> None:
    (cli.folder / "task.yaml").write_text(TASK, encoding="utf-8")
    made = cli.json("estimate", "task.yaml", *STATED)
    assert [row["cost"] for row in made["rows"]] == [90.72, 52.32, 42.72]
    given = made["assumptions"]
    assert (given["card"], given["count"], given["checkpoint"]) == ("A100-80GB", 2, pytest.approx(1 / 3))
    shown = cli("estimate", "task.yaml", *STATED).stdout
    assert "digits: A100-80GB:2, 20 GiB disk, the first of its 2 alternatives; --gpu names another" in shown
    assert "work.hours: 48" in shown
    fast = cli.json("estimate", "task.yaml", "--gpu", "H100:2", "--checkpoint-min", "60", *STATED)
    assert [row["cost"] for row in fast["rows"]] == [45.36, 26.16, 21.36], "at twice that speed"
    assert fast["assumptions"]["checkpoint"] == 1
    stated = cli("estimate", "task.yaml", "--hours", "4", *STATED).stdout
    assert "7.56" in stated
    assert "work.hours" not in stated, "its hours are not those of the table"
    store = open_store(cli.state)
    offer = Offer("vast", "r", "", "m", Market.SPOT, 1.0, gpu="A100-80GB", gpu_count=2)
    Records(store).learn(Lesson("j", 1, offer, 1e9, 1e9 + 60, lost=False, task="digits", checkpoint=2 * 10**10))
    store.close()
    assert "3 checkpoints of 20 GB" in cli("estimate", "task.yaml", *STATED).stdout
    (cli.folder / "task.yaml").write_text(TASK.replace("hours: 48, on: A100-80GB", "steps: 100"), encoding="utf-8")
    assert "nothing tells how many hours of work task.yaml has" in cli("estimate", "task.yaml", *STATED, code=2).stderr
    assert "how many hours of work?" in cli("estimate", *STATED, code=2).stderr
