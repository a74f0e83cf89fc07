"""The fakes keep the provider contract too: a test against them is a test against a provider."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.errors import Ambiguous, ProviderError, ProviderUnavailable, QuotaExceeded
from broker.offer import Offer, OfferQuery
from broker.provider import Cause, Instance, Notice, Provider, State
from broker.testing import FakeClock, FakeCloud, FakeProvider
from broker.testing.conformance import ProviderConformance

QUERY = OfferQuery(gpu="A100-80GB", gpu_count=1)


def refusal(offer: Offer, error: type[ProviderError] | str) -> ProviderError:
    if isinstance(error, str):
        return ProviderError("refused", provider=offer.provider, code=error)
    if issubclass(error, QuotaExceeded):
        return error("refused", scope=f"{offer.provider}/{offer.region}", provider=offer.provider)
    return error("refused", provider=offer.provider)


class ScriptedHand:
    """A FakeProvider knows no time: what happens to its machines is written into its account."""

    def __init__(self, fake: FakeProvider) -> None:
        self.fake = fake

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        return condition() or condition()  # everything is done once it was asked for

    def reconnect(self) -> Provider:
        return self.fake

    def take_back(self, instance: Instance, *, notice: bool) -> None:
        if notice:
            raise NotImplementedError("a machine without time has a notice or an end, not one after the other")
        self.fake.change(instance.id, state=State.TERMINATED, cause=Cause.PREEMPTED)

    def delete(self, instance: Instance) -> None:
        self.fake.change(instance.id, state=State.TERMINATED, cause=Cause.USER)

    def refuse(self, offer: Offer, error: type[ProviderError] | str) -> None:
        self.fake.fail("launch", refusal(offer, error))

    def fail_after_create(self) -> None:
        self.fake.fail("launch", Ambiguous("500"), after=True)

    def hide(self, seconds: float) -> None:
        raise NotImplementedError("it lists at once")

    def leave_unanswered(self, call: str) -> None:
        self.fake.fail(call, ProviderUnavailable("no answer"))


class CloudHand:
    """A FakeCloud's own hand; waiting moves its clock."""

    def __init__(self, cloud: FakeCloud, clock: FakeClock) -> None:
        self.cloud, self.clock = cloud, clock

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        until = self.clock.now + seconds
        while not condition():
            if self.clock.now >= until:
                return False
            self.clock.advance(min(0.5, until - self.clock.now))
        return True

    def reconnect(self) -> Provider:
        return self.cloud.provider()

    def take_back(self, instance: Instance, *, notice: bool) -> None:
        self.cloud.take_back(instance.id, notice=120.0 if notice else None)

    def delete(self, instance: Instance) -> None:
        self.cloud.end_by_hand(instance.id)

    def refuse(self, offer: Offer, error: type[ProviderError] | str) -> None:
        self.cloud.refuse(offer.key, refusal(offer, error), times=1)

    def fail_after_create(self) -> None:
        self.cloud.fail_after_create()

    def hide(self, seconds: float) -> None:
        self.cloud.hide(seconds)

    def leave_unanswered(self, call: str) -> None:
        self.cloud.script(call, ProviderUnavailable("no answer"))


class TestFakeProvider(ProviderConformance):
    @pytest.fixture
    def provider(self) -> FakeProvider:
        return FakeProvider()

    @pytest.fixture
    def query(self) -> OfferQuery:
        return QUERY

    @pytest.fixture
    def hand(self, provider: FakeProvider) -> ScriptedHand:
        return ScriptedHand(provider)


class TestFakeCloud(ProviderConformance):
    """The plain cloud, a slow one, one that stops machines as GCP does, and one without tokens as marketplaces are."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture(
        params=[{}, {"boot": 40.0, "list_lag": 5.0, "shutdown": 20.0}, {"stops": True}, {"token": False}],
        ids=["plain", "slow", "stops", "no-token"],
    )
    def cloud(self, request: pytest.FixtureRequest, clock: FakeClock) -> FakeCloud:
        return FakeCloud(clock=clock, **request.param)

    @pytest.fixture
    def provider(self, cloud: FakeCloud) -> Provider:
        return cloud.provider()

    @pytest.fixture
    def query(self) -> OfferQuery:
        return QUERY

    @pytest.fixture
    def hand(self, cloud: FakeCloud, clock: FakeClock) -> CloudHand:
        return CloudHand(cloud, clock)


def test_fake_provider_is_scripted() -> None:
    fake = FakeProvider()
    fake.fail("instances", None, ProviderUnavailable("gone fishing"))
    assert fake.instances() == []
    with pytest.raises(ProviderUnavailable, match="gone fishing"):
        fake.instances()
    fake.allow("offers", 1)
    fake.offers(QUERY)
    with pytest.raises(AssertionError, match="more often"):
        fake.offers(QUERY)
    assert [call.name for call in fake.calls] == ["instances", "instances", "offers", "offers"]
    fake.reset()
    assert fake.offers(QUERY)
    assert fake.count("offers") == 1


def test_fake_provider_shows_a_notice() -> None:
    from broker.testing.conformance import request_for

    fake = FakeProvider()
    instance = fake.launch(request_for(fake.offers(QUERY)[0]))
    notice = Notice(at=1.0, ends_at=121.0)
    fake.change(instance.id, notice=notice)
    assert fake.notice(instance) == notice == fake.instances()[0].notice
