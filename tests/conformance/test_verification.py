"""`broker verify` runs its part of the suite against the stand-ins as on a user's account, and leaves nothing there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clouds.aws.server import Aws
from clouds.lambda_cloud.cloud import Lambda
from clouds.runpod.cloud import RunPod
from clouds.vast.account import Account, Host
from clouds.vast.server import VastServer

from broker import registry
from broker.config import Config
from broker.meter import Ledger, Meter, Tab, metered
from broker.provider import State
from broker.verification import DIFFERS, KEPT, NOT_TRIED, Verdict, choose, markdown, verify

QUICKER = 200.0
"""Seconds of an account's time in one of ours: the stand-ins boot machines in an instant."""


def opened(name: str, state: Path, **settings: Any) -> tuple[Meter, Config]:
    config = Config(state=state, file=state / "config.toml", providers={name: settings})
    registry.forget(name)
    tab = Tab(
        Ledger(state / "log"), 100.0,
        clock=lambda: time.monotonic() * QUICKER, sleep=lambda seconds: time.sleep(max(0.01, seconds / QUICKER)),
    )  # fmt: skip
    return metered(registry.get(name, config), tab), config


@pytest.fixture
def runpod(tmp_path: Path) -> Iterator[tuple[Meter, Config]]:
    cloud = RunPod()
    cloud.start()
    yield opened("runpod", tmp_path, api=cloud.url, key="rpa_TESTKEY")
    cloud.close()


@pytest.fixture
def lambda_(tmp_path: Path) -> Iterator[tuple[Meter, Config]]:
    cloud = Lambda()
    cloud.start()
    yield opened("lambda", tmp_path, api=cloud.api, key="secret_TESTKEY", pace=0)
    cloud.close()


@pytest.fixture
def vast(tmp_path: Path) -> Iterator[tuple[Meter, Config]]:
    account = Account(boot=0.05)
    account.add(*(Host(31_550_000 + n, 40_100 + n, 9_000 + n, dph=0.36 + n / 100, parts=4) for n in range(3)))
    with VastServer(account, scale=0.002) as server:
        yield opened("vast", tmp_path, api=server.url, key=account.key, pace=0.01)


@pytest.fixture
def aws_(aws: Aws, aws_state: Path) -> tuple[Meter, Config]:
    """As accounts are: an organisation bars a region, and of some machines there is no price in a zone."""
    aws.world.fail("DescribeSpotPriceHistory", "UnauthorizedOperation", 403, times=1e9, region="us-west-2")
    aws.world.no_spot = {("us-east-1a", "c5.large")}
    return opened("aws", aws_state, **aws.settings())


# RunPod's quota is by the minute, and the adapter keeps it: the first half of the sentences is within one.
FEW = ("O1", "O4", "L1", "L6", "I1", "T1")


@pytest.mark.parametrize(
    ("name", "only"), [("runpod", FEW), ("lambda_", ()), ("vast", ()), ("aws_", ("L2", "O2", "O5", "M1", "M2", *FEW))]
)
def test_a_users_account_is_verified_and_nothing_is_left(
    name: str, only: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    meter, config = request.getfixturevalue(name)
    verdicts: list[Verdict] = []
    report = verify(meter, choose(meter), config, verdicts.append, only=only)
    assert [(v.number, v.detail) for v in verdicts if v.result == DIFFERS] == []
    assert {v.number for v in verdicts if v.result == KEPT} >= set(only or (*FEW, "I2", "T2", "N1"))
    assert {v.number for v in verdicts if v.result not in (KEPT, DIFFERS)} <= {"L2", "L4", "L5"}, "some have no token"
    assert not [i for i in meter.provider.instances() if i.state is not State.TERMINATED]
    assert not meter.tab.ledger.open_jobs()
    assert report.ok
    assert "TESTKEY" not in markdown(report)
    assert report.launches >= 3


def test_what_cannot_be_had_is_not_tried_and_who_does_not_answer_is_named(aws: Aws, aws_: tuple[Meter, Config]) -> None:
    meter, config = aws_
    aws.world.fail("RunInstances", "InsufficientInstanceCapacity", 500)
    report = verify(meter, choose(meter), config, lambda _: None, only=("L1", "I1"))
    refused, kept = report.verdicts
    assert (refused.result, kept.result, report.ok) == (NOT_TRIED, KEPT, True)
    assert refused.detail[0].startswith("it could not be had: InsufficientInstanceCapacity")
    assert "UnauthorizedOperation" in report.unanswered["aws/us-west-2"]
    assert "- `aws/us-west-2`: UnauthorizedOperation" in markdown(report)
