"""Renting from Vast: what is sent, what was really rented, and what never becomes a machine that nobody knows of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clouds.vast.account import ON_DEMAND
from clouds.vast.stage import QUERY, Stage

from broker import images
from broker.contract import wrap
from broker.errors import (
    Ambiguous,
    AuthFailed,
    InvalidRequest,
    NoCapacity,
    NotFound,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    RateLimited,
)
from broker.offer import Market
from broker.provider import TAG_JOB, LaunchRequest, State
from broker.testing.conformance import request_for
from broker_vast.label import decode, encode
from broker_vast.provider import USER_DATA_LIMIT

CASES = Path(__file__).parents[3] / "shared" / "cases" / "inputs"
CREATE = "PUT /api/v0/asks/{id}/"


@pytest.fixture
def vast(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path) as stage:
        yield stage


def case(name: str) -> Any:
    path = CASES / name
    if not path.is_file():
        pytest.skip(f"{path.name} is not here")
    return json.loads(path.read_text(encoding="utf-8"))


def sent(vast: Stage) -> dict[str, Any]:
    (body,) = vast.server.bodies(CREATE)
    assert isinstance(body, dict)
    return body


# What is sent


def test_case_1_the_bid_is_sent_for_the_whole_machine(vast: Stage) -> None:
    told = case("c01_offer.json")
    count, spot, dear = told["gpu_count"], told["spot_price_per_gpu"], told["on_demand_price_per_gpu"]
    vast.host(gpu_name="A40", gpu_ram=46068, num_gpus=count, min_bid=spot * count, dph=dear * count, storage_cost=0.0)
    query = replace(QUERY, gpu="A40", gpu_count=count)
    provider = vast.provider(bid_margin=0.0)
    offer = next(offer for offer in provider.offers(query) if offer.market is Market.SPOT)
    instance = provider.launch(request_for(offer))
    assert sent(vast)["price"] == pytest.approx(1.12)
    assert instance.hourly == pytest.approx(1.12)
    assert instance.market is Market.SPOT


def test_no_bid_is_above_the_price_without_one(vast: Stage) -> None:
    vast.host(dph=0.41, min_bid=0.19)
    instance = vast.provider().launch(replace(request_for(vast.offer()), bid=5.0))
    assert sent(vast)["price"] == 0.41
    assert instance.market is Market.SPOT


def test_a_bid_of_the_request_is_sent(vast: Stage) -> None:
    vast.host(dph=0.41, min_bid=0.19)
    instance = vast.provider().launch(replace(request_for(vast.offer()), bid=0.25))
    assert sent(vast)["price"] == 0.25
    assert instance.hourly == pytest.approx(0.25 + 20 * 0.15 / 730)


@pytest.mark.parametrize("bid", [0.0, -1.0, 0.0005, float("nan")])
def test_a_bid_that_vast_never_takes_is_not_sent(vast: Stage, bid: float) -> None:
    vast.host()
    with pytest.raises(InvalidRequest):
        vast.provider().launch(replace(request_for(vast.offer()), bid=bid))
    assert not vast.server.bodies(CREATE)


def test_on_demand_carries_no_price(vast: Stage) -> None:
    vast.host(dph=0.41)
    instance = vast.provider().launch(replace(request_for(vast.offer(Market.ON_DEMAND)), bid=0.2))
    assert "price" not in sent(vast)
    assert instance.market is Market.ON_DEMAND
    assert instance.hourly == pytest.approx(0.41 + 20 * 0.15 / 730)


def test_the_guest_is_the_first_process(vast: Stage) -> None:
    vast.host()
    script = '#!/bin/sh\necho "it\'s $HOME"\nexec sleep 600\n'
    request = replace(request_for(vast.offer(), user_data=script), container="ghcr.io/me/train:1", disk=33.2)
    vast.provider().launch(request)
    body = sent(vast)
    assert (body["runtype"], body["onstart"], body["args"]) == ("args", "/bin/sh", ["-c", script])
    assert (body["image"], body["disk"]) == ("ghcr.io/me/train:1", 34.0)
    assert body["env"] == {"VAST_URL": vast.server.url}
    assert body["cancel_unavail"] is True


def test_a_bare_task_gets_the_default_image_and_the_least_disk(vast: Stage) -> None:
    vast.host()
    vast.provider().launch(replace(request_for(vast.offer()), disk=1.0))
    assert sent(vast)["image"] == images.DEFAULT
    assert sent(vast)["disk"] == 8.0


def test_script_that_is_too_long(vast: Stage) -> None:
    vast.host()
    offer = vast.offer(Market.ON_DEMAND)
    with pytest.raises(InvalidRequest, match=str(USER_DATA_LIMIT)):
        vast.provider().launch(request_for(offer, user_data="#" * (USER_DATA_LIMIT + 1)))
    assert not vast.server.bodies(CREATE)
    assert vast.provider().launch(request_for(offer, user_data="#" * USER_DATA_LIMIT)).id


def test_a_frozen_request_is_the_same_after_a_trip_through_json(vast: Stage) -> None:
    vast.host(parts=2)
    request = request_for(vast.offer(Market.ON_DEMAND))
    vast.provider().launch(request)
    vast.provider().launch(LaunchRequest.from_json(json.loads(json.dumps(request.to_json()))))
    one, other = vast.server.bodies(CREATE)
    assert one == other


# Labels


def test_labels_carry_the_tags(vast: Stage) -> None:
    vast.host()
    request = request_for(vast.offer(), job="job: 1/ä %41")
    tagged = replace(request, tags={**request.tags, "team": "red & blue", "cost centre": "4 7"})
    instance = vast.provider().launch(tagged)
    assert dict(instance.tags) == dict(tagged.tags)
    (listed,) = vast.provider().instances()
    assert dict(listed.tags) == dict(tagged.tags)
    assert sent(vast)["label"].startswith("spotbroker:conformance:job")


def test_labels_leave_out_what_does_not_fit() -> None:
    tags = dict(request_for_tags())
    many = {f"label-{n}": "x" * 40 for n in range(20)}
    label = encode({**tags, **many})
    assert len(label) <= 256
    found = decode(label)
    assert found is not None
    assert tags.items() <= found.items()
    assert set(found) > set(tags)


def test_labels_that_cannot_carry_our_own_tags_are_refused() -> None:
    with pytest.raises(InvalidRequest):
        encode({**request_for_tags(), TAG_JOB: "j" * 300})


@pytest.mark.parametrize(
    "label",
    [None, "", "my machine", "spotbroker", "spotbroker:a:b", "spotbroker:a:b:c", "other:a:b:1", "spotbroker:a:b:1:2"],
)
def test_labels_of_others_are_not_ours(label: str | None) -> None:
    assert decode(label) is None


@pytest.mark.parametrize("cut", [0, 5, 20, -1])
def test_a_machine_whose_label_is_cut_is_ended_at_once(vast: Stage, cut: int) -> None:
    """Nobody would find it in the list, or it would be taken for another generation of its job's."""
    vast.host()
    request = request_for(vast.offer(), generation=12)
    vast.server.lies.cut = cut
    if cut == 0:  # as if it were not shown yet: it is known by its id
        assert vast.provider().launch(request).id in {str(number) for number in vast.account.contracts}
        return
    with pytest.raises(InvalidRequest, match="would not be found again"):
        vast.provider().launch(request)
    assert not vast.account.contracts


