"""The report and the verdict, from rows written down here: what is lost, where, for how long, at what cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker.cli.timeline import GLYPHS, MARKS, WORDS, axis, lane, render
from broker.manifest import File, Manifest
from broker.rehearse.advice import advise
from broker.rehearse.compare import Difference, difference
from broker.rehearse.evidence import Evidence, Seen, new_step
from broker.rehearse.hand import TakeBack, Window
from broker.rehearse.series import Series
from broker.rehearse.verdict import judge
from broker.report import Report, build, with_steps
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
    assert move.startup == pytest.approx(9.0)


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


def test_a_machine_has_started_up_with_its_first_step() -> None:
    """Or with its program's start, where that reports none."""
    told = build(JOB, [FIRST], [*EVENTS, Event(4, "train-1", 1, 21.5, "first_step", "", {})], MANIFESTS, now=100.0)
    assert [stay.startup for stay in (*told.stays, *report().stays)] == [21.5, 10.0, 9.0]


def test_money_against_on_demand_for_the_same_time() -> None:
    told = report()
    assert told.spent == pytest.approx(0.01 * 99 / 3600)
    assert told.on_demand == pytest.approx(0.04 * 99 / 3600)
    assert told.simulated


def test_steps_that_only_the_output_shows() -> None:
    quiet = {"first_step": None, "progress": None}
    first = replace(FIRST, beat={**(FIRST.beat or {}), **quiet})
    second = replace(SECOND, beat={**(SECOND.beat or {}), **quiet})
    told = with_steps(report(first=first, second=second), {1: log(1, 43), 2: log(41, 100)}, {2: 71.5})
    assert [(stay.first_step, stay.last_step) for stay in told.stays] == [(1, 43), (41, 100)]
    assert [(move.reached, move.resumed, move.lost, move.startup) for move in told.moves] == [(43, 41, 3, 20.5)]
    assert [stay.startup for stay in told.stays] == [10.0, 20.5], "where it was printed it is known when"
    logs = {1: log(1, 7, unit="epoch"), 2: log(7, 9, unit="epoch")}
    epochs = with_steps(report(first=first, second=second), logs)
    assert (epochs.unit, epochs.moves[0].reached, epochs.moves[0].lost) == ("epoch", 7, None)
    assert with_steps(report(), {1: log(7, 9)}) == report(), "what it reports itself counts"


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
    assert axis(1.1, 60).split() == ["0", "0.5s", "1.0s"]
    assert axis(100 * 86400.0, 60).split()[-1] == "91d"


def test_amounts_too_small_to_tell_are_not_compared() -> None:
    from broker.cli.timeline import _money

    assert str(_money(replace(report(), spent=0.00002, on_demand=0.00005))) == "spent < $0.0001 (simulated)"
    assert "saved $" in str(_money(report()))


def test_every_mark_and_stretch_is_in_the_legend() -> None:
    assert set(WORDS) == {*GLYPHS, *MARKS}


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


# How it is seen that a program went on


MUTE = beat(first_step=None)
READ = {"read": 2, "of": 3, "first": "step-40/w", "why": ""}
IGNORED = {"read": 0, "of": 3, "first": None, "why": ""}
UNKNOWN = {"read": 0, "of": 3, "first": None, "why": "the file system does not report reads"}


def log(first: float, last: float, kind: str = "the log", unit: str = "step", spacing: float = 1.0) -> Series:
    return Series(kind, unit, first, last, spacing)


def evidence(old: Series | None = None, new: Series | None = None, **seen: Any) -> Evidence:
    return Evidence({1: Seen(steps=old), 2: Seen(steps=new, **seen)})


