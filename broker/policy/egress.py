"""What data between machines and a home costs: USD per GiB, by where the machine is. Pure.

Who sends is charged: the home's store for what a machine reads, the machine's cloud for what it saves. List prices of
the first paid tier (2026): S3 and EC2 to the internet 0.09 and to another region 0.02 a GB, more from some regions,
within a region nothing (aws.amazon.com/s3/pricing, aws.amazon.com/ec2/pricing/on-demand); Google Cloud to the internet
0.12 and between regions of a continent 0.02 (cloud.google.com/storage/pricing); Azure 0.087 and 0.02; R2 and Tigris
nothing; B2 0.01 beyond its free share; Wasabi nothing within what is stored. A store that is not known here charges an
amount that is not known either.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

_INTERNET = {
    "aws": 0.09,
    "gcp": 0.12,
    "azure": 0.087,
    "r2": 0.0,
    "b2": 0.01,
    "tigris": 0.0,
    "wasabi": 0.0,
    "local": 0.0,
}
_BETWEEN_REGIONS = 0.02
_DEAR = {
    "ap-northeast-1": (0.09, 0.114),
    "ap-northeast-2": (0.08, 0.126),
    "ap-northeast-3": (0.09, 0.114),
    "ap-south-1": (0.086, 0.1093),
    "ap-southeast-1": (0.09, 0.12),
    "ap-southeast-2": (0.098, 0.114),
    "sa-east-1": (0.138, 0.15),
}
"""Regions of AWS from which more is taken: to another one of its regions, to the internet."""
_ENDPOINTS = {
    "r2.cloudflarestorage.com": "r2",
    "backblazeb2.com": "b2",
    "storage.dev": "tigris",
    "wasabisys.com": "wasabi",
    "amazonaws.com": "aws",
    "storage.googleapis.com": "gcp",
}
_SCHEMES = {"file": "local", "gs": "gcp", "az": "azure", "azure": "azure", "abfss": "azure", "r2": "r2", "b2": "b2"}
_CLOUDS = ("aws", "gcp", "azure")
EVERYWHERE = ("runpod", "vast", "lambda", "skypilot", "local")
"""Providers whose machines reach every store over the internet."""


def store(home: str, settings: Mapping[str, str]) -> str:
    """Whose store a home's URL names; empty where that is not known. settings: the home's own, as `endpoint`."""
    scheme = urlsplit(home).scheme or "file"
    if scheme != "s3":
        return _SCHEMES.get(scheme, "")
    names = ("endpoint", "endpoint_url")  # not sts_endpoint or api_endpoint, which are no store's
    endpoint = next((value for key, value in settings.items() if key.lower().removeprefix("aws_") in names), "")
    if not endpoint:
        return "aws"
    host = (urlsplit(endpoint).hostname or "").lower()
    return next((name for end, name in _ENDPOINTS.items() if host == end or host.endswith(f".{end}")), "")


def by_place(home: str, settings: Mapping[str, str]) -> dict[str, float]:
    """What the home charges for what machines read: USD per GiB by `provider` and, where it differs, by
    `provider/region`; empty where nothing is known."""
    whose, region = store(home, settings), _region(settings)
    if not whose:
        return {}
    between, internet = _out(whose, region)
    prices = dict.fromkeys((*_CLOUDS, *EVERYWHERE), internet)
    return {**prices, **({whose: between} if whose in _CLOUDS else {}), **_within(whose, region)}


def leaving(home: str, settings: Mapping[str, str]) -> dict[str, float]:
    """What clouds charge for what their machines send to the home, by the same; a marketplace's host says it itself."""
    whose = store(home, settings)
    if whose in ("", "local"):
        return {}
    places = [(cloud, "") for cloud in _CLOUDS] + [("aws", region) for region in _DEAR]
    prices = {
        f"{cloud}/{region}".rstrip("/"): _out(cloud, region)[0 if cloud == whose else 1] for cloud, region in places
    }
    return {**prices, **_within(whose, _region(settings))}


def elsewhere(provider: str, region: str) -> float:
    """What a cloud charges for what its machines send to the internet; nothing for who is no cloud."""
    return _out(provider, region)[1] if provider in _CLOUDS else 0.0


def _region(settings: Mapping[str, str]) -> str:
    return next((value for key, value in settings.items() if key.lower().endswith("region")), "")


def _out(whose: str, region: str) -> tuple[float, float]:
    """What is taken for what goes out of there: to another region of the same cloud, and to the internet."""
    usual = _BETWEEN_REGIONS, _INTERNET[whose]
    return _DEAR.get(region, usual) if whose == "aws" else usual


def _within(whose: str, region: str) -> dict[str, float]:
    """Nothing within the home's own region."""
    return {f"{whose}/{region}": 0.0} if whose in _CLOUDS and region else {}
