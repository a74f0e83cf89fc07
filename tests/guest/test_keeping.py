"""A machine whose program has failed is kept, with nobody telling its guest to, and ends by itself."""

from __future__ import annotations

import subprocess
import time

import pytest
from guest.placements import Job, Placement, alive, holds, wait_for

from broker.guest.disk import uptime

FAILS = "mkdir ckpt/1; echo saved >ckpt/1/DONE; echo seen >left; echo broken; sleep 300 & exit 3"
CHECKPOINT = {"path": "ckpt", "every": None, "keep": 3, "complete": "DONE"}


def inside(placement: Placement, *command: str) -> subprocess.CompletedProcess[str]:
    """A person's shell there."""
    argv = ["env", "-i", "/bin/sh", str(placement.disk / "enter"), *command]
    return subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


def kept(placement: Placement) -> Placement:
    placement.until_state("kept")
    return placement


def test_all_is_handed_over_first_and_it_ends_by_itself(job: Job) -> None:
    job.task(FAILS, checkpoint=CHECKPOINT, envs={"WORD": 'it\'s "so"\n$HOME'})
    placement = kept(job.place(keep=3.0, secrets={"HF_TOKEN": "hf-0001"}))
    result = placement.result
    assert (result["outcome"], result["exit"], result["seq"]) == ("failed", 3, 1)
    assert result["at"] < result["kept_until"] <= time.time() + 3.0
    assert placement.closed["seq"] == 1
    assert placement.own_log == "broken\n"
    assert alive(placement.mark) == [], "what the program left behind has ended with it"
    # A person finds its folder, and its environment byte for byte; their shell is no process of the program's.
    told = inside(placement, 'cat left; printf %s "$WORD$HF_TOKEN$BROKER_JOB${BROKER_PLACEMENT-none}"; exit 7')
    assert told.stdout == f'seen\nit\'s "so"\n$HOMEhf-0001{job.id}none'
    assert told.returncode == 7
    for script in (placement.disk / "enter", placement.disk / "task" / "enter"):
        assert script.stat().st_mode & 0o77 == 0, "it holds secrets"
    counted = placement.beat["n"]
    wait_for(lambda: placement.beat["n"] > counted, what="beats go on")
    assert placement.until_ended(10) == result
    assert time.time() >= result["kept_until"] - 0.1
    assert "its time to be looked at is over" in placement.ended


def test_setup_that_fails_is_kept_too(job: Job) -> None:
    placement = kept(job.task("exit 0", setup="pip() { return 9; }; pip install x").place(keep=60.0))
    assert placement.result["reason"] == "setup exited 9"
    assert inside(placement, "echo", "there").stdout == "there\n"
    wait_for(lambda: 0 < int((placement.disk / "deadline").read_text()) - uptime() < 90.0, what="a nearer last resort")
    counted = placement.beat["n"]
    wait_for(lambda: placement.beat["n"] > counted + 1, what="beats, which read control")
    assert int((placement.disk / "deadline").read_text()) - uptime() < 90.0
    job.order(1, order="end", why="stop")
    placement.until_ended(10)


@pytest.mark.parametrize("what", ["stop", "notice", "superseded"])
def test_what_ends_any_machine_ends_a_kept_one(job: Job, what: str) -> None:
    placement = kept(job.task("exit 3").place(keep=60.0))
    result = placement.result
    if what == "stop":
        job.order(1, order="keep", why="kept")
        holds(lambda: not placement.ended, 0.7)
        job.order(1, order="end", why="stop")
    elif what == "notice":
        placement.notice(30.0)
    else:
        job.live = 2
        job.write_control()
    assert placement.until_ended(10) == result, "what it has said stands"


def test_never_past_the_machines_own_end(job: Job) -> None:
    end_by = time.time() + 8.0
    placement = kept(job.task("exit 3").place(keep=600.0, end_by=end_by))
    assert placement.result["kept_until"] <= end_by - 1.0
    placement.until_ended(20)
    assert time.time() <= end_by


@pytest.mark.parametrize(
    ("script", "ends"),
    [("exit 0", "succeeded"), ("sleep 30", "stopped"), ("trap 'exit 3' TERM; sleep 9 & wait", "moved")],
)
def test_what_did_not_fail_is_not_kept(job: Job, script: str, ends: str) -> None:
    placement = job.task(script).place(keep=60.0)
    if ends != "succeeded":
        placement.until_state("running")
    if ends == "stopped":
        job.order(1, order="end", why="stop")
    elif ends == "moved":
        placement.notice(4.0)
    result = placement.until_ended(15)
    assert (result["outcome"], result["kept_until"]) == (ends, None)
