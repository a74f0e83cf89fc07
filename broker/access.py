"""Access to homes: the broker's own, and the narrow one that each placement gets.

A placement's key reaches `jobs/J/` and `beats/J/` of its home and nothing else, and ends. On S3 it comes from STS, by
AssumeRole or GetFederationToken with a session policy; on AWS a role's session lasts 12 hours at most and a federation
token 36. Backblaze B2 and Cloudflare R2 have ways of their own (`broker.minting`). What the configuration's
`[home_config]` says about it::

    mint = "assume-role"            # or "federation", "b2", "r2", or "none": the guest gets the account's own keys
    instance_profile = "…"          # what machines on EC2 have in place of a key (`broker.identity`)
    role_arn = "arn:aws:iam::…"     # for assume-role
    kms_key = "arn:aws:kms:…"       # what the bucket is encrypted with, "*" for the account's aws/s3
    profile = "…"                   # of the AWS configuration: it signs in place of a key (`broker.signing`)
    sts_endpoint = "https://…"      # where STS is not AWS's own
    api_endpoint = "https://…"      # where B2's or Cloudflare's API is elsewhere
    account_id, api_token           # of Cloudflare, for r2
    dedicated = true                # the key sees this bucket only, and only the broker's data is in it

`mint = "instance-profile"` is for homes that machines with that profile alone may reach: no other gets a key.

All other keys go to obstore as they are. Runs on the broker's side only.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from broker import minting, signing
from broker.config import Config
from broker.errors import ConfigError, HomeAccessDenied, HomeAccessExpired, HomeError, HomeUnavailable
from broker.home import Access, Home, log_in, translated

OURS = {
    "mint",
    "instance_profile",
    "role_arn",
    "sts_endpoint",
    "kms_key",
    "api_endpoint",
    "account_id",
    "api_token",
    "dedicated",
}
NARROW = ("assume-role", "federation", "b2", "r2")
"""Ways to a key for one job."""
PROFILE = "instance-profile"
MINTS = (*NARROW, PROFILE, "none")
TOPS = {"jobs", "beats", "probe", "runtime"}
"""What the broker keeps at the top of a home."""
# Shortest and longest life in seconds: AWS STS API reference, AssumeRole and GetFederationToken.
LIFE = {"assume-role": (900, 43_200), "federation": (900, 129_600)}
# Every role allows an hour; more only where its own maximum was raised, and never when roles are chained.
SURE = 3_600
PLAIN = re.compile(r"[A-Za-z0-9._-]+")


def own(config: Config, home_url: str) -> Access:
    """The broker's own access to a home. Raises ConfigError for a URL of an unknown kind."""
    _kind(home_url)
    if _is_folder(home_url):
        return Access(home_url)
    settings = config.home_config
    plain = {key: value for key, value in settings.items() if key not in OURS}
    return Access(home_url, plain, one_prefix=settings.get("mint") == "b2")


def mint(config: Config, home_url: str, job: str, generation: int, until: float) -> Access:
    """Access for one placement, to the job's own prefixes, lasting at least to `until` where the store can do that.

    until: seconds since the epoch. `expires_at` of what is returned tells how long it really lasts, which may be less;
    `scoped` tells whether it reaches this job only. Raises ConfigError for what the user must set, HomeAccessDenied
    where the store refuses to mint, HomeUnavailable where it does not answer.
    """
    way = config.home_config.get("mint", "none")
    if way not in MINTS:
        raise ConfigError(f"[home_config] mint = {way!r} is unknown", fix=f"one of: {', '.join(MINTS)}")
    shared = own(config, home_url)
    if _is_folder(home_url):
        return shared
    if way == "none":
        return replace(shared, scoped=dedicated(config, home_url))
    if way == PROFILE:
        raise ConfigError(
            f"[home_config] mint = {PROFILE!r} has no key for this machine, which is not of EC2",
            fix=f"set mint to {', '.join(NARROW)}, or rent on aws only: infra: aws",
        )
    if not PLAIN.fullmatch(job):
        raise ConfigError(f"the job id {job!r} cannot stand in a policy")
    made = _minted(config.home_config, way, home_url, job, generation, until - time.time())
    kept = keyless(config, home_url).config
    return replace(shared, config={**kept, **made.keys}, expires_at=made.expires_at, scoped=True)


