"""`Catalogue`: what can be rented now, every enabled region asked side by side."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from broker.errors import AuthFailed, BrokerError, InvalidRequest, NotFound, ProviderError
from broker.offer import Market, Offer, OfferQuery
from broker.policy.hazard import advisor as per_hour
from broker.provider import PartialOffers
from broker_aws import advisor, prices
from broker_aws.account import Account
from broker_aws.images import Image, Images
from broker_aws.kept import Kept
from broker_aws.machines import ARM, MachineType, Types
from broker_aws.prices import PriceList, SpotPrice
from broker_aws.refusals import NAME
from broker_aws.settings import Settings
from broker_aws.zones import Zone, Zones

NOTICE = 120.0  # seconds between a spot machine's notice and its end
# No default VPC reaches into local zones (AWS Local Zones, "Default subnets").
NO_SUBNET = "a local zone needs a subnet of its own: name one in [providers.aws] subnets"
# AWS China is billed by others in yuan, and has a price list of its own (Amazon Web Services in China, "Pricing").
NO_YUAN = "{} has its prices in CNY, and everything here is reckoned in USD: nothing is rented there"
USAGE = {Market.SPOT: "spot", Market.ON_DEMAND: "on-demand"}


@dataclass(slots=True)
class Region:
    """What one region said. failures: what it did not say, the rest being used.

    offered: type → zone names. spot: (type, zone name) → price. listed: (type, zone group) → on-demand price. images:
    None where they could not be asked for.
    """

    name: str
    machines: Mapping[str, MachineType] = field(default_factory=dict)
    zones: Mapping[str, Zone] = field(default_factory=dict)
    offered: Mapping[str, Sequence[str]] = field(default_factory=dict)
    spot: Mapping[tuple[str, str], SpotPrice] = field(default_factory=dict)
    listed: dict[tuple[str, str], float] = field(default_factory=dict)
    images: Mapping[str, Image] | None = None
    disk_price: float = prices.USUAL_DISK
    failures: dict[str, Exception] = field(default_factory=dict)

    def fail(self, error: Exception, part: str = "") -> None:
        self.failures[f"{NAME}/{self.name}{part}"] = error

    def places(self) -> Iterator[tuple[MachineType, Zone]]:
        for name, machine in self.machines.items():
            for zone in self.offered.get(name, ()):
                if zone in self.zones:
                    yield machine, self.zones[zone]


class Catalogue:
    """Offers of one account. Nothing but the price list, zones, types and images is kept, and those on disk."""

    def __init__(self, account: Account, kept: Kept, settings: Settings) -> None:
        self.account, self.kept, self.settings = account, kept, settings
        self.zones = Zones(account, kept, settings)
        self.types = Types(account, kept)
        self.images = Images(account, kept)
        self.prices = PriceList(account, kept)

    def offers(self, query: OfferQuery) -> list[Offer]:
        """As `Provider.offers`. Raises AuthFailed where no region takes the credentials."""
        regions, failures = self.zones.wanted(query)
        spot = Market.SPOT in query.markets
        bands = advisor.Bands(self.settings.advisor_url if spot else "", self.kept)
        answers, failed = self.account.each(regions, lambda region: self._region(region, query))
        refused = [error for error in failed.values() if isinstance(error, AuthFailed)]
        if refused and not answers:
            raise refused[0]
        failures |= {f"{NAME}/{region}": error for region, error in failed.items()}
        found: list[Offer] = []
        known, now = bands.wait(), time.time()
        for answer in answers.values():
            failures |= answer.failures
            found += _composed(answer, query, known.get(answer.name, {}), now)
        if self.settings.placement_scores and spot:
            found = self._scored(found)
        own = _own_image(query)
        if own is not None and answers:
            failures = self._without_image(own, found, failures)
        if failures:
            raise PartialOffers(found, failures)
        return found

    def _region(self, name: str, query: OfferQuery) -> Region:
        """One region's facts; only what everything hangs on is raised."""
        if name.startswith("cn-"):
            raise ProviderError(NO_YUAN.format(name), provider=NAME, code="CNY", fix="set regions in [providers.aws]")
        pool = self.types.pool(name, query)
        machines = {machine.name: machine for machine in pool if machine.fits(query)}
        region = Region(name, machines)
        if not machines:
            return region
        types = sorted(machine.name for machine in pool)
        region.zones = self.zones.of(name)
        region.offered = self.zones.offered(name, types)
        self._list_prices(region, types)
        if Market.SPOT in query.markets:
            self._spot_prices(region, sorted(name for name, one in machines.items() if "spot" in one.markets))
        try:
            region.images = self.images.of(name, machines.values(), _own_image(query))
        except BrokerError as error:
            region.fail(error, "/image")
        return region

    def _spot_prices(self, region: Region, types: Sequence[str]) -> None:
        if not types:
            return
        region.spot, problem = prices.spot(self.account, region.name, types, time.time())
        if problem is not None:
            region.fail(problem)
            return
        without: dict[str, list[str]] = {}
        for machine, zone in region.places():
            if machine.name in types and (machine.name, zone.name) not in region.spot:
                without.setdefault(machine.name, []).append(zone.name)
        if without:
            text = "; ".join(f"{name} in {', '.join(sorted(zones))}" for name, zones in without.items())
            region.fail(ProviderError(f"no spot price now for {text}", provider=NAME, code="no price"))

    def _list_prices(self, region: Region, types: Sequence[str]) -> None:
        groups = {zone.group for zone in region.zones.values()}
        try:
            for group in sorted(groups):
                for name, price in self.prices.on_demand(group or region.name, types).items():
                    region.listed[name, group] = price
            region.disk_price = self.prices.disk(region.name)
        except BrokerError as error:
            region.failures[f"{NAME}/price list"] = error

    def _scored(self, found: list[Offer]) -> list[Offer]:
        spot = [offer for offer in found if offer.market is Market.SPOT]
        regions = sorted({offer.region for offer in spot})
        scores = advisor.scores(self.account, self.kept, regions, sorted({offer.instance_type for offer in spot}))
        return [
            replace(offer, extra={**offer.extra, "placement_score": scores[offer.extra["zone_id"]]})
            if offer.market is Market.SPOT and offer.extra["zone_id"] in scores
            else offer
            for offer in found
        ]

    def _without_image(self, own: str, found: Sequence[Offer], failures: dict[str, Exception]) -> dict[str, Exception]:
        """That most regions lack a task's own image is as it should be; that all do is the task's fault."""
        missing = {where: error for where, error in failures.items() if isinstance(error, NotFound)}
        rest = {where: error for where, error in failures.items() if where not in missing}
        if found or not missing:
            return rest
        text = f"no region of this account has the image {own}"
        fix = "an AMI belongs to one region, and to the accounts that it is shared with"
        return {**rest, NAME: InvalidRequest(text, provider=NAME, code="InvalidAMIID.NotFound", fix=fix)}


