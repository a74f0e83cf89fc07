"""A provider that refuses, lies or falls silent: one machine per placement, none left, no move for a failed call."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crash.harness import Site, wait_for

import broker_local.guest
from broker.job import Job
from broker.offer import OfferQuery
from broker.policy.budget import STRAY
from broker.provider import TAG_GENERATION, TAG_INSTALLATION, TAG_JOB, LaunchRequest, State
from broker.task import Task
from broker_local.cloud import clear, fail_after_create, fail_calls, hide_for, refuse

# A third party's provider. What it rents are local machines; what it is like stands in its first lines.
THIRD_PARTY = """
import dataclasses, uuid
from broker_local import LocalProvider

FORGETFUL, TRAITS = {forgetful}, {traits}

class Third:
    name = "third"

    def __init__(self, settings, state):
        self.local = LocalProvider(settings, state)
        self.traits = dataclasses.replace(self.local.traits, **TRAITS)

    def offers(self, query):
        return [dataclasses.replace(offer, provider=self.name) for offer in self.local.offers(query)]

    def launch(self, request):
        if FORGETFUL:  # every call makes another machine
            request = dataclasses.replace(request, token=uuid.uuid4().hex)
        offer = dataclasses.replace(request.offer, provider="local")
        return self.ours(self.local.launch(dataclasses.replace(request, offer=offer)))

    def instances(self):
        return [self.ours(instance) for instance in self.local.instances()]

    def terminate(self, instance):
        self.local.terminate(instance)

    def notice(self, instance):
        return self.local.notice(instance)

    def ours(self, instance):
        return dataclasses.replace(instance, provider=self.name)
"""


def launched(site: Site, job: Job) -> list[int]:
    """The generation of every machine that was ever made for a job."""
    return sorted(instance.generation for instance in site.provider.instances() if instance.job == job.id)


def ready(site: Site) -> Path:
    site.root.mkdir(parents=True, exist_ok=True)
    return site.root


@pytest.mark.slow
def test_offers_are_refused(site: Site) -> None:
    """The next offer is taken, at once; a code that nobody knows is kept word for word."""
    codes = {"north": "NoCapacity", "south": "QuotaExceeded", "east": "InsufficientHostCapacity"}
    for zone, code in codes.items():
        refuse(ready(site), f"local/{zone}/*/spot", code)
    job = site.submit(site.task("count", steps=20))
    with site.up():
        site.done(job)
    rows = job.placements()
    assert [row.status for row in rows] == ["closed", "closed", "closed", "ended"]
    assert [row.request["offer"]["region"] for row in rows[:3]] == list(codes)
    assert launched(site, job) == [4]
    for generation, code in enumerate(codes.values(), 1):
        assert code in site.event(job, "refused", generation).text
    assert (job.row.state or {})["moves"] == 0
    site.audit(lost_at_most=0)


@pytest.mark.slow
def test_a_launch_that_fails_after_creating(site: Site) -> None:
    """500 after the machine was made: it is found or asked for again by its token, and never made twice."""
    with site.up():
        for hidden in (0.0, 3.0):
            fail_after_create(ready(site), 1)
            if hidden:
                hide_for(site.root, hidden)
            job = site.submit(site.task(f"hidden-{hidden:.0f}", steps=60, pause=0.03))
            site.done(job)
            assert launched(site, job) == [1]
            assert "Ambiguous" in site.event(job, "refused").text
    site.audit(lost_at_most=0)


@contextmanager
def third_party(folder: Path, monkeypatch: pytest.MonkeyPatch, *, forgetful: bool, **traits: Any) -> Iterator[Site]:
    """An installation with a third party's provider, found as any installed one is."""
    place = folder / "site-packages"
    package, info = place / "broker_third", place / "third-1.0.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    text = THIRD_PARTY.replace("{forgetful}", str(forgetful)).replace("{traits}", repr(traits))
    (package / "__init__.py").write_text(text)
    (package / "guest.py").write_text(Path(broker_local.guest.__file__).read_text())
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[broker.providers]\nthird = broker_third:Third\n")
    monkeypatch.syspath_prepend(place)
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    site = Site(folder, providers={"third": {"root": str(folder / "state/local")}})
    yield site
    site.close()


def third_task(site: Site, **changes: Any) -> Task:
    resources = replace(site.task("x").resources[0], infra=("third",))
    return site.task("count", resources=(resources,), **changes)


