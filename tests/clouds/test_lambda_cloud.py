"""Lambda Cloud: live capacity at true prices, limits kept, every error code a decision, and nothing left behind."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clouds.lambda_cloud.cloud import JUDGE, LAUNCH, Lambda, Refused, kind
from clouds.lambda_cloud.hand import opened
from clouds.wire import Answer

from broker.contract import wrap
from broker.errors import (
    Ambiguous,
    AuthFailed,
    ConfigError,
    InvalidRequest,
    NoCapacity,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    RateLimited,
)
from broker.offer import Market, Offer, OfferQuery, Trust
from broker.provider import TAG_JOB, Cause, Instance, Kind, State
from broker.testing import wait_for
from broker.testing.conformance import request_for
from broker_lambda import LambdaProvider, guest, machines
from broker_lambda.machines import card_of

CASES = Path(__file__).parents[3] / "shared" / "cases" / "inputs"
A10 = OfferQuery(gpu="A10", gpu_count=1)


@pytest.fixture
def cloud() -> Iterator[Lambda]:
    made = Lambda()
    made.start()
    yield made
    made.close()
    assert not made.faults_of_ours


@pytest.fixture
def provider(cloud: Lambda, tmp_path: Path) -> LambdaProvider:
    return opened(cloud, tmp_path)


@pytest.fixture
def offer(provider: LambdaProvider) -> Offer:
    return provider.offers(A10)[0]


def listed(provider: LambdaProvider, instance: Instance) -> Instance | None:
    return next((each for each in provider.instances() if each.id == instance.id), None)


def launches(cloud: Lambda) -> list[dict[str, Any]]:
    return [call.body for call in cloud.calls if call.path == LAUNCH]


# Offers


def test_cents_for_the_whole_machine_become_dollars(provider: LambdaProvider) -> None:
    (offer,) = provider.offers(OfferQuery(gpu="H100", gpu_count=8))
    assert (offer.price, offer.disk_price, offer.hourly) == (23.92, 0.0, 23.92)
    assert (offer.gpu, offer.gpu_count, offer.gpu_memory, offer.trust) == ("H100-SXM", 8, 80.0, Trust.CLOUD)
    assert (offer.cpus, offer.memory, offer.disk) == (208.0, 1800.0, 24780.0)


def test_only_regions_that_have_it_now(provider: LambdaProvider) -> None:
    assert {offer.where for offer in provider.offers(A10)} == {"lambda/us-east-1", "lambda/us-west-1"}
    assert not provider.offers(OfferQuery(gpu="A100", gpu_count=8)), "no region has it"


def test_there_is_no_spot(provider: LambdaProvider, cloud: Lambda) -> None:
    assert provider.offers(replace(A10, markets=(Market.SPOT,))) == []
    assert not cloud.calls
    with pytest.raises(InvalidRequest):
        provider.launch(request_for(replace(provider.offers(A10)[0], market=Market.SPOT)))


def test_a_disk_that_no_machine_has_is_not_offered(provider: LambdaProvider) -> None:
    assert provider.offers(replace(A10, disk=1400.0))
    assert not provider.offers(replace(A10, disk=1401.0))


@pytest.mark.parametrize(
    ("description", "card", "memory"),
    [
        ("A10 (24 GB PCIe)", "A10", 24),
        ("A100 (40 GB SXM4)", "A100-SXM", 40),
        ("A100 (80 GB SXM4)", "A100-80GB-SXM", 80),
        ("A100 (40 GB PCIe)", "A100-PCIe", 40),
        ("H100 (80 GB SXM5)", "H100-SXM", 80),
        ("H100 (80 GB PCIe)", "H100-PCIe", 80),
        ("GH200 (96 GB)", "GH200", 96),
        ("B200 (180 GB SXM6)", "B200", 180),
        ("RTX 6000 (24 GB)", "RTX6000", 24),
        ("A6000 (48 GB)", "RTXA6000", 48),
        ("Tesla V100 (16 GB)", "V100", 16),
        ("N/A", None, 0),
        ("Example GPU (40 GB SXM4)", None, 0),
    ],
)
def test_cards_are_read_from_their_descriptions(description: str, card: str | None, memory: float) -> None:
    found = card_of(description)
    assert found[0] == card
    assert card is None or found[1] == memory


def test_arm_hosts_are_told(provider: LambdaProvider) -> None:
    (offer,) = provider.offers(OfferQuery(gpu="GH200", gpu_count=1))
    assert offer.extra["architecture"] == "aarch64"


def test_a_price_of_zero_is_no_offer(cloud: Lambda, provider: LambdaProvider) -> None:
    cloud.kinds = [(kind("gpu_1x_a10", "A10 (24 GB PCIe)", 0, 1), ["us-east-1"])]
    assert provider.offers(A10) == []


@pytest.mark.parametrize(
    "odd",
    [
        {"price_cents_per_hour": None},
        {"price_cents_per_hour": "75"},
        {"specs": {"vcpus": None, "memory_gib": 200, "storage_gib": 1400, "gpus": 1}},
        {"specs": {"vcpus": 30, "memory_gib": 200, "storage_gib": 1400, "gpus": None}},
        {"gpu_description": None},
        {"price_cents_per_hour": True},
        {"price_cents_per_hour": float("inf")},
        {"specs": None},
    ],
)
def test_a_type_that_lacks_something_takes_no_other_with_it(odd: dict[str, Any]) -> None:
    """Against Lambda's own file, so that the stand-in would not say it."""
    whole, there = kind("gpu_1x_a10", "A10 (24 GB PCIe)", 75, 1), [{"name": "us-east-1", "description": "Virginia"}]
    types: dict[str, Any] = {
        name: {"instance_type": one, "regions_with_capacity_available": there}
        for name, one in (("odd", {**whole, **odd}), ("whole", whole))
    }
    types |= {"none": None, "empty": {}, "nameless": {**types["whole"], "regions_with_capacity_available": [None, {}]}}
    assert [offer.instance_type for offer in machines.offers(types, A10, 0.0)] == ["whole"]


