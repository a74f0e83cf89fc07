"""What the stand-in answers about regions, zones, prices, quotas and images: its own, or as moto's data has them."""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Mapping
from typing import Any

from clouds.aws.state import CLOSED, OPEN, QUOTAS, USUAL_QUOTA, Ec2, Row
from clouds.aws.wire import Answer, Request, as_json, ec2, ec2_error, element, json_error


def describe_regions(world: Ec2, request: Request) -> Answer:
    rows = []
    for region in (*OPEN, *CLOSED):
        if region in world.unlisted:
            continue
        on = region in world.enabled
        status = ("opt-in-not-required" if region in OPEN else "opted-in") if on else "not-opted-in"
        if on or request.form.get("AllRegions") == "true":
            rows.append({"regionName": region, "regionEndpoint": f"ec2.{region}.amazonaws.com", "optInStatus": status})
    return ec2("DescribeRegions", element("regionInfo", rows))


def describe_availability_zones(world: Ec2, request: Request) -> Answer:
    rows = [
        {
            "zoneName": zone.name,
            "zoneState": zone.state,
            "regionName": request.region,
            "zoneId": zone.id,
            "zoneType": zone.kind,
            "groupName": zone.group or request.region,
            "optInStatus": zone.status,
        }
        for zone in world.zone_rows(request.region)
        if zone.status != "not-opted-in" or request.form.get("AllAvailabilityZones") == "true"
    ]
    return ec2("DescribeAvailabilityZones", element("availabilityZoneInfo", rows))


def describe_spot_price_history(world: Ec2, request: Request) -> Answer:
    """Rows within the times asked for, and of each pool the one in force at their start; newest first, in pages."""
    now = time.time()
    begin, end = _moment(request, "StartTime", 0.0), _moment(request, "EndTime", now + 86_400)
    products = set(request.items("ProductDescription")) | set(request.filters().get("product-description", ()))
    zones = set(request.filters().get("availability-zone", ()))
    zones |= {request.form["AvailabilityZone"]} if "AvailabilityZone" in request.form else set()
    types = request.items("InstanceType") or request.filters().get("instance-type") or _every_type(world, request)
    rows: list[Row] = []
    in_force: dict[tuple[str, str, str], Row] = {}
    for row in world.history(request.region, types):
        if world.loose_history:
            rows.append(row)
        elif (products and row.product not in products) or (zones and row.zone not in zones) or row.at > end:
            continue
        elif row.at >= begin:
            rows.append(row)
        elif (pool := (row.zone, row.type, row.product)) not in in_force or row.at > in_force[pool].at:
            in_force[pool] = row
    rows = sorted([*rows, *in_force.values()], key=lambda row: (-row.at, row.zone, row.type, row.product))
    items, token = _page(world, request, rows)
    ids = {zone.name: zone.id for zone in world.zone_rows(request.region)}
    found = [
        {
            "instanceType": row.type,
            "productDescription": row.product,
            "spotPrice": row.price,
            "timestamp": f"{dt.datetime.fromtimestamp(row.at, dt.UTC):%Y-%m-%dT%H:%M:%S}.000Z",
            "availabilityZone": row.zone,
            "availabilityZoneId": ids.get(row.zone),
        }
        for row in items
    ]
    return ec2("DescribeSpotPriceHistory", element("spotPriceHistorySet", found) + element("nextToken", token))


def _every_type(world: Ec2, request: Request) -> list[str]:
    if request.region in world.spot_rows:
        return sorted({row.type for row in world.spot_rows[request.region]})
    return ["g4dn.xlarge", "g5.xlarge", "g6.xlarge", "p5.48xlarge"]


def _page(world: Ec2, request: Request, rows: list[Any]) -> tuple[list[Any], str]:
    """One page, and the token of the next; empty pages and repeated tokens on request."""
    size = min(world.page, int(request.form.get("MaxResults", 1000)))
    token = request.form.get("NextToken", "")
    if world.empty_page_first and not token:
        return [], "page-0"
    start = int(token.removeprefix("page-") or 0)
    if world.repeat_token and len(rows) > size:
        return rows[:size], "page-0"
    after = start + size
    return rows[start:after], f"page-{after}" if after < len(rows) else ""


def _moment(request: Request, name: str, default: float) -> float:
    text = request.form.get(name)
    return dt.datetime.fromisoformat(text).timestamp() if text else default


def get_spot_placement_scores(world: Ec2, request: Request) -> Answer:
    if len(request.items("InstanceType")) < 3:
        return ec2_error("InvalidParameterCombination", "Specify at least three instance types")
    rows = [
        {"region": region, "availabilityZoneId": zone.id, "score": world.scores[zone.id]}
        for region in request.items("RegionName") or world.enabled
        for zone in world.zone_rows(region)
        if zone.id in world.scores
    ]
    return ec2("GetSpotPlacementScores", element("spotPlacementScoreSet", rows))


def describe_instance_type_offerings(world: Ec2, request: Request) -> Answer | None:
    """moto's own data, but for what a test has set."""
    types = request.filters().get("instance-type", [])
    if not any((request.region, name) in world.offered for name in types):
        return None
    rows = [
        {"instanceType": name, "locationType": "availability-zone", "location": zone}
        for name in types
        for zone in world.offered.get((request.region, name), ())
    ]
    return ec2("DescribeInstanceTypeOfferings", element("instanceTypeOfferingSet", rows))


