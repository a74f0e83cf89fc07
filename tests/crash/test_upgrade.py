"""A job recorded by another version: an older one's goes on, a newer one's is left alone and says so."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from crash.harness import Site, kill, wait_for

from broker.engine import PHASES
from broker.errors import ConfigError
from broker.state import VERSION, Held, JobState, Outcome, Retiring

HELD = Held(
    generation=2,
    provider="local",
    instance="m-1",
    offer="local/north/north-1/cpu-2/spot",
    hourly=0.01,
    launched_at=100.0,
    boot_by=220.0,
    end_by=3700.0,
    end_why="max_hours",
    beat=1.0,
    where="local/north spot",
    simulated=True,
)
RETIRING = Retiring(
    dataclasses.replace(HELD, generation=1), why="notice", order="retire", since=90.0, blocking=True, terminate_at=99.0
)


def parked(phase: str) -> JobState:
    return JobState(
        "job-1",
        phase=phase,
        generation=2,
        live=None if phase in ("pick", "launch", "account") else HELD,
        retiring=(RETIRING,),
        after=1,
        start_by=150.0,
        moves=1,
        launched=2,
        lost=(1, "notice"),
        outcome=Outcome("failed", 100, "failed") if phase == "account" else None,
        parents={1: None, 2: (1, 3)},
    )


def recorded(state: JobState) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(json.dumps(state.to_json()))
    return data


def without_defaults(kind: type, data: dict[str, Any]) -> dict[str, Any]:
    """The record of a version that did not know yet what has a default today."""
    needed = {entry.name for entry in dataclasses.fields(kind) if entry.default is entry.default_factory}
    return {key: value for key, value in data.items() if key in needed}


@pytest.mark.parametrize("phase", [*PHASES, "watch"])
def test_an_older_record_is_read(phase: str) -> None:
    state = parked(phase)
    assert JobState.from_json(recorded(state)) == state
    data = recorded(state)
    old = without_defaults(JobState, data) | {"phase": phase, "generation": 2}
    old["retiring"] = [
        without_defaults(Retiring, entry) | {"held": without_defaults(Held, entry["held"])}
        for entry in data["retiring"]
    ]
    if data["live"]:
        old["live"] = without_defaults(Held, data["live"])
    read = JobState.from_json(old)
    assert (read.phase, read.generation) == (phase, 2)
    assert read.retiring[0].generation == 1
    assert (read.live is None) == (state.live is None)


@pytest.mark.parametrize("place", ["state", "live", "held", "retiring", "outcome", "version"])
def test_a_newer_record_is_refused_clearly(place: str) -> None:
    data = recorded(parked("account" if place == "outcome" else "watch"))
    target = {
        "state": data,
        "live": data["live"],
        "held": data["retiring"][0]["held"],
        "retiring": data["retiring"][0],
        "outcome": data["outcome"],
        "version": data,
    }[place]
    target["version" if place == "version" else "colour"] = VERSION + 1
    with pytest.raises(ConfigError, match=r"newer spotbroker .*(colour|version 2)") as raised:
        JobState.from_json(data)
    assert "upgrade" in raised.value.fix


@pytest.mark.slow
def test_a_newer_brokers_job_is_left_alone(site: Site) -> None:
    """No crash loop, no orphan: the older broker says once what to do, drives its other jobs, and touches nothing."""
    job = site.submit(site.task("newer", steps=200, pause=0.03))
    with site.up():
        site.event(job, "snapshot", 1)
    undo = as_if_newer(site, job.id, "colour")
    told = site.submit(site.task("told", steps=20))
    site.store.update_job(told.id, task={**told.row.task, "colour": 1})
    other = site.submit(site.task("other", steps=20))
    process = site.broker("up")
    for left in (job, told):
        said = site.event(left, "warning")
        assert "newer spotbroker" in said.text
        assert "upgrade" in said.text
    site.done(other)
    assert len(job.placements()) == 1
    assert told.refresh().placements() == []
    assert not job.refresh().done
    kill(process)
    undo()
    site.store.update_job(told.id, task={name: value for name, value in told.row.task.items() if name != "colour"})
    with site.up():
        site.done(job)
        site.done(told)
    site.audit(lost_at_most=0)


def as_if_newer(site: Site, job: str, name: str) -> Any:
    """Put a field that this version does not know into the newest recorded phase of a job; returns what undoes it."""
    import sqlite3

    file = site.config.state / "engine.db"
    wait_for(file.exists, "the engine's database")

    def change(old: str, new: str) -> None:
        with sqlite3.connect(file, timeout=30) as db:
            rows = db.execute(
                "SELECT rowid, output FROM operation_outputs WHERE workflow_uuid = ? ORDER BY function_id DESC LIMIT 1",
                (job,),
            ).fetchall()
            for rowid, output in rows:
                assert old in output, output
                db.execute("UPDATE operation_outputs SET output = ? WHERE rowid = ?", (output.replace(old, new), rowid))
        db.close()

    before, after = '"phase"', f'"{name}": 1, "phase"'
    change(before, after)
    return lambda: change(after, before)
