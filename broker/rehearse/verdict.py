"""The verdict of a rehearsal. Pure: from what was seen to one sentence, with the checks that it rests on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.rehearse.advice import advise
from broker.rehearse.check import FAILS, SURVIVES, UNPROVEN, Check
from broker.rehearse.evidence import Evidence
from broker.rehearse.resumed import checks_of

if TYPE_CHECKING:
    from broker.rehearse.compare import Difference
    from broker.rehearse.hand import TakeBack
    from broker.report import Report
    from broker.store import JobRow

WORDS = {SURVIVES: "survives preemption", FAILS: "does not survive preemption", UNPROVEN: "not proven"}
NAMED = 3


@dataclass(frozen=True, slots=True)
class Verdict:
    """code: the exit code, 0, 100 or 101. text: the last line. checks: what it rests on. advice: what to change."""

    code: int
    why: str = ""
    checks: tuple[Check, ...] = ()
    advice: tuple[str, ...] = ()

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
    evidence: Evidence | None = None,
    cut_short: bool = False,
) -> Verdict:
    """Weigh everything. What shows a failure comes before what merely proves nothing.

    interval: steps between two saves, None where unknown. cut_short: the rehearsal itself stopped the job, once it had
    seen it go on.
    """
    evidence = evidence or Evidence()
    checks = [*_ending(row, report, taken, wanted, cut_short=cut_short)]
    checks += _checks(row, report, taken, interval, differences, compared, evidence)
    advice = tuple(dict.fromkeys([*(c.advice for c in checks if c.advice), *advise(report, taken, evidence)]))
    for code in (FAILS, UNPROVEN):
        for check in checks:
            if check.code == code:
                return Verdict(code, check.text, tuple(checks), advice)
    return Verdict(SURVIVES, "", tuple(checks), advice)


def _ending(row: JobRow, report: Report, taken: Sequence[TakeBack], wanted: int, *, cut_short: bool) -> Iterator[Check]:
    """How the job got to its end, and how often it was taken back on the way."""
    saved = any(stay.saves for stay in report.stays)
    # One that had got to its end before the machine was gone has not gone on from anything.
    moved = len({move.source for move in report.moves} & {take.generation for take in taken})
    if cut_short and row.status == "stopped":
        yield Check(f"it was taken back {_times(len(taken))}, and ended once it had saved again")
    elif row.status != "succeeded":
        told = row.message or row.status
        if taken and row.status == "failed":
            yield Check(f"after it was taken back {_times(len(taken))} it {told}", FAILS)
        else:
            yield Check(f"the job did not get to its end: {told}", UNPROVEN)
    elif moved < wanted and not saved:
        where = (row.task.get("checkpoint") or {}).get("path", "its checkpoint folder")
        yield Check(f"it never saved anything complete into {where}", FAILS)
    elif moved < wanted:
        before = "before it was taken back" if not moved else f"after it was taken back {_times(moved)} of {wanted}"
        yield Check(f"it ended {before}; a longer run, or saving oftener, would show more", UNPROVEN)
    else:
        yield Check(f"it was taken back {_times(wanted)} and succeeded")


def _checks(
    row: JobRow,
    report: Report,
    taken: Sequence[TakeBack],
    interval: int | None,
    differences: Sequence[Difference],
    compared: Sequence[str],
    evidence: Evidence,
) -> Iterator[Check]:
    begin = report.stays[0].first_step if report.stays else None
    by_generation = {take.generation: take for take in taken}
    proven = bool(compared) and not differences and row.status == "succeeded"
    for move in report.moves:
        take = by_generation.get(move.source)
        yield from checks_of(move, begin, take, interval, evidence, proven=proven)
    yield from _passed_over(evidence)
    if row.status == "succeeded":
        yield from _same(differences, compared)


def _passed_over(evidence: Evidence) -> Iterator[Check]:
    for generation, seen in sorted(evidence.seen.items()):
        if seen.cut:
            named = [f"{name} ({why.removeprefix(f'{name}/')})" for name, why in sorted(seen.cut.items())[:NAMED]]
            more = f" and {len(seen.cut) - NAMED} more" if len(seen.cut) > NAMED else ""
            yield Check(f"machine {generation}: half-written, so passed over: {', '.join(named)}{more}")


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
