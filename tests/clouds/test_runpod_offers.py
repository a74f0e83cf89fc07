"""RunPod's prices become offers: those that exist, at what they really cost, and no others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clouds.openapi import API
from clouds.runpod.cloud import RunPod, card
from clouds.runpod.hand import opened
from clouds.wire import Answer

from broker.contract import wrap
from broker.errors import AuthFailed, ConfigError, ProviderUnavailable, RateLimited
from broker.offer import Market, OfferQuery, Trust
from broker.provider import OfferList, PartialOffers
from broker_runpod import RunPodProvider
from broker_runpod.catalog import centres_of, sold_by_graph, sold_by_rest

SAVED = API / "runpod" / "gpu_types_graphql_answer.json"
CASES = Path(__file__).parents[3] / "shared" / "cases" / "inputs"
ONE = OfferQuery(gpu="RTX4090", gpu_count=1)
ANY = OfferQuery(gpu="1GB+", gpu_count=1, disk=0.0)
AMD = OfferQuery(gpu="amd:1GB+", gpu_count=1, disk=0.0)


@pytest.fixture
def cloud() -> Iterator[RunPod]:
    made = RunPod()
    made.start()
    yield made
    made.close()
    assert not made.faults_of_ours


def keyless(cloud: RunPod, state: Path) -> RunPodProvider:
    return RunPodProvider({"api": cloud.url}, state)


def rows(offers: Any) -> list[tuple[str, str, str, float]]:
    return [(o.gpu, str(o.trust), str(o.market), round(o.price, 6)) for o in offers]


def shared(path: Path) -> Any:
    if not path.is_file():
        pytest.skip("the shared data are not here")
    return json.loads(path.read_text(encoding="utf-8"))


# The real answer


def sold(saved: list[dict[str, Any]]) -> set[tuple[str, str, str, float]]:
    """What the saved answer really offers, read by the flags alone: a card is sold where its cloud says so."""
    found = set()
    for row in saved:
        for cloud in ("secure", "community"):
            for market, field in (("on_demand", f"{cloud}Price"), ("spot", f"{cloud}SpotPrice")):
                if row[f"{cloud}Cloud"] and row["memoryInGb"] and row[field]:
                    found.add((row["id"], cloud, market, row[field]))
    return found


def test_the_real_answer_gives_exactly_the_offers_that_exist_sorted_by_true_price(
    cloud: RunPod, tmp_path: Path
) -> None:
    cloud.cards = shared(SAVED)
    runpod = keyless(cloud, tmp_path)
    offers, others = runpod.offers(ANY), runpod.offers(AMD)
    expected = sold(cloud.cards)
    named = {
        (
            o.instance_type.removeprefix("1x ").rpartition(" ")[0],
            o.instance_type.rpartition(" ")[2].lower(),
            str(o.market),
            o.price,
        )
        for o in (*offers, *others)
    }
    assert named == expected
    assert len(offers) + len(others) == len(expected) == 101
    assert [o.hourly for o in offers] == sorted(o.hourly for o in offers)
    assert rows(offers)[:3] == [
        ("RTXA2000", "community", "spot", 0.06),
        ("RTX3070", "community", "spot", 0.07),
        ("RTX3080", "community", "spot", 0.09),
    ]
    assert not [o for o in offers if o.gpu == "B200" and o.market is Market.SPOT]
    assert {(o.gpu, o.trust) for o in others} == {("MI300X", Trust.DATACENTER)}


def test_placeholders_are_no_prices(cloud: RunPod, tmp_path: Path) -> None:
    """Case 4: 0, and 0.5 for a cloud where the card is not sold."""
    data = shared(CASES / "c04_runpod_gputypes.json")
    cloud.cards = [{**row, "id": row["displayName"]} for row in data["data"]["gpuTypes"]]
    runpod = keyless(cloud, tmp_path)
    assert rows(runpod.offers(ANY)) == [
        ("RTX3070", "community", "spot", 0.07),
        ("RTX3070", "community", "on_demand", 0.13),
        ("B200", "datacenter", "on_demand", 6.39),
    ]
    assert rows(runpod.offers(AMD)) == [
        ("MI300X", "datacenter", "spot", 1.49),
        ("MI300X", "datacenter", "on_demand", 2.49),
    ]


@pytest.mark.parametrize("price", [0, None, -1, 0.0, True, "0.4", float("inf"), float("nan")])
def test_what_is_no_price_above_zero_is_no_offer(cloud: RunPod, tmp_path: Path, price: Any) -> None:
    cloud.cards = [card("NVIDIA GeForce RTX 4090", 24, secure=(price, price))]
    assert keyless(cloud, tmp_path).offers(ONE) == []


# Shapes and stock


def test_prices_are_for_the_whole_pod(cloud: RunPod, tmp_path: Path) -> None:
    """Case 1: A40 at 0.28 per card; four are 1.12."""
    offers = keyless(cloud, tmp_path).offers(OfferQuery(gpu="A40", gpu_count=4, disk=100.0))
    spot, on_demand = sorted(offers, key=lambda offer: offer.price)
    assert (spot.price, on_demand.price) == (pytest.approx(1.12), pytest.approx(1.76))
    assert (spot.gpu_count, spot.cpus, spot.memory) == (4, 32.0, 200.0)
    assert spot.disk_price == pytest.approx(100 * 0.10 / 730)
    assert (spot.extra["on_demand"], spot.extra["bid_floor"]) == (pytest.approx(1.76), pytest.approx(1.12))
    assert (spot.notice, on_demand.notice) == (5.0, None)
    assert spot.extra["pays_bid"], "the policy must not bid more than it reckoned with"


def test_more_cards_than_any_machine_has_are_not_offered(cloud: RunPod, tmp_path: Path) -> None:
    provider = keyless(cloud, tmp_path)
    assert provider.offers(replace(ONE, gpu_count=8))
    assert not provider.offers(replace(ONE, gpu_count=9))
    assert provider.offers(replace(ONE, gpu="A40", gpu_count=10))


def test_a_row_of_the_catalog_that_lacks_something_takes_no_other_with_it() -> None:
    whole = {"id": "NVIDIA A40", "memory": 48, "secure": True, "availability": "HIGH"}
    priced = {**whole, "price": {"secure": 0.44}, "maxCount": {"secure": 8}, "dataCenters": [{"id": "EU-RO-1"}]}
    odd = {**whole, "id": "NVIDIA L40", "price": None, "maxCount": None, "dataCenters": None}
    assert [(card.gpu_id, card.on_demand) for card in sold_by_rest([odd, priced])] == [
        ("NVIDIA L40", None),
        ("NVIDIA A40", 0.44),
    ]
    assert centres_of([odd, priced]) == {"NVIDIA L40": (), "NVIDIA A40": ("EU-RO-1",)}
    worse = [
        None,
        7,
        {},
        {**whole, "memory": "48 GB"},
        {**priced, "maxCount": "8", "dataCenters": [None, {"name": "x"}]},
    ]
    assert [card.gpu_id for card in sold_by_rest([*worse, priced])] == ["NVIDIA A40"]
    assert centres_of([*worse, priced]) == {"NVIDIA A40": ("EU-RO-1",)}
    told = {"id": "NVIDIA A40", "memoryInGb": 48, "secureCloud": True, "securePrice": 0.44, "maxGpuCount": 8}
    oddly = [None, {**told, "memoryInGb": "48 GB"}, {**told, "maxGpuCount": "lots"}, {**told, "secureStock": ["Low"]}]
    assert [card.on_demand for card in sold_by_graph([*oddly, told], 1)] == [0.44]


def test_a_catalog_without_cards_takes_the_data_centres_only(cloud: RunPod, tmp_path: Path) -> None:
    provider = opened(cloud, tmp_path)
    for body in (None, {}, {"gpus": None}, []):
        cloud.faults.add("/v2/catalog/gpus", Answer(200, body))
        with pytest.raises(PartialOffers) as caught:
            provider.offers(ONE)
        assert list(caught.value.failures) == ["data centres"]
        assert len(caught.value.offers) == 4


@pytest.mark.parametrize("stock", [None, "None"])
def test_what_is_out_of_stock_is_not_offered(cloud: RunPod, tmp_path: Path, stock: str | None) -> None:
    cloud.stock["NVIDIA GeForce RTX 4090", "COMMUNITY"] = stock
    assert {offer.trust for offer in keyless(cloud, tmp_path).offers(ONE)} == {Trust.DATACENTER}


def test_a_least_bid_above_the_list_price_is_the_price(cloud: RunPod, tmp_path: Path) -> None:
    cloud.cards = [card("NVIDIA A40", 48, secure=(0.44, 0.28))]
    cloud.cards[0]["lowestPrice"] = lambda args: {
        "minimumBidPrice": 0.31, "uninterruptablePrice": 0.44, "minVcpu": 8, "minMemory": 50,
        "stockStatus": "Low", "availableGpuCounts": [1, 2],
    }  # fmt: skip
    provider = keyless(cloud, tmp_path)
    two = provider.offers(OfferQuery(gpu="A40", gpu_count=2))
    assert [round(offer.price, 6) for offer in two] == [0.62, 0.88]
    assert not provider.offers(OfferQuery(gpu="A40", gpu_count=4)), "4 are not among the counts that are to be had"


def test_one_cards_failed_lookup_takes_no_other_card_away(cloud: RunPod, tmp_path: Path) -> None:
    cloud.faults.add("deep error", ["gpuTypes", 1, "secureStock"])
    provider = keyless(cloud, tmp_path)
    assert len(provider.offers(ONE)) == 4
    cloud.faults.add("deep error", ["gpuTypes", 1, "secureStock"])
    assert provider.offers(OfferQuery(gpu="A40", gpu_count=1)) == [], "what is not known is not offered"


def test_rows_that_did_not_come_are_no_answer(cloud: RunPod, tmp_path: Path) -> None:
    provider = opened(cloud, tmp_path)
    for path in (["gpuTypes"], ["gpuTypes", 0]):
        cloud.faults.add("deep error", path)
        with pytest.raises(ProviderUnavailable):
            provider.offers(ONE)


def test_two_ids_of_one_card_are_two_types(cloud: RunPod, tmp_path: Path) -> None:
    cloud.cards = [
        card("NVIDIA RTX A4500", 20, secure=(0.25, 0.18)),
        card("NVIDIA  RTX A4500", 20, secure=(0.19, None)),
    ]
    offers = keyless(cloud, tmp_path).offers(OfferQuery(gpu="RTXA4500", gpu_count=1))
    assert len({offer.key for offer in offers}) == len(offers) == 3


def test_nothing_is_asked_for_a_task_without_a_card(cloud: RunPod, tmp_path: Path) -> None:
    assert keyless(cloud, tmp_path).offers(OfferQuery(cpus=4)) == []
    assert not cloud.calls


def test_pods_boot_no_machine_images(cloud: RunPod, tmp_path: Path) -> None:
    assert keyless(cloud, tmp_path).offers(replace(ONE, image="ami-0123456789abcdef0")) == []


# With and without a key


def test_without_a_key_the_same_prices_are_shown_and_none_can_be_rented(cloud: RunPod, tmp_path: Path) -> None:
    offers = keyless(cloud, tmp_path).offers(ONE)
    assert len(offers) == 4
    assert all("broker check runpod" in offer.blocked for offer in offers)
    assert {offer.region for offer in offers} == {"secure", "community"}
    assert [call.key for call in cloud.calls] == [""]


def test_with_a_key_the_data_centres_that_have_the_card_are_offers_of_their_own(cloud: RunPod, tmp_path: Path) -> None:
    offers = opened(cloud, tmp_path).offers(replace(ONE, markets=(Market.ON_DEMAND,)))
    assert {offer.where for offer in offers} == {"runpod/US/US-KS-2", "runpod/RO/EU-RO-1", "runpod/community"}
    assert not any(offer.blocked for offer in offers)


def test_the_key_travels_in_its_header_only(cloud: RunPod, tmp_path: Path) -> None:
    opened(cloud, tmp_path).offers(ONE)
    assert {call.key for call in cloud.calls} == {"rpa_TESTKEY"}
    assert not [call for call in cloud.calls if "api_key" in call.query or "rpa_" in call.path]


def test_a_key_that_nobody_knows_is_said(cloud: RunPod, tmp_path: Path) -> None:
    with pytest.raises(AuthFailed) as caught:
        RunPodProvider({"api": cloud.url, "key": "rpa_WRONG"}, tmp_path).offers(ONE)
    assert "broker check runpod" in caught.value.fix
    assert "rpa_WRONG" not in str(caught.value)


def test_an_endpoint_out_of_reach_is_no_more_than_a_missing_key(tmp_path: Path) -> None:
    """Nobody who has no key waits for RunPod: no second try, and no failure but that one."""
    pauses: list[float] = []
    provider = wrap(RunPodProvider({"api": "http://127.0.0.1:9"}, tmp_path), sleep=pauses.append)
    with pytest.raises(AuthFailed) as caught:
        provider.offers(ONE)
    assert caught.value.code == "no prices"
    assert not pauses


def test_data_centres_that_do_not_come_are_named_and_the_rest_is_offered(cloud: RunPod, tmp_path: Path) -> None:
    provider = opened(cloud, tmp_path)
    cloud.throttle_rest = True
    with pytest.raises(PartialOffers) as caught:
        provider.offers(ONE)
    assert isinstance(caught.value.failures["data centres"], RateLimited)
    assert {offer.region for offer in caught.value.offers} == {"secure", "community"}


# When GraphQL is there no more, and when spot is not


def test_prices_come_from_rest_when_graphql_has_retired(cloud: RunPod, tmp_path: Path) -> None:
    cloud.graphql_retired = True
    offers = opened(cloud, tmp_path).offers(ONE)
    assert {offer.market for offer in offers} == {Market.ON_DEMAND}
    assert {round(offer.price, 6) for offer in offers} == {0.34, 0.69}


# The network volume


def test_a_network_volume_binds_its_data_centre_and_costs(cloud: RunPod, tmp_path: Path) -> None:
    provider = opened(cloud, tmp_path, network_volume="vol0example")
    offers = provider.offers(ONE)
    assert {(offer.where, offer.trust) for offer in offers} == {("runpod/RO/EU-RO-1", Trust.DATACENTER)}
    assert offers[0].disk_price == pytest.approx(20 * 0.10 / 730 + 100 * 0.07 / 730)


def test_a_large_network_volume_costs_less_by_the_gigabyte(cloud: RunPod, tmp_path: Path) -> None:
    cloud.volumes["vol0example"] = {"size": 2000, "dataCenter": "EU-RO-1"}
    (offer, *_) = opened(cloud, tmp_path, network_volume="vol0example").offers(replace(ONE, disk=0.0))
    assert offer.disk_price == pytest.approx(2000 * 0.05 / 730)


def test_a_volume_that_nobody_has_is_an_error_of_configuration(cloud: RunPod, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="network_volume = 'vol-none'") as caught:
        opened(cloud, tmp_path, network_volume="vol-none").offers(ONE)
    assert "remove the line" in caught.value.fix


# Settings


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"aip": "x"}, "unknown key 'aip'"),
        ({"api": "api.runpod.io"}, "api is no address"),
        ({"api": "https://api.runpod.io/?api_key=rpa_X"}, "api is no address"),
        ({"clouds": "secure"}, "clouds"),
        ({"clouds": ["private"]}, "clouds"),
        ({"network_volume": 7}, "network_volume must be a string"),
        ({"min_cuda": "new"}, "min_cuda"),
        ({"min_cuda": 12}, "min_cuda"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, table: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        RunPodProvider(table, tmp_path)


def test_only_the_clouds_that_are_set_are_asked(cloud: RunPod, tmp_path: Path) -> None:
    found = opened(cloud, tmp_path, clouds=["community"]).offers(ONE)
    assert {offer.trust for offer in found} == {Trust.COMMUNITY}
    assert isinstance(found, OfferList)
    assert found.left_out == {"[providers.runpod] clouds is community only": 2}
    assert cloud.counted() == {"POST /graphql": 1}
