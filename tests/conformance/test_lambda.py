"""`lambda` keeps the provider contract."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from clouds.lambda_cloud.cloud import Lambda
from clouds.lambda_cloud.hand import LambdaHand, opened

from broker.offer import OfferQuery
from broker.provider import Provider
from broker.testing.conformance import ProviderConformance


class TestLambda(ProviderConformance):
    @pytest.fixture
    def cloud(self) -> Iterator[Lambda]:
        made = Lambda()
        made.start()
        yield made
        made.close()
        assert not made.faults_of_ours

    @pytest.fixture
    def provider(self, cloud: Lambda, tmp_path: Path) -> Provider:
        return opened(cloud, tmp_path)

    @pytest.fixture
    def query(self) -> OfferQuery:
        return OfferQuery(gpu="A10", gpu_count=1)

    @pytest.fixture
    def hand(self, cloud: Lambda, tmp_path: Path) -> LambdaHand:
        return LambdaHand(cloud, tmp_path)
