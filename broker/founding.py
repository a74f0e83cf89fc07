"""Founding a home in an object store: its bucket, the rule for it, the proof that it does what a home must, its keys.

Everything is really done and looked at; what a store says of itself counts for nothing. Needs boto3 for what obstore
has no call for.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from broker import access, buckets, identity, minting, signing
from broker.config import Config
from broker.errors import BrokerError, ConfigError, HomeAccessDenied, HomeError, HomeUnavailable
from broker.home import Home
from broker.house import narrow_proof, proof_of
from broker.provider import Finding
from broker.stores import Kind

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

SAMPLE = 4 << 20
"""Bytes sent and read back to measure the speed."""
RULE = "spotbroker-unfinished-uploads"
LONGEST = {"b2": minting.B2_LONGEST, "r2": minting.R2_LONGEST, **{way: life[1] for way, life in access.LIFE.items()}}
UNFINISHED_DAYS = 3
"""Days after which the parts of an upload that nobody finished are thrown away: they are billed and not listed."""


@dataclass(frozen=True, slots=True)
class Ground:
    """Where a home is to be. settings: `[home_config]` without a way to mint. region: empty for the store's own."""

    kind: Kind
    bucket: str
    prefix: str
    settings: Mapping[str, str] = field(repr=False)

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")


@dataclass(frozen=True, slots=True)
class Speed:
    """Bytes per second, of one object of a few MiB."""

    up: float
    down: float


@dataclass(frozen=True, slots=True)
class Founded:
    """A home that works. settings: its whole `[home_config]`."""

    url: str
    settings: Mapping[str, str | bool] = field(repr=False)
    speed: Speed
    findings: tuple[Finding, ...]


def found(ground: Ground, config: Config, tell: Callable[[Finding], None]) -> Founded:
    """Make the bucket where it is not there, and prove the home. tell: hears each finding as it is made.

    Raises ConfigError, HomeAccessDenied, HomeUnavailable or HomeError for what keeps it from being a home; then nothing
    but an empty bucket is left behind.
    """
    findings: list[Finding] = []

    def note(finding: Finding) -> Finding:
        findings.append(finding)
        tell(finding)
        return finding

    client = buckets.client(ground.settings)
    note(_bucket(client, ground))
    note(_rule(client, ground))
    if ground.kind.identities:
        if foreign := buckets.foreign(client, ground.bucket, ground.settings):
            note(foreign)
        if kms := buckets.encryption(client, ground.bucket):
            note(Finding("encryption", True, f"by a KMS key, which machines' keys may use: {kms}"))
            ground = replace(ground, settings={**ground.settings, "kms_key": kms})
    trial = replace(config, home=ground.url, home_config=dict(ground.settings))
    home = Home(access.own(trial, ground.url))
    note(proof_of(home))
    note(_signed(home))
    speed = _speed(home)
    note(Finding("speed", True, f"{_rate(speed.up)} up, {_rate(speed.down)} down, from here"))
    more = _scoped(ground, trial, client, note)
    return Founded(ground.url, {**ground.settings, **more}, speed, tuple(findings))


def identified(founded: Founded, config: Config, name: str, tell: Callable[[Finding], None]) -> Founded:
    """The home with an identity by which machines reach it without a key; it is made where it is not there.

    Where machines would get the home's own key otherwise, none gets it from now on. Raises as `identity.make`.
    """
    settings = {key: str(value) for key, value in founded.settings.items()}
    found = list(identity.make(replace(config, home=founded.url, home_config=settings), founded.url, name))
    more: dict[str, str | bool] = {"instance_profile": name}
    if not access.narrow(founded.url, settings):
        more["mint"] = access.PROFILE
        text = f"no machine gets this key: those of {identity.GIVER} that have the profile alone are rented"
        found.append(Finding("keys", True, text))
    for finding in found:
        tell(finding)
    return replace(founded, settings={**founded.settings, **more}, findings=(*founded.findings, *found))


