"""The market: what every provider offers now, asked side by side.

A provider that fails or is late never spoils the others' answers: it is named in `OfferBook.failures`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from broker import identity
from broker.balance import payable
from broker.config import Config
from broker.errors import AuthFailed, BrokerError
from broker.offer import Market, Offer, OfferQuery
from broker.policy.infra import may_name
from broker.provider import NO_KEY, OfferList, PartialOffers, Provider

NOT_SET_UP = "no key or credentials yet"
"""What a provider's failure says that was never set up: nothing is wrong with it."""

LEAST_SHARE, LEAST_CARD = 0.04, 0.002
"""The least that a spot machine costs, of the same one on demand, and USD per hour that any card does. What is below is
a least bid, a placeholder or another unit that was taken for a price, and would win every comparison. No large cloud
gives more than 91 % off."""
NO_PRICE = f"the price can be none: below {LEAST_SHARE:.0%} of the same machine on demand, or {LEAST_CARD} USD/h a card"

Open = Callable[[str, Config], Provider]
Listener = Callable[[Sequence[OfferQuery], "OfferBook", frozenset[str]], None]


@dataclass(frozen=True, slots=True)
class OfferBook:
    """One look at the market. at: when it was taken, seconds since the epoch.

    failures: what could not be asked, by provider or by `provider/region`, with the error's text and fix.
    left_out: what fits and a provider's own settings leave out, as provider -> reason -> how many.
    """

    offers: tuple[Offer, ...]
    failures: Mapping[str, str]
    at: float
    left_out: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def left_out_words(self) -> tuple[str, ...]:
        """`left_out` for people, a line for each reason."""
        return tuple(
            f"{name} leaves out {count}: {why}" for name, whys in self.left_out.items() for why, count in whys.items()
        )


@dataclass(slots=True)
class _Answer:
    """What one provider has said so far; its thread writes it, under the market's lock."""

    offers: list[Offer] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)
    done: bool = False


