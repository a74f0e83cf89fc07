"""`aws` keeps the provider contract, through boto3, against a server that behaves like EC2."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from clouds.aws.server import Aws

from broker.errors import NoCapacity, ProviderError, QuotaExceeded
from broker.offer import Offer, OfferQuery
from broker.provider import Instance, Provider
from broker.testing import wait_for
from broker.testing.conformance import ProviderConformance
from broker_aws import AwsProvider

LONGEST = 20.0  # real seconds that any wait may take here
SLOW = 2.0  # how much longer what passes soon takes here, so that a busy computer does not miss it


class AwsHand:
    """EC2's own hand, over the stand-in's state."""

    def __init__(self, aws: Aws, state: Path) -> None:
        self.aws, self.world, self.state = aws, aws.world, state

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """The list's lag is here what a test hides machines for; every other wait ends with its condition."""
        if seconds >= AwsProvider.traits.list_lag and seconds < AwsProvider.traits.list_lag + 2:
            seconds = self.world.hidden
        return wait_for(condition, min(seconds, LONGEST))

    def reconnect(self) -> Provider:
        return AwsProvider(self.aws.settings(), self.state)

    def take_back(self, instance: Instance, *, notice: bool) -> None:
        self.world.notice_seconds = SLOW
        self.world.take_back(instance.id, notice=notice)

    def delete(self, instance: Instance) -> None:
        self.world.end(instance.id, "Client.UserInitiatedShutdown", "User initiated shutdown")

    def refuse(self, offer: Offer, error: type[ProviderError] | str) -> None:
        if error is NoCapacity:
            self.world.fail("RunInstances", "InsufficientInstanceCapacity", 500)
        elif error is QuotaExceeded:
            self.world.fail("RunInstances", "MaxSpotInstanceCountExceeded")
        elif isinstance(error, str):
            self.world.fail("RunInstances", error)
        else:
            raise NotImplementedError(error.__name__)

    def fail_after_create(self) -> None:
        self.world.lose_answers = 1

    def hide(self, seconds: float) -> None:
        self.world.hidden = SLOW * seconds

    def leave_unanswered(self, call: str) -> None:
        actions = {"instances": "DescribeInstances", "offers": "DescribeSpotPriceHistory"}
        self.world.fail(actions[call], "Unavailable", 503)


class TestAws(ProviderConformance):
    @pytest.fixture
    def provider(self, aws: Aws, aws_state: Path) -> Provider:
        return AwsProvider(aws.settings(), aws_state)

    @pytest.fixture
    def query(self) -> OfferQuery:
        return OfferQuery(gpu="L4", gpu_count=1, cpus=2)

    @pytest.fixture
    def hand(self, aws: Aws, aws_state: Path) -> AwsHand:
        return AwsHand(aws, aws_state)
