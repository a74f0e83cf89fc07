"""What `aws` sends to rent a machine, what it makes of refusals, and how machines are listed and ended."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from clouds.aws import inputs
from clouds.aws.server import Aws
from clouds.aws.state import Ami

from broker import contract
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
from broker.offer import Market, Offer, OfferQuery
from broker.placement import token_of
from broker.policy.choose import Memory, Wish, choose
from broker.provider import Cause, LaunchRequest, State
from broker.testing.conformance import request_for
from broker_aws import AwsProvider

L4 = OfferQuery(gpu="L4", gpu_count=1)
KINDS: Mapping[str, type[Exception]] = {
    "capacity": NoCapacity,
    "quota": QuotaExceeded,
    "not-here": NoCapacity,
    "auth": AuthFailed,
    "unknown": ProviderError,
}


@pytest.fixture
def provider(aws: Aws, aws_state: Path) -> AwsProvider:
    return AwsProvider(aws.settings(), aws_state)


def spot_offer(provider: AwsProvider, zone: str = "us-east-1a", kind: str = "g6.xlarge") -> Offer:
    query = replace(L4, markets=(Market.SPOT,))
    return next(o for o in provider.offers(query) if (o.zone, o.instance_type) == (zone, kind))


def on_demand_offer(provider: AwsProvider) -> Offer:
    return next(o for o in provider.offers(replace(L4, markets=(Market.ON_DEMAND,))) if o.zone == "us-east-1a")


def rented(aws: Aws) -> int:
    return len(aws.world.charges)


def test_what_a_spot_launch_sends(aws: Aws, provider: AwsProvider) -> None:
    request = request_for(spot_offer(provider), user_data="#!/bin/sh\necho hällo\n")
    instance = provider.launch(replace(request, disk=37.2))
    (sent,) = aws.world.sent("RunInstances")
    tags = {
        kind: {
            sent[f"TagSpecification.{n}.Tag.{m}.Key"]: sent[f"TagSpecification.{n}.Tag.{m}.Value"] for m in range(1, 7)
        }
        for n, kind in ((n, sent[f"TagSpecification.{n}.ResourceType"]) for n in (1, 2, 3))
    }
    assert tags.keys() == {"instance", "volume", "spot-instances-request"}
    assert all(dict(request.tags).items() <= found.items() for found in tags.values())
    wanted = {
        "ClientToken": request.token,
        "MinCount": "1",
        "MaxCount": "1",
        "InstanceType": "g6.xlarge",
        "Placement.AvailabilityZone": "us-east-1a",
        "InstanceMarketOptions.MarketType": "spot",
        "InstanceMarketOptions.SpotOptions.SpotInstanceType": "one-time",
        "InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior": "terminate",
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions.HttpTokens": "required",
        "MetadataOptions.HttpPutResponseHopLimit": "2",
        "BlockDeviceMapping.1.DeviceName": "/dev/sda1",
        "BlockDeviceMapping.1.Ebs.VolumeSize": "38",
        "BlockDeviceMapping.1.Ebs.VolumeType": "gp3",
        "BlockDeviceMapping.1.Ebs.DeleteOnTermination": "true",
    }
    assert wanted.items() <= dict(sent).items()
    assert base64.b64decode(sent["UserData"]).decode() == request.user_data
    assert not [key for key in sent if "KeyName" in key or "MaxPrice" in key or "SubnetId" in key]
    assert instance.hourly == request.offer.hourly
    provider.terminate(instance)
    assert not boto3.client("ec2").describe_volumes()["Volumes"], "its disk is billed no more"


def test_the_disk_is_never_smaller_than_what_was_priced(aws: Aws, provider: AwsProvider) -> None:
    """A task's own wish may be less than what its image needs; the offer has the larger of them."""
    offer = spot_offer(provider)
    provider.launch(replace(request_for(offer), disk=2.0))
    (sent,) = aws.world.sent("RunInstances")
    assert sent["BlockDeviceMapping.1.Ebs.VolumeSize"] == f"{offer.disk:.0f}" == "20"


def test_an_on_demand_launch_has_no_market_options(aws: Aws, provider: AwsProvider) -> None:
    instance = provider.launch(request_for(on_demand_offer(provider)))
    (sent,) = aws.world.sent("RunInstances")
    assert not [key for key in sent if "MarketOptions" in key]
    assert instance.market is Market.ON_DEMAND
    (listed,) = provider.instances()
    assert listed.market is Market.ON_DEMAND
    assert not aws.world.sent("DescribeSpotInstanceRequests"), "there is no spot machine to ask for"


