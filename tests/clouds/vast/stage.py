"""What tests of the adapter stand on: one account behind a server, and adapters that talk to it."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from clouds.vast.account import Account, Host
from clouds.vast.server import VastServer
from clouds.vast.spec import spec_or_none

from broker.offer import Market, Offer, OfferQuery
from broker.provider import OfferList
from broker_vast import VastProvider

QUERY = OfferQuery(gpu="RTX4090", gpu_count=1)
PACE = 0.001  # the least that the setting takes
NAMES = hashlib.sha256(b'"gpu_names"').hexdigest()[:32] + ".json"


class Stage:
    """A context manager; `server.problems` must be empty at its end. scale: of the server's own limits, 0 for none."""

    def __init__(self, state: Path, *, scale: float = 0.0, **account: Any) -> None:
        self.state, self.account = state, Account(**account)
        self.server = VastServer(self.account, scale=scale, spec=spec_or_none())
        self.numbers = itertools.count()

    def __enter__(self) -> Self:
        self.server.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.__exit__(kind, error, trace)
        if kind is None:
            assert not self.server.problems, self.server.problems

    def host(self, **changes: Any) -> Host:
        """One more host that offers a machine."""
        number = next(self.numbers)
        ids = {"ask": 31_550_000 + number, "machine_id": 40_100 + number, "host_id": 9_000 + number}
        made = Host(**{**ids, **changes})
        self.account.add(made)
        return made

    def provider(self, **settings: Any) -> VastProvider:
        """An adapter as a new process would open it. At the usual pace here an answer is good for 15 ms: no test waits
        for that to be over, or hurries.
        """
        answers = self.state / "vast" / "answers"
        for path in answers.iterdir() if "pace" not in settings and answers.is_dir() else ():
            if path.name != NAMES:
                path.unlink(missing_ok=True)
        table = {"api": self.server.url, "key": self.account.key, "pace": PACE, **settings}
        return VastProvider({name: value for name, value in table.items() if value is not None}, self.state)

    def offers(self, query: OfferQuery = QUERY, **settings: Any) -> OfferList:
        found = self.provider(**settings).offers(query)
        assert isinstance(found, OfferList)
        return found

    def offer(self, market: Market = Market.SPOT, query: OfferQuery = QUERY) -> Offer:
        """The cheapest offer of a market."""
        found = [offer for offer in self.offers(query) if offer.market is market]
        return min(found, key=lambda offer: offer.hourly)
