"""`local` keeps the provider contract."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from broker.errors import ProviderError
from broker.offer import Offer, OfferQuery
from broker.provider import Instance, Provider
from broker.testing import wait_for
from broker.testing.conformance import ProviderConformance
from broker_local import LocalProvider, cloud

NOTICE = 1.0  # seconds; the true times are in test_local_machines.py


class LocalHand:
    """The local cloud's own hand, over the same folder."""

    def __init__(self, state: Path) -> None:
        self.state, self.root = state, state / "local"

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        return wait_for(condition, min(seconds, 20.0))

    def reconnect(self) -> Provider:
        return LocalProvider({}, self.state)

    def take_back(self, instance: Instance, *, notice: bool) -> None:
        cloud.take_back(self.root, instance.id, "aws" if notice else "vast", seconds=NOTICE if notice else None)

    def delete(self, instance: Instance) -> None:
        cloud.delete_by_hand(self.root, instance.id)

    def refuse(self, offer: Offer, error: type[ProviderError] | str) -> None:
        code = error if isinstance(error, str) else error.__name__
        cloud.refuse(self.root, offer.key, code, times=1)

    def fail_after_create(self) -> None:
        cloud.fail_after_create(self.root)

    def hide(self, seconds: float) -> None:
        cloud.hide_for(self.root, seconds)

    def leave_unanswered(self, call: str) -> None:
        cloud.fail_calls(self.root, call)


class TestLocal(ProviderConformance):
    @pytest.fixture
    def provider(self, tmp_path: Path) -> Provider:
        return LocalProvider({}, tmp_path)

    @pytest.fixture
    def query(self) -> OfferQuery:
        return OfferQuery()

    @pytest.fixture
    def hand(self, tmp_path: Path) -> LocalHand:
        return LocalHand(tmp_path)
