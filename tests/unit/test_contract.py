"""The wrapper around every provider: what is asked again, what is not, how fast, and what the core sees."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from broker.contract import Pace, wrap
from broker.errors import (
    Ambiguous,
    AuthFailed,
    ConfigError,
    NoCapacity,
    ProviderError,
    ProviderUnavailable,
    RateLimited,
)
from broker.offer import Offer, OfferQuery
from broker.provider import ChangesBid, Instance, PartialOffers, PriceHistory, PricePoint, Provider
from broker.testing import FakeClock, FakeProvider
from broker.testing.conformance import request_for

QUERY = OfferQuery()


@pytest.fixture
def fake() -> FakeProvider:
    return FakeProvider()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def wrapped(fake: FakeProvider, clock: FakeClock, **settings: Any) -> Provider:
    return wrap(fake, settings, clock=clock, sleep=clock.sleep)


def test_wrapper_is_a_provider(fake: FakeProvider, clock: FakeClock) -> None:
    provider = wrapped(fake, clock)
    assert isinstance(provider, Provider)
    assert (provider.name, provider.traits) == (fake.name, fake.traits)


@pytest.mark.parametrize("call", ["offers", "instances", "terminate", "notice"])
def test_reads_and_terminate_are_asked_again(fake: FakeProvider, clock: FakeClock, call: str) -> None:
    provider = wrapped(fake, clock)
    instance = provider.launch(request_for(fake.stock[0]))
    fake.fail(call, ProviderUnavailable("502"), ProviderUnavailable("timeout"))
    asks: dict[str, Callable[[], object]] = {
        "offers": lambda: provider.offers(QUERY),
        "instances": provider.instances,
        "terminate": lambda: provider.terminate(instance),
        "notice": lambda: provider.notice(instance),
    }
    asks[call]()
    assert fake.count(call) == 3


def test_who_says_now_again_and_again_is_asked_ever_more_rarely(fake: FakeProvider, clock: FakeClock) -> None:
    fake.fail("instances", *[RateLimited("slow down", retry_after=0.0)] * 500)
    start = clock.now
    with pytest.raises(RateLimited):
        wrapped(fake, clock, patience=15.0).instances()
    assert fake.count("instances") < 12
    assert 5.0 < clock.now - start <= 15.0


def test_retry_after_is_honoured(fake: FakeProvider, clock: FakeClock) -> None:
    fake.fail("instances", RateLimited("slow down", retry_after=7.5))
    start = clock.now
    wrapped(fake, clock).instances()
    assert clock.now - start == 7.5


def test_patience_ends_and_the_last_error_stands(fake: FakeProvider, clock: FakeClock) -> None:
    fake.fail("instances", *[ProviderUnavailable(f"no {n}") for n in range(100)])
    start = clock.now
    with pytest.raises(ProviderUnavailable, match=r"no \d+"):
        wrapped(fake, clock, patience=10).instances()
    assert clock.now - start <= 10
    assert 3 < fake.count("instances") < 20


def test_a_wait_beyond_patience_is_not_begun(fake: FakeProvider, clock: FakeClock) -> None:
    fake.fail("offers", RateLimited("tomorrow", retry_after=86400))
    start = clock.now
    with pytest.raises(RateLimited):
        wrapped(fake, clock).offers(QUERY)
    assert clock.now == start


@pytest.mark.parametrize("error", [ProviderUnavailable("502"), RateLimited("slow", retry_after=0), NoCapacity("none")])
def test_launch_is_sent_once(fake: FakeProvider, clock: FakeClock, error: ProviderError) -> None:
    fake.fail("launch", error)
    with pytest.raises(type(error)):
        wrapped(fake, clock).launch(request_for(fake.stock[0]))
    assert fake.count("launch") == 1


def test_other_refusals_are_not_asked_again(fake: FakeProvider, clock: FakeClock) -> None:
    fake.fail("instances", AuthFailed("expired"))
    with pytest.raises(AuthFailed):
        wrapped(fake, clock).instances()
    assert fake.count("instances") == 1


def test_strangers_become_provider_errors(fake: FakeProvider, clock: FakeClock) -> None:
    fake.fail("instances", KeyError("Reservations"))
    with pytest.raises(ProviderError) as caught:
        wrapped(fake, clock).instances()
    assert type(caught.value) is ProviderError
    assert (caught.value.code, caught.value.provider) == ("KeyError", "fake")
    assert "Reservations" in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_stranger_from_launch_is_ambiguous(fake: FakeProvider, clock: FakeClock) -> None:
    fake.fail("launch", ConnectionResetError("peer"), after=True)
    with pytest.raises(Ambiguous) as caught:
        wrapped(fake, clock).launch(request_for(fake.stock[0]))
    assert caught.value.code == "ConnectionResetError"
    assert len(fake.machines) == 1


def test_partial_offers_pass_with_their_failures_translated(fake: FakeProvider, clock: FakeClock) -> None:
    fake.fail("offers", PartialOffers(fake.stock[:1], {"r1": OSError("dns"), "r2": AuthFailed("no")}))
    with pytest.raises(PartialOffers) as caught:
        wrapped(fake, clock).offers(QUERY)
    assert caught.value.offers == fake.stock[:1]
    assert isinstance(caught.value.failures["r1"], ProviderError)
    assert isinstance(caught.value.failures["r2"], AuthFailed)


def test_interrupts_are_not_swallowed(fake: FakeProvider, clock: FakeClock) -> None:
    class Stubborn(FakeProvider):
        def instances(self) -> Sequence[Instance]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wrapped(Stubborn(), clock).instances()


def test_minimum_interval(fake: FakeProvider, clock: FakeClock) -> None:
    provider = wrapped(fake, clock, min_interval={"instances": 2.0})
    start = clock.now
    for _ in range(4):
        provider.instances()
        provider.offers(QUERY)
    assert clock.now - start == 6.0


def test_interval_holds_between_threads() -> None:
    slept: list[float] = []
    pace = Pace({"instances": 1.0}, clock=lambda: 100.0, sleep=slept.append)
    threads = [threading.Thread(target=pace.wait, args=("instances",)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(slept) == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"patience": -1}, "patience"),
        ({"min_interval": "1"}, "min_interval"),
        ({"min_interval": {"instances": True}}, "min_interval.instances"),
        ({"min_interval": {"describe": 1}}, "min_interval.describe"),
    ],
)
def test_bad_settings_name_their_key(fake: FakeProvider, clock: FakeClock, settings: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=rf"providers\.fake\.{key}"):
        wrapped(fake, clock, **settings)


class Bidding(FakeProvider):
    bids: tuple[tuple[str, float], ...] = ()

    def change_bid(self, instance: Instance, bid: float) -> None:
        self.bids = (*self.bids, (instance.id, bid))

    def price_history(self, query: OfferQuery, since: float) -> Sequence[PricePoint]:
        self._called("price_history", query)
        return [PricePoint("fake/r1/r1-a/cpu4/spot", since, 0.1)]


def test_optional_capabilities_show_through(fake: FakeProvider, clock: FakeClock) -> None:
    assert not isinstance(wrapped(fake, clock), ChangesBid | PriceHistory)
    bidding = Bidding()
    provider = wrapped(bidding, clock)
    assert isinstance(provider, ChangesBid)
    assert isinstance(provider, PriceHistory)
    provider.change_bid(bidding.launch(request_for(bidding.stock[0])), 0.5)
    assert bidding.bids == (("i-0001", 0.5),)
    bidding.fail("price_history", ProviderUnavailable("502"))
    assert provider.price_history(QUERY, 5.0)[0].at == 5.0


def test_offer_of_the_wrapper_is_the_adapters(fake: FakeProvider, clock: FakeClock) -> None:
    found: Sequence[Offer] = wrapped(fake, clock).offers(QUERY)
    assert {offer.key for offer in found} == {offer.key for offer in fake.stock if offer.gpu is None}
