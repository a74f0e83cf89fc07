"""How a program's end is read, and that nothing of it outlives its placement; through the whole broker."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from crash.harness import Site, marked, wait_for

from broker.home import JobKeys
from broker.job import Job
from broker_local.cloud import delete_by_hand, take_back

HERE = Path(__file__).parent

# Fails at once where it resumes from the very checkpoint that it first resumed from; with ALWAYS from any.
POISONED = f"""
if [ "$BROKER_RESUMED" = 1 ]; then
    sum=$(cksum <"$BROKER_CHECKPOINT_DIR/state.json")
    [ -e "$FOLDER/poison" ] || echo "$sum" >"$FOLDER/poison"
    echo "$sum" >>"$FOLDER/tried"
    if [ -n "$ALWAYS" ] || [ "$sum" = "$(cat "$FOLDER/poison")" ]; then exit 3; fi
fi
exec {sys.executable} counter.py
"""

# All steps are done, and SIGTERM comes before the outputs are written; resumed, it has only those left to write.
FINISHING = """
import os, pathlib, signal, sys, time
from broker.guest import progress
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
state = pathlib.Path(os.environ["BROKER_CHECKPOINT_DIR"], "state.json")
resumed = state.exists()
if not resumed:
    state.write_text('{"step": 10}')
progress(10, 10)
while not resumed:
    time.sleep(0.1)
pathlib.Path("out").mkdir()
pathlib.Path("out/total.txt").write_text("55")
"""


@pytest.mark.slow
def test_nothing_outlives_its_placement(tmp_path: Path) -> None:
    """A daemon in a session and without an environment of its own, that heeds no signal, dies with its placement."""
    site = Site(tmp_path, limits={"grace": 2.0})
    (site.work / "escape.py").write_text((HERE / "escape.py").read_text())
    ways = {"notice": ("aws", 3.0), "sigterm": ("runpod", 3.0), "kill": ("vast", None), "stop": None}
    jobs = {how: site.submit(site.task(how, run=f"exec {sys.executable} escape.py", max_moves=2)) for how in ways}
    ends_at = {}
    with site.up():
        for how, job in jobs.items():
            machine = site.machine(job, 1)
            wait_for(lambda how=how: site.of(how, "daemon", 1), "the daemon")
            if ways[how] is not None:
                notice, seconds = ways[how]
                asked = time.time()
                word = take_back(site.root, machine.id, notice, seconds=seconds)
                ends_at[how] = word.ends_at if word and word.ends_at else asked + (seconds or 1.0)
        for how, end in ends_at.items():
            tell = lambda job=jobs[how]: site.story(job)  # noqa: E731
            wait_for(lambda how=how: site.of(how, "daemon", 2), "the next one's daemon", 60, tell)
            last = max(line["at"] for line in site.trace(how) if line["generation"] == 1)
            assert last <= end + 0.2
            assert last < min(line["at"] for line in site.trace(how) if line["generation"] == 2)
        for how, job in jobs.items():
            job.stop(now=how == "kill")
        for job in jobs.values():
            site.done(job)
            assert (job.status, job.exit_code) == ("stopped", 103), site.story(job)
    assert not marked(site.root)
    for how in jobs:
        assert not grows(site.folder / f"{how}.trace")
    site.close()


def grows(file: Path) -> bool:
    """Does anything write to that file within ten of its writes' time?"""
    size, until = file.stat().st_size, time.monotonic() + 0.2
    wait_for(lambda: file.stat().st_size > size or time.monotonic() > until, "a moment")
    return file.stat().st_size > size


@pytest.mark.slow
def test_what_is_no_preemption_moves_nothing(site: Site) -> None:
    """A program that fails, or that somebody kills, or the kernel for memory; a machine that its owner ends."""
    fails = site.submit(site.task("fails", run="echo no; exit 1"))
    killed, ended = (site.submit(site.task(name, steps=10_000)) for name in ("killed", "ended"))
    with site.up():
        site.event(killed, "snapshot", 1)
        os.kill(site.of("killed", "start")[0]["pid"], signal.SIGKILL)
        site.event(ended, "snapshot", 1)
        delete_by_hand(site.root, site.machine(ended, 1).id)
        for job in site.jobs:
            site.done(job)
    assert [(job.status, job.exit_code) for job in site.jobs] == [("failed", 100), ("failed", 100), ("stopped", 103)]
    assert "exit 1" in fails.message
    assert "137" in killed.message
    assert "killed" in killed.message
    assert "by hand" in ended.message
    assert [len(job.placements()) for job in site.jobs] == [1, 1, 1]