def request_for_tags() -> dict[str, str]:
    return {"spotbroker-installation": "conformance", "spotbroker-job": "job-1", "spotbroker-generation": "3"}


# What was rented


def test_case_2_rented_on_demand_after_all(vast: Stage) -> None:
    told = case("c02_vast.json")
    offer, shown = told["offer"], told["show_instance_reply"]["instances"]
    vast.host(ask=offer["id"], min_bid=offer["min_bid"], dph=offer["dph_total"], storage_cost=0.0)
    vast.server.lies.no_bid = True
    instance = vast.provider().launch(request_for(vast.offer()))
    assert 0.19 <= sent(vast)["price"] < 0.41
    assert instance.market is Market.ON_DEMAND
    assert instance.hourly == pytest.approx(shown["dph_total"])
    (listed,) = vast.provider().instances()
    assert (listed.market, listed.hourly) == (instance.market, instance.hourly)


def test_the_price_that_is_shown_is_booked(vast: Stage) -> None:
    host = vast.host(dph=0.40)
    offer = vast.offer(Market.ON_DEMAND)
    host.dph = 0.55
    assert vast.provider().launch(request_for(offer)).hourly == pytest.approx(0.55 + 20 * 0.15 / 730)


@pytest.mark.parametrize(
    ("market", "no_bid", "price"),
    [(Market.SPOT, False, 0.19 * 1.05), (Market.SPOT, True, 0.41), (Market.ON_DEMAND, False, 0.41)],
)
def test_what_names_no_price_is_not_booked_as_free(vast: Stage, market: Market, no_bid: bool, price: float) -> None:
    vast.host(dph=0.41, min_bid=0.19)
    vast.server.lies.no_bid, vast.server.lies.unpriced = no_bid, True
    instance = vast.provider().launch(request_for(vast.offer(market)))
    assert instance.hourly == pytest.approx(price + 20 * 0.15 / 730)


