"""One call that rents whichever of many offers EC2 can give best."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import boto3
import pytest
from clouds.aws.server import Aws

from broker.errors import Ambiguous, InvalidRequest, NoCapacity, QuotaExceeded
from broker.offer import Market, Offer, OfferQuery
from broker.provider import TAG_INSTALLATION, LaunchesAny
from broker.testing.conformance import request_for
from broker_aws import AwsProvider, fleet

QUERY = OfferQuery(gpu="L4", gpu_count=1, infra=("aws/us-east-1",), markets=(Market.SPOT,))


@pytest.fixture
def provider(aws: Aws, aws_state: Path) -> AwsProvider:
    return AwsProvider(aws.settings(), aws_state)


@pytest.fixture
def offers(provider: AwsProvider) -> list[Offer]:
    return sorted(provider.offers(QUERY), key=lambda offer: offer.hourly)


def overrides(sent: Mapping[str, str]) -> int:
    return len([key for key in sent if key.endswith(".InstanceType") and ".Overrides." in key])


def templates() -> list[str]:
    return [one["LaunchTemplateId"] for one in boto3.client("ec2").describe_launch_templates()["LaunchTemplates"]]


def test_one_call_with_ten_overrides_and_more(aws: Aws, provider: AwsProvider, offers: list[Offer]) -> None:
    assert isinstance(provider, LaunchesAny)
    assert len(offers) >= 10
    request = request_for(offers[3])
    instance = provider.launch_any(request, offers)
    (sent,) = aws.world.sent("CreateFleet")
    assert overrides(sent) == min(len(offers), fleet.MOST) >= 10
    assert sent["Type"] == "instant"
    assert sent["SpotOptions.AllocationStrategy"] == "price-capacity-optimized"
    assert sent["ClientToken"] == request.token
    assert (instance.instance_type, instance.zone) == (offers[0].instance_type, offers[0].zone), "the cheapest won"
    assert instance.hourly == offers[0].hourly
    assert instance.market is Market.SPOT
    assert not templates(), "the template is gone with the call"


def test_whoever_lists_it_knows_what_the_winner_costs(aws: Aws, provider: AwsProvider, offers: list[Offer]) -> None:
    first, second = offers[:2]
    aws.world.no_capacity = {first.key.removeprefix("aws/")}
    request = request_for(first)
    instance = provider.launch_any(request, offers)  # its answer has the first one's error and the second's machine
    assert (instance.instance_type, instance.zone, instance.hourly) == (
        second.instance_type,
        second.zone,
        second.hourly,
    )
    (listed,) = provider.instances()
    assert (listed.id, listed.hourly, listed.zone) == (instance.id, instance.hourly, instance.zone)
    assert dict(listed.tags) == dict(request.tags) == dict(instance.tags)
    (sent,) = aws.world.sent("CreateLaunchTemplate")
    assert sent["LaunchTemplateData.MetadataOptions.HttpTokens"] == "required"
    assert sent["LaunchTemplateData.InstanceInitiatedShutdownBehavior"] == "terminate"
    assert aws.world.charges[instance.id].hourly == pytest.approx(second.hourly)


def test_the_same_request_is_the_same_machine(aws: Aws, provider: AwsProvider, offers: list[Offer]) -> None:
    """Though its template was deleted and made again, and though the answer to the first call was lost."""
    request = request_for(offers[0])
    aws.world.lose_answers = 1
    with pytest.raises(Ambiguous):
        provider.launch_any(request, offers)
    (made,) = provider.instances()
    assert provider.launch_any(request, offers).id == made.id
    aws.world.fail("DeleteLaunchTemplate", "InternalError", 500)
    assert provider.launch_any(request, offers).id == made.id
    assert templates(), "left by a broken call, and no reason to refuse the next"
    assert provider.launch_any(request, offers).id == made.id
    assert len(aws.world.charges) == 1


def test_the_token_of_another_request(aws: Aws, provider: AwsProvider, offers: list[Offer]) -> None:
    """EC2 refuses other parameters; a machine of this very request is found by its mark, any other is not ours."""
    request = request_for(offers[0])
    made = provider.launch_any(request, offers)
    assert provider.launch_any(request, offers[:5]).id == made.id
    with pytest.raises(InvalidRequest, match="IdempotentParameterMismatch"):
        provider.launch_any(replace(request, generation=2), offers[:5])
    assert len(aws.world.charges) == 1


def test_none_of_them_can_be_had(aws: Aws, provider: AwsProvider, offers: list[Offer]) -> None:
    aws.world.no_capacity = {offer.key.removeprefix("aws/") for offer in offers}
    with pytest.raises(NoCapacity, match="InsufficientInstanceCapacity"):
        provider.launch_any(request_for(offers[0]), offers)
    assert not aws.world.charges
    assert not templates()


def test_a_quota_is_a_quota_here_too(aws: Aws, provider: AwsProvider, offers: list[Offer]) -> None:
    aws.world.quotas = {("us-east-1", "L-3819A6DF"): 0}
    with pytest.raises(QuotaExceeded) as caught:
        provider.launch_any(request_for(offers[0]), offers)
    assert caught.value.scope == "aws/us-east-1/*/[gv]*/spot"


def test_only_spot_offers_of_one_region(aws: Aws, provider: AwsProvider, offers: list[Offer]) -> None:
    request = request_for(offers[0])
    for wrong in (
        [*offers, replace(offers[0], region="us-west-2")],
        [*offers, replace(offers[0], market=Market.ON_DEMAND)],
        offers[1:],
    ):
        with pytest.raises(InvalidRequest):
            provider.launch_any(request, wrong)
    assert not aws.world.sent("CreateFleet")


def test_what_a_broken_call_left_is_swept(aws: Aws, provider: AwsProvider, offers: list[Offer]) -> None:
    aws.world.fail("CreateFleet", "InternalError", 500)
    aws.world.fail("DeleteLaunchTemplate", "InternalError", 500)
    with pytest.raises(Ambiguous):
        provider.launch_any(request_for(offers[0]), offers)
    (left,) = templates()
    provider.launch_any(request_for(offers[0]), offers)
    assert templates() == [left], "young ones may belong to a call that is still on its way"
    other = boto3.client("ec2").create_launch_template(
        LaunchTemplateName="somebody-else's", LaunchTemplateData={"InstanceType": "t3.micro"}
    )
    age(left, dt.timedelta(seconds=fleet.OLD + 60))
    age(other["LaunchTemplate"]["LaunchTemplateId"], dt.timedelta(days=9))
    provider.launch_any(request_for(offers[0]), offers)
    assert templates() == [other["LaunchTemplate"]["LaunchTemplateId"]]
    assert TAG_INSTALLATION in aws.world.sent("CreateLaunchTemplate")[0]["TagSpecification.1.Tag.1.Key"]


def age(template: str, by: dt.timedelta) -> None:
    """Let a template be older than it is."""
    from moto.ec2.models import ec2_backends

    backend = ec2_backends["123456789012"]["us-east-1"]
    backend.launch_templates[template].create_time -= by
