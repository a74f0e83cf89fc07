"""The first minute: what cards cost at RunPod, without an account, and with one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.command import Cli
from clouds.runpod.cloud import RunPod


@pytest.fixture
def runpod() -> Iterator[RunPod]:
    made = RunPod()
    made.start()
    yield made
    made.close()


def test_prices_are_shown_to_somebody_without_an_account(cli: Cli, runpod: RunPod) -> None:
    env = {"RUNPOD_API_BASE_URL": runpod.url, "COLUMNS": "200"}
    shown = cli("offers", "RTX4090", env=env)
    rows = [line for line in shown.stdout.splitlines() if "runpod/" in line]
    assert len(rows) == 4
    assert all("no key yet" in row for row in rows)
    assert [row.split()[0] for row in rows] == ["1", "2", "3", "4"], "the cheapest first"
    assert "https://console.runpod.io/user/settings" in shown.stderr
    assert {call.path for call in runpod.calls} == {"/graphql"}
    assert not any(call.key for call in runpod.calls)


def test_a_key_is_tested_and_the_balance_told(cli: Cli, runpod: RunPod) -> None:
    env = {"RUNPOD_API_BASE_URL": runpod.url, "RUNPOD_API_KEY": "rpa_TESTKEY"}
    assert "$100.00 prepaid" in cli("check", "runpod", env=env).stdout
    refused = cli("check", "runpod", env={**env, "RUNPOD_API_KEY": "rpa_WRONG"}, code=78)
    assert "RunPod does not take this key" in refused.stdout
    assert "--new-key" in refused.stdout
    assert "rpa_WRONG" not in refused.stdout + refused.stderr


def test_a_vendor_out_of_reach_holds_nobody_up(cli: Cli) -> None:
    began = time.monotonic()
    refused = cli(
        "offers", "RTX4090", "--infra", "runpod", env={"RUNPOD_API_BASE_URL": "http://127.0.0.1:9"}, code=None
    )
    assert "runpod did not answer" in refused.stdout + refused.stderr
    assert time.monotonic() - began < 10


def test_who_cannot_be_asked_is_said_once(cli: Cli, tmp_path: Path) -> None:
    env = {"RUNPOD_API_BASE_URL": "http://127.0.0.1:9"}
    (tmp_path / "task.yaml").write_text(
        "run: 'true'\ncheckpoint: {path: c}\nresources: {accelerators: RTX4090:1, infra: [runpod, lambda]}\n"
    )
    for args, code in (
        (["offers", "RTX4090", "--infra", "runpod", "--infra", "lambda"], 75),
        (["plan", "task.yaml"], 75),
    ):
        refused = cli(*args, env=env, code=code)
        assert refused.stderr.count("runpod did not answer") == 1
        assert refused.stderr.count("no key or credentials yet") == 1
        assert "WHERE" not in refused.stdout
        assert "broker check" in refused.stderr
