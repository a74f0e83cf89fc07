"""The contract that every provider keeps, and its plain data.

A provider is a class with the five members of `Provider`. It translates: its SDK's answers into the types here, its
SDK's exceptions into `broker.errors`. It does not retry, count, log or cache; `broker.registry` wraps each provider
once with what is common to all. `broker.testing.ProviderConformance` is this page as tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from broker.offer import Market, Offer, OfferQuery

NO_KEY = "no key"
"""The code of an AuthFailed where there is no key or login at all, so that nothing can have been rented by one."""

TAG_INSTALLATION = "spotbroker-installation"
TAG_JOB = "spotbroker-job"
TAG_GENERATION = "spotbroker-generation"


class Kind(StrEnum):
    """What a provider rents: a `vm`, whose guest starts the task's container; a `container` that is the task's own
    image, with the guest as its first process; or a `bare` machine that runs the task as it is."""

    VM = "vm"
    CONTAINER = "container"
    BARE = "bare"


class State(StrEnum):
    """Where an instance is in its life. `STOPPED` still costs its disk; `TERMINATED` costs nothing."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    TERMINATED = "terminated"


class Cause(StrEnum):
    """Why an instance stopped, in the provider's word. Never guessed from an exit code."""

    PREEMPTED = "preempted"
    USER = "user"
    SELF = "self"
    BROKER = "broker"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Notice:
    """Word that an instance will be taken back.

    at: when it was given. ends_at: when the machine goes, if that is known; both seconds since the epoch.
    kind: the provider's word, such as `terminate`, `stop`. A mere rebalance hint is not a notice.
    """

    at: float
    ends_at: float | None = None
    kind: str = "terminate"


@dataclass(frozen=True, slots=True)
class Instance:
    """What the provider rented to us, as the provider names it.

    hourly: USD per hour really charged, disk included; market: what was really rented, which may differ from
    what was asked. launched_at and ended_at: seconds since the epoch, the provider's word. word: what the provider says
    of a machine that failed, such as of its image, for people.
    """

    provider: str
    id: str
    state: State
    market: Market
    hourly: float
    tags: Mapping[str, str]
    region: str = ""
    zone: str = ""
    instance_type: str = ""
    cause: Cause | None = None
    notice: Notice | None = None
    launched_at: float | None = None
    ended_at: float | None = None
    word: str = ""

    @property
    def job(self) -> str:
        return self.tags.get(TAG_JOB, "")

    @property
    def generation(self) -> int:
        return int(self.tags.get(TAG_GENERATION, "0") or 0)

    @property
    def installation(self) -> str:
        return self.tags.get(TAG_INSTALLATION, "")

    @property
    def alive(self) -> bool:
        """May still cost more than its disk."""
        return self.state in (State.PENDING, State.RUNNING, State.STOPPING)


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """One placement's request, frozen and durable before it is sent. The same request means the same machine.

    token: derived from job, generation and offer; the same at every replay, new for every generation.
    tags: ours, and the labels of the task; of those an adapter leaves out what its API cannot hold.
    user_data: the bootstrap, a POSIX-sh script. container: the image that the task runs in; a container provider makes
    the machine of it, a VM's guest starts it; None runs the task bare. image: the machine image that a VM boots, where
    the task names one; None for the provider's choice. bid: USD per hour of the whole machine, None outside bidding.
    end_by: when the machine ends by itself, end_why: its reason; latest: up to when a live broker may move that. Times
    are seconds since the epoch. disk: GiB. any_of: offers any of which may win, the one that was picked first; empty
    for `offer` alone, which is the winner once there is one. identity: who the machine is by itself, where its provider
    gives identities (`GivesIdentity`); empty for nobody.
    """

    job: str
    generation: int
    offer: Offer
    token: str
    tags: Mapping[str, str]
    user_data: str
    disk: float
    end_by: float
    frozen_at: float
    image: str | None = None
    container: str | None = None
    bid: float | None = None
    end_why: str = "max_hours"
    latest: float | None = None
    any_of: tuple[Offer, ...] = ()
    identity: str = ""

    @property
    def dearest(self) -> float:
        """USD per hour of the machine that costs most among those that may come of it."""
        return max(offer.hourly for offer in (self.offer, *self.any_of))

    def won_by(self, instance: Instance) -> Offer:
        """The offer that the instance is of, as far as it says so."""
        of = (instance.region or self.offer.region, instance.zone, instance.instance_type)
        return next((one for one in self.any_of if (one.region, one.zone, one.instance_type) == of), self.offer)

    def to_json(self) -> dict[str, Any]:
        offers = {"offer": self.offer.to_json(), "any_of": [offer.to_json() for offer in self.any_of]}
        return {**asdict(self), "tags": dict(self.tags), **offers}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LaunchRequest:
        any_of = tuple(Offer.from_json(offer) for offer in data.get("any_of") or ())
        return cls(**{**data, "offer": Offer.from_json(data["offer"]), "any_of": any_of})


