"""The conformance suite's hand over the Lambda stand-in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from clouds.lambda_cloud.cloud import Lambda

from broker.errors import NoCapacity, ProviderError, QuotaExceeded
from broker.offer import Offer
from broker.provider import Instance, Provider
from broker.testing import wait_for
from broker_lambda import LambdaProvider

LATE = 0.1  # real seconds for which a new machine is left out of lists when it is hidden
SETTLED = 0.15  # real seconds that stand for the list's lag
CODES = {NoCapacity: "instance-operations/launch/insufficient-capacity", QuotaExceeded: "global/quota-exceeded"}


class LambdaHand:
    def __init__(self, cloud: Lambda, state: Path) -> None:
        self.cloud, self.state = cloud, state

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        lag = LambdaProvider.traits.list_lag
        return wait_for(condition, SETTLED if seconds <= lag + 2.0 else 5.0)

    def reconnect(self) -> Provider:
        return opened(self.cloud, self.state)

    def take_back(self, instance: Instance, *, notice: bool) -> None:
        if notice:
            raise NotImplementedError("Lambda gives no notice")
        self.cloud.take_back(instance.id)

    def delete(self, instance: Instance) -> None:
        self.cloud.terminate(instance.id)

    def refuse(self, offer: Offer, error: type[ProviderError] | str) -> None:
        self.cloud.faults.add("refuse", error if isinstance(error, str) else CODES[error])

    def fail_after_create(self) -> None:
        self.cloud.faults.add("lose answer")

    def hide(self, seconds: float) -> None:
        self.cloud.hidden_for = LATE

    def leave_unanswered(self, call: str) -> None:
        self.cloud.faults.add(call, 502)


def opened(cloud: Lambda, state: Path, **settings: object) -> LambdaProvider:
    """The provider of the stand-in's account, as a process opens it."""
    return LambdaProvider({"api": cloud.api, "key": "secret_TESTKEY", "pace": 0, **settings}, state)
