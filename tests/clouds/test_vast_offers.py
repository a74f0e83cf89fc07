"""What Vast's rows become: prices that are whole, offers that exist, and a count of what was left out."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clouds.vast.account import ON_DEMAND
from clouds.vast.stage import QUERY, Stage

from broker import registry
from broker.config import Config
from broker.errors import AuthFailed, ConfigError, ProviderError, ProviderUnavailable, RateLimited
from broker.market import Marketplace
from broker.offer import Market, Offer, OfferQuery, Trust
from broker.policy.choose import Memory, Wish, choose
from broker.policy.cost import Prospect
from broker.provider import PartialOffers
from broker.testing.conformance import request_for
from broker_vast import offers as reading
from broker_vast.settings import read as read_settings

CASES = Path(__file__).parents[3] / "shared" / "cases" / "inputs"
GB = 1e9 / 2**30  # GiB


@pytest.fixture
def vast(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path) as stage:
        yield stage


def case(name: str) -> Any:
    path = CASES / name
    if not path.is_file():
        pytest.skip(f"{path.name} is not here")
    return json.loads(path.read_text(encoding="utf-8"))


def of(offers: list[Offer], market: Market) -> list[Offer]:
    return sorted((offer for offer in offers if offer.market is market), key=lambda offer: offer.hourly)


# Prices


def test_case_1_a_bid_is_for_the_whole_machine(vast: Stage) -> None:
    told = case("c01_offer.json")
    count, spot, dear = told["gpu_count"], told["spot_price_per_gpu"], told["on_demand_price_per_gpu"]
    vast.host(gpu_name="A40", gpu_ram=46068, num_gpus=count, min_bid=spot * count, dph=dear * count)
    query = OfferQuery(gpu="A40", gpu_count=count)
    (offer,) = of(vast.offers(query, bid_margin=0.0), Market.SPOT)
    assert offer.price == pytest.approx(1.12)
    assert offer.extra["bid_floor"] == pytest.approx(1.12)
    assert offer.extra["pays_bid"] is True
    for margin in (0.05, 5.0):
        (dearer,) = of(vast.offers(query, bid_margin=margin), Market.SPOT)
        assert dearer.price == pytest.approx(min(1.12 * (1 + margin), 1.76))


def test_case_3_the_disk_decides(vast: Stage) -> None:
    told = case("c03_offers.json")
    for row in told["offers"]:
        price = row["price_per_hour"]
        vast.host(geolocation=f"X, {row['id'] * 2}", min_bid=price, dph=9.0, storage_cost=row["storage_per_gb_month"])
    big = of(vast.offers(replace(QUERY, disk=told["task"]["disk_gb"]), bid_margin=0.0), Market.SPOT)
    assert [(offer.region, round(offer.hourly, 4)) for offer in big] == [("BB", 0.4842), ("AA", 0.5055)]
    small = of(vast.offers(replace(QUERY, disk=50.0), bid_margin=0.0), Market.SPOT)
    assert [(offer.region, round(offer.hourly, 4)) for offer in small] == [("AA", 0.3205), ("BB", 0.4534)]
    assert all(offer.hourly == offer.price + offer.disk_price for offer in big)


def test_the_service_has_a_month_of_its_own(tmp_path: Path) -> None:
    with Stage(tmp_path, month=720.0) as vast:
        vast.host(storage_cost=0.30)
        (offer,) = of(vast.offers(replace(QUERY, disk=500.0)), Market.ON_DEMAND)
        assert offer.disk_price == pytest.approx(500 * 0.30 / 720)


def test_an_answer_for_another_disk_makes_no_offer_cheap(vast: Stage) -> None:
    vast.host(storage_cost=0.30, changes={"storage_total_cost": 0.002, "search": {"diskHour": 0.002}})
    (offer,) = of(vast.offers(replace(QUERY, disk=500.0)), Market.ON_DEMAND)
    assert offer.disk_price == pytest.approx(500 * 0.30 / 730)


def test_a_disk_of_unknown_price_is_not_free(vast: Stage) -> None:
    unknown = {"storage_cost": None, "storage_total_cost": None, "search": None}
    vast.host(changes=unknown)
    vast.host(geolocation="Oslo, NO", changes={**unknown, "storage_cost": 0.0})
    vast.host(geolocation="Lima, PE", changes={**unknown, "storage_cost": "0.73"})
    assert {o.region: o.disk_price for o in of(vast.offers(), Market.ON_DEMAND)} == pytest.approx(
        {"NO": 0.0, "PE": 20 * 0.73 / 730}
    )


def test_costs_and_ends_that_come_as_text_count(vast: Stage) -> None:
    vast.host(changes={"duration": "3000", "inet_down_cost": "0.02", "inet_up_cost": float("nan")})
    (offer,) = of(vast.offers(), Market.ON_DEMAND)
    assert offer.ends_at == pytest.approx(time.time() + 3000, abs=30)
    assert offer.extra["download_per_gib"] == pytest.approx(0.02 / GB)
    assert offer.extra["upload_per_gib"] == 0


def test_the_least_disk_is_priced_where_less_is_asked_for(vast: Stage) -> None:
    vast.host(storage_cost=0.73)
    (offer,) = of(vast.offers(replace(QUERY, disk=1.0)), Market.ON_DEMAND)
    assert offer.disk_price == pytest.approx(8 * 0.73 / 730)


@pytest.mark.parametrize("unknown", [0, 0.0, None, -1.0, "0.2", float("inf"), True])
def test_case_4_an_unknown_price_is_no_price(vast: Stage, unknown: Any) -> None:
    vast.host(changes={"min_bid": unknown, "dph_base": unknown, "dph_total": unknown})
    vast.host(geolocation="Oslo, NO")
    assert {offer.region for offer in vast.offers()} == {"NO"}


def test_a_total_alone_is_a_price_too(vast: Stage) -> None:
    vast.host(dph=0.5, storage_cost=0.1, changes={"dph_base": None})
    (offer,) = of(vast.offers(), Market.ON_DEMAND)
    assert offer.hourly == pytest.approx(0.5 + 20 * 0.1 / 730)


def test_case_12_data_and_the_hosts_end(vast: Stage) -> None:
    told = case("c12_vast_offers.json")
    for row in told["offers"]:
        vast.host(
            machine_id=row["id"],
            dph=row["dph_total"],
            min_bid=row["dph_total"],
            storage_cost=0.0,
            inet_down_cost=row["inet_down_cost"],
            inet_up_cost=row["inet_up_cost"],
            duration=row["duration"],
        )
    found = {offer.extra["machine"]: offer for offer in of(vast.offers(), Market.ON_DEMAND)}
    task, now = told["task"], time.time()
    work = Prospect(
        task["hours"], restarts={"vast": 0.0}, download=task["download_gb"] * GB, upload=task["upload_gb"] * GB
    )
    assert work.cost(found[1], 0.0, now).total == pytest.approx(12.10)
    assert work.cost(found[2], 0.0, now).total == pytest.approx(3.60)
    assert found[3].ends_at == pytest.approx(now + 3000, abs=5)
    wish = Wish(queries=(QUERY,), spot="never", prospect=work)
    decision = choose(list(found.values()), wish=wish, memory=Memory(), now=now)
    assert decision.offer is not None
    assert decision.offer.extra["machine"] == 2


@pytest.mark.parametrize("left", [{"duration": 0}, {"duration": -60.0}, {"duration": None, "end_date": 1.0}])
def test_case_12_a_host_whose_end_has_come_is_not_taken_for_one_without_an_end(
    vast: Stage, left: dict[str, Any]
) -> None:
    vast.host(dph=0.1, min_bid=0.05, changes=left)
    vast.host(geolocation="Oslo, NO")
    found, now = vast.offers(), time.time()
    assert {offer.ends_at is not None and offer.ends_at <= now for offer in found if offer.region != "NO"} == {True}
    decision = choose(found, wish=Wish(queries=(QUERY,)), memory=Memory(), now=now)
    assert decision.offer is not None
    assert decision.offer.region == "NO"


@pytest.mark.parametrize("let", [{"rentable": False}, {"rented": True}])
def test_what_is_let_is_not_offered_though_the_search_asks_for_the_free(vast: Stage, let: dict[str, Any]) -> None:
    vast.host(changes=let)
    vast.host(geolocation="Oslo, NO")
    assert {offer.region for offer in vast.offers()} == {"NO"}


def test_parts_of_one_machine_bid_no_more_than_the_cheapest_costs_without_a_bid(vast: Stage) -> None:
    dear = vast.host(dph=0.40, min_bid=0.2)
    vast.host(machine_id=dear.machine_id, host_id=dear.host_id, dph=0.25, min_bid=0.2)
    (offer,) = of(vast.offers(bid_margin=5.0), Market.SPOT)
    assert (offer.price, offer.extra["on_demand"]) == (0.25, 0.25)


def test_a_bid_above_the_price_without_one_is_no_offer(vast: Stage) -> None:
    vast.host(dph=0.30, min_bid=0.31)
    vast.host(dph=0.30, min_bid=0.30, geolocation="Oslo, NO")
    found = vast.offers()
    assert [(offer.region, offer.price) for offer in of(found, Market.SPOT)] == [("NO", 0.30)]
    assert found.left_out == {"the least bid is above the on-demand price": 1}


# What is asked for


def test_cards_are_asked_for_as_vast_spells_them(vast: Stage) -> None:
    vast.host(gpu_name="RTX 6000Ada", gpu_ram=49140)
    vast.host(gpu_name="Q RTX 8000", gpu_ram=49152)
    (offer, *_) = vast.offers(OfferQuery(gpu="RTX6000-Ada", gpu_count=1))
    assert (offer.gpu, offer.gpu_memory) == ("RTX6000-Ada", 48.0)
    bodies = vast.server.bodies("POST /api/v0/bundles/")
    assert [body["type"] for body in bodies] == ["bid", "on-demand"]
    assert all(body["gpu_name"] == {"in": ["RTX 6000Ada"]} for body in bodies)
    assert all(body["allocated_storage"] == 20.0 and body["disk_space"] == {"gte": 20.0} for body in bodies)


def test_one_name_may_be_two_cards(vast: Stage) -> None:
    vast.host(gpu_name="A100 PCIE", gpu_ram=81920, geolocation="Oslo, NO")
    vast.host(gpu_name="A100 PCIE", gpu_ram=40960, geolocation="Paris, FR")
    for name, region in (("A100-80GB", "NO"), ("A100", "FR")):
        assert {offer.region for offer in vast.offers(OfferQuery(gpu=name, gpu_count=1))} == {region}


@pytest.mark.parametrize(
    ("wanted", "name", "gpu_ram"),
    [
        ("RTX3080-12GB", "RTX 3080", 12288),
        ("RTX4060-Ti-16GB", "RTX 4060 Ti", 16380),
        ("RTX5060-Ti-16GB", "RTX 5060 Ti", 16311),
        ("P100-12GB", "Tesla P100", 12288),
        ("RTXA2000-12GB", "RTX A2000", 12282),
        ("RTX8000", "Q RTX 8000", 49152),
        ("RTX4090-D", "RTX 4090D", 24564),
        ("H100-NVL", "H100 NVL", 95830),
    ],
)
def test_every_memory_of_a_name_is_asked_for(vast: Stage, wanted: str, name: str, gpu_ram: int) -> None:
    vast.host(gpu_name=name, gpu_ram=gpu_ram)
    found = vast.provider().offers(OfferQuery(gpu=wanted, gpu_count=1))
    assert [offer.gpu for offer in found] == [wanted, wanted]


def test_a_wish_for_memory_is_asked_for_in_megabytes(vast: Stage) -> None:
    vast.host(gpu_name="RTX 3090", gpu_ram=24268)
    vast.host(gpu_name="RTX 3060", gpu_ram=12288)
    assert {offer.gpu for offer in vast.offers(OfferQuery(gpu="24GB+", gpu_count=1))} == {"RTX3090"}
    body = vast.server.bodies("POST /api/v0/bundles/")[0]
    assert "gpu_name" not in body
    assert body["gpu_ram"] == {"gte": 21_600}


def test_a_card_that_nobody_has_costs_no_search(vast: Stage) -> None:
    vast.host()
    assert not vast.provider().offers(OfferQuery(gpu="B200", gpu_count=1))
    assert vast.server.calls["POST /api/v0/bundles/"] == 0


def test_a_task_without_a_card_asks_nothing(vast: Stage) -> None:
    assert not vast.provider().offers(OfferQuery())
    assert not vast.provider().offers(replace(QUERY, image="ami-0123456789"))
    assert not vast.server.calls


def test_names_are_fetched_once_a_day(vast: Stage) -> None:
    vast.host()
    for _ in range(3):
        vast.offers()
    assert vast.server.calls["GET /api/v0/gpu_names/unique/"] == 1
    for path in (vast.state / "vast" / "answers").iterdir():
        path.write_text("{nonsense")
    assert vast.offers()
    assert vast.server.calls["GET /api/v0/gpu_names/unique/"] == 2


def test_one_search_answers_all_who_ask_the_same_at_once(vast: Stage) -> None:
    vast.host()
    for _ in range(5):
        assert len(vast.offers(pace=0.2)) == 2
    assert vast.server.calls["POST /api/v0/bundles/"] == 2
    vast.offers(replace(QUERY, disk=50.0), pace=0.2)
    assert vast.server.calls["POST /api/v0/bundles/"] == 4
    with pytest.raises(AuthFailed):
        vast.provider(key="vast-WRONG", pace=0.2).offers(QUERY)
    vast.offers()  # its answers are good for 15 ms only
    assert vast.server.calls["POST /api/v0/bundles/"] > 6


def test_a_state_folder_that_takes_nothing_stops_nothing(vast: Stage) -> None:
    vast.host()
    vast.state.mkdir(parents=True, exist_ok=True)
    (vast.state / "vast").write_text("in the way")
    instance = vast.provider().launch(request_for(vast.offer()))
    vast.provider().terminate(instance)
    assert not vast.account.contracts


@pytest.mark.parametrize("blind", [False, True])
def test_what_does_not_fit_is_no_offer_whatever_the_search_heeds(vast: Stage, blind: bool) -> None:
    vast.host(geolocation="Oslo, NO")
    vast.host(disk_space=19.0)
    vast.host(cpu_arch="arm64")
    vast.host(num_gpus=2)
    vast.host(gpu_name="RTX 3090", gpu_ram=24268)
    vast.host(gpu_ram=12282)
    vast.host(cpu_cores_effective=1.0)
    vast.server.lies.blind = blind
    found = vast.offers(replace(QUERY, cpus=2.0))
    assert [offer.region for offer in found] == ["NO", "NO"]
    assert not found.left_out


@pytest.mark.parametrize("how", ["null", "html", "cut", "500", "502", "no", "often"])
def test_names_that_do_not_come_are_done_without(vast: Stage, how: str) -> None:
    vast.host()
    vast.host(gpu_name="RTX 3090", gpu_ram=24268)
    vast.server.lies.broken["GET /api/v0/gpu_names/unique/"] = [how]
    assert {offer.gpu for offer in vast.offers()} == {"RTX4090"}
    assert "gpu_name" not in vast.server.bodies("POST /api/v0/bundles/")[0]


# What an offer says


def test_memory_is_the_offers_share(vast: Stage) -> None:
    vast.host(cpu_ram=262_144, cpu_cores=64, cpu_cores_effective=16.0, geolocation="Oslo, NO")
    vast.host(cpu_ram=262_144, cpu_cores=None, changes={"gpu_frac": 0.5}, geolocation="Paris, FR")
    memory = {offer.region: offer.memory for offer in vast.offers()}
    assert memory == {"NO": 64.0, "FR": 128.0}
    assert {offer.region for offer in vast.offers(replace(QUERY, memory=100.0))} == {"FR"}
    assert not vast.offers(replace(QUERY, cpus=17.0))


def test_trust(vast: Stage) -> None:
    vast.host(hosting_type=1, geolocation="Oslo, NO")
    vast.host(hosting_type=0, geolocation="Paris, FR")
    assert {o.region: o.trust for o in vast.offers()} == {"NO": Trust.DATACENTER, "FR": Trust.COMMUNITY}


@pytest.mark.parametrize(
    ("told", "region"),
    [("Poland, PL", "PL"), (", US", "US"), ("US", "US"), (None, "unknown"), ("", "unknown"), ("somewhere", "unknown")],
)
def test_where_a_host_is(told: str | None, region: str) -> None:
    assert reading.region_of(told) == region


def test_a_host_keeps_its_key_whatever_its_offer_is_called(vast: Stage) -> None:
    host = vast.host()
    before = {offer.key for offer in vast.offers()}
    vast.account.hosts.clear()
    vast.host(ask=99, machine_id=host.machine_id, host_id=host.host_id, dph=0.9, min_bid=0.1)
    assert {offer.key for offer in vast.offers()} == before == {
        "vast/PL/host-9000/m40100-1xRTX4090/spot",
        "vast/PL/host-9000/m40100-1xRTX4090/on_demand",
    }  # fmt: skip


def test_parts_of_one_machine_are_one_offer_at_the_lowest_price(vast: Stage) -> None:
    first = vast.host(dph=0.5)
    vast.host(machine_id=first.machine_id, host_id=first.host_id, dph=0.4)
    (offer,) = of(vast.offers(), Market.ON_DEMAND)
    assert offer.price == 0.4


def test_a_machine_that_is_let_is_no_offer(vast: Stage) -> None:
    vast.host().strangers.append(ON_DEMAND)
    assert not vast.offers()


# What the settings leave out


def test_what_settings_leave_out_is_counted(vast: Stage) -> None:
    vast.host(geolocation="Oslo, NO")
    vast.host(verification="unverified")
    vast.host(verification="deverified")
    vast.host(reliability=0.90)
    vast.host(cuda=11.8)
    found = vast.offers()
    assert {offer.region for offer in found} == {"NO"}
    assert found.left_out == {
        "hosts that Vast has not verified ([providers.vast] verified = false takes them)": 4,
        "reliability below 0.95 ([providers.vast] reliability sets it)": 2,
        "CUDA below 12 ([providers.vast] min_cuda sets it)": 2,
    }
    everything = vast.offers(verified=False, reliability=0.0, min_cuda=0.0)
    assert len(everything) == 10
    assert not everything.left_out
    assert len(vast.offers(reliability=0.9)) == 4


def test_the_market_says_what_was_left_out(vast: Stage) -> None:
    vast.host(reliability=0.90)
    table = {"api": vast.server.url, "key": vast.account.key, "pace": 0.001}
    config = Config(state=vast.state, file=vast.state / "config.toml", providers={"vast": table})
    book = Marketplace(config, ["vast"]).offers([QUERY])
    assert not book.failures
    assert book.left_out == {"vast": {"reliability below 0.95 ([providers.vast] reliability sets it)": 2}}
    registry.forget("vast")


# Without a key, and answers that are none


def test_offers_without_a_key_are_blocked(vast: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VAST_API_KEY", raising=False)
    vast.host()
    found = vast.offers(key=None)
    assert len(found) == 2
    assert all(offer.blocked.startswith("no key yet: broker check vast") for offer in found)
    assert not any("Authorization" in headers for _, _, headers, _ in vast.server.asked)
    with pytest.raises(AuthFailed) as caught:
        vast.provider(key=None).instances()
    assert caught.value.code == "no key"


def test_without_a_key_nobody_waits_for_a_service_that_is_away(vast: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VAST_API_KEY", raising=False)
    config = Config(
        state=vast.state, file=vast.state / "c.toml", providers={"vast": {"api": "http://no-such-host.invalid"}}
    )
    began = time.monotonic()
    book = Marketplace(config, ["vast"]).offers([QUERY])
    assert time.monotonic() - began < 5.0
    assert "Failed to resolve" in book.failures["vast"]
    registry.forget("vast")


def test_the_key_is_in_the_header_and_nowhere_else(vast: Stage) -> None:
    vast.host()
    vast.offers()
    for _, path, headers, body in vast.server.asked:
        assert headers["Authorization"] == f"Bearer {vast.account.key}"
        assert vast.account.key not in path + json.dumps(body)


def test_a_wrong_key_is_told_from_an_unknown_path(vast: Stage) -> None:
    vast.host()
    with pytest.raises(AuthFailed) as caught:  # the search answers 404
        vast.provider(key="vast-WRONG").offers(OfferQuery(gpu="24GB+", gpu_count=1))
    assert "manage-keys" in caught.value.fix


@pytest.mark.parametrize("how", ["500", "null", "text", "cut", "html", "hang up"])
def test_a_search_without_an_answer_is_no_empty_market(vast: Stage, how: str) -> None:
    vast.host()
    vast.server.lies.broken["POST /api/v0/bundles/"] = [how, how]
    with pytest.raises(ProviderUnavailable):
        vast.provider().offers(QUERY)


def test_one_search_of_two_is_half_an_answer(vast: Stage) -> None:
    vast.host()
    vast.server.lies.broken["POST /api/v0/bundles/"] = ["502"]
    with pytest.raises(PartialOffers) as caught:
        vast.provider().offers(QUERY)
    assert {offer.market for offer in caught.value.offers} == {Market.ON_DEMAND}
    assert list(caught.value.failures) == ["vast/bid"]


def test_rows_that_lack_something_are_left_out(vast: Stage) -> None:
    for name in ("id", "machine_id", "host_id", "num_gpus", "gpu_name"):
        vast.host(changes={name: None})
    vast.host(changes={"gpu_ram": None, "cpu_ram": None, "reliability": None, "duration": None}, geolocation="Oslo, NO")
    assert {offer.region for offer in vast.offers()} == {"NO"}


def test_numbers_as_text_name_a_machine_and_rule_one_out(vast: Stage) -> None:
    vast.server.lies.blind = True
    numbers = {"id": "31550009", "machine_id": "40109", "host_id": "9009", "num_gpus": "1", "gpu_ram": "24564"}
    vast.host(changes={**numbers, "cuda_max_good": "12.8"}, geolocation="Oslo, NO")
    for limit in ({"cuda_max_good": "11.4"}, {"disk_space": "9.5"}, {"gpu_ram": "12282"}, {"reliability2": "0.5"}):
        vast.host(changes=limit)
    found = vast.offers()
    assert [(offer.extra["ask"], offer.region) for offer in found] == [(31_550_009, "NO")] * 2


def test_daily_quota_of_searches(vast: Stage) -> None:
    vast.host()
    vast.offers()
    vast.server.lies.quota = True
    with pytest.raises(RateLimited) as caught:
        vast.provider().offers(QUERY)
    assert caught.value.retry_after == pytest.approx(86_400 - time.time() % 86_400, abs=5)


# Settings


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("api", "console.vast.ai"),
        ("api", 3),
        ("api", "https://u:p@console.vast.ai"),
        ("verified", "no"),
        ("reliability", 95),
        ("reliability", "high"),
        ("bid_margin", -0.1),
        ("min_cuda", True),
        ("pace", 0),
        ("pace", float("nan")),
        ("realiability", 0.9),
        ("key", "two words"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, key: str, value: Any) -> None:
    from broker_vast import VastProvider

    with pytest.raises(ConfigError) as caught:
        VastProvider({key: value}, tmp_path)
    assert f"[providers.vast] {key}" in caught.value.message


def test_settings_of_every_provider_pass() -> None:
    assert read_settings({"patience": 3.0, "min_interval": 1.0, "key": "k"}).verified


def test_check_and_balance(vast: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    vast.account.credit = 12.5
    found = {finding.what: finding for finding in vast.provider().check()}
    assert all(finding.ok for finding in found.values())
    assert found["account"].found == "you@example.com, number 4711"
    assert not any(vast.account.key in finding.found for finding in found.values())
    assert vast.provider().balance() == 12.5
    wrong = {finding.what: finding for finding in vast.provider(key="vast-WRONG").check()}
    assert [what for what, finding in wrong.items() if not finding.ok] == ["account"]
    assert "manage-keys" in wrong["account"].fix
    monkeypatch.delenv("VAST_API_KEY", raising=False)
    none, search = vast.provider(key=None).check()
    assert not none.ok
    assert search.ok
    vast.server.lies.broken["GET /api/v0/users/current/"] = ["null"]
    with pytest.raises(ProviderError):
        vast.provider().balance()
