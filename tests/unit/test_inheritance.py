"""Whose cache a job takes over, and which are deleted."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from clouds.seaweedfs import SeaweedFS

from broker.access import mint
from broker.cache import CacheKeys
from broker.cachefolders import CacheFolders
from broker.config import Config
from broker.errors import HomeAccessDenied
from broker.home import Home, JobKeys, folder_url
from broker.inheritance import collect, inherit
from broker.job import submit
from broker.offer import Market, Offer, Trust
from broker.store import PlacementRow, Store, open_store
from broker.task import Task
from broker.world import World

NAME = "~/.cache/hub"
CLOUD, DATACENTER, COMMUNITY = Trust.CLOUD, Trust.DATACENTER, Trust.COMMUNITY


def offer(trust: Trust) -> Offer:
    return Offer("rents", "eu", "eu-1", "box", Market.ON_DEMAND, 1.0, trust=trust)


@dataclass
class Nights:
    """An installation that runs one task again and again."""

    folder: Path
    config: Config
    store: Store
    number: int = 0
    ids: list[str] = field(default_factory=list)

    @property
    def world(self) -> World:
        return World(self.config, self.store, time.time, "inst")

    def submit(self, **changes: Any) -> str:
        values: dict[str, Any] = {"run": "true", "name": "night", "spot": "never", "cache": (NAME,)}
        job = submit(Task(**{**values, **changes}), config=self.config, store=self.store)
        self.ids.append(job.id)
        return job.id

    def home(self, job: str) -> Home:
        return self.world.home(self.store.job(job).home)

    def folders(self, job: str, home: Home | None = None, generation: int = 1) -> CacheFolders:
        self.number += 1
        here = self.folder / f"machine-{self.number}"
        return CacheFolders(home or self.home(job), job, generation, {NAME: (here, Path("/root/.cache/hub"))})

    def fill(self, job: str, content: str, home: Home | None = None) -> None:
        folders = self.folders(job, home)
        here = folders.folders[NAME][0]
        here.mkdir()
        (here / "weights").write_text(content * 300_000)
        folders.save(folders.look(), lambda _: None)

    def night(self, content: str, *trusts: Trust, ended: bool = True, **changes: Any) -> str:
        """A job that ran on machines of these kinds and left a cache."""
        return self.ran(self.submit(**changes), content, *trusts, ended=ended)

    def ran(self, job: str, content: str, *trusts: Trust, ended: bool = True, status: str = "succeeded") -> str:
        for generation, trust in enumerate(trusts, 1):
            request = {"offer": offer(trust).to_json()}
            row = PlacementRow(job, generation, "intent", request, [], time.time())
            self.store.intend(row)
            self.store.update_placement(job, generation, launched_at=time.time())
        if content:
            self.fill(job, content)
        if ended:
            self.store.update_job(job, status=status, ended_at=time.time())
        return job

    def next(self, *trusts: Trust, **changes: Any) -> str:
        """What lies in the cache of the next job, as its first machine finds it; empty where nothing does.

        trusts: of what is asked for, one after the other, until there is a machine.
        """
        job = self.submit(**changes)
        row = self.store.job(job)
        for trust in trusts:
            inherit(row, Task.from_json(row.task), offer(trust), self.world)
        folders = self.folders(job)
        if folders.find() is None:
            return ""
        folders.bring(folders.missing(), lambda _: None)
        return (folders.folders[NAME][0] / "weights").read_text()[0]

    def kept(self) -> list[str]:
        """The jobs that still have a cache."""
        return [job for job in self.ids if self.home(job).list(f"jobs/{job}/cache")]

    def told(self) -> list[str]:
        return [event.text for event in self.store.events(self.ids[-1], kinds=["cache"])]


@pytest.fixture
def nights(tmp_path: Path) -> Iterator[Nights]:
    config = Config(state=tmp_path / "state", file=tmp_path / "config.toml", home=folder_url(tmp_path / "home"))
    store = open_store(config.state)
    yield Nights(tmp_path, config, store)
    store.close()


def test_the_newest_that_has_ended_is_taken_over(nights: Nights) -> None:
    nights.night("a", CLOUD)
    second = nights.night("b", CLOUD)
    nights.night("c", CLOUD, ended=False)
    nights.night("d", CLOUD, name="another")
    assert nights.next(CLOUD) == "b"
    assert nights.told() == [f"cache of {second} taken over: 293.0 KiB"]


def test_a_task_without_a_cache_takes_none(nights: Nights) -> None:
    nights.night("a", CLOUD)
    assert nights.next(CLOUD, cache=()) == ""
    assert nights.next(CLOUD, cache=("~/elsewhere",)) == ""


def test_nothing_comes_from_a_less_trusted_machine(nights: Nights) -> None:
    nights.night("a", CLOUD, COMMUNITY)
    assert nights.next(CLOUD) == ""
    assert nights.next(DATACENTER) == ""
    nights.night("b", CLOUD, DATACENTER)
    assert nights.next(CLOUD) == ""
    assert nights.next(DATACENTER) == "b"
    assert nights.next(COMMUNITY) == "b"


def test_what_was_taken_over_is_no_more_trusted_than_it_was(nights: Nights) -> None:
    nights.night("a", COMMUNITY)
    # The host that it was meant for was not to be had after all.
    assert nights.next(COMMUNITY, CLOUD) == ""
    assert nights.next(COMMUNITY, COMMUNITY) == "a"
    nights.ran(nights.ids[-1], "", COMMUNITY)
    assert nights.next(COMMUNITY) == "a"
    # It ran on a cloud alone, with what a host before it had written.
    nights.ran(nights.ids[-1], "", CLOUD)
    assert nights.next(CLOUD) == ""
    nights.ran(nights.ids[-1], "b", CLOUD)
    assert nights.next(COMMUNITY, CLOUD) == "b"


def test_a_cache_that_jobs_fail_by_is_not_handed_on_for_ever(nights: Nights) -> None:
    nights.night("a", CLOUD)
    for _ in range(2):
        assert nights.next(CLOUD) == "a"
        nights.ran(nights.ids[-1], "", CLOUD, status="failed")
    assert nights.next(CLOUD) == ""
    both = f"{nights.ids[-2]} and {nights.ids[-3]}"
    assert nights.told() == [f"fetched anew: {both} failed with what they had taken over"]
    nights.ran(nights.ids[-1], "b", CLOUD, status="failed")
    assert nights.next(CLOUD) == "b", "a program of one's own that fails is tried again without another download"


@pytest.mark.parametrize("name", ["x", "-1", "99999999999999999999", "\u0664"])
def test_what_a_machine_wrote_beside_its_cache_hinders_no_later_job(nights: Nights, name: str) -> None:
    job = nights.night("a", CLOUD)
    nights.home(job).put(f"{JobKeys(job).caches}/{name}", b"[" * 100_000)
    assert nights.next(CLOUD) == "a"
    nights.home(job).put(JobKeys(job).cache(2), b"[" * 100_000)
    assert nights.next(CLOUD) == "a"


def test_what_no_job_would_take_any_more_is_deleted(nights: Nights) -> None:
    nights.night("a", CLOUD)
    best = nights.night("b", CLOUD)
    nights.night("c", COMMUNITY)
    newest = nights.night("d", COMMUNITY)
    assert nights.next(CLOUD) == "b"
    assert nights.kept() == [best, newest, nights.ids[-1]]
    assert nights.next(COMMUNITY) == "d"


def test_a_cache_of_its_own_stays(nights: Nights) -> None:
    """So it is for the machines after the first, and where a broker dies and picks again."""
    nights.night("a", CLOUD)
    job = nights.night("b", CLOUD, ended=False)
    row = nights.store.job(job)
    inherit(row, Task.from_json(row.task), offer(CLOUD), nights.world)
    found = nights.folders(job).find()
    assert found is not None
    assert [entry.key for entry in nights.home(job).list(JobKeys(job).caches)] == [JobKeys(job).cache(1)]


def test_a_blob_that_is_missing_leaves_the_job_without(nights: Nights) -> None:
    job = nights.night("a", CLOUD)
    nights.home(job).delete(entry.key for entry in nights.home(job).list(f"jobs/{job}/cache/blobs"))
    assert nights.next(CLOUD) == ""
    assert nights.told()[0].startswith("no earlier job's cache is taken over: ")


def test_a_running_jobs_old_blobs_go(nights: Nights, tmp_path: Path) -> None:
    job = nights.night("a", CLOUD, ended=False)
    nights.fill(job, "b")
    blobs = tmp_path / "home/jobs" / job / "cache/blobs"
    assert len(list(blobs.iterdir())) == 2
    assert collect(nights.home(job), JobKeys(job), time.time(), 100.0) == 0
    for path in blobs.iterdir():
        os.utime(path, (0, 0))
    assert collect(nights.home(job), JobKeys(job), time.time(), 100.0) == 1
    folders = nights.folders(job)
    folders.find()
    assert folders.bring(folders.missing(), lambda _: None) == 300_000


def test_machines_keys_reach_their_own_jobs_cache_only(nights: Nights, seaweedfs: SeaweedFS) -> None:
    """The broker copies from one job to the next; no machine can write what another job's will find."""
    nights.config = replace(nights.config, home=seaweedfs.new_home(), home_config=seaweedfs.mints("federation"))

    def machine(job: str) -> Home:
        return Home(mint(nights.config, nights.config.home, job, 1, time.time() + 900))

    first = nights.night("a", CLOUD)
    nights.fill(first, "b", machine(first))
    assert nights.next(CLOUD) == "b"
    second = nights.ids[-1]
    folders = nights.folders(second, machine(second))
    assert folders.find() is not None
    assert folders.bring(folders.missing(), lambda _: None) == 300_000
    with pytest.raises(HomeAccessDenied):
        nights.fill(first, "c", machine(second))
    with pytest.raises(HomeAccessDenied):
        machine(second).get(CacheKeys(first).cache(1))


def test_with_the_key_of_a_whole_bucket_nothing_is_sure(nights: Nights, seaweedfs: SeaweedFS) -> None:
    settings = {**seaweedfs.settings(), "mint": "none", "dedicated": "true"}
    nights.config = replace(nights.config, home=seaweedfs.new_home(), home_config=settings)
    nights.night("a", CLOUD)
    assert nights.next(CLOUD) == ""
    assert nights.next(COMMUNITY) == "a"