@pytest.mark.parametrize("answer", [400, 404, 410, 500, 200])
def test_low_bid_leaves_nothing(vast: Stage, answer: int) -> None:
    host = vast.host(min_bid=0.2)
    offer = vast.offer()
    host.strangers.append(0.3)
    vast.server.lies.low_bid = answer
    with pytest.raises(NoCapacity):
        vast.provider().launch(request_for(offer))
    assert not vast.account.contracts
    assert vast.server.calls["DELETE /api/v0/instances/{id}/"] == (0 if answer == 410 else 1)
    assert not vast.provider().instances()


def test_a_stillborn_contract_is_ended_whatever_its_number_is_written_in(vast: Stage) -> None:
    host = vast.host()
    offer = vast.offer()
    left = vast.account.rent(host, {"label": None, "image": "i", "price": 0.01})
    told = {"success": False, "error": "invalid_args", "msg": "bid too low", "new_contract": str(left.id)}
    vast.server.lies.refuse = [(400, told)]
    with pytest.raises(NoCapacity):
        vast.provider().launch(request_for(offer))
    assert not vast.account.contracts


def test_low_bid_whose_end_is_refused_is_there_still_and_said_so(vast: Stage) -> None:
    """Not as if nothing had come of it: whoever launched it looks by its label, counts it and ends it."""
    host = vast.host(min_bid=0.2)
    request = request_for(vast.offer())
    host.strangers.append(0.3)
    vast.server.lies.broken["DELETE /api/v0/instances/{id}/"] = ["502"]
    with pytest.raises(Ambiguous):
        vast.provider().launch(request)
    (left,) = vast.provider().instances()
    assert (left.job, left.alive) == (request.job, True)
    vast.provider().terminate(left)
    assert not vast.account.contracts


def test_outbid_between_the_search_and_the_creation(vast: Stage) -> None:
    host = vast.host()
    offer = vast.offer()
    host.strangers.append(ON_DEMAND)
    with pytest.raises(NoCapacity):
        vast.provider().launch(request_for(offer))
    assert not vast.account.contracts


@pytest.mark.parametrize("how", ["lose_answer", "hang_up"])
def test_case_24_made_but_not_answered(vast: Stage, how: str) -> None:
    vast.host()
    request = request_for(vast.offer())
    setattr(vast.server.lies, how, 1)
    with pytest.raises(Ambiguous):
        vast.provider().launch(request)
    (found,) = vast.provider().instances()
    assert (found.job, found.generation) == (request.job, request.generation)
    assert vast.server.calls[CREATE] == 1


