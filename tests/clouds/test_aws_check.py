"""`check`: what works for an account and what does not, with the fix."""

from __future__ import annotations

from pathlib import Path

import pytest
from clouds.aws.server import Aws

from broker.provider import Checks, Finding
from broker_aws import AwsProvider


@pytest.fixture
def provider(aws: Aws, tmp_path: Path) -> AwsProvider:
    return AwsProvider(aws.settings(), tmp_path)


def found(provider: AwsProvider) -> dict[str, Finding]:
    assert isinstance(provider, Checks)
    return {one.what: one for one in provider.check()}


def test_all_is_well(provider: AwsProvider) -> None:
    seen = found(provider)
    assert all(one.ok for one in seen.values()), seen
    assert seen.keys() >= {"identity", "clock", "regions", "rights", "price list", "networks"}
    assert "arn:aws:" in seen["identity"].found
    assert seen["regions"].found == "2 of 2 enabled are used"
    assert len([what for what in seen if what.startswith("quota: ")]) == 7


def test_nothing_is_rented(aws: Aws, provider: AwsProvider) -> None:
    found(provider)
    assert not aws.world.charges
    reads = ("Describe", "Get", "List")
    real = [name for _, _, name, told in aws.world.calls if told.get("DryRun") != "true" and not name.startswith(reads)]
    assert not real
    assert aws.world.sent("RunInstances")


def test_a_new_account_has_no_spot_quota(aws: Aws, provider: AwsProvider) -> None:
    """A quota of nothing is what stops most new accounts; the line says where to ask."""
    for region in aws.world.enabled:
        aws.world.quotas[region, "L-C4BD4855"] = 0
    aws.world.quotas["us-west-2", "L-3819A6DF"] = 8
    aws.world.quotas["us-east-1", "L-3819A6DF"] = 0
    seen = found(provider)
    p5 = seen["quota: All P5 Spot Instance Requests"]
    assert not p5.ok
    assert "servicequotas/home/services/ec2/quotas/L-C4BD4855" in p5.fix
    assert seen["quota: All G and VT Spot Instance Requests"].found == "vCPUs: us-west-2 8"


def test_a_wrong_key(aws: Aws, provider: AwsProvider) -> None:
    aws.world.fail("GetCallerIdentity", "InvalidClientTokenId", 403)
    (only,) = provider.check()
    assert (only.what, only.ok) == ("identity", False)
    assert "aws configure" in only.fix


def test_rights_that_are_missing_are_named_one_by_one(aws: Aws, provider: AwsProvider) -> None:
    for action in ("ListServiceQuotas", "GetProducts"):
        aws.world.fail(action, "AccessDeniedException", times=1000)
    aws.world.fail("DescribeVpcs", "UnauthorizedOperation", 403, region="us-west-2")
    seen = found(provider)
    assert {what for what, one in seen.items() if not one.ok} == {"quotas", "price list", "networks"}
    assert all("README.md" in seen[what].fix for what in ("quotas", "price list", "networks"))


@pytest.mark.parametrize(
    "action",
    [
        "DescribeInstanceTypes",
        "DescribeInstanceTypeOfferings",
        "DescribeSpotPriceHistory",
        "DescribeImages",
        "DescribeSpotInstanceRequests",
        "DescribeLaunchTemplates",
        "CreateLaunchTemplate",
        "CreateFleet",
        "RunInstances",
    ],
)
def test_a_right_to_look_or_to_rent_that_is_missing_is_named(aws: Aws, action: str, aws_state: Path) -> None:
    """Before anything is rented: EC2 says so of a dry run."""
    aws.world.fail(action, "UnauthorizedOperation", 403)
    seen = {one.what: one for one in AwsProvider(aws.settings(), aws_state).check()}
    assert not seen["rights"].ok
    assert f"ec2:{action}" in seen["rights"].found
    assert [what for what, one in seen.items() if not one.ok] == ["rights"]


def test_a_region_without_a_network(aws: Aws, provider: AwsProvider) -> None:
    import boto3

    client = boto3.client("ec2", region_name="us-west-2")
    (vpc,) = client.describe_vpcs()["Vpcs"]
    for subnet in client.describe_subnets()["Subnets"]:
        client.delete_subnet(SubnetId=subnet["SubnetId"])
    client.delete_vpc(VpcId=vpc["VpcId"])
    network = found(provider)["networks"]
    assert (network.ok, network.found) == (False, "no default VPC in us-west-2")
    assert "create-default-vpc --region us-west-2" in network.fix


def test_a_region_of_the_settings_that_is_closed(aws: Aws, tmp_path: Path) -> None:
    provider = AwsProvider({**aws.settings(), "regions": ["us-west-2", "me-south-1"]}, tmp_path)
    regions = found(provider)["regions"]
    assert not regions.ok
    assert "me-south-1" in regions.fix


def test_a_clock_that_is_off(aws: Aws, provider: AwsProvider) -> None:
    aws.world.clock = 200.0
    clock = found(provider)["clock"]
    assert not clock.ok
    assert "behind AWS's" in clock.found
    aws.world.clock = 20.0
    assert found(provider)["clock"].ok


def test_no_answer_at_all(provider: AwsProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    (only,) = provider.check()
    assert not only.ok
    assert "cannot be reached" in only.found