@pytest.mark.slow
def test_a_launch_without_a_token_that_fails_after_creating(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list shows the machine too late: the placement is given up, the job goes on under a new one, and the late
    arrival ends, by the sweeper's hand or by its own once it reads that it does not stand."""
    with third_party(tmp_path, monkeypatch, forgetful=True, token=False, list_lag=0.5) as site:
        fail_after_create(ready(site), 1)
        hide_for(site.root, 6.0)
        job = site.submit(third_task(site, steps=250, pause=0.03))
        with site.up():
            wait_for(lambda: launched(site, job), "the late one to be listed", 30)
            clear(site.root)
            assert "may still start" in site.event(job, "warning", 1).text
            wait_for(lambda: job.refresh().done, "the end", 60, lambda: site.story(job))
        assert site.broker("tick").wait(60) == 0
        wait_for(lambda: not site.machines(), "the late one to be gone", 20)
        assert [row.status for row in job.placements()] == ["closed", "ended"]
        assert launched(site, job) == [1, 2], "more than one machine for one placement"
        assert [line["generation"] for line in site.of("count", "start")] == [2]
        first, second = (row.request["offer"]["region"] for row in job.placements())
        assert first != second, "the offer that failed was taken again at once"
        site.audit(lost_at_most=0)


@pytest.mark.slow
def test_a_broker_that_was_away_longer_than_a_boot_may_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has not heard yet is not silent: a machine that has long been running is not ended for a failed boot."""
    with third_party(tmp_path, monkeypatch, forgetful=False, boot_limit=8.0) as site:
        job = site.submit(third_task(site, steps=450, pause=0.03))
        with site.up():
            site.event(job, "snapshot", 1)
        launched_at = job.placements()[0].launched_at
        assert launched_at is not None
        wait_for(lambda: time.time() > launched_at + 9.0, "the boot limit to pass")
        with site.up():
            site.done(job)
        assert len(job.placements()) == 1, site.story(job)
        site.audit(lost_at_most=0)


@pytest.mark.slow
def test_a_list_that_fails_for_a_while(site: Site) -> None:
    """Unknown is not gone: a healthy job does not notice (case 30)."""
    job = site.submit(site.task("count", steps=350, pause=0.03))
    with site.up():
        site.event(job, "snapshot", 1)
        fail_calls(site.root, "instances", "ProviderUnavailable", times=10_000)
        began = time.monotonic()
        wait_for(lambda: time.monotonic() - began > 8, "a while")
        clear(site.root)
        site.done(job)
    assert len(job.placements()) == 1
    assert (job.row.state or {})["moves"] == 0
    site.audit(lost_at_most=0)


@pytest.mark.slow
def test_the_sweeper_ends_what_no_job_owns(site: Site) -> None:
    """Machines of an unknown job and of an ended one go within one round; another installation's are not touched."""
    ended = site.submit(site.task("ended", run="true", checkpoint=None, spot="never"))
    with site.up():
        site.done(ended)
    mine, other = site.store.installation(), "another"
    made = {
        name: launch(site, *tags).id
        for name, tags in {
            "unknown": (mine, "ghost-1", 1),
            "ended": (mine, ended.id, 7),
            "other": (other, "ghost-1", 1),
        }.items()
    }
    wait_for(lambda: sum(m.state is State.RUNNING for m in site.machines()) == 3, "three machines")
    tick = site.broker("tick")
    assert tick.wait(60) == 0
    wait_for(lambda: len(site.machines()) == 1, "the orphans to be gone", 20)
    assert [machine.id for machine in site.machines()] == [made["other"]]
    assert site.store.events("ghost-1", kinds=["swept"])
    assert site.event(ended, "swept").generation == 7


@pytest.mark.slow
def test_a_background_broker_stays_for_what_may_turn_up(site: Site) -> None:
    """A job's machine whose launch was never answered may be listed after the job's end; somebody must end it then."""
    job = site.submit(site.task("ended", run="true", checkpoint=None, spot="never"))
    with site.up():
        site.done(job)
    site.store.update_placement(job.id, 1, status="closed", cause="unclear", ended_at=time.time())
    broker = site.broker("up", "--until-idle")
    with pytest.raises(subprocess.TimeoutExpired):
        broker.wait(12)
    site.store.update_placement(job.id, 1, ended_at=time.time() - STRAY - 1)
    assert broker.wait(30) == 0


def launch(site: Site, installation: str, job: str, generation: int) -> object:
    """A machine with these tags that does nothing for five minutes."""
    now = time.time()
    return site.provider.launch(
        LaunchRequest(
            job=job,
            generation=generation,
            offer=site.provider.offers(OfferQuery())[0],
            token=f"{installation}-{job}-{generation}",
            tags={TAG_INSTALLATION: installation, TAG_JOB: job, TAG_GENERATION: str(generation)},
            user_data="#!/bin/sh\nexec sleep 300\n",
            disk=20.0,
            end_by=now + 300,
            frozen_at=now,
        )
    )