def lent(config: Config, home_url: str) -> Access:
    """The broker's own access, for a simulated machine, which is this computer. Raises AuthFailed for a profile."""
    shared = own(config, home_url)
    settings = {key: value for key, value in shared.config.items() if key != signing.SETTING}
    profile = shared.config.get(signing.SETTING, "")
    return replace(shared, config={**settings, **signing.keys(profile)}) if profile else shared


def keyless(config: Config, home_url: str) -> Access:
    """Access without a key, for a machine that is somebody by itself: it does not end, and reaches the whole home."""
    shared = own(config, home_url)
    kept = {key: value for key, value in shared.config.items() if key.lower().removeprefix("aws_") not in SECRET}
    return replace(shared, config=kept)


def has_key(settings: Mapping[str, str]) -> bool:
    """Do the store's settings hold a key, or need none?"""
    names = {key.lower().removeprefix("aws_") for key in settings}
    return "access_key_id" in names or settings.get("skip_signature", "").lower() == "true"


def only_identities(settings: Mapping[str, str]) -> bool:
    """Does no machine get a key, so that only those reach the home that are somebody by themselves?"""
    return settings.get("mint") == PROFILE


def longest(settings: Mapping[str, str], home_url: str, *, lasting: bool) -> float | None:
    """Seconds that one placement's key lasts at most, by what is set; None for one that does not end.

    lasting: the broker's own keys do not end by themselves. A role that is taken on with a session's keys is chained.
    """
    way = "none" if home_url.startswith("file:") else settings.get("mint", "none")
    if way == "assume-role":
        return float(LIFE[way][1] if lasting else SURE)
    return {"federation": float(LIFE["federation"][1]), "b2": minting.B2_LONGEST, "r2": minting.R2_LONGEST}.get(way)


def _minted(
    settings: Mapping[str, str], way: str, home_url: str, job: str, generation: int, seconds: float
) -> minting.Minted:
    bucket, prefix = _place(home_url)
    base = f"{prefix}/" if prefix else ""
    name = f"{job}-{generation}"
    if way == "b2":
        return minting.b2(settings, name, bucket, f"{base}jobs/{job}/", seconds)
    if way == "r2":
        return minting.r2(settings, bucket, [f"{base}jobs/{job}/", f"{base}beats/{job}/"], seconds)
    kms = settings.get("kms_key", "")
    policy = json.dumps(session_policy(bucket, prefix, job, _partition(settings), kms), separators=(",", ":"))
    answer = _ask(settings, way, name, policy, seconds)
    keys = {
        "access_key_id": answer["AccessKeyId"],
        "secret_access_key": answer["SecretAccessKey"],
        "session_token": answer["SessionToken"],
    }
    return minting.Minted(keys, answer["Expiration"].timestamp())


def erase(config: Config, home: Home, keys: Sequence[str]) -> None:
    """Delete objects for good, also where the store keeps what was deleted. Raises HomeError."""
    home.delete(keys)
    if config.home_config.get("mint") == "b2" and not home.is_local:
        bucket, prefix = _place(home.url)
        base = f"{prefix}/" if prefix else ""
        minting.b2_erase(config.home_config, bucket, [f"{base}{home.at(key)}" for key in keys])


def narrow(home_url: str, settings: Mapping[str, str]) -> bool:
    """Will machines get a key that tells them no more than they may know, by what is set? `mint` looks again."""
    lone = settings.get("dedicated", "").lower() == "true"
    return home_url.startswith("file:") or settings.get("mint") in NARROW or lone


def dedicated(config: Config, home_url: str) -> bool:
    """Is the home's bucket, by the user's word and by what lies in it now, there for the broker's data alone?

    The account's key then tells a machine nothing that is not the broker's. Raises HomeError where it cannot be listed.
    """
    return config.home_config.get("dedicated", "").lower() == "true" and not strangers(config, home_url)