def test_machines_without_a_card_only_for_tasks_without_one(provider: LambdaProvider) -> None:
    assert [offer.instance_type for offer in provider.offers(OfferQuery(cpus=2))] == ["cpu_4x_general"]


def test_without_a_key_it_says_so_and_calls_nobody(cloud: Lambda, tmp_path: Path) -> None:
    provider = LambdaProvider({"api": cloud.api}, tmp_path)
    for ask in (lambda: provider.offers(A10), provider.instances):
        with pytest.raises(AuthFailed) as caught:
            ask()
        assert caught.value.code == "no key"
    assert provider.offers(OfferQuery(cpus=2)) == []
    assert not cloud.calls


# Launching


def test_what_is_sent_is_as_lambdas_own_file_says(cloud: Lambda, provider: LambdaProvider, offer: Offer) -> None:
    if not JUDGE.present:
        pytest.skip("Lambda's OpenAPI file is not here")
    assert JUDGE.wrong("RequestedTagEntry", {"key": "Upper", "value": "x"}), "the file judges"
    provider.launch(request_for(offer))
    (body,) = launches(cloud)
    assert body["ssh_key_names"] == ["spotbroker"]
    assert (body["region_name"], body["instance_type_name"]) == ("us-east-1", "gpu_1x_a10")


def test_tags_are_there_from_the_launch_and_labels_that_fit(
    cloud: Lambda, provider: LambdaProvider, offer: Offer
) -> None:
    request = request_for(offer)
    more = {"team": "vision", "Owner.Name": "x", "long": "v" * 129, "k" * 56: "x", "a": "too short a key"}
    instance = provider.launch(replace(request, tags={**more, **request.tags}))
    found = listed(provider, instance)
    assert found is not None
    assert dict(found.tags) == {"team": "vision", **request.tags} == dict(instance.tags)


def test_a_name_is_cut_and_the_generation_kept(cloud: Lambda, provider: LambdaProvider, offer: Offer) -> None:
    provider.launch(request_for(offer, job="j" * 100, generation=12))
    assert launches(cloud)[0]["name"] == "sb-" + "j" * 58 + "-12"


