"""Keys for one placement from B2 and R2, against stores that go by them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clouds import b2, r2
from clouds.b2 import B2
from clouds.r2 import R2

from broker.access import dedicated, erase, mint, own, strangers
from broker.config import Config
from broker.errors import ConfigError, HomeAccessDenied, HomeError, HomeUnavailable
from broker.home import Access, Home, JobKeys
from broker.snapshot import Pace, Snapshotter, restore

URL = "s3://bucket/team/home"


def config(**home_config: str) -> Config:
    return Config(state=Path("/none"), file=Path("/none"), home_config=home_config)


@pytest.fixture(scope="module")
def backblaze() -> Iterator[B2]:
    with b2.running() as account:
        account.bucket("bucket")
        yield account


@pytest.fixture(scope="module")
def cloudflare() -> Iterator[R2]:
    with r2.running() as account:
        account.bucket("bucket")
        yield account


@pytest.fixture(scope="module", params=["b2", "r2", "r2 by its API"])
def settings(request: pytest.FixtureRequest) -> dict[str, str]:
    if request.param == "b2":
        return dict(request.getfixturevalue("backblaze").settings())
    return dict(request.getfixturevalue("cloudflare").settings(by_api="API" in request.param))


class Bucket:
    """A home with two jobs, a stranger's object, and the key that job A's first placement got."""

    def __init__(self, settings: dict[str, str]) -> None:
        self.broker = Home(own(config(**settings), URL))
        self.broker.delete([entry.key for entry in self.broker.list("")])
        self.foreign = ("jobs/B/control", "jobs/AA/control", "beats/B/1", "beats/AA/1", "other")
        for key in (*self.foreign, "jobs/A/control"):
            self.broker.put(key, key.encode())
        self.access = mint(config(**settings), URL, "A", 1, time.time() + 7200)
        self.guest = Home(self.access)


@pytest.fixture(scope="module")
def bucket(settings: dict[str, str]) -> Bucket:
    return Bucket(settings)


def test_a_placement_reads_writes_and_lists_its_job(bucket: Bucket, tmp_path: Path) -> None:
    guest, keys = bucket.guest, JobKeys("A")
    assert bucket.access.scoped
    assert guest.get(keys.control) == b"jobs/A/control"
    assert guest.create(keys.parent(1), b"null") is True
    assert guest.create(keys.parent(1), b"null") is False
    folder = tmp_path / "ckpt"
    folder.mkdir()
    (folder / "step-5.bin").write_bytes(bytes(11 << 20))  # of several parts
    manifest = Snapshotter(guest, keys, 1, folder, quiet=0, pace=Pace(5 << 20)).publish()
    assert manifest is not None
    restore(guest, keys, manifest, tmp_path / "r")
    assert (tmp_path / "r" / "step-5.bin").stat().st_size == 11 << 20
    assert keys.manifest(1, 1) in {entry.key for entry in guest.list(keys.generations)}
    guest.put(keys.boot(1), b"once")
    guest.delete([keys.boot(1)])
    assert guest.find(keys.boot(1)) is None


def test_its_beats_are_heard(bucket: Bucket) -> None:
    keys = JobKeys("A")
    bucket.guest.put(keys.beat(1), b"{}")
    assert bucket.guest.get(keys.beat(1)) == b"{}"
    heard = bucket.broker.beats([("A", 1), ("A", 2)])
    assert [entry.key for entry in heard if "/A/" in entry.key] == [keys.beat(1)]
    assert bucket.broker.get(keys.beat(1)) == b"{}"
    bucket.broker.delete([keys.beat(1)])
    assert bucket.guest.find(keys.beat(1)) is None


@pytest.mark.parametrize(
    "attempt",
    [
        lambda store, key: store.get(key),
        lambda store, key: store.put(key, b"taken over", use_multipart=False),
        lambda store, key: store.head(key),
        lambda store, key: store.delete(key),
        lambda store, key: store.copy(key, "jobs/A/stolen"),
        lambda store, key: store.copy("jobs/A/control", key),
        lambda store, key: list(store.list(key.rpartition("/")[0] or None)),
    ],
    ids=["get", "put", "head", "delete", "copy from", "copy to", "list"],
)
def test_it_reaches_nothing_else(bucket: Bucket, attempt: Callable[[Any, str], Any]) -> None:
    from broker.home import translated

    for key in bucket.foreign:
        with pytest.raises((HomeAccessDenied, FileNotFoundError)) as caught, translated(key):
            attempt(bucket.guest.store, key)
        assert caught.type is not FileNotFoundError, key
        assert bucket.broker.get(key) == key.encode()


def test_it_cannot_make_keys_itself(bucket: Bucket, settings: dict[str, str]) -> None:
    if settings["mint"] == "b2":
        with pytest.raises(HomeAccessDenied, match="the key lacks writeKeys"):
            mint(config(**{**settings, **bucket.access.config}), URL, "B", 1, time.time() + 3600)


def test_the_life_is_what_is_asked_within_what_the_store_allows(settings: dict[str, str]) -> None:
    days = 999 if settings["mint"] == "b2" else 7
    for wanted, granted in ((60, 900), (7200, 7200), (5000 * 86400, days * 86400)):
        access = mint(config(**settings), URL, "A", 1, time.time() + wanted)
        assert access.expires_at is not None
        assert granted - 60 < access.expires_at - time.time() < granted + 86_400


def test_what_has_expired_or_was_forged_is_refused(settings: dict[str, str], bucket: Bucket) -> None:
    forged = {**bucket.access.config, "secret_access_key": "x" * 40}
    with pytest.raises(HomeAccessDenied):
        Home(replace(bucket.access, config=forged)).get("jobs/A/control")
    if "session_token" in bucket.access.config:
        changed = f"{bucket.access.config['session_token'][:-8]}AAAAAAA="
        other = replace(bucket.access, config={**bucket.access.config, "session_token": changed})
        with pytest.raises(HomeAccessDenied):
            Home(other).get("jobs/A/control")


def test_a_key_that_expired_is_refused(backblaze: B2) -> None:
    access = mint(config(**backblaze.settings()), URL, "A", 9, time.time() + 900)
    guest = Home(access)
    guest.put("jobs/A/x", b"x")
    backblaze.keys[access.config["access_key_id"]].expires_at = time.time() - 1
    with pytest.raises(HomeError, match="expired"):
        guest.get("jobs/A/x")


def test_revoking_the_parent_ends_all_of_r2(cloudflare: R2) -> None:
    guest = Home(mint(config(**cloudflare.settings()), URL, "A", 1, time.time() + 900))
    guest.put("jobs/A/x", b"x")
    secret = cloudflare.parents.pop("parent")
    try:
        with pytest.raises(HomeAccessDenied):
            guest.get("jobs/A/x")
    finally:
        cloudflare.parents["parent"] = secret


def test_b2_names_keys_by_their_placement(backblaze: B2) -> None:
    mint(config(**backblaze.settings()), URL, "a_job.of-mine", 3, time.time() + 900)
    made = list(backblaze.keys.values())[-1]
    assert (made.name, made.prefix) == ("spotbroker-a-job-of-mine-3", "team/home/jobs/a_job.of-mine/")
    assert set(made.capabilities) == {"listFiles", "readFiles", "writeFiles", "deleteFiles"}


def test_what_b2_only_hides_is_deleted_for_good(backblaze: B2) -> None:
    settings = config(**backblaze.settings())
    home, keys = Home(own(settings, URL)), JobKeys("A")
    for key in (keys.boot(1), keys.boot(1), keys.boot(11), keys.beat(1)):
        home.put(key, b"secret")
    home.delete([keys.boot(11)])
    held = [name for name, _ in backblaze.objects.versions["bucket"]]
    assert f"team/home/{keys.boot(1)}" in held, "what was written over is there still"
    erase(settings, home, [keys.boot(1), keys.beat(1)])
    left = {*backblaze.objects.buckets["bucket"], *(name for name, _ in backblaze.objects.versions["bucket"])}
    assert not [name for name in left if name.endswith(("/A/gen/1/boot", "/A/gen/1/beat"))]
    assert f"team/home/{keys.boot(11)}" in left, "another object's versions stay"


def test_what_the_user_must_mend_is_said(backblaze: B2, cloudflare: R2) -> None:
    good, until = backblaze.settings(), time.time() + 900
    with pytest.raises(HomeAccessDenied, match="401 unauthorized") as caught:
        mint(config(**{**good, "secret_access_key": "wrong"}), URL, "A", 1, until)
    assert "wrong" not in str(caught.value)
    with pytest.raises(HomeAccessDenied, match="shows this key no bucket elsewhere"):
        mint(config(**good), "s3://elsewhere/x", "A", 1, until)
    with pytest.raises(ConfigError, match="no key to mint with"):
        mint(config(mint="b2"), URL, "A", 1, until)
    with pytest.raises(ConfigError, match="names no Cloudflare account"):
        mint(config(**{k: v for k, v in cloudflare.settings().items() if k != "account_id"}), URL, "A", 1, until)
    with pytest.raises(HomeAccessDenied, match="Authentication error") as denied:
        mint(config(**{**cloudflare.settings(by_api=True), "api_token": "old"}), URL, "A", 1, until)
    assert "api_token" in denied.value.fix


def test_the_account_is_read_from_cloudflares_own_endpoints() -> None:
    from broker.minting import _account

    account = "0123456789abcdef0123456789abcdef"
    for host in (f"{account}.r2.cloudflarestorage.com", f"{account}.eu.r2.cloudflarestorage.com"):
        assert _account({"endpoint": f"https://{host}"}) == account


def test_a_store_that_does_not_answer_is_unavailable(backblaze: B2, cloudflare: R2) -> None:
    with ExitStack() as stack:
        for account in (backblaze, cloudflare):
            account.down = 503
            stack.callback(setattr, account, "down", None)
        for settings in (backblaze.settings(), cloudflare.settings(by_api=True)):
            with pytest.raises(HomeUnavailable):
                mint(config(**settings), URL, "A", 1, time.time() + 900)
            gone = {**settings, "api_endpoint": "http://127.0.0.1:9"}
            with pytest.raises(HomeUnavailable, match="did not answer"):
                mint(config(**gone), URL, "A", 1, time.time() + 900)


def test_a_bucket_of_the_brokers_own_counts_as_scoped(cloudflare: R2) -> None:
    cloudflare.bucket("own")
    settings = {**cloudflare.settings(), "mint": "none", "dedicated": "true"}
    for url in ("s3://own", "s3://own/team"):
        home = Home(own(config(**settings), url))
        home.put("jobs/A/control", b"x")
        assert mint(config(**settings), url, "A", 1, 0).scoped
        assert not mint(config(**{**settings, "dedicated": "false"}), url, "A", 1, 0).scoped
        cloudflare.objects.buckets["own"].clear()
        home.put("jobs/A/control", b"x")
        Home(own(config(**settings), "s3://own")).put("photos/cat.jpg", b"x")
        assert strangers(config(**settings), url) == ["photos"]
        assert not dedicated(config(**settings), url)
        assert not mint(config(**settings), url, "A", 1, 0).scoped
        cloudflare.objects.buckets["own"].clear()
    Home(own(config(**settings), "s3://own/team")).put("notes.txt", b"x")
    assert strangers(config(**settings), "s3://own/team") == ["notes.txt"]


def test_an_access_goes_through_json(bucket: Bucket) -> None:
    assert Access.from_json(bucket.access.to_json()) == bucket.access
    assert Access.from_json({"url": "file:///x", "config": {}, "expires_at": None, "scoped": False}).one_prefix is False


def test_backblazes_own_client_takes_the_stand_in_for_b2(backblaze: B2) -> None:
    from b2sdk.v3 import B2Api, InMemoryAccountInfo
    from b2sdk.v3.exception import B2Error, Unauthorized

    def client(key: str, secret: str) -> B2Api:
        api = B2Api(InMemoryAccountInfo())
        api.authorize_account(application_key_id=key, application_key=secret, realm=backblaze.url)
        return api

    owner = client("app", "app-secret")
    bucket = owner.get_bucket_by_name("bucket")
    made = owner.create_key(["readFiles", "listBuckets"], "by-b2sdk", 3600, bucket_ids=[bucket.id_], name_prefix="x/")
    assert (made.name_prefix, made.bucket_ids) == ("x/", [bucket.id_])
    assert made.id_ in {key.id_ for key in owner.list_keys()}
    narrow = client(made.id_, made.application_key)
    with pytest.raises(Unauthorized):
        narrow.create_key(["readFiles"], "more")
    with pytest.raises(B2Error):
        owner.create_key(["readFiles"], "too-long", 1000 * 86_400)
    owner.delete_key(made)
    with pytest.raises(B2Error):
        client(made.id_, made.application_key)
