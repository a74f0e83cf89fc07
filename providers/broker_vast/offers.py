"""Vast's offers: what is asked for, and what a row means in our units.

Prices of a row are USD per hour of the whole offer, all its cards; disk and data have prices of their own. Memory comes
in MB that are MiB (a 24 GB card says 24564), and of the whole machine, of which an offer gets its share of the cores.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from broker import gpus
from broker.offer import Market, Offer, OfferQuery, Trust
from broker.provider import OfferList
from broker.rest import number, whole
from broker_vast.api import LIMIT, NAME
from broker_vast.settings import TABLE, Settings

TYPES = {Market.ON_DEMAND: "on-demand", Market.SPOT: "bid"}
LEAST_DISK = 8.0  # GB; PUT /asks/{id}
LEAST_BID, MOST_BID = 0.001, 128.0  # USD per hour; PUT /asks/{id}
GB = 1.073741824  # GB per GiB: data is charged by the GB
MONTH = 730.0  # hours
DATACENTER = 1  # hosting_type
_SIZE = re.compile(r"(?:[a-z]+:)?(\d+(?:\.\d+)?)GB\+?")
_COUNTRY = re.compile(r"(?:^|,)\s*([A-Z]{2})\s*$")


def spellings(query: OfferQuery, known: Iterable[str]) -> list[str]:
    """Vast's names, with spaces, of the cards that a query may mean."""
    wanted = query.gpu
    return [
        n for n in known if wanted is None or any(gpus.matches(wanted, card_name(n), gib) for gib in gpus.memories(n))
    ]


def by_memory(gpu: str) -> float | None:
    """The GiB that a wish such as `24GB+` names; None where it names a card."""
    found = _SIZE.fullmatch(gpu)
    return float(found[1]) if found else None


def search_body(query: OfferQuery, market: Market, names: Sequence[str] | None) -> dict[str, Any]:
    """The body of POST /bundles/. names: of the cards, None for any. What the settings leave out is asked for too, so
    that it can be counted.
    """
    disk = disk_of(query.disk)
    body: dict[str, Any] = {
        "type": TYPES[market],
        "limit": LIMIT,
        "order": [["dph_total", "asc"], ["id", "asc"]],
        "allocated_storage": disk,
        "rentable": {"eq": True},
        "rented": {"eq": False},
        "external": {"eq": False},
        "num_gpus": {"eq": query.gpu_count},
        "disk_space": {"gte": disk},
        "cpu_arch": {"eq": "amd64"},
    }
    if query.cpus:
        body["cpu_cores_effective"] = {"gte": query.cpus}
    if names is not None:
        body["gpu_name"] = {"in": list(names)}
    elif (size := by_memory(query.gpu or "")) is not None:
        body["gpu_ram"] = {"gte": int(size * 1000 * 0.9)}  # MB; cards report some percent less than they are sold with
    return body


def disk_of(gib: float) -> float:
    """The disk that is asked for, in Vast's GB, which are Docker's: GiB."""
    return float(max(LEAST_DISK, math.ceil(gib)))


def read(
    found: Mapping[Market, Sequence[Mapping[str, Any]]],
    query: OfferQuery,
    settings: Settings,
    *,
    blocked: str,
    now: float,
) -> OfferList:
    """The offers in the answers of both searches, and how many the settings left out, by reason."""
    left: Counter[str] = Counter()
    offers: dict[str, Offer] = {}
    on_demand: dict[tuple[int | None, int | None], float] = {}
    for row in found.get(Market.ON_DEMAND, ()):
        if (price := _base(row)) is not None:
            on_demand[_place(row)] = min(price, on_demand.get(_place(row), price))
    for market, rows in found.items():
        for row in rows:
            made = _offer(row, market, query, settings, on_demand.get(_place(row)), now)
            if made is None or not _fits(made, query) or not _holds(row, query):
                continue
            if why := _unwanted(row, made, settings):
                left[why] += 1
                continue
            offer = made.offer(market, query, blocked=blocked, now=now)
            # A machine of many cards is offered in several equal parts: one of them stands for all.
            if offer.key not in offers or offer.hourly < offers[offer.key].hourly:
                offers[offer.key] = offer
    return OfferList(offers.values(), left_out=left)


