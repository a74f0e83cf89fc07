"""The way into a machine of EC2 for a person: Session Manager, where the machine has an instance profile."""

from __future__ import annotations

from pathlib import Path

import boto3
import pytest
from clouds.aws.server import Aws

from broker.errors import ConfigError
from broker.offer import Market, Offer, OfferQuery
from broker.testing.conformance import request_for
from broker_aws import AwsProvider


@pytest.fixture
def provider(aws: Aws, aws_state: Path) -> AwsProvider:
    return AwsProvider(aws.settings(), aws_state)


@pytest.fixture
def offer(provider: AwsProvider) -> Offer:
    query = OfferQuery(gpu="L4", gpu_count=1, markets=(Market.ON_DEMAND,))
    return next(offer for offer in provider.offers(query) if offer.zone == "us-east-1a")


def test_a_machine_without_a_profile_takes_nobody_in(provider: AwsProvider, offer: Offer) -> None:
    instance = provider.launch(request_for(offer))
    with pytest.raises(ConfigError, match="no key pair and no open port") as told:
        provider.shell(instance)
    assert "AmazonSSMManagedInstanceCore" in told.value.fix
    (raw,) = provider.account.client("ec2", "us-east-1").describe_instances(InstanceIds=[instance.id])["Reservations"]
    assert "KeyName" not in raw["Instances"][0]


def test_one_with_a_profile_is_entered_by_session_manager(provider: AwsProvider, offer: Offer) -> None:
    iam = boto3.client("iam", region_name="us-east-1")
    iam.create_instance_profile(InstanceProfileName="looking")
    instance = provider.launch(request_for(offer))
    ec2 = provider.account.client("ec2", "us-east-1")
    ec2.associate_iam_instance_profile(IamInstanceProfile={"Name": "looking"}, InstanceId=instance.id)
    shell = provider.shell(instance)
    assert shell.argv == ("aws", "ssm", "start-session", "--region", "us-east-1", "--target", instance.id)
    assert (shell.commands, shell.become) == (False, ("sudo",))
    assert "instance profile looking" in shell.needs
