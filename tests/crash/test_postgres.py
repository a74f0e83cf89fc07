"""Several brokers on one PostgreSQL: killed at random, each other's jobs are taken over and none is driven twice."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import psycopg
import pytest
from clouds.postgres import Postgres
from crash.harness import Site, kill, wait_for

KILLS = int(os.environ.get("SPOTBROKER_KILLS", "10"))
EVERY = 10

# `broker up` is one per installation; this is another live broker, as `broker run` is one.
BROKER = """
import threading
from broker.config import load
from broker.engine import running
with running(load()):
    threading.Event().wait()
"""


@pytest.mark.slow
@pytest.mark.timeout(90 + 12 * KILLS)
def test_two_brokers_killed_at_random(tmp_path: Path, postgres: Postgres) -> None:
    seed = int(os.environ.get("SPOTBROKER_SEED", random.randrange(10**6)))
    print(f"seed {seed}")
    chance = random.Random(seed)
    site = Site(tmp_path, database=postgres.new_database())
    drivers: set[str] = set()

    def started(number: int) -> subprocess.Popen[bytes]:
        return site.broker("up") if number == 0 else site.python("-c", BROKER)

    def driven() -> bool:
        """Has every job that goes on a driver? Notes who drives."""
        with psycopg.connect(site.database) as connection:
            found = connection.execute("SELECT executor_id FROM dbos.workflow_status WHERE executor_id IS NOT NULL")
            drivers.update(executor for (executor,) in found)
        return all(row.done or row.claimed_by for row in site.store.jobs())

    brokers = [started(0), started(1)]
    wait_for(lambda: "broker up" in site.log.read_text(), "the broker")  # DBOS has made its tables
    for number in range(KILLS):
        while sum(not job.refresh().done for job in site.jobs) < 3:
            site.submit(site.task(f"count{len(site.jobs)}", steps=150, every=EVERY, pause=0.03))
        wait_for(driven, "every job's driver", tell=site.stories)
        victim = number % 2
        try:
            brokers[victim].wait(timeout=chance.uniform(0.5, 4.0))
        except subprocess.TimeoutExpired:
            if chance.random() < 0.5:
                site.take_one_back(chance)
        kill(brokers[victim])
        brokers[victim] = started(victim)
    kill(brokers[1])
    wait_for(lambda: all(job.refresh().done for job in site.jobs), "all jobs", 120, site.stories)
    driven()
    kill(brokers[0])
    site.audit(lost_at_most=6 * EVERY)
    assert len(drivers) > 1, "one broker did everything"
    site.close()
