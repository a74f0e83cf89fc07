"""The object stores that `broker home setup` knows, with what each costs, and one of them as a user names it.

Prices are for people to compare, in USD; each has its source and its date.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from broker.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Price:
    """USD. month: per GB kept for a month; reading: per GB read from outside; free: GB kept for nothing."""

    month: float
    reading: float
    free: float
    source: str

    def of(self, gigabytes: float) -> str:
        """What so many GB kept for a month cost, and reading them back once."""
        kept = max(0.0, gigabytes - self.free) * self.month
        read = f"${gigabytes * self.reading:.2f}" if self.reading else "free"
        free = f", the first {self.free:g} GB free" if self.free else ""
        return f"{gigabytes:g} GB for a month: ${kept:.2f}{free}; reading them once: {read} ({self.source})"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of store. endpoint: with {account} or {region} in it; empty for AWS's own. asks: what else it needs.

    mints: ways to make keys for one job, tried in turn. settings: what obstore must be told. made_by_hand: its buckets
    are, elsewhere; the text says where. keys: where the user makes a key. identities: machines that are somebody by
    themselves can reach it without a key (`broker.identity`).
    """

    name: str
    title: str
    endpoint: str
    price: Price | None
    keys: str
    asks: tuple[str, ...] = ()
    region: str = ""
    mints: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    made_by_hand: str = ""
    versioned: bool = False
    identities: bool = False

    def at(self, *, account: str = "", region: str = "") -> str:
        """The endpoint, its blanks filled."""
        return self.endpoint.format(account=account, region=region.lower())


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "r2",
            "Cloudflare R2",
            "https://{account}.r2.cloudflarestorage.com",
            Price(0.015, 0.0, 10, "Cloudflare's R2 pricing page, April 2026"),
            "https://dash.cloudflare.com, R2, Manage API tokens: Admin, or Object Read & Write for a bucket there is",
            asks=("account",),
            region="auto",
            mints=("r2",),
        ),
        Kind(
            "b2",
            "Backblaze B2",
            "https://s3.{region}.backblazeb2.com",
            Price(0.006, 0.01, 10, "Backblaze's pricing page, April 2026; part of the reading is free"),
            "https://secure.backblaze.com/app_keys.htm: an application key for all buckets, not the master key",
            asks=("region",),
            mints=("b2",),
            settings={"conditional_put": "disabled"},
            versioned=True,
        ),
        Kind(
            "s3",
            "Amazon S3",
            "",
            Price(0.023, 0.09, 0, "AWS's S3 pricing page for us-east-1, 2026; reading inside the region is free"),
            "https://console.aws.amazon.com/iam: one of an IAM user who may use S3 and sts:GetFederationToken",
            asks=("region",),
            mints=("federation",),
            identities=True,
        ),
        Kind(
            "runpod",
            "a RunPod network volume",
            "https://s3api-{region}.runpod.io",
            Price(0.07, 0.0, 0, "RunPod's storage page, 2026; a fixed size, paid whether used or not"),
            "https://console.runpod.io/user/settings, S3 API keys",
            asks=("region",),
            settings={"disable_bulk_delete": "true"},
            made_by_hand="make the volume in RunPod's console, in a data centre with an S3 API; the bucket is its id",
        ),
    )
}
OTHER = Kind("other", "another S3-compatible store", "", None, "its own console", mints=("federation",))
REGIONS = {"s3": "us-east-1", "b2": "us-west-004", "runpod": "EU-RO-1"}
"""What is proposed where a region is asked for."""
BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


def named(store: str) -> tuple[Kind, str]:
    """The kind that the user names, and the endpoint where the name is its URL. Raises ConfigError."""
    if store in KINDS:
        return KINDS[store], ""
    if store.startswith(("https://", "http://")):
        return OTHER, store.rstrip("/")
    raise ConfigError(
        f"no store is called {store!r}",
        fix=f"--store takes {', '.join(KINDS)}, or the URL of any S3-compatible server such as MinIO",
    )


def split(bucket: str) -> tuple[str, str]:
    """Bucket and prefix of `BUCKET[/PREFIX]`. Raises ConfigError for what cannot be one."""
    name, _, prefix = bucket.removeprefix("s3://").partition("/")
    prefix = prefix.strip("/")
    if not BUCKET.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be a bucket's name", fix="3 to 63 small letters, digits, dots and dashes, such as my-jobs"
        )
    if not all(re.fullmatch(r"[A-Za-z0-9._-]+", part) for part in prefix.split("/") if prefix):
        raise ConfigError(f"{prefix!r} cannot be a home's prefix", fix="letters, digits, dot, dash and underscore")
    return name, prefix