@dataclass(frozen=True, slots=True)
class Traits:
    """What a provider is like; constants of its adapter, used by the core to decide without asking.

    token: the launch API takes an idempotency token, so sending the same request again is safe.
    list_lag: seconds after which a launched machine is surely in `instances()`.
    poll: seconds between two calls of `instances()`. boot_limit: seconds from launch to the first beat.
    notice: seconds of warning before a spot machine goes; None where there is none.
    outside_limit: what ends a machine that cannot end itself; empty where nothing does.
    kind: what is rented. user_data_limit: bytes that it takes. no_shell: why nobody can open a shell on its machines,
    for people, where none is `Reachable`.
    """

    token: bool = False
    list_lag: float = 60.0
    poll: float = 10.0
    boot_limit: float = 900.0
    notice: float | None = None
    outside_limit: str = ""
    simulated: bool = False
    kind: Kind = Kind.VM
    user_data_limit: int = 16_384
    no_shell: str = ""


@runtime_checkable
class Provider(Protocol):
    """Rents machines. Five members; every one may raise `AuthFailed`, `RateLimited` or `ProviderUnavailable`."""

    @property
    def name(self) -> str:
        """The entry point's name: `aws`, `vast` …"""

    @property
    def traits(self) -> Traits: ...

    def offers(self, query: OfferQuery) -> Sequence[Offer]:
        """Everything that fits the query and can be rented now: all pages, all enabled regions, both markets asked for.

        What cannot be had now is left out. No offer has a price of zero: unknown prices are left out too. A region
        that fails while others answer is named by raising `PartialOffers` with what did arrive. Safe to repeat.
        """

    def launch(self, request: LaunchRequest) -> Instance:
        """Rent the machine that the frozen request describes; return on acceptance, do not wait for boot.

        The instance carries `request.tags` from its creation on. Called again with the same request it returns the same
        machine where the API has a token (`traits.token`); where not, the core looks by tag first. Raises `NoCapacity`,
        `QuotaExceeded`, `InvalidRequest`; `Ambiguous` whenever a machine may exist though no id came back; a plain
        `ProviderError` with the provider's own code for what is not known.
        """

    def instances(self) -> Sequence[Instance]:
        """Every instance that carries our tag, in as few calls as the API allows: state, cause, notice.

        Terminated ones are listed as long as the provider remembers them. Absent means not found: the core asks twice.
        Raises rather than return a part of the list.
        """

    def terminate(self, instance: Instance) -> None:
        """End the machine and everything that is billed with it. Idempotent; returns on acceptance.

        An unknown id is success. `instances()` confirms the end.
        """

    def notice(self, instance: Instance) -> Notice | None:
        """The notice of one instance as the control plane knows it; None without one."""


class PartialOffers(Exception):  # noqa: N818 - it carries a result; the core unpacks it and goes on
    """Some regions answered and others failed: `offers` is what arrived, `failures` names the rest."""

    def __init__(self, offers: Sequence[Offer], failures: Mapping[str, Exception]) -> None:
        super().__init__("; ".join(f"{where}: {error}" for where, error in failures.items()))
        # As it came: an `OfferList` also says what was left out.
        self.offers = offers if isinstance(offers, list) else list(offers)
        self.failures = dict(failures)