def describe_images(world: Ec2, request: Request) -> Answer:
    known = world.amis.get(request.region, {})
    wanted = request.items("ImageId")
    for ami in wanted:
        if ami not in known:
            return ec2_error("InvalidAMIID.NotFound", f"The image id '[{ami}]' does not exist")
    rows = [
        {
            "imageId": ami,
            "imageState": "available",
            "architecture": known[ami].arch,
            "imageType": "machine",
            "platformDetails": known[ami].billed,
            "rootDeviceType": "ebs",
            "rootDeviceName": known[ami].root,
            "blockDeviceMapping": [
                {
                    "deviceName": known[ami].root,
                    "ebs": {"snapshotId": f"snap-{ami[4:]}", "volumeSize": known[ami].size, "volumeType": "gp2"},
                },
                {"deviceName": "/dev/sdb", "virtualName": "ephemeral0"},
            ],
        }
        for ami in wanted or known
    ]
    return ec2("DescribeImages", element("imagesSet", rows))


def get_parameters(world: Ec2, request: Request) -> Answer:
    """The public parameters that name images; each region has ids of its own."""
    if len(request.data["Names"]) > 10:
        return json_error("ValidationException", "Member must have length less than or equal to 10")
    found, unknown = [], []
    for name in request.data["Names"]:
        ami = public_images(request.region).get(name)
        if ami is None or any(word in name for word in world.no_images):
            unknown.append(name)
        else:
            found.append({"Name": name, "Type": "String", "Value": ami, "Version": 1, "DataType": "aws:ec2:image"})
    return as_json({"Parameters": found, "InvalidParameters": unknown})


def public_images(region: str) -> dict[str, str]:
    number = f"{OPEN.index(region) if region in OPEN else 90 + CLOSED.index(region):02d}"
    base = "/aws/service/deeplearning/ami/{}/base-{}-nvidia-driver-gpu-{}/latest/ami-id"
    return {
        base.format("x86_64", "oss", "ubuntu-24.04"): f"ami-0{number}a0000000000001",
        base.format("x86_64", "oss", "ubuntu-22.04"): f"ami-0{number}a0000000000002",
        base.format("arm64", "oss", "ubuntu-22.04"): f"ami-0{number}b0000000000001",
        base.format("x86_64", "proprietary", "ubuntu-22.04"): f"ami-0{number}c0000000000001",
        "/aws/service/ecs/optimized-ami/amazon-linux-2023/recommended/image_id": f"ami-0{number}d0000000000001",
    }


def get_products(world: Ec2, request: Request) -> Answer:
    """The price list, its filters applied; beside what we want it has what we must not take."""
    products = [product for product in _catalogue(world, request) if _passes(product, request.data["Filters"])]
    items, token = _page_json(world, request, products)
    answer = {"FormatVersion": "aws_v1", "PriceList": [json.dumps(product) for product in items]}
    return as_json({**answer, **({"NextToken": token} if token else {})})


def _catalogue(world: Ec2, request: Request) -> list[Mapping[str, Any]]:
    wanted = {entry["Field"]: entry["Value"] for entry in request.data["Filters"]}
    if "volumeApiName" in wanted:
        return [
            _product({"volumeApiName": name, "productFamily": family, "regionCode": region}, "GB-Mo", price)
            for region in (*OPEN, *CLOSED)
            for name, family, price in (
                ("gp3", "Storage", world.disk(region)),
                ("gp2", "Storage", world.disk(region) * 1.25),
                ("gp3", "System Operation", 0.005),
            )
        ]
    region, made = wanted["regionCode"], []
    for type_ in wanted["instanceType"].split(","):
        price = world.on_demand(type_, region)
        if price is None:
            continue
        usual = {
            "instanceType": type_,
            "regionCode": region,
            "operatingSystem": "Linux",
            "tenancy": "Shared",
            "preInstalledSw": "NA",
            "capacitystatus": "Used",
            "marketoption": "OnDemand",
        }
        for other, factor in (
            ({}, 1.0),
            ({"operatingSystem": "Windows"}, 1.8),
            ({"tenancy": "Dedicated"}, 1.1),
            ({"preInstalledSw": "SQL Std"}, 3.0),
            ({"capacitystatus": "UnusedCapacityReservation"}, 1.0),
            ({"marketoption": "CapacityBlock"}, 0.1),
        ):
            made.append(_product({**usual, **other}, "Hrs", price * factor))
    return made


def _product(attributes: Mapping[str, str], unit: str, price: float) -> dict[str, Any]:
    dimension = {"unit": unit, "pricePerUnit": {"USD": f"{price:.10f}"}, "beginRange": "0", "endRange": "Inf"}
    return {
        "product": {
            "productFamily": attributes.get("productFamily", "Compute Instance"),
            "attributes": dict(attributes),
        },
        "serviceCode": "AmazonEC2",
        "terms": {"OnDemand": {"X.Y": {"priceDimensions": {"X.Y.Z": dimension}}}},
    }


def _passes(product: Mapping[str, Any], filters: list[Mapping[str, str]]) -> bool:
    for entry in filters:
        has = product["product"]["attributes"].get(entry["Field"], product["product"].get(entry["Field"]))
        allowed = entry["Value"].split(",") if entry["Type"] == "ANY_OF" else [entry["Value"]]
        if has not in allowed:
            return False
    return True


def list_service_quotas(world: Ec2, request: Request) -> Answer:
    rows = [
        {
            "ServiceCode": "ec2",
            "QuotaCode": code,
            "QuotaName": name,
            "Value": world.quotas.get((request.region, code), USUAL_QUOTA),
        }
        for code, name, _, _ in QUOTAS
    ]
    items, token = _page_json(world, request, rows)
    return as_json({"Quotas": items, **({"NextToken": token} if token else {})})


def _page_json(world: Ec2, request: Request, rows: list[Any]) -> tuple[list[Any], str]:
    start = int(request.data.get("NextToken") or 0)
    after = start + min(world.page, int(request.data.get("MaxResults", 100)))
    return rows[start:after], str(after) if after < len(rows) else ""
