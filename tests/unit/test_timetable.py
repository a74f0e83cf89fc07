"""Runs of schedules: launched once, whoever looks; joined, skipped or queued as the schedule says."""

from __future__ import annotations

import multiprocessing
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa

from broker.cli import scheduling
from broker.config import Config
from broker.errors import ConfigError, HomeUnavailable, JobNotFound, TaskError
from broker.schedule import Schedule, Window
from broker.store import Store, open_store, prices
from broker.task import load
from broker.testing import wait_for
from broker.timetable import CHANGED, Entry, Run, Timetable, entry_of, runs, schedules
from broker.vault import KEY_FILE
from broker_local import LocalProvider

DAY = 86400.0
TEN = datetime(2026, 12, 1, 22, 0, tzinfo=UTC).timestamp()
TASK = 'name: nightly\nrun: echo hello\nspot: never\nresources: {infra: local}\nschedule: {cron: "0 22 * * *"}\n'


def config(folder: Path) -> Config:
    return Config(state=folder / "state", file=folder / "config.toml")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "state")


@pytest.fixture
def timetable(tmp_path: Path, store: Store) -> Timetable:
    return Timetable(config(tmp_path), store)


@pytest.fixture
def add(tmp_path: Path, timetable: Timetable) -> Callable[..., Entry]:
    """Adds the nightly task's schedule with changes, as if a day before the first run."""

    def added(text: str = TASK, **changes: object) -> Entry:
        file = tmp_path / "task.yaml"
        file.write_text(text, encoding="utf-8")
        entry = entry_of(load(file, environ={}), {}, {})
        schedule = replace(entry.schedule, **changes)  # type: ignore[arg-type]
        entry = replace(entry, schedule=schedule, added_at=TEN - DAY)
        timetable.add(entry)
        return timetable.entry("nightly")

    return added


def end(store: Store, job: str, status: str = "succeeded") -> None:
    store.update_job(job, status=status, exit_code=0, ended_at=time.time())


def test_a_run_is_launched_at_its_time_and_once(add: Callable[..., Entry], timetable: Timetable, store: Store) -> None:
    entry = add()
    assert timetable.see_to(entry, TEN - 1) is None
    run = timetable.see_to(entry, TEN + 3)
    assert run is not None
    assert (run.status, run.slot) == ("launched", TEN)
    assert store.job(run.job).name == "nightly"
    assert timetable.see_to(entry, TEN + 60) is None
    assert timetable.see_to(entry, TEN - 3600) is None, "the clock was set back"
    end(store, run.job)
    again = timetable.see_to(entry, TEN + DAY + 1)
    assert again is not None
    assert again.job != run.job
    assert len(store.jobs()) == 2


def test_a_clock_that_was_far_ahead_once_holds_up_nothing(
    add: Callable[..., Entry], timetable: Timetable, store: Store
) -> None:
    """A small computer without a clock of its own may start in 2099."""
    entry = add()
    wrong = timetable.see_to(entry, TEN + 73 * 365 * DAY)
    assert wrong is not None
    end(store, wrong.job)
    assert timetable.see_to(entry, TEN - 1) is None
    run = timetable.see_to(entry, TEN + 3)
    assert run is not None
    assert (run.status, run.slot) == ("launched", TEN)
    assert timetable.see_to(entry, TEN + 60) is None


def test_what_was_joined_does_not_come_after_a_clock_is_set_back(
    add: Callable[..., Entry], timetable: Timetable, store: Store
) -> None:
    entry = add()
    for now in (TEN, TEN + 3 * DAY + 60):  # two nights asleep
        run = timetable.see_to(entry, now)
        assert run is not None
        end(store, run.job)
    for days in range(4):
        assert timetable.see_to(entry, TEN + days * DAY + 30) is None
    assert len(store.jobs()) == 2


def test_a_home_out_of_reach_is_tried_again_until_the_next_run(
    add: Callable[..., Entry], timetable: Timetable, store: Store, tmp_path: Path
) -> None:
    """A laptop that wakes has no network for some seconds: the night is not lost for it."""
    entry = add()
    (tmp_path / "unplugged").touch()
    offline = Timetable(replace(timetable.config, home=f"file://{tmp_path}/unplugged/home"), store)
    for now in (TEN, TEN + 61):
        with pytest.raises(HomeUnavailable):
            offline.see_to(entry, now)
        (run,) = timetable.runs("nightly")
        assert (run.status, run.start) == ("queued", now + 60)
        assert run.note.startswith("tried again, since ")
        assert timetable.see_to(entry, now + 59) is None
    launched = timetable.see_to(entry, TEN + 130)
    assert launched is not None
    assert (launched.status, launched.slot) == ("launched", TEN)
    end(store, launched.job)
    for now in (TEN + DAY, TEN + 2 * DAY):
        with pytest.raises(HomeUnavailable):
            offline.see_to(entry, now)
    assert [run.status for run in timetable.runs("nightly")] == ["failed", "launched"]
    following = timetable.see_to(entry, TEN + 2 * DAY + 1)
    assert following is not None
    assert (following.status, following.slot) == ("launched", TEN + 2 * DAY)


