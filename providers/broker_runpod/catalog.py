"""From RunPod's price lists to offers: per card and cloud, per data centre where the key shows these.

All of RunPod's prices are USD per hour and per single card (GraphQL, gpuTypes; REST v2, GpuType.price). A price stands
for something only where its cloud sells the card: elsewhere the lists hold 0 or 0.5, or a price of long ago.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from broker import gpus
from broker.offer import Market, Offer, OfferQuery, Trust
from broker.rest import number
from broker_runpod.refusals import NAME

HOURS = 730.0  # of a month
CONTAINER_DISK = 0.10 / HOURS  # USD per GiB and hour while running (RunPod: pods, pricing)
VOLUME, LARGE_VOLUME = 0.07 / HOURS, 0.05 / HOURS  # network volume below 1,000 GB, and the whole of a larger one
SECURE, COMMUNITY = "secure", "community"
TRUST = {SECURE: Trust.DATACENTER, COMMUNITY: Trust.COMMUNITY}
NOTICE = 5.0
ODD = (AttributeError, KeyError, OverflowError, TypeError, ValueError)  # what a row that is none of theirs leads to
TYPE = re.compile(r"(?P<count>[1-9]\d*)x (?P<gpu>.+) (?P<cloud>SECURE|COMMUNITY)")


@dataclass(frozen=True, slots=True)
class Sold:
    """One card in one cloud. Prices are USD per hour and card; spot None where none is sold; floor: the least bid.

    vcpus, memory: what a pod with so many cards has at least, 0 where that is not told. centres: data centres that
    have it now, None where not asked.
    """

    gpu_id: str
    cloud: str
    memory_gib: float
    on_demand: float | None
    spot: float | None
    floor: float
    most: int
    vcpus: float = 0.0
    memory: float = 0.0
    stock: str = ""
    centres: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Mount:
    """The network volume that pods mount. hourly: USD per hour, which it costs whether or not a pod runs."""

    id: str
    centre: str
    hourly: float


def mount_of(volume: Mapping[str, Any]) -> Mount:
    """A volume as `GET /v2/network-volumes/{id}` shows it: size in GB, and the data centre that it binds pods to."""
    size = float(volume["size"])
    return Mount(str(volume["id"]), str(volume["dataCenter"]), size * (VOLUME if size < 1000 else LARGE_VOLUME))


def sold_by_graph(rows: Iterable[Any], count: int) -> Iterator[Sold]:
    """GraphQL's gpuTypes, for pods with so many cards. A row that cannot be read takes no other with it."""
    for row in rows:
        with contextlib.suppress(*ODD):
            yield from [*_by_graph(row, count)]


def sold_by_rest(rows: Iterable[Any]) -> Iterator[Sold]:
    """REST v2's catalog, which knows no spot; for the time when GraphQL is there no more."""
    for row in rows:
        with contextlib.suppress(*ODD):
            yield from [*_by_rest(row)]


def centres_of(rows: Iterable[Any]) -> dict[str, tuple[str, ...]]:
    """Card -> the data centres of the secure cloud that have it now (REST v2, include=AVAILABILITY)."""
    found: dict[str, tuple[str, ...]] = {}
    for row in rows:
        with contextlib.suppress(*ODD):
            centres = row.get("dataCenters") or ()
            found[str(row["id"])] = tuple(str(c["id"]) for c in centres if c.get("availability") != "NONE")
    return found


def _by_graph(row: Mapping[str, Any], count: int) -> Iterator[Sold]:
    for cloud in (SECURE, COMMUNITY):
        stock = row.get(f"{cloud}Stock", {})
        if not row.get(f"{cloud}Cloud") or not row.get("memoryInGb") or not _in_stock(stock, count):
            continue
        most = row.get(f"maxGpuCount{cloud.capitalize()}Cloud") or row.get("maxGpuCount") or 1
        least = _price(stock.get("minimumBidPrice")) or 0.0
        spot = _price(row.get(f"{cloud}SpotPrice"))
        yield Sold(
            gpu_id=str(row["id"]),
            cloud=cloud,
            memory_gib=_size(row["memoryInGb"]),
            on_demand=_price(row.get(f"{cloud}Price")),
            spot=max(spot, least) if spot else None,
            floor=least or spot or 0.0,
            most=int(most),
            vcpus=_size(stock.get("minVcpu") or 0.0),
            memory=_size(stock.get("minMemory") or 0.0),
            stock=str(stock.get("stockStatus") or ""),
        )


