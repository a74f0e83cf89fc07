"""The provider contract as tests for pytest: subclass `ProviderConformance` and write three fixtures.

::

    class TestExample(ProviderConformance):
        @pytest.fixture
        def provider(self) -> Provider: ...    # the adapter itself, without the registry's wrapper
        @pytest.fixture
        def query(self) -> OfferQuery: ...     # something that the provider can rent
        @pytest.fixture
        def hand(self) -> Hand: ...            # the other side of its stand-in

Every test's docstring names the sentence of docs/write-a-provider.md that it checks. Whatever a test rents is
terminated at its end, and the test fails where it does not go.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

import pytest

from broker import gpus
from broker.errors import (
    Ambiguous,
    ConfigError,
    InvalidRequest,
    NoCapacity,
    NotFound,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    RateLimited,
)
from broker.meter import IDLE, INSTALLATION
from broker.offer import Market, Offer, OfferQuery
from broker.policy.infra import within
from broker.provider import (
    TAG_GENERATION,
    TAG_INSTALLATION,
    TAG_JOB,
    Cause,
    Instance,
    LaunchesAny,
    LaunchRequest,
    Provider,
    Reachable,
    Shell,
    State,
)
from broker.testing.hand import Hand

ENDING = 60.0  # of the cloud's seconds that a termination may take
GONE = (State.TERMINATED, State.STOPPED)
QUIET = f"#!/bin/sh\n{IDLE}\n"  # user data of machines that only have to exist
Test = TypeVar("Test", bound=Callable[..., None])


def safe(machines: int) -> Callable[[Test], Test]:
    """Marks a test that may run on anybody's account: it rents at most so many machines, and nothing is done behind the
    provider's back. `broker verify` runs these."""

    def mark(test: Test) -> Test:
        test.__dict__["machines"] = machines
        return test

    return mark


def request_for(offer: Offer, *, job: str = "", generation: int = 1, user_data: str = QUIET) -> LaunchRequest:
    """A launch request as the core freezes it; a new job, and so a new token, unless one is named."""
    job = job or f"job-{uuid.uuid4().hex[:12]}"
    now = time.time()
    return LaunchRequest(
        job=job,
        generation=generation,
        offer=offer,
        token=f"{job}-{generation}",
        tags={TAG_INSTALLATION: INSTALLATION, TAG_JOB: job, TAG_GENERATION: str(generation)},
        user_data=user_data,
        disk=offer.disk,
        end_by=now + 3600,
        frozen_at=now,
    )


class Rents:
    """What the test classes share: something to rent, ways to look, and an empty account at the end."""

    @pytest.fixture
    def offer(self, provider: Provider, query: OfferQuery) -> Offer:
        """The cheapest offer for the query; on the spot market where there is one."""
        found = sorted(provider.offers(query), key=lambda offer: (offer.market is not Market.SPOT, offer.hourly))
        assert found, "the query fixture must ask for something that the provider has"
        return found[0]

    @pytest.fixture(autouse=True)
    def account(self, provider: Provider, hand: Hand) -> Iterator[None]:
        """End whatever a test leaves, and insist on it."""
        yield
        hand.wait(lambda: False, provider.traits.list_lag)

        def empty() -> bool:
            left = [instance for instance in provider.instances() if instance.state is not State.TERMINATED]
            for instance in left:
                provider.terminate(instance)
            return not left

        assert hand.wait(empty, ENDING), "machines are left after they were terminated"

    def seen(self, provider: Provider, instance_id: str) -> Instance | None:
        """The instance as it is listed now."""
        listed = [instance for instance in provider.instances() if instance.id == instance_id]
        assert len(listed) <= 1, f"{instance_id} is listed {len(listed)} times"
        return listed[0] if listed else None

    def running(self, provider: Provider, hand: Hand, request: LaunchRequest) -> Instance:
        """Launch and wait until the machine is listed as running."""
        instance = provider.launch(request)

        def runs() -> bool:
            now = self.seen(provider, instance.id)
            return now is not None and now.state is State.RUNNING

        assert hand.wait(runs, provider.traits.list_lag + provider.traits.boot_limit), "it never ran"
        return instance

    def gone(self, provider: Provider, hand: Hand, instance: Instance, seconds: float = ENDING) -> Instance | None:
        """Wait until the machine is over; return how it is listed then, None where it is listed no more."""

        def over() -> bool:
            now = self.seen(provider, instance.id)
            return now is None or now.state in GONE

        assert hand.wait(over, seconds), f"{instance.id} did not end"
        return self.seen(provider, instance.id)

    def of_job(self, provider: Provider, hand: Hand, job: str) -> list[Instance]:
        """What the job has rented, once a new machine is surely listed."""
        hand.wait(lambda: False, provider.traits.list_lag)
        return [instance for instance in provider.instances() if instance.job == job]