@dataclass(frozen=True, slots=True)
class Row:
    """One offer in our units, before the settings are asked. Fields as in `Offer`, and Vast's own numbers."""

    ask: int
    machine: int
    host: int
    region: str
    card: str
    count: int
    card_memory: float
    cpus: float
    memory: float
    price: float
    disk_price: float
    down: float
    up: float
    reliability: float
    trust: Trust
    lasts: float | None
    floor: float | None
    on_demand: float | None

    def offer(self, market: Market, query: OfferQuery, *, blocked: str, now: float) -> Offer:
        extra: dict[str, Any] = {
            "ask": self.ask,
            "machine": self.machine,
            "host": str(self.host),
            "reliability": self.reliability,
            "download_per_gib": self.down,
            "upload_per_gib": self.up,
        }
        if market is Market.SPOT:
            extra |= {"bid_floor": self.floor, "on_demand": self.on_demand, "pays_bid": True}
        return Offer(
            NAME,
            self.region,
            zone_of(self.host),
            type_of(self.machine, self.count, self.card),
            market,
            price=self.price,
            disk_price=self.disk_price,
            gpu=self.card,
            gpu_count=self.count,
            gpu_memory=self.card_memory,
            cpus=self.cpus,
            memory=self.memory,
            disk=query.disk,
            ends_at=now + self.lasts if self.lasts is not None else None,
            fetched_at=now,
            trust=self.trust,
            blocked=blocked,
            extra=extra,
        )


def _offer(
    row: Mapping[str, Any],
    market: Market,
    query: OfferQuery,
    settings: Settings,
    on_demand: float | None,
    now: float,
) -> Row | None:
    """None for a row that lacks what cannot be done without: ids, the card, its price and the disk's."""
    ask, machine, host = (whole(row.get(name)) for name in ("id", "machine_id", "host_id"))
    count, name = whole(row.get("num_gpus")), row.get("gpu_name")
    reported = _positive(row.get("gpu_ram")) or 0.0
    floor = _price(row.get("min_bid"))
    base = _base(row)
    if market is Market.SPOT:
        # In an answer for bids the base may be the least bid itself; above it, it is the price without one.
        cap = on_demand or (base if base is not None and floor is not None and base > floor else None)
        price = bid_of(floor, settings.bid_margin, cap) if floor is not None else None
    else:
        cap, price = base, base
    disk_price = _disk_price(row, disk_of(query.disk))
    if ask is None or machine is None or host is None or count is None or not isinstance(name, str):
        return None
    if price is None or disk_price is None:
        return None
    cores, share = _positive(row.get("cpu_cores")), _positive(row.get("cpu_cores_effective"))
    part = share / cores if cores and share else _positive(row.get("gpu_frac")) or 1.0
    return Row(
        ask=ask,
        machine=machine,
        host=host,
        region=region_of(row.get("geolocation")),
        card=card_name(name, reported),
        count=count,
        card_memory=gpus.nominal(reported, card_name(name, reported)) if reported else 0.0,
        cpus=share or 0.0,
        memory=(_positive(row.get("cpu_ram")) or 0.0) / 1024 * min(1.0, part),
        price=price,
        disk_price=disk_price,
        down=max(0.0, number(row.get("inet_down_cost")) or 0.0) * GB,
        up=max(0.0, number(row.get("inet_up_cost")) or 0.0) * GB,
        reliability=_positive(row.get("reliability2")) or _positive(row.get("reliability")) or 0.0,
        trust=Trust.DATACENTER if row.get("hosting_type") == DATACENTER else Trust.COMMUNITY,
        lasts=_lasts(row, now),
        floor=floor if market is Market.SPOT else None,
        on_demand=cap,
    )


def bid_of(floor: float, margin: float, on_demand: float | None) -> float:
    """What is bid where nobody says: the least bid and some more, never above the price that needs no bid."""
    bid = max(LEAST_BID, floor * (1 + margin))
    if on_demand is not None:
        bid = max(min(bid, on_demand), min(floor, on_demand))
    return round(bid, 6)