def test_another_process_that_starts_later_sees_what_was_launched(
    add: Callable[..., Entry], timetable: Timetable, tmp_path: Path
) -> None:
    run = timetable.see_to(add(), TEN)
    assert run is not None
    other = Timetable(config(tmp_path), open_store(tmp_path / "state"))
    assert other.see_to(other.entry("nightly"), TEN + 5) is None


@pytest.mark.parametrize(("missed", "status", "jobs"), [("join", "launched", 1), ("skip", "missed", 0)])
def test_nights_asleep(
    add: Callable[..., Entry], timetable: Timetable, store: Store, missed: str, status: str, jobs: int
) -> None:
    entry = add(missed=missed)
    run = timetable.see_to(entry, TEN + 2 * DAY + 7200)
    assert run is not None
    assert (run.status, run.slot) == (status, TEN + 2 * DAY)
    assert "passed while nothing was awake" in run.note
    assert len(store.jobs()) == jobs
    assert timetable.see_to(entry, TEN + 2 * DAY + 7300) is None


def test_a_run_whose_predecessor_still_runs_is_skipped(
    add: Callable[..., Entry], timetable: Timetable, store: Store
) -> None:
    entry = add()
    first = timetable.see_to(entry, TEN)
    assert first is not None
    second = timetable.see_to(entry, TEN + DAY)
    assert second is not None
    assert (second.status, second.note) == ("skipped", f"{first.job} still runs")
    end(store, first.job)
    assert timetable.see_to(entry, TEN + DAY + 60) is None, "skipped is over"
    assert len(store.jobs()) == 1


def test_or_queued_behind_it_one_at_most(add: Callable[..., Entry], timetable: Timetable, store: Store) -> None:
    entry = add(overlap="queue")
    first = timetable.see_to(entry, TEN)
    assert first is not None
    second, third = timetable.see_to(entry, TEN + DAY), timetable.see_to(entry, TEN + 2 * DAY)
    assert second is not None
    assert third is not None
    assert [second.status, third.status] == ["queued", "skipped"]
    assert timetable.see_to(entry, TEN + 2 * DAY + 60) is None
    end(store, first.job)
    launched = timetable.see_to(entry, TEN + 2 * DAY + 120)
    assert launched is not None
    assert (launched.status, launched.slot) == ("launched", TEN + DAY)
    assert len(store.jobs()) == 2


def test_a_looker_that_died_half_way_is_followed_by_another(
    add: Callable[..., Entry], timetable: Timetable, store: Store
) -> None:
    """Both before its job was written down, and after: the job is one and the same."""
    entry = add()
    for written in (False, True):
        slot = TEN + written * DAY
        run = timetable.see_to(entry, slot)
        assert run is not None
        with store.engine.begin() as db:
            db.execute(sa.update(runs).where(runs.c.slot == slot).values(status="claimed"))
            if not written:
                db.execute(sa.text("DELETE FROM spotbroker_jobs"))
        assert timetable.see_to(entry, slot + 60) is None, "it may still be at work"
        taken = timetable.see_to(entry, slot + 200)
        assert taken is not None
        assert (taken.status, taken.job) == ("launched", run.job)
        assert [row.id for row in store.jobs()].count(run.job) == 1
        end(store, run.job)


def test_what_cannot_be_launched_is_written_down_and_raised(add: Callable[..., Entry], timetable: Timetable) -> None:
    entry = add()
    entry.file.write_text("rum: x\n", encoding="utf-8")
    with pytest.raises(TaskError, match="did you mean run"):
        timetable.see_to(entry, TEN)
    (run,) = timetable.runs("nightly")
    assert run.status == "failed"
    assert "did you mean run" in run.note
    entry.file.unlink()
    with pytest.raises(TaskError, match="is not there any more") as raised:
        timetable.see_to(entry, TEN + DAY)
    assert raised.value.fix == "broker schedule rm nightly"
    ((_, error),) = timetable.look(TEN + 2 * DAY)
    assert isinstance(error, TaskError)


