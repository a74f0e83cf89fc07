"""Schedules from the command line, woken by the real cron daemon of Debian's package."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from cli import shop
from cli.command import Cli, wait_for

from broker.config import load
from broker.store import open_store
from broker.timetable import Timetable, runs

HAS_CRON = pytest.mark.skipif(
    shutil.which("crontab") is None or os.geteuid() != 0,
    reason="needs Debian's package cron, and to be root: nobody's own crontab is edited",
)
EACH_MINUTE = 'schedule: {cron: "* * * * *", tz: Europe/Lisbon}\n'
DAILY = f'schedule: {{cron: "{datetime.now(UTC) - timedelta(minutes=30):%M %H * * *}"}}\n'
"""Its run was half an hour ago: the next one comes in no test, however busy the computer is."""
DAY = 86400.0


def scheduled(cli: Cli, line: str = EACH_MINUTE, **options: object) -> Path:
    folder = cli.task(**options)  # type: ignore[arg-type]
    with (folder / "task.yaml").open("a", encoding="utf-8") as file:
        file.write(line)
    return folder


@pytest.fixture
def crontab() -> Iterator[None]:
    """The user's one crontab: for one test at a time, and left as it was found."""
    with Path("/tmp/spotbroker-test-crontab.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = subprocess.run(["crontab", "-l"], capture_output=True, text=True, check=False).stdout
        yield
        subprocess.run(["crontab", "-"], input=before, text=True, check=True)


def lines() -> list[str]:
    found = subprocess.run(["crontab", "-l"], capture_output=True, text=True, check=False).stdout
    return [line for line in found.splitlines() if "# spotbroker:" in line]


def test_next_prints_three_runs_with_their_offset(cli: Cli) -> None:
    scheduled(cli, 'schedule: {cron: "30 2 * * *", tz: Asia/Kolkata}\n')
    out = cli("schedule", "next", "counter").stdout.splitlines()
    assert len(out) == 3
    assert all(re.fullmatch(r"\w{3} \d{4}-\d\d-\d\d 02:30 \+05:30", line) for line in out)
    moments = [datetime.fromisoformat(text) for text in cli.json("schedule", "next", "counter", "--count", "2")]
    assert (moments[1] - moments[0]).total_seconds() == 86400


def test_a_task_without_a_schedule_is_told_how(cli: Cli) -> None:
    cli.task()
    done = cli("schedule", "add", "counter", "--up", code=78)
    assert "has no schedule" in done.stderr
    assert 'schedule: {cron: "0 22 * * 1-5", tz: Europe/Lisbon}' in done.stderr


def test_a_run_that_would_fail_is_told_when_its_schedule_is_added(cli: Cli) -> None:
    folder = scheduled(cli, 'schedule: {cron: "0 22 * * *", deadline: "07:00"}\n')
    file = folder / "task.yaml"
    without = re.sub(r"^work: .*\n", "", file.read_text(), flags=re.MULTILINE)
    file.write_text(f"{without}work: {{hours: 1}}\n")
    assert "tried: it would rent local/" in cli("schedule", "add", "counter", "--up").stderr
    file.write_text(without)
    told = cli("schedule", "add", "counter", "--up").stderr
    assert "warning: its runs will fail: " in told
    assert "how much work there is" in told


@HAS_CRON
def test_add_list_rm_are_one_marked_line(cli: Cli, crontab: None) -> None:
    scheduled(cli, 'schedule: {cron: "30 22 * * 1-5", tz: Asia/Kolkata}\n')
    printed = cli("schedule", "add", "counter", "--print").stdout.strip()
    assert lines() == []
    for _ in range(2):  # the second time it takes the first one's place
        added = cli("schedule", "add", "counter")
        assert len(added.stdout.splitlines()) == 3
        assert "tried as cron will run it: it would rent local/" in added.stderr
    assert lines() == [printed]
    nowhere = {"XDG_CONFIG_HOME": str(cli.folder / "units"), "DBUS_SESSION_BUS_ADDRESS": "", "XDG_RUNTIME_DIR": ""}
    assert "does not run" in cli("schedule", "add", "counter", "--systemd", code=78, env=nowhere).stderr
    assert lines() == [printed], "what cannot be woken another way is woken as before"
    assert re.match(r"0 \* \* \* \* /usr/bin/env SPOTBROKER_STATE=", printed), "22:30 in Kolkata is a full hour of UTC"
    (row,) = cli.json("schedule", "list")
    assert (row["name"], row["by"], len(row["next"]), row["last"]) == ("counter", "cron", 3, None)
    assert "30 22 * * 1-5 Asia/Kolkata" in cli("schedule", "list").stdout
    cli("schedule", "rm", "counter")
    assert lines() == []
    assert cli.json("schedule", "list") == []
    assert "no schedule 'counter' here" in cli("schedule", "rm", "counter", code=102).stderr


@HAS_CRON
def test_a_key_that_only_the_shell_has_is_told_before_the_night(market: Cli, crontab: None) -> None:
    scheduled(market)
    task = market.folder / "counter/task.yaml"
    task.write_text(task.read_text().replace("{infra: local}", "{infra: shop, accelerators: L4}"))

    def added(**env: str) -> str:
        process = market.start("schedule", "add", "counter", env=env)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        return err

    told = added(SHOP_API_KEY=shop.KEY)
    assert "shop can be used from here and not from cron, which has nothing of your shell: no key yet" in told
    assert "broker check shop keeps its key where cron finds it (here SHOP_API_KEY opens it)" in told
    shop.given(market, shop.KEY, "shop")
    told = added(SHOP_API_KEY=shop.KEY)
    assert "can be used from here" not in told
    assert "its runs will fail: file://" in told
    assert "which no machine of shop can reach" in told


@HAS_CRON
def test_add_says_what_cron_would_lack(cli: Cli, crontab: None) -> None:
    """A secret in the shell's environment is kept sealed; a configuration that only the shell names is not there."""
    folder = scheduled(cli)
    with (folder / "task.yaml").open("a", encoding="utf-8") as file:
        file.write("secrets: [HF_TOKEN]\n")
    assert "has no value" in cli("schedule", "add", "counter", code=78).stderr
    process = cli.start("schedule", "add", "counter", env={"HF_TOKEN": "hf-example-0002"})
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "tried as cron will run it: it would rent local/" in err
    assert "kept sealed for its runs, as they are now: HF_TOKEN; add the schedule again when they change" in err
    assert not any("hf-example-0002" in line for line in lines())
    (folder / "task.yaml").write_text("run: x\nspot: never\n" + EACH_MINUTE + "workdir: gone\n", encoding="utf-8")
    failed = cli("schedule", "fire", "counter", "--dry-run", code=78)
    assert "workdir: no such folder" in failed.stderr


def test_the_units_are_what_systemd_takes(cli: Cli, tmp_path: Path) -> None:
    scheduled(cli, 'schedule: {cron: "*/20 * * * *"}\n')
    env = {"XDG_CONFIG_HOME": str(tmp_path / "a b%c")}
    process = cli.start("schedule", "add", "counter", "--systemd", "--print", env=env)
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 0
    _, service, timer = re.split(r"^# .*spotbroker-counter\.(?:service|timer)\n", text, flags=re.MULTILINE)
    assert "OnCalendar=*-*-* *:00,20,40:00" in timer
    assert "ExecStart=/usr/bin/env SPOTBROKER_STATE=" in service
    if (verify := shutil.which("systemd-analyze")) is None:
        pytest.skip("systemd-analyze is not installed")
    for name, content in (("spotbroker-counter.service", service), ("spotbroker-counter.timer", timer)):
        (tmp_path / name).write_text(content, encoding="utf-8")
    names = [str(tmp_path / f"spotbroker-counter.{kind}") for kind in ("service", "timer")]
    checked = subprocess.run([verify, "verify", *names], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert "spotbroker-counter" not in checked.stderr


def asleep(cli: Cli, seconds: float) -> None:
    """Let it be as if the schedule had been added so long ago, and nothing had been awake since."""
    config = load(state=cli.state, file=cli.folder / "config.toml")
    timetable = Timetable(config, open_store(config.state))
    (entry,) = timetable.entries()
    timetable.add(replace(entry, added_at=time.time() - seconds))
    with timetable.store.engine.begin() as db:
        db.execute(sa.delete(runs))
    timetable.store.close()


def test_fire_runs_what_is_due_and_mails_how_it_ended(cli: Cli) -> None:
    scheduled(cli, DAILY, steps=10, pause=0.05)
    cli("schedule", "add", "counter", "--up")
    asleep(cli, 3 * DAY)
    done = cli("schedule", "fire", "counter")
    first, *others = done.stdout.splitlines()
    (job,) = cli.json("ps", "-a")
    assert first == f"{job['id']} succeeded"
    assert len(others) < 12
    assert "joins 2 runs that passed while nothing was awake" in others
    assert f"outputs: 1 file: broker pull {job['id']}" in others
    assert others[-1].startswith("next: ")
    log = (cli.state / "schedule.log").read_text()
    assert f"counter: launched {job['id']}" in log
    assert f"counter: {job['id']} succeeded" in log


def test_fire_ends_with_the_jobs_own_code(cli: Cli) -> None:
    scheduled(cli, DAILY, steps=6, pause=0.05, habit="fails")
    cli("schedule", "add", "counter", "--up")
    asleep(cli, DAY)
    done = cli("schedule", "fire", "counter", code=100)
    assert "failed: exit 3" in done.stdout.splitlines()[0]
    assert "  | something broke" in done.stdout


def test_fire_ends_with_75_where_nothing_is_to_be_had(cli: Cli) -> None:
    scheduled(cli, DAILY.replace("}", ", max_price: 0.000001}"))
    cli("schedule", "add", "counter", "--up")
    asleep(cli, DAY)
    done = cli("schedule", "fire", "counter", code=75)
    assert "nothing was rented" in done.stdout
    assert "try: " in done.stdout


def test_up_runs_schedules_where_there_is_no_cron(cli: Cli) -> None:
    scheduled(cli, steps=5, pause=0.05)
    cli("schedule", "add", "counter", "--up")
    asleep(cli, 100)
    process = cli.start("up")
    try:
        wait_for(lambda: [row for row in cli.json("ps", "-a") if row["status"] == "succeeded"], "the run's end", 60)
    finally:
        process.terminate()
        _, err = process.communicate(timeout=60)
    assert "schedule counter: launched counter-" in err
    assert "nothing runs while this computer sleeps" not in err


def test_tick_looks_at_schedules_too(cli: Cli) -> None:
    scheduled(cli, DAILY, steps=5, pause=0.05)
    cli("schedule", "add", "counter", "--up")
    asleep(cli, DAY)
    assert "schedule counter: launched counter-" in cli("tick", "--wait", "2").stderr
    assert len(cli.json("ps", "-a")) == 1


@contextlib.contextmanager
def cron_daemon(log: Path) -> Iterator[None]:
    """Debian's cron, in the foreground; the system's own where one runs already."""
    with log.open("wb") as file:
        daemon = subprocess.Popen(["/usr/sbin/cron", "-f", "-L", "7"], stdout=file, stderr=file)
    wait_for(lambda: daemon.poll() is not None or Path("/run/crond.pid").exists(), "the daemon", 10)
    assert daemon.poll() is None or b"can't lock" in log.read_bytes(), log.read_text()
    try:
        yield
    finally:
        daemon.terminate()
        daemon.wait()


@HAS_CRON
@pytest.mark.slow
def test_the_real_daemon_launches_what_was_missed_once_and_does_not_overlap(
    cli: Cli, crontab: None, tmp_path: Path
) -> None:
    """Asleep over some runs, then awake over two minutes, the second of which comes while the first run still runs."""
    scheduled(cli, steps=150, pause=0.5)
    cli("schedule", "add", "counter")
    asleep(cli, 185)  # no daemon was there
    assert cli.json("ps", "-a") == []

    config = load(state=cli.state, file=cli.folder / "config.toml")
    with contextlib.closing(open_store(config.state)) as store, cron_daemon(tmp_path / "cron.log"):
        timetable = Timetable(config, store)
        wait_for(lambda: any(run.status == "launched" for run in timetable.runs("counter")), "the first minute", 70)
        wait_for(lambda: len(timetable.runs("counter")) == 2, "the second minute", 70)
        newest, first = timetable.runs("counter")
    assert first.status == "launched"
    assert re.match(r"joins [34] runs that passed", first.note)
    assert (newest.status, newest.note) == ("skipped", f"{first.job} still runs")
    (row,) = cli.json("ps", "-a")
    assert row["id"] == first.job
    assert row["status"] in ("running", "succeeded")


def test_up_runs_schedules_while_a_background_broker_drives_and_takes_its_place(cli: Cli) -> None:
    """`broker run -d` leaves a broker that ends when nothing is left to drive, and knows of no schedule."""
    scheduled(cli, steps=5, pause=0.05)
    cli.task("other", steps=60, pause=0.1)
    cli("run", "other", "-y", "-d")
    cli("schedule", "add", "counter", "--up")
    asleep(cli, 100)
    process = cli.start("up")
    try:
        wait_for(lambda: any(row["id"].startswith("counter-") for row in cli.json("ps", "-a")), "the run", 60)
        wait_for(lambda: all(row["status"] == "succeeded" for row in cli.json("ps", "-a")), "all ends", 60)
        assert process.stderr is not None
        told = [process.stderr.readline()]
        while f"broker up, state in {cli.state}" not in told[-1]:
            told.append(process.stderr.readline())
            assert told[-1], "it ended instead of taking the other's place"
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert any("this one takes its place when it ends" in line for line in told)
