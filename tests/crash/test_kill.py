"""`kill -9` of the broker, at random and in each phase: the job goes on, one program, nothing left.

SPOTBROKER_KILLS sets how many random kills; 30 where it is not set.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
from pathlib import Path

import pytest
from crash.harness import Site, kill, wait_for

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


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["pick", "launch", "watch", "retire", "account"])
@pytest.mark.parametrize("moved", [False, True], ids=["first", "handover"])
def test_killed_in_each_phase(tmp_path: Path, phase: str, moved: bool) -> None:
    """Killed as soon as the job stands in that phase, in its first placement or in its handover."""
    if phase == "account" and moved:
        pytest.skip("account comes once, after the last placement")
    site = Site(tmp_path)
    job = site.submit(site.task("count", steps=200 if moved else 100, every=EVERY, pause=0.03))
    process = site.broker("up")
    if moved:
        wait_for(lambda: any(event.kind == "snapshot" for event in job.events()), "a first snapshot")
        take_back(site.root, site.machine(job, 1).id, "aws", seconds=3.0)
        wait_for(lambda: len(job.placements()) > 1 or site.phase(job) == phase, "the move to begin")
    if phase != "pick" or moved:
        wait_for(lambda: site.phase(job) == phase or job.refresh().done, f"phase {phase}")
    kill(process)
    site.settle()
    site.audit(lost_at_most=LOST)
