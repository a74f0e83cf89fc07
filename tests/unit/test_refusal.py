"""Refusals that no adapter knows, read by their words. Case 18: not one spelling of it stops a job."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.stage import START, Stage, offer

from broker import refusal
from broker.contract import wrap
from broker.errors import (
    Ambiguous,
    AuthFailed,
    InvalidRequest,
    NoCapacity,
    ProviderError,
    QuotaExceeded,
    RateLimited,
)
from broker.offer import Market, Offer
from broker.testing import FakeProvider
from broker.testing.conformance import request_for

OFFER = Offer("acme", "oslo", "b", "m", Market.SPOT, 1.0)
WORDS: dict[type[ProviderError], tuple[str, ...]] = {
    NoCapacity: (
        "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "InsufficientHostCapacity", "SkuNotAvailable", "AllocationFailed",
        "OverconstrainedZonalAllocationRequest", "NO_CAPACITY", "out of  stock", "No GPU available", "no_such_ask",
        "This machine does not have the resources to deploy your pod. Please try a different machine",
        "We currently do not have sufficient p4d.24xlarge capacity in the Availability Zone you requested",
        "Your bid is below the minimum bid", "GPU type not available in this region", "host is already rented",
        "ask contract 123 is not available", "SUPPLY_CONSTRAINT", "region closed for maintenance", "host is offline",
        "The requested configuration is temporarily unavailable", "Server overloaded",
        "All machines are currently busy", "no machine here: only 2 GPUs left",
    ),
    QuotaExceeded: (
        "QUOTA_EXCEEDED", "VcpuLimitExceeded", "MaxSpotInstanceCountExceeded", "max pods reached",
        "spend limit reached", "You can only have up to 5 running pods", "new accounts may rent at most 2 GPUs",
        "Operation could not be completed as it results in exceeding approved LowPriorityCores quota",
        "You have requested more vCPU capacity than your current vCPU limit of 0 allows",
    ),
    AuthFailed: (
        "Insufficient_Credit", "You must have at least $10", "payment required", "account_suspended",
        "email not verified", "Invalid API key", "Unauthorized", "account has been banned", "KYC required",
        "permission denied for this resource", "API key disabled", "This key was revoked", "Read-only key",
        "You do not have permission to perform this action", "missing permission: instance_write",
    ),
    Ambiguous: ("Something went wrong. Please try again later.", "Internal Server Error", "upstream timed out"),
    RateLimited: ("Too many requests", "RequestLimitExceeded", "Throttling"),
    ProviderError: (
        "SOME_NEW_CODE_2027", "something new", "Unsupported", "no such image", "invalid disk size", "name too long",
        "cannot read docker image", "port already in use", "image not found: manifest unknown",
        "machine is not verified",
        "name exceeds the maximum length", "disk size exceeds the limit",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in WORDS.items() for text in texts])
def test_what_its_words_plainly_say(kind: type[ProviderError], text: str) -> None:
    for error in (ProviderError(text, code="400"), ProviderError("see the documentation", code=text)):
        read = refusal.read(error, OFFER)
        assert type(read) is kind
        assert (read.code, read.message) == (error.code, error.message), "word for word"


def test_a_quota_closes_the_region_or_all_where_it_is_of_money() -> None:
    quota, money = (refusal.read(ProviderError(text), OFFER) for text in ("Quota exceeded", "spend limit reached"))
    assert isinstance(quota, QuotaExceeded)
    assert isinstance(money, QuotaExceeded)
    assert (quota.scope, money.scope) == ("acme/oslo/spot", "acme")


@pytest.mark.parametrize(
    "error", [Ambiguous("no capacity"), InvalidRequest("no capacity", code="Malformed"), NoCapacity("quota exceeded")]
)
def test_what_an_adapter_knows_stands(error: ProviderError) -> None:
    assert refusal.read(error, OFFER) is error


def test_launches_are_read_so() -> None:
    provider = FakeProvider()
    provider.fail("launch", ProviderError("RESOURCE_POOL_EXHAUSTED in b", code="409"))
    with pytest.raises(NoCapacity) as told:
        wrap(provider).launch(request_for(OFFER))
    assert told.value.code == "409"


def test_a_job_goes_on_once_its_account_has_credit_again(tmp_path: Path) -> None:
    """It waits anyway, so it asks again now and then; one that never had a machine ends at once."""
    stage = Stage(tmp_path, [offer("b1", Market.ON_DEMAND)], restart=60.0, work=600.0)
    job = stage.submit()
    stage.run(job, until=lambda: stage.state(job).live is not None)
    stage.cloud.script("launch", *[AuthFailed("no credit", provider="fake", code="credit")] * 3)
    stage.cloud.take_back("i-0001")
    assert stage.run(job, steps=500).status == "succeeded", stage.story(job)
    assert 3600 < stage.clock() - START < 2 * 3600
    stage.cloud.script("launch", AuthFailed("no credit", provider="fake", code="credit"))
    assert stage.run(stage.submit(), steps=500).status == "unavailable"
    stage.close()


def test_a_quota_that_closes_all_ends_the_job_at_once_and_says_how_to_ask(tmp_path: Path) -> None:
    """Case 19: it does not go away by waiting. One call, and its code is said once."""
    stage = Stage(tmp_path, [offer("a1"), offer("a2"), offer("b1", Market.ON_DEMAND)], restart=60.0)
    code, fix = "MaxSpotInstanceCountExceeded", "ask for 4 vCPUs or more"
    text = f"{code}: Max spot instance count exceeded"
    stage.cloud.script("launch", QuotaExceeded(text, scope="fake", provider="fake", code=code, fix=fix))
    job = stage.submit()
    stage.run(job)
    assert job.status == "unavailable"
    assert stage.clock() - START < 30.0
    assert text in job.message
    assert fix in job.message
    assert [call.name for call in stage.cloud.calls].count("launch") == 1
    (refused,) = [event.text for event in job.events() if event.kind == "refused"]
    assert refused == f"fake/a/a1/v100/spot: QuotaExceeded: {text}"
    stage.close()
