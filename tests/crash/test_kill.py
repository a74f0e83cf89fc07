"""`kill -9` of the broker, at random and in each phase: the job goes on, one program, nothing left.

SPOTBROKER_KILLS sets how many random kills; 30 where it is not set.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from crash.harness import Site, kill, wait_for

from broker.job import Job
from broker_local.cloud import take_back

KILLS = int(os.environ.get("SPOTBROKER_KILLS", "30"))
EVERY = 10
# A save each 0.3 s is less than a scan and an upload take, so a take-back without notice may cost a few saves.
LOST = 6 * EVERY


@pytest.mark.slow
@pytest.mark.timeout(60 + 12 * KILLS)
def test_killed_at_random(tmp_path: Path) -> None:
    """Kills fall anywhere, a fifth of them in the start; machines are taken back meanwhile, with and without notice."""
    seed = int(os.environ.get("SPOTBROKER_SEED", random.randrange(10**6)))
    print(f"seed {seed}")
    chance = random.Random(seed)
    site = Site(tmp_path)
    for number in range(KILLS):
        while sum(not job.refresh().done for job in site.jobs) < 3:
            site.submit(site.task(f"count{len(site.jobs)}", steps=150, every=EVERY, pause=0.03))
        process = site.broker("up")
        if chance.random() < 0.8:
            wait_for((site.config.state / "up.lock").exists, "the broker")
        live(process, chance.uniform(0.0, 3.0))
        if number % 2:
            with contextlib.suppress(AssertionError):  # every job may be between two machines for a while
                wait_for(lambda: site.take_one_back(chance), "a machine to take back", 5.0)
            live(process, chance.uniform(0.0, 1.5))
        kill(process)
    site.settle(timeout=180)
    site.audit(lost_at_most=LOST)
    kinds = [event.kind for job in site.jobs for event in job.events()]
    assert kinds.count("preempted") + kinds.count("notice") >= KILLS // 10, "hardly any move was tried"


def live(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Let a broker live that long."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=seconds)


PHASES = ("", "pick", "launch", "watch", "retire", "account", "done")
# What has happened once a phase of a move is over: event and generation.
OVER = {"pick": ("picked", 2), "launch": ("launched", 2), "watch": ("confirmed", 1), "retire": ("confirmed", 1)}


@pytest.mark.slow
def test_killed_in_each_phase(site: Site) -> None:
    """Killed as soon as the job stands in that phase; the next broker goes on, and is killed in the one after it."""
    job = site.submit(site.task("count", steps=60, every=EVERY, pause=0.03))
    for number, phase in enumerate(PHASES[1:-1], 1):
        process = site.broker("up")
        wait_for(lambda n=number: PHASES.index(site.phase(job)) >= n, phase, tell=lambda: site.story(job))
        kill(process)
    site.settle()
    assert len([row for row in job.placements() if row.instance]) == 1, site.story(job)
    site.audit(lost_at_most=0)


@pytest.mark.slow
def test_killed_in_each_phase_of_a_handover(site: Site) -> None:
    """Of one job after the other: what the kill leaves half done the next broker finishes, beside the other jobs."""
    hold = site.folder / "hold"
    hold.touch()
    for phase in OVER:
        task = site.task(phase, steps=100, every=EVERY, pause=0.03)
        site.submit(replace(task, envs={**task.envs, "HOLD": str(hold)}))
    for number, (job, phase) in enumerate(zip(site.jobs, OVER, strict=True)):
        process = site.broker("up")
        if number:
            site.event(site.jobs[number - 1], "running", 2)
        site.event(job, "snapshot")
        take_back(site.root, site.machine(job, 1).id, "aws", seconds=3.0)
        wait_for(lambda j=job, p=phase: moving(site, j, p), f"{phase} of the move", tell=lambda j=job: site.story(j))
        kill(process)
    hold.unlink()
    site.settle()
    site.audit(lost_at_most=LOST)
    assert all(len([row for row in job.placements() if row.instance]) > 1 for job in site.jobs)


def moving(site: Site, job: Job, phase: str) -> bool:
    """Does a job's move stand in that phase, or has it just gone past it?"""
    if site.phase(job) == phase and (phase != "watch" or len(job.placements()) > 1):
        return True
    kind, generation = OVER[phase]
    return any(event.generation == generation for event in site.store.events(job.id, kinds=[kind]))
