"""`runpod` keeps the provider contract: on the spot market, which GraphQL rents out, and on demand, by REST v2."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from clouds.runpod.cloud import RunPod
from clouds.runpod.hand import RunPodHand, opened

from broker.offer import Market, OfferQuery
from broker.provider import Provider
from broker.testing.conformance import ProviderConformance


@pytest.fixture
def cloud() -> Iterator[RunPod]:
    made = RunPod()
    made.start()
    yield made
    made.close()
    assert not made.faults_of_ours


class TestRunPod(ProviderConformance):
    @pytest.fixture
    def provider(self, cloud: RunPod, tmp_path: Path) -> Provider:
        return opened(cloud, tmp_path)

    @pytest.fixture
    def query(self) -> OfferQuery:
        return OfferQuery(gpu="RTX4090", gpu_count=1)

    @pytest.fixture
    def hand(self, cloud: RunPod, tmp_path: Path) -> RunPodHand:
        return RunPodHand(cloud, tmp_path)


class TestOnDemand(TestRunPod):
    @pytest.fixture
    def query(self) -> OfferQuery:
        return OfferQuery(gpu="A40", gpu_count=4, markets=(Market.ON_DEMAND,))
