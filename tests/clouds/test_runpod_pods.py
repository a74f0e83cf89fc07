"""RunPod's pods: what is asked for, what a refusal means, who ended a pod, and what lies cannot break."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clouds.runpod.cloud import JUDGE, RunPod, card, command_of
from clouds.runpod.graph import Refused
from clouds.runpod.hand import opened
from clouds.runpod.rest import Problem
from clouds.wire import Answer

from broker.contract import wrap
from broker.errors import (
    Ambiguous,
    AuthFailed,
    InvalidRequest,
    NoCapacity,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    RateLimited,
)
from broker.offer import Market, Offer, OfferQuery
from broker.provider import Cause, Instance, LaunchRequest, State
from broker.testing import wait_for
from broker.testing.conformance import request_for
from broker_runpod import RunPodProvider, guest, pods
from broker_runpod.provider import bid_per_gpu

CASES = Path(__file__).parents[3] / "shared" / "cases" / "inputs"
FOUR_A40 = OfferQuery(gpu="A40", gpu_count=4)


@pytest.fixture
def cloud() -> Iterator[RunPod]:
    made = RunPod()
    made.start()
    yield made
    made.close()
    assert not made.faults_of_ours


@pytest.fixture
def provider(cloud: RunPod, tmp_path: Path) -> RunPodProvider:
    return opened(cloud, tmp_path)


def offer_of(provider: RunPodProvider, market: Market, query: OfferQuery = FOUR_A40) -> Offer:
    return min(provider.offers(replace(query, markets=(market,))), key=lambda offer: offer.key)


def listed(provider: RunPodProvider, instance: Instance) -> Instance | None:
    return next((each for each in provider.instances() if each.id == instance.id), None)


def sent(cloud: RunPod, path: str = "/graphql", word: str = "podRentInterruptable") -> dict[str, Any]:
    """The input of the last creating call."""
    call = [call for call in cloud.calls if call.path == path and word in json.dumps(call.body)][-1]
    return call.body["variables"]["input"] if path == "/graphql" else call.body


# Case 1: bids are per card


def test_a_bid_is_sent_per_card_and_booked_for_the_whole_pod(cloud: RunPod, provider: RunPodProvider) -> None:
    instance = provider.launch(request_for(offer_of(provider, Market.SPOT)))
    assert (sent(cloud)["bidPerGpu"], sent(cloud)["gpuCount"]) == (0.28, 4)
    disk = 20 * 0.10 / 730
    assert instance.hourly == pytest.approx(1.12 + disk)
    assert cloud.pods[instance.id].hourly == pytest.approx(1.12)


def test_case_1_with_its_own_numbers(provider: RunPodProvider) -> None:
    if not (CASES / "c01_offer.json").is_file():
        pytest.skip("the shared cases are not here")
    case = json.loads((CASES / "c01_offer.json").read_text(encoding="utf-8"))
    offer = offer_of(provider, Market.SPOT)
    assert offer.price == pytest.approx(case["gpu_count"] * case["spot_price_per_gpu"]) == pytest.approx(1.12)
    assert bid_per_gpu(request_for(offer), case["gpu_count"]) == case["spot_price_per_gpu"]
    most = case["gpu_count"] * case["on_demand_price_per_gpu"]
    assert offer.extra["on_demand"] == pytest.approx(most) == pytest.approx(1.76)


@pytest.mark.parametrize(("bid", "each"), [(None, 0.28), (1.12, 0.28), (1.5, 0.375), (1.76, 0.44), (9.0, 0.44)])
def test_no_bid_is_above_the_same_pod_on_demand(provider: RunPodProvider, bid: float | None, each: float) -> None:
    request = replace(request_for(offer_of(provider, Market.SPOT)), bid=bid)
    assert bid_per_gpu(request, 4) == pytest.approx(each)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 8])
def test_a_rounded_bid_never_falls_below_what_was_meant(provider: RunPodProvider, count: int) -> None:
    request = replace(request_for(offer_of(provider, Market.SPOT)), bid=1.0)
    assert count * bid_per_gpu(request, count) >= 1.0 - 1e-9


# What is asked for


def test_a_pod_is_made_of_the_request(cloud: RunPod, provider: RunPodProvider) -> None:
    for market, path, word in ((Market.SPOT, "/graphql", "podRent"), (Market.ON_DEMAND, "/v2/pods", "gpu")):
        offer = offer_of(provider, market)
        request = replace(request_for(offer, job="digits-0a1b2c"), disk=33.2, container="ghcr.io/acme/train:7")
        pod = cloud.pods[provider.launch(request).id]
        assert (pod.image, pod.disk, pod.gpu_count, pod.gpu_id) == ("ghcr.io/acme/train:7", 34, 4, "NVIDIA A40")
        assert (pod.cloud, pod.centre) == ("SECURE", offer.zone)
        assert pod.name == "sb-conformance-digits-0a1b2c-1"
        assert sent(cloud, path, word)["name"] == pod.name


def test_a_spot_pod_has_a_time_at_which_runpod_ends_it(cloud: RunPod, provider: RunPodProvider) -> None:
    request = request_for(offer_of(provider, Market.SPOT))
    for latest in (None, request.end_by + 7200.0):  # a live broker may let it run until then, and RunPod is asked once
        pod = cloud.pods[provider.launch(replace(request, latest=latest)).id]
        ends = time.mktime(time.strptime(pod.terminate_after, "%Y-%m-%dT%H:%M:%S.000Z")) - time.timezone
        assert 0 < ends - (latest or request.end_by) <= 901


def test_where_that_time_is_refused_the_pod_is_made_without_it(cloud: RunPod, provider: RunPodProvider) -> None:
    for unknown in ({"terminateAfter"}, {"minCudaVersion"}, {"terminateAfter", "minCudaVersion"}):
        cloud.unknown_inputs = unknown
        provider.launch(request_for(offer_of(provider, Market.SPOT)))
        assert {"terminateAfter", "minCudaVersion"} - sent(cloud).keys() == unknown
    assert len(cloud.pods) == 3
    cloud.unknown_inputs = {"bidPerGpu"}
    with pytest.raises(InvalidRequest, match="bidPerGpu"):
        provider.launch(request_for(offer_of(provider, Market.SPOT)))


def test_hosts_whose_driver_is_too_old_are_not_rented(cloud: RunPod, tmp_path: Path) -> None:
    cloud.cuda = "12.4"
    for least, rents in (("12.6", False), ("12.4", True), ("", True), (None, True), ("12.11", False)):
        provider = opened(cloud, tmp_path, **({} if least is None else {"min_cuda": least}))
        for market in (Market.SPOT, Market.ON_DEMAND):
            request = request_for(offer_of(provider, market))
            if rents:
                assert provider.launch(request).id
            else:
                with pytest.raises(NoCapacity):
                    provider.launch(request)
    cloud.cards = [card("AMD Instinct MI300X OAM", 192, secure=(2.49, 1.49))]
    cloud.cuda = "0.0"  # there is none on such a host
    request = request_for(offer_of(provider, Market.ON_DEMAND, OfferQuery(gpu="MI300X", gpu_count=1)))
    assert opened(cloud, tmp_path, min_cuda="12.6").launch(request).id


@pytest.mark.parametrize("bid", [0.0, -1.0, float("nan"), float("inf")])
def test_a_bid_that_is_no_price_is_not_sent(cloud: RunPod, provider: RunPodProvider, bid: float) -> None:
    with pytest.raises(InvalidRequest):
        wrap(provider).launch(replace(request_for(offer_of(provider, Market.SPOT)), bid=bid))
    assert not cloud.pods


def test_the_network_volume_is_mounted_in_both_markets(cloud: RunPod, tmp_path: Path) -> None:
    provider = opened(cloud, tmp_path, network_volume="vol0example", volume_path="/data")
    for market in (Market.SPOT, Market.ON_DEMAND):
        offer = offer_of(provider, market)
        instance = provider.launch(request_for(offer))
        pod = cloud.pods[instance.id]
        assert (pod.volume, pod.volume_path, pod.centre) == ("vol0example", "/data", "EU-RO-1")
        assert instance.hourly == pytest.approx(offer.hourly)


@pytest.mark.parametrize("args", [pods.docker_args(), pods.rest_args()], ids=["graphql", "rest"])
def test_the_script_is_the_first_process_byte_for_byte(tmp_path: Path, args: str) -> None:
    """Both forms of a start command `exec` the script from the environment, quotes and all."""
    if shutil.which("base64") is None:
        pytest.skip("there is no base64 here")
    script = "#!/bin/sh\nX='a \"b\" $(id) `id` \\n'\nprintf '%s|%s' \"$X\" $$\n# ünïcode ✓\n"
    offer = Offer("runpod", "secure", "", "1x T SECURE", Market.SPOT, 1.0)
    env = pods.env_of(request_for(offer, user_data=script), "")
    process = subprocess.Popen(
        command_of(args),
        env={**env, "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, err = process.communicate(timeout=20)
    assert out == f'a "b" $(id) `id` \\n|{process.pid}', err


def test_every_body_that_is_sent_is_as_runpods_own_file_says(cloud: RunPod, provider: RunPodProvider) -> None:
    if not JUDGE.present:
        pytest.skip("RunPod's OpenAPI file is not here")
    assert JUDGE.wrong("CreatePodRequest", {"name": "x", "image": "i", "gpu": {"id": "g"}, "interruptible": True})
    provider.launch(request_for(offer_of(provider, Market.ON_DEMAND)))
    assert JUDGE.wrong("CreatePodRequest", sent(cloud, "/v2/pods", "gpu")) == []


def test_a_name_that_no_pod_can_have_is_refused_before_anything_is_sent(
    cloud: RunPod, provider: RunPodProvider
) -> None:
    request = request_for(offer_of(provider, Market.SPOT), job="j" * 200)
    with pytest.raises(InvalidRequest, match="cannot be a pod's name"):
        provider.launch(request)
    assert not cloud.pods


def test_labels_travel_and_come_back(cloud: RunPod, provider: RunPodProvider) -> None:
    request = request_for(offer_of(provider, Market.ON_DEMAND))
    request = replace(request, tags={**request.tags, "team": 'vision "2"', "Owner.Name": "ünï"})
    instance = provider.launch(request)
    found = listed(provider, instance)
    assert found is not None
    assert dict(found.tags) == dict(request.tags)


def test_a_pod_whose_environment_is_not_told_is_still_ours(cloud: RunPod, provider: RunPodProvider) -> None:
    request = request_for(offer_of(provider, Market.ON_DEMAND), job="a-b-7-c", generation=12)
    instance = provider.launch(request)
    cloud.pods[instance.id].env.clear()
    found = listed(provider, instance)
    assert found is not None
    assert (found.installation, found.job, found.generation) == ("conformance", "a-b-7-c", 12)


@pytest.mark.parametrize("name", ["sb-conformance-job-1", "sb-other-elsewhere-7", "sb-conformance-jo", "my pod", None])
def test_a_name_that_was_cut_or_changed_makes_no_other_jobs_pod_of_it(
    cloud: RunPod, provider: RunPodProvider, name: str | None
) -> None:
    request = request_for(offer_of(provider, Market.SPOT), job="job", generation=12)
    cloud.pods[provider.launch(request).id].name = name  # type: ignore[assignment]
    cloud.judged = False
    (found,) = provider.instances()
    assert (found.installation, found.job, found.generation) == ("conformance", "job", 12)


def test_pods_of_others_are_none_of_ours(cloud: RunPod, provider: RunPodProvider) -> None:
    instance = provider.launch(request_for(offer_of(provider, Market.ON_DEMAND)))
    pod = cloud.pods[instance.id]
    pod.env.clear()
    for name in ("my pod", "sb", "sb-x", "sb-x-y", "SB-a-b-1", "sb-a-b-c"):
        pod.name = name
        assert provider.instances() == [], name


# Refusals

CREDIT = "on-demand pod. You need at least $3.59 (current: $3.01, deficit: $0.58)."
CAPACITY = [
    "There are no longer any instances available with the requested specifications. Please refresh and try again.",
    "There are no longer any instances available with the request specifications. Please try again later.",
    "There are no instances available with the request specifications. Please try again later.",
    "There are no longer any instances available with enough disk space.",
    "start pod: There are not enough free GPUs on the host machine to start this pod.",
]


@pytest.mark.parametrize("text", [*CAPACITY, *(text.upper() for text in CAPACITY)])
def test_every_spelling_of_no_capacity_is_no_capacity(cloud: RunPod, provider: RunPodProvider, text: str) -> None:
    """Case 18: not one spelling of it stops a job."""
    for market, told in ((Market.SPOT, Refused(text)), (Market.ON_DEMAND, Problem(400, text))):
        cloud.faults.add("refuse", told)
        with pytest.raises(NoCapacity):
            provider.launch(request_for(offer_of(provider, market)))
    assert not cloud.pods


@pytest.mark.parametrize(
    ("told", "kind", "code"),
    [
        (Refused(CREDIT), AuthFailed, "RUNPOD"),
        (Refused("spend limit of $80/hr reached"), QuotaExceeded, "RUNPOD"),
        (Refused("Something went wrong. Please try again later or contact support."), Ambiguous, "RUNPOD"),
        (Refused("boom", "INTERNAL_SERVER_ERROR"), Ambiguous, "INTERNAL_SERVER_ERROR"),
        (Refused("no", "FORBIDDEN"), AuthFailed, "FORBIDDEN"),
        (Refused("bad gpu", "BAD_USER_INPUT"), InvalidRequest, "BAD_USER_INPUT"),
        (Refused("never heard of", "NEW_WORD_2027"), ProviderError, "NEW_WORD_2027"),
    ],
)
def test_what_graphql_refuses_with_status_200(
    cloud: RunPod, provider: RunPodProvider, told: Refused, kind: type[ProviderError], code: str
) -> None:
    cloud.faults.add("refuse", told)
    with pytest.raises(ProviderError) as caught:
        provider.launch(request_for(offer_of(provider, Market.SPOT)))
    assert type(caught.value) is kind
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        (Problem(402, "Insufficient balance."), AuthFailed),
        (Problem(403, "Your account cannot access the requested pool."), QuotaExceeded),
        (Problem(400, "spending cap reached"), QuotaExceeded),
        (Problem(400, "a rule about mounts was broken"), ProviderError),
        (Problem(422, "the body does not match the contract"), InvalidRequest),
        (Problem(429, "rate limit exceeded for the minute window"), RateLimited),
        (Problem(400, "Something went wrong. Please try again later or contact support."), Ambiguous),
        (Problem(400, "upstream request timed out"), Ambiguous),
        (Problem(409, "read ECONNRESET"), Ambiguous),
        (Problem(500, "upstream"), Ambiguous),
        (Problem(503, "upstream"), Ambiguous),
    ],
)
def test_what_rest_refuses(cloud: RunPod, provider: RunPodProvider, told: Problem, kind: type[ProviderError]) -> None:
    offer = offer_of(provider, Market.ON_DEMAND)
    cloud.faults.add("refuse", told)
    with pytest.raises(ProviderError) as caught:
        wrap(provider).launch(request_for(offer))
    assert type(caught.value) is kind
    if isinstance(caught.value, QuotaExceeded):
        assert offer.key.startswith(caught.value.scope)
    if isinstance(caught.value, AuthFailed):
        assert "add credit" in caught.value.fix


@pytest.mark.parametrize(
    ("status", "text", "code", "kind"),
    [
        (429, "Too Many Requests", "TOO_MANY_REQUESTS", RateLimited),
        (200, "Rate limit exceeded", "RUNPOD", RateLimited),
        (200, "slow", "RATE_LIMITED", RateLimited),
        (401, "Unauthorized", "UNAUTHORIZED", AuthFailed),
        (403, "this key lacks a scope", "RUNPOD", AuthFailed),
        (200, "Unauthorized request, please check your API key.", "UNAUTHORIZED", AuthFailed),
        (200, "no", "ACCESS_DENIED", AuthFailed),
        (200, None, None, ProviderUnavailable),
    ],
)
@pytest.mark.parametrize("call", ["list", "launch"])
def test_a_status_or_a_code_of_graphql_is_a_decision_whatever_else_it_says(
    cloud: RunPod, provider: RunPodProvider, status: int, text: str, code: str, kind: type[ProviderError], call: str
) -> None:
    """A key that was revoked or may only read, and too many calls, in GraphQL's envelope and outside it."""
    errors = {"errors": [{"message": text, "extensions": {"code": code}}]} if text else {}
    offer = offer_of(provider, Market.SPOT)
    cloud.faults.add("/graphql" if call == "list" else "launch", Answer(status, {"data": None, **errors}))
    with pytest.raises(ProviderError) as caught:
        provider.instances() if call == "list" else provider.launch(request_for(offer))
    assert type(caught.value) is (Ambiguous if kind is ProviderUnavailable and call == "launch" else kind)
    if kind is AuthFailed:
        assert "read and write" in caught.value.fix


