"""Answers of EC2 and price tables that lie beside the repository; tests that need them skip where they are not."""

from __future__ import annotations

import csv
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from clouds.aws.state import Ec2, Row, ZoneRow

ROOT = Path(__file__).parents[4] / "shared"


def data(path: str) -> Any:
    """A JSON file below the folder of inputs."""
    return json.loads(_there(path).read_text(encoding="utf-8"))


def history(path: str) -> list[Row]:
    """The rows of one page of a spot price history."""
    return [
        Row(
            row["AvailabilityZone"],
            row["InstanceType"],
            row["SpotPrice"],
            datetime.fromisoformat(row["Timestamp"]).timestamp(),
            row["ProductDescription"],
        )
        for row in data(path)["SpotPriceHistory"]
    ]


def load_prices(world: Ec2, path: str) -> list[dict[str, str]]:
    """Put a table of list and spot prices by zone id into the stand-in; its rows.

    A zone id that no account of moto's has gets a name of its own; a local zone's is opted into here.
    """
    with _there(path).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    world.enabled = sorted({row["Region"] for row in rows})
    for region in world.enabled:
        world.spot_rows[region] = []
    for row in rows:
        region, type_ = row["Region"], row["InstanceType"]
        zone = _zone(world, region, row["AvailabilityZone"])
        world.offered.setdefault((region, type_), []).append(zone.name)
        world.listed[type_, zone.group or region] = float(row["Price"])
        if row["SpotPrice"]:
            world.spot_rows[region].append(Row(zone.name, type_, row["SpotPrice"], 1_755_000_000.0))
    return rows


def _zone(world: Ec2, region: str, zone_id: str) -> ZoneRow:
    rows = world.zone_rows(region)
    known = next((zone for zone in rows if zone.id == zone_id), None)
    if known is None:
        local = zone_id.count("-") > 1
        name = f"{region}-{zone_id.split('-')[1]}-1a" if local else f"{region}{'ghijk'[len(rows) % 5]}"
        group = name[:-1] if local else ""
        known = ZoneRow(
            name,
            zone_id,
            "local-zone" if local else "availability-zone",
            group,
            "opted-in" if local else rows[0].status,
        )
        rows.append(known)
    return known


def _there(path: str) -> Path:
    found = ROOT / path
    if not found.exists():
        pytest.skip(f"the inputs are not here: {path}")
    return found
