"""A broker that is told to end, politely, leaves its jobs running; the next one continues them."""

from __future__ import annotations

import signal
import sqlite3
from pathlib import Path

from crash.harness import Site, wait_for

from broker.job import Job
from broker_local.cloud import take_back

LOST = 60


def saved(job: Job, generation: int) -> bool:
    return any(event.kind == "snapshot" and event.generation == generation for event in job.events())


def test_a_broker_told_to_end_leaves_its_jobs_to_the_next(tmp_path: Path) -> None:
    site = Site(tmp_path)
    job = site.submit(site.task("count", steps=200, pause=0.03))
    for number in range(2):
        process = site.broker("up")
        wait_for(
            lambda n=number + 1: any(e.kind == "snapshot" and e.generation == n for e in job.events()), "a snapshot"
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
        assert not job.refresh().done
        take_back(site.root, site.machines()[0].id, "vast")
    site.settle()
    site.audit(lost_at_most=LOST)
    assert len(job.placements()) == 3


def test_a_workflow_that_ended_before_its_job_is_followed_by_another(tmp_path: Path) -> None:
    """Whatever fault ends a workflow, its machine has an owner again at the next broker's first look."""
    site = Site(tmp_path)
    job = site.submit(site.task("count", steps=200, pause=0.03))
    with site.up():
        wait_for(lambda: saved(job, 1), "a snapshot")
    with sqlite3.connect(site.config.state / "engine.db") as database:
        database.execute("UPDATE workflow_status SET status = 'ERROR', error = NULL")
    site.settle()
    site.audit(lost_at_most=LOST)
    assert len(job.placements()) == 1
    assert any("its workflow ended as ERROR" in event.text for event in job.events())


def test_a_store_that_takes_no_writes_for_a_while_ends_no_workflow(tmp_path: Path) -> None:
    """The phase fails, and so does writing that down; both are tried again by the broker that lives."""
    site = Site(tmp_path)
    job = site.submit(site.task("count", steps=60, pause=0.03))
    full = "BEGIN SELECT RAISE(FAIL, 'database or disk is full'); END"
    with sqlite3.connect(site.config.state / "jobs.db") as database:
        for table in ("events", "placements"):
            database.execute(f"CREATE TRIGGER full_{table} BEFORE INSERT ON spotbroker_{table} {full}")
    with site.up():
        wait_for(lambda: "nor could that be written down" in site.log.read_text(), "a failed phase", tell=site.stories)
        with sqlite3.connect(site.config.state / "jobs.db") as database:
            for table in ("events", "placements"):
                database.execute(f"DROP TRIGGER full_{table}")
        site.done(job)
    site.audit(lost_at_most=LOST)
    assert not any("its workflow ended" in event.text for event in job.events())


def test_a_workflow_whose_end_cannot_even_be_recorded_is_taken_up_again_by_its_broker(tmp_path: Path) -> None:
    """The engine's database takes no writes for a while: a job that broke off then would be nobody's."""
    site = Site(tmp_path)
    job = site.submit(site.task("count", steps=200, pause=0.03))
    tables = {"operation_outputs": "INSERT", "workflow_status": "UPDATE"}
    full = "BEGIN SELECT RAISE(FAIL, 'database or disk is full'); END"
    with site.up():
        wait_for(lambda: saved(job, 1), "a snapshot")
        with sqlite3.connect(site.config.state / "engine.db") as database:
            for table, what in tables.items():
                database.execute(f"CREATE TRIGGER full_{table} BEFORE {what} ON {table} {full}")
        take_back(site.root, site.machines()[0].id, "vast")
        wait_for(lambda: "UPDATE main.workflow_status" in site.log.read_text(), "a failed record")
        with sqlite3.connect(site.config.state / "engine.db") as database:
            for table in tables:
                database.execute(f"DROP TRIGGER full_{table}")
        site.done(job)
    site.audit(lost_at_most=LOST)
    assert warned(job, "its workflow broke off")


HOLDS = """
import sys
from broker.config import load
from broker.engine import running
from broker.job import get

job = get(sys.argv[1])
with running(load(), adopts=False) as engine:
    engine.world.store.claim(job.id, engine.executor_id)
    job.wait(timeout=50)
"""


def test_a_job_that_its_broker_holds_and_could_not_start_is_started_by_it(tmp_path: Path) -> None:
    site = Site(tmp_path)
    job = site.submit(site.task("count", steps=20, pause=0.03))
    assert site.python("-c", HOLDS, job.id).wait(timeout=60) == 0, site.log.read_text()
    site.audit(lost_at_most=LOST)


def warned(job: Job, words: str) -> bool:
    return any(event.kind == "warning" and words in event.text for event in job.events())


def test_a_home_that_was_moved_away_does_not_come_back_empty(tmp_path: Path) -> None:
    """Nothing is rented for a job whose home is gone, and it goes on from its snapshots once the home is back."""
    site = Site(tmp_path)
    job = site.submit(site.task("count", steps=300, pause=0.03))
    home = site.config.state / "home"
    away = tmp_path / "away"
    with site.up():
        wait_for(lambda: saved(job, 1), "a snapshot")
        home.rename(away)
        take_back(site.root, site.machines()[0].id, "vast")
        wait_for(lambda: warned(job, f"the home {job.row.home} is not there; nothing is concluded"), "words")
        wait_for(lambda: not site.machines(), "the machine to be gone")
        assert not home.exists()
        assert len(job.placements()) == 1
        away.rename(home)
        site.event(job, "running", 2)
    site.settle()
    site.audit(lost_at_most=LOST)


def test_nothing_is_rented_where_the_home_has_lost_its_objects(tmp_path: Path) -> None:
    site = Site(tmp_path)
    job = site.submit(site.task("count", steps=300, pause=0.03))
    home = site.config.state / "home"
    with site.up():
        wait_for(lambda: saved(job, 1), "a snapshot")
        home.rename(tmp_path / "away")
        home.mkdir()
        take_back(site.root, site.machines()[0].id, "vast")
        wait_for(lambda: warned(job, f"has lost jobs/{job.id}/spec"), "words")
        assert len(job.placements()) == 1
        job.stop()
        site.done(job)
    assert job.status == "stopped"
    assert len(job.placements()) == 1