def test_a_429_in_plain_text_without_a_time_is_waited_out(cloud: RunPod, provider: RunPodProvider) -> None:
    cloud.retry_after = False
    instance = provider.launch(request_for(offer_of(provider, Market.ON_DEMAND)))
    cloud.faults.add("throttle", "plain", times=2)
    pauses: list[float] = []
    found = wrap(provider, sleep=pauses.append).instances()
    assert [each.id for each in found] == [instance.id]
    assert pauses == [5.0, 5.0]


def test_a_pod_that_costs_more_than_the_balance_is_not_made(cloud: RunPod, provider: RunPodProvider) -> None:
    cloud.balance = 1.0
    for market in (Market.SPOT, Market.ON_DEMAND):
        with pytest.raises(AuthFailed, match="You need at least"):
            provider.launch(request_for(offer_of(provider, market)))
    assert not cloud.pods


# The spot API, while it answers


def test_a_mutation_that_is_unknown_is_no_capacity_and_said_once_a_day(
    cloud: RunPod, provider: RunPodProvider, tmp_path: Path
) -> None:
    request = request_for(offer_of(provider, Market.SPOT))
    cloud.spot_removed = True
    with pytest.raises(NoCapacity, match="rents out no spot pods any more") as caught:
        provider.launch(request)
    assert not isinstance(caught.value, InvalidRequest)
    later = opened(cloud, tmp_path)  # another process
    spot = [offer for offer in later.offers(FOUR_A40) if offer.market is Market.SPOT]
    assert spot
    assert all("no spot pods any more" in offer.blocked for offer in spot), "shown, and not chosen for a day"
    assert not [offer for offer in later.offers(FOUR_A40) if offer.market is Market.ON_DEMAND and offer.blocked]
    mark = tmp_path / "runpod" / "spot-withdrawn"
    mark.write_text(repr(time.time() - 86_401))
    assert not any(offer.blocked for offer in opened(cloud, tmp_path).offers(FOUR_A40)), "a day later it is tried again"


