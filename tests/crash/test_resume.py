"""A job that was stopped, or has failed, is taken up again from its newest snapshot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from crash.harness import Site, wait_for

from broker import engine
from broker.errors import ConfigError, JobUnfinished


def saved(job: object) -> bool:
    return any(event.kind == "snapshot" for event in job.events())  # type: ignore[attr-defined]


def test_a_stopped_job_goes_on_where_it_was(site: Site, tmp_path: Path) -> None:
    job = site.submit(replace(site.task("count", steps=120, pause=0.05), secrets={"API_KEY": "given once"}))
    with engine.running(site.config) as live:
        with pytest.raises(JobUnfinished, match="no snapshot"):
            job.pull(tmp_path / "none", checkpoint=True)
        live.drive(job.id)
        wait_for(lambda: saved(job), "a snapshot")
        with pytest.raises(ConfigError, match="nothing to take up again"):
            job.resume({"API_KEY": "x"})
        job.stop()
        wait_for(lambda: job.refresh().done, "the stop")
        assert job.status == "stopped"
        (state,) = job.pull(tmp_path / "snapshot", checkpoint=True)
        assert state == tmp_path / "snapshot" / "state.json"
        with pytest.raises(ConfigError, match="API_KEY is nowhere"):
            job.resume()
        job.resume({"API_KEY": "given again"})
        live.drive(job.id)
        wait_for(lambda: job.refresh().done, "the end", 60)
    site.audit(lost_at_most=0)
    starts = [line["step"] for line in site.trace("count") if line["kind"] == "start"]
    assert starts[0] == 0 < starts[1]
    assert [row.generation for row in job.placements()] == [1, 2]
    with pytest.raises(ConfigError, match="has succeeded"):
        job.resume({"API_KEY": "x"})


def test_a_job_taken_up_again_while_no_broker_lives_is_driven_by_the_next(site: Site) -> None:
    job = site.submit(site.task("count", steps=120, pause=0.05))
    with site.up():
        wait_for(lambda: saved(job), "a snapshot")
        job.stop()
        wait_for(lambda: job.refresh().done, "the stop")
    job.resume()
    site.settle()
    site.audit(lost_at_most=0)
