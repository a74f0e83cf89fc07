"""The decision: ranking by full cost, ties, cooldowns, quota scopes, reasons."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.cli.tables import why
from broker.errors import AuthFailed, NoCapacity, ProviderError, ProviderUnavailable, QuotaExceeded, RateLimited
from broker.offer import Market, Offer, OfferQuery, Trust
from broker.policy import Decision, Kind, Memory, Wish, choose
from broker.policy.decision import HOME_KEY, clock, money
from broker.policy.infra import matcher, may_name, within
from broker.policy.memory import UNKNOWN_LIMIT

NOW = 1_790_000_000.0
ANY = Wish((OfferQuery(),))


def offer(
    zone: str, price: float, market: Market = Market.SPOT, *, provider: str = "local", disk_price: float = 0.0
) -> Offer:
    region, _, rest = zone.partition("/")
    return Offer(provider, region, rest, "cpu-2", market, price, disk_price=disk_price, cpus=2, memory=4)


def on_demand(zone: str, price: float, provider: str = "local") -> Offer:
    return offer(zone, price, Market.ON_DEMAND, provider=provider)


def decide(offers: list[Offer], wish: Wish = ANY, memory: Memory | None = None, now: float = NOW) -> Decision:
    return choose(offers, wish=wish, memory=memory or Memory(), now=now)


def reason_for(decision: Decision, key: str) -> str:
    return next(r.reason for r in decision.rejected if r.offer.key == key)


def test_the_cheapest_wins_and_says_what_on_demand_would_be() -> None:
    south = replace(offer("south", 0.01), disk_price=0.002)
    decision = decide([on_demand("south", 0.04), offer("north", 0.02), south])
    assert decision.offer == south
    assert decision.reasons == (
        "spot in local/south at 0.0120 USD/h (machine 0.0100 + disk 0.0020); on-demand would be 0.0400, saves 70%",
        "next best of 3: spot in local/north at 0.0200",
    )


@pytest.mark.parametrize(("disk", "winner", "cost"), [(500, "B", 0.4842), (50, "A", 0.3205)])
def test_the_disk_counts_in_the_ranking(disk: float, winner: str, cost: float) -> None:
    def rtx(zone: str, price: float, per_gib_month: float) -> Offer:
        bill = disk * per_gib_month / 730
        return Offer("vast", zone, "", "m", Market.SPOT, price, disk_price=bill, gpu="RTX4090", gpu_count=1)

    wish = Wish((OfferQuery(gpu="RTX4090", gpu_count=1, disk=disk),), spot="only")
    decision = decide([rtx("A", 0.30, 0.30), rtx("B", 0.45, 0.05)], wish)
    assert decision.offer is not None
    assert decision.offer.region == winner
    assert decision.ranked[0].cost == pytest.approx(cost, abs=5e-5)
    assert "disk" in decision.reasons[0]


@pytest.mark.parametrize("spot_price", [0.03, 0.031, 0.01 + 0.02])
def test_spot_at_or_above_on_demand_loses_to_it(spot_price: float) -> None:
    spot, steady = offer("a", spot_price), on_demand("a", 0.03)
    decision = decide([spot, steady])
    assert decision.offer == steady
    assert (
        reason_for(decision, spot.key) == f"spot is not cheaper than on-demand here ({money(spot_price)} against 0.03)"
    )


def test_on_demand_goes_first_on_a_tie_between_places() -> None:
    decision = decide([offer("a", 0.03), on_demand("b", 0.03)])
    assert decision.offer is not None
    assert decision.offer.market is Market.ON_DEMAND


def test_spot_only_takes_a_tie_and_says_that_it_saves_nothing() -> None:
    decision = decide([offer("a", 0.03), on_demand("a", 0.03)], Wish((OfferQuery(),), spot="only"))
    assert decision.offer == offer("a", 0.03)
    assert decision.reasons[0].endswith("on-demand would be 0.0300, saves 0%")
    assert reason_for(decision, on_demand("a", 0.03).key) == "spot: only"


def test_h100_times_8_over_the_zones_of_aws() -> None:
    """Spot equals on-demand in seven zones; the cheapest real saving wins over all of them."""
    dear = 55.04
    spot = {"use2-az1": 11.2543, "use2-az2": 11.5616, "use2-az3": 11.9912, "usw2-az1": 12.6935, "use1-az1": dear}

    def h100(zone: str, price: float, market: Market) -> Offer:
        return Offer("aws", zone[:-4], zone, "p5.48xlarge", market, price, gpu="H100", gpu_count=8)

    offers = [h100(zone, price, Market.SPOT) for zone, price in spot.items()]
    offers += [h100(zone, dear, Market.ON_DEMAND) for zone in spot]
    decision = decide(offers, Wish((OfferQuery(gpu="H100", gpu_count=8),)))
    assert [c.offer.zone for c in decision.ranked[:4]] == ["use2-az1", "use2-az2", "use2-az3", "usw2-az1"]
    assert "not cheaper" in reason_for(decision, "aws/use1/use1-az1/p5.48xlarge/spot")


def test_on_demand_that_cannot_be_had_does_not_push_spot_out() -> None:
    spot, steady = offer("a", 0.03), on_demand("a", 0.03)
    memory = Memory().refused(steady, NoCapacity("none"), NOW)
    assert decide([spot, steady], memory=memory).offer == spot


def test_on_demand_is_the_fallback_when_spot_has_none() -> None:
    spot, steady = offer("a", 0.01), on_demand("a", 0.04)
    memory = Memory().refused(spot, NoCapacity("none"), NOW)
    decision = decide([spot, steady], memory=memory)
    assert decision.offer == steady
    assert reason_for(decision, spot.key) == f"cools down until {clock(NOW + 300)} after NoCapacity"


def test_what_was_left_out_says_why() -> None:
    wish = Wish((OfferQuery(infra=("local",)),), spot="never", max_price=0.5)
    decision = decide([offer("a", 0.1), on_demand("a", 0.7), on_demand("x", 0.1, provider="aws")], wish)
    assert decision.offer is None
    assert [r.reason for r in decision.rejected] == ["spot: never", "above max_price 0.50", "infra does not match"]
    text = "\n".join(decision.reasons)
    assert "max_price: 0.70 would do" in text
    assert "spot: auto would take it" in text
    assert "widen infra" in text
    assert decision.next_try is None


def test_max_price_counts_the_disk_and_allows_the_price_itself() -> None:
    wish = Wish((OfferQuery(),), max_price=0.3)
    assert decide([offer("a", 0.1, disk_price=0.2)], wish).offer is not None
    assert decide([offer("a", 0.11, disk_price=0.2)], wish).offer is None


def test_a_gpu_task_never_lands_on_local_and_another_task_may() -> None:
    liar = Offer("local", "south", "", "x", Market.SPOT, 0.01, gpu="A100", gpu_count=1)
    decision = decide([liar], Wish((OfferQuery(gpu="A100", gpu_count=1),)))
    assert decision.offer is None
    assert "rents out no GPU" in "\n".join(decision.reasons)
    assert decide([offer("south", 0.01)]).offer is not None


def test_the_shape_must_fit_one_of_the_alternatives() -> None:
    big = Offer("aws", "r", "z", "p4", Market.SPOT, 8.0, gpu="A100", gpu_count=8, cpus=96, memory=1000)
    wish = Wish((OfferQuery(gpu="H100", gpu_count=1), OfferQuery(gpu="A100", gpu_count=8)))
    decision = decide([big], wish)
    assert (decision.offer, decision.alternative) == (big, 1)
    single = decide([big], Wish((OfferQuery(gpu="A100", gpu_count=1),)))
    assert reason_for(single, big.key) == "has A100:8, not A100:1"
    assert decide([big], Wish((OfferQuery(gpu="A100", gpu_count=8, memory=2000),))).offer is None


def test_a_host_about_to_leave_and_a_price_that_is_none_are_left_out() -> None:
    leaving = replace(offer("a", 0.1), ends_at=NOW + 60)
    priceless = offer("b", float("inf"))
    negative = offer("c", 0.1, disk_price=-0.05)
    decision = decide([leaving, priceless, negative])
    assert [r.kind for r in decision.rejected] == [Kind.ENDING, Kind.PRICELESS, Kind.PRICELESS]
    with pytest.raises(ValueError, match="above zero"):
        offer("free", 0.0)


def test_a_quota_closes_its_scope_and_no_more() -> None:
    """Four zones under one regional spot quota: after one refusal none of them is called again."""
    zones = [offer(f"us-east-1/us-east-1{z}", 1.0 + i / 100, provider="aws") for i, z in enumerate("abcd")]
    steady = on_demand("us-east-1/us-east-1a", 3.0, provider="aws")
    other = offer("us-central1/us-central1-a", 2.0, provider="gcp")
    neighbour = offer("us-east-10/a", 9.0, provider="aws")
    refusal = QuotaExceeded("Max spot instance count exceeded", scope="aws/us-east-1/spot")
    memory = Memory().refused(zones[0], refusal, NOW)
    decision = decide([*zones, steady, other, neighbour], memory=memory)
    assert [c.offer for c in decision.ranked] == [other, steady, neighbour]
    alone = decide(zones, memory=memory)
    assert (alone.offer, alone.next_try) == (None, None)
    assert "quota exceeded in aws/us-east-1/spot: Max spot instance count exceeded; ask the provider to raise it" in (
        alone.reasons
    )


def test_refused_credentials_turn_the_provider_off() -> None:
    memory = Memory().refused(offer("a", 1.0, provider="aws"), AuthFailed("no key"), NOW)
    decision = decide([offer("b", 1.0, provider="aws"), offer("c", 9.0)], memory=memory, now=NOW + 9e6)
    assert decision.offer == offer("c", 9.0)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (AuthFailed("no credit", fix="add credit at https://x/billing"), "no credit (add credit at https://x/billing)"),
        (
            QuotaExceeded("a limit", scope="aws", fix="ask for 8 vCPUs at https://x/quotas"),
            "quota exceeded in aws: a limit (ask for 8 vCPUs at https://x/quotas)",
        ),
    ],
)
def test_what_would_help_against_a_refusal_is_said_where_nothing_else_is_left(error: ProviderError, words: str) -> None:
    memory = Memory().refused(offer("a", 1.0, provider="aws"), error, NOW)
    decision = decide([offer("b", 1.0, provider="aws")], memory=memory)
    assert [reason for reason in decision.reasons if reason.endswith(words)]


def test_spot_that_costs_more_than_on_demand_is_not_said_to_save() -> None:
    wish = Wish((OfferQuery(),), spot="only")
    for price, words in ((0.06, "saves nothing"), (0.04, "saves 0%"), (0.03, "saves 25%")):
        decision = decide([on_demand("south", 0.04), offer("south", price)], wish)
        assert words in decision.reasons[0]
        assert words in why(decision.ranked[0], decision.ranked[0], 1)


def test_unknown_refusals_end_it_after_a_few_and_an_accepted_launch_breaks_the_row() -> None:
    memory = Memory()
    for index in range(UNKNOWN_LIMIT):
        assert decide([offer("z", 1.0)], memory=memory).offer is not None
        memory = memory.refused(offer(f"r{index}", 1.0), ProviderError("odd", code="SOME_NEW_CODE_2027"), NOW)
    decision = decide([offer("z", 1.0)], memory=memory)
    assert decision.offer is None
    assert "SOME_NEW_CODE_2027 odd" in decision.reasons[0]
    assert decide([offer("z", 1.0)], memory=memory.launched()).offer is not None


def test_the_only_offer_is_tried_again_after_half_a_minute_then_ever_later() -> None:
    only = offer("a", 0.01)
    memory = Memory().lost(only, "preemption", NOW)
    first = decide([only], memory=memory)
    assert (first.offer, first.next_try) == (None, NOW + 30)
    assert f"cools down until {clock(NOW + 600)} after preemption" in "\n".join(first.reasons)
    again = decide([only], memory=memory, now=NOW + 30)
    assert again.offer == only
    assert "tried again since nothing else fits" in again.reasons[0]
    twice = memory.refused(only, NoCapacity("none"), NOW + 30)
    assert decide([only], memory=twice, now=NOW + 31).next_try == NOW + 30 + 60
    later = decide([only], memory=memory, now=NOW + 601)
    assert later.offer == only
    assert "again" not in later.reasons[0]


def test_next_try_is_the_earliest_of_several() -> None:
    a, b = offer("a", 0.01), offer("b", 0.02)
    memory = Memory().refused(a, NoCapacity("none"), NOW).refused(b, RateLimited("slow", retry_after=45), NOW - 20)
    assert decide([a, b], memory=memory).next_try == NOW + 25


def test_an_old_cooldown_is_forgotten_and_its_count_with_it() -> None:
    only = offer("a", 0.01)
    memory = Memory().refused(only, NoCapacity("none"), NOW)
    much_later = memory.refused(offer("b", 1.0), ProviderUnavailable("down"), NOW + 86_400)
    assert list(much_later.cooldowns) == [offer("b", 1.0).key]


def test_no_moves_left_and_no_offers_at_all_are_said() -> None:
    none_left = choose([offer("a", 1.0)], wish=ANY, memory=Memory(), now=NOW, moves_left=0)
    assert none_left.offer is None
    assert "max_moves" in none_left.reasons[0]
    wish = Wish((OfferQuery(gpu="A100", gpu_count=1),))
    empty = choose([], wish=wish, memory=Memory(), now=NOW, failures={"aws": "AuthFailed: no key"})
    assert empty.reasons == ("no offer fits A100:1, 20 GiB disk", "aws could not be asked: AuthFailed: no key")
    assert "add a provider" in decide([], wish).reasons[-1]


def test_a_wish_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="auto, only or never"):
        Wish((OfferQuery(),), spot="maybe")
    with pytest.raises(ValueError, match="at least one query"):
        Wish(())


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        ("local", True),
        ("LOCAL", True),
        ("local/south", True),
        ("local/sou*", True),
        ("*/south", True),
        ("local/*/z1", True),
        ("local/south/z?", True),
        ("loc", False),
        ("local/sout", False),
        ("local/*/z", False),
        ("local/so.th", False),
        ("*/z1", False),
    ],
)
def test_infra_patterns(pattern: str, fits: bool) -> None:
    assert matcher([pattern])(offer("south/z1", 1.0)) is fits


def test_which_providers_a_pattern_may_name() -> None:
    assert may_name((), "aws")
    assert may_name(("gcp/x", "aws/us-*"), "aws")
    assert not may_name(("aws-gov", "local/aws"), "aws")


@pytest.mark.parametrize(
    ("scope", "inside"),
    [
        ("aws", True),
        ("aws/r1", True),
        ("aws/r1/spot", True),
        ("aws/spot", True),
        ("aws/r1/z/cpu-2/spot", True),
        ("aws/r1/on_demand", False),
        ("aws/r", False),
        ("gcp", False),
        ("aws/r1/*/cpu*/spot", True),
        ("aws/r1/*/[a-c]*/spot", True),
        ("aws/r1/*/[d-z]*/spot", False),
        ("aws/r1/*/cpu*/on_demand", False),
    ],
)
def test_scopes_are_whole_segments(scope: str, inside: bool) -> None:
    assert within(scope, offer("r1/z", 1.0, provider="aws")) is inside


ZONES = st.sampled_from(["a", "b", "c/1", "c/2"])
PRICES = st.sampled_from([0.01, 0.02, 0.03, 0.3, 1.0])
OFFERS = st.builds(
    offer, ZONES, PRICES, st.sampled_from(list(Market)), provider=st.sampled_from(["local", "aws"]), disk_price=PRICES
)
ERRORS = st.sampled_from(
    [
        NoCapacity("x"),
        QuotaExceeded("x", scope="aws/c/spot"),
        AuthFailed("x"),
        RateLimited("x", retry_after=5),
        ProviderUnavailable("x"),
        ProviderError("x", code="odd"),
    ]
)


@given(
    st.lists(OFFERS, max_size=12, unique_by=lambda o: o.key),
    st.lists(st.tuples(OFFERS, ERRORS, st.floats(0, 4000)), max_size=4),
    st.sampled_from(["auto", "only", "never"]),
    st.one_of(st.none(), PRICES),
)
@settings(deadline=None)
def test_every_decision_is_sound(
    offers: list[Offer], past: list[tuple[Offer, ProviderError, float]], spot: str, max_price: float | None
) -> None:
    memory = Memory()
    for failed, error, ago in sorted(past, key=lambda item: -item[2]):
        memory = memory.refused(failed, error, NOW - ago)
    memory = Memory.from_json(json.loads(json.dumps(memory.to_json())))
    wish = Wish((OfferQuery(),), spot=spot, max_price=max_price)
    decision = decide(offers, wish, memory)
    assert decision.ranked == decide(list(reversed(offers)), wish, memory).ranked
    json.dumps(decision.to_json())
    assert {c.offer.key for c in decision.ranked} | {r.offer.key for r in decision.rejected} == {o.key for o in offers}
    assert len(decision.ranked) + len(decision.rejected) == len(offers)
    assert [c.cost for c in decision.ranked] == sorted(c.cost for c in decision.ranked)
    assert decision.reasons
    assert all(r.reason for r in decision.rejected)
    for candidate in decision.ranked:
        taken = candidate.offer
        assert max_price is None or candidate.cost <= max_price + 1e-6
        assert not (spot == "never" and taken.market is Market.SPOT)
        assert not (spot == "only" and taken.market is Market.ON_DEMAND)
        assert not any(within(scope, taken) for scope, b in memory.blocked.items() if b.until is None or b.until > NOW)
        cooldown = memory.cooldowns.get(taken.key)
        assert cooldown is None or cooldown.until <= NOW or (candidate.insisted and cooldown.again <= NOW)
        if spot == "auto" and taken.market is Market.SPOT and not candidate.insisted:
            steady = [c for c in decision.ranked if c.offer.key == taken.key.replace("/spot", "/on_demand")]
            assert all(candidate.cost < other.cost for other in steady)
    assert decision.next_try is None or decision.next_try > NOW


def test_a_hundred_thousand_offers_well_below_a_second() -> None:
    offers = [
        Offer(
            "aws", f"r{i % 30}", f"z{i % 90}", f"t{i}", Market.SPOT if i % 2 else Market.ON_DEMAND,
            1 + i % 977 / 100, disk_price=0.01, gpu="H100" if i % 3 else "A100", gpu_count=8, cpus=96,
        )
        for i in range(100_000)
    ]  # fmt: skip
    wish = Wish((OfferQuery(gpu="H100", gpu_count=8, infra=("aws/r1*", "gcp")),), max_price=9.0)
    start = time.process_time()
    decision = decide(offers, wish)
    assert time.process_time() - start < 2.0
    assert decision.offer is not None


def test_a_host_that_may_not_read_a_secret_is_passed_over() -> None:
    community = replace(offer("a", 0.19), trust=Trust.COMMUNITY)
    datacenter = replace(offer("b", 0.44), trust=Trust.DATACENTER)
    cloud = offer("c", 0.60)
    offers = [community, datacenter, cloud]
    assert decide(offers).offer == community
    careful = decide(offers, replace(ANY, trust={"HF_TOKEN": Trust.DATACENTER, "WANDB": Trust.COMMUNITY}))
    assert careful.offer == datacenter
    assert reason_for(careful, community.key) == "a community host could read HF_TOKEN"
    strict = decide(offers, replace(ANY, trust={"A": Trust.CLOUD, "B": Trust.DATACENTER}))
    assert strict.offer == cloud
    assert reason_for(strict, community.key) == "a community host could read A, B"
    assert decide(offers, replace(ANY, trust={"A": Trust.COMMUNITY})).offer == community


def test_only_hosts_that_may_not_read_it_say_how_to_consent() -> None:
    hosts = [replace(offer(zone, price), trust=Trust.COMMUNITY) for zone, price in (("a", 0.3), ("b", 0.19))]
    decision = decide(hosts, replace(ANY, trust={"A": Trust.DATACENTER, "B": Trust.CLOUD}))
    assert decision.offer is None
    assert decision.reasons[1] == (
        "2 offers are left out, from 0.19 in local/b: a community host could read A, B; "
        "`secrets: {A: {trust: community}, B: {trust: community}}` in the task would let it"
    )


def test_what_cannot_be_rented_from_here_is_shown_and_never_taken() -> None:
    free = replace(offer("a", 0.01), blocked="no key yet: `broker check vast` takes one")
    assert decide([free, offer("b", 0.5)]).offer == offer("b", 0.5)
    alone = decide([free, offer("b", 0.5)], replace(ANY, max_price=0.1))
    assert alone.offer is None
    assert "1 offer is not to be had from here: no key yet: `broker check vast` takes one" in alone.reasons


def test_a_home_whose_key_tells_too_much_keeps_to_clouds() -> None:
    community = replace(offer("a", 0.19), trust=Trust.COMMUNITY)
    wish = replace(ANY, trust={HOME_KEY: Trust.CLOUD, "A": Trust.COMMUNITY})
    assert decide([community, offer("c", 0.60)], wish).offer == offer("c", 0.60)
    (rejected,) = decide([community], wish).rejected
    assert rejected.exposed == (HOME_KEY,)
    assert decide([community], wish).reasons[1] == (
        "1 offer is left out, from 0.19 in local/a: a community host could read the home's key; "
        "`broker home setup` can find keys for one job only"
    )