@pytest.mark.parametrize(
    "text",
    [
        'Cannot query field "podRentInterruptable" on type "Mutation".',
        'Unknown type "PodRentInterruptableInput".',
        "podRentInterruptable has been removed from the RunPod API",
        'The field "podRentInterruptable" is deprecated.',
    ],
)
def test_every_spelling_of_a_mutation_that_is_gone(cloud: RunPod, provider: RunPodProvider, text: str) -> None:
    cloud.faults.add("refuse", Refused(text, "BAD_REQUEST"))
    with pytest.raises(NoCapacity, match="tried again in a day"):
        provider.launch(request_for(offer_of(provider, Market.SPOT)))


def test_null_without_an_error_is_no_capacity(cloud: RunPod, provider: RunPodProvider) -> None:
    cloud.faults.add("null spot")
    with pytest.raises(NoCapacity):
        provider.launch(request_for(offer_of(provider, Market.SPOT)))
    assert provider.launch(request_for(offer_of(provider, Market.SPOT))).id, "and the next one is asked as ever"


def test_spot_is_no_capacity_when_graphql_is_gone(cloud: RunPod, provider: RunPodProvider) -> None:
    request = request_for(offer_of(provider, Market.SPOT))
    cloud.graphql_retired = True
    with pytest.raises(NoCapacity):
        provider.launch(request)


