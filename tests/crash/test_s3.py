"""A job whose home is a real S3 server: moved with notice and without, by keys that reach nothing but the job."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from clouds.partition import Partition
from clouds.seaweedfs import SeaweedFS
from crash.harness import Site

from broker.access import own
from broker.home import Home, JobKeys
from broker_local.cloud import take_back

BEAT = 1.0
OUR_SECRETS = (b"minter-secret", b"admin-secret")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["assume-role", *(["federation"] if "SPOTBROKER_KILLS" in os.environ else [])])
def test_a_job_on_s3_moves_and_leaves_nothing_behind(
    tmp_path: Path, seaweedfs: SeaweedFS, partition: Partition, way: str
) -> None:
    site = Site(
        tmp_path,
        home=seaweedfs.new_home("team/home"),
        home_config={**seaweedfs.mints(way), "endpoint": partition.endpoint},
        limits={"beat": BEAT, "store_poll": 0.5},
        local={"keep_disks": True},
    )
    job = site.submit(site.task("count", steps=330, every=10, pause=0.03, secrets={"TOKEN": "s3cret-value"}))
    keys, home = JobKeys(job.id), Home(own(site.config, site.config.home))
    with site.up():
        for generation, notice in ((1, "aws"), (2, "vast")):
            machine = site.machine(job, generation)
            site.event(job, "snapshot", generation)
            boot = json.loads((site.folder_of(machine) / "disk/spotbroker/boot.json").read_text())
            access = boot["home"]
            assert access["scoped"] is True
            assert access["expires_at"] is not None
            assert access["config"]["access_key_id"] not in ("minter", "admin")
            assert partition.served[access["config"]["access_key_id"]] > 0, "the guest used another key"
            assert home.find(keys.boot(generation)) is None, "the one-time object is still there"
            take_back(site.root, machine.id, notice, seconds=4.0 if notice == "aws" else None)
            site.machine(job, generation + 1)
        site.done(job)
    site.audit(lost_at_most=60)
    assert job.refresh().row.secrets is None
    assert [row.cause for row in job.placements()][1] == "preempted"
    assert home.list("beats") == []
    assert not [entry.key for entry in home.list(keys.generations) if entry.key.endswith("/boot")]
    assert home.list(f"{keys.root}/access") == []
    assert home.list("probe") == []
    for path in site.root.rglob("*"):
        if path.is_file():
            raw = path.read_bytes()
            assert not [secret for secret in OUR_SECRETS if secret in raw], f"an account's own key lies in {path}"
    for entry in home.list(keys.logs(1)):
        assert b"s3cret-value" not in home.get(entry.key)
    site.close()