@pytest.mark.parametrize("how", ["408", "500", "502", "text", "cut", "html", "hang up"])
def test_case_24_an_answer_that_is_none(vast: Stage, how: str) -> None:
    vast.host()
    vast.server.lies.broken[CREATE] = [how]
    with pytest.raises(Ambiguous):
        vast.provider().launch(request_for(vast.offer()))


def test_an_answer_that_names_no_contract_is_ambiguous(vast: Stage) -> None:
    vast.host()
    vast.server.lies.broken[CREATE] = ["null"]
    with pytest.raises(Ambiguous):
        vast.provider().launch(request_for(vast.offer()))


def test_made_but_not_shown(vast: Stage) -> None:
    vast.host()
    request = request_for(vast.offer())
    vast.server.lies.hide_one = 60.0
    with pytest.raises(Ambiguous):
        vast.provider().launch(request)
    (found,) = vast.provider().instances()
    assert found.job == request.job
    vast.server.lies.hide_one = 0.0
    vast.server.lies.broken["GET /api/v0/instances/{id}/"] = ["502"]
    vast.host(min_bid=0.1)
    with pytest.raises(Ambiguous):
        vast.provider().launch(request_for(vast.offer()))


# Words for what went wrong


def refusal(status: int, error: str | None, msg: str | None, **more: Any) -> tuple[int, dict[str, Any]]:
    told = {"success": False, "error": error, "msg": msg, **more}
    return status, {name: value for name, value in told.items() if value is not None}


GONE = "error 404/3603: no_such_ask  Instance type by id 31550001 is not available."


@pytest.mark.parametrize(
    ("answer", "kind", "code"),
    [
        (refusal(410, "no_such_ask", "error 410/3907: no_such_ask"), NoCapacity, "no_such_ask"),
        (refusal(400, "invalid_args", GONE), NoCapacity, "no_such_ask"),
        (refusal(404, "invalid_args", GONE), NoCapacity, "no_such_ask"),
        (refusal(404, None, GONE), NoCapacity, "no_such_ask"),
        (refusal(400, "invalid_price", "error 400: price"), NoCapacity, "invalid_price"),
        (refusal(400, "insufficient_credit", "Your account lacks credit."), AuthFailed, "insufficient_credit"),
        (refusal(400, "spend_rate_limit", "limit of new accounts"), QuotaExceeded, "spend_rate_limit"),
        (refusal(401, "auth_error", "Invalid user key"), AuthFailed, "auth_error"),
        (refusal(404, None, "Session expired. Please log in again."), AuthFailed, "404"),
        (refusal(403, None, "no permission"), AuthFailed, "403"),
        (refusal(403, "invalid_args", "error 403/3586: Offer 1 is not your own."), AuthFailed, "invalid_args"),
        (refusal(400, "invalid_args", "error 400/3467: Invalid args: disk"), InvalidRequest, "invalid_args"),
        (refusal(400, "no_ssh_key_for_vm", "add a key"), InvalidRequest, "no_ssh_key_for_vm"),
        (refusal(400, None, None, message="what?"), ProviderError, "400"),
        (refusal(400, None, "Offer 1 is not available any more."), NoCapacity, "400"),
        (refusal(400, "ask_taken", "This machine is already rented."), NoCapacity, "ask_taken"),
        (refusal(409, "conflict", "Instance type is no longer available."), NoCapacity, "conflict"),
        (refusal(400, "invalid_args", "The bid is below the minimum bid."), NoCapacity, "invalid_args"),
        (refusal(400, "invalid_args", "bid too low"), NoCapacity, "invalid_args"),
        (refusal(400, "invalid_args", "Machine 40100 is offline."), NoCapacity, "invalid_args"),
        (refusal(400, "invalid_args", "requested disk space exceeds what is there"), NoCapacity, "invalid_args"),
        (refusal(404, "not_found", "Ask not found"), NoCapacity, "not_found"),
        (refusal(410, "gone", "x"), NoCapacity, "gone"),
        (refusal(410, None, "x"), NoCapacity, "410"),
        (refusal(400, "SOME_NEW_CODE_2027", "who knows"), ProviderError, "SOME_NEW_CODE_2027"),
        (refusal(418, "teapot", "short and stout"), ProviderError, "teapot"),
        (refusal(404, "no_such_thing", "hm"), NotFound, "no_such_thing"),
        (refusal(429, None, None, detail="API requests too frequent endpoint threshold=4.5"), RateLimited, "429"),
        (refusal(503, "no_such_ask", "upstream"), Ambiguous, "503"),
    ],
)  # fmt: skip
def test_case_18_words_for_what_went_wrong(
    vast: Stage, answer: tuple[int, dict[str, Any]], kind: type[ProviderError], code: str
) -> None:
    vast.host()
    vast.server.lies.refuse = [answer]
    with pytest.raises(ProviderError) as caught:
        vast.provider().launch(request_for(vast.offer()))
    assert type(caught.value) is kind
    assert caught.value.code == code
    assert not vast.account.contracts
    if isinstance(caught.value, QuotaExceeded):
        assert caught.value.scope == "vast"
    if code == "insufficient_credit":
        assert "billing" in caught.value.fix