class Offers(Rents):
    """`offers`."""

    @safe(machines=0)
    def test_offers_have_names_of_their_own(self, provider: Provider, query: OfferQuery) -> None:
        """O1: Every offer names its provider, a region, an instance type and a market; no two share a key."""
        offers = provider.offers(query)
        for offer in offers:
            assert offer.provider == provider.name
            assert offer.region
            assert offer.instance_type
            assert isinstance(offer.market, Market)
        assert len({offer.key for offer in offers}) == len(offers)

    @safe(machines=0)
    def test_prices_are_usd_per_hour(self, provider: Provider, query: OfferQuery) -> None:
        """O2: Prices are USD per hour and above zero; the disk's price is that of the disk asked for."""
        small = {o.key: o for o in provider.offers(replace(query, disk=10.0))}
        large = {o.key: o for o in provider.offers(replace(query, disk=20.0))}
        assert small
        for key in small.keys() & large.keys():
            assert small[key].disk >= 10
            assert large[key].disk >= 20
            assert 0 < small[key].price < 1000
            # An image may need more than was asked for, and it is paid.
            assert large[key].disk_price * small[key].disk == pytest.approx(small[key].disk_price * large[key].disk)

    @safe(machines=0)
    def test_offers_fit_the_query(self, provider: Provider, query: OfferQuery) -> None:
        """O3: An offer has at least the cpus and the memory asked for, the cards, and a market asked for."""
        for market in query.markets:
            for offer in provider.offers(replace(query, markets=(market,))):
                assert offer.market is market
                assert offer.cpus >= query.cpus
                assert offer.memory >= query.memory
                assert offer.gpu_count == query.gpu_count
                assert query.gpu is None or gpus.matches(query.gpu, offer.gpu or "", offer.gpu_memory)

    @safe(machines=0)
    def test_nothing_fits_is_an_empty_answer(self, provider: Provider, query: OfferQuery) -> None:
        """O4: What cannot be had is left out; where nothing fits the answer is empty, not an error."""
        assert not provider.offers(replace(query, cpus=1e6))
        assert not provider.offers(replace(query, gpu="no such card", gpu_count=1))

    @safe(machines=0)
    def test_asking_is_safe_to_repeat(self, provider: Provider, query: OfferQuery) -> None:
        """O5: Asking again gives the same keys, and an offer survives JSON."""
        first, second = provider.offers(query), provider.offers(query)
        assert {offer.key for offer in first} == {offer.key for offer in second}
        for offer in first:
            assert Offer.from_json(json.loads(json.dumps(offer.to_json()))) == offer