@pytest.mark.parametrize("cost", ["1.76", -1.0, float("nan"), float("inf"), True, None, "dear", 0])
def test_a_pod_whose_price_is_told_oddly_costs_what_was_asked(
    cloud: RunPod, provider: RunPodProvider, cost: Any
) -> None:
    cloud.judged = False
    instance = provider.launch(request_for(offer_of(provider, Market.ON_DEMAND)))
    pod = cloud.pods[instance.id]
    (found,) = pods.merged([{**pod.rest(), "cost": cost}], [{**pod.graph(), "costPerHr": cost}])
    assert found.hourly == pytest.approx(instance.hourly)


def test_pods_on_demand_live_on_when_graphql_is_gone(cloud: RunPod, provider: RunPodProvider) -> None:
    instance = provider.launch(request_for(offer_of(provider, Market.ON_DEMAND)))
    cloud.graphql_retired = True
    found = listed(provider, instance)
    assert found is not None
    assert (found.id, found.hourly) == (instance.id, pytest.approx(instance.hourly))
    provider.terminate(instance)
    provider.terminate(instance)
    assert listed(provider, instance) is None


def test_the_list_of_another_account_ends_no_pod(cloud: RunPod, provider: RunPodProvider, tmp_path: Path) -> None:
    """Nor does its key end one; a new key of the same account tells what is gone."""
    instance = provider.launch(request_for(offer_of(provider, Market.SPOT)))
    other = RunPod()
    other.user = "user_another"
    other.start()
    try:
        stranger = RunPodProvider({"api": other.url, "key": "rpa_OTHER"}, tmp_path)
        other.keys = {"rpa_OTHER"}
        (still,) = stranger.instances()
        assert (still.id, still.state, still.tags) == (instance.id, State.RUNNING, instance.tags)
        with pytest.raises(AuthFailed, match="another account"):
            stranger.terminate(still)
        (told,) = [finding for finding in stranger.check() if instance.id in finding.what]
        assert (told.ok, "may go on being billed" in told.found) == (False, True)
    finally:
        other.close()
    cloud.keys = {"rpa_RENEWED"}
    renewed = RunPodProvider({"api": cloud.url, "key": "rpa_RENEWED"}, tmp_path)
    cloud.pods[instance.id].end("TERMINATED", "Terminated by user")
    assert renewed.instances() == []


