"""A provider that costs no more than was said: what it rents is written down first, counted, and always ended.

For `broker verify`, which rents on a user's own account. Whatever happens to this process, the next one knows from the
log what may be left, and ends it.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from broker.boot import end_command
from broker.config import Config
from broker.contract import Contract
from broker.errors import BrokerError, NoCapacity, QuotaExceeded
from broker.offer import Offer, OfferQuery
from broker.provider import Instance, LaunchesAny, LaunchRequest, Notice, PartialOffers, State, Traits

T = TypeVar("T")
INSTALLATION = "conformance"
"""The tag of everything that the suite rents; no job's machines carry it."""
IDLE = "exec sleep 600"
"""What the machines of the suite do: nothing."""
ENDS_ITSELF = 1200.0
"""Seconds after which such a machine ends itself, where its provider lets it."""
LEAST = 60.0  # seconds that are billed at least
SETTLE = 600.0  # seconds for which an end is insisted on


class NoMoneyLeft(Exception):  # noqa: N818 - what it says
    """The next machine might cost more than is left."""


class Ledger:
    """What was rented for verifying one provider: a file of lines, each durable before what it tells of is done."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, what: str, job: str, **more: Any) -> None:
        """what: intent, rented, ended."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        line = json.dumps({"what": what, "job": job, "at": time.time(), **more}) + "\n"
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, line.encode())
            os.fsync(file)
        finally:
            os.close(file)

    def entries(self) -> Iterator[dict[str, Any]]:
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return
        for line in text.splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue  # the last line of a process that was killed while it wrote

    def open_jobs(self) -> set[str]:
        """Jobs that may have something rented still."""
        found: set[str] = set()
        for entry in self.entries():
            if entry["what"] == "ended":
                found.discard(entry["job"])
            else:
                found.add(entry["job"])
        return found


def ledger_of(name: str, config: Config) -> Ledger:
    """The ledger of one provider in this installation."""
    return Ledger(config.state / "verify" / f"{name}.log")


@dataclass(slots=True)
class Tab:
    """The money of one verification: what may be spent, what was, and what may yet be.

    spent: USD of what has ended. launches: sent so far. measured: seconds, by what. running: instance -> its offer,
    when it was rented, for which job. unanswered: the parts of the market that did not answer, and what was said
    instead. clock, sleep: the account's time, for a stand-in that is quicker than the world.
    """

    ledger: Ledger
    max_usd: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    spent: float = 0.0
    launches: int = 0
    measured: dict[str, list[float]] = field(default_factory=dict)
    running: dict[str, tuple[Offer, float, str]] = field(default_factory=dict)
    seen: set[tuple[str, str]] = field(default_factory=set)
    unanswered: dict[str, str] = field(default_factory=dict)

    def rented(self, instance: Instance, job: str, offer: Offer) -> None:
        """offer: what it may be, the dearest where that is not known."""
        self.ledger.note("rented", job, instance=instance.id)
        self.running.setdefault(instance.id, (offer, self.clock(), job))

    def settle(self, instance: str) -> None:
        """It has ended: what it cost at most is known."""
        offer, since, job = self.running.pop(instance)
        hours = max(self.clock() - since, LEAST) / 3600
        self.spent += offer.hourly * max(hours, float(offer.extra.get("minimum_hours", 0.0)))
        if job not in self.jobs:
            self.ledger.note("ended", job)

    @property
    def jobs(self) -> set[str]:
        return {job for _, _, job in self.running.values()}

    def first(self, what: str, instance: str) -> None:
        """Measure the time from the launch to the first sight of something."""
        if (what, instance) not in self.seen:
            self.seen.add((what, instance))
            self.measured.setdefault(what, []).append(self.clock() - self.running[instance][1])