class Launch(Rents):
    """`launch`."""

    @safe(machines=1)
    def test_launch_returns_what_was_rented(self, provider: Provider, offer: Offer) -> None:
        """L1: The instance has an id, the request's tags, the market and the hourly price that will be charged."""
        request = request_for(offer)
        instance = provider.launch(request)
        assert instance.id
        assert instance.provider == provider.name
        assert dict(request.tags).items() <= dict(instance.tags).items()
        assert (instance.job, instance.generation) == (request.job, request.generation)
        assert instance.market is offer.market
        assert instance.hourly == pytest.approx(offer.hourly, rel=0.01)
        assert instance.state in (State.PENDING, State.RUNNING)

    @safe(machines=1)
    def test_same_request_same_machine(self, provider: Provider, hand: Hand, offer: Offer) -> None:
        """L2: With `traits.token` the same request again, also after a trip through JSON, is the same machine."""
        _needs_token(provider)
        request = request_for(offer)
        first = provider.launch(request)
        again = hand.reconnect().launch(LaunchRequest.from_json(json.loads(json.dumps(request.to_json()))))
        assert again.id == first.id
        assert len(self.of_job(provider, hand, request.job)) == 1

    def test_next_generation_is_another_machine(self, provider: Provider, hand: Hand, offer: Offer) -> None:
        """L3: Another generation is another machine, both listed with tags of their own."""
        first = request_for(offer)
        second = request_for(offer, job=first.job, generation=2)
        ids = {provider.launch(first).id, provider.launch(second).id}
        assert len(ids) == 2
        assert {i.generation for i in self.of_job(provider, hand, first.job)} == {1, 2}

    @safe(machines=1)
    def test_token_is_not_reused(self, provider: Provider, hand: Hand, offer: Offer) -> None:
        """L4: A token that comes with another request is InvalidRequest and rents nothing."""
        _needs_token(provider)
        request = request_for(offer)
        provider.launch(request)
        with pytest.raises(InvalidRequest):
            provider.launch(replace(request, user_data=request.user_data + "# changed\n"))
        assert len(self.of_job(provider, hand, request.job)) == 1

    @safe(machines=1)
    def test_dead_machine_comes_back_dead(self, provider: Provider, hand: Hand, offer: Offer) -> None:
        """L5: The same request after the machine's end rents nothing: it gives the dead machine, or InvalidRequest."""
        _needs_token(provider)
        request = request_for(offer)
        first = self.running(provider, hand, request)
        provider.terminate(first)
        self.gone(provider, hand, first)
        try:
            again = provider.launch(request)
        except InvalidRequest:
            pass
        else:
            assert again.id == first.id
            assert not again.alive
        assert not [i for i in self.of_job(provider, hand, request.job) if i.alive]

    @safe(machines=0)
    def test_impossible_request(self, provider: Provider, hand: Hand, offer: Offer) -> None:
        """L6: An instance type that does not exist is InvalidRequest, and nothing is rented."""
        request = request_for(replace(offer, instance_type="no-such-type"))
        with pytest.raises(InvalidRequest):
            provider.launch(request)
        assert not self.of_job(provider, hand, request.job)


class Many(Rents):
    """`launch_any`, where the provider has it."""

    @safe(machines=1)
    def test_any_of_many(self, provider: Provider, hand: Hand, offer: Offer, query: OfferQuery) -> None:
        """M1: Of many spot offers of a region the machine is one, says which and at what price, and is listed so."""
        request = request_for(offer)
        offers, instance = _launched_any(provider, request, query)
        won = {(one.region, one.zone, one.instance_type): one for one in offers}
        assert instance.hourly == pytest.approx(won[instance.region, instance.zone, instance.instance_type].hourly)
        assert dict(request.tags).items() <= dict(instance.tags).items()
        (listed,) = self.of_job(provider, hand, request.job)
        for name in ("id", "region", "zone", "instance_type"):
            assert getattr(listed, name) == getattr(instance, name), name
        assert listed.hourly == pytest.approx(instance.hourly)

    @safe(machines=1)
    def test_same_call_for_many(self, provider: Provider, hand: Hand, offer: Offer, query: OfferQuery) -> None:
        """M2: The same call for many again is the same machine, or an error: never a second one."""
        request = request_for(offer)
        offers, first = _launched_any(provider, request, query)
        assert isinstance(provider, LaunchesAny)
        try:
            again = provider.launch_any(request, offers)
        except ProviderError:
            pass
        else:
            assert again.id == first.id
        assert len(self.of_job(provider, hand, request.job)) == 1