def _own_image(query: OfferQuery) -> str | None:
    """The machine image that a task names; a container's is started on ours."""
    return query.image if query.image and query.image.startswith("ami-") else None


def _composed(region: Region, query: OfferQuery, bands: Mapping[str, int], now: float) -> Iterator[Offer]:
    own = _own_image(query)
    for machine, zone in region.places():
        image = region.images.get(machine.name) if region.images is not None else None
        if image is None and (own is not None or region.images is not None):
            continue
        disk = max(query.disk, image.minimum if image else 0.0)
        listed = region.listed.get((machine.name, zone.group))
        spot = region.spot.get((machine.name, zone.name))
        band = bands.get(machine.name)
        for market, price in ((Market.SPOT, spot.price if spot else None), (Market.ON_DEMAND, listed)):
            if price is None or market not in query.markets or USAGE[market] not in machine.markets:
                continue
            known = {
                "zone_id": zone.id,
                "architecture": "aarch64" if machine.arch == ARM else machine.arch,
                "subnet": zone.subnet,
                "ami": image.id if image else None,
                "root": image.root if image else None,
                "on_demand": listed,
                "price_at": spot.at if spot and market is Market.SPOT else None,
                "band": band if market is Market.SPOT else None,
            }
            yield Offer(
                provider=NAME,
                region=region.name,
                zone=zone.name,
                instance_type=machine.name,
                market=market,
                price=price,
                disk_price=math.ceil(disk) * region.disk_price,
                address_price=prices.ADDRESS if zone.public else 0.0,
                gpu=machine.gpu,
                gpu_count=machine.gpu_count,
                gpu_memory=machine.gpu_memory,
                cpus=machine.cpus,
                memory=machine.memory,
                disk=disk,
                interruption=per_hour(band) if market is Market.SPOT and band is not None else None,
                notice=NOTICE if market is Market.SPOT else None,
                fetched_at=now,
                blocked=NO_SUBNET if zone.group and not zone.subnet else image.unpriced if image else "",
                extra={key: value for key, value in known.items() if value not in (None, "")},
            )
