"""A job that goes from one market to the next: RunPod spot, outbid; Vast interruptible, stopped; Lambda on demand.

Everything between broker and program is real: containers and a VM in networks of their own, the home in an S3 server
that enforces keys for one job, the providers' APIs over HTTP. Only the vendors are stand-ins.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
from clouds.lambda_cloud.cloud import Lambda, kind
from clouds.machine import IMAGE, Machines, nvidia
from clouds.runpod.cloud import RunPod, card
from clouds.seaweedfs import SeaweedFS
from clouds.vast.stage import Stage
from crash.harness import HERE, Site, wait_for

from broker.job import Job
from broker.resources import Resources
from broker.store import PlacementRow
from broker.task import Checkpoint

STEPS, EVERY, PAUSE = 260, 20, 0.03
GPU = nvidia("NVIDIA GeForce RTX 4090", 1, 24564)


class Markets:
    """The three vendors, each with one machine worth having; the next one is dearer than the one before."""

    def __init__(self, machines: Machines, state: Path) -> None:
        self.runpod = RunPod(
            cards=[card("NVIDIA GeForce RTX 4090", 24, secure=(1.9, 0.20))], machines=machines, gpus=GPU
        )
        self.runpod.centres = {"EU-RO-1": "HIGH"}
        self.vast = Stage(state, machines=machines)
        self.vast.host(dph=1.8, min_bid=0.30)
        self.lambda_cloud = Lambda(machines=machines, gpus=nvidia("NVIDIA A10", 1, 23028))
        self.lambda_cloud.kinds = [(kind("gpu_1x_a10", "A10 (24 GB PCIe)", 75, 1), ["us-east-1"])]
        self.providers = {
            "runpod": {"api": f"http://{machines.address}:{self.runpod.port}", "key": "rpa_TESTKEY"},
            "lambda": {"api": self.lambda_cloud.api, "key": "secret_TESTKEY", "pace": 0.01},
        }

    def __enter__(self) -> Self:
        self.runpod.start()
        self.lambda_cloud.start()
        self.vast.__enter__()
        server, account = self.vast.server, self.vast.account
        self.providers["vast"] = {"api": server.url, "key": account.key, "pace": 0.001}
        return self

    def __exit__(self, *error: object) -> None:
        self.vast.__exit__(None, None, None)
        self.lambda_cloud.close()
        self.runpod.close()

    def left(self) -> list[str]:
        """What still costs, at any of them."""
        pods = [pod.id for pod in self.runpod.pods.values() if pod.desired != "TERMINATED"]
        return [*pods, *map(str, self.vast.account.contracts), *(one.id for one in self.lambda_cloud.live())]

    def charged(self) -> list[float]:
        return [self.runpod.charged(), self.vast.account.spent(), self.lambda_cloud.charged()]


@pytest.fixture
def markets(machines: Machines, tmp_path: Path) -> Iterator[Markets]:
    with Markets(machines, tmp_path / "vast") as made:
        yield made


def undisturbed(folder: Path) -> bytes:
    """The same training, on this computer and never interrupted."""
    folder.mkdir()
    env = {"STEPS": str(STEPS), "EVERY": str(EVERY), "PAUSE": "0", "BROKER_CHECKPOINT_DIR": str(folder)}
    subprocess.run(
        [sys.executable, str(HERE / "learner.py")], env=env, cwd=folder, check=True, capture_output=True, timeout=60
    )
    return (folder / "out" / "model.json").read_bytes()


def steps(job: Job, generation: int) -> tuple[int, int]:
    """(the step that a placement's program began at, the last one that it said), from its log."""
    text = "".join(text for number, _, text in job.logs() if number == generation)
    return int(re.findall(r"start (\d+)", text)[0]), int(re.findall(r"step (\d+)", text)[-1])


def charged_for(row: PlacementRow) -> str:
    return str(row.request["offer"]["provider"]) + "/" + str(row.market)


@pytest.mark.slow
def test_from_runpod_spot_to_vast_interruptible_to_lambda_on_demand(
    markets: Markets, machines: Machines, seaweedfs: SeaweedFS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")  # no test asks this computer's own network who it is
    endpoint = machines.reach(seaweedfs.endpoint)
    site = Site(
        tmp_path,
        home=seaweedfs.new_home("team/home"),
        home_config={**seaweedfs.mints("federation"), "endpoint": endpoint, "sts_endpoint": endpoint},
        limits={"beat": 1.0, "store_poll": 0.5, "fallback": 1.0},
        providers=markets.providers,
    )
    (site.work / "learner.py").write_bytes((HERE / "learner.py").read_bytes())
    rented = {"gpu_count": 1, "image": IMAGE}
    job = site.submit(
        site.task(
            "digits",
            run="exec python3 learner.py",
            envs={"STEPS": str(STEPS), "EVERY": str(EVERY), "PAUSE": str(PAUSE)},
            resources=(
                Resources(gpu="RTX4090", infra=("runpod", "vast"), **rented),
                Resources(gpu="A10", infra=("lambda",), **rented),
            ),
            checkpoint=Checkpoint("ckpt"),
        )
    )
    with site.up():
        (pod,) = wait_for(lambda: list(markets.runpod.pods.values()), "the pod", 60, lambda: site.story(job))
        site.event(job, "snapshot", 1)
        assert pod.bid == 0.20
        markets.runpod.outbid(pod.id)
        markets.runpod.stock["NVIDIA GeForce RTX 4090", "SECURE"] = None
        (contract,) = wait_for(
            lambda: list(markets.vast.account.contracts.values()), "the contract", 60, lambda: site.story(job)
        )
        site.event(job, "snapshot", 2)
        markets.vast.account.grace = 0.0
        markets.vast.account.outbid(contract)
        (vm,) = wait_for(markets.lambda_cloud.live, "the VM", 90, lambda: site.story(job))
        site.done(job, 90)
    wait_for(lambda: not markets.left(), "nothing to be left", 30, lambda: str(markets.left()))
    rows = [row for row in job.placements() if row.instance]
    assert [charged_for(row) for row in rows] == ["runpod/spot", "vast/spot", "lambda/on_demand"], site.story(job)
    assert job.refresh().status == "succeeded", site.story(job)
    assert [row.instance for row in rows] == [pod.id, str(contract.id), vm.id]

    # Equal to the last bit, and at most one interval lost at each move; mostly none where there were five seconds.
    (model,) = job.pull(tmp_path / "pulled")
    assert model.read_bytes() == undisturbed(tmp_path / "alone")
    assert json.loads(model.read_bytes())["accuracy"] > 0.7
    reached = [steps(job, row.generation) for row in rows]
    assert reached[0][0] == 0
    assert 0 <= reached[0][1] - reached[1][0] <= EVERY, reached
    assert 0 <= reached[1][1] - reached[2][0] <= EVERY + 2, reached

    # The ledger: what was booked is what was charged, but for the seconds until an end is seen.
    for row, charged in zip(rows, markets.charged(), strict=True):
        assert row.cost(time.time()) == pytest.approx(charged, abs=row.hourly * 15 / 3600), charged_for(row)
    site.store.close()
