"""Prices over the week: nights and weekends by the prior, a week of looks by what was seen, and what runs then cost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.experience import Records
from broker.offer import Market, Offer, OfferQuery
from broker.policy import Memory, Wish
from broker.policy.cost import Prospect
from broker.policy.decision import Decision
from broker.policy.past import Past
from broker.policy.record import Inputs, decide, replay, to_json
from broker.policy.season import OFF_PEAK, PRIOR, Season, sampled, weekly, zone_of
from broker.store import Store, open_store

HOUR, DAY = 3600.0, 86_400.0
NEW_YORK = ZoneInfo("America/New_York")
ANY = (OfferQuery(),)


def at(text: str, zone: Any = NEW_YORK) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()


NOON = at("2026-12-01T12:00")  # a Tuesday


def spot(price: float = 1.0, region: str = "us-east-1", **more: Any) -> Offer:
    return Offer("aws", region, f"{region}a", "g5", more.pop("market", Market.SPOT), price, **more)


def run(offers: list[Offer], hours: float, now: float, past: Past | None) -> Decision:
    prospect = Prospect(hours, lost=0.0, restarts={"aws": 0.0})
    return decide(Inputs(tuple(offers), Wish(ANY, prospect=prospect), Memory(), now, past=past))


def total(offer: Offer, hours: float, now: float, past: Past | None) -> float:
    finish = run([offer], hours, now, past).ranked[0].finish
    assert finish is not None
    return finish.total


@pytest.mark.parametrize(
    ("start", "hours", "factor"),
    [
        ("2026-12-01T12:00", 10, 1.0),  # until 22:00
        ("2026-12-01T12:00", 12, (10 + 2 * OFF_PEAK) / 12),
        ("2026-12-01T12:00", 24, (15 + 9 * OFF_PEAK) / 24),
        ("2026-12-01T22:00", 9, 1.0),  # all of it at night, and dear for no hour
        ("2026-12-01T22:00", 24, (9 * OFF_PEAK + 15) / 24 / OFF_PEAK),
        ("2026-12-04T22:00", 57, 1.0),  # from a Friday night to the Monday's morning
        ("2026-12-05T12:00", 168, (75 + 93 * OFF_PEAK) / 168 / OFF_PEAK),
    ],
)
def test_until_a_week_is_known_nights_and_weekends_are_cheaper(start: str, hours: float, factor: float) -> None:
    now = at(start)
    assert total(spot(), hours, now, Past()) == pytest.approx(hours * factor * (1 + 0), rel=1e-9)
    assert total(spot(disk_price=0.1), hours, now, Past()) == pytest.approx(hours * (factor + 0.1))
    assert total(spot(), hours, now, None) == pytest.approx(hours)


@pytest.mark.parametrize(
    "offer",
    [
        spot(market=Market.ON_DEMAND),
        spot(simulated=True),
        spot(extra={"pays_bid": True}),  # what was bid is charged, whatever the hour
    ],
)
def test_only_a_price_that_moves_has_a_season(offer: Offer) -> None:
    assert total(offer, 24, NOON, Past()) == pytest.approx(24)


def test_the_hours_are_those_of_the_region() -> None:
    assert total(spot(region="eu-central-1"), 9, at("2026-12-01T22:00", UTC), Past()) == pytest.approx(
        9 + (1 / OFF_PEAK - 1)  # from 23:00 to 08:00 in Berlin: the last hour is a day's
    )
    assert total(spot(region="US-KS-2"), 9, at("2026-12-01T22:00", UTC), Past()) == pytest.approx(9)
    assert zone_of("us-gov-east-1") == NEW_YORK
    assert zone_of("ap-southeast-2") == ZoneInfo("Australia/Sydney")
    assert zone_of("nowhere") is UTC


def test_a_faster_card_runs_through_fewer_hours() -> None:
    fast = spot(gpu="H100", gpu_count=1)
    query = (OfferQuery(gpu="H100", gpu_count=1),)
    prospect = Prospect(20, lost=0.0, restarts={"aws": 0.0}, speed={"H100": 2.0})
    decision = decide(Inputs((fast,), Wish(query, prospect=prospect), Memory(), NOON, past=Past()))
    finish = decision.ranked[0].finish
    assert finish is not None
    assert finish.season == pytest.approx(1.0), "ten hours from noon: done before the night"


def test_the_season_decides_and_is_told() -> None:
    """By day spot at 0.95 is worth a run through the night; by night the same price is worth no run into the day."""
    steady = spot(0.97, market=Market.ON_DEMAND)
    by_day = run([spot(0.95, interruption=0.001), steady], 24, NOON, Past())
    assert by_day.ranked[0].offer.market is Market.SPOT
    said = "over the run its price is 4.7 % lower than now: nights and weekends are taken to be cheaper until a week"
    assert any(said in reason for reason in by_day.reasons), by_day.reasons
    by_night = run([spot(0.95, interruption=0.001), steady], 24, at("2026-12-01T23:00"), Past())
    assert by_night.ranked[0].offer.market is Market.ON_DEMAND
    assert not any("over the run" in reason for reason in run([spot()], 4, NOON, Past()).reasons)


def test_a_week_of_prices_goes_before_the_prior() -> None:
    """Dear nights: three dollars from 0 to 6, one by day."""
    start = NOON - 8 * DAY
    looks = [(start + HOUR * n, 3.0 if (start + HOUR * n - at("2026-12-01T00:00")) % DAY < 6 * HOUR else 1.0)
             for n in range(8 * 24)]  # fmt: skip
    season = weekly(looks, NEW_YORK)
    assert season is not None
    past = Past({spot().key: season})
    assert total(spot(1.0), 24, NOON, past) == pytest.approx(18 + 6 * 3)
    assert total(spot(2.0), 24, NOON, past) == pytest.approx(2 * (18 + 6 * 3)), "the price now tells the level"
    assert "as its hours were in past weeks" in run([spot()], 24, NOON, past).reasons[-1]
    assert weekly(looks[: 24 * 6], NEW_YORK) is None, "six days are no week"
    days = weekly([(when, price) for when, price in looks if price == 1.0], NEW_YORK)
    assert days is not None
    assert total(spot(), 24, NOON, Past({spot().key: days})) == pytest.approx(15 + 9 * OFF_PEAK), "nights never seen"


def test_the_record_keeps_what_was_seen_and_replays() -> None:
    season = Season((*(1.0 + hour / 10 for hour in range(24)), *(2.0 for _ in range(24))))
    past = Past({spot().key: season, "other": season}, {spot().key: NOON - HOUR, "other": NOON})
    offers = (spot(), spot(0.9, "us-west-2"))
    inputs = Inputs(offers, Wish(ANY, prospect=Prospect(30)), Memory(), NOON, past=past)
    made = decide(inputs)
    kept = json.loads(json.dumps(to_json(inputs, made)))
    assert set(kept["past"]["seasons"]) == {spot().key}
    assert replay(kept).to_json() == made.to_json()


def test_the_order_is_that_of_the_figures_with_seasons_and_ages() -> None:
    regions = ("us-east-1", "eu-central-1", "ap-south-1")
    offers = [
        Offer("aws", regions[n % 3], f"z{n}", "g5", Market.SPOT if n % 4 else Market.ON_DEMAND, 1 + n * 37 % 101 / 500)
        for n in range(120)
    ]
    season = Season(tuple(1.0 + hour % 7 / 10 for hour in range(48)))
    past = Past(
        {each.key: season for each in offers[::5]}, {each.key: NOON - n * HOUR / 2 for n, each in enumerate(offers)}
    )
    ranked = run(offers, 30, NOON, past).ranked
    totals = [c.finish.total for c in ranked if c.finish]
    assert len(totals) > 100
    assert totals == pytest.approx(sorted(totals))


@given(st.floats(0, 2e9), st.floats(0, 2000))
def test_a_mean_lies_between_the_hours(moment: float, hours: float) -> None:
    mean = PRIOR.mean(moment, hours)
    assert mean is not None
    assert OFF_PEAK - 1e-9 <= mean <= 1 + 1e-9
    whole = PRIOR.mean(moment, 168.0)
    assert whole == pytest.approx((75 + 93 * OFF_PEAK) / 168)


def test_prices_are_known_for_the_hours_that_were_looked_at() -> None:
    points = [(0.0, 1.0), (2.5 * HOUR, 2.0)]
    assert sampled(points, [(0.0, True, True)], 4 * HOUR) == [
        (0.0, 1.0), (HOUR, 1.0), (2 * HOUR, 1.0), (2.5 * HOUR, 2.0), (3 * HOUR, 2.0), (4 * HOUR, 2.0)
    ]  # fmt: skip
    gone = [(0.0, True, True), (1.2 * HOUR, False, False), (2.8 * HOUR, True, False)]
    assert [when / HOUR for when, _ in sampled(points, gone, 4 * HOUR)] == [0.0, 1.0, 2.5, 3.0, 4.0]
    asleep = [(0.0, True, True), (1.2 * HOUR, True, False), (3.5 * HOUR, True, True)]
    assert [when / HOUR for when, _ in sampled(points, asleep, 4 * HOUR)] == [0.0, 1.0, 2.5, 4.0]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = open_store(tmp_path)
    yield made
    made.close()


def test_what_a_live_broker_has_looked_at_for_a_week_is_the_season(store: Store) -> None:
    """A look each half hour; prices are kept when they change, zones as they come and go."""
    records = Records(store)
    start = NOON - 8 * DAY
    for n in range(8 * 48 + 1):
        now = start + n * HOUR / 2
        dear = 2.0 if (now - at("2026-12-01T00:00")) % DAY < 6 * HOUR else 1.0
        records.looked(ANY, [spot(dear)], now, answered={"aws"})
        if n == 4 * 48:
            assert records.past([spot()], now).seasons == {}
    past = records.past([spot(), spot(region="us-west-2")], NOON)
    assert set(past.seasons) == {spot().key}
    assert total(spot(), 24, NOON, past) == pytest.approx(18 + 6 * 2, rel=0.02)
    assert past.since == {spot().key: start - 6 * HOUR}, "met at random, it had been up for a while"
    records.looked(ANY, [], NOON + HOUR, answered={"aws"})
    assert records.past([spot()], NOON + HOUR).since == {}
    records.looked(ANY, [spot()], NOON + 2 * HOUR, answered={"aws"})
    assert records.past([spot()], NOON + 3 * HOUR).since == {spot().key: NOON + 2 * HOUR}


def test_nights_that_nobody_saw_are_not_known(store: Store) -> None:
    """A laptop that sleeps from 20 to 8: its price at 20 is none of the night's."""
    records = Records(store)
    for day in range(-9, 1):
        for half in range(24):
            now = at("2026-12-01T08:00") + day * DAY + half * HOUR / 2
            if now <= NOON:
                records.looked(ANY, [spot(1.0)], now, answered={"aws"})
    season = records.past([spot()], NOON).seasons[spot().key]
    assert [hour for hour in range(24) if season.hours[hour] is not None] == list(range(8, 20))
    assert total(spot(), 24, NOON, Past({spot().key: season})) == pytest.approx(15 + 9 * OFF_PEAK)


def test_what_is_old_is_forgotten_but_for_the_newest(store: Store) -> None:
    import sqlalchemy as sa

    from broker.store import prices

    records = Records(store)
    for day, price in ((0, 1.0), (1, 1.1), (40, 1.2), (80, 1.2)):
        records.looked(ANY, [spot(price)], NOON + day * DAY, answered={"aws"})
    with store.engine.connect() as db:
        found = [row.price for row in db.execute(sa.select(prices).order_by(prices.c.at))]
    assert found == [1.2]


def test_explained_parts_show_the_season_where_there_is_one() -> None:
    from io import StringIO

    from rich.console import Console

    from broker.cli.tables import parts_table

    def shown(past: Past | None) -> str:
        console = Console(file=StringIO(), width=200)
        console.print(parts_table(run([spot(0.9), spot(market=Market.ON_DEMAND)], 24, NOON, past).ranked))
        return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]

    assert "PRICE" in shown(Past())
    assert "-5%" in shown(Past())
    assert "PRICE" not in shown(None)