def test_settings_reach_the_launch(aws: Aws, tmp_path: Path) -> None:
    client = boto3.client("ec2", region_name="us-east-1")
    subnet = next(s for s in client.describe_subnets()["Subnets"] if s["AvailabilityZone"] == "us-east-1a")
    group = client.describe_security_groups()["SecurityGroups"][0]["GroupId"]
    settings = {
        **aws.settings(),
        "subnets": {"us-east-1": [subnet["SubnetId"]]},
        "security_groups": {"us-east-1": [group]},
    }
    provider = AwsProvider(settings, tmp_path)
    provider.launch(request_for(spot_offer(provider)))
    (sent,) = aws.world.sent("RunInstances")
    assert sent["SubnetId"] == subnet["SubnetId"]
    assert sent["SecurityGroupId.1"] == group
    assert not [key for key in sent if "IamInstanceProfile" in key]
    assert "Placement.AvailabilityZone" not in sent


def test_a_bid_is_the_machines_without_its_disk_and_its_address(aws: Aws, provider: AwsProvider) -> None:
    offer = spot_offer(provider)
    with pytest.raises(NoCapacity, match="SpotMaxPriceTooLow"):
        provider.launch(replace(request_for(offer), bid=offer.hourly * 0.9))
    provider.launch(replace(request_for(offer), bid=offer.hourly * 1.01))
    asked = float(aws.world.sent("RunInstances")[-1]["InstanceMarketOptions.SpotOptions.MaxPrice"])
    assert asked == pytest.approx(offer.price + 0.01 * offer.hourly, abs=1e-6)
    assert rented(aws) == 1


@pytest.mark.parametrize(
    "entry",
    [
        {"code": "InsufficientInstanceCapacity", "class": "capacity", "status": 500},
        {"code": "InsufficientCapacity", "class": "capacity"},
        {"code": "InsufficientHostCapacity", "class": "capacity"},
        {"code": "InsufficientReservedInstanceCapacity", "class": "capacity"},
        {"code": "UnfulfillableCapacity", "class": "capacity"},
        {"code": "InsufficientFreeAddressesInSubnet", "class": "capacity"},
        {"code": "InstanceLimitExceeded", "class": "quota"},
        {"code": "VolumeLimitExceeded", "class": "quota"},
        {"code": "PendingVerification", "class": "quota"},
        {"code": "OptInRequired", "class": "quota"},
        {"code": "VPCIdNotSpecified", "class": "quota"},
        {"code": "ExpiredToken", "class": "auth"},
        {"code": "AuthFailure.ServiceLinkedRoleCreationNotPermitted", "class": "auth"},
        {"code": "SOME_NEW_CODE_2027", "class": "unknown"},
        {"code": "InsufficientInstanceCapacityForType", "class": "capacity", "status": 500},
        {"code": "ZoneCapacityExhausted", "class": "capacity"},
        {"code": "ReservationCapacityExceeded", "class": "capacity"},
        {"code": "Server.InsufficientInstanceCapacity", "class": "capacity", "status": 500},
        {"code": "SpotInstanceCountExceeded", "class": "quota", "scope": "aws/us-east-1/*/[gv]*/spot"},
        {"code": "SpotVcpuLimitExceeded", "class": "quota", "scope": "aws/us-east-1/*/[gv]*/spot"},
        {"code": "InstanceQuotaExceeded", "class": "quota", "scope": "aws/us-east-1/*/[gv]*/spot"},
        {
            "code": "InvalidParameterValue",
            "message": "Invalid availability zone: [us-east-1e]",
            "class": "capacity",
        },
    ],
    ids=lambda entry: entry["code"],
)
def test_what_refusals_mean(aws: Aws, provider: AwsProvider, entry: dict[str, Any]) -> None:
    refused_as(aws, provider, entry)


def test_refusals_of_case_18(aws: Aws, provider: AwsProvider) -> None:
    """Case 18: the classes of the codes that are EC2's; each is sent once, whatever its status."""
    mine = [entry for entry in inputs.data("cases/inputs/c18_errors.json") if entry["p"] == "aws"]
    assert len(mine) > 4
    for entry in mine:
        refused_as(aws, provider, {**entry, "status": 500 if entry["code"].endswith("Capacity") else 400})


