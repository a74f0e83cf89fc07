"""Setup and run in a container that the guest starts: real podman, real signals, exit codes as on a bare machine."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from clouds.engine import IMAGE, PLAIN, Podman, podman
from clouds.registry import registry
from guest.placements import Job, Placement, alive, wait_for
from guest.rented import static_python

__all__ = ["podman", "registry"]

SAVES = {"path": "ckpt", "every": None, "keep": 3, "complete": None}


@pytest.fixture
def boxed(job: Job, podman: Podman):
    """Places a task in a container of this engine."""

    def place(generation: int = 1, *, image: str = IMAGE, **changes) -> Placement:
        offer = {"gpu": None, "gpu_count": 0, "disk": 20.0, "extra": {"engine": podman.settings}}
        offer |= {"price": 1.0, "disk_price": 0.0}
        return job.place(generation, offer=offer, container=image, **changes)

    yield place
    for placement in job.placements:
        placement.kill()
    wait_for(lambda: not podman.running(), 20, "a container outlived its guest")


def test_setup_and_run_share_one_container(job, boxed, podman):
    """What setup does to the image is there for run; nothing of the machine is but what was brought along."""
    run = """
    cat /opt/made-by-setup
    echo "pid 1: $(tr '\\0' ' ' </proc/1/cmdline)"
    echo "me $(id -u) home $HOME work $PWD gpus $BROKER_NUM_GPUS secret $S"
    echo "seen:" $(ls -A "$PWD/../")
    python3 -c 'from broker import guest; guest.progress(3, 3); print("lib", guest.checkpoint_dir())'
    for i in 1 2 3; do (sh -c 'sleep 0.1 & exit' &); done; sleep 0.5
    echo "zombies: $(grep -l "^State:.Z" /proc/[0-9]*/status | wc -l)"
    echo done >out
    """
    job.task(run, setup="echo set up >/opt/made-by-setup", secrets=["S"], outputs=["out"])
    placement = boxed(secrets={"S": "shh-0001"})
    result = placement.until_ended(60)
    assert result["outcome"] == "succeeded", (result, placement.log, placement.console)
    log = placement.own_log
    assert "set up" in log
    assert "/runner" in log.split("pid 1: ")[1].splitlines()[0]
    assert f"me 0 home /root work {placement.disk / 'work'} gpus 0 secret ***" in log
    assert set(log.split("seen: ")[1].splitlines()[0].split()) == {"ckpt", "lib", "runner", "task", "work"}
    assert "zombies: 0\n" in log
    assert list(result["outputs"]) == ["out"]
    assert placement.beat["timings"]["pull"] == 0
    assert placement.beat["progress"]["step"] == 3
    assert not Path("/opt/made-by-setup").exists()
    assert "shh-0001" not in placement.console


def test_cache_folders_are_the_containers_own(job, boxed):
    """Below its home and at absolute paths: what was fetched in one container is there in the next one's setup."""
    setup = """
    for at in ~/.cache/hub /data/hub; do
      [ ! -e $at/link ] || { echo "found $(cat $at/link)"; continue; }
      sleep 0.5; echo "made" >$at/model; ln -s model $at/link
    done
    """
    job.task("false", setup=setup, cache=["~/.cache/hub", "/data/hub"])
    for generation, told in ((1, ""), (2, "found made\nfound made\n")):
        placement = boxed(generation, order={"go": True})
        placement.until_ended(60)
        assert placement.own_log == told, placement.log
    assert placement.beat["cache"].startswith("cache restored: 10 B in ")
    assert not Path("/data/hub").exists()


def test_a_notice_reaches_the_program_in_its_container(job, boxed):
    """SIGTERM, time to save and exit, the save published; the next machine's container finds it, `~/` and all."""
    run = """
    cat ~/ckpt/state 2>/dev/null || echo fresh
    echo $BROKER_CHECKPOINT_DIR
    [ "$BROKER_RESUMED" = 1 ] && exit 0
    trap 'echo saving; sleep 0.5; echo 41 >~/ckpt/new; mv ~/ckpt/new ~/ckpt/state; exit 9' TERM
    echo ready; while :; do sleep 0.05; done
    """
    job.task(run, checkpoint={**SAVES, "path": "~/ckpt"})
    first = boxed()
    wait_for(lambda: "ready" in first.log, 30)
    first.notice(8)
    result = first.until_ended(30)
    assert (result["outcome"], result["exit"], result["seq"]) == ("moved", 9, 1)
    assert "saving" in first.own_log
    second = boxed(2)
    assert second.until_ended(60)["outcome"] == "succeeded"
    assert second.own_log == "41\n/root/ckpt\n"
    assert not Path("/root/ckpt").exists()


