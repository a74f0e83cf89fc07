"""What a placement's key reaches, on a server that enforces it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.exceptions import ClientError
from clouds.seaweedfs import SeaweedFS

from broker.access import mint, own, session_policy
from broker.config import Config
from broker.errors import ConfigError, HomeAccessDenied, HomeError, HomeUnavailable
from broker.home import Access, Home, JobKeys
from broker.snapshot import Pace, Snapshotter, restore

WAYS = ["assume-role", "federation"]


def config(**home_config: str) -> Config:
    return Config(state=Path("/none"), file=Path("/none"), home_config=home_config)


class Bucket:
    """A home with two jobs and a stranger's object in it, and the key that job A's first placement got."""

    def __init__(self, server: SeaweedFS, way: str, prefix: str) -> None:
        self.url = server.new_home(prefix)
        self.broker = Home(own(config(**server.mints(way)), self.url))
        self.foreign = ("jobs/B/control", "jobs/AA/control", "beats/B/1", "beats/AA/1", "other")
        for key in (*self.foreign, "jobs/A/control"):
            self.broker.put(key, key.encode())
        self.until = time.time() + 7200
        self.access = mint(config(**server.mints(way)), self.url, "A", 1, self.until)
        self.guest = Home(self.access)


@pytest.fixture(scope="module", params=WAYS)
def bucket(seaweedfs: SeaweedFS, request: pytest.FixtureRequest) -> Bucket:
    return Bucket(seaweedfs, request.param, "team/home")


def test_a_placement_reads_writes_and_lists_its_job(bucket: Bucket, tmp_path: Path) -> None:
    guest, keys = bucket.guest, JobKeys("A")
    assert guest.get(keys.control) == b"jobs/A/control"
    guest.put(keys.beat(1), b"{}")
    assert guest.create(keys.parent(1), b"null") is True
    assert guest.create(keys.parent(1), b"null") is False
    assert guest.get(keys.beat(1)) == b"{}"
    assert [entry.key for entry in guest.list(keys.beats)] == [keys.beat(1)]
    folder = tmp_path / "ckpt"
    folder.mkdir()
    (folder / "step-5.bin").write_bytes(bytes(11 << 20))  # of several parts
    manifest = Snapshotter(guest, keys, 1, folder, quiet=0, pace=Pace(5 << 20)).publish()
    assert manifest is not None
    restore(guest, keys, manifest, tmp_path / "r")
    assert {entry.key for entry in guest.list(keys.generations)} == {keys.parent(1), keys.manifest(1, 1)}
    guest.put(keys.boot(1), b"once")
    guest.delete([keys.boot(1)])
    assert guest.find(keys.boot(1)) is None


@pytest.mark.parametrize(
    "attempt",
    [
        lambda home, key: home.get(key),
        lambda home, key: home.put(key, b"taken over"),
        lambda home, key: home.create(f"{key}-new", b"planted"),
        lambda home, key: home.delete([key]),
        lambda home, key: home.store.head(key),
        lambda home, key: home.store.copy(key, "jobs/A/stolen"),
        lambda home, key: home.store.copy("jobs/A/control", key),
        lambda home, key: home.list(key.rpartition("/")[0]),
        lambda home, key: home.store.put(f"{key}-big", bytes(11 << 20), chunk_size=5 << 20),
    ],
    ids=["get", "put", "create", "delete", "head", "copy-from", "copy-to", "list", "multipart"],
)
def test_it_reaches_nothing_else(bucket: Bucket, attempt: Callable[[Home, str], object]) -> None:
    from obstore.exceptions import BaseError

    for key in bucket.foreign:
        with pytest.raises((HomeAccessDenied, BaseError, PermissionError)) as caught:
            attempt(bucket.guest, key)
        assert isinstance(caught.value, HomeAccessDenied) or "403" in str(caught.value)
        assert bucket.broker.get(key) == key.encode()
    listed = {entry.key for entry in bucket.broker.list("")}
    assert listed >= set(bucket.foreign)
    assert not [key for key in listed if key.endswith(("-new", "-big", "stolen"))]


@pytest.mark.parametrize("prefix", ["", "jobs", "beats"])
def test_it_lists_no_other_job(bucket: Bucket, prefix: str) -> None:
    with pytest.raises(HomeAccessDenied):
        bucket.guest.list(prefix)


def test_it_cannot_ask_for_more(bucket: Bucket, seaweedfs: SeaweedFS) -> None:
    keys = bucket.access.config
    sts = boto3.client(
        "sts",
        endpoint_url=seaweedfs.endpoint,
        region_name="us-east-1",
        aws_access_key_id=keys["access_key_id"],
        aws_secret_access_key=keys["secret_access_key"],
        aws_session_token=keys["session_token"],
    )
    with pytest.raises(ClientError):
        sts.get_federation_token(Name="more", DurationSeconds=900)


def test_it_carries_none_of_the_accounts_keys(bucket: Bucket, seaweedfs: SeaweedFS) -> None:
    assert bucket.access.scoped
    text = json.dumps(bucket.access.to_json())
    assert "minter" not in text
    assert not {"mint", "role_arn", "sts_endpoint"} & set(bucket.access.config)
    assert bucket.access.config["endpoint"] == seaweedfs.endpoint
    assert bucket.access.config["access_key_id"] not in repr(bucket.access)


def test_keys_by_obstores_longer_names_are_left_out_too(seaweedfs: SeaweedFS) -> None:
    ours = ("mint", "role_arn", "sts_endpoint")
    settings = {
        name if name in ours else f"aws_{name}": value for name, value in seaweedfs.mints("assume-role").items()
    }
    url = seaweedfs.new_home()
    access = mint(config(**settings), url, "A", 1, time.time() + 900)
    assert "minter" not in json.dumps(access.to_json())
    Home(access).put("jobs/A/x", b"1")
    with pytest.raises(HomeAccessDenied):
        Home(access).put("jobs/B/x", b"1")


def test_it_says_when_it_ends(bucket: Bucket) -> None:
    assert bucket.access.expires_at is not None
    assert abs(bucket.access.expires_at - bucket.until) < 30


@pytest.mark.parametrize("way", WAYS)
def test_its_life_is_what_the_service_allows(seaweedfs: SeaweedFS, way: str) -> None:
    url = seaweedfs.new_home()
    short = mint(config(**seaweedfs.mints(way)), url, "A", 1, time.time() + 5)
    assert short.expires_at is not None
    assert 890 < short.expires_at - time.time() <= 901
    if way == "assume-role":
        long = mint(config(**seaweedfs.mints(way)), url, "A", 1, time.time() + 90 * 86400)
        assert long.expires_at is not None
        assert 43_100 < long.expires_at - time.time() <= 43_201


def test_an_ended_key_is_refused(bucket: Bucket, seaweedfs: SeaweedFS) -> None:
    """The server's own session token, dated back and signed again with the server's own key."""
    token = bucket.access.config["session_token"]
    header, claims, _signature = token.split(".")
    content = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))

    def dated(by: float) -> Home:
        changed = {name: value - by if name in ("exp", "iat", "nbf") else value for name, value in content.items()}
        body = base64.urlsafe_b64encode(json.dumps(changed).encode()).rstrip(b"=").decode()
        signed = f"{header}.{body}"
        key = hmac.new(seaweedfs.signing_key, signed.encode(), hashlib.sha256).digest()
        forged = f"{signed}.{base64.urlsafe_b64encode(key).rstrip(b'=').decode()}"
        return Home(Access(bucket.url, {**bucket.access.config, "session_token": forged}))

    assert dated(0).get("jobs/A/control") == b"jobs/A/control"
    with pytest.raises(HomeError):
        dated(9000).get("jobs/A/control")


def test_a_home_at_a_buckets_root_is_scoped_too(seaweedfs: SeaweedFS) -> None:
    bucket = Bucket(seaweedfs, "assume-role", "")
    assert bucket.guest.get("jobs/A/control") == b"jobs/A/control"
    for key in bucket.foreign:
        with pytest.raises(HomeAccessDenied):
            bucket.guest.get(key)


def test_every_pattern_of_the_policy_ends_below_a_slash() -> None:
    allow, listing = session_policy("bkt", "a/b", "J")["Statement"]
    below = ["a/b/jobs/J/*", "a/b/beats/J/*"]
    assert allow["Resource"] == [f"arn:aws:s3:::bkt/{pattern}" for pattern in below]
    assert listing["Resource"] == ["arn:aws:s3:::bkt"]
    assert listing["Condition"] == {"StringLike": {"s3:prefix": below}}


@pytest.mark.parametrize("url", ["s3://bkt/a*", "s3://bkt/${aws:username}", "s3://bkt/a?", "s3://b*t/a", "s3:///a"])
def test_a_prefix_that_a_policy_would_read_as_a_pattern_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="cannot be scoped"):
        mint(config(mint="federation"), url, "J", 1, time.time() + 60)


@pytest.mark.parametrize("job", ["a*", "a/b", "", "a?", "${x}"])
def test_a_job_id_that_a_policy_would_read_as_a_pattern_is_refused(job: str) -> None:
    with pytest.raises(ConfigError, match="cannot stand in a policy"):
        mint(config(mint="federation"), "s3://bkt/home", job, 1, time.time() + 60)


def test_a_folder_needs_no_key(tmp_path: Path) -> None:
    access = mint(config(mint="assume-role", region="x"), tmp_path.as_uri(), "J", 1, time.time() + 60)
    assert (access.url, dict(access.config), access.expires_at) == (tmp_path.as_uri(), {}, None)


def test_without_a_mint_the_key_is_marked_as_shared() -> None:
    settings = {"region": "eu-west-1", "access_key_id": "k", "secret_access_key": "s"}
    access = mint(config(**settings), "s3://bkt/home", "J", 1, time.time() + 60)
    assert not access.scoped
    assert dict(access.config) == settings


def test_mistakes_in_the_configuration_name_what_to_set(seaweedfs: SeaweedFS) -> None:
    settings = seaweedfs.mints("assume-role")
    with pytest.raises(ConfigError, match="'magic' is unknown"):
        mint(config(**{**settings, "mint": "magic"}), "s3://bkt/home", "J", 1, time.time() + 60)
    with pytest.raises(ConfigError, match="needs role_arn"):
        mint(config(**{**settings, "role_arn": ""}), "s3://bkt/home", "J", 1, time.time() + 60)
    with pytest.raises(ConfigError, match="unknown kind"):
        own(config(), "ftp://host/home")
    with pytest.raises(HomeAccessDenied) as caught:
        mint(config(**{**settings, "secret_access_key": "wrong"}), "s3://bkt/home", "J", 1, time.time() + 60)
    assert caught.value.fix
    gone = {**settings, "sts_endpoint": "http://127.0.0.1:9"}
    with pytest.raises(HomeUnavailable):
        mint(config(**gone), "s3://bkt/home", "J", 1, time.time() + 60)


def test_the_servers_unguarded_port_is_not_the_one_tests_use(bucket: Bucket, seaweedfs: SeaweedFS) -> None:
    import requests

    answer = requests.get(f"{seaweedfs.endpoint}/{urlsplit(bucket.url).netloc}/team/home/other", timeout=10)
    assert answer.status_code == 403
