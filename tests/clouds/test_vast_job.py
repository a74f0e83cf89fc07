"""Whole jobs on Vast's stand-in: containers that really run, a real S3 home, hosts that take their cards back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clouds.machine import IMAGE, Machines
from clouds.seaweedfs import SeaweedFS
from clouds.vast.account import Contract
from clouds.vast.stage import Stage
from crash.harness import Site, wait_for

from broker.access import own
from broker.boot import user_data
from broker.home import Home, JobKeys
from broker.job import Job
from broker.provider import Kind
from broker.resources import Resources
from broker.testing.conformance import request_for

EVERY = 10  # steps between two saves
PROGRAM = """
import json, os, signal, sys, time
from broker.guest import progress
path, steps = os.path.join(os.environ["BROKER_CHECKPOINT_DIR"], "state.json"), int(os.environ["STEPS"])
step = json.load(open(path))["step"] if os.path.exists(path) else 0
while step < steps:
    step += 1
    print(json.dumps({"step": step, "at": time.time(), "generation": int(os.environ["BROKER_GENERATION"])}), flush=True)
    progress(step, steps)
    if step % 10 == 0:
        with open(path + ".new", "w") as file:
            json.dump({"step": step}, file)
        os.replace(path + ".new", path)
    time.sleep(0.05)
