"""Rights that are missing one by one, and answers of EC2 that are empty, torn or at odds with one another."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from clouds.aws.server import Aws
from clouds.aws.state import Ami, Row

from broker.errors import (
    AuthFailed,
    InvalidRequest,
    NoCapacity,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
)
from broker.offer import Market, Offer, OfferQuery
from broker.policy.infra import within
from broker.provider import PartialOffers
from broker.testing.conformance import request_for
from broker_aws import AwsProvider
from broker_aws.kept import EMPTY, Kept

L4 = OfferQuery(gpu="L4", gpu_count=1)
SPOT = replace(L4, markets=(Market.SPOT,))
EAST = replace(SPOT, infra=("aws/us-east-1",))


@pytest.fixture
def provider(aws: Aws, tmp_path: Path) -> AwsProvider:
    return AwsProvider(aws.settings(), tmp_path)


@pytest.fixture
def known(aws: Aws, aws_state: Path) -> AwsProvider:
    """One that may have learnt before what the test leaves as it is."""
    return AwsProvider(aws.settings(), aws_state)


def cheapest(provider: AwsProvider, query: OfferQuery = EAST) -> list[Offer]:
    return sorted(provider.offers(query), key=lambda offer: (offer.hourly, offer.key))


@pytest.mark.parametrize(
    ("action", "where"),
    [
        ("DescribeAvailabilityZones", "aws/us-west-2"),
        ("DescribeInstanceTypes", "aws/us-west-2"),
        ("DescribeInstanceTypeOfferings", "aws/us-west-2"),
        ("DescribeSpotPriceHistory", "aws/us-west-2"),
        ("GetParameters", "aws/us-west-2/image"),
        ("DescribeImages", "aws/us-west-2/image"),
    ],
)
def test_what_one_region_may_not_be_asked_is_named(aws: Aws, provider: AwsProvider, action: str, where: str) -> None:
    aws.world.fail(action, "UnauthorizedOperation", 403, region="us-west-2", times=1000)
    with pytest.raises(PartialOffers) as caught:
        provider.offers(SPOT)
    assert {offer.region for offer in caught.value.offers} >= {"us-east-1"}
    (error,) = caught.value.failures.values()
    assert list(caught.value.failures) == [where]
    assert isinstance(error, AuthFailed)
    assert "README.md" in error.fix


def test_machines_stand_though_nobody_may_ask_for_their_notices(aws: Aws, known: AwsProvider) -> None:
    """Their guests see the notice; a machine that could not be listed could not be seen to end."""
    launched = known.launch(request_for(cheapest(known)[0]))
    aws.world.notice_seconds = 60.0
    aws.world.take_back(launched.id, notice=True)
    aws.world.fail("DescribeSpotInstanceRequests", "UnauthorizedOperation", 403)
    (found,) = known.instances()
    assert (found.id, found.notice) == (launched.id, None)
    aws.world.fail("DescribeSpotInstanceRequests", "Unavailable", 503)
    with pytest.raises(ProviderUnavailable):
        known.instances()
    (found,) = known.instances()
    assert found.notice is not None


@pytest.mark.parametrize("action", ["CreateLaunchTemplate", "CreateFleet"])
def test_without_the_right_to_fleets_the_best_offer_is_rented_alone(aws: Aws, known: AwsProvider, action: str) -> None:
    aws.world.fail(action, "UnauthorizedOperation", 403, times=2)
    offers = cheapest(known)
    request = request_for(offers[0])
    instance = known.launch_any(request, offers)
    assert (instance.zone, instance.instance_type) == (offers[0].zone, offers[0].instance_type)
    assert known.launch_any(request, offers).id == instance.id
    assert len(aws.world.charges) == 1


def test_a_machine_that_may_not_be_ended_is_an_error_and_goes_on(aws: Aws, known: AwsProvider) -> None:
    launched = known.launch(request_for(cheapest(known)[0]))
    aws.world.fail("CreateTags", "UnauthorizedOperation", 403)
    aws.world.fail("TerminateInstances", "UnauthorizedOperation", 403)
    with pytest.raises(AuthFailed) as caught:
        known.terminate(launched)
    assert "README.md" in caught.value.fix
    aws.world.fail("TerminateInstances", "OperationNotPermitted")
    with pytest.raises(ProviderError, match="OperationNotPermitted") as kept:
        known.terminate(launched)
    assert "--region us-east-1 --instance-id ID --no-disable-api-termination" in kept.value.fix
    assert known.instances()[0].alive


def test_a_list_of_no_regions_is_no_list_of_no_machines(aws: Aws, provider: AwsProvider) -> None:
    launched = provider.launch(request_for(cheapest(provider)[0]))
    (provider.state / provider.account.owner() / "regions.json").unlink()
    everywhere = {"us-east-1", "us-west-2", *aws.world.zones}
    from clouds.aws.state import CLOSED, OPEN

    aws.world.unlisted = everywhere | {*OPEN, *CLOSED}
    with pytest.raises(ProviderUnavailable, match="no region"):
        provider.instances()
    aws.world.unlisted = {"us-east-1"}
    (provider.state / provider.account.owner() / "regions.json").unlink()
    (found,) = provider.instances()
    assert found.id == launched.id, "where something was launched is asked, listed or not"


def test_nothing_is_kept_for_a_minute_only(tmp_path: Path) -> None:
    """A region that has no types or no zones for once would be left out for a day."""
    now = [1_800_000_000.0]
    kept = Kept(tmp_path, lambda: now[0])
    assert kept.get("types", 86_400.0, list) == []
    assert kept.get("types", 86_400.0, lambda: [1]) == []
    now[0] += EMPTY + 1
    assert kept.get("types", 86_400.0, lambda: [1]) == [1]
    now[0] += EMPTY + 1
    assert kept.get("types", 86_400.0, lambda: [2]) == [1]


def test_a_list_whose_next_page_is_refused_is_unknown(aws: Aws, known: AwsProvider) -> None:
    aws.world.fail("DescribeInstances", "InvalidNextToken", region="us-east-1")
    with pytest.raises(ProviderUnavailable):
        known.instances()


def test_rows_of_other_products_and_torn_ones_are_no_prices(aws: Aws, provider: AwsProvider) -> None:
    aws.world.enabled, aws.world.loose_history = ["us-west-2"], True
    zone, now = aws.world.zone_rows("us-west-2")[0].name, time.time()
    row = Row(zone, "g6.xlarge", "0.5", now - 9000)
    others = ("Windows", "Windows (Amazon VPC)", "SUSE Linux", "SUSE Linux (Amazon VPC)", "Red Hat Enterprise Linux")
    aws.world.spot_rows["us-west-2"] = [
        *(replace(row, product=product, price="0.01", at=now - 60) for product in others),
        row,
        row,
        replace(row, product="Linux/UNIX (Amazon VPC)", price="0.4", at=now - 60),
        replace(row, zone="", price="0.02", at=now),
        replace(row, type="", price="0.02", at=now),
    ]
    with pytest.raises(PartialOffers) as caught:
        provider.offers(SPOT)
    assert [(o.zone, o.instance_type, o.price) for o in caught.value.offers] == [(zone, "g6.xlarge", 0.4)]


def test_prices_in_yuan_are_not_taken_for_dollars(aws: Aws, provider: AwsProvider) -> None:
    aws.world.enabled = ["us-west-2", "cn-north-1"]
    with pytest.raises(PartialOffers) as caught:
        provider.offers(SPOT)
    assert {offer.region for offer in caught.value.offers} == {"us-west-2"}
    assert "CNY" in str(caught.value.failures["aws/cn-north-1"])


def test_a_zone_that_is_down_is_left_out(aws: Aws, provider: AwsProvider) -> None:
    first, *rest = aws.world.zone_rows("us-west-2")
    aws.world.enabled = ["us-west-2"]
    aws.world.zones["us-west-2"] = [replace(first, state="unavailable"), *rest]
    zones = {offer.zone for offer in provider.offers(SPOT)}
    assert zones
    assert first.name not in zones


@pytest.mark.parametrize("billed", ["Red Hat Enterprise Linux", "SUSE Linux", "Windows", "Ubuntu Pro"])
def test_an_image_that_is_billed_as_another_system_is_not_rented(aws: Aws, provider: AwsProvider, billed: str) -> None:
    """Its machines cost more than those of Linux, and nothing here knows how much."""
    ami = "ami-0123456789abcdef1"
    aws.world.amis["us-west-2"][ami] = Ami("/dev/sda1", 20, "x86_64", billed)
    try:
        offers = provider.offers(replace(SPOT, image=ami))
    finally:
        del aws.world.amis["us-west-2"][ami]
    assert {offer.region for offer in offers} == {"us-west-2"}
    assert all(f"billed as {billed}" in offer.blocked for offer in offers)


def test_an_image_whose_terms_are_not_accepted_is_the_tasks_fault(aws: Aws, known: AwsProvider) -> None:
    """EC2 uses the code of regions that are not enabled, which is another thing to do."""
    told = "In order to use this AWS Marketplace product you need to accept terms and subscribe. Visit https://x/y"
    aws.world.fail("RunInstances", "OptInRequired", 401, message=told)
    with pytest.raises(InvalidRequest, match="https://x/y") as caught:
        known.launch(request_for(cheapest(known)[0]))
    assert "terms" in caught.value.fix
    aws.world.fail(
        "RunInstances",
        "OptInRequired",
        401,
        message="You are not subscribed to this service. Go to https://x to subscribe.",
    )
    with pytest.raises(ProviderError) as region:
        known.launch(request_for(cheapest(known)[0]))
    assert "terms" not in region.value.fix


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("SignatureDoesNotMatch", "Signature expired: 20260820T115000Z is now earlier than 20260820T120500Z"),
        ("SignatureDoesNotMatch", "Signature not yet current: 20260820T123000Z is still later than 20260820T121500Z"),
        ("InvalidSignatureException", "Signature expired: 20260820T115000Z is now earlier than 20260820T120500Z"),
    ],
)
def test_a_signature_of_another_time_is_the_clocks_fault(aws: Aws, known: AwsProvider, code: str, message: str) -> None:
    aws.world.fail("GetCallerIdentity", code, 403, message=message)
    (only,) = known.check()
    assert not only.ok
    assert "clock" in only.fix


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        ("InvalidParameterValue", "Invalid value 'g6.xlarge' for InstanceType.", InvalidRequest),
        ("InvalidParameterValue", "The requested instance type's boot mode uefi is not supported", ProviderError),
        ("InvalidParameterCombination", "The instance type is not supported with these parameters.", ProviderError),
        ("InvalidParameterValue", "User data is limited to 16384 bytes", InvalidRequest),
    ],
)
def test_what_one_type_cannot_do_ends_no_job(
    aws: Aws, known: AwsProvider, code: str, message: str, kind: type[ProviderError]
) -> None:
    aws.world.fail("RunInstances", code, message=message)
    with pytest.raises(kind) as caught:
        known.launch(request_for(cheapest(known)[0]))
    assert type(caught.value) is kind
    assert not aws.world.charges


def test_a_fleet_whose_template_ec2_has_not_heard_of_ends_no_job(aws: Aws, known: AwsProvider) -> None:
    aws.world.template_lag = 1
    offers = cheapest(known)
    with pytest.raises(ProviderUnavailable, match="InvalidLaunchTemplateName"):
        known.launch_any(request_for(offers[0]), offers)
    assert known.launch_any(request_for(offers[0], generation=2), offers).alive


def test_a_fleet_of_an_image_that_was_replaced_ends_no_job(aws: Aws, known: AwsProvider) -> None:
    offers = cheapest(known)
    for offer in offers:
        aws.world.refused[offer.instance_type] = ("InvalidAMIID.NotFound", "The image id does not exist")
    with pytest.raises(ProviderError) as caught:
        known.launch_any(request_for(offers[0]), offers)
    assert type(caught.value) is ProviderError


def test_an_odd_word_about_one_type_of_a_fleet_is_not_the_whole_fleets(aws: Aws, known: AwsProvider) -> None:
    offers = cheapest(known)
    aws.world.no_capacity = {offer.key.removeprefix("aws/") for offer in offers}
    aws.world.refused[offers[-1].instance_type] = ("InvalidFleetThing", "never heard of")
    with pytest.raises(NoCapacity, match=r"InsufficientInstanceCapacity, InvalidFleetThing"):
        known.launch_any(request_for(offers[0]), offers)


def test_a_quota_that_one_type_of_a_fleet_has_used_up_closes_its_family_alone(aws: Aws, known: AwsProvider) -> None:
    """Which offer an error is of is in the fleet's answer, and need not be the one that the request is of."""
    both = [
        *cheapest(known),
        *cheapest(known, OfferQuery(gpu="H100", gpu_count=1, infra=EAST.infra, markets=(Market.SPOT,))),
    ]
    g, p = both[0], both[-1]
    aws.world.quotas = {("us-east-1", "L-C4BD4855"): 0}
    aws.world.no_capacity = {offer.key.removeprefix("aws/") for offer in both}
    with pytest.raises(QuotaExceeded) as caught:
        known.launch_any(request_for(g), [g, p])
    assert "All P5 Spot Instance Requests" in caught.value.fix
    assert within(caught.value.scope, p)
    assert not within(caught.value.scope, g)
    assert not within(caught.value.scope, replace(p, market=Market.ON_DEMAND))
    assert not within(caught.value.scope, replace(p, region="us-west-2"))
