"""Regions and zones: which of them this account may use, and what each zone has.

A zone's name (`us-east-1a`) means another building in every account, its id (`use1-az6`) the same one everywhere.
Offers are keyed by the name, which launches take, and carry the id.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from broker.errors import ProviderError, ProviderUnavailable, QuotaExceeded
from broker.offer import OfferQuery
from broker_aws.account import Account
from broker_aws.kept import DAY, HOUR, Kept
from broker_aws.paging import pages
from broker_aws.refusals import NAME, translated
from broker_aws.settings import Settings

FILTER_VALUES = 200  # that EC2 takes in one filter
OPTED_IN = ("opt-in-not-required", "opted-in")


@dataclass(frozen=True, slots=True)
class Zone:
    """group: what the price list calls the place of a local zone; empty in an ordinary zone, which has the region's
    prices. subnet: the one that machines go to; empty for the default VPC's. public: machines get a public
    address there.
    """

    name: str
    id: str
    group: str = ""
    subnet: str = ""
    public: bool = True


class Zones:
    """Kept on disk: regions and zones for an hour, as they can be opted into; what a zone has for a day."""

    def __init__(self, account: Account, kept: Kept, settings: Settings) -> None:
        self.account, self.kept, self.settings = account, kept, settings

    def all_regions(self) -> dict[str, str]:
        """Region → its opt-in status, disabled ones too. Raises AuthFailed, ProviderUnavailable."""

        def fetch() -> dict[str, str]:
            with translated():
                answer = self.account.client("ec2", self.account.home_region).describe_regions(AllRegions=True)
            rows = answer.get("Regions") or ()
            return {one["RegionName"]: one.get("OptInStatus") or OPTED_IN[0] for one in rows}

        return self.kept.get("regions", HOUR, fetch)

    def enabled(self) -> list[str]:
        """Raises as `all_regions`, and ProviderUnavailable for a list without any: every account has some, and where
        none is asked no machine would be found.
        """
        found = sorted(region for region, status in self.all_regions().items() if status in OPTED_IN)
        if not found:
            raise ProviderUnavailable("AWS names no region that is enabled", provider=NAME, code="no region")
        return found

    def wanted(self, query: OfferQuery) -> tuple[list[str], dict[str, Exception]]:
        """The enabled regions that a query may name; those that it, or the settings, name in vain."""
        known = self.all_regions()
        patterns = [parts[1] for parts in (p.strip("/").lower().split("/") for p in query.infra) if len(parts) > 1]
        open_to_all = not query.infra or len(patterns) < len(query.infra)
        enabled = [
            region
            for region in self.enabled()
            if (not self.settings.regions or region in self.settings.regions)
            and (open_to_all or any(fnmatch.fnmatchcase(region, pattern) for pattern in patterns))
        ]
        named = {*self.settings.regions, *(pattern for pattern in patterns if "*" not in pattern)}
        failures: dict[str, Exception] = {
            f"{NAME}/{region}": _useless(region, known.get(region)) for region in sorted(named - set(self.enabled()))
        }
        return enabled, failures

    def of(self, region: str) -> dict[str, Zone]:
        """The zones by name that machines may go to: local ones only where opted in, and only where a subnet is."""

        def fetch() -> list[list[str]]:
            with translated(region=region):
                answer = self.account.client("ec2", region).describe_availability_zones()
            return [
                [
                    one["ZoneName"],
                    one.get("ZoneId") or "",
                    (one.get("GroupName") or "") if one.get("ZoneType") == "local-zone" else "",
                ]
                for one in answer.get("AvailabilityZones") or ()
                if one.get("OptInStatus") != "not-opted-in"
                and one.get("ZoneType") != "wavelength-zone"
                and one.get("State") != "unavailable"
            ]

        zones = {
            name: Zone(name, zone_id, group) for name, zone_id, group in self.kept.get(f"zones-{region}", HOUR, fetch)
        }
        if region not in self.settings.subnets:
            return zones
        subnets = self._subnets(region, self.settings.subnets[region])
        return {
            name: Zone(name, zones[name].id, zones[name].group, subnet, public)
            for subnet, (name, public) in subnets.items()
            if name in zones
        }

    def _subnets(self, region: str, ids: Sequence[str]) -> dict[str, tuple[str, bool]]:
        """Subnet → its zone's name and whether it gives public addresses; of two in one zone the first counts, as it
        comes last."""

        def fetch() -> dict[str, tuple[str, bool]]:
            with translated(region=region):
                answer = self.account.client("ec2", region).describe_subnets(SubnetIds=list(ids))
            return {one["SubnetId"]: (one["AvailabilityZone"], one["MapPublicIpOnLaunch"]) for one in answer["Subnets"]}

        found = self.kept.get(f"subnets-{region}-{'-'.join(ids)}", HOUR, fetch)
        return {subnet: found[subnet] for subnet in reversed(ids) if subnet in found}

    def offered(self, region: str, types: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Type → the names of the zones that have it."""

        def fetch() -> dict[str, list[str]]:
            found: dict[str, list[str]] = {}
            for start in range(0, len(types), FILTER_VALUES):
                wish: dict[str, Any] = {
                    "LocationType": "availability-zone",
                    "Filters": [{"Name": "instance-type", "Values": list(types[start : start + FILTER_VALUES])}],
                    "MaxResults": 1000,
                }
                with translated(region=region):
                    ask = self.account.client("ec2", region).describe_instance_type_offerings
                    for one in pages(ask, "InstanceTypeOfferings", **wish):
                        found.setdefault(one["InstanceType"], []).append(one["Location"])
            return found

        return self.kept.get(f"offered-{region}-{digest(types)}", DAY, fetch)


def digest(names: Sequence[str]) -> str:
    import hashlib

    return hashlib.sha256(" ".join(sorted(names)).encode()).hexdigest()[:12]


def _useless(region: str, status: str | None) -> ProviderError:
    if status is None:
        return ProviderError(f"AWS has no region {region}", provider=NAME, code="no such region")
    return QuotaExceeded(
        f"the account has not enabled {region}",
        scope=f"{NAME}/{region}",
        provider=NAME,
        code=status,
        fix=f"enable it: aws account enable-region --region-name {region}",
    )
