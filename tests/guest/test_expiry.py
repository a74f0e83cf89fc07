"""A machine that outlives its keys while no broker is awake: the program runs on, and nothing it saves is lost."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from clouds.seaweedfs import SeaweedFS
from guest.placements import Job, holds, wait_for

from broker import renewals
from broker.access import mint
from broker.config import Config
from broker.home import Access, Home


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