def _by_rest(row: Mapping[str, Any]) -> Iterator[Sold]:
    for cloud in (SECURE, COMMUNITY):
        if row.get(cloud) and row.get("memory") and row.get("availability") != "NONE":
            yield Sold(
                gpu_id=str(row["id"]),
                cloud=cloud,
                memory_gib=_size(row["memory"]),
                on_demand=_price((row.get("price") or {}).get(cloud)),
                spot=None,
                floor=0.0,
                most=int((row.get("maxCount") or {}).get(cloud) or 0),
                stock=str(row.get("availability") or ""),
            )


@dataclass(frozen=True, slots=True)
class Shape:
    """What turns cards into offers for one question. blocked: why nothing can be rented; no_spot: why no spot can."""

    query: OfferQuery
    at: float
    mount: Mount | None = None
    centres: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    blocked: str = ""
    no_spot: str = ""


def offers(cards: Iterable[Sold], shape: Shape) -> list[Offer]:
    """Every offer that fits; of two with one key (RunPod has ids that differ by a blank only) the cheaper."""
    found: dict[str, Offer] = {}
    for card in cards:
        for offer in _of_card(card, shape):
            known = found.get(offer.key)
            if known is None or offer.price < known.price:
                found[offer.key] = offer
    return sorted(found.values(), key=lambda offer: (offer.hourly, offer.key))


def _of_card(card: Sold, shape: Shape) -> Iterator[Offer]:
    query, count = shape.query, shape.query.gpu_count
    named = _named(card)
    if (
        named is None
        or not gpus.matches(query.gpu or "", named, card.memory_gib)
        or count > card.most
        or card.vcpus < query.cpus
        or card.memory < query.memory
        or (shape.mount is not None and card.cloud != SECURE)
    ):
        return
    for market in query.markets:
        price = card.spot if market is Market.SPOT else card.on_demand
        for region, zone in _places(card, shape) if price else ():
            yield Offer(
                provider=NAME,
                region=region,
                zone=zone,
                instance_type=type_name(count, card.gpu_id, card.cloud),
                market=market,
                price=count * (price or 0.0),
                disk_price=query.disk * CONTAINER_DISK + (shape.mount.hourly if shape.mount else 0.0),
                gpu=named,
                gpu_count=count,
                gpu_memory=card.memory_gib,
                cpus=card.vcpus,
                memory=card.memory,
                disk=query.disk,
                notice=NOTICE if market is Market.SPOT else None,
                fetched_at=shape.at,
                trust=TRUST[card.cloud],
                blocked=shape.blocked or (shape.no_spot if market is Market.SPOT else ""),
                extra=_extra(card, market, count),
            )


def _extra(card: Sold, market: Market, count: int) -> dict[str, Any]:
    """`on_demand`: USD per hour of the same shape on demand, above which no bid is worth its risk."""
    extra: dict[str, Any] = {"download_per_gib": 0.0, "upload_per_gib": 0.0, "stock": card.stock}
    if market is Market.SPOT:
        extra |= {"bid_floor": count * card.floor, "pays_bid": True}
        if card.on_demand:
            extra["on_demand"] = count * card.on_demand
    return extra


def _places(card: Sold, shape: Shape) -> list[tuple[str, str]]:
    """(region, zone): a country and its data centre as SkyPilot names them, else the cloud alone."""
    if shape.mount is not None:
        return [(country(shape.mount.centre), shape.mount.centre)]
    centres = shape.centres.get(card.gpu_id) if card.cloud == SECURE else None
    return [(country(centre), centre) for centre in centres] if centres else [(card.cloud, "")]


def country(centre: str) -> str:
    """`EU-RO-1` is in RO, `US-TX-3` in US: the second part is the country where the first is a continent."""
    parts = centre.split("-")
    return parts[1] if len(parts) == 3 and parts[0] in ("EU", "EUR", "AP", "OC", "SEA", "AF", "SA", "ME") else parts[0]


def type_name(count: int, gpu_id: str, cloud: str) -> str:
    return f"{count}x {gpu_id} {cloud.upper()}"


def _named(card: Sold) -> str | None:
    try:
        return gpus.card(card.gpu_id, card.memory_gib).name
    except ValueError:
        return None  # nobody can ask for a card without a name


def _price(value: Any) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
    return float(value) if number else None


def _size(value: Any) -> float:
    """Raises ValueError for what is no number."""
    found = number(value)
    if found is None:
        raise ValueError(f"{value!r} is no size")
    return found


def _in_stock(stock: Any, count: int) -> bool:
    """`lowestPrice` null, or its stockStatus null or None, is no offer; one that was not asked for tells nothing."""
    if stock is None:
        return False
    if "stockStatus" in stock and stock["stockStatus"] in (None, "None"):
        return False
    return not stock.get("availableGpuCounts") or count in stock["availableGpuCounts"]
