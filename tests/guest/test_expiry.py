"""A machine that outlives its keys while no broker is awake: the program runs on, and nothing it saves is lost."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from clouds.seaweedfs import SeaweedFS
from guest.placements import Job, holds, wait_for
from guest.test_endings import CHECKPOINT, TRAIN

from broker import renewals
from broker.access import mint
from broker.config import Config
from broker.home import Access, Home
from broker.offer import Market, Offer
from broker.placement import end_of
from broker.task import Checkpoint, Task


def ending(access: Access, server: SeaweedFS, at: float) -> Access:
    """The same access with a session that ends earlier."""
    token = server.ending(access.config["session_token"], at)
    return replace(access, config={**access.config, "session_token": token}, expires_at=at)


def test_a_broker_that_slept_through_the_end_of_access(tmp_path: Path, guest: tuple[bytes, str], seaweedfs: SeaweedFS):
    url = seaweedfs.new_home()
    config = Config(state=tmp_path, file=tmp_path / "c", home=url, home_config=seaweedfs.mints("federation"))
    home = Home(Access(url, seaweedfs.settings()))
    job = Job(tmp_path, guest, home)
    run = "echo ready; until [ -e ../../go ]; do sleep 0.05; done; echo late >ckpt/late; sleep 1; echo said"
    job.task(run, checkpoint={"path": "ckpt", "every": None, "keep": 3, "complete": None})
    access = ending(mint(config, url, job.id, 1, time.time() + 3600), seaweedfs, time.time() + 6)
    placement = job.place(home=access, access_url=renewals.address(home, job.id, 1), patience=0.3)
    try:
        wait_for(lambda: "ready" in placement.log, 20, "the program did not start before its access ended")
        wait_for(lambda: time.time() > access.expires_at + 1, 20)
        told = placement.beat["n"]
        (placement.folder / "go").touch()
        wait_for(lambda: "program has ended" in (placement.disk / "log").read_text(), 10)
        holds(lambda: not placement.ended, 3.0)  # its last words are tried as long as somebody may renew its access
        assert placement.beat["n"] == told
        assert not placement.result
        fresh = renewals.renew(config, home, job.id, 1, time.time() + 3600)
        result = placement.until_ended(30)
        assert (result["outcome"], result["seq"]) == ("succeeded", 1)
        assert placement.own_log == "ready\nsaid\n"
        assert placement.beat["access_expires"] == fresh.expires_at
    finally:
        placement.kill()


def test_keys_that_nothing_renews_end_with_the_machine(tmp_path: Path, guest: tuple[bytes, str], seaweedfs: SeaweedFS):
    """Those of an assumed role, or of SSO: their end is the machine's. While no broker is awake it saves before it, by
    keys that the store still takes, and ends; the next broker goes on from there, as after any such end."""
    url, end = seaweedfs.new_home(), int(time.time()) + 9
    config = Config(state=tmp_path, file=tmp_path / "c", home=url, home_config=seaweedfs.mints("assume-role"))
    job = Job(tmp_path, guest, Home(Access(url, seaweedfs.settings())))
    job.task(TRAIN, checkpoint=CHECKPOINT)
    access = ending(mint(config, url, job.id, 1, end + 3600), seaweedfs, end)
    lasting = Task(name="t", run="x", max_hours=24.0, checkpoint=Checkpoint("c"))
    offer = Offer("aws", "us-east-1", "us-east-1a", "c5.large", Market.SPOT, 0.03)
    end_by, why = end_of(lasting, offer, access.expires_at, time.time())
    assert (end_by, why) == (end, "the end of its access to the home")
    placement = job.place(home=access, end_by=end_by, end_why=why)
    try:
        result = placement.until_ended(20)
        assert (result["outcome"], result["seq"]) == ("ended", 1)
        assert why in result["reason"]
        assert placement.closed["seq"] == 1
        assert job.home.list(job.keys.manifests(1)), "its last snapshot is there"
    finally:
        placement.kill()