class OfferList(list[Offer]):
    """What `offers` may return where the provider's settings leave offers out that fit: `left_out`, reason -> how many.

    The reasons are for people, with the setting that decides in them.
    """

    def __init__(self, offers: Iterable[Offer] = (), *, left_out: Mapping[str, int] | None = None) -> None:
        super().__init__(offers)
        self.left_out = dict(left_out or {})


@runtime_checkable
class ChangesBid(Protocol):
    """Optional: the bid of a running instance can be changed. USD per hour of the whole machine."""

    def change_bid(self, instance: Instance, bid: float) -> None: ...


@runtime_checkable
class LaunchesAny(Protocol):
    """Optional: one call rents whichever of many spot offers of one region the provider can give best."""

    def launch_any(self, request: LaunchRequest, offers: Sequence[Offer]) -> Instance:
        """As `Provider.launch`, but any of the offers may win; `request.offer` is one of them.

        The instance says which: its zone and type, and what it costs per hour. What is set aside for it should be the
        dearest member's price. Raises NoCapacity where none can be had, InvalidRequest for offers of several regions or
        on demand.
        """


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. what: its name; ok: whether it works; found: what was seen; fix: the next step."""

    what: str
    ok: bool
    found: str
    fix: str = ""


@runtime_checkable
class Checks(Protocol):
    """Optional: what works for this user's account and what does not, without renting anything (`broker check`).

    Never raises for what it is there to find out: a wrong key is a Finding.
    """

    def check(self) -> Sequence[Finding]: ...


@runtime_checkable
class GivesIdentity(Protocol):
    """Optional: a machine can be somebody by itself, as by an instance profile, with credentials that renew themselves.
    `LaunchRequest.identity` says who."""

    def identify(self, name: str, policy: Mapping[str, Any], *, make: bool) -> Sequence[Finding]:
        """Is there such an identity, and may it do what the policy says, which is IAM's JSON?

        make: what is missing is made, and what a broken call left is finished; nobody else's is changed. Raises
        AuthFailed with the permission that the account lacks, ConfigError for a name that is taken.
        """


@runtime_checkable
class TakesKey(Protocol):
    """Optional: rents with one key that the user makes at the vendor's; `broker check` asks for it and keeps it by
    `broker.keys`. Without a key its calls raise AuthFailed with the code `no key`."""

    @property
    def how_to_key(self) -> str:
        """Where keys are made, in a line."""


@runtime_checkable
class Prepaid(Protocol):
    """Optional: the account is paid in advance; its machines end when nothing is left. USD."""

    def balance(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Shell:
    """A way into a machine for a person, by a program of their own computer. Nothing that runs a job goes this way.

    argv: the program, which opens a terminal there; OpenSSH gets its options about host keys from whoever runs it.
    commands: it also takes one command line for a shell on the machine, as its last argument. become: what makes a
    command there root's. folder: the guest's own there. needs: what must hold for it and is not seen from here.
    """

    argv: tuple[str, ...]
    commands: bool = True
    become: tuple[str, ...] = ()
    folder: str = "/var/lib/spotbroker"
    needs: str = ""


@runtime_checkable
class Reachable(Protocol):
    """Optional: a person can open a shell on a machine (`broker ssh`). Launching depends on nothing of it."""

    def shell(self, instance: Instance) -> Shell:
        """The way in. Changes nothing. Raises NotFound for a machine that is not there, ConfigError with the fix where
        the account's settings leave no way."""


@dataclass(frozen=True, slots=True)
class PricePoint:
    """The price of an offer's key at a moment, USD per hour without disk."""

    key: str
    at: float
    price: float
    extra: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class PriceHistory(Protocol):
    """Optional: past prices of what a query fits."""

    def price_history(self, query: OfferQuery, since: float) -> Sequence[PricePoint]: ...
