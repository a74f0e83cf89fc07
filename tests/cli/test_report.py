"""The report and the verdict, from rows written down here: what is lost, where, for how long, at what cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker.cli.timeline import axis, lane, render
from broker.manifest import Manifest
from broker.rehearse.compare import Difference, difference
from broker.rehearse.hand import TakeBack, Window
from broker.rehearse.verdict import judge
from broker.report import Report, build
from broker.store import Event, JobRow, PlacementRow

JOB = JobRow(
    id="train-1", name="train", created_at=0.0, status="succeeded", home="file:///h", message="succeeded",
    task={"checkpoint": {"path": "checkpoints"}}, ended_at=100.0, exit_code=0,
    plan={
        "reasons": ["cheapest"],
        "ranked": [
            {"key": "local/n/n-1/cpu-2/spot", "cost": 0.01, "why": ""},
            {"key": "local/n/n-1/cpu-2/on_demand", "cost": 0.04, "why": ""},
        ],
    },
)  # fmt: skip


def placement(generation: int, start: float, end: float, **beat: Any) -> PlacementRow:
    offer = {"provider": "local", "region": "n", "zone": "n-1", "instance_type": "cpu-2", "market": "spot"}
    return PlacementRow(
        job="train-1", generation=generation, status="ended", request={"offer": {**offer, "simulated": True}},
        reasons=["spot in n; saves 75%"], picked_at=start, instance=f"m-{generation}", market="spot", hourly=0.01,
        launched_at=start, first_beat_at=start + 1, ended_at=end, confirmed=True,
        cause="preempted" if not beat.get("result") else "self", beat=beat,
    )  # fmt: skip


def manifest(generation: int, seq: int, at: float, step: int) -> Manifest:
    return Manifest(generation=generation, seq=seq, at=at, step=step, entries={}, files={})


FIRST = placement(
    1, 0.0, 50.0, program_started_at=10.0, first_step=1, progress={"step": 43, "total": 100, "at": 49.0},
    timings={"setup": 6.0},
)  # fmt: skip
SECOND = placement(
    2, 51.0, 100.0, program_started_at=60.0, first_step=41, restored=[1, 4], progress={"step": 100, "total": 100},
    timings={"setup": 4.0, "restore": 1.0}, result={"outcome": "succeeded", "at": 98.0}, closed={"seq": 9, "at": 98.0},
)  # fmt: skip
EVENTS = [
    Event(1, "train-1", 1, 2.0, "setup", "", {}),
    Event(2, "train-1", 1, 50.0, "preempted", "", {}),
    Event(3, "train-1", 2, 53.0, "setup", "", {}),
]
MANIFESTS = {1: [manifest(1, n, 10.0 * n, 10 * n) for n in (1, 2, 3, 4)], 2: [manifest(2, 1, 70.0, 60)]}


def report(**changes: Any) -> Report:
    rows = [changes.pop("first", FIRST), changes.pop("second", SECOND)]
    return build(replace(JOB, **changes), rows, EVENTS, MANIFESTS, now=100.0)


def test_a_move_is_measured() -> None:
    (move,) = report().moves
    assert (move.reached, move.restored, move.restored_step, move.resumed, move.lost) == (43, (1, 4), 40, 41, 3)
    assert move.why == "preempted"
    assert move.gap == pytest.approx(10.0)
    assert move.setup == pytest.approx(4.0)


def test_what_is_known_better_than_by_the_last_beat_counts() -> None:
    told = build(JOB, [FIRST, SECOND], EVENTS, MANIFESTS, now=100.0, reached={1: 47})
    assert told.moves[0].lost == 7


def test_setup_is_apart_from_running() -> None:
    first, second = report().stays
    assert [(s.what, s.start, s.end) for s in first.segments] == [
        ("boot", 0.0, 2.0), ("setup", 2.0, 8.0), ("wait", 8.0, 10.0), ("run", 10.0, 50.0),
    ]  # fmt: skip
    assert [s.what for s in second.segments] == ["boot", "setup", "wait", "restore", "run", "close"]
    assert second.segments[-1].start == 98.0


def test_money_against_on_demand_for_the_same_time() -> None:
    told = report()
    assert told.spent == pytest.approx(0.01 * 99 / 3600)
    assert told.on_demand == pytest.approx(0.04 * 99 / 3600)
    assert told.simulated


def test_without_a_price_on_demand_nothing_is_claimed() -> None:
    assert report(plan=None).on_demand is None


def test_a_placement_that_never_ran_its_program_is_no_resumption() -> None:
    lost_in_setup = placement(2, 51.0, 55.0, timings={})
    last = replace(SECOND, generation=3)
    told = build(JOB, [FIRST, lost_in_setup, last], EVENTS, MANIFESTS, now=100.0)
    assert [(m.source, m.target, m.lost) for m in told.moves] == [(1, 3, 3)]
    assert len(told.stays) == 3


def test_the_timeline_shows_when_what_was() -> None:
    first, second = report().stays
    cells = lane(first, 0.0, 100.0, 100)
    assert cells[0] == "boot"
    assert cells[5] == "setup"
    assert cells[20] == "save"
    assert cells[45] == "run"
    assert cells[50] == "preempted"
    assert set(cells[51:]) == {""}
    assert lane(second, 0.0, 100.0, 100)[98] == "done"
    assert axis(100.0, 60).split() == ["0", "30s", "60s", "90s"]


@pytest.mark.parametrize("width", [80, 120])
def test_a_report_fits_its_screen(width: int) -> None:
    from rich.console import Console

    console = Console(width=width, color_system=None)
    with console.capture() as shown:
        console.print(*render(report(), width), sep="\n")
    assert max(len(line.rstrip()) for line in shown.get().splitlines()) <= width
    assert "3 steps" in shown.get()
    assert "10.0 s" in shown.get()


# The verdict


def take(generation: int = 1, step: int = 43, newest: int = 40) -> TakeBack:
    return TakeBack(1, generation, "vast", 50.0, step, (1, 4), newest)


def verdict(
    told: Report | None = None, *, status: str = "succeeded", message: str = "", **more: Any
) -> tuple[int, str]:
    given = {"taken": [take()], "wanted": 1, "interval": 10, **more}
    found = judge(replace(JOB, status=status, message=message), told or report(), given.pop("taken"), **given)
    return found.code, found.text


def beat(**changes: Any) -> Report:
    return report(second=replace(SECOND, beat={**SECOND.beat, **changes}))  # type: ignore[dict-item]


def test_all_good_survives() -> None:
    assert verdict() == (0, "survives preemption")
    assert verdict(compared=["w"], differences=()) == (0, "survives preemption")


@pytest.mark.parametrize(
    ("told", "more", "code", "words"),
    [
        (beat(first_step=1), {}, 100, "began again at step 1 although the snapshot of step 40 had been restored"),
        (beat(restored=None, first_step=1), {}, 100, "began again from nothing"),
        (beat(first_step=31), {"interval": 3}, 100, "it began again at step 31"),
        (beat(first_step=36), {}, 0, "survives"),  # re-done from an older save, within one interval
        (beat(first_step=60), {}, 100, "went on at step 60 though only step 43 had been reached"),
        (beat(first_step=None), {}, 101, "reports no steps"),
        (None, {"taken": []}, 101, "it ended before it was taken back"),
        (None, {"wanted": 3}, 101, "after it was taken back once of 3"),
        (
            None,
            {"status": "failed", "message": "failed: exit 1"},
            100,
            "after it was taken back once it failed: exit 1",
        ),
        (None, {"status": "failed", "message": "failed: exit 1", "taken": []}, 101, "did not get to its end"),
        (None, {"status": "unavailable", "message": "no offer"}, 101, "did not get to its end: no offer"),
        (None, {"interval": 2, "taken": [take(newest=42)]}, 100, "3 steps lost, more than the 2"),
        (None, {"interval": 2}, 0, "survives"),  # the newest save was not uploaded when the machine went
        (None, {"compared": ["w"], "differences": [Difference("w", "arrays differ: a")]}, 100, "arrays differ: a"),
        (None, {"compared": ["w"], "differences": [Difference("w", "nowhere", missing=True)]}, 101, "w: nowhere"),
    ],
)
def test_verdicts(told: Report | None, more: dict[str, Any], code: int, words: str) -> None:
    found = verdict(told, **more)
    assert found[0] == code, found
    assert words in found[1]


def test_a_failure_outweighs_what_proves_nothing() -> None:
    assert verdict(beat(restored=None), wanted=3)[0] == 100


# When it is taken back


@pytest.mark.parametrize("interval", [2, 5, 40])
def test_a_take_back_is_strictly_between_two_saves(interval: int) -> None:
    for number in (1, 2, 3):
        for lot in range(50):
            window = Window(number, 3, place=lot / 50, phase=(lot * 7 % 50) / 50)
            for now in (interval + 1, 3 * interval, 100 * interval - 1):
                target = window.target(now, interval, interval, 200 * interval)
                assert target > now
                assert (target - interval) % interval != 0
                assert target < 200 * interval


def test_files_are_compared_by_what_they_hold(tmp_path: Any) -> None:
    numpy = pytest.importorskip("numpy")
    one, two = tmp_path / "a.npz", tmp_path / "b.npz"
    numpy.savez(one, same=numpy.zeros(3), weights=numpy.ones(3))
    numpy.savez(two, same=numpy.zeros(3), weights=numpy.full(3, 2.0))
    assert difference(one, two) == "arrays differ: weights"
    (tmp_path / "x").write_bytes(b"abcdef")
    (tmp_path / "y").write_bytes(b"abcXef")
    assert difference(tmp_path / "x", tmp_path / "y") == "6 bytes against 6, different from byte 3 on"
