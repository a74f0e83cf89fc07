"""Two signals of how likely a spot machine is to be taken back. Both are extras: without them offers stand as well.

The Spot Instance Advisor's list has a band per region and type, of the share of machines taken back in the past month:
0 below 5 %, up to 4 above 20 %. A type that it does not name is unknown, not safe. Placement scores, 1 to 10, say how
likely a launch is to succeed now; EC2 answers few such questions a day.
"""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

from broker.errors import BrokerError
from broker_aws.account import Account
from broker_aws.kept import DAY, HOUR, Kept
from broker_aws.paging import pages
from broker_aws.refusals import translated
from broker_aws.zones import digest

TIMEOUT, PATIENCE = 8.0, 2.0  # seconds
LEAST_TYPES = 3  # below which EC2 scores badly whatever the capacity is


class Bands(threading.Thread):
    """Asks for the list while others are asked for prices; offers wait for it only a little."""

    def __init__(self, url: str, kept: Kept) -> None:
        super().__init__(name="aws-advisor", daemon=True)
        self._found: Mapping[str, Mapping[str, int]] = {}
        self._url, self._kept = url, kept
        self.start()

    def run(self) -> None:
        self._found = bands(self._url, self._kept)

    def wait(self) -> Mapping[str, Mapping[str, int]]:
        """Region → type → band; empty where the list has not come by now."""
        self.join(PATIENCE)
        return self._found


def bands(url: str, kept: Kept) -> Mapping[str, Mapping[str, int]]:
    """Region → type → band; empty where the list cannot be had, or there is no URL."""
    if not url:
        return {}

    def fetch() -> dict[str, dict[str, int]]:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:  # noqa: S310 - the user's own setting, or AWS's
            data = json.load(answer)
        return {
            region: {name: entry["r"] for name, entry in systems.get("Linux", {}).items() if entry.get("r") in range(5)}
            for region, systems in data["spot_advisor"].items()
        }

    try:
        return kept.get("advisor", DAY, fetch)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def scores(account: Account, kept: Kept, regions: Sequence[str], types: Sequence[str]) -> Mapping[str, int]:
    """Zone id → score of getting one machine of these types; empty where EC2 does not say."""
    if len(types) < LEAST_TYPES or not regions:
        return {}

    def fetch() -> dict[str, int]:
        wish: dict[str, Any] = {
            "InstanceTypes": list(types),
            "TargetCapacity": 1,
            "SingleAvailabilityZone": True,
            "RegionNames": list(regions)[:10],  # that one call takes
            "MaxResults": 30,
        }
        with translated():
            ask = account.client("ec2", account.home_region).get_spot_placement_scores
            return {one["AvailabilityZoneId"]: int(one["Score"]) for one in pages(ask, "SpotPlacementScores", **wish)}

    try:
        return kept.get(f"scores-{digest([*regions, *types])}", HOUR, fetch)
    except BrokerError:
        return {}
