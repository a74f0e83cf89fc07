"""Guests cut off from their store, and a store that is away for everybody: nobody runs twice, nothing false is read."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clouds.partition import EVERYBODY, Partition
from clouds.seaweedfs import SeaweedFS
from crash.harness import Site, saved, wait_for

from broker.access import own
from broker.home import Home, JobKeys
from broker.job import Job
from broker.manifest import File, Manifest
from broker_local.cloud import take_back

BEAT, SILENCE = 0.5, 4.0
MORE = ["drop"] if "SPOTBROKER_KILLS" in os.environ else []  # for whoever has more time
CLOCKS = 0.05  # seconds between two readings of one clock by two processes


class Cut:
    """A site whose every word to the store passes the proxy, and a job whose program counts."""

    def __init__(self, folder: Path, server: SeaweedFS, proxy: Partition) -> None:
        keys = {**server.mints("assume-role"), "endpoint": proxy.endpoint, "sts_endpoint": proxy.endpoint}
        limits = {"beat": BEAT, "store_poll": 0.3, "silence": SILENCE, "grace": 5.0}
        self.proxy = proxy
        self.site = Site(folder, home=server.new_home(), home_config=keys, limits=limits)
        # The test itself sees the store whole, past the proxy.
        direct = Site.config_with(self.site.config, {**server.mints("assume-role")})
        self.home = Home(own(direct, self.site.config.home))

    def start(self, *, steps: int, stubborn: bool = False) -> Job:
        task = self.site.task("count", steps=steps, every=10, pause=0.04)
        if stubborn:
            task = self.site.task("count", envs={**task.envs, "STUBBORN": "1"})
        self.job = self.site.submit(task)
        self.keys = JobKeys(self.job.id)
        return self.job

    def key_of(self, generation: int) -> str:
        machine = self.site.machine(self.job, generation)
        boot = json.loads((self.site.folder_of(machine) / "disk/spotbroker/boot.json").read_text())
        return str(boot["home"]["config"]["access_key_id"])

    def steps(self, generation: int) -> list[dict[str, Any]]:
        return self.site.of("count", "step", generation)

    def newest(self, generation: int) -> tuple[int, int]:
        return saved(self.home, self.job, generation)

    def forge(self, generation: int, seq: int, step: int) -> None:
        """Write a snapshot as that generation's guest would, had it lived on: with a step far ahead."""
        content = json.dumps({"step": step, "sum": sum(range(step + 1))}).encode()
        sha256 = hashlib.sha256(content).hexdigest()
        self.home.put(self.keys.blob(sha256), content)
        manifest = Manifest(
            generation=generation,
            seq=seq,
            at=time.time(),
            step=step,
            entries={"state.json": "renamed"},
            files={"state.json": File(sha256, len(content), 0o644)},
            skipped={},
        )
        assert self.home.create(self.keys.manifest(generation, seq), manifest.to_bytes())


@pytest.fixture
def cut(tmp_path: Path, seaweedfs: SeaweedFS, partition: Partition) -> Iterator[Cut]:
    made = Cut(tmp_path, seaweedfs, partition)
    yield made
    partition.heal()
    made.site.close()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["hold", *MORE])