def _bucket(client: S3Client, ground: Ground) -> Finding:
    """Find it or make it."""
    from botocore.exceptions import BotoCoreError, ClientError

    bucket, kind = ground.bucket, ground.kind
    try:
        client.list_objects_v2(Bucket=bucket, MaxKeys=1, Prefix=ground.prefix)
        if kind.identities:
            _here(client.head_bucket(Bucket=bucket), ground)
        return Finding("bucket", True, f"{bucket} is there")
    except ClientError as error:
        code, status = _code(error)
        if kind.identities:
            _here(error.response, ground)
        if status != 404:
            fix = _who(ground) if kind.identities else ""
            raise _refused(f"{kind.title} does not let this key into {bucket}", code, status, kind, fix) from error
    except BotoCoreError as error:
        raise _silent(ground, error) from error
    if kind.made_by_hand:
        raise ConfigError(f"there is no {bucket} in {kind.title}", fix=kind.made_by_hand)
    region = ground.settings.get("region", "")
    where: Any = {"LocationConstraint": region}
    needs = kind.name == "s3" and region not in ("", "us-east-1")
    try:
        client.create_bucket(Bucket=bucket, **({"CreateBucketConfiguration": where} if needs else {}))
    except ClientError as error:
        code, status = _code(error)
        if code in ("BucketAlreadyExists", "BucketAlreadyOwnedByYou"):
            raise ConfigError(f"the bucket {bucket} is somebody else's", fix="choose another name: --bucket") from error
        raise _refused(f"{kind.title} does not let this key make {bucket}", code, status, kind) from error
    except BotoCoreError as error:
        raise _silent(ground, error) from error
    return Finding("bucket", True, f"{bucket} made")


def _here(answer: Any, ground: Ground) -> None:
    """Raises ConfigError for a bucket of another region: boto3 finds its way there, the machines' client does not."""
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    there = headers.get("x-amz-bucket-region", "") or answer.get("Error", {}).get("Region", "")
    if there and there != (ground.settings.get("region") or "us-east-1"):
        raise ConfigError(f"the bucket {ground.bucket} lies in {there}", fix=f"give its region: --region {there}")


def _rule(client: S3Client, ground: Ground) -> Finding:
    """Let the store throw away unfinished uploads, and on a versioned one what was deleted; other rules stay."""
    from botocore.exceptions import BotoCoreError, ClientError

    rule: Any = {
        "ID": RULE,
        "Status": "Enabled",
        "Filter": {"Prefix": f"{ground.prefix}/" if ground.prefix else ""},
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": UNFINISHED_DAYS},
    }
    if ground.kind.versioned:
        rule["NoncurrentVersionExpiration"] = {"NoncurrentDays": 1}
    try:
        rules: list[Any] = []
        try:
            known = client.get_bucket_lifecycle_configuration(Bucket=ground.bucket).get("Rules", [])
            rules = [other for other in known if other.get("ID") != RULE]
        except ClientError as error:
            if _code(error)[0] != "NoSuchLifecycleConfiguration":
                raise
        client.put_bucket_lifecycle_configuration(
            Bucket=ground.bucket, LifecycleConfiguration={"Rules": [*rules, rule]}
        )
    except (ClientError, BotoCoreError) as error:
        fix = f"in its console, let unfinished uploads to {ground.bucket} end after {UNFINISHED_DAYS} days"
        return Finding("rule", False, f"unfinished uploads are not thrown away: {_code(error)[0]}", fix)
    return Finding("rule", True, f"unfinished uploads are thrown away after {UNFINISHED_DAYS} days")


def _signed(home: Home) -> Finding:
    """A machine reads the first thing it is told by a signed URL, without any key."""
    import urllib.error
    import urllib.request

    key = f"probe/{uuid.uuid4().hex}"
    home.put(key, b"signed")
    try:
        url = home.sign_get(key, 60)
        with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - signed just now, for the store
            if answer.read() == b"signed":
                return Finding("signed URLs", True, "an object can be read by one, as new machines do")
        why = "it gives something else"
    except urllib.error.HTTPError as error:
        why = f"it answers {error.code}"
    except OSError as error:
        raise HomeUnavailable(f"the store did not answer: {error}", fix="check the endpoint and the network") from error
    finally:
        home.delete([key])
    raise HomeError(
        f"this store cannot be a home: machines read what they are told by a signed URL, and {why}",
        fix="take another store: --store r2, b2, s3 or a URL",
    )


