"""`FakeCloud`: a cloud that behaves. Machines boot, are listed late, get notices, are taken back, and cost money.

Its time is a clock passed in: the real one, or a `FakeClock` that a test moves. What a machine is at a moment follows
from what happened to it and when, so nothing runs in the background.
"""

from __future__ import annotations

import fnmatch
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from broker.errors import Ambiguous, InvalidRequest, NoCapacity
from broker.offer import Offer, OfferQuery
from broker.provider import Cause, Instance, Kind, LaunchRequest, Notice, State, Traits
from broker.testing.fake import Call, fingerprint, fitting, sample_offers


class FakeClock:
    """A clock that stands until it is moved. Seconds since the epoch."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> float:
        """Let so many seconds pass; return the new time."""
        self.now += seconds
        return self.now

    def sleep(self, seconds: float) -> None:
        """In place of `time.sleep`: advances and returns at once."""
        self.advance(seconds)


@dataclass(frozen=True, slots=True)
class _End:
    """Something that ends a machine. at: when it begins; over: when it is done."""

    at: float
    over: float
    cause: Cause
    state: State = State.TERMINATED
    word: str = ""


@dataclass(slots=True)
class Rented:
    """One machine ever made: its request, when, and what happened to it."""

    id: str
    request: LaunchRequest
    fingerprint: str
    at: float
    hidden_until: float
    notice: Notice | None = None
    ends: list[_End] = field(default_factory=list)
    deleted: bool = False

    def end(self, now: float) -> _End | None:
        """What has begun to end it by now: the first word stands, but a stopped machine may be terminated later."""
        found: _End | None = None
        for end in sorted((end for end in self.ends if end.at <= now), key=lambda end: end.at):
            if found is None or (found.state is State.STOPPED and end.state is State.TERMINATED):
                found = end
        return found

    def cost(self, now: float) -> float:
        """USD from launch to now: all of it until it stops, then its disk until it is terminated."""
        offer, last = self.request.offer, self.end(now)
        if last is None:
            return offer.hourly * (now - self.at) / 3600
        stopped = min(now, *(end.over for end in self.ends if end.at <= now))
        gone = min(last.over, now) if last.state is State.TERMINATED else now
        return (offer.hourly * (stopped - self.at) + offer.disk_price * (gone - stopped)) / 3600


@dataclass
class FakeCloud:
    """A behavioural cloud with one account.

    clock: its time. boot: seconds from launch to RUNNING. list_lag: seconds for which a new machine is not listed.
    shutdown: seconds from a termination's acceptance to its end. remembers: seconds for which ended machines are
    listed. token: launches are idempotent by token, as on EC2: the dead machine comes back for an old token, another
    request under it is refused. stops: taking back stops a machine instead of ending it, as on GCP: it stays STOPPED,
    its disk billed, until it is terminated. stock: what can be rented. on_launch: called with each new machine and its
    request, for tests that play the guest.

    `provider()` is the account as a provider; any number of them see the same. `rented` is every machine ever made.
    """

    name: str = "fake"
    clock: Callable[[], float] = time.time
    boot: float = 0.0
    list_lag: float = 0.0
    shutdown: float = 0.0
    remembers: float = 3600.0
    token: bool = True
    stops: bool = False
    stock: list[Offer] = field(default_factory=list)
    on_launch: Callable[[Instance, LaunchRequest], None] | None = None

    def __post_init__(self) -> None:
        self.stock = self.stock or list(sample_offers(self.name))
        self.rented: dict[str, Rented] = {}
        self.calls: list[Call] = []
        self._capacity: dict[str, int] = {}
        self._refusals: list[tuple[str, deque[Exception] | Exception]] = []
        self._scripts: dict[str, deque[Exception | None]] = {}
        self._ambiguous: deque[Exception] = deque()
        self._lock = threading.RLock()
        self._answers: dict[str, Callable[[Any], Any]] = {
            "offers": self._offers,
            "launch": self._launch,
            "instances": self._listed,
            "terminate": self._terminate,
            "notice": self._notice,
        }

    def provider(self) -> FakeCloudProvider:
        """The account as a provider."""
        return FakeCloudProvider(self)

    # What happens in the world

    def take_back(self, instance_id: str, *, notice: float | None = None) -> None:
        """Take a machine back: so many seconds after a notice, or at once and without one."""
        with self._lock:
            now, machine = self.clock(), self.rented[instance_id]
            ends_at = now + (notice or 0.0)
            if notice is not None:
                machine.notice = Notice(at=now, ends_at=ends_at)
            state = State.STOPPED if self.stops else State.TERMINATED
            machine.ends.append(_End(ends_at, ends_at, Cause.PREEMPTED, state))

    def stop_by_hand(self, instance_id: str) -> None:
        """The user stops a machine in the console: STOPPED, cause USER, its disk billed."""
        now = self.clock()
        self.rented[instance_id].ends.append(_End(now, now + self.shutdown, Cause.USER, State.STOPPED))

    def fail(self, instance_id: str, word: str) -> None:
        """The machine cannot go on, in the provider's words: STOPPED, cause FAILED."""
        now = self.clock()
        self.rented[instance_id].ends.append(_End(now, now, Cause.FAILED, State.STOPPED, word))

    def end_by_hand(self, instance_id: str) -> None:
        """The user terminates a machine in the console: TERMINATED, cause USER."""
        now = self.clock()
        self.rented[instance_id].ends.append(_End(now, now + self.shutdown, Cause.USER))

    def delete_by_hand(self, instance_id: str) -> None:
        """The user deletes a machine with every trace: it is listed no more."""
        self.end_by_hand(instance_id)
        self.rented[instance_id].deleted = True

    def end_itself(self, instance_id: str) -> None:
        """The guest ends its own machine: TERMINATED, cause SELF."""
        now = self.clock()
        self.rented[instance_id].ends.append(_End(now, now + self.shutdown, Cause.SELF))

    def reprice(self, pattern: str, price: float) -> None:
        """From now on offers whose key fits the pattern (`*` allowed) cost so many USD per hour."""
        self.stock = [replace(o, price=price) if fnmatch.fnmatchcase(o.key, pattern) else o for o in self.stock]

    def limit(self, pattern: str, machines: int) -> None:
        """No more than so many machines live at once on offers that fit; 0 takes them off the market."""
        self._capacity[pattern] = machines

    # Lies

    def refuse(self, pattern: str, error: Exception, *, times: int | None = None) -> None:
        """Launches of offers whose key fits raise this error: so many times, or for good."""
        self._refusals.append((pattern, error if times is None else deque([error] * times)))

    def script(self, call: str, *answers: Exception | None) -> None:
        """The next calls of that name raise these, one each; None lets one through."""
        self._scripts.setdefault(call, deque()).extend(answers)

    def fail_after_create(self, n: int = 1, error: Exception | None = None) -> None:
        """The next `n` launches make a machine and then raise: Ambiguous unless another error is given."""
        self._ambiguous.extend([error or Ambiguous("500 Internal Server Error", provider=self.name, code="500")] * n)

    def hide(self, seconds: float) -> None:
        """Machines made from now on are not listed before they are so old, whatever the traits say."""
        self.list_lag = seconds

    def clear(self) -> None:
        """No more lies and limits."""
        self._refusals.clear()
        self._scripts.clear()
        self._ambiguous.clear()
        self._capacity.clear()

    # Books

    def living(self) -> list[Instance]:
        """Every machine that is not over, listed or not: what would leak."""
        with self._lock:
            views = [self._view(machine, self.clock()) for machine in self.rented.values()]
        return [view for view in views if view.state is not State.TERMINATED]

    def spent(self) -> float:
        """USD that all machines ever made have cost by now."""
        now = self.clock()
        return sum(machine.cost(now) for machine in self.rented.values())

    # The account's side

    def answer(self, call: str, argument: Any = None) -> Any:
        """Answer a call of the account's providers, as scripted or as things are."""
        with self._lock:
            self.calls.append(Call(call, argument))
            line = self._scripts.get(call)
            error = line.popleft() if line else None
            if error is not None:
                raise error
            return self._answers[call](argument)

    def _offers(self, query: OfferQuery) -> list[Offer]:
        now = self.clock()
        return [replace(o, fetched_at=now) for o in fitting(self.stock, query) if self._available(o)]

    def _notice(self, instance: Instance) -> Notice | None:
        machine = self.rented.get(instance.id)
        return None if machine is None else machine.notice

    def _available(self, offer: Offer) -> bool:
        for pattern, machines in self._capacity.items():
            if fnmatch.fnmatchcase(offer.key, pattern):
                used = [m for m in self.living() if fnmatch.fnmatchcase(self.rented[m.id].request.offer.key, pattern)]
                if len(used) >= machines:
                    return False
        return True

    def _refusal(self, offer: Offer) -> Exception | None:
        for pattern, errors in self._refusals:
            if fnmatch.fnmatchcase(offer.key, pattern):
                if not isinstance(errors, deque):
                    return errors
                if errors:
                    return errors.popleft()
        if not self._available(offer):
            return NoCapacity(f"no {offer.instance_type} in {offer.zone}", provider=self.name, code="NoCapacity")
        return None

    def _launch(self, request: LaunchRequest) -> Instance:
        now, print_ = self.clock(), fingerprint(request)
        if self.token and (known := self._by_token(request.token)) is not None:
            if known.fingerprint != print_:
                raise InvalidRequest("another request", provider=self.name, code="IdempotentParameterMismatch")
            return self._view(known, now)
        if request.offer.key not in {offer.key for offer in self.stock}:
            raise InvalidRequest(f"no {request.offer.key}", provider=self.name, code="InvalidParameterValue")
        error = self._refusal(request.offer)
        if error is not None:
            raise error
        machine = Rented(f"i-{len(self.rented) + 1:04}", request, print_, now, now + self.list_lag)
        self.rented[machine.id] = machine
        instance = self._view(machine, now)
        if self.on_launch is not None:
            self.on_launch(instance, request)
        if self._ambiguous:
            raise self._ambiguous.popleft()
        return instance

    def _by_token(self, token: str) -> Rented | None:
        return next((machine for machine in self.rented.values() if machine.request.token == token), None)

    def _listed(self, _: None) -> list[Instance]:
        now = self.clock()
        views = [self._view(m, now) for m in self.rented.values() if m.hidden_until <= now and not m.deleted]
        return [view for view in views if view.ended_at is None or view.ended_at + self.remembers > now]

    def _terminate(self, instance: Instance) -> None:
        now, machine = self.clock(), self.rented.get(instance.id)
        if machine is None:
            return
        end = machine.end(now)
        if end is None:
            machine.ends.append(_End(now, now + self.shutdown, Cause.BROKER))
        elif end.state is State.STOPPED:  # what stopped it stays the cause; its disk goes now
            machine.ends.append(_End(now, now + self.shutdown, end.cause))

    def _view(self, machine: Rented, now: float) -> Instance:
        offer, end = machine.request.offer, machine.end(now)
        state = State.PENDING if now < machine.at + self.boot else State.RUNNING
        if end is not None:
            state = State.STOPPING if now < end.over else end.state
        over = end is not None and now >= end.over
        return Instance(
            provider=self.name,
            id=machine.id,
            state=state,
            market=offer.market,
            hourly=offer.hourly,
            tags=dict(machine.request.tags),
            region=offer.region,
            zone=offer.zone,
            instance_type=offer.instance_type,
            cause=end.cause if end is not None and over else None,
            notice=machine.notice,
            launched_at=machine.at,
            ended_at=end.over if end is not None and over and end.state is State.TERMINATED else None,
            word=end.word if end is not None and over else "",
        )


class FakeCloudProvider:
    """A FakeCloud's account as a provider. It remembers nothing itself."""

    def __init__(self, cloud: FakeCloud) -> None:
        self.cloud = cloud
        self.name = cloud.name

    @property
    def traits(self) -> Traits:
        return Traits(
            token=self.cloud.token,
            list_lag=self.cloud.list_lag,
            poll=0.05,
            boot_limit=max(60.0, 3 * self.cloud.boot),
            notice=120.0,
            simulated=True,
            kind=Kind.BARE,
        )

    def offers(self, query: OfferQuery) -> Sequence[Offer]:
        return cast("Sequence[Offer]", self.cloud.answer("offers", query))

    def launch(self, request: LaunchRequest) -> Instance:
        return cast("Instance", self.cloud.answer("launch", request))

    def instances(self) -> Sequence[Instance]:
        return cast("Sequence[Instance]", self.cloud.answer("instances"))

    def terminate(self, instance: Instance) -> None:
        self.cloud.answer("terminate", instance)

    def notice(self, instance: Instance) -> Notice | None:
        return cast("Notice | None", self.cloud.answer("notice", instance))
