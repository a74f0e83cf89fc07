"""Stopping a job: with a broker, without one, and in the middle of a launch."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from crash.harness import Site, saved, wait_for

from broker.errors import JobStopped
from broker_local.cloud import clear, fail_after_create, hide_for


@pytest.mark.slow
def test_stop_saves_and_ends_and_stop_now_does_not_wait(site: Site) -> None:
    saves, at_once = (site.task(name, steps=10_000) for name in ("saves", "at-once"))
    job = site.submit(saves)
    stubborn = site.submit(replace(at_once, envs={**at_once.envs, "STUBBORN": "1"}))
    with site.up():
        site.event(job, "snapshot", 1)
        job.stop()
        site.done(job)
        site.event(stubborn, "snapshot", 1)
        asked = time.monotonic()
        stubborn.stop(now=True)
        site.done(stubborn)
        assert time.monotonic() - asked < 8
    assert (job.status, job.exit_code) == ("stopped", 103)
    assert saved(job.home, job, 1)[1] == site.of("saves", "saved", 1)[0]["step"]
    with pytest.raises(JobStopped):
        job.check()
    assert stubborn.exit_code == 103
    assert not site.machines()


@pytest.mark.slow
def test_a_stop_without_a_broker_is_carried_out_by_the_next(site: Site) -> None:
    job = site.submit(site.task("count", steps=3000))
    with site.up():
        site.event(job, "snapshot", 1)
    job.stop()
    assert site.machines()
    with site.up():
        site.done(job)
    assert (job.status, job.exit_code) == ("stopped", 103)
    assert saved(job.home, job, 1)[1] == site.of("count", "saved", 1)[0]["step"]


def test_a_stop_before_the_start_rents_nothing(site: Site) -> None:
    job = site.submit(site.task("count"))
    job.stop()
    with site.up():
        site.done(job)
    assert job.exit_code == 103
    assert not site.provider.instances()


@pytest.mark.slow
@pytest.mark.parametrize("now", [False, True], ids=["stop", "stop-now"])
def test_a_stop_during_launch_leaves_nothing(site: Site, now: bool) -> None:
    """The launch call has made a machine and does not say so, and the list does not show it yet."""
    site.root.mkdir(parents=True, exist_ok=True)
    fail_after_create(site.root, 1)
    hide_for(site.root, 2.0)
    job = site.submit(site.task("count", steps=1000))
    with site.up():
        site.event(job, "refused")
        job.stop(now=now)
        site.done(job)
        wait_for((site.root / "machines").exists, "the machine's traces")
    clear(site.root)
    assert job.exit_code == 103
    wait_for(lambda: not site.machines(), "the machine to be gone", 10)
    assert len(site.provider.instances()) == 1