class Instances(Rents):
    """`instances`."""

    @safe(machines=1)
    def test_launched_machine_is_listed(self, provider: Provider, hand: Hand, offer: Offer) -> None:
        """I1: Within traits.list_lag seconds it is listed as launch returned it, within traits.boot_limit it runs."""
        request = request_for(offer)
        launched = provider.launch(request)
        (listed,) = self.of_job(provider, hand, request.job)
        for name in ("id", "provider", "market", "region", "zone", "instance_type"):
            assert getattr(listed, name) == getattr(launched, name), name
        assert dict(listed.tags) == dict(launched.tags)
        assert listed.hourly == pytest.approx(launched.hourly)

        def runs() -> bool:
            now = self.seen(provider, launched.id)
            return now is not None and now.state is State.RUNNING

        assert hand.wait(runs, provider.traits.boot_limit), "it never ran"

    @safe(machines=1)
    def test_anybody_sees_the_same(self, provider: Provider, hand: Hand, offer: Offer) -> None:
        """I2: Nothing is remembered: a new process lists the same machines and can end them."""
        request = request_for(offer)
        instance = self.running(provider, hand, request)
        other = hand.reconnect()
        seen = self.seen(other, instance.id)
        assert seen is not None
        assert seen == self.seen(provider, instance.id)
        other.terminate(seen)
        self.gone(provider, hand, instance)

    def test_unanswered_is_an_error(self, provider: Provider, hand: Hand, offer: Offer) -> None:
        """I3: A list call that fails raises ProviderUnavailable or RateLimited; it never shortens the list."""
        instance = self.running(provider, hand, request_for(offer))
        _can(lambda: hand.leave_unanswered("instances"))
        with pytest.raises((ProviderUnavailable, RateLimited)):
            provider.instances()
        seen = self.seen(provider, instance.id)
        assert seen is not None
        assert seen.alive


class Terminate(Rents):
    """`terminate`."""

    @safe(machines=1)
    def test_end_is_confirmed_by_listing(self, provider: Provider, hand: Hand, offer: Offer) -> None:
        """T1: `instances()` confirms the end: terminated by the broker, with its time, or no longer listed."""
        instance = self.running(provider, hand, request_for(offer))
        provider.terminate(instance)
        end = self.gone(provider, hand, instance)
        if end is not None:
            assert end.state is State.TERMINATED
            assert end.cause is Cause.BROKER
            assert end.ended_at is not None
            assert end.ended_at >= (end.launched_at or 0)

    @safe(machines=1)
    def test_twice_is_once(self, provider: Provider, hand: Hand, offer: Offer) -> None:
        """T2: Terminating again, at once or after the end, is success; so is an id that nobody knows."""
        instance = self.running(provider, hand, request_for(offer))
        provider.terminate(instance)
        provider.terminate(instance)
        self.gone(provider, hand, instance)
        provider.terminate(instance)
        provider.terminate(replace(instance, id="i-0000000000000dead"))

    def test_others_live_on(self, provider: Provider, hand: Hand, offer: Offer) -> None:
        """T3: Only the named machine ends."""
        one = self.running(provider, hand, request_for(offer))
        other = self.running(provider, hand, request_for(offer))
        provider.terminate(one)
        self.gone(provider, hand, one)
        seen = self.seen(provider, other.id)
        assert seen is not None
        assert seen.state is State.RUNNING

    def test_just_launched(self, provider: Provider, hand: Hand, offer: Offer) -> None:
        """T4: A machine that was just launched, perhaps not listed yet, ends too."""
        _can(lambda: hand.hide(1.0))
        request = request_for(offer)
        instance = provider.launch(request)
        provider.terminate(instance)
        hand.wait(lambda: False, 1.0 + provider.traits.list_lag)
        self.gone(provider, hand, instance)
        assert not [i for i in self.of_job(provider, hand, request.job) if i.alive]


