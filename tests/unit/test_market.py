"""The market: providers asked side by side, the failed and the late named."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.config import Config
from broker.errors import AuthFailed
from broker.market import Marketplace, OfferBook
from broker.offer import Market, Offer, OfferQuery
from broker.provider import Instance, LaunchRequest, Notice, OfferList, PartialOffers, Provider, Traits

Answer = Callable[[OfferQuery], Sequence[Offer]]


class Stall:
    """A provider whose answer is the test's to give; it rents out nothing."""

    traits = Traits()

    def __init__(self, name: str, answer: Answer) -> None:
        self.name, self.answer, self.asked = name, answer, 0

    def offers(self, query: OfferQuery) -> Sequence[Offer]:
        self.asked += 1
        return self.answer(query)

    def launch(self, request: LaunchRequest) -> Instance:
        raise AssertionError("nobody launches here")

    def instances(self) -> Sequence[Instance]:
        return []

    def terminate(self, instance: Instance) -> None:
        return None

    def notice(self, instance: Instance) -> Notice | None:
        return None


def offer(provider: str, price: float = 1.0, region: str = "r") -> Offer:
    return Offer(provider, region, "", "m", Market.SPOT, price)


def keyed(offers: Sequence[Offer]) -> dict[str, Offer]:
    return {found.key: found for found in offers}


def market(tmp_path: Path, stalls: Sequence[Stall], **more: Callable[[Sequence[Offer]], None]) -> Marketplace:
    by_name = {stall.name: stall for stall in stalls}

    def opener(name: str, config: Config) -> Provider:
        return by_name[name]

    config = Config(state=tmp_path, file=tmp_path / "config.toml")
    return Marketplace(config, list(by_name), opener=opener, on_look=more.get("on_look"))


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_all_answer_and_every_answer_is_kept_for_the_history(tmp_path: Path) -> None:
    seen: list[tuple[Any, Any, frozenset[str]]] = []

    def broken(query: OfferQuery) -> Sequence[Offer]:
        raise TimeoutError("slow")

    stalls = [Stall("a", lambda q: [offer("a")]), Stall("b", lambda q: [offer("b", 2.0)])]
    queries = [OfferQuery()]
    book = market(tmp_path, stalls, on_look=lambda *look: seen.append(look)).offers(queries)
    assert keyed(book.offers) == keyed([offer("a"), offer("b", 2.0)])
    assert seen == [(queries, book, {"a", "b"})]
    market(tmp_path, [*stalls, Stall("c", broken)], on_look=lambda *look: seen.append(look)).offers(queries)
    assert seen[1][2] == {"a", "b"}  # what did not answer says nothing of what it has
    assert not book.failures
    assert abs(book.at - time.time()) < 60


def test_what_can_be_no_price_wins_nothing(tmp_path: Path) -> None:
    """A bid floor of one cent for a card of 6.39, cents of a cent, and what is cheap but may be true."""

    def machine(kind: str, price: float, market: Market = Market.SPOT, **extra: float) -> Offer:
        return Offer("a", "r", "", kind, market, price, gpu="B200", gpu_count=1, extra=extra)

    floor, tiny = machine("floor", 0.01), machine("tiny", 0.0019, Market.ON_DEMAND)
    told = machine("told", 0.2, on_demand=6.39)
    fine = [machine("floor", 6.39, Market.ON_DEMAND), machine("cheap", 0.6, on_demand=6.39), machine("alone", 0.01)]
    fine.append(replace(machine("cpu", 0.0015), gpu=None, gpu_count=0))
    book = market(tmp_path, [Stall("a", lambda q: [floor, tiny, told, *fine])]).offers([OfferQuery()])
    assert keyed(book.offers) == keyed(fine)
    (words,) = book.left_out_words
    assert words.startswith("a leaves out 3: the price can be none: below 4% of")


def test_what_was_left_out_is_said_though_a_part_failed(tmp_path: Path) -> None:
    def partial(query: OfferQuery) -> Sequence[Offer]:
        raise PartialOffers(OfferList([offer("d")], left_out={"unverified": 3}), {"bid": TimeoutError("slow")})

    book = market(tmp_path, [Stall("d", partial)]).offers([OfferQuery()])
    assert keyed(book.offers) == keyed([offer("d")])
    assert book.left_out == {"d": {"unverified": 3}}
    assert list(book.failures) == ["d/bid"]