def refused_as(aws: Aws, provider: AwsProvider, entry: Mapping[str, Any]) -> None:
    aws.world.calls.clear()
    said = {"message": entry["message"]} if "message" in entry else {}
    aws.world.fail("RunInstances", entry["code"], entry.get("status", 400), **said)
    kind = KINDS[entry["class"]]
    with pytest.raises(kind) as caught:
        provider.launch(request_for(spot_offer(provider)))
    assert type(caught.value) is kind
    assert caught.value.code == entry["code"], "word for word"
    if "scope" in entry:
        assert getattr(caught.value, "scope", "") == entry["scope"]
    assert len(aws.world.sent("RunInstances")) == 1, "the SDK sends it again by itself"
    assert not rented(aws)


def test_throttled_launches_say_so(aws: Aws, provider: AwsProvider) -> None:
    aws.world.fail("RunInstances", "RequestLimitExceeded", 503)
    with pytest.raises(RateLimited):
        provider.launch(request_for(spot_offer(provider)))
    assert not rented(aws)


def test_a_region_that_the_organisation_bars_is_skipped_alone(aws: Aws, provider: AwsProvider) -> None:
    text = "You are not authorized: with an explicit deny in a service control policy."
    aws.world.fail("RunInstances", "UnauthorizedOperation", 403, message=text)
    with pytest.raises(QuotaExceeded) as caught:
        provider.launch(request_for(spot_offer(provider)))
    assert caught.value.scope == "aws/us-east-1"


def test_a_quota_closes_its_scope_after_one_call(aws: Aws, tmp_path: Path) -> None:
    """Case 19: one call in the region, none in its other zones, then elsewhere; on demand has a quota of its own."""
    provider = AwsProvider(aws.settings(), tmp_path)
    case = inputs.data("cases/inputs/c19_replies.json")
    aws.world.enabled = [case["region"]]
    aws.world.fail("RunInstances", case["reply_each"]["Error"]["Code"], times=1000)
    elsewhere = replace(spot_offer(provider), provider="gcp", region="us-central1", zone="us-central1-a", price=9.0)
    wish, memory, now = Wish(queries=(L4,), spot="auto"), Memory(), time.time()
    taken: list[str] = []
    offers = [*provider.offers(L4), elsewhere]
    while True:
        offer = choose(offers, wish=wish, memory=memory, now=now).offer
        assert offer is not None
        taken.append(offer.key)
        if offer.provider == "gcp":
            break
        with pytest.raises(QuotaExceeded) as caught:
            provider.launch(request_for(offer))
        memory = memory.refused(offer, caught.value, now)
        if offer.market is Market.SPOT:
            assert caught.value.scope == "aws/us-east-1/*/[gv]*/spot"
            assert "All G and VT Spot Instance Requests" in caught.value.fix
            assert "servicequotas" in caught.value.fix
            aws.world.faults.clear()
            aws.world.fail("RunInstances", "VcpuLimitExceeded", times=1000)
    assert [key.split("/")[-1] for key in taken] == ["spot", "on_demand", "spot"]
    assert len(aws.world.sent("RunInstances")) == 2


def test_quotas_are_those_of_the_account(aws: Aws, provider: AwsProvider) -> None:
    aws.world.quotas = {("us-east-1", "L-3819A6DF"): 4, ("us-east-1", "L-DB2E81BA"): 0}
    provider.launch(request_for(spot_offer(provider)))
    with pytest.raises(QuotaExceeded, match="MaxSpotInstanceCountExceeded"):
        provider.launch(request_for(spot_offer(provider)))
    with pytest.raises(QuotaExceeded, match="VcpuLimitExceeded") as caught:
        provider.launch(request_for(on_demand_offer(provider)))
    assert caught.value.scope == "aws/us-east-1/*/[gv]*/on_demand"
    assert rented(aws) == 1


