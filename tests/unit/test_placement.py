"""What a launch freezes, by what its provider rents and by whose keys the home is reached."""

from __future__ import annotations

import base64
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from clouds.seaweedfs import SeaweedFS

from broker import identity
from broker.access import mint
from broker.boot import Boot
from broker.config import Config
from broker.errors import ConfigError
from broker.home import Access, Home, JobKeys
from broker.images import DEFAULT
from broker.job import submit
from broker.offer import Market, Offer, Trust
from broker.placement import freeze
from broker.provider import Finding, Kind, LaunchRequest, Traits
from broker.renewals import Renewals, lasting
from broker.store import PlacementRow, Store, open_store
from broker.task import Task
from broker.world import World


@dataclass
class Rents:
    """A provider of which the core asks only what it is like."""

    traits: Traits
    name: str = "rents"


@dataclass
class RentsSomebody(Rents):
    """One whose machines are somebody by themselves."""

    def identify(self, name: str, policy: Mapping[str, Any], *, make: bool) -> list[Finding]:
        raise NotImplementedError


@dataclass
class Site:
    """An installation with one job, its home in a real S3 server. now: seconds since the epoch."""

    server: SeaweedFS
    store: Store
    config: Config
    kinds: Mapping[Kind, Traits]
    now: float = field(default_factory=time.time)
    rents: type[Rents] = Rents

    def world(self, kind: Kind) -> World:
        made = World(self.config, self.store, lambda: self.now, "inst")
        made._providers["rents"] = self.rents(self.kinds[kind])  # type: ignore[assignment]
        return made

    def freeze(self, kind: Kind, *, image: str | None = None, hours: float = 1.0, **offer: Any) -> LaunchRequest:
        task = Task(run="true", spot="never", max_hours=hours)
        self.job = submit(task, config=self.config, store=self.store).id
        rented = Offer("rents", "eu", "eu-1", "box", Market.ON_DEMAND, 1.0, **offer)
        row = self.store.job(self.job)
        return freeze(row, task, rented, 1, 0, image, 20.0, self.world(kind))

    @property
    def boot(self) -> Boot:
        script = Home(Access(self.config.home, self.server.settings())).get(JobKeys(self.job).boot(1)).decode()
        found = re.search(r"<<'SPOTBROKER'.*?\n(.*?)\nSPOTBROKER", script, re.DOTALL)
        assert found
        return Boot.from_bytes(base64.b64decode(found[1]))


@pytest.fixture
def site(seaweedfs: SeaweedFS, tmp_path: Path) -> Iterator[Site]:
    home = seaweedfs.new_home()
    config = Config(
        state=tmp_path / "state",
        file=tmp_path / "config.toml",
        home=home,
        home_config=seaweedfs.mints("federation"),
    )
    kinds = {kind: Traits(kind=kind, user_data_limit=4096 if kind is Kind.CONTAINER else 16_384) for kind in Kind}
    store = open_store(config.state)
    yield Site(seaweedfs, store, config, kinds)
    store.close()


@pytest.mark.parametrize(
    ("kind", "image", "container", "machine", "starts"),
    [
        (Kind.VM, None, DEFAULT, None, DEFAULT),
        (Kind.VM, "a/b:1", "a/b:1", None, "a/b:1"),
        (Kind.VM, "ami-1", None, "ami-1", None),
        (Kind.CONTAINER, None, DEFAULT, None, None),
        (Kind.BARE, None, None, None, None),
    ],
)
def test_what_a_machine_is_made_of(site, kind, image, container, machine, starts):
    """container: what the provider or the guest is told; starts: what the guest itself has to start."""
    request = site.freeze(kind, image=image)
    assert (request.container, request.image) == (container, machine)
    assert (site.boot.kind, site.boot.container) == (kind, starts)
    assert ("systemctl" in request.user_data) == (kind is Kind.VM)
    assert len(request.user_data) <= site.kinds[kind].user_data_limit
    runtime = site.boot.runtime
    assert (runtime is None) == (kind is Kind.BARE)
    if runtime is not None:
        home = Home(Access(site.config.home, site.server.settings()))
        assert home.has(runtime["obstore"]["key"])
        assert runtime["obstore"]["url"].startswith(site.server.endpoint)