@pytest.mark.parametrize(("end", "code", "number"), [("exit 7", 7, None), ("kill -SEGV $$", 139, 11)])
def test_ends_come_through_as_on_a_bare_machine(job, boxed, end, code, number):
    """And what a program leaves behind is dead, wherever it hid, before its end is told."""
    job.task(f"setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' & sleep 0.2; echo out; {end}")
    placement = boxed()
    result = placement.until_ended(60)
    assert (result["outcome"], result["exit"], result["signal"]) == ("failed", code, number)
    assert placement.own_log == "out\n"


def test_a_guest_that_dies_takes_its_container_along(job, boxed, podman):
    """Its machine comes back: the new guest runs the job, in a container of its own."""
    job.task("echo ready; until [ -e go ]; do sleep 0.05; done; exit 0")
    placement = boxed()
    wait_for(lambda: "ready" in placement.log, 30)
    assert len(podman.running()) == 1
    guest = int(podman("inspect", "--format", "{{.State.ConmonPid}}", podman.running()[0]).strip())
    assert guest
    os.kill(placement.process.pid, signal.SIGKILL)
    wait_for(lambda: not podman.running(), 15, "the container outlived its guest")
    assert alive(placement.mark) == []
    placement.kill()
    placement.start()
    wait_for(lambda: placement.log.count("ready") == 2, 30)
    (placement.disk / "work" / "go").touch()
    assert placement.until_ended(30)["outcome"] == "succeeded"


def test_an_image_without_python_is_run_by_ours(job, boxed, tmp_path):
    """The runner needs one; the program sees none of it on its paths. Without one along it is said."""
    given = static_python(tmp_path).provide(job.home, job.keys, "x86_64", wheel=False)
    python = {"url": "", "sha256": given.python, "key": job.keys.artefact(given.python)}
    job.task("command -v python3 || echo none; exit 4")
    placement = boxed(image=PLAIN, runtime={"architecture": "x86_64", "obstore": None, "python": python})
    assert placement.until_ended(60)["exit"] == 4
    assert placement.own_log == "none\n"
    without = boxed(2, image=PLAIN)
    assert without.until_ended(60)["reason"].startswith(
        f"the image {PLAIN} has no Python from 3.8 on, and none was sent"
    )


def test_no_such_image(job, boxed, registry):
    image = f"{registry.place}/team/none:1"
    placement = job.task("true") and boxed(image=image)
    result = placement.until_ended(60)
    assert result["outcome"] == "failed"
    assert f"there is no image {image}" in result["reason"]
    assert "image_id" in result["reason"]


def test_a_private_image(job, boxed, registry):
    placement = job.task("true") and boxed(image=f"{registry.place}/private/secret:1")
    result = placement.until_ended(60)
    assert result["outcome"] == "failed"
    assert "is private, or there is none of that name" in result["reason"]


def test_an_image_is_pulled_and_its_time_is_told(job, boxed, registry, podman):
    registry.push(podman, PLAIN, "team/plain:1")
    static = {"outcome": "failed"}
    placement = job.task("true") and boxed(image=f"{registry.place}/team/plain:1")
    states = set()
    wait_for(lambda: states.add(placement.beat.get("state")) or placement.ended, 60)
    assert "pulling" in states
    assert placement.beat["timings"]["pull"] > 0
    assert placement.result.items() >= static.items()
    assert "has no Python" in placement.result["reason"]
    assert "pulled " in placement.log


def test_a_kept_machines_shell_is_in_the_container_as_it_was_left(job, boxed, podman):
    job.task("echo changed >/etc/motd; cd /; exit 3", secrets=["S"])
    placement = boxed(keep=60.0, secrets={"S": "shh-0001"})
    placement.until_state("kept", seconds=60)
    argv = ["env", "-i", "/bin/sh", str(placement.disk / "enter"), 'cat /etc/motd; echo "$PWD $S $BROKER_JOB"; exit 4']
    told = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    assert (told.stdout, told.returncode) == (f"changed\n{placement.disk / 'work'} shh-0001 {job.id}\n", 4), told.stderr
    job.order(1, order="end", why="stop")
    assert placement.until_ended(30)["outcome"] == "failed"