def test_a_machine_that_ec2_does_not_know_yet(aws: Aws, provider: AwsProvider) -> None:
    """Case 22: NotFound within two minutes of the launch is asked again; one machine, and it is not forgotten."""
    whole = contract.wrap(provider)
    script = inputs.data("cases/inputs/c22_script.json")["DescribeInstances"]
    launched = whole.launch(request_for(spot_offer(provider)))
    aws.world.fail("DescribeInstances", script[0], times=script.count(script[0]), region="us-east-1")
    (found,) = whole.instances()
    assert found.id == launched.id
    assert rented(aws) == 1
    aws.world.fail("CreateTags", "InvalidInstanceID.NotFound")
    aws.world.fail("TerminateInstances", "InvalidInstanceID.NotFound")
    whole.terminate(launched)
    (found,) = whole.instances()
    assert found.alive, "what EC2 did not know is still listed, so it is ended again"
    whole.terminate(launched)
    (found,) = whole.instances()
    assert (found.state, found.cause) == (State.TERMINATED, Cause.BROKER)


@pytest.mark.parametrize("how", ["a 500", "a broken connection"])
def test_a_launch_without_an_answer(aws: Aws, provider: AwsProvider, how: str) -> None:
    """Case 24: it may have made a machine, so it says so; the same request again is the same machine."""
    request = request_for(spot_offer(provider))
    if how == "a 500":
        aws.world.lose_answers = 1
    else:
        aws.world.break_connections = 1
    with pytest.raises(Ambiguous):
        provider.launch(request)
    assert len(aws.world.sent("RunInstances")) == 1
    (found,) = provider.instances()
    assert (found.job, found.generation) == (request.job, request.generation)
    assert provider.launch(request).id == found.id
    assert rented(aws) == 1