def _fits(row: Row, query: OfferQuery) -> bool:
    return (
        row.count == query.gpu_count
        and row.cpus >= query.cpus
        and row.memory >= query.memory
        and (query.gpu is None or gpus.matches(query.gpu, row.card, row.card_memory))
    )


def _holds(row: Mapping[str, Any], query: OfferQuery) -> bool:
    """Is the machine free, with the disk, and processors that images are built for? Where it does not say, the search
    did ask.
    """
    space = _positive(row.get("disk_space"))
    if row.get("rentable") is False or row.get("rented") is True:
        return False
    return (space is None or space >= disk_of(query.disk)) and row.get("cpu_arch") in (None, "amd64")


def _unwanted(row: Mapping[str, Any], made: Row, settings: Settings) -> str:
    """Why an offer that fits is left out; empty where it is not."""
    if settings.verified and row.get("verification") != "verified":
        return f"hosts that Vast has not verified ({TABLE} verified = false takes them)"
    if made.reliability < settings.reliability:
        return f"reliability below {settings.reliability:g} ({TABLE} reliability sets it)"
    if (cuda := _positive(row.get("cuda_max_good"))) is not None and cuda < settings.min_cuda:
        return f"CUDA below {settings.min_cuda:g} ({TABLE} min_cuda sets it)"
    if made.floor is not None and made.on_demand is not None and made.floor > made.on_demand:
        return "the least bid is above the on-demand price"
    return ""


def card_name(name: str, reported: float = 0.0) -> str:
    """Our name of a card, Vast's own where we know none."""
    try:
        return gpus.card(name, reported).name
    except ValueError:
        return name.strip().replace(" ", "-").replace("/", "-")


def region_of(geolocation: Any) -> str:
    """The country's two letters from `City, CC`; `unknown` where the host does not say."""
    found = _COUNTRY.search(geolocation) if isinstance(geolocation, str) else None
    return found[1] if found else "unknown"


def zone_of(host: Any) -> str:
    return f"host-{host}"


def type_of(machine: Any, count: Any, card: str) -> str:
    """Machine, number and card: the same for every offer of that machine, so that a bad one is not taken twice."""
    return f"m{machine}-{count}x{card}"


def _place(row: Mapping[str, Any]) -> tuple[int | None, int | None]:
    return whole(row.get("machine_id")), whole(row.get("num_gpus"))


def _base(row: Mapping[str, Any]) -> float | None:
    """USD per hour of the cards alone."""
    base = _price(row.get("dph_base"))
    if base is not None:
        return base
    total, storage = _price(row.get("dph_total")), _positive(row.get("storage_total_cost")) or 0.0
    return total - storage if total is not None and total > storage else None


def _disk_price(row: Mapping[str, Any], disk: float) -> float | None:
    """USD per hour of the disk: as the answer has it, but no less than what its price per month comes to; None for one
    that is not told.

    The second guards against an answer that was not for our disk; cheap by a few cents is how a dear offer wins.
    """
    search = row.get("search")
    told = number(row.get("storage_total_cost"))
    if not told and isinstance(search, Mapping):
        told = number(search.get("diskHour")) or told
    monthly = number(row.get("storage_cost"))
    found = (told, None if monthly is None else monthly * disk / MONTH)
    return max((usd for usd in found if usd is not None and 0 <= usd < math.inf), default=None)


def _lasts(row: Mapping[str, Any], now: float) -> float | None:
    """Seconds for which the host can be rented; 0 where its end has come, None where it does not say."""
    left, end = number(row.get("duration")), _positive(row.get("end_date"))
    if left is not None:
        return max(0.0, left)
    return max(0.0, end - now) if end is not None else None


def _price(value: Any) -> float | None:
    """What the cards cost: as `_positive`, but text is none, since a price that is not told must never win."""
    return None if isinstance(value, str) else _positive(value)


def _positive(value: Any) -> float | None:
    """A number above zero; None for what is missing, no number, zero or infinite, all of which mean unknown here."""
    found = number(value)
    return found if found is not None and found > 0 else None