@pytest.mark.parametrize(
    ("told", "seen", "more", "code", "words"),
    [
        # what it reports comes first
        (report(), evidence(log(1, 43), log(1, 9)), {}, 0, "went on at step 41, 3 steps lost"),
        # then the log
        (MUTE, evidence(log(1, 43), log(41, 60)), {}, 0, "43, went on at step 41 by the log, 3 steps done again"),
        (MUTE, evidence(log(1, 43), log(41, 60), new_step=10, restored_step=40), {}, 0, "by the log"),
        (MUTE, evidence(log(1, 43), log(1, 60)), {}, 100, "it began again at step 1 although a snapshot had been"),
        (MUTE, evidence(log(10, 40, spacing=10), log(10, 60, spacing=10)), {}, 100, "began again at step 10"),
        (MUTE, evidence(log(10, 40, spacing=10), log(20, 60, spacing=10)), {}, 0, "went on at step 20"),
        (MUTE, evidence(log(3, 400, "a tqdm bar"), log(4, 90, "a tqdm bar")), {}, 100, "began again at step 4"),
        (MUTE, evidence(log(1, 43), log(11, 60), restored_step=40), {}, 100, "it began again at step 11 although the"),
        (MUTE, evidence(log(1, 430), log(401, 600), restored_step=4), {}, 0, "went on at step 401"),  # of epoch 4
        (MUTE, evidence(log(0.1, 2.3, unit="epoch", spacing=0.1), log(2.1, 3, unit="epoch")), {}, 0, "at epoch 2.1"),
        # then the names, where the log shows nothing or too little
        (MUTE, evidence(new_step=50, restored_step=40), {}, 0, "first new checkpoint was of step 50, after step 40"),
        (MUTE, evidence(log(1, 1), log(1, 1), new_step=50, restored_step=40), {}, 0, "first new checkpoint"),
        (MUTE, evidence(new_step=10, restored_step=40), {}, 100, "was of step 10 although step 40 had been restored"),
        # then that it read what was restored
        (MUTE, evidence(opened=READ), {}, 0, "it read 2 of 3 restored files, step-40/w first"),
        (MUTE, evidence(opened=READ, new_step=40, restored_step=40), {}, 0, "it read 2 of 3"),
        # and that it did not
        (MUTE, evidence(opened=IGNORED), {}, 100, "it read none of the restored files (3 in all)"),
        (MUTE, evidence(log(1, 43), log(41, 60), opened=IGNORED), {}, 100, "it read none of the restored files"),
        (report(), evidence(opened=IGNORED), {}, 100, "it read none of the restored files"),
        # nothing of all that
        (MUTE, evidence(opened=UNKNOWN), {}, 101, "cannot be told (the file system does not report reads)"),
        (MUTE, evidence(), {}, 101, "nothing shows whether it went on"),
        # results that are right prove it; how it was seen is told all the same
        (MUTE, evidence(opened=UNKNOWN), {"compared": ["w"]}, 0, "could not be seen, but its results are as they"),
        (MUTE, evidence(log(1, 43), log(41, 60), opened=IGNORED), {"compared": ["w"]}, 0, "at step 41 by the log"),
        (
            MUTE, evidence(opened=UNKNOWN), {"compared": ["w"], "differences": [Difference("w", "differs")]},
            100, "is not what the run without",
        ),
    ],
)  # fmt: skip
def test_evidence_is_weighed_in_order(
    told: Report, seen: Evidence, more: dict[str, Any], code: int, words: str
) -> None:
    given = {"wanted": 1, "interval": 10, "evidence": seen, **more}
    found = judge(replace(JOB), told, [take()], **given)
    assert found.code == code, found
    assert any(words in check.text for check in found.checks), [check.text for check in found.checks]


def test_a_pattern_that_goes_back_is_named() -> None:
    found = judge(JOB, MUTE, [take()], wanted=1, interval=10, evidence=Evidence({2: Seen(opened=UNKNOWN)}, falls=True))
    assert "what rehearse.step finds in its log goes back" in found.why


