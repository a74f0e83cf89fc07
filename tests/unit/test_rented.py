"""The money of a rehearsal on rented machines."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from broker.errors import ConfigError
from broker.manifest import File, Manifest
from broker.offer import Market, Offer
from broker.policy.budget import SETTLING
from broker.policy.cost import Prospect
from broker.policy.egress import by_place, leaving
from broker.rehearse.mover import Traffic
from broker.rehearse.rented import HEADROOMS, MACHINES, bounds, per_gib, usual_notice

USD = st.floats(0.001, 200.0)


@given(hourly=USD, max_usd=USD, minimum=st.sampled_from([0.0, 0.02, 1.0, 3.0]), traffic=st.floats(0.0, 0.5))
def test_two_machines_at_the_highest_price_never_cost_more(
    hourly: float, max_usd: float, minimum: float, traffic: float
) -> None:
    try:
        found = bounds(hourly, max_usd, minimum_hours=minimum, traffic=traffic)
    except ConfigError:
        assume(False)
        raise
    worst = MACHINES * (found.price * max((found.seconds + SETTLING) / 3600, minimum) + traffic)
    assert worst <= max_usd * (1 + 1e-9)
    assert found.usd == pytest.approx(worst)
    assert hourly <= found.price <= hourly * HEADROOMS[0]
    assert found.seconds >= (240.0 if found.price <= hourly * HEADROOMS[1] else 900.0)


def test_checkpoints_cost_what_host_cloud_and_home_take() -> None:
    home = {"region": "us-east-1"}
    known = Prospect(egress=by_place("s3://b/p", home), leaving=leaving("s3://b/p", home))
    near = Offer("aws", "us-east-1", "us-east-1a", "m", Market.SPOT, 1.0)
    host = replace(near, provider="vast", region="x", extra={"upload_per_gib": 0.01, "download_per_gib": 0.02})
    assert per_gib(known, near) == (0.0, 0.0)
    assert per_gib(known, replace(near, region="us-west-2")) == (0.02, 0.02)
    assert per_gib(known, host) == (0.01, pytest.approx(0.11))
    assert per_gib(known, replace(host, simulated=True)) == (0.0, 0.0)
    assert per_gib(None, near) == (0.0, 0.0)


@given(hourly=USD, max_usd=USD, minimum=st.sampled_from([0.0, 1.0]))
def test_the_least_that_is_named_is_enough(hourly: float, max_usd: float, minimum: float) -> None:
    try:
        bounds(hourly, max_usd, minimum_hours=minimum)
    except ConfigError as error:
        least = float(error.fix.split()[1])
        assert least > max_usd
        bounds(hourly, least, minimum_hours=minimum)


def test_the_tasks_own_limits_stand() -> None:
    assert bounds(1.0, 100.0, cap=1.1).price == 1.1
    assert bounds(1.0, 100.0, longest=2.0).seconds == 7200.0


def test_the_way_of_taking_back_is_the_providers_own() -> None:
    seconds = (None, 0.0, 5.0, 25.0, 30.0, 120.0, 600.0)
    assert [usual_notice(s) for s in seconds] == ["vast", "vast", "runpod", "runpod", "gcp", "aws", "aws"]


def test_traffic_counts_each_content_once_and_the_restore_of_the_newest() -> None:
    def manifest(seq: int, *names: str) -> Manifest:
        files = {name: File(sha256=name, size=1024**3, mode=0o644) for name in names}
        return Manifest(generation=1, seq=seq, at=0.0, step=None, files=files, entries={})

    several = [manifest(1, "a"), manifest(2, "a", "b")]
    assert not Traffic(up=1.0, down=0.5, purse=3.0).too_much(several)
    assert Traffic(up=1.0, down=0.5, purse=2.9).too_much(several)
    assert not Traffic().too_much(several)