@pytest.mark.parametrize(
    ("image", "sent"),
    [
        (None, None),
        ("lambda-stack-24-04", {"family": "lambda-stack-24-04"}),
        ("43336648-096d-4cba-9aa2-f9bb7727639d", {"id": "43336648-096d-4cba-9aa2-f9bb7727639d"}),
    ],
)
def test_an_image_by_id_or_by_family(
    cloud: Lambda, provider: LambdaProvider, offer: Offer, image: str | None, sent: dict[str, str] | None
) -> None:
    provider.launch(replace(request_for(offer), image=image))
    assert launches(cloud)[0].get("image") == sent


def test_one_ssh_key_is_made_and_nobody_has_its_private_half(
    cloud: Lambda, provider: LambdaProvider, offer: Offer, tmp_path: Path
) -> None:
    provider.launch(request_for(offer))
    provider.launch(request_for(offer))
    (key,) = cloud.ssh_keys
    assert (key["name"], key["public_key"].split()[0]) == ("spotbroker", "ssh-ed25519")
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"PRIVATE" in path.read_bytes()]


def test_an_ssh_key_of_ones_own(cloud: Lambda, tmp_path: Path) -> None:
    cloud.ssh_keys.append({"id": "0" * 32, "name": "mine", "public_key": "ssh-ed25519 AAAA x"})
    provider = opened(cloud, tmp_path, ssh_key="mine")
    provider.launch(request_for(provider.offers(A10)[0]))
    assert launches(cloud)[0]["ssh_key_names"] == ["mine"]
    missing = opened(cloud, tmp_path, ssh_key="other")
    with pytest.raises(InvalidRequest):
        missing.launch(request_for(missing.offers(A10)[0]))
    (found,) = [finding for finding in missing.check() if not finding.ok]
    assert "no SSH key named 'other'" in found.found
    assert "mine" in found.fix


def test_a_person_gets_in_with_the_key_that_the_machine_was_launched_with(cloud: Lambda, tmp_path: Path) -> None:
    """As ubuntu, who may become root; and told so where nobody has the key."""
    cloud.ssh_keys.append({"id": "0" * 32, "name": "mine", "public_key": "ssh-ed25519 AAAA x"})
    provider = opened(cloud, tmp_path, ssh_key="mine")
    instance = provider.launch(request_for(provider.offers(A10)[0]))
    assert wait_for(lambda: listed(provider, instance).state is State.RUNNING, 20)
    shell = provider.shell(instance)
    address = provider.api.get(f"/instances/{instance.id}")["ip"]
    assert shell.argv == ("ssh", "-o", f"HostKeyAlias=lambda-{instance.id}", f"ubuntu@{address}")
    assert (shell.commands, shell.become) == (True, ("sudo",))
    assert "SSH key mine" in shell.needs
    nobodys = opened(cloud, tmp_path)
    locked = nobodys.launch(request_for(nobodys.offers(A10)[0]))
    with pytest.raises(ConfigError, match="nobody has the private half") as told:
        nobodys.shell(locked)
    assert "ssh_key in [providers.lambda]" in told.value.fix


def test_user_data_above_a_megabyte_is_refused_before_it_is_sent(
    cloud: Lambda, provider: LambdaProvider, offer: Offer
) -> None:
    with pytest.raises(InvalidRequest, match="user data"):
        provider.launch(request_for(offer, user_data="#" * 1_000_001))
    assert not launches(cloud)
    assert provider.traits.user_data_limit == 1_000_000
    assert provider.traits.kind is Kind.VM


# Refusals

CODES = [
    ("instance-operations/launch/insufficient-capacity", NoCapacity),
    ("instance-operations/launch/file-system-in-wrong-region", InvalidRequest),
    ("global/quota-exceeded", QuotaExceeded),
    ("global/invalid-parameters", InvalidRequest),
    ("global/object-does-not-exist", InvalidRequest),
    ("global/invalid-api-key", AuthFailed),
    ("global/account-inactive", AuthFailed),
    ("global/invalid-address", AuthFailed),
    ("global/internal-error", Ambiguous),
    ("provider/internal-unavailable", Ambiguous),
    ("global/unknown", ProviderError),
    ("SOME_NEW_CODE_2027", ProviderError),
    ("instance-operations/launch/region-out-of-capacity", NoCapacity),
    ("instance-operations/launch/quota-exceeded", QuotaExceeded),
]