def test_nothing_sent_is_nothing_rented(aws: Aws, provider: AwsProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    request = request_for(spot_offer(provider))
    monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", "http://127.0.0.1:9")
    with pytest.raises(ProviderUnavailable):
        fresh(provider).launch(request)
    assert not rented(aws)


def fresh(provider: AwsProvider) -> AwsProvider:
    """The same settings and folder, as a new process has them."""
    return AwsProvider({"advisor_url": provider.settings.advisor_url}, provider.state.parent)


def test_tokens_over_attempts_and_a_restart(aws: Aws, provider: AwsProvider) -> None:
    """Case 25: both calls of attempt 1 are one machine; after its end attempts 2 and 3 are machines of their own."""
    script = [step for step in inputs.data("cases/inputs/c25_script.json") if "attempt" in step]
    assert [step["attempt"] for step in script] == [1, 1, 2, 3]
    zones = {"a": spot_offer(provider, "us-east-1a"), "b": spot_offer(provider, "us-east-1b")}

    def request(step: Mapping[str, Any]) -> LaunchRequest:
        offer, number = zones[step["zone"]], step["attempt"]
        made = request_for(offer, job="job7", generation=number)
        return replace(made, token=token_of("installation", "job7", number, offer, None))

    aws.world.lose_answers = 1
    with pytest.raises(Ambiguous):
        provider.launch(request(script[0]))
    first = fresh(provider).launch(request(script[1]))
    aws.world.take_back(first.id, notice=False)
    second, third = (fresh(provider).launch(request(step)) for step in script[2:])
    assert len({first.id, second.id, third.id}) == rented(aws) == 3
    again = provider.launch(request(script[0]))
    assert (again.id, again.state, again.cause) == (first.id, State.TERMINATED, Cause.PREEMPTED)
    assert rented(aws) == 3


def test_a_token_of_another_request(aws: Aws, provider: AwsProvider) -> None:
    request = request_for(spot_offer(provider))
    provider.launch(request)
    for changed in (
        replace(request, offer=spot_offer(provider, "us-east-1b")),
        replace(request, disk=99.0),
        replace(request, generation=2),
    ):
        with pytest.raises(InvalidRequest, match="IdempotentParameterMismatch"):
            provider.launch(changed)
    assert rented(aws) == 1


def test_a_token_whose_machine_cannot_be_looked_up_leaves_open_what_was_made(aws: Aws, provider: AwsProvider) -> None:
    request = request_for(spot_offer(provider))
    provider.launch(request)
    aws.world.fail("DescribeInstances", "InternalError", 500)
    with pytest.raises(Ambiguous):
        provider.launch(replace(request, disk=99.0))
    assert rented(aws) == 1


def test_the_same_request_after_the_settings_changed_is_the_same_machine(aws: Aws, provider: AwsProvider) -> None:
    """EC2 sees other parameters; the request's own mark on the machine says that it is the same placement."""
    request = request_for(spot_offer(provider))
    first = provider.launch(request)
    group = boto3.client("ec2").describe_security_groups()["SecurityGroups"][0]["GroupId"]
    settings = {**aws.settings(), "security_groups": {"us-east-1": [group]}}
    assert AwsProvider(settings, provider.state.parent).launch(request).id == first.id
    assert rented(aws) == 1


def test_a_token_that_ec2_forgot_is_caught_by_nobody(aws: Aws, provider: AwsProvider) -> None:
    """After a day EC2 forgets tokens. The core sends no request older than ten minutes; this is why it must not."""
    aws.world.token_life = 0.0
    request = request_for(spot_offer(provider))
    assert provider.launch(request).id != provider.launch(request).id


def test_an_image_that_does_not_exist(aws: Aws, provider: AwsProvider) -> None:
    offer = spot_offer(provider)
    with pytest.raises(InvalidRequest, match="ami-0deadbeef0000000"):
        provider.launch(replace(request_for(offer), image="ami-0deadbeef0000000"))
    gone = replace(offer, extra={**offer.extra, "ami": "ami-0deadbeef0000000"})
    with pytest.raises(ProviderError) as caught:
        provider.launch(request_for(gone))
    assert type(caught.value) is ProviderError, "an image of ours that was replaced is not the task's fault"
    assert not rented(aws)


def test_a_root_disk_that_is_too_small(aws: Aws, provider: AwsProvider) -> None:
    """An image may grow between the offer and the launch; EC2 refuses then, and the text says what to do."""
    offer = spot_offer(provider)
    known = aws.world.amis["us-east-1"]
    old = known[offer.extra["ami"]]
    known[offer.extra["ami"]] = Ami(old.root, 75, old.arch)
    try:
        with pytest.raises(InvalidRequest) as caught:
            provider.launch(request_for(offer))
        assert "disk_size: 75" in caught.value.fix
        assert not rented(aws)
        there = AwsProvider(aws.settings(), provider.state / "new").offers(L4)
        larger = next(one for one in there if one.region == offer.region)
        assert larger.disk == 75, "offers price the disk that the image needs"
    finally:
        known[offer.extra["ami"]] = old


def test_a_full_subnet(aws: Aws, tmp_path: Path) -> None:
    subnet = boto3.client("ec2", region_name="us-east-1").describe_subnets()["Subnets"][0]
    provider = AwsProvider({**aws.settings(), "subnets": {"us-east-1": [subnet["SubnetId"]]}}, tmp_path)
    aws.world.full_subnets = {subnet["SubnetId"]}
    offer = next(o for o in provider.offers(replace(L4, markets=(Market.SPOT,))) if o.region == "us-east-1")
    with pytest.raises(NoCapacity, match="free addresses") as caught:
        provider.launch(request_for(offer))
    assert "subnets" in caught.value.fix
    assert not rented(aws)


def test_a_zone_without_a_default_subnet_is_passed_over(aws: Aws, provider: AwsProvider) -> None:
    offer = spot_offer(provider)
    client = boto3.client("ec2", region_name="us-east-1")
    for subnet in client.describe_subnets()["Subnets"]:
        if subnet["AvailabilityZone"] == offer.zone:
            client.delete_subnet(SubnetId=subnet["SubnetId"])
    with pytest.raises(NoCapacity, match="No default subnet") as caught:
        provider.launch(request_for(offer))
    assert f"create-default-subnet --region us-east-1 --availability-zone {offer.zone}" in caught.value.fix
    assert provider.launch(request_for(spot_offer(provider, "us-east-1b"))).id


def test_user_data_has_a_limit(aws: Aws, provider: AwsProvider) -> None:
    offer = spot_offer(provider)
    provider.launch(request_for(offer, user_data="#" * 16_384))
    with pytest.raises(InvalidRequest, match="16385 bytes"):
        provider.launch(request_for(offer, user_data="#" * 16_385))
    assert rented(aws) == 1


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("Server.SpotInstanceTermination", Cause.PREEMPTED),
        ("Server.SpotInstanceShutdown", Cause.PREEMPTED),
        ("Client.InstanceInitiatedShutdown", Cause.SELF),
        ("Client.UserInitiatedShutdown", Cause.USER),
        ("Server.InternalError", Cause.FAILED),
        ("Client.VolumeLimitExceeded", Cause.FAILED),
        ("Client.InternalError", Cause.FAILED),
        ("Server.InsufficientInstanceCapacity", Cause.FAILED),
    ],
)
def test_why_a_machine_ended(aws: Aws, provider: AwsProvider, code: str, cause: Cause) -> None:
    launched = provider.launch(request_for(spot_offer(provider)))
    aws.world.end(launched.id, code, "so it is")
    (found,) = provider.instances()
    assert (found.state, found.cause) == (State.TERMINATED, cause)
    assert found.ended_at is not None
    assert abs(found.ended_at - time.time()) < 30
    assert found.word.startswith(f"{code}: so it is" if cause is Cause.FAILED else "")
    assert ("KMS key" in found.word) is (code == "Client.InternalError")
    provider.terminate(found)
    (found,) = provider.instances()
    assert found.cause is (Cause.BROKER if cause is Cause.USER else cause)


