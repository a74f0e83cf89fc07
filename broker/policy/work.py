"""How much work a job has left, and how that is known. Pure.

Three things tell it, the first that can wins: what the task says (`work`), what the program reports
(`broker.guest.progress`), what its checkpoint says of itself (Hugging Face's `global_step` of `max_steps`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from broker.policy.cost import speed_of

SLOW = 0.75
"""A machine that makes less than so much of the steps that its card should make is a slow one."""
SETTLED, ENOUGH = 600.0, 20
"""Seconds of running, and steps, after which a machine's pace is its own: caches are warm, everything is compiled."""
LEAST_STEPS = 3
"""Steps that must have been made before their pace counts: the first ones compile and warm up."""


@dataclass(frozen=True, slots=True)
class Stay:
    """One machine's part in the work, as its last beat had it. Moments are seconds since the epoch.

    began: when its program started; until: the beat. first, step, total: as `progress` reports them; saved: the step of
    its newest snapshot. card: what it ran on. live: it runs now, so that what it reported and has not saved counts too.
    """

    began: float | None = None
    until: float | None = None
    first: int | None = None
    step: int | None = None
    total: int | None = None
    saved: int | None = None
    card: str = ""
    live: bool = False

    @property
    def hours(self) -> float:
        if self.began is None or self.until is None:
            return 0.0
        return max(0.0, self.until - self.began) / 3600

    @property
    def pace(self) -> float | None:
        """Steps per hour; None until enough were made."""
        if self.first is None or self.step is None or self.step - self.first < LEAST_STEPS or not self.hours:
            return None
        return (self.step - self.first) / self.hours

    @property
    def settled(self) -> bool:
        """Is its pace its own?"""
        made = self.step - self.first if self.step is not None and self.first is not None else 0
        return made >= ENOUGH and self.hours * 3600 >= SETTLED


@dataclass(frozen=True, slots=True)
class Left:
    """hours: of work left, None where nothing tells. source: what told it, for people. on: the card that hours are for.

    share: the part that is done, where that is known.
    """

    hours: float | None
    source: str
    on: str = ""
    share: float | None = None


UNKNOWN = Left(None, "")


def lag(stays: Sequence[Stay], paces: Mapping[str, float] | None = None) -> float | None:
    """How fast the machine that runs is, in times of what its card has been seen to be; None where nothing tells.

    stays, paces: as for `left`. The job's own machines before go before jobs of the same name, which may have had other
    data; what a task says is no measure at all. So where all machines are alike, one move at the most is made in vain.
    """
    live = next((stay for stay in stays if stay.live), None)
    if live is None or not live.settled or live.pace is None:
        return None
    own = [stay.pace for stay in stays if not stay.live and stay.settled and stay.card == live.card and stay.pace]
    known = max(own) if own else (paces or {}).get(live.card)
    return live.pace / known if known else None


def left(
    hours: float | None,
    steps: int | None,
    *,
    on: str = "",
    stays: Sequence[Stay] = (),
    checkpoint: tuple[int, int] | None = None,
    paces: Mapping[str, float] | None = None,
    speed: Mapping[str, float] | None = None,
) -> Left:
    """The work left. hours, steps, on: as the task has them. stays: its machines so far, oldest first. speed: of cards,
    as times the one that `hours` are for.

    checkpoint: (step, all steps) as the newest checkpoint has them. paces: steps per hour by card, measured with jobs
    of the same task.
    """
    total, told = steps, "work.steps"
    if total is None and (total := _last(stay.total for stay in stays)) is not None:
        told = "its progress"
    done = _done(stays)
    if checkpoint is not None and (total is None or done is None):
        done, total = max(done or 0, checkpoint[0]), checkpoint[1]
        told = f"its checkpoint (step {checkpoint[0]} of {checkpoint[1]})"
    share = min(1.0, (done or 0) / total) if total else None
    if hours is not None:
        return _of_hours(
            hours, on, stays, share if done is not None else None, f"{done} of {total} steps are done", speed or {}
        )
    if total is None or share is None:
        return UNKNOWN
    rest = max(0, total - (done or 0))
    for stay in reversed(stays):
        if stay.pace:
            text = f"{told}: {rest} steps left at {stay.pace:.4g} an hour{_on(stay.card)}"
            return Left(rest / stay.pace, text, stay.card, share)
    for card, pace in (paces or {}).items():
        text = f"{told}: {rest} steps left at {pace:.4g} an hour{_on(card)}, as earlier jobs of this task made them"
        return Left(rest / pace, text, card, share)
    return UNKNOWN


def _of_hours(
    hours: float, on: str, stays: Sequence[Stay], share: float | None, steps: str, speed: Mapping[str, float]
) -> Left:
    if share is not None:
        return Left(hours * (1 - share), f"work.hours: {hours:g}, of which {steps}", on, share)
    ran = sum(stay.hours for stay in stays)
    if not ran:
        return Left(hours, f"work.hours: {hours:g}", on)
    made = sum(stay.hours * speed_of(stay.card, speed) for stay in stays)
    text = f"the {ran:.3g} h that it has run" + (f", worth {made:.3g}{_on(on)}" if made != ran else "")
    return Left(max(0.0, hours - made), f"work.hours: {hours:g}, less {text}", on, min(1.0, made / hours))


def _done(stays: Sequence[Stay]) -> int | None:
    """Steps done for certain: what a machine that has gone did not save is done again."""
    found: int | None = None
    for stay in stays:
        if stay.live and stay.step is not None:
            found = stay.step
        elif stay.saved is not None:
            found = stay.saved
    return found


def _last(values: Any) -> int | None:
    return next((value for value in reversed(list(values)) if value is not None), None)


def _on(card: str) -> str:
    return f" on {card}" if card else ""