def test_its_own_limits_are_set_over_the_tasks(add: Callable[..., Entry], timetable: Timetable, store: Store) -> None:
    text = TASK.replace("spot: never", "spot: never\nwork: {hours: 1}\ndeadline: 3h\nmax_price: 2")
    entry = add(text, tz="Europe/Paris", deadline="07:00", max_price=1.5)
    run = timetable.see_to(entry, TEN + 7200)
    assert run is not None
    task = store.job(run.job).task
    assert task["deadline"] == "2026-12-02T07:00:00+01:00"
    assert task["max_price"] == 1.5


def test_what_the_shell_gave_is_kept_sealed(tmp_path: Path, timetable: Timetable, store: Store) -> None:
    file = tmp_path / "task.yaml"
    file.write_text(f"{TASK}secrets: [HF_TOKEN, IN_FILE=in-the-file]\nenvs: {{SIZE: }}\n", encoding="utf-8")
    environ = {"HF_TOKEN": "hf-example-0001"}
    entry = entry_of(load(file, envs={"SIZE": "7"}, environ=environ), environ, {"SIZE": "7"})
    timetable.add(entry)
    assert dict(entry.given["secrets"]) == environ, "what the file says is read from it each time"
    kept = (tmp_path / "state" / "jobs.db").read_bytes() + (tmp_path / "state" / "jobs.db-wal").read_bytes()
    assert b"hf-example-0001" not in kept
    task = timetable.task(timetable.entry("nightly"), TEN, TEN)
    assert task.secrets == {"HF_TOKEN": "hf-example-0001", "IN_FILE": "in-the-file"}
    assert task.envs == {"SIZE": "7"}


