"""Real jobs through the command line: run, follow, look, wait, pull, stop, hand over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from cli.command import Cli, wait_for
from cli.terminal import Terminal

from broker_local import cloud

Finished = tuple[Cli, str, subprocess.CompletedProcess[str]]


def test_run_shows_the_job_and_reports(finished: Finished) -> None:
    _, job, done = finished
    lines = done.stdout.splitlines()
    assert lines[-1] == "succeeded"
    assert "begin at step 0" in lines
    assert "step 10" in lines
    assert any(line.startswith("spent ") and "(simulated)" in line for line in lines)
    assert "✓" in done.stdout
    for word in ("picked", "launched", "running", job):
        assert word in done.stderr
    assert "begin at step 0" not in done.stderr


def test_ps_and_show(finished: Finished) -> None:
    cli, job, _ = finished
    assert cli("ps").stdout == ""
    assert cli("ps", "-a", "-q").stdout == f"{job}\n"
    shown = cli("ps", "-a").stdout
    assert job in shown
    assert "10/10" in shown
    assert cli("ps", "--instances").stdout == ""
    assert cli.json("ps", "--instances") == []
    timeline = cli("show", "counter", "--timeline").stdout
    assert "✓ done" in timeline.splitlines()[-1]
    told = cli("show", "counter").stdout
    assert timeline in told
    assert told.splitlines()[-1] == "succeeded"
    data = cli.json("show", job)
    assert data["job"] == job
    assert data["outcome"] == "succeeded"
    (stay,) = data["stays"]
    assert (stay["first_step"], stay["last_step"]) == (1, 10)
    assert [s["what"] for s in stay["segments"]][-2:] == ["run", "close"] or stay["segments"][-1]["what"] == "run"
    assert {"picked", "launched", "ended"} <= {event["kind"] for event in data["events"]}


def test_logs(finished: Finished) -> None:
    cli, job, _ = finished
    done = cli("logs", job)
    assert done.stdout.splitlines()[:3] == ["begin at step 0", "step 5", "step 10"]
    assert "──── 1 local/" in done.stderr
    assert cli("logs", "--tail", "1", job).stdout == done.stdout.splitlines()[-1] + "\n"
    assert cli("logs", "-f", job).stdout == done.stdout
    lines = [{"generation": 1, "line": line} for line in done.stdout.splitlines()]
    assert cli.json("logs", job) == lines
    assert [json.loads(line) for line in cli("logs", job, "-f", "--tail", "2", "-o", "json").stdout.splitlines()] == (
        lines[-2:]
    )
    assert cli("logs", job, "--tail", "0").stderr == "", "it printed something, and none of that was wanted"


def test_who_follows_outlasts_a_home_that_is_away(cli: Cli) -> None:
    cli.task(steps=60, pause=0.1)
    job = cli("run", "counter", "-y", "-d").stdout.strip()
    follower = cli.start("logs", "-f", job)
    assert follower.stdout is not None
    assert follower.stderr is not None
    first = follower.stdout.readline()
    home = cli.state / "home"
    home.rename(home.with_name("unplugged"))
    said = [""]
    while "the output cannot be read now, and is tried again" not in said[-1]:
        said.append(follower.stderr.readline())
        assert said[-1], said
    home.with_name("unplugged").rename(home)
    rest, words = follower.communicate(timeout=90)
    assert first + rest == cli("logs", job).stdout, [said, words]
    assert "step 60" in rest


def test_a_terminal_may_be_narrow_or_lack_letters(finished: Finished) -> None:
    cli, job, _ = finished
    command = [sys.executable, "-m", "broker", "ps", "-a"]
    env = {**cli.env, "PYTHONIOENCODING": "latin-1"}
    old = subprocess.run(command, env=env, cwd=cli.folder, capture_output=True, timeout=60, check=True)
    assert b"     ?  < $" in old.stdout, "there is no en dash in Latin-1"
    for width in (30, 40, 60):
        narrow = cli("ps", "-a", env={"COLUMNS": str(width)}).stdout
        assert narrow.splitlines()[1].split()[:2] == [job, "succeeded"]


def test_wait_and_pull(finished: Finished) -> None:
    cli, job, _ = finished
    assert cli("wait", job).stdout == f"{job} succeeded\n"
    (row,) = cli.json("wait", job, "--timeout", "1h")
    assert "--timeout must be a time" in cli("wait", job, "--timeout", "soon", code=2).stderr
    assert row == {"id": job, "status": "succeeded", "exit_code": 0, "message": row["message"]}
    done = cli("pull", job, "--to", "here")
    assert done.stdout == "here/outputs/word.txt\n"
    assert len((cli.folder / "here/outputs/word.txt").read_text(encoding="utf-8")) == 64
    assert f"{job} succeeded" in cli("stop", job).stdout


def test_a_failed_job_is_100_everywhere(cli: Cli) -> None:
    cli.task(habit="fails", steps=6)
    done = cli("run", "counter", "-y", code=100)
    assert "something broke" in done.stdout
    assert done.stderr.splitlines()[-2].startswith("error: failed")
    assert "broker logs" in done.stderr.splitlines()[-1]
    assert cli("wait", "counter", code=100).stdout.endswith(" failed\n")
    assert "no outputs" in cli("pull", "counter", code=101).stderr


def test_detached_then_waited_for_and_stopped(cli: Cli) -> None:
    cli.task(steps=500)
    done = cli("run", "counter", "-y", "-d")
    job = done.stdout.strip()
    assert f"broker logs -f {job}" in done.stderr
    assert job.startswith("counter-")
    assert "still" in cli("wait", job, "--timeout", "1", code=101).stderr
    wait_for(lambda: cli.json("ps")[0]["step"], "the first step")
    (rented,) = cli.json("ps", "--instances")
    assert rented["job"] == job
    stopped = cli("stop", job)
    assert stopped.stdout == f"{job} stopped\n"
    assert "nothing of it is left" in stopped.stderr
    assert cli.json("ps", "--instances") == []
    assert cli("wait", job, code=103).stdout == f"{job} stopped\n"
    assert cli.json("show", job)["stays"][0]["saves"] >= 1, "it was let save first"


def test_an_interrupted_run_is_handed_over(cli: Cli) -> None:
    cli.task(steps=30)
    process = cli.start("run", "counter", "-y", "-o", "json")
    job = wait_for(lambda: [row["id"] for row in cli.json("ps") if row["step"]], "the first step")[0]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert out == ""
    assert f"{job} goes on in the background" in err
    assert cli("wait", job, timeout=60).stdout == f"{job} succeeded\n"
    assert len(cli.json("show", job)["stays"]) == 1, "it was not moved for that"


def test_ctrl_c_asks_what_to_do_with_the_job(cli: Cli) -> None:
    cli.task(steps=500)
    with Terminal(cli, "run", "counter", "-y") as screen:
        screen.until("the program runs")
        screen.type("\x03")
        screen.until("Stop the job (s), leave it running in the background (b), or go on (Enter)?")
        screen.shown = ""
        screen.type("\n")
        screen.until("step 5")
        screen.type("\x03")
        screen.until("Stop the job (s)")
        screen.type("s\n")
        screen.until("stopping: the program is asked to save")
        assert screen.ended() == 103
        assert "stopped by its user" in screen.shown
    assert cli.json("ps", "--instances") == []


def test_a_stop_that_cannot_be_verified_says_so(finished: Finished) -> None:
    cli, job, _ = finished
    root = cli.state / "local"
    cloud.fail_calls(root, "instances", times=50)
    hasty = cli.folder / "hasty.toml"
    hasty.write_text("[providers.local]\npatience = 0.5\n", encoding="utf-8")
    done = cli("stop", job, code=1, env={"SPOTBROKER_CONFIG": str(hasty)})
    assert "local could not be asked whether all is gone" in done.stderr
    assert "verified with the provider" not in done.stderr
    cloud.clear(root)
    assert "nothing of it is left" in cli("stop", job).stderr


def test_run_in_quiet_and_json(cli: Cli) -> None:
    cli.task(steps=5)
    quiet = cli("run", "counter", "-y", "-q")
    (first,) = cli.json("ps", "-a")
    assert quiet.stdout == f"{first['id']}\n"
    assert quiet.stderr == ""
    report = json.loads(cli("run", "counter", "-y", "--json", "--env", "STEPS=3").stdout)
    assert report["status"] == "succeeded"
    assert report["stays"][0]["last_step"] == 3


def test_a_killed_run_is_carried_on_by_the_next_broker(cli: Cli) -> None:
    cli.task(steps=120)
    process = cli.start("run", "counter", "-y", "-q")
    job = wait_for(lambda: [row["id"] for row in cli.json("ps") if row["step"]], "the first step")[0]
    process.kill()
    process.communicate()
    assert f"no broker is running here that would move {job}" in cli("wait", job, "--timeout", "0", code=101).stderr
    assert cli("tick", "--wait", "2").stdout == f"{job} running\n"
    cli("up", "--until-idle", timeout=90)
    assert cli("wait", job).stdout == f"{job} succeeded\n"
    (stay,) = cli.json("show", job)["stays"]
    assert (stay["first_step"], stay["last_step"]) == (1, 120), "it was not moved for that"


def lost(cli: Cli, script: str) -> subprocess.CompletedProcess[str]:
    """Run a shell line in which `$B` is the command, and wait for the job to have its background broker."""
    return subprocess.run(
        ["bash", "-c", f"B='{sys.executable} -m broker'; {script}"],
        env=cli.env, cwd=cli.folder, text=True, capture_output=True, timeout=90, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        ("2>err | head -1", "Broken pipe"),
        ("2>&1 | grep -m1 submitted", ""),
        ("2>err >/dev/full", "No space left on device"),
    ],
)
def test_a_run_that_loses_its_output_leaves_its_job_to_another(cli: Cli, ending: str, words: str) -> None:
    """Nobody would drive it otherwise, and its machine would go on billing."""
    cli.task(steps=60)
    done = lost(cli, f"$B run counter -y {ending}; echo ${{PIPESTATUS[0]}} >code")
    assert (cli.folder / "code").read_text() == "130\n"
    err = (cli.folder / "err").read_text() if "err" in ending else ""
    assert "Traceback" not in done.stderr + err
    assert "Exception ignored" not in done.stderr + err
    (job,) = cli.json("ps")
    if words:
        assert f"the output cannot be written ({words}): {job['id']} goes on in the background" in err
    assert "no broker is running" not in cli("ps").stderr
    assert cli("wait", job["id"], timeout=90).stdout == f"{job['id']} succeeded\n"
    assert len(cli.json("show", job["id"])["stays"]) == 1


@pytest.mark.parametrize("closed", [">&- <&-", "2>&-", ">&- 2>&- <&-"])
def test_a_run_without_standard_streams_runs(cli: Cli, closed: str) -> None:
    cli.task(steps=5)
    assert lost(cli, f"$B run counter -y {closed}").returncode == 0
    (job,) = cli.json("ps", "-a")
    assert job["status"] == "succeeded"


def test_ps_says_when_nobody_drives(cli: Cli) -> None:
    cli.task(steps=400)
    process = cli.start("run", "counter", "-y", "-q")
    job = wait_for(lambda: [row["id"] for row in cli.json("ps") if row["step"]], "the first step")[0]
    assert cli("ps").stderr == ""
    process.kill()
    process.communicate()
    told = f"no broker is running here that would move {job}; start one with: broker up"
    assert told in cli("ps").stderr
    with cli.start("logs", "-f", job) as follower:
        assert follower.stderr is not None
        assert told in follower.stderr.readline()
        follower.kill()


def test_a_broker_that_stands_still_is_named(cli: Cli) -> None:
    """It holds its jobs, so nobody else can act on them: whoever waits is told why nothing happens."""
    cli.task(steps=400)
    job = cli("run", "counter", "-y", "-d").stdout.strip()
    wait_for(lambda: cli.json("ps")[0]["step"], "the first step")
    (lock,) = (cli.state / "engine.live").iterdir()
    pid = int(wait_for(lock.read_text, "a sign of life"))
    os.kill(pid, signal.SIGSTOP)
    try:
        assert "has not moved" not in cli("ps").stderr
        os.utime(lock, (time.time() - 40, time.time() - 40))
        words = f"the broker with process id {pid} has not moved for"
        stopping = cli.start("stop", job)
        for verb in (("ps",), ("wait", job, "--timeout", "0"), ("tick", "--wait", "0")):
            told = cli(*verb, code=None).stderr
            assert words in told, verb
            assert f"`kill -CONT {pid}` wakes it, `kill -9 {pid}` lets another" in told
    finally:
        os.kill(pid, signal.SIGCONT)
    out, err = stopping.communicate(timeout=60)
    assert words in err
    assert out == f"{job} stopped\n"
    assert "has not moved" not in cli("ps").stderr
