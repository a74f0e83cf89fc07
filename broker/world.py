"""What the phases of a job work with: configuration, store, providers, homes. One per live broker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.config import Config, Limits
from broker.home import Home
from broker.provider import Provider
from broker.store import Store

if TYPE_CHECKING:
    from broker.experience import Records
    from broker.market import Marketplace, OfferBook
    from broker.offer import OfferQuery


@dataclass
class World:
    """clock: seconds since the epoch. Providers and homes are opened once and kept."""

    config: Config
    store: Store
    clock: Callable[[], float]
    installation: str
    _providers: dict[str, Provider] = field(default_factory=dict)
    _homes: dict[str, Home] = field(default_factory=dict)
    _market: Marketplace | None = None
    _records: Records | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def provider(self, name: str) -> Provider:
        """The provider of that name. Raises ConfigError where it is not installed or not configured."""
        from broker import registry

        with self._lock:
            if name not in self._providers:
                self._providers[name] = registry.get(name, self.config)
            return self._providers[name]

    def home(self, url: str) -> Home:
        """The broker's own access to the home of a job. Raises HomeUnavailable where its folder is gone."""
        from broker.access import own

        with self._lock:
            if url not in self._homes:
                self._homes[url] = Home(own(self.config, url), make=False)
            return self._homes[url]

    @property
    def market(self) -> Marketplace:
        from broker.market import Marketplace

        with self._lock:
            if self._market is None:
                self._market = Marketplace(self.config, on_look=self._looked)
            return self._market

    @property
    def records(self) -> Records:
        """What this installation has seen."""
        from broker.experience import Records

        with self._lock:
            if self._records is None:
                self._records = Records(self.store)
            return self._records

    def _looked(self, queries: Sequence[OfferQuery], book: OfferBook, answered: frozenset[str]) -> None:
        self.records.looked(queries, book.offers, self.clock(), answered=answered)

    def limits(self, *, simulated: bool) -> Limits:
        """The seconds that apply to a machine; a simulated one lives faster."""
        return self.config.limits(simulated=simulated)
