"""What is bid, and when a bid is raised instead of the machine being left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.stage import SPOT, START, Stage, offer

from broker.offer import Market, OfferQuery
from broker.policy import Memory, Wish, choose
from broker.policy.bid import BUDGETED, bid, capped, limit, raised
from broker.policy.cost import Prospect
from broker.policy.hazard import hazard
from broker.provider import Instance, LaunchRequest

HOUR = 3600.0
PROSPECT = Prospect(10.0, restarts={"fake": 0.1})


def limited(zone: str, price: float) -> Any:
    """Spot whose bid is a limit."""
    return offer(zone, price=price, extra={"bid_limit": True})


def decided(offers: list[Any], prospect: Prospect | None = PROSPECT) -> Any:
    return choose(offers, wish=Wish((OfferQuery(),), prospect=prospect), memory=Memory(), now=START)


def bid_of(offers: list[Any], prospect: Prospect | None = PROSPECT) -> float | None:
    decision = decided(offers, prospect)
    return bid(decision, Wish((OfferQuery(),), prospect=prospect), hazard(decision.offer, at=START))


def test_the_bid_is_the_price_at_which_the_next_best_is_cheaper() -> None:
    found = bid_of([limited("a1", 1.0), offer("b1", price=1.2), offer("a1", Market.ON_DEMAND)])
    assert found == pytest.approx(1.2, rel=0.01)
    # at that price finishing here costs what finishing there does
    here = decided([offer("a1", price=found), offer("b1", price=1.2)])
    assert here.ranked[0].finish.total == pytest.approx(here.ranked[1].finish.total, rel=0.01)


def test_no_bid_is_above_on_demand() -> None:
    found = bid_of([limited("a1", 1.0), offer("a1", Market.ON_DEMAND, 1.1), offer("b1", price=3.0)])
    assert found is not None
    assert 1.09 < found <= 1.1
    assert bid_of([limited("a1", 1.0)]) == 2.0


def test_no_bid_is_above_what_the_provider_says_of_on_demand() -> None:
    """The on-demand offer itself is out of reach (another market was asked for, or it is rented out)."""
    said = offer("a1", price=1.0, disk_price=0.1, extra={"bid_limit": True, "on_demand": 1.3})
    assert bid_of([said, offer("b1", price=3.0)]) == pytest.approx(1.4)
    assert bid_of([replace(said, extra={"bid_limit": True, "on_demand": None})]) == pytest.approx(2.2)
    candidate = decided([said]).ranked[0]
    assert limit(candidate, (), None, 0.0, running=True) == pytest.approx(1.4)


def test_no_bid_is_above_what_the_task_allows() -> None:
    """A limit is charged once the price has risen to it."""
    wish = Wish((OfferQuery(),), prospect=PROSPECT, max_price=1.15)
    decision = choose([limited("a1", 1.0), offer("b1", price=1.14)], wish=wish, memory=Memory(), now=START)
    dearer = choose([limited("a1", 1.0)], wish=wish, memory=Memory(), now=START)
    assert bid(decision, wish, 0.0) == pytest.approx(1.14, rel=0.01)
    assert bid(dearer, wish, 0.0) == 1.15
    assert (capped(2.0, 1.15), capped(1.0, 1.15), capped(2.0, None)) == (1.15, 1.0, 2.0)


def test_only_where_a_bid_is_a_limit_it_is_above_the_price() -> None:
    assert bid_of([offer("a1", Market.ON_DEMAND)]) is None
    assert bid_of([offer("a1", price=1.0)]) is None  # nobody bids there
    assert bid_of([offer("a1", price=1.0, extra={"pays_bid": True, "bid_limit": True})]) is None
    assert bid_of([replace(offer("a1", price=1.0), provider="aws")]) == 2.0


@given(
    st.floats(0.1, 3.0), st.floats(0.1, 5.0), st.lists(st.floats(0.1, 5.0), max_size=4),
    st.sampled_from([None, 0.1, 1.0, 20.0]), st.booleans(),
)  # fmt: skip
def test_a_bid_lies_between_the_price_and_on_demand(
    price: float, on_demand: float, others: list[float], hours: float | None, running: bool
) -> None:
    offers = [offer("a1", price=price), offer("a1", Market.ON_DEMAND, on_demand)]
    offers += [offer(f"b{n}", price=other) for n, other in enumerate(others)]
    decision = decided(offers, Prospect(hours))
    chosen = decision.ranked[0]
    if chosen.offer.market is Market.ON_DEMAND:
        return
    highest = limit(chosen, decision.ranked[1:], Prospect(hours), 0.04, running=running)
    assert highest >= chosen.cost or (chosen.on_demand is not None and highest == chosen.on_demand)
    if chosen.on_demand is not None:
        assert highest <= chosen.on_demand


def test_a_running_machine_is_worth_the_move_that_it_saves() -> None:
    short = Prospect(1.0, restarts={"fake": 0.5})
    decision = decided([offer("a1", price=1.0), offer("b1", price=1.05)], short)
    chosen, others = decision.ranked[0], decision.ranked[1:]
    assert limit(chosen, others, short, 0.04, running=True) > 1.4 > limit(chosen, others, short, 0.04)


@pytest.mark.parametrize(
    ("standing", "highest", "floor", "want"),
    [
        (1.0, 1.5, 0.9, None),  # well below
        (1.0, 1.5, 1.0, 1.1),  # outbid next: stay for more
        (1.0, 1.5, 1.4, 1.5),
        (1.0, 1.5, 1.2, 1.32),
        (1.0, 1.5, 1.6, None),  # dearer than moving
        (1.0, 1.01, 1.0, None),
    ],
)
def test_when_a_bid_is_raised(standing: float, highest: float, floor: float, want: float | None) -> None:
    assert raised(standing, highest, floor) == want


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stock = [limited("a1", SPOT), offer("b1", price=1.6), offer("a1", Market.ON_DEMAND)]
    made = Stage(tmp_path, stock, restart=600.0, work=4 * HOUR)
    yield made
    made.close()


class Bidding:
    """The fake account, with bids: who is outbid loses the machine."""

    def __init__(self, stage: Stage) -> None:
        inner = stage.world.provider("fake")
        self.name, self.traits = inner.name, inner.traits
        self.offers, self.launch, self.instances = inner.offers, inner.launch, inner.instances
        self.terminate, self.notice = inner.terminate, inner.notice
        self.changes: list[tuple[str, float]] = []

    def change_bid(self, instance: Instance, bid: float) -> None:
        self.changes.append((instance.id, bid))


@pytest.mark.parametrize("deadline", ["", "12h"])
def test_a_machine_that_would_be_outbid_is_kept_by_a_higher_bid(stage: Stage, deadline: str) -> None:
    """Where the bid is paid. It is raised above what the machine goes for, as long as a move costs more."""
    account = Bidding(stage)
    stage.world._providers["fake"] = account
    paid = offer("a1", extra={"pays_bid": True, "bid_floor": 0.9})
    stage.cloud.stock = [paid, *stage.cloud.stock[1:]]
    job = stage.submit(deadline=deadline)
    stage.run(job, until=lambda: stage.clock() > START + HOUR)
    assert LaunchRequest.from_json(dict(job.placements()[0].request)).bid is None  # the offer's price is bid
    live = stage.state(job).live
    assert live is not None
    assert not account.changes
    stage.cloud.stock = [replace(paid, price=1.1, extra={"pays_bid": True, "bid_floor": 1.0}), *stage.cloud.stock[1:]]
    stage.run(job)
    assert job.status == "succeeded", stage.story(job)
    assert account.changes == [(live.instance, pytest.approx(1.1))]
    (row,) = job.placements()
    assert row.hourly == pytest.approx(1.1, abs=1e-3)
    assert any(event.kind == "weighed" and "a move would cost more" in event.text for event in job.events())


def test_under_a_budget_a_bid_is_what_is_counted(stage: Stage) -> None:
    """The price may rise up to the bid without a word, so little more than the price is bid, and all of it counted."""
    job = stage.submit(budget=3.0)
    stage.run(job)
    request = LaunchRequest.from_json(dict(job.placements()[0].request))
    assert request.bid == pytest.approx(BUDGETED * SPOT, rel=1e-3)
    assert (job.status, job.exit_code) == ("limit", 104)
    ran = sum((row.ended_at or 0.0) - (row.launched_at or 0.0) for row in job.placements())
    assert 2.7 < ran / HOUR * request.bid <= 3.0
    assert stage.cloud.spent() <= 3.0 / 1.2