def test_case_18_the_given_codes(vast: Stage) -> None:
    classes = {"capacity": NoCapacity, "account": AuthFailed}
    told = [row for row in case("c18_errors.json") if row["p"] == "vast"]
    assert len(told) == 2
    vast.host()
    offer = vast.offer()
    for row in told:
        vast.server.lies.refuse = [(row["http"], {"success": False, "error": row["error"]})]
        with pytest.raises(classes[row["class"]]):
            vast.provider().launch(request_for(offer))


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (refusal(200, "internal_error", "Internal Server Error"), Ambiguous),
        (refusal(400, "error", "Something went wrong"), Ambiguous),
        (refusal(400, "timeout", "upstream timed out"), Ambiguous),
        (refusal(409, "already_rented", "x"), NoCapacity),
        (refusal(400, "user_verification_required", "verify your email"), AuthFailed),
        (refusal(400, None, "Your account balance is negative"), AuthFailed),
    ],
)
def test_what_no_document_names_is_read_by_its_words(
    vast: Stage, answer: tuple[int, dict[str, Any]], kind: type[ProviderError]
) -> None:
    vast.host()
    vast.server.lies.refuse = [answer]
    with pytest.raises(ProviderError) as caught:
        wrap(vast.provider()).launch(request_for(vast.offer()))
    assert type(caught.value) is kind


def test_refused_with_200(vast: Stage) -> None:
    vast.host()
    offer = vast.offer()
    for answer, kind in ((refusal(200, "no_such_ask", "gone"), NoCapacity), (refusal(200, None, "no"), ProviderError)):
        vast.server.lies.refuse = [answer]
        with pytest.raises(kind):
            vast.provider().launch(request_for(offer))


def test_no_credit(vast: Stage) -> None:
    vast.host()
    offer = vast.offer()
    vast.account.credit = 0.0
    with pytest.raises(AuthFailed, match="lacks credit"):
        vast.provider().launch(request_for(offer))


# Bids that change


def test_a_higher_bid_resumes(vast: Stage) -> None:
    vast.host(dph=0.6, min_bid=0.2)
    provider = vast.provider()
    instance = provider.launch(request_for(vast.offer()))
    vast.account.outbid(vast.account.contracts[int(instance.id)], 0.3)
    (seen,) = provider.instances()
    assert seen.state is State.STOPPED
    provider.change_bid(seen, 0.35)
    (seen,) = provider.instances()
    assert (seen.state, seen.cause) == (State.RUNNING, None)
    assert seen.hourly == pytest.approx(0.35 + 20 * 0.15 / 730)
    with pytest.raises(InvalidRequest):
        provider.change_bid(seen, 0.0)
    with pytest.raises(NotFound):
        provider.change_bid(replace(seen, id="12"), 0.3)


def test_a_launch_offline_has_made_nothing(vast: Stage) -> None:
    vast.host()
    request = request_for(vast.offer())
    with pytest.raises(ProviderUnavailable):
        vast.provider(api="http://no-such-host.invalid").launch(request)
