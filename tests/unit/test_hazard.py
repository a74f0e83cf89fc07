"""Losses per hour: priors, providers' figures in one unit, and what experience makes of them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.offer import Market, Offer
from broker.policy.hazard import (
    BY_HOUR,
    WEIGHT,
    Experience,
    Hazards,
    Seen,
    advisor,
    by_part,
    eviction,
    hazard,
    model,
    preemption,
    reliability,
    updated,
    weekend_share,
)
from broker.policy.past import MET, Past
from broker.policy.spells import UNKNOWN

MONDAY = 1_796_000_400.0 - 1_796_000_400.0 % 86_400 - 86_400 * 3
DAY = 86_400.0


def spot(gpu: str | None = "A100", region: str = "eu-west-1", *, provider: str = "aws") -> Offer:
    return Offer(provider, region, "z", "m", Market.SPOT, 1.0, gpu=gpu, gpu_count=1)


@pytest.fixture(scope="module")
def monday() -> float:
    days = [MONDAY + n * DAY for n in range(7)]
    return next(day for day in days if (day // DAY + 3) % 7 == 0)


@pytest.mark.parametrize(
    ("gpu", "rate"), [("A100", 0.023), ("A100-80GB-SXM", 0.023), ("V100-32GB", 0.008), ("H100-PCIe", 0.041)]
)
def test_the_priors_by_card(gpu: str, rate: float, monday: float) -> None:
    assert hazard(spot(gpu), at=monday) == pytest.approx(rate)
    assert hazard(replace(spot(gpu), market=Market.ON_DEMAND), at=monday) == 0
    assert hazard(replace(spot(gpu), simulated=True), at=monday) == 0


def test_weekends_and_regions(monday: float) -> None:
    week = hazard(spot(), at=monday, hours=24)
    assert hazard(spot(), at=monday + 5.5 * DAY) == pytest.approx(0.6 * week)
    assert hazard(spot(), at=monday + 4 * DAY, hours=48) == pytest.approx(0.8 * week)
    assert hazard(spot(), at=monday, hours=7 * 24 * 5) == pytest.approx(week * (5 + 2 * 0.6) / 7)
    east, west = hazard(spot(region="us-east-1"), at=monday), hazard(spot(region="us-west-2"), at=monday)
    assert east == pytest.approx(3 * west)
    assert west < week < east


def test_providers_figures_come_to_the_same_unit() -> None:
    assert pytest.approx(1 - 2.718281828 ** (-advisor(1) * 730)) == 1 - (1 - 0.075)
    assert [advisor(band) for band in range(5)] == sorted(advisor(band) for band in range(5))
    assert eviction(0, 5) == pytest.approx(0.0253, abs=1e-4)
    assert eviction(20) == pytest.approx(0.3567, abs=1e-4)
    assert eviction(0, 5) > 100 * advisor(0), "the one is per hour, the other per month"
    assert preemption(0.5, uptime=10) == pytest.approx(0.05)
    assert reliability(0.9971) == pytest.approx(0.0029, abs=1e-4)
    assert reliability(1) == 0


def test_a_providers_own_figure_replaces_the_prior(monday: float) -> None:
    own = replace(spot("H100", "us-east-1"), interruption=0.002)
    assert hazard(own, at=monday + 5.5 * DAY) == pytest.approx(0.002)


def test_what_was_seen_moves_the_prior(monday: float) -> None:
    offer = spot()
    calm, rough = Experience(), Experience()
    for day in range(5):
        at = monday + day * DAY
        calm = calm.ran(offer, at, at + DAY, lost=False)
        rough = rough.ran(offer, at, at + DAY, lost=True)
    expected = 0.023 * 120
    assert hazard(offer, at=monday, experience=calm) == pytest.approx(0.023 * WEIGHT / (WEIGHT + expected))
    assert hazard(offer, at=monday, experience=rough) == pytest.approx(0.023 * (WEIGHT + 5) / (WEIGHT + expected))
    # elsewhere at the provider the same way, at another provider not at all
    assert hazard(spot(region="eu-west-2"), at=monday, experience=rough) > 0.023
    assert hazard(spot(region="eu-west-2"), at=monday, experience=calm) < 0.023
    assert hazard(spot(provider="gcp"), at=monday, experience=rough) == pytest.approx(0.023)
    assert Experience.from_json(json.loads(json.dumps(rough.to_json()))) == rough


def test_much_experience_outweighs_the_prior(monday: float) -> None:
    seen = Experience()
    for week in range(200):
        at = monday + week * 7 * DAY
        seen = seen.ran(spot(), at, at + 100 * 3600, lost=week % 2 == 0)
    assert hazard(spot(), at=monday, experience=seen) == pytest.approx(100 / 20_000, rel=0.05)


def test_on_demand_and_simulated_machines_teach_nothing(monday: float) -> None:
    for offer in (replace(spot(), market=Market.ON_DEMAND), replace(spot(), simulated=True)):
        assert Experience().ran(offer, monday, monday + DAY, lost=True) == Experience()


@given(st.floats(0.0001, 1), st.floats(0, 100), st.integers(0, 50), st.floats(0, 100))
def test_more_losses_and_fewer_hours_make_it_worse(prior: float, expected: float, losses: int, more: float) -> None:
    here = updated(prior, expected=expected, losses=losses)
    assert updated(prior, expected=expected, losses=losses + 1) > here
    assert updated(prior, expected=expected + more, losses=losses) <= here
    assert updated(prior, expected=0, losses=0) == pytest.approx(prior)


@given(st.floats(0, 2e9), st.floats(0, 2000))
def test_a_share_of_weekend_is_a_share(at: float, hours: float) -> None:
    assert -1e-9 <= weekend_share(at, hours) <= 1 + 1e-9


def test_a_card_nobody_knows_keeps_its_name() -> None:
    assert model("Frobnicator 9") == "Frobnicator 9"
    assert model("") == ""


def test_a_new_zone_is_lost_more_often_and_an_old_one_less(monday: float) -> None:
    """By the losses of the tuning traces, over the whole run: how old a zone was at its start wears off."""
    offer = spot()

    def at_age(age: float, hours: float) -> float:
        past = Past(since={offer.key: monday - age * 3600})
        return hazard(offer, at=monday, hours=hours, past=past) / hazard(offer, at=monday, hours=hours)

    assert MET == UNKNOWN
    assert at_age(0.0, 0.0) == pytest.approx(1.835 / 0.165)
    # 2 h of a zone that is new: 0.0-0.17 h ... 1.34-2.7 h of its phases; of one met at random 6 to 8 h
    losses = 0.085 * 1.835 + 0.17 * 1.379 + 0.33 * 0.901 + 0.67 * 0.581 + 0.745 * 0.385
    assert at_age(0.05, 2.0) == pytest.approx(losses / (2 * 0.165), rel=1e-6)
    ages = [at_age(age, 24.0) for age in (0.0, 0.5, 2.0, 6.0, 12.0, 30.0)]
    assert ages == sorted(ages, reverse=True)
    assert ages[3] == 1
    assert 1 < at_age(0.0, 500.0) < at_age(0.0, 24.0)
    assert 0.3 < ages[-1] < 1


def test_what_a_provider_says_of_its_zones_is_corrected_by_age(monday: float) -> None:
    young, old = replace(spot(), interruption=0.01), replace(spot(region="eu-west-2"), interruption=0.01)
    past = Past(since={young.key: monday, old.key: monday - 40 * 3600})
    assert hazard(young, at=monday, hours=10, past=past) > 0.01 > hazard(old, at=monday, hours=10, past=past)
    steady = replace(spot(), market=Market.ON_DEMAND)
    assert hazard(steady, at=monday, hours=10, past=Past(since={steady.key: monday})) == 0


def test_the_hour_of_the_day_counts_as_losses_were_seen(monday: float) -> None:
    """All losses at 18:00 in Dublin; the hours before and after alike."""
    parts: dict[int, Seen] = {}
    for day in range(30):
        start = monday + day * DAY
        for part, entry in by_part(spot(), start, start + 18 * 3600, lost=True).items():
            old = parts.get(part, Seen())
            parts[part] = Seen(old.hours + entry.hours, 0.0, old.losses + entry.losses)
    assert [parts[n].losses for n in range(5)] == [0, 0, 0, 0, 30]
    assert [round(parts[n].hours) for n in range(5)] == [120, 120, 120, 120, 60]
    seen = Experience(parts=parts)

    def of(hour: float, hours: float) -> float:
        at = monday + hour * 3600
        return hazard(spot(), at=at, hours=hours, experience=seen) / hazard(spot(), at=at, hours=hours)

    expected = [30 * 4 / 18] * 4 + [30 * 2 / 18, 0.0]
    factors = [(BY_HOUR + (30 if n == 4 else 0)) / (BY_HOUR + expected[n]) for n in range(6)]
    assert of(17, 0) == pytest.approx(factors[4])
    assert of(1, 0) == pytest.approx(factors[0])
    assert of(14, 4) == pytest.approx((2 * factors[3] + 2 * factors[4]) / 4), "the mean of the run's hours"
    assert of(14, 24) == pytest.approx(sum(factors) / 6)
    assert of(3, 240) == pytest.approx(sum(factors) / 6)
    assert Experience.from_json(json.loads(json.dumps(seen.to_json()))) == seen
    assert by_part(replace(spot(), simulated=True), monday, monday + DAY, lost=True) == {}


@given(st.floats(0, 2e9), st.floats(0, 2000))
def test_every_hour_of_a_run_is_in_a_part_of_the_day(start: float, hours: float) -> None:
    found = by_part(spot(), start, start + hours * 3600, lost=True)
    assert sum(entry.hours for entry in found.values()) == pytest.approx(hours, abs=1e-6)
    assert sum(entry.losses for entry in found.values()) == 1
    assert all(0 <= part < 6 for part in found)


def test_a_private_host_goes_offline_on_demand_too(monday: float) -> None:
    host = replace(spot("A100", provider="vast"), extra={"reliability": 0.99})
    gone = reliability(0.99)
    assert hazard(replace(host, market=Market.ON_DEMAND), at=monday) == pytest.approx(gone)
    assert hazard(host, at=monday) == pytest.approx(0.023 + gone)
    assert hazard(host, at=monday + 5.5 * DAY) == pytest.approx(0.6 * 0.023 + gone), "hosts know no weekend"
    worse = replace(host, extra={"reliability": 0.90})
    both = Hazards(Experience(), monday, 0.0)
    assert both.of(worse) > both.of(host), "two hosts of one region are not one"
    assert hazard(replace(host, extra={"reliability": 0.0}), at=monday) == pytest.approx(0.023), "not known"