# Who ended it


def running(cloud: RunPod, provider: RunPodProvider, market: Market = Market.SPOT) -> Instance:
    instance = provider.launch(request_for(offer_of(provider, market)))
    assert wait_for(lambda: cloud.pods[instance.id].status == "RUNNING", 5.0)
    return instance


@pytest.mark.parametrize(
    ("word", "cause"),
    [
        ("Outbid: Fri Jul 12 2024 15:14:40 GMT-0400 (Eastern Daylight Time)", Cause.PREEMPTED),
        ("OUTBID: x", Cause.PREEMPTED),
        ("Exited by user: Fri Jul 12 2024 15:14:40 GMT-0400 (Eastern Daylight Time)", Cause.USER),
        ("Exited by User: x", Cause.USER),
        ("Interrupted by user: x", Cause.USER),
        ("Preempted by RunPod: x", Cause.PREEMPTED),
        ("Spot instance interrupted", Cause.PREEMPTED),
        ("Exited by Runpod: x", Cause.FAILED),
        ("Exited by RunPod: x", Cause.FAILED),
        ("Rented by User: x", None),
        ("", None),
        ("something new: x", None),
    ],
)
def test_causes_are_runpods_own_words(cloud: RunPod, provider: RunPodProvider, word: str, cause: Cause | None) -> None:
    instance = running(cloud, provider)
    cloud.pods[instance.id].end("EXITED", "x")
    cloud.pods[instance.id].word = word
    found = listed(provider, instance)
    assert found is not None
    assert (found.state, found.cause) == (State.STOPPED, cause)
    assert found.ended_at == (1720811680.0 if "15:14:40" in word else None)
    assert found.word == (word if cause is Cause.FAILED else "")


def test_an_outbid_pod_that_was_terminated_is_a_preemption_too(cloud: RunPod, provider: RunPodProvider) -> None:
    instance = running(cloud, provider)
    cloud.outbid(instance.id, as_="TERMINATED")
    found = listed(provider, instance)
    assert found is not None
    assert (found.state, found.cause) == (State.TERMINATED, Cause.PREEMPTED)


def test_a_pod_that_is_taken_back_while_it_boots_was_preempted(cloud: RunPod, provider: RunPodProvider) -> None:
    cloud.boot = 60.0
    instance = provider.launch(request_for(offer_of(provider, Market.SPOT)))
    cloud.outbid(instance.id)
    found = listed(provider, instance)
    assert found is not None
    assert (found.state, found.cause) == (State.STOPPED, Cause.PREEMPTED)


