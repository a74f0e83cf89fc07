"""The table before any run: figures that people have worked out by hand, and what decides between the rows."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.offer import Market, Offer
from broker.policy.cost import expected
from broker.policy.estimate import Assumptions, Estimate, Price, estimate

OD, SPOT = Market.ON_DEMAND, Market.SPOT


def table(hours: float, *prices: tuple[str, Market, float], card: str = "A100-80GB", **more: float) -> Estimate:
    return estimate([Price(*price) for price in prices], Assumptions(hours, card=card, count=1, **more))


def shown(made: Estimate) -> list[tuple[str, str]]:
    return [(f"{row.cost:.2f}", "" if row.saved is None else f"{row.saved:.0f}%") for row in made.rows]


@pytest.mark.parametrize(
    ("hours", "card", "prices", "figures"),
    [
        (
            4,
            "RTX4090",
            [("runpod", OD, 0.44), ("runpod", SPOT, 0.24), ("vast", SPOT, 0.19)],
            [("1.76", "0%"), ("0.96", "45%"), ("0.76", "57%")],
        ),
        (
            48,
            "A100-80GB",
            [("runpod", OD, 1.89), ("runpod", SPOT, 1.09), ("vast", SPOT, 0.89)],
            [("90.72", "0%"), ("52.32", "42%"), ("42.72", "53%")],
        ),
        (
            160,
            "A100-80GB",
            [("aws", OD, 2.79), ("runpod", OD, 1.89), ("vast", SPOT, 0.89)],
            [("446.40", "0%"), ("302.40", "32%"), ("142.40", "68%")],
        ),
        (1, "H100", [("x", OD, 2.49), ("x", SPOT, 1.49)], [("2.49", "0%"), ("1.49", "40%")]),
        (1, "A100", [("x", OD, 2.79), ("x", SPOT, 1.12)], [("2.79", "0%"), ("1.12", "60%")]),
        (1, "H100", [("x", OD, 98.32), ("x", SPOT, 19.66)], [("98.32", "0%"), ("19.66", "80%")]),
    ],
)
def test_tables_made_by_hand_come_out_to_the_cent(
    hours: float, card: str, prices: list[tuple[str, Market, float]], figures: list[tuple[str, str]]
) -> None:
    assert shown(table(hours, *prices, card=card)) == figures
    backwards = table(hours, *reversed(prices), card=card)
    assert shown(backwards) == figures[::-1]


def test_interruptions_cost_and_the_break_even_is_where_spot_stops_paying() -> None:
    made = table(48, ("a", OD, 1.49), ("a", SPOT, 1.45), interruptions=0.041, restart=0.0)
    spot = made.rows[1]
    assert spot.break_even is not None
    assert spot.expected == pytest.approx(48 * 1.465, abs=0.05)
    assert made.best is spot
    assert spot.break_even == pytest.approx((1.49 / 1.45 - 1) / 0.25, rel=0.02)
    offer = Offer("a", "", "", "", SPOT, 1.45)
    at = expected(offer, 48, hazard=spot.break_even, lost_hours=0.25, restart_hours=0, start_hours=0)
    assert at.total == pytest.approx(48 * 1.49)
    worse = table(48, ("a", OD, 1.49), ("a", SPOT, 1.45), interruptions=0.041, restart=0.0, checkpoint=2.0)
    assert worse.best is worse.rows[0]
    assert worse.saving == pytest.approx(0)


def test_the_prior_of_the_card_stands_where_no_rate_is_given() -> None:
    rates = {card: table(10, ("a", SPOT, 1.0), card=card).rows[0].hazard for card in ("A100-80GB", "V100", "H100-SXM")}
    assert rates == pytest.approx({"A100-80GB": 0.023, "V100": 0.008, "H100-SXM": 0.041})
    assert table(10, ("a", OD, 1.0)).rows[0].losses == 0


def test_what_it_saves_is_told_against_the_cheapest_on_demand() -> None:
    made = table(160, ("aws", OD, 2.79), ("runpod", OD, 1.89), ("vast", SPOT, 0.89), interruptions=0.0, value=40.0)
    assert made.against is made.rows[0]
    assert made.instead is made.rows[1]
    assert made.saving == pytest.approx(160.0)
    assert made.worth == pytest.approx(4.0)


def test_without_on_demand_there_is_nothing_to_compare_with() -> None:
    made = table(10, ("vast", SPOT, 0.5))
    assert (made.against, made.saving, made.worth, made.rows[0].saved) == (None, None, None, None)
    with pytest.raises(ValueError, match="at least one price"):
        table(10)


def test_spot_that_is_no_cheaper_never_pays() -> None:
    assert table(10, ("a", OD, 1.0), ("b", SPOT, 1.0)).rows[1].break_even == 0.0
    endless = table(10, ("a", OD, 1.0), ("b", SPOT, 0.5), checkpoint=0.0, restart=0.0)
    assert endless.rows[1].break_even is None, "nothing is ever lost"


def test_storage() -> None:
    made = table(730, ("a", OD, 1.0), gigabytes=100)
    assert made.storage == pytest.approx(3 * 100 * 0.023)


@given(st.floats(0.01, 500), st.floats(0.01, 50), st.floats(0.01, 50), st.floats(0, 2), st.floats(0, 3))
def test_every_table_is_plain_and_sound(hours: float, steady: float, spot: float, rate: float, every: float) -> None:
    made = table(hours, ("a", OD, steady), ("b", SPOT, spot), interruptions=rate, checkpoint=every)
    json.dumps(made.to_json(), allow_nan=False)
    assert made.rows[1].expected >= made.rows[1].cost * (1 - 1e-9)
    assert made.saving is not None
    assert made.saving >= -1e-9
    even = made.rows[1].break_even
    if even is not None and abs(even - rate) > 1e-6 * max(even, rate) + 1e-9:
        assert (made.best is made.rows[1]) == (rate < even)
