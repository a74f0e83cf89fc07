"""The guest where no broker is: marketplace containers with and without Python, VMs with docker, keys for one job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from clouds.engine import IMAGE
from clouds.machine import Machines
from clouds.seaweedfs import SeaweedFS
from guest.placements import wait_for
from guest.rented import Cloud, RentedJob, halves, home_in, static_python

from broker.artefacts import Artefacts

SAVES = {"path": "ckpt", "every": None, "keep": 3, "complete": None}
WITHOUT_PYTHON = ("/bin/sh", "-c", 'rm -rf /usr/bin/python3* /usr/lib/python3*; exec "$@"', "sh")
# Counts, saves on SIGTERM, and says what it saw.
COUNTER = """
cat ckpt/state 2>/dev/null || echo fresh
[ "$BROKER_RESUMED" = 1 ] && exit 0
trap 'echo saving; sleep 0.5; echo saved-by-$BROKER_GENERATION >ckpt/new; mv ckpt/new ckpt/state; exit 9' TERM
echo ready; while :; do sleep 0.05; done
"""


@pytest.fixture(scope="module")
def packed() -> Iterator[tuple[bytes, str]]:
    with halves() as made:
        yield made


@pytest.fixture
def job(machines: Machines, seaweedfs: SeaweedFS, packed: tuple[bytes, str], tmp_path: Path) -> Iterator[RentedJob]:
    home, config = home_in(seaweedfs, machines, tmp_path)
    cloud = Cloud(machines.address)
    made = RentedJob(tmp_path, packed, home, config, machines, cloud)
    yield made
    cloud.close()


@pytest.fixture(scope="module")
def static(tmp_path_factory: pytest.TempPathFactory) -> Artefacts:
    return static_python(tmp_path_factory.mktemp("static"))


def test_a_marketplace_container_with_five_seconds(job):
    """Its image has Python; the guest is PID 1, gets SIGTERM, the program saves, the next machine goes on."""
    job.bring(Artefacts())
    job.task(COUNTER + 'echo "pid 1 $(tr "\\0" " " </proc/1/cmdline)"', checkpoint=SAVES)
    first = job.rent()
    beat = first.until_state("running", seconds=60)
    assert beat["access_expires"]
    wait_for(lambda: "ready" in first.log)
    assert "guest.pyz" in first.machine.run("cat", "/proc/1/cmdline").stdout
    first.machine.stop(grace=5.0)
    wait_for(lambda: first.result, 10)
    assert (first.result["outcome"], first.result["exit"], first.result["seq"]) == ("moved", 9, 1)
    wait_for(lambda: not first.machine.alive(), 10)
    second = job.rent(2)
    wait_for(lambda: second.why, 60, second.console)
    assert second.result["outcome"] == "succeeded"
    assert second.own_log.startswith("saved-by-1\n")