@pytest.mark.parametrize("desired", ["CREATED", "RESTARTING", "PAUSED", "DEAD", "MIGRATING_2027"])
def test_no_state_is_unknown(cloud: RunPod, provider: RunPodProvider, desired: str) -> None:
    """skypilot #9356: a state missing in the map was a KeyError."""
    instance = running(cloud, provider)
    cloud.pods[instance.id].desired = desired
    found = listed(provider, instance)
    assert found is not None
    assert found.state is (State.STOPPED if desired in ("PAUSED", "DEAD") else State.RUNNING)


def test_a_container_in_an_unrecoverable_state_has_failed(cloud: RunPod, provider: RunPodProvider) -> None:
    instance = running(cloud, provider, Market.ON_DEMAND)
    cloud.pods[instance.id].failed = True
    cloud.pods[instance.id].end("EXITED", "")
    found = listed(provider, instance)
    assert found is not None
    assert (found.state, found.cause) == (State.STOPPED, Cause.FAILED)


def test_a_pod_that_pulls_its_image_is_not_running_yet(cloud: RunPod, provider: RunPodProvider) -> None:
    cloud.boot = 60.0
    instance = provider.launch(request_for(offer_of(provider, Market.ON_DEMAND)))
    assert cloud.pods[instance.id].desired == "RUNNING"
    found = listed(provider, instance)
    assert found is not None
    assert found.state is State.PENDING


@pytest.mark.parametrize("path", ["/v2/pods", "/graphql"])
def test_half_a_list_is_no_list(cloud: RunPod, provider: RunPodProvider, path: str) -> None:
    """Either of the two lists that fails is an error: pods that only it shows must not seem gone."""
    instance = running(cloud, provider)
    cloud.faults.add(path, 502)
    with pytest.raises(ProviderUnavailable):
        provider.instances()
    assert listed(provider, instance) is not None


@pytest.mark.parametrize(
    ("word", "ended"),
    [
        ("Outbid: Fri Mar 12 2027 15:14:40 GMT+0530 (India Standard Time)", 1804844680.0),
        ("Outbid: Fri Feb 30 2024 15:14:40 GMT-0400 (x)", None),
        ("Outbid: Fre Mär 12 2024 15:14:40 GMT+0100", None),
        ("Outbid: 1720811680", None),
    ],
)
def test_no_date_is_a_reason_to_list_nothing(
    cloud: RunPod, provider: RunPodProvider, monkeypatch: pytest.MonkeyPatch, word: str, ended: float | None
) -> None:
    """Whatever the user's own language and zone are."""
    monkeypatch.setenv("TZ", "America/St_Johns")
    time.tzset()
    instance = running(cloud, provider)
    cloud.pods[instance.id].end("EXITED", "x")
    cloud.pods[instance.id].word = word
    (found,) = provider.instances()
    assert (found.cause, found.ended_at) == (Cause.PREEMPTED, ended)
    assert pods.merged([{**cloud.pods[instance.id].rest(), "createdAt": "2026-12-01T10:00:00"}], [])[0].launched_at == (
        1796119200.0
    )
    monkeypatch.undo()
    time.tzset()


def test_no_list_of_graphqls_is_no_empty_list(cloud: RunPod, provider: RunPodProvider) -> None:
    running(cloud, provider)
    cloud.hide_spot_from_rest = True
    for body in ({"myself": {"pods": None}}, {"myself": {}}, {"myself": []}, {}):
        cloud.faults.add("/graphql", Answer(200, {"data": body}))
        with pytest.raises(ProviderUnavailable):
            provider.instances()
    assert len(provider.instances()) == 1


@pytest.mark.parametrize("path", [["myself", "pods"], ["myself", "pods", 0]])
def test_pods_that_graphql_could_not_look_up_are_not_gone(
    cloud: RunPod, provider: RunPodProvider, path: list[Any]
) -> None:
    running(cloud, provider)
    cloud.faults.add("deep error", path)
    with pytest.raises(ProviderUnavailable):
        provider.instances()


# Case 24: the answer is lost, the pod is there


@pytest.mark.parametrize("market", [Market.SPOT, Market.ON_DEMAND])
def test_a_pod_that_was_made_without_an_answer_is_found_by_its_name(
    cloud: RunPod, provider: RunPodProvider, market: Market
) -> None:
    cloud.faults.add("lose answer")
    request = request_for(offer_of(provider, market), job="job7", generation=1)
    with pytest.raises(Ambiguous):
        provider.launch(request)
    (pod,) = cloud.pods.values()
    assert pod.name == "sb-conformance-job7-1"
    (found,) = provider.instances()
    assert (found.id, found.job, found.generation) == (pod.id, "job7", 1)


@pytest.mark.parametrize(
    ("status", "text", "code"),
    [
        (500, "Something went wrong. Please try again later.", "INTERNAL_SERVER_ERROR"),
        (504, "upstream said nothing", "GATEWAY"),
        (200, "Request timed out after 30000 ms", "RUNPOD"),
        (200, "socket hang up", "RUNPOD"),
        (200, "504 Gateway Timeout", "DOWNSTREAM_SERVICE_ERROR"),
    ],
)
def test_graphqls_own_words_for_a_fault_leave_open_whether_a_pod_was_made(
    cloud: RunPod, provider: RunPodProvider, status: int, text: str, code: str
) -> None:
    body = {"data": {"podRentInterruptable": None}, "errors": [{"message": text, "extensions": {"code": code}}]}
    cloud.faults.add("lose answer", Answer(status, body))
    with pytest.raises(Ambiguous):
        provider.launch(request_for(offer_of(provider, Market.SPOT)))
    assert len(provider.instances()) == 1


