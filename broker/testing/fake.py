"""`FakeProvider`: a provider that does exactly what a test tells it. It has no time and no surprises."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from broker import gpus
from broker.errors import InvalidRequest
from broker.offer import Market, Offer, OfferQuery
from broker.provider import Cause, Instance, Kind, LaunchRequest, Notice, State, Traits

DISK_PRICE = 0.10 / 730  # USD per GiB and hour
EPOCH = 1_800_000_000.0


def sample_offers(name: str = "fake") -> tuple[Offer, ...]:
    """Two regions with an A100, an L4 and a plain machine, spot and on demand; spot is cheaper in `r2`."""
    machines: tuple[tuple[str, str | None, int, float, float, float, float], ...] = (
        # instance type, card, how many, its GiB, cpus, GiB, USD per hour on demand
        ("a100x1", "A100-80GB", 1, 80.0, 12.0, 120.0, 2.40),
        ("l4x1", "L4", 1, 24.0, 8.0, 32.0, 0.80),
        ("cpu4", None, 0, 0.0, 4.0, 16.0, 0.20),
    )
    discounts = {"r1": 0.5, "r2": 0.4}
    return tuple(
        Offer(
            provider=name,
            region=region,
            zone=f"{region}-a",
            instance_type=kind,
            market=market,
            price=round(price * (discount if market is Market.SPOT else 1.0), 4),
            gpu=gpu,
            gpu_count=count,
            gpu_memory=gpu_memory,
            cpus=cpus,
            memory=memory,
            interruption=0.05 if market is Market.SPOT else 0.0,
            notice=120.0 if market is Market.SPOT else None,
            simulated=True,
        )
        for region, discount in discounts.items()
        for kind, gpu, count, gpu_memory, cpus, memory, price in machines
        for market in Market
    )


def fitting(stock: Sequence[Offer], query: OfferQuery) -> list[Offer]:
    """The offers of a stock that fit a query, with the price of the disk it asks for."""
    return [
        replace(offer, disk=query.disk, disk_price=query.disk * DISK_PRICE)
        for offer in stock
        if offer.market in query.markets
        and (query.gpu is None or gpus.matches(query.gpu, offer.gpu or "", offer.gpu_memory))
        and offer.gpu_count == query.gpu_count
        and offer.cpus >= query.cpus
        and offer.memory >= query.memory
    ]


def fingerprint(request: LaunchRequest) -> str:
    """Tells one launch request from another; what a provider compares when a token comes twice."""
    same = [request.offer.key, request.bid, request.disk, dict(request.tags), request.user_data, request.image]
    return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Call:
    """One call that was made: its name and its argument (query, request, instance, or None)."""

    name: str
    argument: Any = None


class FakeProvider:
    """A scriptable provider.

    ::

        provider = FakeProvider()
        provider.fail("launch", NoCapacity("none left"))           # the next launch; then all is well again
        provider.fail("instances", None, ProviderUnavailable("…")) # the one after the next
        provider.allow("launch", 2)                                # a third launch is an AssertionError
        assert [call.name for call in provider.calls] == ["offers", "launch"]
        provider.reset()

    Machines run at once and end at once. `machines` is the account, by id: a test changes it as it likes, best through
    `change`. A token gives the same machine again, also after its end; `traits` may be replaced.
    """

    traits = Traits(token=True, list_lag=0.0, poll=0.01, boot_limit=60.0, notice=120.0, simulated=True, kind=Kind.BARE)

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        state: Path | None = None,
        *,
        name: str = "fake",
        stock: Sequence[Offer] | None = None,
    ) -> None:
        """settings and state are taken as any provider's and not used. stock: what can be rented."""
        self.name = name
        self.settings, self.state = settings or {}, state
        self.stock = list(sample_offers(name) if stock is None else stock)
        self.reset()

    def reset(self) -> None:
        """Forget machines, calls, errors and limits; the stock stays."""
        self.machines: dict[str, Instance] = {}
        self.calls: list[Call] = []
        self._errors: dict[str, deque[Exception | None]] = {}
        self._late_errors: dict[str, deque[Exception | None]] = {}
        self._allowed: dict[str, int] = {}
        self._tokens: dict[str, tuple[str, str]] = {}

    def fail(self, call: str, *errors: Exception | None, after: bool = False) -> None:
        """Put errors in line for the next calls of that name; None lets one through.

        after: the call first does its work and then raises, as a create that is answered by a 500.
        """
        line = self._late_errors if after else self._errors
        line.setdefault(call, deque()).extend(errors)

    def allow(self, call: str, times: int) -> None:
        """More than so many calls of that name, from now on, are an AssertionError."""
        self._allowed[call] = times

    def count(self, call: str) -> int:
        """How often a call of that name was made."""
        return sum(made.name == call for made in self.calls)

    def change(self, instance_id: str, **fields: Any) -> Instance:
        """Replace fields of a machine, for example `state=State.TERMINATED, cause=Cause.PREEMPTED`."""
        self.machines[instance_id] = replace(self.machines[instance_id], **fields)
        return self.machines[instance_id]

    def offers(self, query: OfferQuery) -> Sequence[Offer]:
        self._called("offers", query)
        found = fitting(self.stock, query)
        self._after("offers")
        return found

    def launch(self, request: LaunchRequest) -> Instance:
        self._called("launch", request)
        instance = self._launch(request)
        self._after("launch")
        return self.machines[instance]

    def instances(self) -> Sequence[Instance]:
        self._called("instances")
        self._after("instances")
        return list(self.machines.values())

    def terminate(self, instance: Instance) -> None:
        self._called("terminate", instance)
        mine = self.machines.get(instance.id)
        if mine is not None and mine.state is not State.TERMINATED:
            self.change(instance.id, state=State.TERMINATED, cause=Cause.BROKER, ended_at=EPOCH)
        self._after("terminate")

    def notice(self, instance: Instance) -> Notice | None:
        self._called("notice", instance)
        self._after("notice")
        mine = self.machines.get(instance.id)
        return None if mine is None else mine.notice

    def _launch(self, request: LaunchRequest) -> str:
        offer, print_ = request.offer, fingerprint(request)
        if request.token in self._tokens:
            instance_id, first = self._tokens[request.token]
            if first != print_:
                raise InvalidRequest("another request", provider=self.name, code="IdempotentParameterMismatch")
            return instance_id
        if offer.key not in {known.key for known in self.stock}:
            raise InvalidRequest(f"no such machine: {offer.key}", provider=self.name, code="InvalidParameterValue")
        instance_id = f"i-{len(self.machines) + 1:04}"
        self._tokens[request.token] = (instance_id, print_)
        self.machines[instance_id] = Instance(
            provider=self.name,
            id=instance_id,
            state=State.RUNNING,
            market=offer.market,
            hourly=offer.hourly,
            tags=dict(request.tags),
            region=offer.region,
            zone=offer.zone,
            instance_type=offer.instance_type,
            launched_at=EPOCH,
        )
        return instance_id

    def _called(self, name: str, argument: Any = None) -> None:
        self.calls.append(Call(name, argument))
        if name in self._allowed:
            self._allowed[name] -= 1
            assert self._allowed[name] >= 0, f"{name} was called more often than allowed"
        _raise_next(self._errors.get(name))

    def _after(self, name: str) -> None:
        _raise_next(self._late_errors.get(name))


def _raise_next(line: deque[Exception | None] | None) -> None:
    error = line.popleft() if line else None
    if error is not None:
        raise error