def test_cut_off_and_noticed(cut: Cut, how: str) -> None:
    """A guest that cannot reach its store ends its program by the notice's end all the same, and what it writes after
    its successor has started is never read."""
    job = cut.start(steps=300, stubborn=True)
    site, proxy = cut.site, cut.proxy
    with site.up():
        site.event(job, "snapshot", 1)
        first, key = site.machine(job, 1), cut.key_of(1)
        site.step("count", 40)
        proxy.cut(key, how=how)
        wait_for(lambda: proxy.refused[key] or how == "hold", "the cut to be felt")
        _, step = cut.newest(1)
        word = take_back(site.root, first.id, "aws", seconds=8.0)
        assert word is not None
        ends_at = word.ends_at
        assert ends_at is not None
        second = site.machine(job, 2)
        assert time.time() < ends_at, "the successor was not launched while the notice ran"
        start = wait_for(lambda: site.of("count", "start", 2), "the successor's program", 60, lambda: site.story(job))
        last = cut.steps(1)[-1]
        assert last["at"] <= ends_at - 0.3, "the guest left the kill to its provider"
        assert last["step"] > step + 20, "the program did not go on while it was cut off"
        gone = site.event(job, "confirmed", 1)
        assert start[0]["at"] > ends_at
        assert start[0]["at"] > min(gone.at, ends_at + 60) - CLOCKS, "started before the old one was dead"
        assert start[0]["step"] == step, "did not start from the lineage's newest snapshot"
        # The cut heals, and what the first one would have written arrives late.
        proxy.heal()
        cut.forge(1, cut.newest(1)[0] + 1, step=100_000)
        take_back(site.root, second.id, "vast")
        again = wait_for(lambda: site.of("count", "start", 3), "the third program", 60, lambda: site.story(job))
        assert again[0]["step"] < 1000, "a snapshot from outside the lineage was restored"
        site.done(job)
    site.audit(lost_at_most=500)


@pytest.mark.slow
def test_cut_off_without_notice(cut: Cut) -> None:
    """Silence: the old machine is ended, and its end confirmed, before there is a new one."""
    job = cut.start(steps=220)
    site = cut.site
    with site.up():
        site.event(job, "snapshot", 1)
        key = cut.key_of(1)
        cut.proxy.cut(key)
        at = time.time()
        _, step = cut.newest(1)
        site.machine(job, 2)
        lost, gone, picked = (site.event(job, *e) for e in (("lost", 1), ("confirmed", 1), ("picked", 2)))
        assert "no beat" in lost.text
        assert lost.at >= at + SILENCE - BEAT - 1.0
        assert gone.seq < picked.seq, "the next was picked before the old one's end was confirmed"
        start = wait_for(lambda: site.of("count", "start", 2), "the second program")[0]
        assert start["at"] > cut.steps(1)[-1]["at"]
        assert start["step"] == step
        site.done(job)
    assert len(job.placements()) == 2
    site.audit(lost_at_most=400)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["drop", *(["hold"] if MORE else [])])
def test_the_store_is_away_for_everybody(cut: Cut, how: str) -> None:
    """Silence of the store is not silence of a guest: nothing is concluded, and the job goes on."""
    job = cut.start(steps=330)
    site = cut.site
    with site.up():
        site.event(job, "snapshot", 1)
        cut.proxy.cut(how=how)
        began = time.monotonic()
        reached = site.step("count", 1)
        wait_for(lambda: time.monotonic() - began > 2 * SILENCE, "twice the silence")
        assert site.step("count", 1) > reached + 50, "the program stood still without its store"
        cut.proxy.heal()
        site.done(job)
    assert len(job.placements()) == 1, site.story(job)
    assert not [e for e in job.events() if e.kind == "lost"]
    site.audit(lost_at_most=0)


@pytest.mark.slow
def test_a_guest_may_need_longer_to_find_the_store_again(cut: Cut) -> None:
    """Time in which the store did not answer the broker is no silence of a guest: it counts from the store's return."""
    job = cut.start(steps=360)
    site, proxy = cut.site, cut.proxy
    with site.up():
        site.event(job, "snapshot", 1)
        key = cut.key_of(1)
        proxy.cut(key)
        proxy.cut()
        away = time.monotonic()
        wait_for(lambda: time.monotonic() - away > 1.2 * SILENCE, "more than the silence")
        proxy.heal(EVERYBODY)
        before, back = proxy.served["minter"], time.monotonic()
        wait_for(lambda: proxy.served["minter"] > before + 5, "the broker to find the store again")
        wait_for(lambda: time.monotonic() - back > 0.4 * SILENCE, "half the silence")
        proxy.heal()
        site.done(job)
    assert len(job.placements()) == 1, site.story(job)
    site.audit(lost_at_most=0)