class Marketplace:
    """All providers as one.

    providers: names as `broker.registry` knows them; None means every installed one. opener: how a name becomes a
    provider, `broker.registry.get` unless given. on_look: told of every look, with the providers that have answered in
    full, for the history of zones and prices.
    """

    def __init__(
        self,
        config: Config,
        providers: Sequence[str] | None = None,
        *,
        opener: Open | None = None,
        on_look: Listener | None = None,
    ) -> None:
        self.config = config
        self._names = providers
        self._opener = opener
        self._on_look = on_look
        self._lock = threading.Lock()
        self._running: dict[str, list[tuple[threading.Thread, float]]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The providers that take part, sorted."""
        if self._names is not None:
            return tuple(sorted(self._names))
        from broker import registry

        return tuple(sorted(registry.names()))

    def offers(self, queries: Sequence[OfferQuery], *, timeout: float = 20.0) -> OfferBook:
        """Ask every provider that the queries' `infra` may name; wait at most `timeout` seconds for all of them.

        Of several answers with one key the first counts, in the order of the queries. Never raises for a provider's
        sake. A provider still busy with an earlier, late question is not asked again meanwhile.
        """
        deadline = time.monotonic() + timeout
        names = [name for name in self.names if any(may_name(query.infra, name) for query in queries)]
        answers = {name: _Answer() for name in names}
        finished: SimpleQueue[str] = SimpleQueue()
        waiting = {name for name in names if self._start(name, queries, answers[name], finished, deadline)}
        while waiting:
            try:
                waiting.discard(finished.get(timeout=max(0.0, deadline - time.monotonic())))
            except Empty:
                break
        offers: dict[str, Offer] = {}
        failures: dict[str, str] = {}
        left_out: dict[str, Mapping[str, int]] = {}
        with self._lock:
            for name, answer in answers.items():
                if answer.left_out:
                    left_out[name] = dict(answer.left_out)
                for offer in answer.offers:
                    offers.setdefault(offer.key, offer)
                failures.update(answer.failures)
                if name in waiting and not answer.done:
                    failures[name] = f"no answer within {timeout:g} s"
            whole = frozenset(name for name, answer in answers.items() if answer.done and not answer.failures)
        book = OfferBook(tuple(offers.values()), failures, time.time(), left_out)
        if self._on_look is not None:
            self._on_look(queries, book, whole)
        return book

    def _start(
        self,
        name: str,
        queries: Sequence[OfferQuery],
        answer: _Answer,
        finished: SimpleQueue[str],
        deadline: float,
    ) -> bool:
        """Ask one provider in a thread of its own; False where an earlier question is late.

        Several jobs may ask at once. A daemon thread: a provider that never answers must not keep the process from
        ending.
        """
        with self._lock:
            running = [(thread, due) for thread, due in self._running.get(name, ()) if thread.is_alive()]
            if any(due <= time.monotonic() for _, due in running):
                answer.failures[name] = "still has not answered the last question"
                return False
            thread = threading.Thread(
                target=self._ask, args=(name, queries, answer, finished), name=f"offers-{name}", daemon=True
            )
            self._running[name] = [*running, (thread, deadline)]
        thread.start()
        return True

    def _ask(self, name: str, queries: Sequence[OfferQuery], answer: _Answer, finished: SimpleQueue[str]) -> None:
        try:
            provider = self._open(name)
            for query in queries:
                if may_name(query.infra, name):
                    self._ask_one(name, provider, query, answer)
        except Exception as error:  # noqa: BLE001 - an adapter's bug is that provider's failure, not the market's
            with self._lock:
                answer.failures[name] = told(error)
        finally:
            with self._lock:
                answer.done = True
            finished.put(name)

    def _ask_one(self, name: str, provider: Provider, query: OfferQuery, answer: _Answer) -> None:
        failures: dict[str, str] = {}
        try:
            found = provider.offers(query)
        except PartialOffers as partial:
            found = partial.offers
            for where, error in partial.failures.items():
                failures[where if where.split("/")[0] == name else f"{name}/{where}"] = told(error)
        foreign = {offer.provider for offer in found if offer.provider != name}
        if foreign:
            failures[name] = f"answered with offers of {', '.join(sorted(foreign))}, which are left out"
        mine = [offer for offer in found if offer.provider == name]
        own = list(payable(provider, identity.reaching(provider, self.config, mine)))
        left_out = dict(found.left_out) if isinstance(found, OfferList) else {}
        credible = _credible(own)
        if len(credible) < len(own):
            left_out[NO_PRICE] = len(own) - len(credible)
        with self._lock:
            answer.offers.extend(credible)
            answer.failures.update(failures)
            # Of several alternatives of a task the same offers are left out again and again: the most counts.
            for why, count in left_out.items():
                answer.left_out[why] = max(count, answer.left_out.get(why, 0))

    def _open(self, name: str) -> Provider:
        if self._opener is not None:
            return self._opener(name, self.config)
        from broker import registry

        return registry.get(name, self.config)


def _credible(offers: Sequence[Offer]) -> list[Offer]:
    """The offers of one provider without those whose price can be none."""
    on_demand = {_machine(offer): offer.price for offer in offers if offer.market is Market.ON_DEMAND}

    def priced(offer: Offer) -> bool:
        beside = offer.extra.get("on_demand") or on_demand.get(_machine(offer)) or 0.0
        least = LEAST_SHARE * beside if offer.market is Market.SPOT else 0.0
        return offer.price >= max(least, LEAST_CARD * offer.gpu_count)

    return [offer for offer in offers if priced(offer)]


def _machine(offer: Offer) -> tuple[str, str]:
    """Zones have prices of their own on spot; on demand a region has one."""
    return offer.region, offer.instance_type


def told(error: BaseException) -> str:
    """An error as one line: ours with their fix, others with their class; NOT_SET_UP where there is no key yet."""
    if isinstance(error, AuthFailed) and error.code == NO_KEY:
        return NOT_SET_UP
    if isinstance(error, BrokerError):
        return f"{error.message} ({error.fix})" if error.fix else error.message
    return f"{type(error).__name__}: {error}"