def strangers(config: Config, home_url: str) -> list[str]:
    """What lies at the top of the home's bucket, or of the home, and is not the broker's."""
    bucket, prefix = _place(home_url)
    found: list[str] = []
    for folder, ours in ((f"s3://{bucket}", {prefix.split("/")[0]} if prefix else TOPS), (home_url, TOPS)):
        with translated(folder):
            top = Home(replace(own(config, home_url), url=folder)).store.list_with_delimiter()
            names = [*top["common_prefixes"], *(entry["path"] for entry in top["objects"])]
        found += [name for name in names if name.strip("/") not in ours]
    return list(dict.fromkeys(found))


SECRET = {"access_key_id", "secret_access_key", "session_token", "token", "profile"}


def session_policy(bucket: str, prefix: str, job: str, partition: str = "aws", kms: str = "") -> dict[str, Any]:
    """What a placement may do: read, write and list below its job's two prefixes.

    Every pattern ends in `/*`: without the slash `jobs/A*` would open `jobs/AA/` as well.
    """
    return _policy(bucket, prefix, [f"jobs/{job}/*", f"beats/{job}/*"], partition, kms)


def home_policy(settings: Mapping[str, str], home_url: str) -> dict[str, Any]:
    """What machines may do that share an identity: the same for every job of the home, and nothing beside."""
    return _policy(*_place(home_url), ["jobs/*", "beats/*"], _partition(settings), settings.get("kms_key", ""))


def _policy(bucket: str, prefix: str, patterns: Sequence[str], partition: str, kms: str) -> dict[str, Any]:
    below = [f"{prefix}/{pattern}" if prefix else pattern for pattern in patterns]
    arn = f"arn:{partition}:s3:::{bucket}"
    return {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Action": [
                    "s3:GetObject",
                    "s3:PutObject",
                    "s3:DeleteObject",
                    "s3:AbortMultipartUpload",
                    "s3:ListMultipartUploadParts",
                ],
                "Resource": [f"{arn}/{pattern}" for pattern in below],
            },
            {
                "Effect": "Allow",
                "Action": ["s3:ListBucket"],
                "Resource": [arn],
                "Condition": {"StringLike": {"s3:prefix": below}},
            },
            *([_deciphering(kms)] if kms else []),
        ],
    }


def _deciphering(key: str) -> dict[str, Any]:
    """What an encrypted bucket takes besides: parts of an upload are read back as well. Through S3, where no key is
    named (Amazon S3 User Guide, "Using server-side encryption with AWS KMS keys", "Permissions").
    """
    allowed = {"Effect": "Allow", "Action": ["kms:GenerateDataKey", "kms:Decrypt"], "Resource": [key]}
    return (
        allowed if key != "*" else {**allowed, "Condition": {"StringLike": {"kms:ViaService": "s3.*.amazonaws.com*"}}}
    )


def _ask(settings: Mapping[str, str], way: str, name: str, policy: str, seconds: float) -> Mapping[str, Any]:
    """One STS call; its `Credentials`."""
    try:
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError
    except ImportError as error:
        raise ConfigError("scoped keys for an S3 home need boto3", fix="pip install 'spotbroker[aws]'") from error
    shortest, longest = LIFE[way]
    life = int(min(max(seconds, shortest), longest))
    asked = sts(settings)
    try:
        if way == "federation":
            return _credentials(asked.get_federation_token(Name=name[-32:], Policy=policy, DurationSeconds=life))
        role = settings.get("role_arn", "")
        if not role:
            raise ConfigError("[home_config] mint = 'assume-role' needs role_arn", fix="set role_arn in [home_config]")
        wanted = {"RoleArn": role, "RoleSessionName": f"spotbroker-{name}"[-64:], "Policy": policy}
        try:
            return _credentials(asked.assume_role(**wanted, DurationSeconds=life))
        except ClientError as error:
            if life <= SURE or error.response["Error"].get("Code") != "ValidationError":
                raise
            return _credentials(asked.assume_role(**wanted, DurationSeconds=SURE))
    except ClientError as error:
        raise _translated(way, error.response) from error
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise ConfigError(
            f"no key to mint with: {error}", fix="set access_key_id and secret_access_key in [home_config]"
        ) from error
    except BotoCoreError as error:
        profile = settings.get(signing.SETTING, "")
        if profile and re.search(r"Token|SSO|Login|Credential|Refresh", type(error).__name__):
            raise HomeAccessExpired(f"the profile {profile} gives no keys: {error}", fix=log_in(profile)) from error
        raise HomeUnavailable(f"STS did not answer: {error}", fix="check sts_endpoint in [home_config]") from error


