"""FakeCloud's shapes of trouble, each as it was met on real clouds, for tests of what stands above providers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.errors import Ambiguous, InvalidRequest, NoCapacity, ProviderError, ProviderUnavailable, QuotaExceeded
from broker.offer import Market, Offer, OfferQuery
from broker.provider import Cause, Instance, LaunchRequest, Provider, State
from broker.testing import FakeClock, FakeCloud
from broker.testing.conformance import request_for

QUERY = OfferQuery(gpu="A100-80GB", gpu_count=1)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def cheapest(cloud: FakeCloud) -> Offer:
    return min(cloud.provider().offers(QUERY), key=lambda offer: offer.hourly)


def only(provider: Provider) -> Instance:
    (instance,) = provider.instances()
    return instance


def test_just_launched_is_not_found_for_a_while(clock: FakeClock) -> None:
    """An id comes back, then listings do not know it for some seconds, then it is pending, then running."""
    cloud = FakeCloud(clock=clock, boot=60.0, list_lag=8.0)
    provider = cloud.provider()
    instance = provider.launch(request_for(cheapest(cloud)))
    seen = []
    for _ in range(4):
        seen.append([i.state for i in provider.instances()])
        clock.advance(20.0 if len(seen) > 2 else 4.0)
    clock.advance(60.0)
    seen.append([i.state for i in provider.instances()])
    assert seen == [[], [], [State.PENDING], [State.PENDING], [State.RUNNING]]
    assert [i.id for i in cloud.living()] == [instance.id]


def test_unlisted_machine_that_nobody_ends_leaks(clock: FakeClock) -> None:
    """`living` sees what listings hide, so that a test can insist on nothing left."""
    cloud = FakeCloud(clock=clock, list_lag=1e9)
    instance = cloud.provider().launch(request_for(cheapest(cloud)))
    assert not cloud.provider().instances()
    assert cloud.living()
    cloud.provider().terminate(instance)
    assert not cloud.living()


@pytest.mark.parametrize("token", [True, False])
def test_create_answered_500_but_it_runs(clock: FakeClock, token: bool) -> None:
    """A second create without looking makes a second machine, unless the API has a token."""
    cloud = FakeCloud(clock=clock, token=token)
    cloud.fail_after_create()
    request = request_for(cheapest(cloud))
    with pytest.raises(Ambiguous):
        cloud.provider().launch(request)
    assert only(cloud.provider()).job == request.job
    cloud.provider().launch(request)
    assert len(cloud.living()) == (1 if token else 2)


def test_create_that_timed_out(clock: FakeClock) -> None:
    cloud = FakeCloud(clock=clock)
    cloud.fail_after_create(error=ConnectionResetError("peer"))
    with pytest.raises(ConnectionResetError):
        cloud.provider().launch(request_for(cheapest(cloud)))
    assert cloud.living()


def test_tokens(clock: FakeClock) -> None:
    """The dead machine for an old token; another zone under it is a mismatch; a new generation is a new machine."""
    cloud = FakeCloud(clock=clock)
    provider, offer = cloud.provider(), cheapest(cloud)
    first = request_for(offer)
    one = provider.launch(first)
    assert provider.launch(first).id == one.id
    cloud.take_back(one.id)
    dead = provider.launch(first)
    assert (dead.id, dead.state, dead.cause) == (one.id, State.TERMINATED, Cause.PREEMPTED)
    other = next(o for o in provider.offers(QUERY) if o.key != offer.key)
    with pytest.raises(InvalidRequest) as caught:
        provider.launch(replace(first, offer=other))
    assert caught.value.code == "IdempotentParameterMismatch"
    assert provider.launch(request_for(offer, job=first.job, generation=2)).id != one.id


def test_preempted_machine_stays_stopped_with_its_disk(clock: FakeClock) -> None:
    """As on GCP: stopped, its disk billed, until it is terminated; the cause stays."""
    cloud = FakeCloud(clock=clock, stops=True, shutdown=10.0)
    offer = cheapest(cloud)
    instance = cloud.provider().launch(request_for(offer))
    clock.advance(3600)
    cloud.take_back(instance.id)
    clock.advance(3600)
    seen = only(cloud.provider())
    assert (seen.state, seen.cause, seen.alive) == (State.STOPPED, Cause.PREEMPTED, False)
    assert cloud.spent() == pytest.approx(offer.hourly + offer.disk_price)
    assert cloud.living()
    cloud.provider().terminate(instance)
    assert only(cloud.provider()).state is State.STOPPING
    clock.advance(10.0)
    seen = only(cloud.provider())
    assert (seen.state, seen.cause) == (State.TERMINATED, Cause.PREEMPTED)
    cost = cloud.spent()
    clock.advance(3000)
    assert cloud.spent() == cost


def test_stopped_or_deleted_by_hand(clock: FakeClock) -> None:
    cloud = FakeCloud(clock=clock)
    provider, offer = cloud.provider(), cheapest(cloud)
    stopped, deleted = provider.launch(request_for(offer)), provider.launch(request_for(offer))
    cloud.stop_by_hand(stopped.id)
    cloud.delete_by_hand(deleted.id)
    seen = only(provider)
    assert (seen.id, seen.state, seen.cause) == (stopped.id, State.STOPPED, Cause.USER)
    provider.terminate(deleted)
    provider.terminate(stopped)
    assert not cloud.living()


def test_status_calls_fail_and_the_machine_runs(clock: FakeClock) -> None:
    cloud = FakeCloud(clock=clock)
    provider = cloud.provider()
    provider.launch(request_for(cheapest(cloud)))
    gone = ProviderUnavailable("502")
    cloud.script("instances", None, gone, None, gone, gone, None)
    told: list[str] = []
    for _ in range(7):
        try:
            told.append(only(provider).state)
        except ProviderUnavailable:
            told.append("unknown")
        clock.advance(60.0)
    assert told == ["running", "unknown", "running", "unknown", "unknown", "running", "running"]


def test_refusals_by_pattern_and_number(clock: FakeClock) -> None:
    """A regional quota answers alike in every zone; a new code comes word for word; what is counted ends."""
    cloud = FakeCloud(clock=clock)
    provider = cloud.provider()
    offers = {(o.region, o.market): o for o in provider.offers(QUERY)}
    cloud.refuse("fake/r1/*/spot", QuotaExceeded("spot vCPUs", scope="fake/r1", code="MaxSpotInstanceCountExceeded"))
    cloud.refuse("fake/r2/*", ProviderError("new", code="ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"), times=1)
    for _ in range(3):
        with pytest.raises(QuotaExceeded, match="spot vCPUs"):
            provider.launch(request_for(offers["r1", Market.SPOT]))
    assert provider.launch(request_for(offers["r1", Market.ON_DEMAND])).id
    with pytest.raises(ProviderError) as caught:
        provider.launch(request_for(offers["r2", Market.SPOT]))
    assert caught.value.code == "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
    assert provider.launch(request_for(offers["r2", Market.SPOT])).id
    cloud.clear()
    assert provider.launch(request_for(offers["r1", Market.SPOT])).id


def test_capacity_and_prices_change(clock: FakeClock) -> None:
    cloud = FakeCloud(clock=clock)
    provider, offer = cloud.provider(), cheapest(cloud)
    cloud.limit(offer.key, 1)
    instance = provider.launch(request_for(offer))
    assert offer.key not in {o.key for o in provider.offers(QUERY)}
    with pytest.raises(NoCapacity):
        provider.launch(request_for(offer))
    provider.terminate(instance)
    assert offer.key in {o.key for o in provider.offers(QUERY)}
    cloud.reprice("fake/r2/*", 99.0)
    assert cheapest(cloud).region == "r1"


def test_notice_then_end(clock: FakeClock) -> None:
    cloud = FakeCloud(clock=clock)
    instance = cloud.provider().launch(request_for(cheapest(cloud)))
    cloud.take_back(instance.id, notice=120.0)
    seen = only(cloud.provider())
    assert seen.state is State.RUNNING
    assert seen.notice is not None
    assert seen.notice.ends_at == clock.now + 120.0
    clock.advance(119.0)
    assert only(cloud.provider()).state is State.RUNNING
    clock.advance(1.0)
    assert only(cloud.provider()).cause is Cause.PREEMPTED


def test_terminated_within_its_notice_stays_the_brokers(clock: FakeClock) -> None:
    cloud = FakeCloud(clock=clock)
    instance = cloud.provider().launch(request_for(cheapest(cloud)))
    cloud.take_back(instance.id, notice=120.0)
    cloud.provider().terminate(instance)
    clock.advance(600.0)
    assert only(cloud.provider()).cause is Cause.BROKER


def test_a_test_may_play_the_guest(clock: FakeClock) -> None:
    launched: list[tuple[str, str]] = []

    def guest(instance: Instance, request: LaunchRequest) -> None:
        launched.append((instance.id, request.user_data))

    cloud = FakeCloud(clock=clock, on_launch=guest)
    request = request_for(cheapest(cloud))
    instance = cloud.provider().launch(request)
    cloud.provider().launch(request)
    assert launched == [(instance.id, request.user_data)]
    cloud.end_itself(instance.id)
    assert only(cloud.provider()).cause is Cause.SELF
    assert [call.name for call in cloud.calls] == ["offers", "launch", "launch", "instances"]


def test_what_ended_long_ago_is_forgotten(clock: FakeClock) -> None:
    cloud = FakeCloud(clock=clock, remembers=60.0)
    instance = cloud.provider().launch(request_for(cheapest(cloud)))
    cloud.provider().terminate(instance)
    clock.advance(61.0)
    assert not cloud.provider().instances()