def test_failures_are_named_and_the_others_stand(tmp_path: Path) -> None:
    def auth(query: OfferQuery) -> Sequence[Offer]:
        raise AuthFailed("no key", fix="set AWS_PROFILE")

    def bug(query: OfferQuery) -> Sequence[Offer]:
        raise KeyError("gpuTypes")

    def free(query: OfferQuery) -> Sequence[Offer]:
        return [offer("free", 0.0)]

    def partial(query: OfferQuery) -> Sequence[Offer]:
        raise PartialOffers([offer("d")], {"us-east-2": TimeoutError("slow"), "d/eu": TimeoutError("slow")})

    stalls = [Stall("a", auth), Stall("b", bug), Stall("d", partial), Stall("free", free)]
    book = market(tmp_path, [*stalls, Stall("e", lambda q: [offer("e"), offer("x")])]).offers([OfferQuery()])
    assert keyed(book.offers) == keyed([offer("d"), offer("e")])
    assert book.failures["a"] == "no key (set AWS_PROFILE)"
    assert book.failures["b"] == "KeyError: 'gpuTypes'"
    assert book.failures["d/us-east-2"] == book.failures["d/eu"] == "TimeoutError: slow"
    assert "above zero" in book.failures["free"]
    assert "offers of x" in book.failures["e"]


def test_the_late_one_is_named_and_not_asked_again_while_busy(tmp_path: Path, gate: threading.Event) -> None:
    def late(query: OfferQuery) -> Sequence[Offer]:
        gate.wait(30)
        return [offer("late")]

    slow = Stall("late", late)
    here = market(tmp_path, [slow, Stall("quick", lambda q: [offer("quick")])])
    start = time.monotonic()
    book = here.offers([OfferQuery()], timeout=0.2)
    assert time.monotonic() - start < 10
    assert book.offers == (offer("quick"),)
    assert book.failures == {"late": "no answer within 0.2 s"}
    assert "still" in here.offers([OfferQuery()], timeout=5).failures["late"]
    assert slow.asked == 1
    gate.set()
    deadline = time.monotonic() + 10
    while here.offers([OfferQuery()], timeout=5).failures and time.monotonic() < deadline:
        pass
    assert keyed(here.offers([OfferQuery()]).offers) == keyed([offer("late"), offer("quick")])


def test_several_may_ask_at_once(tmp_path: Path) -> None:
    """Jobs pick side by side; a provider that is busy with one question and not late with it answers the other too."""
    both = threading.Barrier(2, timeout=20)

    def together(query: OfferQuery) -> Sequence[Offer]:
        both.wait()
        return [offer("a")]

    here = market(tmp_path, [Stall("a", together)])
    books: list[OfferBook] = []
    threads = [threading.Thread(target=lambda: books.append(here.offers([OfferQuery()]))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [book.failures for book in books] == [{}, {}]


def test_what_a_late_provider_had_already_said_counts(tmp_path: Path, gate: threading.Event) -> None:
    def second_is_late(query: OfferQuery) -> Sequence[Offer]:
        if query.cpus:
            gate.wait(30)
        return [offer("a", region=f"cpus-{query.cpus:g}")]

    here = market(tmp_path, [Stall("a", second_is_late)])
    book = here.offers([OfferQuery(), OfferQuery(cpus=4)], timeout=0.5)
    assert [o.region for o in book.offers] == ["cpus-0"]
    assert "a" in book.failures


def test_providers_are_asked_side_by_side(tmp_path: Path) -> None:
    barrier = threading.Barrier(8)

    def together(query: OfferQuery) -> Sequence[Offer]:
        barrier.wait(20)
        return []

    book = market(tmp_path, [Stall(f"p{i}", together) for i in range(8)]).offers([OfferQuery()])
    assert not book.failures


def test_only_providers_that_infra_names_are_asked(tmp_path: Path) -> None:
    stalls = [Stall("aws", lambda q: [offer("aws")]), Stall("gcp", lambda q: [offer("gcp")])]
    book = market(tmp_path, stalls).offers([OfferQuery(infra=("aws/us-*",))])
    assert book.offers == (offer("aws"),)
    assert stalls[1].asked == 0


def test_the_first_of_several_answers_with_one_key_counts(tmp_path: Path) -> None:
    stall = Stall("a", lambda q: [offer("a", 1.0 + q.disk)])
    book = market(tmp_path, [stall]).offers([OfferQuery(disk=500), OfferQuery(disk=50)])
    assert book.offers == (offer("a", 501.0),)
    assert stall.asked == 2