def test_the_first_new_checkpoints_step() -> None:
    def saved(seq: int, **content: str) -> Manifest:
        names = {name.replace("_", "-"): sha for name, sha in content.items()}
        files = {f"{name}/w": File(sha, 1, 0o644) for name, sha in names.items()}
        return Manifest(2, seq, 0.0, None, dict.fromkeys(names, "quiet"), files)

    restored = saved(1, step_10="a", step_20="b")
    assert new_step(restored, []) is None
    assert new_step(restored, [saved(1, step_10="a", step_20="b", step_30="c")]) == 30
    assert new_step(restored, [saved(1, step_20="b", step_5="x"), saved(2, step_30="y")]) == 5
    assert new_step(restored, [saved(1, step_10="other", step_20="b")]) == 10
    assert new_step(restored, [saved(1, last="x"), saved(2, last="x", step_30="y")]) == 30
    assert new_step(None, [saved(1, step_30="y")]) is None


@pytest.mark.parametrize(
    ("notice", "seen", "words"),
    [
        ("aws", Seen(asked=True), "on SIGTERM it did not save, though aws gives 120 s"),
        ("aws", Seen(asked=True, in_time=False), "did not save, nor end, though"),
        ("aws", Seen(asked=True, saved=True), None),
        ("vast", Seen(), None),
        ("runpod", Seen(asked=True, save=9.0), "a save takes 9 s, and a notice like runpod's leaves 5 s"),
        ("runpod", Seen(asked=True, in_time=False, cut={"a.pt": "is cut"}), "its save on SIGTERM was cut off"),
        ("gcp", Seen(not_asked=True, save=40.0), "a save takes 40 s"),
    ],
)
def test_what_to_change_for_a_notice(notice: str, seen: Seen, words: str | None) -> None:
    taken = [replace(take(), notice=notice)]
    found = list(advise(report(), taken, Evidence({1: seen})))
    assert (words is None and not found) or (words and words in found[0]), found


def test_what_to_change_for_checkpoints_elsewhere() -> None:
    seen = Evidence({1: Seen(strays=("out/model.pt",))})
    assert "outside checkpoint.path: out/model.pt" in next(advise(beat(restored=None), [], seen))
    assert not list(advise(report(), [], seen)), "what was restored lies in the right place"


def test_advice_tells_a_counter_from_a_program_that_loads_nothing() -> None:
    def advice(opened: dict[str, Any]) -> str:
        seen = evidence(log(1, 43), log(1, 60), opened=opened)
        return judge(JOB, MUTE, [take()], wanted=1, interval=10, evidence=seen).advice[0]

    assert advice(READ).startswith("it reads its checkpoint and counts from zero")
    assert advice(IGNORED).startswith("load what was saved")


def test_half_written_entries_are_named() -> None:
    seen = Evidence({1: Seen(cut={"step-50": "step-50/w.pt is cut"}), 2: Seen()})
    found = judge(JOB, report(), [take()], wanted=1, interval=10, evidence=seen)
    assert found.code == 0
    assert "machine 1: half-written, so passed over: step-50 (w.pt is cut)" in [check.text for check in found.checks]


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


@pytest.mark.parametrize("count", [1, 3])
def test_a_take_back_waits_for_an_upload_no_longer_than_a_short_run_allows(count: int) -> None:
    """Forty steps, a save at each fifth: on a busy computer uploads stay behind, and four intervals are half of it."""
    for number in range(1, count + 1):
        for lot in range(50):
            window = Window(number, count, place=lot / 50, phase=(lot * 7 % 50) / 50)
            target = window.target(6, 5, 5, 40)
            latest = window.latest(target, 5, 40)
            assert latest < 40 * (number + 0.5) / (count + 0.5), "the next one's share of the run, or its end"
            assert window.latest(target, 5, None) == target + 20


def test_files_are_compared_by_what_they_hold(tmp_path: Any) -> None:
    numpy = pytest.importorskip("numpy")
    one, two = tmp_path / "a.npz", tmp_path / "b.npz"
    numpy.savez(one, same=numpy.zeros(3), weights=numpy.ones(3))
    numpy.savez(two, same=numpy.zeros(3), weights=numpy.full(3, 2.0))
    assert difference(one, two) == "arrays differ: weights"
    (tmp_path / "x").write_bytes(b"abcdef")
    (tmp_path / "y").write_bytes(b"abcXef")
    assert difference(tmp_path / "x", tmp_path / "y") == "6 bytes against 6, different from byte 3 on"
