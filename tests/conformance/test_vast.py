"""`vast` keeps the provider contract, over a stand-in that speaks Vast's API, judged by the vendor's files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clouds.vast.account import Account, Host
from clouds.vast.server import VastServer
from clouds.vast.spec import spec_or_none

from broker.errors import NoCapacity, ProviderError, QuotaExceeded
from broker.offer import Offer, OfferQuery
from broker.provider import Instance, Provider
from broker.testing import wait_for
from broker.testing.conformance import ProviderConformance
from broker_vast import VastProvider

SCALE = 0.002  # of the documented times between two calls, as the stand-in insists on them
PACE = 0.01  # as the adapter keeps them: the more, the less a busy computer matters


class VastHand:
    """The other side of the stand-in, over the same account."""

    def __init__(self, server: VastServer, state: Path) -> None:
        self.server, self.account, self.state = server, server.account, state

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        lag = VastProvider.traits.list_lag
        return wait_for(condition, seconds - lag + 0.05 if lag <= seconds < 2 * lag else min(seconds, 5.0))

    def reconnect(self) -> Provider:
        return provider_of(self.server, self.state)

    def take_back(self, instance: Instance, *, notice: bool) -> None:
        if notice:
            raise NotImplementedError("Vast gives no notice")
        self.account.outbid(self.account.contracts[int(instance.id)])

    def delete(self, instance: Instance) -> None:
        self.account.destroy(self.account.contracts[int(instance.id)])

    def refuse(self, offer: Offer, error: type[ProviderError] | str) -> None:
        if error is NoCapacity:
            word = "error 404/3603: no_such_ask  Instance type by id is not available."
            self.server.lies.refuse.append((400, {"success": False, "error": "invalid_args", "msg": word}))
        elif error is QuotaExceeded:
            self.server.lies.refuse.append((400, {"success": False, "error": "spend_rate_limit", "msg": "new account"}))
        else:
            self.server.lies.refuse.append((400, {"success": False, "error": str(error), "msg": "who knows"}))

    def fail_after_create(self) -> None:
        self.server.lies.lose_answer = 1

    def hide(self, seconds: float) -> None:
        self.server.lies.hide = seconds

    def leave_unanswered(self, call: str) -> None:
        endpoint = {"instances": "GET /api/v1/instances/", "offers": "POST /api/v0/bundles/"}[call]
        self.server.lies.broken[endpoint] = ["502"]


def provider_of(server: VastServer, state: Path) -> Provider:
    return VastProvider({"api": server.url, "key": server.account.key, "pace": PACE}, state)


class TestVast(ProviderConformance):
    @pytest.fixture
    def server(self) -> Iterator[VastServer]:
        account = Account(boot=0.05)
        account.add(*(Host(31_550_000 + n, 40_100 + n, 9_000 + n, dph=0.36 + n / 100, parts=4) for n in range(3)))
        with VastServer(account, scale=SCALE, spec=spec_or_none()) as server:
            yield server
        assert not server.problems

    @pytest.fixture
    def provider(self, server: VastServer, tmp_path: Path) -> Provider:
        return provider_of(server, tmp_path)

    @pytest.fixture
    def query(self) -> OfferQuery:
        return OfferQuery(gpu="RTX4090", gpu_count=1)

    @pytest.fixture
    def hand(self, server: VastServer, tmp_path: Path) -> VastHand:
        return VastHand(server, tmp_path)
