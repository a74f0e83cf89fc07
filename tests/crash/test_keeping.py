"""A machine that is kept for a look: told at once, ended by its guest alone, and never out of the ledger."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from crash.harness import Site, marked, wait_for

from broker.cli.moving import _moved
from broker.cli.screen import Screen
from broker.errors import ConfigError, JobFailed
from broker.home import JobKeys
from broker.job import Job
from broker.keeping import Keep
from broker.provider import Cause, State
from broker.shell import way_in
from broker_local.cloud import take_back


def failing(site: Site, name: str, keep: Keep) -> Job:
    """A job whose program fails."""
    run = 'echo "of $BROKER_JOB" >left; exit 3'
    return site.submit(site.task(name, run=run, keep_on_failure=keep, checkpoint=None, spot="never"))


def kept(site: Site, job: Job) -> Job:
    """The job, once it is known that it has failed, with its machine kept."""
    wait_for(lambda: job.refresh().row.kept, f"{job.name} to be kept", 60, lambda: site.story(job))
    return job


def looked_into(job: Job, *command: str) -> str:
    """What a command prints that a person runs on its machine."""
    done = subprocess.run(
        way_in(job, command).argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_kept_machine_is_told_looked_at_and_gone(tmp_path: Path) -> None:
    site = Site(tmp_path)
    with site.up():
        looked, taken = (failing(site, name, Keep(600.0)) for name in ("looked", "taken"))
        # A machine may write what it likes beside its beats: nobody is heard the less.
        looked.home.put(f"{JobKeys(looked.id).beats}/x/y", b"{}")
        kept(site, looked)
        # Its end is known at once, with what is rented still and for how much.
        assert looked.wait(1.0).exit_code == 100
        with pytest.raises(
            JobFailed, match=r"failed: exit 3; the machine is kept until \d\d:\d\d, at 0.0\d+ USD/h"
        ) as told:
            looked.check()
        assert told.value.fix == f"broker ssh {looked.id} looks at it, broker stop {looked.id} ends it now"
        assert looked_into(looked, "cat", "left") == f"of {looked.id}\n"
        with pytest.raises(ConfigError, match="is still kept"):
            looked.resume()
        assert _moved(Screen(), looked, looked.placements()[0]) is None, "who waits for its move waits no longer"
        # Its user ends it.
        looked.stop()
        assert not looked.refresh().row.decided, "who waits now waits for the machine's end"
        site.done(looked)
        assert (looked.status, looked.message) == ("failed", "failed: exit 3")
        with pytest.raises(ConfigError, match="its machine is gone"):
            way_in(looked)

        take_back(site.root, site.machine(kept(site, taken), 1).id, "vast")
        site.done(taken)
        assert (taken.status, len(taken.placements())) == ("failed", 1)
        # Money ends it where time would not: at this price, after a few seconds.
        alone = kept(site, failing(site, "alone", Keep(600.0, max_usd=4.0 * 0.032 / 3600)))
        machine = site.machine(alone, 1)
    # The broker was killed. The guest ends the machine, and the job still has it.
    listed = wait_for(
        lambda: next(
            (x for x in site.provider.instances() if x.id == machine.id and x.state is State.TERMINATED), None
        ),
        "the machine's own end",
    )
    assert listed.cause is Cause.SELF
    assert 3.0 < listed.ended_at - alone.row.state["retiring"][0]["since"] < 9.0
    assert alone.refresh().row.kept
    # Whatever broker comes next proves that it is gone, and counts what it cost.
    assert site.broker("tick").wait(60) == 0
    site.done(alone, 5.0)
    (row,) = alone.placements()
    assert (alone.exit_code, row.confirmed, row.ended_at) == (100, True, listed.ended_at)
    assert row.cost(time.time()) < 0.0005
    assert not marked(site.root)
    site.close()