class Meter:
    """Keeps the provider contract for the one inside; `launch` refuses what might cost more than is left."""

    def __init__(self, provider: Contract, tab: Tab) -> None:
        self.provider, self.tab = provider, tab

    @property
    def name(self) -> str:
        return self.provider.name

    @property
    def traits(self) -> Traits:
        return self.provider.traits

    @property
    def pause(self) -> float:
        """Seconds between two looks: a simulated account bears any number of them."""
        return 0.05 if self.traits.simulated else min(self.traits.poll, 5.0)

    def offers(self, query: OfferQuery) -> Sequence[Offer]:
        """What arrived; an account may have regions that are barred to it, and prices that are not there."""
        try:
            return self._timed("offers", lambda: self.provider.offers(query))
        except PartialOffers as partial:
            self.tab.unanswered |= {where: str(error) for where, error in partial.failures.items()}
            return partial.offers

    def launch(self, request: LaunchRequest) -> Instance:
        """As `Provider.launch`, of a machine that ends itself. Raises NoMoneyLeft before anything is sent."""
        return self._rented(request, request.offer, self.provider.launch)

    def _rented(self, request: LaunchRequest, dearest: Offer, launch: Callable[[LaunchRequest], Instance]) -> Instance:
        tab, worst = self.tab, self.worst(dearest)
        committed = sum(self.worst(offer) for offer, _, _ in tab.running.values())
        if request.job not in tab.jobs and tab.spent + committed + worst > tab.max_usd:
            raise NoMoneyLeft(f"{dearest.key} might cost {worst:.4f} USD more")
        command = end_command(f"broker_{self.name}.guest", self.traits.kind)
        script = request.user_data.replace(IDLE, f"why=verify; sleep {ENDS_ITSELF:.0f}; {command}")
        tab.ledger.note("intent", request.job, generation=request.generation, offer=request.offer.key)
        tab.launches += 1
        try:
            instance = self._timed("launch", lambda: launch(replace(request, user_data=script)))
        except (NoCapacity, QuotaExceeded):
            if request.job not in tab.jobs:
                tab.ledger.note("ended", request.job)  # the provider's word that nothing came of it
            raise
        tab.rented(instance, request.job, dearest)
        return instance

    def instances(self) -> Sequence[Instance]:
        """As `Provider.instances`, of what the suite has rented, on this computer or another."""
        tab = self.tab
        mine = [i for i in self._timed("instances", self.provider.instances) if i.installation == INSTALLATION]
        for instance in mine:
            if instance.id in tab.running:
                tab.first("listed after", instance.id)
                if instance.state is State.RUNNING:
                    tab.first("running after", instance.id)
        there = {instance.id for instance in mine if instance.state is not State.TERMINATED}
        for gone in [instance for instance in tab.running if instance not in there]:
            if tab.clock() - tab.running[gone][1] >= self.traits.list_lag:
                tab.settle(gone)
        return mine

    def look(self) -> None:
        """See whether what runs is listed by now, where that was not seen yet."""
        if any(("running after", instance) not in self.tab.seen for instance in self.tab.running):
            with contextlib.suppress(BrokerError):
                self.instances()

    def terminate(self, instance: Instance) -> None:
        self._timed("terminate", lambda: self.provider.terminate(instance))

    def notice(self, instance: Instance) -> Notice | None:
        return self.provider.notice(instance)

    def worst(self, offer: Offer) -> float:
        """USD that one machine may cost until its end is surely confirmed."""
        hours = (self.traits.boot_limit + self.traits.list_lag + SETTLE) / 3600
        return offer.hourly * max(hours, float(offer.extra.get("minimum_hours", 0.0)))

    def end_all(self, *, everything: bool = False, tell: Callable[[str], None] = lambda _: None) -> list[Instance]:
        """End what the ledger says may be left, or `everything` of this kind; what did not go within ten minutes.

        A machine whose launch was never answered may be listed late: it is waited for.
        """
        jobs = self.tab.ledger.open_jobs()
        if not jobs and not everything:
            return []
        began = self.tab.clock()
        left: list[Instance] = []
        told: set[str] = set()
        while True:
            try:
                listed = self.instances()
                left = [i for i in listed if i.state is not State.TERMINATED and (everything or i.job in jobs)]
                for instance in left:
                    if instance.id not in told:
                        told.add(instance.id)
                        tell(f"ending {instance.id}")
                    self.provider.terminate(instance)
                if not left and self.tab.clock() - began >= self.traits.list_lag:
                    break
                if not left:  # one more look, once what is listed late is surely listed
                    self.tab.sleep(began + self.traits.list_lag - self.tab.clock())
                    continue
            except BrokerError as error:
                tell(f"{self.name} does not answer: {error}")
            if self.tab.clock() - began > SETTLE + self.traits.list_lag:
                return left
            self.tab.sleep(self.pause)
        for gone in list(self.tab.running):
            self.tab.settle(gone)
        for job in sorted(self.tab.ledger.open_jobs() & jobs):
            self.tab.ledger.note("ended", job)
        return []

    def _timed(self, what: str, call: Callable[[], T]) -> T:
        began = time.monotonic()
        try:
            return call()
        finally:
            self.tab.measured.setdefault(what, []).append(time.monotonic() - began)


class MeterOfMany(Meter):
    """Of a provider that launches any of many offers."""

    def launch_any(self, request: LaunchRequest, offers: Sequence[Offer]) -> Instance:
        """As `LaunchesAny.launch_any`. Raises NoMoneyLeft before anything is sent."""
        provider = self.provider
        assert isinstance(provider, LaunchesAny)
        dearest = max(offers, key=self.worst)
        return self._rented(request, dearest, lambda made: provider.launch_any(made, offers))


def metered(provider: Contract, tab: Tab) -> Meter:
    """A meter that can do what the provider can."""
    return (MeterOfMany if isinstance(provider, LaunchesAny) else Meter)(provider, tab)
