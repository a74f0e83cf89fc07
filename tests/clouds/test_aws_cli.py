"""AWS's own command line judges the stand-in: what it shows is what the adapter's tests rest on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clouds.aws.cli import client
from clouds.aws.server import Aws

from broker.offer import Market, OfferQuery
from broker_aws import AwsProvider

pytestmark = pytest.mark.slow


@pytest.fixture
def asked(aws: Aws) -> Iterator[Callable[..., Any]]:
    with client(aws.variables()) as made:
        yield made


def test_describe_run_terminate(aws: Aws, asked: Callable[..., Any], tmp_path: Path) -> None:
    ec2 = ("ec2", "--region", "us-east-1")
    regions = [one["RegionName"] for one in asked(*ec2, "describe-regions")["Regions"]]
    assert regions == ["us-east-1", "us-west-2"]
    provider = AwsProvider(aws.settings(), tmp_path)
    query = OfferQuery(gpu="L4", gpu_count=1, markets=(Market.SPOT,), infra=("aws/us-east-1",))
    offer = next(o for o in provider.offers(query) if o.instance_type == "g6.xlarge")
    launch = (
        *("run-instances", "--image-id", offer.extra["ami"], "--instance-type", "g6.xlarge", "--client-token", "t-1"),
        *("--placement", f"AvailabilityZone={offer.zone}", "--instance-market-options", "MarketType=spot"),
        *("--tag-specifications", "ResourceType=instance,Tags=[{Key=spotbroker-installation,Value=cli}]"),
    )
    (one,) = asked(*ec2, *launch)["Instances"]
    (again,) = asked(*ec2, *launch)["Instances"]
    assert one["InstanceId"] == again["InstanceId"]
    assert one["InstanceLifecycle"] == "spot"
    (listed,) = provider.instances()
    assert listed.id == one["InstanceId"]
    aws.world.notice_seconds = 60
    aws.world.take_back(listed.id, notice=True)
    (request,) = asked(*ec2, "describe-spot-instance-requests")["SpotInstanceRequests"]
    assert (request["InstanceId"], request["Status"]["Code"]) == (listed.id, "marked-for-termination")
    (ending,) = asked(*ec2, "terminate-instances", "--instance-ids", listed.id)["TerminatingInstances"]
    assert ending["CurrentState"]["Name"] == "shutting-down"
    (reservation,) = asked(*ec2, "describe-instances", "--instance-ids", listed.id)["Reservations"]
    assert reservation["Instances"][0]["StateReason"]["Code"] == "Client.UserInitiatedShutdown"


def test_price_history_in_pages(aws: Aws, asked: Callable[..., Any], tmp_path: Path) -> None:
    provider = AwsProvider(aws.settings(), tmp_path)
    query = OfferQuery(gpu="L4", gpu_count=1, markets=(Market.SPOT,), infra=("aws/us-west-2",))
    ours = {(o.zone, o.price) for o in provider.offers(query) if o.instance_type == "g6.xlarge"}
    aws.world.calls.clear()
    history = asked(
        *("ec2", "describe-spot-price-history", "--region", "us-west-2", "--instance-types", "g6.xlarge"),
        *("--product-descriptions", "Linux/UNIX", "--start-time", "2026-01-01T00:00:00Z", "--page-size", "2"),
    )["SpotPriceHistory"]
    assert {(row["AvailabilityZone"], float(row["SpotPrice"])) for row in history} == ours
    assert len(aws.world.sent("DescribeSpotPriceHistory")) == (len(history) + 1) // 2
    everything = asked(
        *("ec2", "describe-spot-price-history", "--region", "us-west-2", "--instance-types", "g6.xlarge"),
        *("--start-time", "2020-01-01T00:00:00Z"),
    )["SpotPriceHistory"]
    assert len(everything) == 3 * len(history), "older prices and Windows, which the adapter must not take"
    assert [row["Timestamp"] for row in everything] == sorted((row["Timestamp"] for row in everything), reverse=True)