def test_a_task_without_a_schedule_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "task.yaml"
    file.write_text("run: x\nspot: never\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="has no schedule"):
        entry_of(load(file), {}, {})
    with pytest.raises(ConfigError, match="needs a task file"):
        entry_of(replace(load(file), source=None, schedule=Schedule("@daily")), {}, {})


def test_removed_is_removed(add: Callable[..., Entry], timetable: Timetable) -> None:
    add()
    assert timetable.remove("nightly")
    assert not timetable.remove("nightly")
    assert timetable.entries() == []
    with pytest.raises(JobNotFound, match="no schedule 'nightly' here"):
        timetable.entry("nightly")


LOOKERS, NIGHTS = 4, 6


def look_every_night(folder: Path, gates: list[object], found: object) -> None:
    """A process of its own: all lookers look at the same moment, night after night."""
    timetable = Timetable(config(folder), open_store(folder / "state"))
    for night, gate in enumerate(gates):
        gate.wait(30)  # type: ignore[attr-defined]
        now = TEN + night * DAY
        for _, run in timetable.look(now):
            if not isinstance(run, Exception) and run.status == "launched":
                end(timetable.store, run.job)
                found.put(run.slot)  # type: ignore[attr-defined]


def test_lookers_that_race_launch_once(add: Callable[..., Entry], tmp_path: Path, store: Store) -> None:
    add()
    context = multiprocessing.get_context("spawn")
    gates, found = [context.Barrier(LOOKERS) for _ in range(NIGHTS)], context.Queue()
    lookers = [context.Process(target=look_every_night, args=(tmp_path, gates, found)) for _ in range(LOOKERS)]
    for looker in lookers:
        looker.start()
    for looker in lookers:
        looker.join(60)
        assert looker.exitcode == 0
    assert len(store.jobs()) == NIGHTS
    assert sorted(found.get(timeout=5) for _ in range(NIGHTS)) == [TEN + night * DAY for night in range(NIGHTS)]
    assert found.empty()


def test_a_run_waits_in_its_window_for_cheaper_hours(
    add: Callable[..., Entry], timetable: Timetable, store: Store, tmp_path: Path
) -> None:
    entry = add(TASK + "work: {hours: 1}\n", window=Window("22:00", "07:00"), deadline="07:00")
    offer = f"local/north/north-1/{LocalProvider({}, tmp_path).settings.instance_type}"
    looks = [TEN - 14 * DAY + 3600.0 * n for n in range(24 * 14)]
    points = [(at, 0.02 if datetime.fromtimestamp(at, UTC).hour in (2, 3) else 0.03) for at in looks]
    with store.engine.begin() as db:
        rows = [{"offer": f"{offer}/on_demand", "at": at, "price": price} for at, price in points]
        db.execute(sa.insert(prices), rows)
    run = timetable.see_to(entry, TEN)
    assert run is not None
    assert (run.status, run.start) == ("queued", TEN + 4 * 3600)
    assert "waits until Wed 2026-12-02 02:00 +00:00: past prices then were 33% lower" in run.note
    assert store.jobs() == []
    assert timetable.see_to(entry, TEN + 3 * 3600) is None
    launched = timetable.see_to(entry, TEN + 4 * 3600)
    assert launched is not None
    assert launched.status == "launched"
    assert store.job(launched.job).task["deadline"] == "2026-12-02T07:00:00+00:00"
    end(store, launched.job)
    assert timetable.see_to(entry, TEN + 5 * 3600) is None


def test_before_its_window_a_run_waits_for_it(add: Callable[..., Entry], timetable: Timetable) -> None:
    entry = add(window=Window("23:30", "07:00", "first"))
    run = timetable.see_to(entry, TEN)
    assert run is not None
    assert (run.status, run.start) == ("queued", TEN + 5400)
    late = timetable.see_to(entry, TEN + 5400)
    assert late is not None
    assert late.status == "launched"


@pytest.mark.parametrize(("missed", "status"), [("join", "launched"), ("skip", "missed")])
def test_a_run_whose_window_passes_asleep_is_missed(
    add: Callable[..., Entry], timetable: Timetable, missed: str, status: str
) -> None:
    entry = add(window=Window("23:30", "07:00", "first"), missed=missed)
    assert timetable.see_to(entry, TEN) is not None
    run = timetable.see_to(entry, TEN + 10 * 3600)
    assert run is not None
    assert run.status == status
    assert [known.status for known in timetable.runs("nightly")] == [status]


def test_a_schedule_that_was_changed_in_its_file_is_told(add: Callable[..., Entry], timetable: Timetable) -> None:
    entry = add()
    entry.file.write_text(TASK.replace("0 22", "0 3"), encoding="utf-8")
    run = timetable.see_to(entry, TEN)
    assert run is not None
    assert (run.status, run.note) == ("launched", CHANGED)
    assert timetable.runs("nightly")[0].note == CHANGED


def test_every_name_has_a_mark_of_its_own() -> None:
    from broker.crontab import plain

    assert plain("nightly") == "nightly"
    found = [plain(name) for name in ("a b", "a_b", "a-b", "A b", "ä b", "%", "#")]
    assert len(set(found)) == len(found)
    assert all(mark.replace("-", "").isalnum() for mark in found)


def test_the_crontabs_line_survives_every_character(tmp_path: Path) -> None:
    """cron takes a backslash before a percent sign away, and hands the rest to sh."""
    from broker import crontab

    odd = replace(config(tmp_path), state=tmp_path / "we ird $x'y%z")
    text = crontab.line("n 'x' $y %d", Schedule("0 22 * * *"), odd, "mark", TEN)
    assert text.startswith("0 * * * * /usr/bin/env ")
    shell = text.split(" ", 5)[5].replace(r"\%", "%")
    shown = subprocess.run(
        ["sh", "-c", shell.replace("/usr/bin/env", "printf '%s\\n'", 1)], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert f"SPOTBROKER_STATE={odd.state}" in shown
    assert shown[-1] == "n 'x' $y %d"


def test_one_schedule_in_trouble_holds_up_no_other(
    add: Callable[..., Entry], timetable: Timetable, tmp_path: Path, store: Store
) -> None:
    entry = add()
    for name, file in (("a", tmp_path / ("x" * 300)), ("b", entry.file)):  # a name that no folder takes: OSError
        timetable.add(replace(entry, name=name, file=file, given={"secrets": {"A": "b"}} if name == "b" else {}))
    (tmp_path / "state" / KEY_FILE).unlink()
    found = {known.name: run for known, run in timetable.look(TEN)}
    assert str(found["a"]).startswith("unexpected OSError: ")
    assert "sealed under another key" in str(found["b"])
    assert isinstance(found["nightly"], Run)
    assert [job.id for job in store.jobs()] == [found["nightly"].job]


def test_a_broker_goes_on_looking_whatever_happens_to_a_look(
    add: Callable[..., Entry], timetable: Timetable, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log is a folder, and then its database holds what it does not understand."""
    monkeypatch.setattr(scheduling, "LOOK", 0.05)
    scheduling.log_file(timetable.config).mkdir()
    entry, ended, told = add(cron="* * * * *"), threading.Event(), list[str]()
    timetable.add(replace(entry, added_at=time.time() - 61))
    looking = threading.Thread(
        target=scheduling.keep_schedules, args=(timetable.config, ended), kwargs={"say": told.append}
    )
    looking.start()
    try:
        wait_for(store.jobs, 30)
        with store.engine.begin() as db:
            db.execute(sa.update(schedules).values(schedule={"cron": "* * * * *", "of_a_newer_version": 1}))
        wait_for(lambda: any("could not be looked at" in text for text in told), 30)
        timetable.add(entry)
        timetable.add(replace(entry, name="other", added_at=time.time() - 61))
        wait_for(lambda: any(text.startswith("schedule other: launched") for text in told), 30)
    finally:
        ended.set()
        looking.join(30)
    assert sum("could not be looked at" in text for text in told) == 1
