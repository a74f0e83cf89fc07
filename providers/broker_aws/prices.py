"""What machines and disks cost: spot prices of the moment, list prices from AWS's price list.

Spot prices (EC2 API, DescribeSpotPriceHistory): a row stands until the next one of its pool, so with the present as the
start EC2 answers with what is in force, however long ago it changed. Rows come newest first, mixed over pools, and of
every product that is asked for.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from broker.errors import ProviderError
from broker_aws.account import Account
from broker_aws.kept import DAY, Kept
from broker_aws.paging import pages
from broker_aws.refusals import translated
from broker_aws.zones import digest

LINUX = ("Linux/UNIX", "Linux/UNIX (Amazon VPC)")
PRICE_LIST_REGION = "us-east-1"  # one of the few that answer for all regions
MONTH = 730.0  # hours of a month, by which AWS reckons disks
ADDRESS = 0.005  # USD per hour of a public IPv4 address, in every region (Amazon VPC pricing, since February 2024)
USUAL_DISK = 0.08 / MONTH  # USD per GiB and hour: gp3 in us-east-1, where the price list does not answer


@dataclass(frozen=True, slots=True)
class SpotPrice:
    """price: USD per hour. at: since when, seconds since the epoch."""

    price: float
    at: float


def spot(
    account: Account, region: str, types: Sequence[str], now: float
) -> tuple[dict[tuple[str, str], SpotPrice], Exception | None]:
    """(type, zone name) → its price now, in one call and its pages; and what went wrong on the way, if anything.

    A price that is missing, zero or unreadable is left out.
    """
    found: dict[tuple[str, str], SpotPrice] = {}
    wish = {
        "InstanceTypes": list(types),
        "ProductDescriptions": list(LINUX),
        "StartTime": dt.datetime.fromtimestamp(now, dt.UTC),
        "MaxResults": 1000,
    }
    try:
        with translated(region=region):
            ask = account.client("ec2", region).describe_spot_price_history
            for row in pages(ask, "SpotPriceHistory", **wish):
                if row.get("ProductDescription") not in LINUX:
                    continue
                price, since = _positive(row.get("SpotPrice")), row.get("Timestamp")
                pool = (row.get("InstanceType", ""), row.get("AvailabilityZone", ""))
                at = since.timestamp() if since else 0.0
                if price and all(pool) and (pool not in found or at > found[pool].at):
                    found[pool] = SpotPrice(price, at)
    except ProviderError as error:
        return found, error
    return found, None


class PriceList:
    """List prices, kept on disk for a day. USD per hour."""

    def __init__(self, account: Account, kept: Kept) -> None:
        self.account, self.kept = account, kept

    def on_demand(self, place: str, types: Sequence[str]) -> dict[str, float]:
        """Type → its price in a region, or in a local zone's group; Linux, shared hardware, nothing preinstalled."""

        def fetch() -> dict[str, float]:
            prices: dict[str, float] = {}
            for start in range(0, len(types), 50):
                filters = [
                    _filter("instanceType", ",".join(types[start : start + 50]), "ANY_OF"),
                    _filter("regionCode", place),
                    _filter("operatingSystem", "Linux"),
                    _filter("tenancy", "Shared"),
                    _filter("preInstalledSw", "NA"),
                    _filter("capacitystatus", "Used"),
                ]
                for product in self._products(filters):
                    attributes = product["product"]["attributes"]
                    price = _hourly(product, "Hrs")
                    if price and attributes.get("marketoption", "OnDemand") == "OnDemand":
                        prices[attributes["instanceType"]] = price
            return prices

        return self.kept.get(f"on-demand-{place}-{digest(types)}", DAY, fetch)

    def disk(self, region: str) -> float:
        """A GiB of gp3 for an hour. Raises ProviderError where the price list does not say."""

        def fetch() -> dict[str, float]:
            filters = [_filter("volumeApiName", "gp3"), _filter("productFamily", "Storage")]
            found = {}
            for product in self._products(filters):
                if price := _hourly(product, "GB-Mo"):
                    found[product["product"]["attributes"].get("regionCode", "")] = price / MONTH
            return found

        prices = self.kept.get("gp3", DAY, fetch)
        if region not in prices:
            raise ProviderError(f"the price list has no gp3 disk in {region}", provider="aws", code="no price")
        return prices[region]

    def _products(self, filters: list[dict[str, str]]) -> list[Any]:
        with translated():
            ask = self.account.client("pricing", PRICE_LIST_REGION).get_products
            wish = {"ServiceCode": "AmazonEC2", "Filters": filters, "FormatVersion": "aws_v1", "MaxResults": 100}
            return [json.loads(text) for text in pages(ask, "PriceList", **wish)]


def _filter(field: str, value: str, kind: str = "TERM_MATCH") -> dict[str, str]:
    return {"Type": kind, "Field": field, "Value": value}


def _hourly(product: Any, unit: str) -> float:
    """The one price above zero in that unit, of a product's on-demand terms; 0 without."""
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term.get("priceDimensions", {}).values():
            if dimension.get("unit") == unit and (price := _positive(dimension.get("pricePerUnit", {}).get("USD"))):
                return price
    return 0.0


def _positive(text: Any) -> float:
    """The number in a text; 0 for everything that is no price."""
    try:
        price = float(text)
    except (TypeError, ValueError):
        return 0.0
    return price if 0 < price < math.inf else 0.0
