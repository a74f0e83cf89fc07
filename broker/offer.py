"""What can be rented now: `Offer`, and what is asked for: `OfferQuery`.

Money is USD per hour, memory GiB, time seconds since the epoch. Each provider converts once, at its own edge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Market(StrEnum):
    """How a machine is rented: `spot` may be taken back by its provider, `on_demand` may not."""

    SPOT = "spot"
    ON_DEMAND = "on_demand"

    @property
    def told(self) -> str:
        """As people are told it."""
        return self.value.replace("_", "-")


class Trust(StrEnum):
    """Who can look into the machine: a `cloud`, a marketplace's vouched `datacenter`, anybody's `community` host."""

    CLOUD = "cloud"
    DATACENTER = "datacenter"
    COMMUNITY = "community"

    def reaches(self, least: Trust) -> bool:
        """Is it at least as trusted as `least`?"""
        order = list(Trust)
        return order.index(self) <= order.index(least)


@dataclass(frozen=True, slots=True)
class Offer:
    """Something rentable now.

    price: USD per hour of the whole machine without its disk and its address.
    disk_price: USD per hour of the disk that the query asked for. address_price: USD per hour of its public
    address, where its provider charges for that.
    interruption: chance of being taken back per hour, where the provider or experience says so.
    notice: seconds of warning before the machine is taken back; None where there is none.
    ends_at: when the host stops being rentable, seconds since the epoch.
    simulated: the money is not real.
    trust: who can look into the machine. blocked: why this installation cannot rent it, such as `no key yet`, with what
    to do; empty where it can. Such an offer is shown and never chosen.
    extra: what else the adapter must know to launch it, or the policy to reckon: `download_per_gib`, `upload_per_gib`
    (USD), `minimum_hours` (billed at least), `reliability` (0-1), `host`, `bid_floor` (USD per hour),
    `pays_bid` (what is bid is charged, whatever others bid).
    key: what tells this offer from every other: `provider/region/zone/instance_type/market`.
    """

    provider: str
    region: str
    zone: str
    instance_type: str
    market: Market
    price: float
    disk_price: float = 0.0
    address_price: float = 0.0
    gpu: str | None = None
    gpu_count: int = 0
    gpu_memory: float = 0.0
    cpus: float = 0.0
    memory: float = 0.0
    disk: float = 0.0
    interruption: float | None = None
    notice: float | None = None
    ends_at: float | None = None
    fetched_at: float = 0.0
    simulated: bool = False
    trust: Trust = Trust.CLOUD
    blocked: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
    key: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Made once: a decision over a whole market asks for it again and again.
        key = f"{self.provider}/{self.region}/{self.zone}/{self.instance_type}/{self.market}"
        object.__setattr__(self, "key", key)
        if not self.price > 0:
            raise ValueError(f"an offer's price must be above zero, not {self.price!r}: {key}")

    @property
    def hourly(self) -> float:
        """USD per hour of the whole machine, its disk and its address included."""
        return self.price + self.disk_price + self.address_price

    @property
    def where(self) -> str:
        """`provider/region/zone`, for people."""
        return "/".join(part for part in (self.provider, self.region, self.zone) if part)

    def to_json(self) -> dict[str, Any]:
        found = {**asdict(self), "market": str(self.market), "trust": str(self.trust)}
        del found["key"]
        return found

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Offer:
        return cls(**{**data, "market": Market(data["market"]), "trust": Trust(data.get("trust", "cloud"))})


def hourly_of(written: Mapping[str, Any]) -> float:
    """`Offer.hourly` of an offer as `to_json` has it."""
    return float(written["price"] + written["disk_price"] + written.get("address_price", 0.0))


@dataclass(frozen=True, slots=True)
class OfferQuery:
    """What a task asks of a machine. Sizes are at least; empty means no wish.

    gpu, gpu_count: a card, a family of cards or a wish for memory such as `24GB+`, to be compared by
    `broker.gpus.matches`, and exactly how many. disk: GiB that the offer's disk price is for.
    infra: patterns `provider[/region[/zone]]` with `*`; an offer matches any of them. alone: the machine, or the
    container on it, must be the job's alone: it has files at absolute paths.
    """

    gpu: str | None = None
    gpu_count: int = 0
    cpus: float = 0.0
    memory: float = 0.0
    disk: float = 20.0
    infra: tuple[str, ...] = ()
    image: str | None = None
    markets: tuple[Market, ...] = (Market.SPOT, Market.ON_DEMAND)
    alone: bool = False