@pytest.mark.parametrize("market", [Market.SPOT, Market.ON_DEMAND])
@pytest.mark.parametrize("body", [None, {}, [], "ok", {"id": None}, {"data": {"podRentInterruptable": {}}}])
def test_an_answer_that_names_no_pod_may_have_made_one(
    cloud: RunPod, provider: RunPodProvider, market: Market, body: Any
) -> None:
    request = request_for(offer_of(provider, market))
    cloud.faults.add("launch", Answer(200, body))
    with pytest.raises(Ambiguous):
        wrap(provider).launch(request)


@pytest.mark.parametrize("body", [None, {}, {"pods": None}, {"pods": {}}, [], {"error": "try again"}])
def test_a_list_without_a_list_shows_no_pod_gone(cloud: RunPod, provider: RunPodProvider, body: Any) -> None:
    running(cloud, provider)
    cloud.faults.add("/v2/pods", Answer(200, body))
    with pytest.raises(ProviderUnavailable):
        provider.instances()


def test_a_pod_that_was_made_in_spite_of_an_error_is_ours(cloud: RunPod, provider: RunPodProvider) -> None:
    offer = offer_of(provider, Market.SPOT)
    cloud.faults.add("deep error", ["podRentInterruptable", "costPerHr"])
    instance = provider.launch(request_for(offer))
    assert list(cloud.pods) == [instance.id]
    assert instance.hourly == pytest.approx(offer.hourly), "a price that is not told is the one that was bid"


@pytest.mark.parametrize("market", [Market.SPOT, Market.ON_DEMAND])
def test_a_connection_that_breaks_during_creation_is_ambiguous(
    cloud: RunPod, provider: RunPodProvider, market: Market
) -> None:
    offer = offer_of(provider, market)
    cloud.faults.add("launch", "drop")
    with pytest.raises(Ambiguous):
        provider.launch(request_for(offer))


# Ends


def test_what_rest_does_not_know_graphql_is_told_to_terminate(cloud: RunPod, provider: RunPodProvider) -> None:
    """Should REST not show spot pods, none may be left for that."""
    instance = running(cloud, provider)
    cloud.hide_spot_from_rest = True
    provider.terminate(instance)
    assert cloud.pods[instance.id].desired == "TERMINATED"


def test_a_key_that_may_end_pods_in_one_api_only_ends_them(cloud: RunPod, provider: RunPodProvider) -> None:
    instance = running(cloud, provider)
    denied = Answer(403, {"title": "Forbidden", "status": 403, "detail": "this key lacks a scope"})
    cloud.faults.add("other", denied, times=2)
    with pytest.raises(AuthFailed, match="lacks a scope") as caught:
        provider.terminate(instance)
    assert "read and write" in caught.value.fix
    cloud.faults.add("other", denied)
    provider.terminate(instance)
    assert cloud.pods[instance.id].desired == "TERMINATED"


def test_an_error_of_terminate_is_never_swallowed(cloud: RunPod, provider: RunPodProvider) -> None:
    instance = running(cloud, provider)
    cloud.faults.add("other", 503)
    with pytest.raises(ProviderUnavailable):
        provider.terminate(instance)
    assert cloud.pods[instance.id].desired == "RUNNING"


# The guest's half, against the same server


def as_pod(monkeypatch: pytest.MonkeyPatch, cloud: RunPod, instance: Instance) -> dict[str, str]:
    pod = cloud.pods[instance.id]
    env = {"RUNPOD_POD_ID": pod.id, "RUNPOD_API_KEY": pod.key, "SPOTBROKER_RUNPOD_API": cloud.url}
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    return env


@pytest.mark.parametrize(
    ("may", "ends_as"), [({"terminate", "stop"}, "TERMINATED"), ({"stop"}, "EXITED"), (set(), "RUNNING")]
)
def test_a_pod_ends_itself_by_its_own_key(
    cloud: RunPod, provider: RunPodProvider, monkeypatch: pytest.MonkeyPatch, may: set[str], ends_as: str
) -> None:
    instance = running(cloud, provider)
    cloud.pod_key_may = may
    as_pod(monkeypatch, cloud, instance)
    if may:
        guest.end_machine("max_hours")
    else:
        with pytest.raises(OSError, match="403"):
            guest.end_machine("max_hours")
    assert cloud.pods[instance.id].desired == ends_as


