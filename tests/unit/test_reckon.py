"""The quick way to rank a whole market by the cost of finishing gives what reckoning each offer by itself gives."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.offer import Market, Offer
from broker.policy.cost import Prospect
from broker.policy.hazard import Experience, Seen
from broker.policy.past import Past
from broker.policy.reckon import Reckoning
from broker.policy.season import Season

NOW = 1_790_000_000.0
HOUR = 3600.0
EXTRAS: tuple[dict[str, Any], ...] = (
    {},
    {"host": 7, "tags": ["a list is no part of a kind"]},
    {"download_per_gib": 0.02, "upload_per_gib": 0.01, "reliability": 0.98},
    {"minimum_hours": 3.0},
    {"pays_bid": True},
)
PLACES = (("aws", "us-east-1"), ("aws", "eu-central-1"), ("vast", "CZ"), ("runpod", "US-KS-2"))


@st.composite
def offers(draw: st.DrawFn) -> list[Offer]:
    made = []
    for number in range(draw(st.integers(1, 40))):
        provider, region = draw(st.sampled_from(PLACES))
        made.append(
            Offer(
                provider,
                region,
                f"z{number}",
                "m",
                draw(st.sampled_from(Market)),
                draw(st.floats(0.5, 1.5)),
                disk_price=draw(st.sampled_from((0.0, 0.1))),
                gpu=draw(st.sampled_from(("H100-SXM", "A100-80GB", None))),
                interruption=draw(st.sampled_from((None, 0.0, 0.05, 0.5))),
                ends_at=draw(st.none() | st.floats(0, 200).map(lambda hours: NOW + hours * HOUR)),
                simulated=draw(st.booleans()),
                extra=draw(st.sampled_from(EXTRAS)),
            )
        )
    return made


@st.composite
def reckonings(draw: st.DrawFn, market: list[Offer]) -> Reckoning:
    prospect = Prospect(
        draw(st.sampled_from((0.0, 0.3, 5.0, 48.0, 400.0))),
        lost=draw(st.sampled_from((0.0, 0.25, 4.0))),
        restarts=draw(st.sampled_from(({}, {"aws": 0.2}))),
        speed=draw(st.sampled_from(({}, {"H100-SXM": 2.1}))),
        checkpoint=draw(st.sampled_from((0.0, 12.0))),
        egress={"aws": 0.02, "vast": 0.09, "aws/us-east-1": 0.0},
        leaving={"aws": 0.09},
        download=draw(st.sampled_from((0.0, 30.0))),
        resumed=draw(st.booleans()),
        cache=draw(st.sampled_from((0.0, 0.01, 4.0))),
        spared=draw(st.sampled_from((None, 0.0, 0.3))),
    )
    some = [offer for offer in market if draw(st.booleans())]
    seasons = {
        offer.key: Season(tuple(None if hole == hour % 24 else 1 + hour * (number + 1) % 7 / 20 for hour in range(48)))
        for number, offer in enumerate(some[::2])
        if (hole := draw(st.integers(0, 47))) >= 0
    }
    past = draw(
        st.sampled_from((None, Past(), Past(seasons)))
        | st.just(Past(seasons, {offer.key: NOW - draw(st.floats(-1, 60)) * HOUR for offer in some}))
    )
    lost = Experience({"aws/us-east-1/H100": Seen(40, 10, 5)}, {3: Seen(9, 0, 2)})
    seen = draw(st.sampled_from((Experience(), lost)))
    reckoning = Reckoning(prospect, seen, NOW, past)
    reckoning.after = draw(st.none() | st.sampled_from((0.1, 3.0)))
    return reckoning


@given(st.data(), st.integers(1, 50))
@settings(max_examples=200, deadline=None)
def test_the_quick_way_is_the_plain_one(data: st.DataObject, first: int) -> None:
    market = data.draw(offers())
    reckoning = data.draw(reckonings(market))
    plain = [reckoning.cost(offer).total for offer in market]
    assert reckoning.totals(market) == pytest.approx(plain, rel=1e-12)
    order, costs = reckoning.order(market, first)
    assert sorted(order) == list(range(len(market)))
    assert [plain[n] for n in order[:first]] == pytest.approx(sorted(plain)[:first], rel=1e-12)
    assert [costs[n] for n in order[:first]] == pytest.approx(sorted(plain)[:first], rel=1e-12)
    assert all(costs[n] <= plain[n] * (1 + 1e-12) for n in order)
    assert all(costs[n] >= costs[order[:first][-1]] for n in order[first:])
