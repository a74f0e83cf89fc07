"""How a program's end is read, on real machines: protocol.md's table, row by row."""

from __future__ import annotations

import time

import pytest
from guest.placements import wait_for

WAIT = "while :; do sleep 0.05; done\n"
SAVE_ON_TERM = """
import os, signal, sys, time
folder = os.environ["BROKER_CHECKPOINT_DIR"]
def save(*_):
    with open(folder + "/state.tmp", "w") as file:
        file.write("saved on term")
    time.sleep(0.5)  # a save takes its time, and the shell around it is dead by now
    os.rename(folder + "/state.tmp", folder + "/state")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""
TRAIN = f"cat >train.py <<'EOF'\n{SAVE_ON_TERM}\nEOF\npython train.py\n"
CHECKPOINT = {"path": "ckpt", "every": None, "keep": 3, "complete": None}


def running(placement, text="ready"):
    placement.until_state("running")
    wait_for(lambda: text in placement.log, what=f"{text!r} in the log: {placement.console}")
    return placement


def test_success(job):
    job.task("echo hello; echo out > result.txt", outputs=["*.txt"])
    placement = job.place()
    result = placement.until_ended()
    assert (result["outcome"], result["exit"], result["signal"]) == ("succeeded", 0, None)
    assert list(result["outputs"]) == ["result.txt"]
    assert placement.own_log == "hello\n"
    assert placement.closed["seq"] == 0
    assert placement.beat["state"] == "ended"
    assert placement.beat["result"] == result
    assert job.home.find(job.keys.boot(1)) is None, "the boot object is read once"


@pytest.mark.parametrize("end", ["exit 0", "exit 1"])
def test_all_output_is_out_before_the_end_is_told(job, end):
    """A broker that hears of the end ends the machine, and what is on its way then is lost."""
    placement = job.task(f"head -c 25000000 /dev/zero | tr '\\0' x; echo; echo accuracy 0.93; {end}").place()
    wait_for(lambda: placement.result, what="a result")
    assert placement.log.splitlines()[-2:][0] == "accuracy 0.93"


@pytest.mark.parametrize(
    ("script", "code", "reason"),
    [("exit 1", 1, "exit 1"), ("kill -9 $$", 137, "exit 137 (killed)"), ("exit 143", 143, "exit 143")],
)
def test_failures_of_a_living_machine(job, script, code, reason):
    result = job.task(script).place().until_ended()
    assert (result["outcome"], result["exit"], result["reason"]) == ("failed", code, reason)


def test_out_of_memory_is_read_from_the_cgroup(job):
    from broker.guest.contain import Containment

    probe = Containment.open("probe")
    limit = next(
        (g for g in probe.groups if (g / "memory.limit_in_bytes").exists() or (g / "memory.max").exists()), None
    )
    probe.close()
    if limit is None:
        pytest.skip("no memory cgroup can be written here")
    script = """
    for f in /sys/fs/cgroup/memory$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup)/memory.limit_in_bytes \
        /sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)/memory.max; do
      [ -w $f ] && echo 50000000 >$f
    done
    python -c 'x = bytearray(400 << 20)'
    """
    result = job.task(script).place().until_ended()
    assert (result["outcome"], result["exit"]) == ("failed", 137)
    assert result["reason"].startswith("out of memory")


def test_setup_that_fails(job):
    result = job.task("echo never", setup="echo trying; exit 3").place().until_ended()
    assert (result["outcome"], result["reason"]) == ("failed", "setup exited 3")
    assert job.placements[0].own_log == "trying\n"


def test_preempted_during_setup_is_a_move(job):
    placement = job.task("echo never", setup="echo ready; " + WAIT).place()
    placement.until_state("setup")
    placement.notice(30)
    result = placement.until_ended(10)
    assert (result["outcome"], result["exit"]) == ("moved", None)
    assert placement.closed["seq"] == 0


def test_notice_saves_and_moves_long_before_its_end(job):
    placement = running(job.task(TRAIN, checkpoint=CHECKPOINT).place())
    placement.notice(120)
    result = placement.until_ended(10)
    assert result["outcome"] == "moved"
    assert result["seq"] == placement.closed["seq"] == 1, "what was saved on SIGTERM is published"
    assert placement.beat["notice"]["kind"] == "terminate"


def test_notice_before_the_exit_is_a_move(job):
    placement = job.task("while [ ! -e ../../notice ]; do sleep 0.01; done; exit 1").place()
    placement.until_state("running")
    placement.notice(60)
    result = placement.until_ended(10)
    assert result["outcome"] == "moved"


def test_notice_after_the_exit_is_not(job):
    placement = job.task("exit 1").place()
    result = placement.until_ended()
    assert result["outcome"] == "failed"


def test_sigterm_to_the_first_process_is_a_notice(job):
    placement = running(job.task(TRAIN, checkpoint=CHECKPOINT).place())
    began = time.monotonic()
    placement.process.terminate()
    result = placement.until_ended(10)
    assert time.monotonic() - began < 5
    assert (result["outcome"], result["seq"]) == ("moved", 1)
    assert placement.beat["notice"]["kind"] == "sigterm"


@pytest.mark.parametrize(
    ("order", "why", "outcome"),
    [("end", "stop", "stopped"), ("end", "budget", "ended"), ("retire", "migrate", "moved")],
)
def test_orders(job, order, why, outcome):
    placement = running(job.task(TRAIN, checkpoint=CHECKPOINT).place())
    job.order(1, order=order, why=why)
    result = placement.until_ended(10)
    assert (result["outcome"], result["seq"]) == (outcome, 1)
    assert placement.closed["why"] == why


def test_term_ignored_costs_the_grace_and_no_more(job):
    placement = running(job.task("trap '' TERM; echo ready\n" + WAIT).place(grace=1.0))
    job.order(1, order="end", why="stop")
    assert placement.until_ended(8)["outcome"] == "stopped"


@pytest.mark.parametrize(("trap", "outcome"), [("trap 'exit 0' TERM\n", "succeeded"), ("", "moved")])
def test_progress_at_its_total_beats_the_reason_where_it_exits_0(job, trap, outcome):
    script = "python -c 'from broker.guest import progress; progress(1, 7); progress(7, 7)'; echo ready\n" + WAIT
    placement = running(job.task(trap + script).place())
    job.order(1, order="retire", why="migrate")
    result = placement.until_ended(10)
    assert (result["outcome"], result["last_step"]) == (outcome, 7)
    assert placement.beat["first_step"] == 1
    assert placement.beat["progress"]["total"] == 7


def test_end_by_is_kept_with_its_reason(job):
    end_by = time.time() + 8
    placement = job.task(TRAIN, checkpoint=CHECKPOINT).place(end_by=end_by, end_why="max_hours")
    result = placement.until_ended(12)
    assert time.time() < end_by + 0.5
    assert (result["outcome"], result["seq"]) == ("ended", 1)
    assert "max_hours" in result["reason"]


def test_end_by_can_be_extended_by_the_broker(job):
    placement = running(job.task(TRAIN).place(end_by=time.time() + 8))
    job.order(1, end_by=time.time() + 600)
    wait_for(lambda: int((placement.disk / "deadline").read_text()) > time.clock_gettime(time.CLOCK_BOOTTIME) + 500)
    job.order(1, order="end", why="stop")
    assert placement.until_ended(10)["outcome"] == "stopped"