@pytest.mark.parametrize(("code", "kind_of"), CODES)
def test_every_code_is_a_decision(
    cloud: Lambda, provider: LambdaProvider, offer: Offer, code: str, kind_of: type[ProviderError]
) -> None:
    """Case 18. Texts may change; only codes count."""
    cloud.faults.add("refuse", Refused(code, "words that say nothing"))
    with pytest.raises(ProviderError) as caught:
        provider.launch(request_for(offer))
    assert type(caught.value) is kind_of
    assert caught.value.code == (code if code != "global/internal-error" else "500")
    assert not cloud.rented


def test_case_18_with_its_own_codes(cloud: Lambda, provider: LambdaProvider, offer: Offer) -> None:
    if not (CASES / "c18_errors.json").is_file():
        pytest.skip("the shared cases are not here")
    classes = {"capacity": NoCapacity, "quota": QuotaExceeded, "account": AuthFailed}
    cases = json.loads((CASES / "c18_errors.json").read_text(encoding="utf-8"))
    mine = [case for case in cases if case["p"] == "lambda"]
    assert len(mine) == 3
    for case in mine:
        cloud.faults.add("refuse", case["code"])
        with pytest.raises(classes[case["class"]]):
            provider.launch(request_for(offer))


@pytest.mark.parametrize("status", [400, 200])
def test_an_upstream_fault_during_a_launch_may_have_made_a_machine(
    cloud: Lambda, provider: LambdaProvider, offer: Offer, status: int
) -> None:
    """`provider/` is a fault of somebody behind Lambda, whatever its status."""
    if status == 200:
        cloud.faults.add("launch", "drop")
    else:
        cloud.faults.add("refuse", Refused("provider/anything-new", status=400))
    with pytest.raises(Ambiguous):
        provider.launch(request_for(offer))


def test_an_upstream_fault_elsewhere_is_no_answer(cloud: Lambda, provider: LambdaProvider) -> None:
    cloud.faults.add("instances", 503)
    with pytest.raises(ProviderUnavailable):
        provider.instances()


def test_a_plain_text_429_without_a_time_is_waited_out(cloud: Lambda, provider: LambdaProvider, offer: Offer) -> None:
    instance = provider.launch(request_for(offer))
    cloud.faults.add("throttle", "Too Many Requests", times=2)
    pauses: list[float] = []
    assert [each.id for each in wrap(provider, sleep=pauses.append).instances()] == [instance.id]
    assert pauses == [5.0, 5.0]
    cloud.faults.add("throttle", "Too Many Requests")
    with pytest.raises(RateLimited):
        provider.launch(request_for(offer))
    assert len(cloud.rented) == 1


# Limits


