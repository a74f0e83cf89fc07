"""Old blobs go while the job runs, and the job can still be moved afterwards."""

from __future__ import annotations

import os
import time
from pathlib import Path
from urllib.parse import urlsplit

from crash.harness import Site, wait_for

from broker import engine
from broker_local.cloud import take_back

DAYS = 2 * 86400.0


def test_a_running_job_is_tidied_and_moves_all_the_same(site: Site) -> None:
    job = site.submit(site.task("count", steps=200, pause=0.05))
    blobs = Path(urlsplit(job.row.home).path) / "jobs" / job.id / "blobs"
    with engine.running(site.config) as live:
        live.drive(job.id)
        wait_for(lambda: sum(event.kind == "snapshot" for event in job.events()) >= 6, "six snapshots")
        for blob in blobs.iterdir():
            os.utime(blob, (time.time() - DAYS, time.time() - DAYS))
        assert live.tidy() > 0
        take_back(site.root, site.machines()[0].id, "vast")
        wait_for(lambda: job.refresh().done, "the end", 60)
    site.audit(lost_at_most=60)
    assert any(event.kind == "resumed" for event in job.events())