def test_a_notice_has_its_moment(aws: Aws, provider: AwsProvider) -> None:
    aws.world.notice_seconds = 30.0
    launched = provider.launch(request_for(spot_offer(provider)))
    other = provider.launch(request_for(spot_offer(provider)))
    aws.world.take_back(launched.id, notice=True)
    seen = {one.id: one.notice for one in provider.instances()}
    assert seen[other.id] is None
    notice = seen[launched.id]
    assert notice is not None
    assert notice == provider.notice(launched)
    assert abs(notice.at - time.time()) < 30
    assert notice.ends_at == notice.at + 120
    assert notice.kind == "terminate"


def test_all_pages_of_machines(aws: Aws, provider: AwsProvider) -> None:
    offer = spot_offer(provider)
    ids = {provider.launch(request_for(offer)).id for _ in range(7)}
    aws.world.page = 5
    assert {one.id for one in provider.instances()} == ids
    aws.world.calls.clear()
    assert {one.id for one in fresh(provider).instances()} == ids
    assert aws.world.counted()["ec2:DescribeInstances"] == 3, "two pages here, one in the other region"


def test_machines_that_are_not_ours_are_not_listed(aws: Aws, provider: AwsProvider) -> None:
    offer = spot_offer(provider)
    boto3.client("ec2").run_instances(ImageId=offer.extra["ami"], InstanceType="g6.xlarge", MinCount=1, MaxCount=1)
    assert provider.instances() == []


def test_a_region_that_is_silent_is_an_error(aws: Aws, provider: AwsProvider) -> None:
    provider.launch(request_for(spot_offer(provider)))
    aws.world.fail("DescribeInstances", "Unavailable", 503, region="us-west-2")
    with pytest.raises(ProviderUnavailable):
        provider.instances()


def test_a_barred_region_counts_only_where_something_was_launched(aws: Aws, tmp_path: Path) -> None:
    provider = AwsProvider(aws.settings(), tmp_path)
    provider.launch(request_for(spot_offer(provider)))
    aws.world.fail("DescribeInstances", "UnauthorizedOperation", 403, times=1, region="us-west-2")
    assert len(provider.instances()) == 1
    aws.world.fail("DescribeInstances", "UnauthorizedOperation", 403, times=1, region="us-east-1")
    with pytest.raises(AuthFailed):
        provider.instances()


def test_the_price_is_on_the_machine(aws: Aws, provider: AwsProvider) -> None:
    """Whoever lists it later sees what it costs, whatever the market says then; and it is what is charged."""
    offer = spot_offer(provider)
    launched = provider.launch(request_for(offer))
    aws.world.spot_rows["us-east-1"] = []
    (found,) = fresh(provider).instances()
    assert found.hourly == launched.hourly == offer.hourly
    assert aws.world.charges[launched.id].hourly == pytest.approx(offer.hourly)
    assert dict(found.tags) == dict(launched.tags)


def test_settings_that_are_wrong_name_their_key(tmp_path: Path) -> None:
    for settings, key in (
        ({"region": "us-east-1"}, "region"),
        ({"regions": "us-east-1"}, "regions"),
        ({"subnets": ["subnet-1"]}, "subnets"),
        ({"subnets": {"us-east-1": "subnet-1"}}, "subnets.us-east-1"),
        ({"placement_scores": "yes"}, "placement_scores"),
    ):
        with pytest.raises(ConfigError, match=f"providers.aws.{key}"):
            AwsProvider(settings, tmp_path)
    AwsProvider({"patience": 3.0, "min_interval": 0.1}, tmp_path)