class Notices(Rents):
    """Notices, and machines that end without the broker."""

    @safe(machines=1)
    def test_quiet_machine_has_no_notice(self, provider: Provider, hand: Hand, offer: Offer) -> None:
        """N1: A machine that nobody takes back has no notice and no cause; an unknown one has no notice either."""
        instance = self.running(provider, hand, request_for(offer))
        seen = self.seen(provider, instance.id)
        assert seen is not None
        assert seen.notice is None
        assert seen.cause is None
        assert provider.notice(instance) is None
        assert provider.notice(replace(instance, id="i-0000000000000dead")) is None

    def test_notice_is_seen_before_the_end(self, provider: Provider, hand: Hand, offer: Offer) -> None:
        """N2: Where the control plane gives notice, `instances()` and `notice()` show the same one, with its times."""
        instance = self.running(provider, hand, request_for(offer))
        _can(lambda: hand.take_back(instance, notice=True))

        def noticed() -> bool:
            now = self.seen(provider, instance.id)
            return now is not None and now.notice is not None

        assert hand.wait(noticed, 10.0), "the notice never showed"
        seen = self.seen(provider, instance.id)
        assert seen is not None
        assert seen.notice is not None
        assert seen.notice == provider.notice(instance)
        assert seen.notice.ends_at is None or seen.notice.ends_at > seen.notice.at
        end = self.gone(provider, hand, instance, (provider.traits.notice or 0.0) + ENDING)
        assert end is None or end.cause is Cause.PREEMPTED

    def test_taken_back_without_a_word(self, provider: Provider, hand: Hand, offer: Offer) -> None:
        """N3: A machine taken back is terminated or stopped, cause `preempted`; a stopped one can be terminated."""
        instance = self.running(provider, hand, request_for(offer))
        _can(lambda: hand.take_back(instance, notice=False))
        end = self.gone(provider, hand, instance)
        assert end is None or end.cause is Cause.PREEMPTED
        provider.terminate(instance)

        def over() -> bool:
            now = self.seen(provider, instance.id)
            return now is None or now.state is State.TERMINATED

        assert hand.wait(over, ENDING)

    def test_ended_by_its_user(self, provider: Provider, hand: Hand, offer: Offer) -> None:
        """N4: A machine that its user ended or deleted was not preempted."""
        instance = self.running(provider, hand, request_for(offer))
        _can(lambda: hand.delete(instance))
        end = self.gone(provider, hand, instance)
        assert end is None or end.cause is Cause.USER


