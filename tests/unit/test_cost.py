"""What finishing costs: published figures, the parts, and that nothing gets cheaper by getting worse."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.offer import Market, Offer, hourly_of
from broker.policy.cost import Cost, Prospect, expected

NOW = 1_787_227_200.0


def offer(price: float, market: Market = Market.SPOT, *, disk: float = 0.0, ends: float | None = None) -> Offer:
    ends_at = None if ends is None else NOW + ends * 3600
    return Offer("vast", "r", "", "m", market, price, disk_price=disk, gpu="H100", gpu_count=1, ends_at=ends_at)


def plain(price: float, work: float, *, hazard: float = 0.0, lost: float = 0.0, **more: float) -> Cost:
    return expected(
        offer(price), work, hazard=hazard, lost_hours=lost, restart_hours=more.pop("restart_hours", 0.0), **more
    )


@pytest.mark.parametrize(("lost", "hourly", "wins"), [(0.25, 1.465, True), (1.0, 1.51, False)])
def test_spot_wins_by_what_is_lost_with_a_machine(lost: float, hourly: float, wins: bool) -> None:
    spot = plain(1.45, 48, hazard=0.041, lost=lost)
    steady = plain(1.49, 48)
    assert spot.per_hour_of_progress == pytest.approx(hourly, abs=2e-3)
    assert (spot.total < steady.total) is wins


def test_a_host_that_charges_for_data_costs_more_than_its_hourly_price() -> None:
    """400 GiB in, 50 out and 10 hours of work."""
    first = plain(0.31, 10, download_gib=400, download_per_gib=0.02, upload_gib=50, upload_per_gib=0.02)
    second = plain(0.36, 10, download_gib=400, upload_gib=50)
    assert first.total == pytest.approx(12.10, abs=1e-9)
    assert second.total == pytest.approx(3.60, abs=1e-9)
    assert first.parts == pytest.approx({"machine": 3.10, "download": 8.0, "upload": 1.0})


def test_checkpoints_are_data_that_a_host_charges_for_too() -> None:
    """20 saves of 3 GiB in 10 hours go up; each next machine fetches one, the first too where the job is resumed."""
    cost = plain(1.0, 10, checkpoint_gib=3, saves=20, upload_per_gib=0.02, download_per_gib=0.01)
    assert cost.parts == pytest.approx({"machine": 10.0, "upload": 1.2})
    assert plain(1.0, 10, checkpoint_gib=3, download_per_gib=0.01, resumed=True).download == pytest.approx(0.03)
    charges = replace(offer(1.0), extra={"upload_per_gib": 0.02})
    assert Prospect(10, lost=0.25, checkpoint=3, restarts={"vast": 0}).cost(charges, 0, NOW).upload == pytest.approx(
        1.2
    )


def test_what_saves_send_is_measured_and_may_cost_less_than_what_goes_elsewhere() -> None:
    """A home in the region of the machine: saves are free, what the program sends to the internet is not."""
    machine = replace(offer(1.0), provider="aws", region="us-east-1")
    prospect = Prospect(
        10, lost=0.25, checkpoint=3, upload=5, sent=1.5, restarts={"aws": 0}, leaving={"aws": 0.02, "aws/us-east-1": 0}
    )
    assert prospect.saves == 5
    assert prospect.cost(machine, 0, NOW).upload == pytest.approx(5 * 0.09)
    other = replace(machine, region="us-west-2")
    assert prospect.cost(other, 0, NOW).upload == pytest.approx(5 * 0.09 + 15 * 0.02)


def test_disk_and_address_are_parts_of_an_hour() -> None:
    machine = replace(offer(1.0, disk=0.02), address_price=0.005)
    cost = expected(machine, 10, hazard=0, lost_hours=0, restart_hours=1)
    assert machine.hourly == 1.025 == hourly_of(machine.to_json())
    assert cost.parts == pytest.approx({"machine": 10.0, "disk": 0.2, "address": 0.05, "restarts": 1.025})
    assert sum(cost.parts.values()) == pytest.approx(cost.total)


def test_the_end_of_a_host_counts_as_a_loss() -> None:
    ends = expected(offer(0.2, ends=0.8), 10, hazard=0, lost_hours=0.25, restart_hours=0.05, now=NOW)
    # 10.05 hours at 0.8 a host; every host after the first brings half an hour of new work
    assert ends.moves == 19
    assert ends.hours == pytest.approx(10.05 + 19 * 0.3)
    known = expected(offer(0.2, ends=0.8), 10, hazard=0, lost_hours=0.25, restart_hours=0.05, now=NOW, after=0.36)
    assert known.moves == 1
    assert known.total == pytest.approx(0.8 * 0.2 + (9.5 + 0.05) * 0.36)
    assert known.ends
    assert not expected(offer(0.2, ends=11), 10, hazard=0, lost_hours=1, restart_hours=0.1, now=NOW).moves
    never = expected(offer(0.2, ends=0.2), 10, hazard=0, lost_hours=0.25, restart_hours=0, now=NOW)
    assert never.total > 1000


def test_the_formula_is_what_a_simulation_comes_to() -> None:
    hazard, lost, restart, work = 0.4, 0.25, 0.1, 8.0
    dice = random.Random(7)
    spans, moves = [], []
    for _ in range(4000):
        clock, left, count = 0.0, work, 0
        while left > 1e-9:
            life = dice.expovariate(hazard)
            saved = max(0, int((life - restart) / (2 * lost) + 1e-9)) * 2 * lost
            if restart + left <= life:
                clock, left = clock + restart + left, 0.0
            else:
                clock, left, count = clock + life, left - saved, count + 1
        spans.append(clock)
        moves.append(count)
    cost = plain(1.0, work, hazard=hazard, lost=lost, restart_hours=restart)
    assert cost.hours == pytest.approx(sum(spans) / len(spans), rel=0.01)
    assert cost.moves == pytest.approx(sum(moves) / len(moves), rel=0.03)


def test_a_restored_checkpoint_and_a_least_bill_have_their_price() -> None:
    cost = plain(1.0, 10, hazard=0.1, checkpoint_gib=100, egress_per_gib=0.09)
    assert cost.egress == pytest.approx(9.0)
    assert plain(1.0, 10, checkpoint_gib=100, egress_per_gib=0.09, resumed=True).egress == pytest.approx(9.0)
    assert plain(1.0, 0.25, minimum_hours=1).total == pytest.approx(1.0)
    assert plain(1.0, 2, minimum_hours=1).total == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("spared", "price", "usd"),
    [
        (0.5, 1.0, 0.36),  # half an hour is worth more than reading it
        (0.5, 0.4, 0.2),  # the machine fetches it again: that takes half an hour
        (0.0, 1.0, 0.0),
        (None, 1.0, 0.0),  # and so it does where nothing was measured, but for a cent
    ],
)
def test_each_start_has_the_cheaper_of_reading_the_cache_and_fetching_it_again(
    spared: float | None, price: float, usd: float
) -> None:
    offer = Offer("vast", "r", "", "m", Market.SPOT, price)
    prospect = Prospect(10, cache=4.0, spared=spared, egress={"vast": 0.09, "near": 0.0, "b2": 0.002})
    cost, without = prospect.cost(offer, 0.1, NOW), replace(prospect, cache=0.0).cost(offer, 0.1, NOW)
    assert cost.cache == pytest.approx((cost.moves + 1) * usd)
    assert cost.total == pytest.approx(without.total + cost.cache)
    assert sum(cost.parts.values()) == pytest.approx(cost.total)
    assert prospect.cost(replace(offer, provider="near"), 0.1, NOW).cache == 0
    cheap = prospect.cost(replace(offer, provider="b2"), 0.0, NOW)
    assert cheap.cache == pytest.approx(0.0 if spared == 0 else 0.008)


def test_a_dearer_faster_card_can_win() -> None:
    prospect = Prospect(10, speed={"H100": 2.1, "A100": 1.0})
    fast = Offer("x", "r", "", "h", Market.ON_DEMAND, 2.5, gpu="H100-SXM", gpu_count=1)
    slow = Offer("x", "r", "", "a", Market.ON_DEMAND, 1.5, gpu="A100-80GB", gpu_count=1)
    costs = [prospect.cost(each, 0.0, NOW) for each in (fast, slow)]
    assert costs[0].hours == pytest.approx(10 / 2.1 + 5 / 60)
    assert costs[0].total < costs[1].total
    assert costs[0].per_hour_of_progress == pytest.approx(costs[0].total / 10)


RATES = st.floats(0, 3)
HOURS = st.floats(0, 5)
WORK = st.floats(0.01, 300)
PRICES = st.floats(0.001, 100)
STEPS = st.floats(0, 2)


@given(RATES, HOURS, HOURS, WORK, PRICES, STEPS, st.sampled_from(["hazard", "lost", "price", "restart"]))
def test_nothing_gets_cheaper_by_getting_worse(
    hazard: float, lost: float, restart: float, work: float, price: float, step: float, worse: str
) -> None:
    def total(which: str) -> float:
        more = {name: step if name == which else 0.0 for name in ("hazard", "lost", "price", "restart")}
        return plain(
            price + more["price"],
            work,
            hazard=hazard + more["hazard"],
            lost=lost + more["lost"],
            restart_hours=restart + more["restart"],
            download_gib=3,
            download_per_gib=0.02,
            minimum_hours=0.5,
        ).total

    assert total(worse) >= total("") * (1 - 1e-6)


@given(RATES, HOURS, HOURS, WORK, PRICES, st.floats(0.3, 400), st.none() | PRICES)
def test_the_parts_add_up_and_the_work_is_all_there(
    hazard: float, lost: float, restart: float, work: float, price: float, life: float, after: float | None
) -> None:
    made = offer(price, disk=0.01, ends=life)
    cost = expected(made, work, hazard=hazard, lost_hours=lost, restart_hours=restart, now=NOW, after=after)
    assert sum(cost.parts.values()) == pytest.approx(cost.total)
    assert all(value >= 0 for value in cost[:14])
    assert cost.hours >= work * (1 - 1e-9)
    endless = expected(made, work, hazard=hazard, lost_hours=lost, restart_hours=restart)
    assert cost.ends == (life < endless.hours) or life == pytest.approx(endless.hours)
    if after is None:
        assert cost.total >= endless.total * (1 - 1e-9)
    json.dumps(cost.to_json(), allow_nan=False)
