"""The command over Vast's stand-in: prices without an account, the key, the plan's words for what was left out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.command import Cli
from clouds.vast.stage import Stage

TASK = """\
name: train
run: python train.py
resources: {accelerators: RTX4090, infra: vast}
checkpoint: {path: checkpoints}
"""


@pytest.fixture
def vast(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path / "adapter") as stage:
        stage.host(dph=0.41, min_bid=0.19, hosting_type=1)
        stage.host(reliability=0.90, min_bid=0.01)
        yield stage


@pytest.fixture
def cli(vast: Stage, tmp_path: Path) -> Cli:
    made = Cli(tmp_path)
    made.env.pop("VAST_API_KEY", None)
    made.env["COLUMNS"] = "200"
    (tmp_path / "config.toml").write_text(f'[providers.vast]\napi = "{vast.server.url}"\npace = 0.01\n')
    (tmp_path / "train.yaml").write_text(TASK)
    return made


def test_prices_without_an_account(cli: Cli, vast: Stage) -> None:
    rows = cli.json("offers", "RTX4090", "--infra", "vast")
    assert [row["market"] for row in rows] == ["spot", "on_demand"]
    assert all(row["blocked"].startswith("no key yet") for row in rows)
    shown = cli("offers", "RTX4090", "--infra", "vast")
    assert "broker check vast" in shown.stdout + shown.stderr
    assert "vast leaves out 2: reliability below 0.95" in " ".join((shown.stdout + shown.stderr).split())
    assert not any("Authorization" in headers for _, _, headers, _ in vast.server.asked)


def test_a_plan_with_a_key_counts_what_was_left_out(cli: Cli, vast: Stage) -> None:
    cli.env["VAST_API_KEY"] = vast.account.key
    plan = cli.json("plan", "train.yaml")
    assert plan["left_out"] == [
        "vast leaves out 2: reliability below 0.95 ([providers.vast] reliability sets it)",
    ]
    shown = cli("plan", "train.yaml").stdout
    assert "pytorch/pytorch:" in shown
    assert "the default, about 3.3 GB to pull" in " ".join(shown.split())
    assert "left out" in shown
    assert "vast gives none: what was not saved when the machine goes is lost" in shown


def test_without_a_key_nothing_is_rented_and_nothing_else_disturbed(cli: Cli, vast: Stage) -> None:
    refused = cli("run", "train.yaml", "-y", code=None)
    assert refused.returncode not in (0, 1)
    assert "no key yet" in refused.stdout + refused.stderr
    assert not vast.server.bodies("PUT /api/v0/asks/{id}/")
    listed = cli("ps", "--instances")
    assert "nothing is rented" in listed.stdout + listed.stderr