def test_an_offer_that_cannot_boot_the_image_is_refused(site):
    with pytest.raises(ConfigError, match="rents containers") as raised:
        site.freeze(Kind.CONTAINER, image="ami-1")
    assert "infra" in raised.value.fix
    with pytest.raises(ConfigError, match="aarch64"):
        site.freeze(Kind.VM, extra={"architecture": "aarch64"})


def test_a_market_host_is_never_given_the_accounts_own_key(site):
    site.freeze(Kind.CONTAINER, trust=Trust.COMMUNITY)
    assert site.boot.home.scoped
    site.config = replace(site.config, home_config=site.server.settings())
    with pytest.raises(ConfigError, match="reaches more than this job") as raised:
        site.freeze(Kind.CONTAINER, trust=Trust.DATACENTER)
    assert "mint" in raised.value.fix
    assert not Home(Access(site.config.home, site.server.settings())).has(JobKeys(site.job).boot(1))
    site.freeze(Kind.CONTAINER, trust=Trust.CLOUD)


def test_a_machine_that_is_somebody_by_itself_gets_no_key(site):
    """Nor an end of its access; a market's host gets a key for its job, and so does one that is nobody."""
    keys = {"access_key_id", "secret_access_key", "session_token"}
    site.config = replace(site.config, home_config={**site.config.home_config, "instance_profile": "ours"})
    assert site.freeze(Kind.VM).identity == ""
    assert keys <= site.boot.home.config.keys()
    site.rents = RentsSomebody
    request = site.freeze(Kind.VM, hours=72.0)
    assert (request.identity, request.end_why) == ("ours", "max_hours")
    assert LaunchRequest.from_json(json.loads(json.dumps(request.to_json()))) == request
    home = site.boot.home
    assert dict(home.config) == {"endpoint": site.server.endpoint, "region": "us-east-1"}
    assert (home.expires_at, home.scoped, site.boot.access_url) == (None, False, "")
    assert site.freeze(Kind.CONTAINER, trust=Trust.DATACENTER).identity == ""
    assert site.boot.home.scoped


def test_without_another_way_nobody_else_is_rented(site):
    site.config = replace(
        site.config, home_config={**site.server.settings(), "mint": "instance-profile", "instance_profile": "ours"}
    )
    with pytest.raises(ConfigError, match="has no key for this machine"):
        site.freeze(Kind.VM)
    here = site.kinds[Kind.BARE]
    site.kinds = {**site.kinds, Kind.BARE: replace(here, simulated=True)}
    assert site.freeze(Kind.BARE).identity == "", "a machine that is this computer has its key already"
    site.rents = RentsSomebody
    assert site.freeze(Kind.VM).identity == "ours"
    with pytest.raises(ConfigError, match="has no key for this machine"):
        site.freeze(Kind.VM, trust=Trust.DATACENTER)
    offers = [Offer("rents", "eu", "eu-1", "box", Market.SPOT, 1.0, trust=trust) for trust in Trust]
    for rents, cloud in ((Rents, False), (RentsSomebody, True)):
        found = identity.reaching(rents(site.kinds[Kind.VM]), site.config, offers)
        assert [not offer.blocked for offer in found] == [cloud, False, False]
        assert "cannot have the instance profile ours" in found[-1].blocked
        assert "set mint" in found[-1].blocked
    site.config = replace(site.config, home_config={"mint": "instance-profile"})
    found = identity.reaching(RentsSomebody(site.kinds[Kind.VM]), site.config, offers)
    assert all("needs instance_profile" in offer.blocked for offer in found)


