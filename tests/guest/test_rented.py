"""The guest where no broker is: marketplace containers with and without Python, VMs with docker, keys for one job."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from clouds.engine import IMAGE
from clouds.machine import Machines, nvidia
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


def test_an_image_without_any_python(job, static):
    """A static Python comes from the home, and obstore's wheel beside it; the job sees neither."""
    job.bring(static)
    job.first = WITHOUT_PYTHON
    look = 'command -v python3 || echo no python; env | grep -ci "obstore\\|PYTHONHOME\\|spotbroker/python"'
    job.task(f"{look}; echo 1 >ckpt/a; exit 0", checkpoint=SAVES)
    placement = job.rent()
    wait_for(lambda: placement.why, 60, placement.console)
    assert placement.result["outcome"] == "succeeded", (placement.result, placement.console)
    assert placement.own_log == "no python\n0\n"
    assert placement.result["seq"] == 1


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ("changed", "the static Python could not be fetched whole: it does not hash to what was promised"),
        ("absent", "no Python of 3.11 or newer that loads obstore is on this machine, and none was sent along"),
    ],
)
def test_a_runtime_that_cannot_be_had_ends_the_machine(job, static, broken, words):
    """With words on its console, and nothing run."""
    job.bring(static)
    job.first = WITHOUT_PYTHON
    if broken == "absent":
        job.runtime["python"] = None
    else:
        job.home.put(job.runtime["python"]["key"], b"something else")
    placement = job.task("echo never").rent()
    wait_for(lambda: placement.why, 60, placement.console)
    assert words in placement.why
    assert words in placement.console
    assert not placement.beat


def test_a_vm_runs_its_task_in_a_container(job):
    """Its unit starts the guest; setup and run share one container; a notice's SIGTERM reaches the program in it."""
    job.bring(Artefacts())
    job.task(COUNTER, setup="echo made >/opt/made; cat /opt/made", checkpoint=SAVES)
    first = job.rent(kind="vm", container=IMAGE)
    wait_for(lambda: "ready" in first.log, 60, first.console)
    assert first.machine.run("systemctl", "is-enabled", "spotbroker").returncode == 0
    assert "runner" in first.machine.run("sh", "-c", "docker ps --no-trunc --format '{{.Command}}'").stdout
    assert first.machine.run("cat", "/opt/made").returncode != 0
    now = time.time()
    job.cloud.notices[first.machine.address] = {"at": now, "ends_at": now + 10, "kind": "terminate"}
    wait_for(lambda: not first.machine.alive(), 30, first.console)
    assert first.machine.ended_itself
    assert (first.result["outcome"], first.result["exit"], first.result["seq"]) == ("moved", 9, 1)
    second = job.rent(2, kind="vm", container=IMAGE)
    wait_for(lambda: second.result, 60, second.console)
    assert second.result["outcome"] == "succeeded"
    wait_for(lambda: second.own_log == "made\nsaved-by-1\n")


def test_a_vm_that_reboots_goes_on(job):
    """The unit starts the guest from the disk, as the boot object is gone; a new container gets the snapshot."""
    job.bring(Artefacts())
    run = """
    cat ckpt/state 2>/dev/null || echo fresh
    [ -e ckpt/state ] && exit 0
    echo one >ckpt/new; mv ckpt/new ckpt/state; echo ready; while :; do sleep 0.05; done
    """
    job.task(run, checkpoint=SAVES)
    placement = job.rent(kind="vm", container=IMAGE)
    wait_for(lambda: placement.beat.get("seq") == 1, 60, placement.console)
    assert job.home.find(job.keys.boot(1)) is None
    placement.machine.reboot()
    wait_for(lambda: placement.result, 60, placement.console)
    assert placement.result["outcome"] == "succeeded"
    wait_for(lambda: "one\n" in placement.own_log)
    wait_for(lambda: placement.machine.ended_itself, 20)


def test_the_cards_of_a_vm_are_in_its_container(job):
    job.bring(Artefacts())
    job.gpus = nvidia("NVIDIA L4", 2, 23034)
    job.task("nvidia-smi --query-gpu=name --format=csv,noheader; echo $BROKER_NUM_GPUS")
    offer = {"gpu": "L4", "gpu_count": 2, "disk": 20.0, "extra": {}}
    placement = job.rent(kind="vm", container=IMAGE, offer=offer)
    wait_for(lambda: placement.result, 60, placement.console)
    wait_for(lambda: placement.own_log == "NVIDIA L4\nNVIDIA L4\n2\n")


def test_a_vm_with_an_image_of_its_own_runs_bare(job):
    job.bring(Artefacts())
    placement = job.task('echo "$(id -u) $BROKER_NUM_GPUS"; ls /run/.containerenv').rent(kind="vm")
    wait_for(lambda: placement.result, 60, placement.console)
    assert placement.result["exit"] == 2
    wait_for(lambda: placement.own_log.startswith("0 0\n"))
