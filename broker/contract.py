"""What is common to all providers, kept in one place around each adapter: `wrap`.

- Reads (`offers`, `instances`, `notice`, price history) and `terminate` are asked again after `RateLimited`, as late as
  its `retry_after` says, and after `ProviderUnavailable`, with growing pauses: `patience` seconds in all, then the last
  error stands. `launch` is sent once: whether to send it again is the core's decision.
- Calls of one kind keep a minimum interval, between threads too.
- The core sees no exception but ours: a stranger becomes a `ProviderError` whose code is the stranger's class. From
  `launch` it becomes `Ambiguous`, because a machine may exist.
- A refused launch that the adapter could not classify is read by its words (`broker.refusal`).

Settings, in any provider's table::

    [providers.vast]
    patience = 15.0                  # seconds
    min_interval = 0.5               # seconds between two calls of one kind
    # min_interval = {instances = 2.0, offers = 1.0}
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from broker import refusal
from broker.errors import Ambiguous, BrokerError, ConfigError, ProviderError, ProviderUnavailable, RateLimited
from broker.offer import Offer, OfferQuery
from broker.provider import (
    ChangesBid,
    Finding,
    GivesIdentity,
    Instance,
    LaunchesAny,
    LaunchRequest,
    Notice,
    PartialOffers,
    PriceHistory,
    PricePoint,
    Provider,
    Reachable,
    Shell,
    Traits,
)

T = TypeVar("T")
PATIENCE = 15.0  # seconds
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 5.0  # seconds, doubled from one to the other, with jitter
CALLS = frozenset(
    {"offers", "launch", "instances", "terminate", "notice", "change_bid", "price_history", "identify", "shell"}
)


class Contract:
    """A provider that keeps the contract for the adapter inside it. Make one by `wrap`."""

    def __init__(
        self,
        adapter: Provider,
        settings: Mapping[str, Any],
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self.adapter = adapter
        self._patience = _seconds(adapter.name, "patience", settings.get("patience", PATIENCE))
        self._pace = Pace(_intervals(adapter.name, settings.get("min_interval", 0.0)), clock=clock, sleep=sleep)
        self._clock, self._sleep = clock, sleep

    @property
    def name(self) -> str:
        return self.adapter.name

    @property
    def traits(self) -> Traits:
        return self.adapter.traits

    def __repr__(self) -> str:
        return f"<provider {self.name}>"

    def offers(self, query: OfferQuery) -> Sequence[Offer]:
        """As `Provider.offers`; the failures inside PartialOffers are translated too."""
        try:
            return self._ask("offers", lambda: self.adapter.offers(query))
        except PartialOffers as partial:
            known = {where: self._translated(error) for where, error in partial.failures.items()}
            raise PartialOffers(partial.offers, known) from partial

    def launch(self, request: LaunchRequest) -> Instance:
        """As `Provider.launch`: sent once, never repeated here."""
        return self._send(lambda: self.adapter.launch(request), request.offer)

    def _send(self, launch: Callable[[], Instance], offer: Offer) -> Instance:
        self._pace.wait("launch")
        try:
            return launch()
        except ProviderError as error:
            meant = refusal.read(error, offer)
            if meant is error:
                raise
            raise meant from error
        except BrokerError:
            raise
        except Exception as error:
            raise Ambiguous(str(error), provider=self.name, code=type(error).__name__) from error

    def instances(self) -> Sequence[Instance]:
        """As `Provider.instances`."""
        return self._ask("instances", self.adapter.instances)

    def terminate(self, instance: Instance) -> None:
        """As `Provider.terminate`."""
        self._ask("terminate", lambda: self.adapter.terminate(instance))

    def notice(self, instance: Instance) -> Notice | None:
        """As `Provider.notice`."""
        return self._ask("notice", lambda: self.adapter.notice(instance))

    def _ask(self, call: str, ask: Callable[[], T]) -> T:
        """Ask, and ask again while that makes sense and `patience` lasts."""
        import tenacity

        deadline = self._clock() + self._patience

        def pause(state: tenacity.RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome else None
            # A vendor may say "now" again and again.
            return max(grow(state), error.retry_after if isinstance(error, RateLimited) else 0.0)

        def too_late(state: tenacity.RetryCallState) -> bool:
            return self._clock() + state.upcoming_sleep > deadline

        def once() -> T:
            self._pace.wait(call)
            return self._translate(ask)

        grow = tenacity.wait_exponential(multiplier=FIRST_PAUSE, max=LONGEST_PAUSE) + tenacity.wait_random(
            0, FIRST_PAUSE
        )
        return tenacity.Retrying(
            retry=tenacity.retry_if_exception_type((RateLimited, ProviderUnavailable)),
            wait=pause,
            stop=too_late,
            sleep=self._sleep,
            reraise=True,
        )(once)

    def _translate(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except (BrokerError, PartialOffers):
            raise
        except Exception as error:
            raise self._translated(error) from error

    def _translated(self, error: Exception) -> BrokerError:
        if isinstance(error, BrokerError):
            return error
        return ProviderError(str(error), provider=self.name, code=type(error).__name__)


class _WithBids(Contract):
    def change_bid(self, instance: Instance, bid: float) -> None:
        adapter = self.adapter
        assert isinstance(adapter, ChangesBid)
        self._pace.wait("change_bid")
        self._translate(lambda: adapter.change_bid(instance, bid))


class _WithHistory(Contract):
    def price_history(self, query: OfferQuery, since: float) -> Sequence[PricePoint]:
        adapter = self.adapter
        assert isinstance(adapter, PriceHistory)
        return self._ask("price_history", lambda: adapter.price_history(query, since))


class _WithAny(Contract):
    def launch_any(self, request: LaunchRequest, offers: Sequence[Offer]) -> Instance:
        """As `launch`: sent once, never repeated here."""
        adapter = self.adapter
        assert isinstance(adapter, LaunchesAny)
        return self._send(lambda: adapter.launch_any(request, offers), request.offer)


class _WithIdentity(Contract):
    def identify(self, name: str, policy: Mapping[str, Any], *, make: bool) -> Sequence[Finding]:
        """As `GivesIdentity.identify`; repeated, since it finishes what a broken call left."""
        adapter = self.adapter
        assert isinstance(adapter, GivesIdentity)
        return self._ask("identify", lambda: adapter.identify(name, policy, make=make))


class _WithShell(Contract):
    def shell(self, instance: Instance) -> Shell:
        """As `Reachable.shell`."""
        adapter = self.adapter
        assert isinstance(adapter, Reachable)
        return self._ask("shell", lambda: adapter.shell(instance))


ABILITIES: tuple[tuple[type, type[Contract]], ...] = (
    (ChangesBid, _WithBids),
    (PriceHistory, _WithHistory),
    (LaunchesAny, _WithAny),
    (Reachable, _WithShell),
    (GivesIdentity, _WithIdentity),
)


def wrap(
    adapter: Provider,
    settings: Mapping[str, Any] | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Contract:
    """Put the contract around an adapter; the result has the optional capabilities that the adapter has.

    settings: the provider's table; `patience` and `min_interval` are read here. Raises ConfigError that names the key.
    """
    able = tuple(part for ability, part in ABILITIES if isinstance(adapter, ability))
    kind: type[Contract] = type("Contract", able, {}) if able else Contract
    return kind(adapter, settings or {}, clock=clock, sleep=sleep)


class Pace:
    """At least so many seconds between two calls of one kind, over all threads."""

    def __init__(
        self, intervals: Mapping[str, float], *, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        self._intervals, self._clock, self._sleep = intervals, clock, sleep
        self._free: dict[str, float] = {}
        self._lock = threading.Lock()

    def wait(self, call: str) -> None:
        """Take the next free moment for a call of that kind and wait for it."""
        interval = self._intervals.get(call, 0.0)
        if not interval:
            return
        with self._lock:
            now = self._clock()
            mine = max(now, self._free.get(call, now))
            self._free[call] = mine + interval
        if mine > now:
            self._sleep(mine - now)


def _intervals(name: str, setting: Any) -> dict[str, float]:
    if not isinstance(setting, Mapping):
        seconds = _seconds(name, "min_interval", setting)
        return dict.fromkeys(CALLS, seconds)
    for call in setting:
        if call not in CALLS:
            raise ConfigError(
                f"providers.{name}.min_interval.{call}: no such call", fix=f"calls: {', '.join(sorted(CALLS))}"
            )
    return {call: _seconds(name, f"min_interval.{call}", seconds) for call, seconds in setting.items()}


def _seconds(name: str, key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ConfigError(f"providers.{name}.{key} must be a number of seconds, not {value!r}")
    return float(value)