@pytest.mark.parametrize("before", [{}, {"sts_endpoint": "https://sts.amazonaws.com"}])
def test_a_profile_reaches_no_other_vendors_store(site, before):
    """Its machines would be paid until their boot is given up."""
    elsewhere = {**before, "endpoint": f"https://{'0' * 32}.r2.cloudflarestorage.com", "instance_profile": "ours"}
    rents = RentsSomebody(site.kinds[Kind.VM])
    offer = Offer("rents", "eu", "eu-1", "box", Market.SPOT, 1.0)
    for settings, name in (({**before, "instance_profile": "ours"}, "ours"), (elsewhere, "")):
        site.config = replace(site.config, home="s3://b/p", home_config=settings)
        assert identity.of(site.config, "s3://b/p", rents, offer) == name
    assert not identity.finding(site.config, "s3://b/p").ok
    assert all(found.blocked for found in identity.reaching(rents, site.config, [offer]))


def test_a_key_in_this_computers_environment_goes_to_no_machine(site, monkeypatch):
    """The broker's own calls go by it; a machine without any would be paid until its boot is given up."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "admin")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "admin-secret")
    site.config = replace(site.config, home_config={"endpoint": site.server.endpoint, "region": "us-east-1"})
    with pytest.raises(ConfigError, match=r"could not reach the home: .* has none") as raised:
        site.freeze(Kind.VM)
    assert "broker home setup" in raised.value.fix
    (offer,) = identity.reaching(
        Rents(site.kinds[Kind.VM]), site.config, [Offer("rents", "eu", "eu-1", "box", Market.SPOT, 1.0)]
    )
    assert "has none" in offer.blocked


def test_access_that_can_be_renewed_does_not_end_the_machine(site):
    """With a user's own keys; those of a session sign nothing that outlives them, and their end is the machine's."""
    request = site.freeze(Kind.VM, hours=48.0)
    assert request.end_why == "max_hours"
    assert site.boot.home.expires_at < request.end_by
    assert "X-Amz-Expires=604800" in site.boot.access_url
    keys = mint(replace(site.config, home_config=site.server.mints("assume-role")), site.config.home, "j", 1, 0).config
    session = {name: keys[name] for name in ("access_key_id", "secret_access_key", "session_token")}
    site.config = replace(site.config, home_config={**site.config.home_config, **session})
    assert not lasting(site.config.home_config, {})


@pytest.mark.parametrize(
    ("settings", "environ", "last"),
    [
        ({"access_key_id": "AKIA"}, {}, True),
        ({"aws_access_key_id": "AKIA"}, {}, True),
        ({"access_key_id": "ASIA", "session_token": "t"}, {}, False),
        ({}, {"AWS_ACCESS_KEY_ID": "AKIA"}, True),
        ({}, {"AWS_ACCESS_KEY_ID": "ASIA", "AWS_SESSION_TOKEN": "t"}, False),
        ({}, {}, False),
    ],
)
def test_which_keys_last(settings, environ, last):
    assert lasting(settings, environ) is last


def test_access_is_renewed_when_half_of_it_is_over_and_after_its_end(site):
    """What the machine's own address gives then is a key that works; nothing is minted before, or twice."""
    site.now = time.time()
    request = site.freeze(Kind.VM, hours=2.0)
    boot = site.boot
    site.store.intend(
        PlacementRow(job=site.job, generation=1, status="intent", request=request.to_json(), reasons=[], picked_at=0.0)
    )
    renewals, expires = Renewals(site.world(Kind.VM)), boot.home.expires_at
    life = expires - site.now
    assert not renewals.serve(site.job, 1, site.config.home, None)
    site.now += 0.45 * life
    assert not renewals.serve(site.job, 1, site.config.home, expires)
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(boot.access_url)
    site.now += life  # the broker slept past its end
    assert renewals.serve(site.job, 1, site.config.home, expires)
    assert not renewals.serve(site.job, 1, site.config.home, expires)
    with urllib.request.urlopen(boot.access_url) as reply:
        fresh = Access.from_json(json.loads(reply.read()))
    assert fresh.config["session_token"] != boot.home.config["session_token"]
    Home(fresh).put(JobKeys(site.job).beat(1), b"{}")
