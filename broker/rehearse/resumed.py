"""Did the program go on from what was restored? The evidence is weighed in the order of its strength. Pure.

1. what it reports by `broker.guest.progress`; 2. the steps in its log; 3. the steps in its checkpoints' names; 4. that
it read the restored files. None of them: not proven, unless its results equal those of a run without interruption.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from broker.rehearse.check import FAILS, UNPROVEN, Check, steps
from broker.rehearse.evidence import Evidence, Seen

if TYPE_CHECKING:
    from broker.rehearse.hand import TakeBack
    from broker.report import Move

LOAD = (
    "load what was saved: at its start let it look in $BROKER_CHECKPOINT_DIR for its newest checkpoint and go on from "
    "there (Hugging Face: trainer.train(resume_from_checkpoint=True); Lightning: fit(ckpt_path='last'))"
)
COUNT = "it reads its checkpoint and counts from zero all the same: save the step with the weights, and restore it"
NEWEST = "it did not take its newest checkpoint: choose it by its number, not by the order of text or of time"
REPORT = (
    "call broker.guest.progress(step, total) in it, or say by `rehearse: {step: REGEX}` where its log shows the step"
)


def checks_of(
    move: Move, begin: int | None, take: TakeBack | None, interval: int | None, evidence: Evidence, *, proven: bool
) -> Iterator[Check]:
    """One move. begin: the first step that its first machine reported. interval: steps between two saves.

    proven: the results are those of a run without interruption.
    """
    name = f"move {move.source} → {move.target}"
    if move.restored is None:
        yield _nothing_restored(name, take, evidence.of(move.source))
        return
    seen = evidence.of(move.target)
    reported = move.resumed is not None and move.reached is not None
    found = _by_reports(name, move, begin, take, interval, seen) if reported else None
    found = found or _by_log(name, move, evidence, interval) or _by_names(name, seen) or _by_reading(name, seen)
    if found is not None:
        yield found
    if seen.ignored and not proven and (found is None or found.good):
        yield Check(f"{name}: it read none of the restored files ({_of(seen)} in all)", FAILS, LOAD)
    elif found is None and proven:
        yield Check(f"{name}: how it went on could not be seen, but its results are as they should be")
    elif found is None:
        yield _nothing_seen(name, seen, evidence)


def _nothing_restored(name: str, take: TakeBack | None, seen: Seen) -> Check:
    if take is not None and take.newest is None and not seen.asked and not seen.not_asked:
        return Check(
            f"{name}: it had saved nothing yet when it was taken back without a notice",
            UNPROVEN,
            "make it save oftener while it is rehearsed, by `rehearse: {envs: …}`",
        )
    return Check(f"{name}: it began again from nothing, no snapshot was there to restore", FAILS)


def _nothing_seen(name: str, seen: Seen, evidence: Evidence) -> Check:
    log = "what rehearse.step finds in its log goes back" if evidence.falls else "its log shows none that rise"
    reading = (seen.opened or {}).get("why") or "nobody watched"
    text = (
        f"{name}: nothing shows whether it went on: it reports no steps, {log}, its new checkpoints' names carry none, "
        f"and whether it read the restored files cannot be told ({reading})"
    )
    return Check(text, UNPROVEN, REPORT)


def _again(seen: Seen) -> str:
    """What to change in a program that began again."""
    return COUNT if seen.opened and seen.opened["read"] else LOAD


def _by_reports(
    name: str, move: Move, begin: int | None, take: TakeBack | None, interval: int | None, seen: Seen
) -> Check:
    assert move.resumed is not None
    assert move.reached is not None
    # A program that reports every n steps reports n first when it begins at zero.
    unit = max(1, begin or 1)
    restored = move.restored_step
    slack = max(unit, (interval or 0) // 2)
    ignored = move.resumed <= unit < move.reached if restored is None else move.resumed < restored - slack
    if ignored or (restored is not None and restored > unit >= move.resumed):
        what = "a snapshot" if restored is None else f"the snapshot of step {restored}"
        advice = _again(seen) if move.resumed <= unit else NEWEST
        return Check(f"{name}: it began again at step {move.resumed} although {what} had been restored", FAILS, advice)
    last = max(move.reached, restored or 0)
    if move.resumed > last + unit:
        return Check(f"{name}: it went on at step {move.resumed} though only step {last} had been reached", FAILS)
    return _loss(name, move, take, interval, unit)


def _loss(name: str, move: Move, take: TakeBack | None, interval: int | None, unit: int) -> Check:
    assert move.resumed is not None
    assert move.reached is not None
    lost = max(0, move.reached - (move.resumed - unit)) if move.restored_step is None else move.lost or 0
    if move.restored_step is not None and move.resumed < move.restored_step:
        lost = max(0, move.reached - (move.resumed - unit))
    told = f"{name}: reached step {move.reached}, went on at step {move.resumed}, {steps(lost)} lost"
    if interval is None:
        return Check(told)
    allowed = interval
    if take is not None and take.newest_step is not None:
        # A save that was not uploaded yet when the machine went is lost with it, through nobody's fault.
        allowed = max(allowed, move.reached - take.newest_step)
    if lost > allowed:
        return Check(f"{told}, more than the {allowed} since the newest snapshot then", FAILS)
    return Check(f"{told} of at most {allowed}")


def _by_log(name: str, move: Move, evidence: Evidence, interval: int | None) -> Check | None:
    """Numbers in a log may be few and late, so only what they leave no doubt about counts."""
    old, new, seen = evidence.of(move.source).steps, evidence.of(move.target).steps, evidence.of(move.target)
    first = next((one.steps for _, one in sorted(evidence.seen.items()) if one.steps), None)
    if old is None or new is None or first is None:
        return None
    slack = max(first.spacing, new.spacing)
    restored = seen.restored_step if new.unit == "step" else None
    if restored is not None and not 0.2 * old.last <= restored <= old.last + slack:
        restored = None  # the names count something else
    again = new.first <= first.first + (slack if "bar" in new.kind else 0)
    behind = restored is not None and new.first < restored - max(slack, first.first, (interval or 0) // 2)
    if (again and old.last > new.first + slack) or behind:
        what = "a snapshot" if restored is None else f"the snapshot of step {restored}"
        advice = _again(seen) if again else NEWEST
        text = f"{name}: it began again at {new.unit} {new.first:g} although {what} had been restored, by {new.kind}"
        return Check(text, FAILS, advice)
    if again:
        return None
    lost = f", {steps(max(0.0, round(old.last - new.first + slack)))} done again" if new.unit == "step" else ""
    return Check(f"{name}: reached {old.unit} {old.last:g}, went on at {new.unit} {new.first:g} by {new.kind}{lost}")


def _by_names(name: str, seen: Seen) -> Check | None:
    if seen.new_step is None or seen.restored_step is None or seen.new_step == seen.restored_step:
        return None
    told = f"its first new checkpoint was of step {seen.new_step}"
    if seen.new_step > seen.restored_step:
        return Check(f"{name}: {told}, after step {seen.restored_step} had been restored")
    text = f"{name}: {told} although step {seen.restored_step} had been restored"
    return Check(text, FAILS, LOAD if seen.ignored else f"{COUNT}; or {NEWEST}")


def _by_reading(name: str, seen: Seen) -> Check | None:
    if not seen.opened or not seen.opened["read"]:
        return None
    return Check(f"{name}: it read {seen.opened['read']} of {_of(seen)} restored files, {seen.opened['first']} first")


def _of(seen: Seen) -> int:
    return int((seen.opened or {}).get("of", 0))
