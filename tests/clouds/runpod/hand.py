"""The conformance suite's hand over the RunPod stand-in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from clouds.runpod.cloud import RunPod

from broker.errors import ProviderError
from broker.offer import Offer
from broker.provider import Instance, Provider
from broker.testing import wait_for
from broker_runpod import RunPodProvider

LATE = 0.1  # real seconds for which a new pod is left out of lists when it is hidden
SETTLED = 0.15  # real seconds that stand for the list's lag


class RunPodHand:
    def __init__(self, cloud: RunPod, state: Path) -> None:
        self.cloud, self.state = cloud, state

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        lag = RunPodProvider.traits.list_lag
        return wait_for(condition, SETTLED if seconds <= lag + 2.0 else 5.0)

    def reconnect(self) -> Provider:
        return opened(self.cloud, self.state)

    def take_back(self, instance: Instance, *, notice: bool) -> None:
        if notice:
            raise NotImplementedError("RunPod's control plane gives no notice; the pod gets SIGTERM")
        if not self.cloud.pods[instance.id].spot:
            raise NotImplementedError("RunPod takes back no pod on demand")
        self.cloud.outbid(instance.id)

    def delete(self, instance: Instance) -> None:
        self.cloud.stop_by_hand(instance.id)

    def refuse(self, offer: Offer, error: type[ProviderError] | str) -> None:
        self.cloud.faults.add("refuse", error if isinstance(error, str) else error.__name__)

    def fail_after_create(self) -> None:
        self.cloud.faults.add("lose answer")

    def hide(self, seconds: float) -> None:
        self.cloud.hidden_for = LATE

    def leave_unanswered(self, call: str) -> None:
        self.cloud.faults.add(call, 502)


def opened(cloud: RunPod, state: Path, **settings: object) -> RunPodProvider:
    """The provider of the stand-in's account, as a process opens it."""
    return RunPodProvider({"api": cloud.url, "key": "rpa_TESTKEY", **settings}, state)
