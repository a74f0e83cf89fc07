"""What one launch may ask for together: never a machine that is worse than what would be tried next."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.contract import wrap
from broker.errors import Ambiguous, NoCapacity
from broker.offer import Market, Offer
from broker.policy.decision import Candidate, Decision
from broker.policy.together import MOST, together
from broker.provider import Instance, LaunchesAny, LaunchRequest, State
from broker.store import claimed
from broker.testing import FakeProvider

BEST = Offer("aws", "us-1", "us-1a", "large", Market.SPOT, price=1.0, gpu="A10G", gpu_count=1, gpu_memory=24.0)


def decision(*offers: Offer, alternatives: tuple[int, ...] = ()) -> Decision:
    chosen = [*alternatives, *[0] * len(offers)]
    ranked = tuple(Candidate(offer, offer.hourly, alternative) for offer, alternative in zip(offers, chosen))  # noqa: B905
    return Decision(ranked[0].offer, ranked)


def zone(letter: str, price: float, **more: object) -> Offer:
    return replace(BEST, zone=f"us-1{letter}", price=price, **more)


def test_zones_and_types_of_one_region() -> None:
    bigger = zone("b", 1.1, instance_type="larger")
    assert together(decision(BEST, zone("b", 1.05), bigger, zone("c", 1.25))) == (
        BEST,
        zone("b", 1.05),
        bigger,
        zone("c", 1.25),
    )
    assert together(decision(BEST)) == ()
    assert len(together(decision(BEST, *(zone(f"x{n}", 1.01) for n in range(60))))) == MOST


@pytest.mark.parametrize(
    "other",
    [
        zone("b", 1.26),
        zone("b", 1.0, market=Market.ON_DEMAND),
        zone("b", 1.0, gpu="L4"),
        zone("b", 1.0, gpu_count=2),
        zone("b", 1.0, ends_at=2e9),
        zone("b", 1.0, extra={"architecture": "aarch64"}),
        replace(BEST, region="us-2", zone="us-2a"),
        replace(BEST, provider="vast"),
    ],
)
def test_what_may_not_win(other: Offer) -> None:
    assert together(decision(BEST, other)) == ()


def test_nothing_beyond_what_elsewhere_costs() -> None:
    elsewhere = replace(BEST, region="us-2", zone="us-2a", price=1.1)
    assert together(decision(BEST, zone("b", 1.05), elsewhere, zone("c", 1.15))) == (BEST, zone("b", 1.05))


def test_another_alternative_of_the_task_is_another_request() -> None:
    assert together(decision(BEST, zone("b", 1.05), zone("c", 1.1), alternatives=(0, 1, 0))) == (BEST, zone("c", 1.1))


def test_on_demand_is_the_policys_own_choice() -> None:
    first = replace(BEST, market=Market.ON_DEMAND)
    assert together(decision(first, zone("b", 1.0))) == ()


REQUEST = LaunchRequest(
    "job", 1, BEST, "token", {}, "", 20.0, 1e9, 1.0, any_of=(BEST, zone("b", 1.05), zone("c", 1.2, disk_price=0.1))
)


def test_a_request_keeps_all_and_its_winner() -> None:
    again = LaunchRequest.from_json(REQUEST.to_json())
    assert again == REQUEST
    assert again.dearest == pytest.approx(1.3)
    instance = Instance("aws", "i", State.RUNNING, Market.SPOT, 1.05, {}, "us-1", "us-1b", "large")
    assert REQUEST.won_by(instance) == zone("b", 1.05)
    assert REQUEST.won_by(replace(instance, zone="us-1z")) == BEST
    assert claimed(REQUEST.to_json()) == pytest.approx(REQUEST.dearest), "until it is known which one won"
    alone = replace(REQUEST, any_of=())
    assert claimed(alone.to_json()) == pytest.approx(1.0)
    assert "any_of" in alone.to_json()
    old = {key: value for key, value in alone.to_json().items() if key != "any_of"}
    assert LaunchRequest.from_json(old) == alone


class Fleet(FakeProvider):
    """A fake that can be asked for many; what it does then is told."""

    answer: Exception = NoCapacity("none")

    def launch_any(self, request: LaunchRequest, offers: object) -> Instance:
        raise self.answer


def test_the_contract_sends_it_once_and_takes_a_strangers_failure_for_ambiguous() -> None:
    fleet = Fleet()
    provider = wrap(fleet)
    assert isinstance(provider, LaunchesAny)
    assert not isinstance(wrap(FakeProvider()), LaunchesAny)
    with pytest.raises(NoCapacity):
        provider.launch_any(REQUEST, REQUEST.any_of)
    fleet.answer = KeyError("what")
    with pytest.raises(Ambiguous):
        provider.launch_any(REQUEST, REQUEST.any_of)