def _speed(home: Home) -> Speed:
    """Of one object, sent and read back."""
    data, key = os.urandom(SAMPLE), f"probe/{uuid.uuid4().hex}"
    began = time.monotonic()
    home.put(key, data)
    sent = time.monotonic()
    try:
        if home.get(key) != data:
            raise HomeError(f"{home.url} does not give back what was written to it")
        read = time.monotonic()
    finally:
        home.delete([key])
    return Speed(SAMPLE / max(sent - began, 1e-6), SAMPLE / max(read - sent, 1e-6))


def _scoped(
    ground: Ground, config: Config, client: S3Client, note: Callable[[Finding], Finding]
) -> Mapping[str, str | bool]:
    """The settings by which machines get keys: such as proved narrow, or the key to a bucket of the broker's own."""
    why, known = "", ground.settings
    for way in ("assume-role",) if known.get("role_arn") else ground.kind.mints:
        settings: dict[str, str] = {"mint": way}
        if way in access.LIFE and known.get("endpoint"):
            settings["sts_endpoint"] = known["endpoint"]
        try:
            narrow_proof(replace(config, home_config={**config.home_config, **settings}), ground.url)
        except BrokerError as error:
            why = f"{error.message} ({error.fix})" if error.fix else error.message
            continue
        days = LONGEST[way] / 86_400
        note(Finding("keys", True, f"each machine gets its own, for its job only ({way}, up to {days:.3g} days)"))
        return settings
    if signing.SETTING in known:
        text = "this login makes no keys for machines, and none of them gets it itself"
        fix = "--instance-profile NAME for machines on EC2; --role-arn ARN, which it may take on, for all"
        note(Finding("keys", False, f"{text}{f'; {why}' if why else ''}", fix))
        return {"mint": "none"}
    others = _other_buckets(client, ground.bucket)
    strange = access.strangers(config, ground.url)
    if not others and not strange:
        note(Finding("keys", True, "the bucket is the broker's own: machines get this key, which tells nothing else"))
        return {"mint": "none", "dedicated": True}
    seen = f"holds {', '.join(strange[:3])} too" if strange else f"opens other buckets too ({', '.join(others[:3])})"
    told = f"machines would get this key itself, and it {seen}"
    note(
        Finding(
            "keys",
            False,
            f"{told}, so marketplace hosts are left out{f'; {why}' if why else ''}",
            "make a key that sees this bucket only, in a bucket for nothing else, and run this again"
            + ("; for machines on EC2 --instance-profile NAME will do" if ground.kind.identities else ""),
        )
    )
    return {"mint": "none"}


def _other_buckets(client: S3Client, bucket: str) -> list[str]:
    """Other buckets that the key shows; none where it may not even ask."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return [found["Name"] for found in client.list_buckets().get("Buckets", []) if found.get("Name") != bucket]
    except (ClientError, BotoCoreError):
        return []


def _code(error: Exception) -> tuple[str, int]:
    response: Mapping[str, Any] = getattr(error, "response", {})
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return str(response.get("Error", {}).get("Code", type(error).__name__)), status


def _refused(what: str, code: str, status: int, kind: Kind, fix: str = "") -> BrokerError:
    if status >= 500:
        return HomeUnavailable(f"{what}: {code}", fix="try again later")
    if code not in ("AccessDenied", "403"):  # the key itself is wrong
        fix = ""
    return HomeAccessDenied(f"{what}: {code}", fix=fix or f"check the key; they are made at {kind.keys}")


def _who(ground: Ground) -> str:
    """What to do where AWS keeps whoever signs out of a bucket: it does not say which of the two policies is short."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        who = str(access.sts(ground.settings).get_caller_identity()["Arn"])
    except (ClientError, BotoCoreError):
        who = "whoever signs"
    return (
        f"let {who} do {buckets.ACTIONS}: in its own IAM policy, and, where the bucket is another account's, in the "
        "bucket's policy as well; or choose another name: --bucket"
    )


def _silent(ground: Ground, error: Exception) -> HomeUnavailable:
    where = ground.settings.get("endpoint") or ground.kind.title
    return HomeUnavailable(f"{where} did not answer: {error}", fix="check the endpoint and the network")


def _rate(speed: float) -> str:
    return f"{speed / 2**20:.1f} MiB/s"