class Faults(Rents):
    """Launches that go wrong."""

    def test_no_capacity(self, provider: Provider, hand: Hand, offer: Offer) -> None:
        """F1: No capacity is NoCapacity, nothing is rented, and the next launch may succeed."""
        _can(lambda: hand.refuse(offer, NoCapacity))
        request = request_for(offer)
        with pytest.raises(NoCapacity):
            provider.launch(request)
        assert not self.of_job(provider, hand, request.job)
        assert provider.launch(request_for(offer)).id

    def test_quota(self, provider: Provider, hand: Hand, offer: Offer) -> None:
        """F2: A quota is QuotaExceeded, and the offer lies within its scope."""
        _can(lambda: hand.refuse(offer, QuotaExceeded))
        with pytest.raises(QuotaExceeded) as caught:
            provider.launch(request_for(offer))
        assert caught.value.scope.split("/")[0] == provider.name
        assert within(caught.value.scope, offer)

    def test_unknown_code(self, provider: Provider, hand: Hand, offer: Offer) -> None:
        """F3: A code that nobody knows is a plain ProviderError that carries it word for word."""
        _can(lambda: hand.refuse(offer, "SOME_NEW_CODE_2027"))
        with pytest.raises(ProviderError) as caught:
            provider.launch(request_for(offer))
        assert type(caught.value) is ProviderError
        assert caught.value.code == "SOME_NEW_CODE_2027"

    def test_created_but_not_answered(self, provider: Provider, hand: Hand, offer: Offer) -> None:
        """F4: A launch that made a machine and got no answer is Ambiguous; the machine is found by its tags."""
        _can(hand.fail_after_create)
        request = request_for(offer)
        with pytest.raises(Ambiguous):
            provider.launch(request)
        (found,) = self.of_job(provider, hand, request.job)
        assert found.generation == request.generation
        if provider.traits.token:
            assert provider.launch(request).id == found.id
            assert len(self.of_job(provider, hand, request.job)) == 1

    def test_listed_late(self, provider: Provider, hand: Hand, offer: Offer) -> None:
        """F5: A machine that is listed late is listed whole once it is, and `launch` did not wait for it."""
        _can(lambda: hand.hide(1.0))
        request = request_for(offer)
        instance = provider.launch(request)
        assert self.seen(provider, instance.id) is None
        assert hand.wait(lambda: self.seen(provider, instance.id) is not None, 5.0)
        (found,) = self.of_job(provider, hand, request.job)
        assert found.id == instance.id


class WaysIn(Rents):
    """Shells for people, where the provider gives any."""

    def test_a_shell(self, provider: Provider, hand: Hand, offer: Offer) -> None:
        """S1: A running machine has a way in, or what is missing for one is said; a machine that is gone has none."""
        if not isinstance(provider, Reachable):
            pytest.skip(provider.traits.no_shell or "it opens no shell on its machines")
        instance = self.running(provider, hand, request_for(offer))
        told: Shell | ConfigError
        try:
            told = provider.shell(instance)
        except ConfigError as error:
            told = error
        if isinstance(told, ConfigError):
            assert told.fix, "it says what to do"
        else:
            assert told.argv
            assert all(isinstance(word, str) and word for word in (*told.argv, *told.become, told.folder))
        now = self.seen(provider, instance.id)
        assert now is not None
        assert now.state is State.RUNNING
        provider.terminate(instance)
        self.gone(provider, hand, instance)
        with pytest.raises(NotFound):
            provider.shell(instance)


class ProviderConformance(Offers, Launch, Many, Instances, Terminate, Notices, Faults, WaysIn):
    """All of it."""


def safe_tests(*, many: bool = True) -> list[Callable[..., None]]:
    """The tests marked as safe, in the order of the page; each has `machines`. many: those of `launch_any` too."""
    parts = (Offers, Launch, *((Many,) if many else ()), Instances, Terminate, Notices, Faults)
    return [test for part in parts for test in vars(part).values() if hasattr(test, "machines")]


def _launched_any(provider: Provider, request: LaunchRequest, query: OfferQuery) -> tuple[list[Offer], Instance]:
    """What was asked for, the request's own offer and some others, and what came of it; skips where none are."""
    if not isinstance(provider, LaunchesAny):
        pytest.skip("it launches one offer at a time")
    place = (request.offer.region, Market.SPOT)
    found = sorted(provider.offers(query), key=lambda one: one.hourly)
    others = [one for one in found if (one.region, one.market) == place and one.key != request.offer.key]
    if request.offer.market is not Market.SPOT or not others:
        pytest.skip("no other spot offer of the region fits")
    offers = [request.offer, *others[:9]]
    return offers, provider.launch_any(request, offers)


def _needs_token(provider: Provider) -> None:
    if not provider.traits.token:
        pytest.skip("its launch has no token")


def _can(act: Callable[[], None]) -> None:
    """Do something by the hand, or skip the test where this cloud has no way for it."""
    try:
        act()
    except NotImplementedError as error:
        pytest.skip(f"this cloud cannot: {error}")