@pytest.mark.slow
def test_taken_back_between_the_last_step_and_the_outputs(site: Site) -> None:
    """Its progress had reached the total, yet it was cut off: it moves, and its outputs are there in the end."""
    (site.work / "finishing.py").write_text(FINISHING)
    job = site.submit(site.task("finishing", run=f"exec {sys.executable} finishing.py"))
    with site.up():
        site.event(job, "snapshot", 1)
        take_back(site.root, site.machine(job, 1).id, "aws", seconds=4.0)
        site.done(job)
    assert job.status == "succeeded", site.story(job)
    assert len(job.placements()) == 2
    assert [path.read_text() for path in job.pull(site.folder / "pulled")] == ["55"]


@pytest.mark.slow
def test_preempted_during_setup(site: Site) -> None:
    """Setup runs again on the next machine; it counts as a move and as no restart."""
    setup = 'echo "$BROKER_GENERATION" >>"$FOLDER/$BROKER_JOB"; while [ ! -e "$FOLDER/go" ]; do sleep 0.1; done'
    for notice in ("aws", "vast"):
        task = site.task(notice, steps=30, setup=setup)
        site.submit(replace(task, envs={**task.envs, "FOLDER": str(site.folder)}))
    with site.up():
        for job in site.jobs:
            site.event(job, "setup", 1)
            seconds = 3.0 if job.name == "aws" else None
            take_back(site.root, site.machine(job, 1).id, job.name, seconds=seconds)
        for job in site.jobs:
            site.event(job, "setup", 2)
        (site.folder / "go").touch()
        for job in site.jobs:
            site.done(job)
    for job in site.jobs:
        assert (site.folder / job.id).read_text().split() == ["1", "2"]
        assert [line["generation"] for line in site.of(job.name, "start")] == [2]
        state = job.row.state or {}
        assert (state["moves"], state["restarts"]) == (1, 0)
    site.audit(lost_at_most=0)


@pytest.mark.slow
def test_a_resume_that_fails_at_once(site: Site) -> None:
    """The same snapshot once more, then the one before it; then the failure is the program's."""
    for name in ("newest", "every"):
        task = site.task(name, run=POISONED, steps=200, pause=0.03)
        envs = {"FOLDER": str(site.folder / f"of-{name}"), "ALWAYS": "1" if name == "every" else ""}
        (site.folder / f"of-{name}").mkdir()
        site.submit(replace(task, envs={**task.envs, **envs}))
    every = site.jobs[1]
    with site.up():
        for job in site.jobs:
            wait_for(lambda job=job: job.placements() and snapshots(site, job) >= 3, "three snapshots")
            take_back(site.root, site.machine(job, 1).id, "vast")
        for job in site.jobs:
            site.done(job)
    for job in site.jobs:
        tried = (site.folder / f"of-{job.name}" / "tried").read_text().splitlines()
        assert tried[0] == tried[1] != tried[2]
        assert len(tried) == 3
        assert len(job.placements()) == 2
    assert (every.status, every.exit_code) == ("failed", 100)
    assert "exit 3" in every.message
    assert "the snapshot before it" in every.message
    site.jobs.remove(every)
    site.audit(lost_at_most=100)


def snapshots(site: Site, job: Job) -> int:
    return len(job.home.list(JobKeys(job.id).manifests(1)))


@pytest.mark.slow
def test_a_machine_that_fails(site: Site) -> None:
    """Its host dies under it, which nobody says: the job moves."""
    job = site.submit(site.task("count", steps=150, pause=0.03))
    with site.up():
        site.event(job, "snapshot", 1)
        machine = site.machine(job, 1)
        os.kill(site.supervisor(machine), signal.SIGKILL)
        site.done(job)
    first, second = job.placements()
    assert first.cause == "failed"
    assert second.cause in ("self", "broker"), "whoever was quicker, once the result was there"
    site.audit(lost_at_most=60)


@pytest.mark.slow
def test_a_machine_outlives_its_broker_no_longer_than_end_by(site: Site) -> None:
    """With the broker dead, the guest's own clock saves and ends the machine; the next broker goes on elsewhere."""
    job = site.submit(site.task("count", steps=240, pause=0.04, max_hours=7 / 3600))
    with site.up():
        site.event(job, "snapshot", 1)
    assert site.machines(), "the machine is to outlive its broker"
    wait_for(lambda: not site.machines(), "the machine to end by itself", 30)
    row = job.placements()[0]
    assert row.launched_at is not None
    lived = site.provider.instances()[0].ended_at - row.launched_at
    assert lived <= 7 + 1.0
    last = site.of("count", "saved", 1)[-1]["step"]
    with site.up():
        site.done(job, timeout=90)
    assert site.of("count", "start", 2)[0]["step"] == last, "the end's snapshot is not what the next one started from"
    assert len(job.placements()) >= 2
    site.audit(lost_at_most=0)
