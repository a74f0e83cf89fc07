"""A prepaid balance: what it does not pay for is not rented, and low money is told every hour."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from broker import registry
from broker.balance import Balances, balance_of, balance_word, payable, plan_word
from broker.config import Config, load
from broker.errors import ProviderUnavailable
from broker.job import submit
from broker.offer import OfferQuery
from broker.planning import plan
from broker.policy.decision import Kind
from broker.provider import TAG_INSTALLATION, Prepaid
from broker.state import Held
from broker.store import open_store
from broker.task import Resources, Task
from broker.testing import FakeClock, FakeProvider, sample_offers, wait_for
from broker.testing.conformance import request_for
from broker.watch import Followed, Watcher
from broker.world import World


class PrepaidProvider(FakeProvider):
    """One whose account holds `usd`; None where it does not say."""

    usd: float | None = 1.0
    asked = 0

    def balance(self) -> float:
        self.asked += 1
        if self.usd is None:
            raise ProviderUnavailable("no answer")
        return self.usd


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load(state=tmp_path / "state", file=tmp_path / "config.toml")


def with_balance(usd: float | None) -> PrepaidProvider:
    made = PrepaidProvider()
    made.usd = usd
    return made


@pytest.fixture
def prepaid(request: pytest.FixtureRequest) -> Iterator[PrepaidProvider]:
    made = with_balance(request.param)
    registry.register("fake", lambda settings, state: made)
    yield made
    registry.unregister("fake")


def test_only_what_the_balance_pays_an_hour_of_can_be_taken() -> None:
    provider = with_balance(0.5)
    offers = payable(provider, provider.offers(OfferQuery(gpu_count=0)) + provider.offers(OfferQuery(gpu_count=1)))
    assert {offer.blocked for offer in offers if offer.hourly <= 0.5} == {""}
    (word,) = {offer.blocked for offer in offers if offer.hourly > 0.5}
    assert word == "too little money: $0.50 prepaid does not pay for an hour; add some in fake's console"
    assert provider.asked == 1, "one answer is good for a minute"


def test_what_is_blocked_already_stays_as_it_is() -> None:
    provider = with_balance(0.0)
    (offer, *_) = sample_offers()
    assert payable(provider, [replace(offer, blocked="no key yet")])[0].blocked == "no key yet"
    assert provider.asked == 0


def test_an_unknown_balance_hinders_nothing() -> None:
    for provider in (with_balance(None), FakeProvider()):
        offers = provider.offers(OfferQuery())
        assert payable(provider, offers) == offers
        assert balance_of(provider) is None
        assert balance_word(provider, 1000.0) is None
        assert plan_word(provider, offers[0], 1000.0) == ""
    assert isinstance(with_balance(1), Prepaid)


def test_low_money_is_told_and_enough_is_not() -> None:
    assert balance_word(with_balance(1.5), 0.5) is None
    word = balance_word(with_balance(1.0), 0.5)
    assert word is not None
    assert word.startswith("fake has $1.00 of prepaid money left, enough for 2.0 h at 0.50 USD/h: when it is gone")
    assert "enough for 30 minutes" in (balance_word(with_balance(0.25), 0.5) or "")


def test_the_hourly_look_adds_up_what_is_rented_and_is_hourly() -> None:
    clock, provider = FakeClock(), with_balance(5.0)
    offers = provider.offers(OfferQuery(gpu_count=1))
    machines = [provider.launch(request_for(offers[0])) for _ in range(2)]
    told: list[tuple[str, str]] = []
    balances = Balances(clock=clock)
    for _ in range(3):
        balances.look(provider, machines, ["a", "b"], lambda job, word: told.append((job, word)))
    assert [job for job, _ in told] == ["a", "b"]
    assert f"{2 * offers[0].hourly:.2f} USD/h" in told[0][1]
    clock.advance(3600)
    balances.look(provider, machines, ["a"], lambda job, word: told.append((job, word)))
    assert len(told) == 3
    clock.advance(3600)
    balances.look(provider, [], ["a"], lambda job, word: told.append((job, word)))
    assert len(told) == 3


@pytest.mark.parametrize("prepaid", [0.1], indirect=True)
def test_a_plan_refuses_what_cannot_be_paid(prepaid: PrepaidProvider, config: Config) -> None:
    planned = plan(Task(run="x", spot="never", resources=Resources(gpu="L4", infra=("fake",))), config=config)
    assert planned.decision.offer is None
    assert {entry.kind for entry in planned.decision.rejected if entry.offer.gpu == "L4"} == {
        Kind.MARKET,
        Kind.UNUSABLE,
    }
    assert any("add some in fake's console" in reason for reason in planned.decision.reasons)


@pytest.mark.parametrize("prepaid", [12.0], indirect=True)
def test_a_plan_tells_how_long_the_money_lasts(prepaid: PrepaidProvider, config: Config) -> None:
    task = Task(run="x", spot="never", resources=Resources(gpu="L4", infra=("fake",), disk=0.001))
    assert plan(task, config=config).balance == "$12.00 prepaid with fake, enough for 15 h at 0.80 USD/h"


@pytest.mark.parametrize("prepaid", [1.0], indirect=True)
def test_a_job_whose_money_runs_out_is_told(prepaid: PrepaidProvider, config: Config) -> None:
    store = open_store(config.state)
    world = World(config, store, time.time, store.installation())
    watcher = Watcher(world)
    try:
        job = submit(Task(run="x", spot="never"), config=config, store=store)
        offer = next(o for o in prepaid.offers(OfferQuery(gpu_count=1)) if o.hourly > 0.5)
        request = request_for(offer, job=job.id)
        machine = prepaid.launch(replace(request, tags={**request.tags, TAG_INSTALLATION: world.installation}))
        now = time.time()
        held = Held(1, "fake", machine.id, offer.key, offer.hourly, now, now + 60, now + 3600, "max_hours", 1.0)
        watcher.follow(Followed(job.id, job.row.home, {1: held}, lambda: None))
        assert wait_for(lambda: any(event.kind == "warning" for event in job.events()), 10)
        (event,) = [event for event in job.events() if event.kind == "warning"]
        assert event.text.startswith("fake has $1.00 of prepaid money left, enough for ")
    finally:
        watcher.close()
        store.close()
