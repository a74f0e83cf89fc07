"""The verdict of a rehearsal. Pure: from what was seen to one sentence, with the checks that it rests on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.rehearse.compare import Difference
    from broker.rehearse.hand import TakeBack
    from broker.report import Move, Report
    from broker.store import JobRow

SURVIVES, FAILS, UNPROVEN = 0, 100, 101
WORDS = {SURVIVES: "survives preemption", FAILS: "does not survive preemption", UNPROVEN: "not proven"}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. code: SURVIVES where it holds, else what it makes of the verdict."""

    text: str
    code: int = SURVIVES

    @property
    def good(self) -> bool:
        return self.code == SURVIVES


@dataclass(frozen=True, slots=True)
class Verdict:
    """code: the exit code, 0, 100 or 101. text: the last line. checks: what it rests on."""

    code: int
    why: str = ""
    checks: tuple[Check, ...] = ()

    @property
    def text(self) -> str:
        return f"{WORDS[self.code]}: {self.why}" if self.why else WORDS[self.code]


def without_checkpoint() -> Verdict:
    return Verdict(FAILS, "the task names no checkpoint.path, so there is nothing to go on from")


def of_baseline(row: JobRow) -> Verdict | None:
    """The verdict where already the run without interruption did not succeed; None where it did."""
    if row.status == "succeeded":
        return None
    return Verdict(UNPROVEN, f"already the run without interruption did not succeed: {row.message or row.status}")


def judge(
    row: JobRow,
    report: Report,
    taken: Sequence[TakeBack],
    *,
    wanted: int,
    interval: int | None,
    differences: Sequence[Difference] = (),
    compared: Sequence[str] = (),
) -> Verdict:
    """Weigh everything. What shows a failure comes before what merely proves nothing.

    interval: steps between two saves, None where unknown.
    """
    checks = list(_checks(row, report, taken, wanted, interval, differences, compared))
    for code in (FAILS, UNPROVEN):
        for check in checks:
            if check.code == code:
                return Verdict(code, check.text, tuple(checks))
    return Verdict(SURVIVES, "", tuple(checks))


def _checks(
    row: JobRow,
    report: Report,
    taken: Sequence[TakeBack],
    wanted: int,
    interval: int | None,
    differences: Sequence[Difference],
    compared: Sequence[str],
) -> Iterator[Check]:
    saved = any(stay.saves for stay in report.stays)
    if row.status != "succeeded":
        told = row.message or row.status
        if taken and row.status == "failed":
            yield Check(f"after it was taken back {_times(len(taken))} it {told}", FAILS)
        else:
            yield Check(f"the job did not get to its end: {told}", UNPROVEN)
    elif len(taken) < wanted and not saved:
        where = (row.task.get("checkpoint") or {}).get("path", "its checkpoint folder")
        yield Check(f"it never saved anything complete into {where}", FAILS)
    elif len(taken) < wanted:
        before = (
            "before it was taken back" if not taken else f"after it was taken back {_times(len(taken))} of {wanted}"
        )
        yield Check(f"it ended {before}; a longer run, or saving oftener, would show more", UNPROVEN)
    else:
        yield Check(f"it was taken back {_times(wanted)} and succeeded")
    begin = report.stays[0].first_step if report.stays else None
    by_generation = {take.generation: take for take in taken}
    for move in report.moves:
        yield from _move(move, begin, by_generation.get(move.source), interval)
    if row.status == "succeeded":
        yield from _same(differences, compared)


def _move(move: Move, begin: int | None, take: TakeBack | None, interval: int | None) -> Iterator[Check]:
    """One move: was a snapshot taken up, did the program use it, what was lost."""
    name = f"move {move.source} → {move.target}"
    if move.restored is None:
        yield Check(f"{name}: it began again from nothing, no snapshot was there to restore", FAILS)
        return
    if move.resumed is None or move.reached is None:
        yield Check(
            f"{name}: the program reports no steps, so nobody can see where it went on; "
            "call broker.guest.progress(step, total) in it",
            UNPROVEN,
        )
        return
    # A program that reports every n steps reports n first when it begins at zero.
    unit = max(1, begin or 1)
    restored = move.restored_step
    slack = max(unit, (interval or 0) // 2)
    ignored = move.resumed <= unit < move.reached if restored is None else move.resumed < restored - slack
    if ignored or (restored is not None and restored > unit >= move.resumed):
        what = "a snapshot" if restored is None else f"the snapshot of step {restored}"
        yield Check(f"{name}: it began again at step {move.resumed} although {what} had been restored", FAILS)
        return
    last = max(move.reached, restored or 0)
    if move.resumed > last + unit:
        yield Check(f"{name}: it went on at step {move.resumed} though only step {last} had been reached", FAILS)
        return
    yield _loss(name, move, take, interval, unit)


def _loss(name: str, move: Move, take: TakeBack | None, interval: int | None, unit: int) -> Check:
    assert move.resumed is not None
    assert move.reached is not None
    lost = max(0, move.reached - (move.resumed - unit)) if move.restored_step is None else move.lost or 0
    if move.restored_step is not None and move.resumed < move.restored_step:
        lost = max(0, move.reached - (move.resumed - unit))
    told = f"{name}: reached step {move.reached}, went on at step {move.resumed}, {lost} step{'s' * (lost != 1)} lost"
    if interval is None:
        return Check(told)
    allowed = interval
    if take is not None and take.newest_step is not None:
        # A save that was not uploaded yet when the machine went is lost with it, through nobody's fault.
        allowed = max(allowed, move.reached - take.newest_step)
    if lost > allowed:
        return Check(f"{told}, more than the {allowed} since the newest snapshot then", FAILS)
    return Check(f"{told} of at most {allowed}")


def _same(differences: Sequence[Difference], compared: Sequence[str]) -> Iterator[Check]:
    if not compared:
        return
    for found in differences:
        text = f"{found.path} is not what the run without interruption made: {found.what}"
        yield Check(f"{found.path}: {found.what}", UNPROVEN) if found.missing else Check(text, FAILS)
    if not differences:
        yield Check(f"{', '.join(compared)} equals the run without interruption, bit for bit")


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