def test_limits_are_kept_by_all_that_use_the_key(cloud: Lambda, tmp_path: Path) -> None:
    """One request a second and one launch in twelve, over two processes' worth of providers; here 20 times faster.

    Counted from before the first call on, so that no delay on the way makes it look quicker than it was sent.
    """
    pace = 0.05
    began = time.time()
    providers = [opened(cloud, tmp_path, pace=pace) for _ in range(2)]
    offer = providers[0].offers(A10)[0]
    failures: list[Exception] = []

    def use(provider: LambdaProvider) -> None:
        try:
            provider.instances()
            provider.launch(request_for(offer))
            provider.instances()
        except ProviderError as error:
            failures.append(error)

    threads = [threading.Thread(target=use, args=(provider,)) for provider in providers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failures
    assert len(cloud.rented) == 2
    launched = [call.at for call in cloud.calls if call.path == LAUNCH]
    assert max(launched) - began >= 12 * pace
    assert max(call.at for call in cloud.calls) - began >= (len(cloud.calls) - 1) * pace


def test_the_list_of_another_account_ends_no_machine(
    cloud: Lambda, provider: LambdaProvider, offer: Offer, tmp_path: Path
) -> None:
    """Lambda's API names no account, but its SSH keys have ids of their own. Nothing would end that machine ever."""
    instance = provider.launch(request_for(offer))
    other = Lambda()
    other.start()
    try:
        stranger = opened(other, tmp_path, key="secret_OTHER")
        other.keys = {"secret_OTHER"}
        (still,) = stranger.instances()
        assert (still.id, still.state, still.tags) == (instance.id, State.RUNNING, instance.tags)
        with pytest.raises(AuthFailed, match="another account"):
            stranger.terminate(still)
        (told,) = [finding for finding in stranger.check() if instance.id in finding.what]
        assert (told.ok, "may go on being billed" in told.found) == (False, True)
    finally:
        other.close()
    assert len(cloud.live()) == 1
    cloud.keys = {"secret_RENEWED"}
    renewed = opened(cloud, tmp_path, key="secret_RENEWED")
    renewed.terminate(instance)
    assert not cloud.live()
    assert wait_for(lambda: not renewed.instances(), 5.0)


# Ends


def test_no_address_at_first_is_no_trouble(cloud: Lambda, provider: LambdaProvider, offer: Offer) -> None:
    cloud.boot = 30.0
    found = listed(provider, provider.launch(request_for(offer)))
    assert found is not None
    assert found.state is State.PENDING


@pytest.mark.parametrize("again_is_error", [True, False])
def test_terminating_what_is_ending_is_success(
    cloud: Lambda, provider: LambdaProvider, offer: Offer, again_is_error: bool
) -> None:
    """skypilot #3410: the second order is a 400."""
    cloud.again_is_error = again_is_error
    cloud.ending = 0.2
    instance = provider.launch(request_for(offer))
    provider.terminate(instance)
    found = listed(provider, instance)
    assert found is not None
    assert found.state is State.STOPPING
    provider.terminate(instance)
    assert wait_for(lambda: listed(provider, instance) is None, 5.0)
    provider.terminate(instance)


def test_a_refused_termination_of_a_living_machine_is_an_error(
    cloud: Lambda, provider: LambdaProvider, offer: Offer
) -> None:
    instance = provider.launch(request_for(offer))
    cloud.faults.add("/api/v1/instance-operations/terminate", 400)
    with pytest.raises(InvalidRequest):
        provider.terminate(instance)
    assert listed(provider, instance) is not None


@pytest.mark.parametrize(
    ("status", "state", "cause"),
    [
        ("unhealthy", State.RUNNING, None),
        ("preempted", State.STOPPED, Cause.PREEMPTED),
        ("terminating", State.STOPPING, None),
        ("rebuilding-2027", State.RUNNING, None),
    ],
)
def test_every_status_has_a_meaning(
    cloud: Lambda, provider: LambdaProvider, offer: Offer, status: str, state: State, cause: Cause | None
) -> None:
    instance = provider.launch(request_for(offer))
    cloud.rented[instance.id].word = status
    found = listed(provider, instance)
    cloud.faults_of_ours.clear() if status.endswith("2027") else None
    assert found is not None
    assert (found.state, found.cause) == (state, cause)


@pytest.mark.parametrize(
    "odd",
    [
        {"instance_type": None},
        {"instance_type": {"name": "gpu_1x_a10", "price_cents_per_hour": "a lot"}},
        {"instance_type": {"name": "gpu_1x_a10", "price_cents_per_hour": -75}},
        {"region": None},
        {"status": None},
        {"tags": [{"key": "k"}, None]},
    ],
)
def test_what_a_row_lacks_hides_no_machine(
    provider: LambdaProvider, cloud: Lambda, offer: Offer, odd: dict[str, Any]
) -> None:
    """Neither ours, which costs money whatever its row says, nor ours beside somebody's odd one."""
    instance = provider.launch(request_for(offer))
    row = cloud.rented[instance.id].shown()
    told = {**odd, "tags": [*odd["tags"], *row["tags"]]} if "tags" in odd else odd
    stranger = {"id": "f" * 32, **{key: value for key, value in odd.items() if key != "instance_type"}}
    cloud.faults.add("instances", Answer(200, {"data": [stranger, {**row, **told}]}))
    (found,) = provider.instances()
    assert (found.id, found.tags) == (instance.id, instance.tags)
    assert found.hourly == (0.0 if "instance_type" in odd else 0.75)


def test_a_tag_of_ours_that_lambda_cannot_hold_is_not_left_out(
    provider: LambdaProvider, cloud: Lambda, offer: Offer
) -> None:
    """Nobody would find that machine again."""
    with pytest.raises(InvalidRequest, match="spotbroker-job of 129"):
        provider.launch(request_for(offer, job="j" * 129))
    assert not launches(cloud)


def test_machines_of_others_are_none_of_ours(cloud: Lambda, provider: LambdaProvider, offer: Offer) -> None:
    instance = provider.launch(request_for(offer))
    cloud.rented[instance.id].body["tags"] = [{"key": "key1", "value": "value1"}]
    assert provider.instances() == []
    del cloud.rented[instance.id].body["tags"]
    assert provider.instances() == []


def test_a_lost_answer_is_found_by_its_tags(cloud: Lambda, provider: LambdaProvider, offer: Offer) -> None:
    """Case 24."""
    cloud.faults.add("lose answer")
    with pytest.raises(Ambiguous):
        provider.launch(request_for(offer, job="job7"))
    (found,) = provider.instances()
    assert found.tags[TAG_JOB] == "job7"


@pytest.mark.parametrize("body", [None, {}, [], "ok", {"data": None}, {"data": {"instance_ids": [None]}}])
def test_an_answer_that_names_no_machine_may_have_made_one(
    cloud: Lambda, provider: LambdaProvider, offer: Offer, body: Any
) -> None:
    cloud.faults.add("launch", Answer(200, body))
    with pytest.raises(Ambiguous):
        wrap(provider).launch(request_for(offer))


@pytest.mark.parametrize("body", [None, {}, [], {"data": None}, {"data": {}}, {"data": [None]}])
def test_a_list_without_a_list_shows_no_machine_gone(
    cloud: Lambda, provider: LambdaProvider, offer: Offer, body: Any
) -> None:
    cloud.faults.add("instances", Answer(200, body), times=2)
    with pytest.raises(ProviderUnavailable):
        provider.instances()
    cloud.faults.add("/api/v1/ssh-keys", Answer(200, body), times=2)
    assert [finding.what for finding in provider.check() if not finding.ok] == ["instances", "ssh key"]
    with pytest.raises(ProviderUnavailable):  # and nothing can have been made
        wrap(provider).launch(request_for(offer))
    assert not launches(cloud)


@pytest.mark.parametrize("body", [None, {}, {"data": None}, {"data": []}])
def test_types_that_do_not_come_are_no_empty_market(cloud: Lambda, provider: LambdaProvider, body: Any) -> None:
    cloud.faults.add("offers", Answer(200, body))
    with pytest.raises(ProviderUnavailable):
        provider.offers(A10)


# The rest


def test_nothing_outside_ends_a_machine_and_it_is_said(provider: LambdaProvider) -> None:
    assert provider.traits.outside_limit == ""
    (said,) = [finding for finding in provider.check() if finding.what == "end of machines"]
    assert "broker up" in said.found
    assert guest.notice() is None


def test_check_names_a_key_that_nobody_knows(cloud: Lambda, tmp_path: Path) -> None:
    findings = LambdaProvider({"api": cloud.api, "key": "secret_WRONG", "pace": 0}, tmp_path).check()
    assert {finding.what for finding in findings if not finding.ok} == {"instances", "ssh key"}
    assert not any("secret_WRONG" in finding.found + finding.fix for finding in findings)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"aip": "x"}, "unknown key 'aip'"),
        ({"api": "cloud.lambda.ai"}, "api is no address"),
        ({"ssh_key": 3}, "ssh_key must be a string"),
        ({"pace": -1}, "pace must be a number"),
        ({"pace": True}, "pace must be a number"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, table: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        LambdaProvider(table, tmp_path)
