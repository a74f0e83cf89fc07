"""Which generation may run its program, and when."""

from __future__ import annotations

import json
import time

from guest.placements import wait_for

WAIT = "echo ready; while :; do sleep 0.05; done\n"


def closed(job, generation, seq=0):
    job.home.create(job.keys.closed(generation), json.dumps({"seq": seq, "why": "notice", "at": time.time()}).encode())


def test_a_stale_generation_runs_nothing(job):
    job.task("echo ran >../../../ran").place(2)
    job.live = 3
    job.write_control()
    placement = job.placements[0]
    placement.kill()
    placement.start()
    placement.process.wait(20)
    assert "no longer stands" in placement.ended
    assert not (job.folder / "ran").exists()
    assert placement.result is None


def test_a_generation_that_falls_is_killed_and_writes_nothing_more(job):
    placement = job.task(WAIT).place()
    placement.until_state("running")
    job.live = 2
    job.write_control()
    placement.until_ended(10)
    assert placement.closed is None
    assert placement.result is None


def test_unreadable_control_ends_the_machine(job):
    placement = job.task("echo ran >../../../ran").place(patience=1.0)
    job.home.delete([job.keys.control])
    wait_for(lambda: placement.ended, 20)
    assert "could not be read" in placement.ended or placement.result
    placement.kill()


def waiting(job, **order):
    job.task(WAIT, setup="true")
    placement = job.place(2, order={"after": 1, **order})
    first = placement.until_state("waiting")["n"]
    wait_for(lambda: placement.beat["n"] >= first + 3, what="beats while it waits")
    return placement


def test_waits_for_closed(job):
    placement = waiting(job)
    assert (placement.beat["state"], placement.beat["program_started_at"]) == ("waiting", None)
    closed(job, 1)
    placement.until_state("running", seconds=5)


def test_goes_when_the_broker_says_so(job):
    placement = waiting(job)
    job.order(2, go=True)
    placement.until_state("running", seconds=5)


def test_goes_after_not_before_by_the_stores_time(job):
    start = time.time() + 3
    placement = waiting(job, not_before=start)
    beat = placement.until_state("running", seconds=10)
    assert start <= beat["program_started_at"] < start + 3


def test_starts_nothing_if_the_job_has_succeeded(job):
    placement = waiting(job)
    outputs = {"a": {"sha256": "0" * 64, "size": 1, "mode": 420}}
    job.home.create(job.keys.result(1), json.dumps({"outcome": "succeeded", "outputs": outputs}).encode())
    closed(job, 1)
    result = placement.until_ended(10)
    assert (result["outcome"], result["exit"], result["outputs"]) == ("succeeded", None, outputs)
    assert placement.beat["program_started_at"] is None


def test_notice_while_waiting_is_a_move(job):
    placement = waiting(job)
    placement.notice(60)
    assert placement.until_ended(10)["outcome"] == "moved"
    # `closed` would start the next program, though the one of generation 1 may still run.
    assert placement.closed is None


def test_notice_after_the_predecessor_has_closed_is_a_move_that_closes(job):
    placement = waiting(job)
    closed(job, 1)
    placement.until_state("running", seconds=5)
    placement.notice(60)
    assert placement.until_ended(10)["outcome"] == "moved"
    assert placement.closed is not None


def test_a_guest_that_cannot_start_still_ends_its_machine(job):
    """Its provider's half is missing: the boot script's timer has a way of its own."""
    placement = job.task("echo never").place(provider_guest="broker_missing.guest")
    placement.process.wait(20)
    assert "No module named 'broker_missing'" in placement.console


def test_a_guest_that_fails_says_so_as_the_result(job):
    result = job.task("echo never", outputs=5).place().until_ended()
    assert result["outcome"] == "failed"
    assert result["reason"].startswith("the guest failed: TypeError")
