"""What data between machines and a home costs: USD per GiB, by where the machine is. Pure.

Who sends is charged: the home's store for what a machine reads, the machine's cloud for what it saves. List prices of
the first paid tier (2026): S3 and EC2 to the internet 0.09 and to another region 0.02 a GB, within a region nothing
(aws.amazon.com/s3/pricing, aws.amazon.com/ec2/pricing/on-demand); Google Cloud to the internet 0.12 and between regions
of a continent 0.02 (cloud.google.com/storage/pricing); Azure 0.087 and 0.02; R2 and Tigris nothing; B2 0.01 beyond its
free share; Wasabi nothing within what is stored. A store that is not known here charges an amount that is not known
either.
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
    endpoint = next((value for key, value in settings.items() if key.lower().endswith("endpoint")), "")
    if not endpoint:
        return "aws"
    host = (urlsplit(endpoint).hostname or "").lower()
    return next((name for end, name in _ENDPOINTS.items() if host == end or host.endswith(f".{end}")), "")


def by_place(home: str, settings: Mapping[str, str]) -> dict[str, float]:
    """What the home charges for what machines read: USD per GiB by `provider` and, where it differs, by
    `provider/region`; empty where nothing is known."""
    whose = store(home, settings)
    if not whose:
        return {}
    return {**dict.fromkeys((*_CLOUDS, *EVERYWHERE), _INTERNET[whose]), **_within(whose, settings)}


def leaving(home: str, settings: Mapping[str, str]) -> dict[str, float]:
    """What clouds charge for what their machines send to the home, by the same; a marketplace's host says it itself."""
    whose = store(home, settings)
    if whose in ("", "local"):
        return {}
    return {**{cloud: _INTERNET[cloud] for cloud in _CLOUDS}, **_within(whose, settings)}


def elsewhere(provider: str) -> float:
    """What a cloud charges for what its machines send to the internet; nothing for who is no cloud."""
    return _INTERNET[provider] if provider in _CLOUDS else 0.0


def _within(whose: str, settings: Mapping[str, str]) -> dict[str, float]:
    """Between a cloud's regions, and nothing within the home's own."""
    if whose not in _CLOUDS:
        return {}
    region = next((value for key, value in settings.items() if key.lower().endswith("region")), "")
    return {whose: _BETWEEN_REGIONS, **({f"{whose}/{region}": 0.0} if region else {})}