os.makedirs("out", exist_ok=True)
open("out/total.txt", "w").write(str(step))
"""


@pytest.fixture
def vast(machines: Machines, tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path / "adapter", machines=machines) as stage:
        stage.account.grace = 0.0  # stopped without a word
        stage.host(dph=0.40, min_bid=0.10)
        stage.host(dph=0.40, min_bid=0.20, geolocation="Oslo, NO")
        yield stage


@pytest.fixture
def site(vast: Stage, machines: Machines, seaweedfs: SeaweedFS, tmp_path: Path) -> Iterator[Site]:
    store = machines.reach(seaweedfs.endpoint)
    made = Site(
        tmp_path,
        home=seaweedfs.new_home(),
        home_config={**seaweedfs.mints("assume-role"), "endpoint": store, "sts_endpoint": store},
        limits={"beat": 1.0, "store_poll": 0.5},
        providers={"vast": {"api": vast.server.url, "key": vast.account.key, "pace": 0.05, "patience": 1.0}},
    )
    (made.work / "program.py").write_text(PROGRAM)
    yield made
    made.close()


def submit(site: Site, steps: int) -> Job:
    return site.submit(
        site.task(
            "count",
            run="exec python3 program.py",
            envs={"STEPS": str(steps)},
            resources=(Resources(gpu="RTX4090", gpu_count=1, infra=("vast",), image=IMAGE),),
        )
    )


def lines(site: Site, job: Job) -> list[dict[str, Any]]:
    keys, home = JobKeys(job.id), Home(own(site.config, site.config.home))
    text = b"".join(
        home.get(entry.key)
        for row in job.placements()
        for entry in sorted(home.list(keys.logs(row.generation)), key=lambda entry: entry.key)
    )
    return [json.loads(line) for line in text.splitlines() if line.startswith(b'{"step"')]


def teller(site: Site, job: Job, vast: Stage) -> Callable[[], str]:
    def tell() -> str:
        made = [*vast.account.contracts.values(), *vast.account.past]
        return f"{site.story(job)}\n{[c.machine.log()[-2000:] for c in made if c.machine is not None]}"

    return tell


def holder(vast: Stage, generation: int) -> Contract | None:
    """The contract of a generation, as its label says."""
    made = [*vast.account.contracts.values(), *vast.account.past]
    return next((c for c in made if (c.label or "").endswith(f":{generation}")), None)


@pytest.mark.slow
def test_outbid_without_a_word_then_resumed_by_vast(vast: Stage, site: Site) -> None:
    """The job goes on elsewhere from its newest snapshot. Its first contract, which the broker cannot destroy, wins its
    cards back: its guest finds that the job lives elsewhere, runs nothing, and destroys the contract itself.
    """
    job = submit(site, 150)
    tell = teller(site, job, vast)
    with site.up():
        wait_for(lambda: site.store.events(job.id, kinds=["snapshot"]), "a snapshot", 90.0, tell)
        first = holder(vast, 1)
        assert first is not None
        assert first.host.geolocation == "Poland, PL", "the cheaper host"
        vast.server.lies.deaf = True
        vast.account.outbid(first)
        wait_for(lambda: (second := holder(vast, 2)) is not None and second.runs, "the replacement", 30.0, tell)
        vast.account.leave(first.host)
        assert first.runs, "Vast's own resumption"
        wait_for(lambda: first.id not in vast.account.contracts, "its end by its own hand", 60.0, tell)
        vast.server.lies.deaf = False
        wait_for(lambda: job.refresh().done, "the end of the job", 90.0, tell)
        wait_for(lambda: not vast.account.contracts, "its contracts to be gone", 30.0, tell)
    assert job.refresh().status == "succeeded", tell()
    one, two = job.placements()
    # Its guest may be quicker to say that it is being stopped than the list is to say why.
    assert one.cause in ("preempted", "notice")
    assert one.request["offer"]["zone"] != two.request["offer"]["zone"], "another host"
    printed = lines(site, job)
    before = [line["step"] for line in printed if line["generation"] == 1]
    after = [line["step"] for line in printed if line["generation"] == 2]
    assert before == list(range(1, before[-1] + 1)), "its program ran again"
    assert after == list(range(after[0], 151))
    assert 0 <= before[-1] + 1 - after[0] <= 2 * EVERY, "more than what lay between two saves is lost"
    charged = {str(contract.id): contract for contract in vast.account.past}
    assert {row.instance for row in (one, two)} == set(charged)
    disk = 0.15 * one.request["disk"] / 730
    for row in (one, two):
        assert row.hourly == pytest.approx(charged[row.instance or ""].hourly() + disk)
        assert charged[row.instance or ""].bid == pytest.approx(row.request["offer"]["price"])
    assert job.spent == pytest.approx(vast.account.spent(), abs=40 / 3600 * 0.21)


@pytest.mark.slow
def test_a_machine_that_nobody_watches_ends_itself(vast: Stage) -> None:
    """By its first script alone, before it has fetched anything."""
    script = user_data(
        "http://10.231.0.1:9/never", 1002.0, frozen_at=1000.0, provider="vast", kind=Kind.CONTAINER, limit=4096
    )
    vast.provider().launch(request_for(vast.offer(), user_data=script))
    (contract,) = vast.account.contracts.values()
    assert contract.machine is not None
    wait_for(lambda: not vast.account.contracts, "its end", 30.0, contract.machine.log)
    assert not vast.provider().instances()


@pytest.mark.parametrize("spot", ["only", "auto"])
def test_case_2_what_was_got_is_what_is_booked(seaweedfs: SeaweedFS, tmp_path: Path, spot: str) -> None:
    """Rented on-demand although a bid was sent: given back where the task takes spot only, else booked at its price."""
    with Stage(tmp_path / "adapter") as vast:
        vast.host(dph=0.41, min_bid=0.19, storage_cost=0.0)
        vast.server.lies.no_bid = True
        site = Site(
            tmp_path,
            home=seaweedfs.new_home(),
            home_config=seaweedfs.mints("assume-role"),
            limits={"beat": 1.0, "store_poll": 0.5},
            providers={"vast": {"api": vast.server.url, "key": vast.account.key, "pace": 0.05, "patience": 1.0}},
        )
        resources = (Resources(gpu="RTX4090", gpu_count=1, infra=("vast",), image=IMAGE),)
        job = site.submit(site.task("count", run="true", resources=resources, spot=spot))
        tell = teller(site, job, vast)
        with site.up():
            wait_for(lambda: site.store.events(job.id, kinds=["launched"]), "a machine", 30.0, tell)
            if spot == "only":
                wait_for(lambda: vast.account.past, "its end", 30.0, tell)
        (row,) = job.placements()
        assert (row.market, row.hourly) == ("on_demand", pytest.approx(0.41))
        assert len(vast.account.contracts) == (0 if spot == "only" else 1)
        warned = " ".join(event.text for event in site.store.events(job.id, kinds=["warning"]))
        assert "asked for spot, got on-demand at 0.4100 USD/h" in warned
        assert ("takes spot only" in warned) is (spot == "only")
        site.close()