def sts(settings: Mapping[str, str]) -> Any:
    """boto3's client for the STS that makes a home's narrow keys."""
    from botocore.config import Config as Options

    def setting(name: str) -> str | None:
        return settings.get(name) or settings.get(f"aws_{name}") or None

    return client(
        settings,
        "sts",
        endpoint_url=settings.get("sts_endpoint") or None,
        region_name=setting("region") or setting("default_region") or "us-east-1",
        aws_access_key_id=setting("access_key_id"),
        aws_secret_access_key=setting("secret_access_key"),
        aws_session_token=setting("session_token") or setting("token"),
        config=Options(connect_timeout=5, read_timeout=20, retries={"mode": "standard", "total_max_attempts": 4}),
    )


def client(settings: Mapping[str, str], service: str, **options: Any) -> Any:
    """boto3's client for a home, of its profile where it has one. Raises ConfigError."""
    import boto3
    from botocore.exceptions import BotoCoreError

    profile = settings.get(signing.SETTING, "")
    try:
        maker: Any = boto3.Session(botocore_session=signing.session(profile)) if profile else boto3
        return maker.client(service, **options)
    except BotoCoreError as error:  # the AWS configuration is read even where the keys are given
        raise ConfigError(f"the AWS configuration: {error}", fix="see ~/.aws/config and AWS_PROFILE") from error


def _credentials(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    credentials: Mapping[str, Any] = answer["Credentials"]
    return credentials


def _translated(way: str, response: Mapping[str, Any]) -> HomeError:
    code = str(response.get("Error", {}).get("Code", ""))
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    text = f"STS refuses to mint a key by {way}: {code}: {response.get('Error', {}).get('Message', '')}"
    if status >= 500:
        return HomeUnavailable(text)
    fix = "federation needs an IAM user's own keys"
    if way == "assume-role":
        fix = "let its trust policy name whoever signs, and their own policy allow sts:AssumeRole on it: role_arn"
    return HomeAccessDenied(text, fix=fix)


def _kind(url: str) -> str:
    scheme = urlsplit(url).scheme
    if scheme not in ("file", "s3"):
        raise ConfigError(f"the home {url!r} is of an unknown kind", fix="file:///FOLDER or s3://BUCKET/PREFIX")
    return scheme


def _is_folder(url: str) -> bool:
    return _kind(url) == "file"


def _place(url: str) -> tuple[str, str]:
    """Bucket and prefix of an S3 home. A policy would read `*`, `?` and `${` in a prefix as patterns."""
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    prefix = prefix.strip("/")
    if not bucket or not all(PLAIN.fullmatch(part) for part in (bucket, *prefix.split("/")) if part):
        raise ConfigError(
            f"the home {url!r} cannot be scoped", fix="use letters, digits, dot, dash and underscore in its prefix"
        )
    return bucket, prefix


def _partition(settings: Mapping[str, str]) -> str:
    """`aws`, `aws-cn` or `aws-us-gov`, from the role or the region."""
    role = settings.get("role_arn", "").split(":")
    if len(role) > 1 and role[1].startswith("aws"):
        return role[1]
    region = settings.get("region") or settings.get("aws_region") or ""
    return "aws-cn" if region.startswith("cn-") else "aws-us-gov" if region.startswith("us-gov-") else "aws"