@pytest.mark.parametrize("tool", ["curl", "wget", "python3"])
@pytest.mark.parametrize(
    ("may", "ends_as"), [({"terminate", "stop"}, "TERMINATED"), ({"stop"}, "EXITED"), (set(), "RUNNING")]
)
def test_a_shell_ends_the_pod_with_whatever_the_image_has(
    cloud: RunPod,
    provider: RunPodProvider,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    tool: str,
    may: set[str],
    ends_as: str,
) -> None:
    program = sys.executable if tool == "python3" else shutil.which(tool)
    if program is None:
        pytest.skip(f"there is no {tool} here")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / tool).symlink_to(program)
    instance = running(cloud, provider)
    cloud.pod_key_may = may
    env = as_pod(monkeypatch, cloud, instance)
    done = subprocess.run(
        ["/bin/sh", "-c", f"why=end_by; {guest.END_COMMAND}"],
        env={**env, "PATH": str(tmp_path / "bin")},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode == 0) == bool(may), done.stderr
    assert cloud.pods[instance.id].desired == ends_as
    assert not done.stdout
    assert not done.stderr


def test_a_pods_key_ends_no_other_pod(cloud: RunPod, provider: RunPodProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = running(cloud, provider), running(cloud, provider)
    as_pod(monkeypatch, cloud, one)
    monkeypatch.setenv("RUNPOD_POD_ID", other.id)
    with pytest.raises(OSError, match="403"):
        guest.end_machine("x")
    assert cloud.pods[other.id].desired == "RUNNING"


def test_sigterm_means_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 33: RunPod's only word is SIGTERM; there is nothing to ask."""
    assert guest.sigterm_is_notice() == 5.0
    assert guest.notice() is None


def test_a_person_gets_in_by_runpods_proxy(cloud: RunPod, provider: RunPodProvider) -> None:
    """It needs no open port; a pod takes keys only where it was asked for at its creation."""
    for market, path, word in ((Market.SPOT, "/graphql", "podRent"), (Market.ON_DEMAND, "/v2/pods", "gpu")):
        instance = provider.launch(request_for(offer_of(provider, market)))
        assert sent(cloud, path, word)["startSsh"] is True
        assert not sent(cloud, path, word).get("ports")
        assert wait_for(lambda instance=instance: listed(provider, instance).state is State.RUNNING, 20)
        shell = provider.shell(instance)
        assert shell.argv == ("ssh", "-p", "22", f"{instance.id}-{cloud.pods[instance.id].host[:8]}@ssh.runpod.io")
        assert not shell.commands, "it carries a terminal only"


def test_outside_a_pod_nothing_can_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUNPOD_POD_ID", raising=False)
    with pytest.raises(OSError, match="no pod that can end itself"):
        guest.end_machine("x")


# Money


def test_the_balance_is_told_and_what_zero_does(cloud: RunPod, provider: RunPodProvider, tmp_path: Path) -> None:
    cloud.balance = 7.5
    assert provider.balance() == pytest.approx(7.5, abs=0.01)
    plain = running(cloud, provider, Market.ON_DEMAND)
    kept = opened(cloud, tmp_path, network_volume="vol0example")
    with_volume = running(cloud, kept, Market.ON_DEMAND)
    cloud.bankrupt()
    assert listed(provider, plain) is None, "RunPod terminates what has no network volume"
    found = listed(provider, with_volume)
    assert found is not None
    assert (found.state, found.cause) == (State.STOPPED, Cause.FAILED)
    assert provider.balance() == pytest.approx(0.0, abs=0.001)


def test_check_says_what_works(cloud: RunPod, provider: RunPodProvider, tmp_path: Path) -> None:
    findings = {finding.what: finding for finding in provider.check()}
    assert all(finding.ok for finding in findings.values())
    assert findings["key"].found == "from [providers.runpod] key"
    wrong = RunPodProvider({"api": cloud.url, "key": "rpa_WRONG"}, tmp_path).check()
    assert [finding.what for finding in wrong if not finding.ok] == ["REST API v2", "GraphQL API"]
    assert not any("rpa_WRONG" in finding.found + finding.fix for finding in wrong)
    volume = opened(cloud, tmp_path, network_volume="vol-none").check()
    assert [finding.what for finding in volume if not finding.ok] == ["network volume"]
    cloud.faults.add("/v2/pods", Answer(200, {"error": "try again"}))
    assert [finding.what for finding in provider.check() if not finding.ok] == ["REST API v2"]
    cloud.spot_removed = True
    with pytest.raises(NoCapacity):
        provider.launch(request_for(offer_of(provider, Market.SPOT)))
    (spot,) = [finding for finding in provider.check() if finding.what == "spot pods"]
    assert not spot.ok


def test_nothing_secret_is_in_what_runpod_is_told(cloud: RunPod, provider: RunPodProvider) -> None:
    """Case 45: no key in an address, and none in a body."""
    running(cloud, provider)
    running(cloud, provider, Market.ON_DEMAND)
    assert not [call for call in cloud.calls if "rpa_TESTKEY" in json.dumps([call.path, call.query, call.body])]
    assert "rpa_TESTKEY" not in repr(provider.key)


def request_survives(request: LaunchRequest) -> LaunchRequest:
    return LaunchRequest.from_json(json.loads(json.dumps(request.to_json())))


def test_a_frozen_request_launches_the_same_pod_as_before(cloud: RunPod, provider: RunPodProvider) -> None:
    request = request_for(offer_of(provider, Market.SPOT))
    first, second = provider.launch(request), provider.launch(request_survives(request))
    assert cloud.pods[first.id].env == cloud.pods[second.id].env
