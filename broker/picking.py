"""The phase `pick`: decide on an offer and freeze the whole request, durably, before anything is sent.

A job without a machine takes what the policy says, waits, or ends where nothing will do. A job with one that heads for
a better machine (`broker.weighing`) keeps it unless the better one can be had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from broker.offer import Market, Offer
from broker.outlook import Outlook, outlook_of, with_sky
from broker.placement import Terms, freeze
from broker.policy import record
from broker.policy.bid import bid
from broker.policy.budget import Bill, Purse, month
from broker.policy.decision import Decision, clock, money
from broker.policy.due import Due, told
from broker.policy.memory import Memory
from broker.policy.together import together
from broker.provider import LaunchesAny, LaunchRequest
from broker.purse import MONTHLY, first_end, freed_by, least, purses, short, standing
from broker.state import HANDOVER, JobState, Outcome
from broker.store import JobRow, OverBudget, PlacementRow
from broker.task import Task
from broker.world import World

NOTHING = "nothing is to be had"
ASKED_AGAIN = 4
WAIT_FIRST, WAIT_LONGEST = 30.0, 600.0
REOPENED = 6
"""Waits in a row after which a provider that refused the account is asked again."""
LOSSES = {
    "notice": "a notice",
    "moved": "a notice",
    "boot": "a failed boot",
    "silence": "silence",
    "lost": "a lost machine",
    "asked": "a move by hand",
    "stuck": "a program without a sign of life",
}


def pick(state: JobState, world: World) -> JobState:
    """The next placement of a job, or what is to be done instead."""
    row = world.store.job(state.job)
    if row.stopping:
        outcome = state.outcome or Outcome("stopped", 103, "stopped by its user")
        if state.live is not None:
            return _stay(state, world)
        return state.to("retire" if state.retiring else "account", outcome=outcome)
    task = Task.from_json(row.task).within(state.places)
    state = mourn(state, world)
    outlook = outlook_of(row, task, state, world)
    if (late := _too_late(state, outlook, world)) is not None:
        return late
    outlook, decision = decided(state, outlook, world, heading=state.heading if state.live is not None else None)
    if decision.offer is None and state.places and not decision.waits and _is_final(decision, state):
        return pick(_anywhere(state, decision, world), world)
    if decision.offer is None:
        return _stay(state, world) if state.live is not None else _nothing(state, decision, outlook.due, world)
    if state.places:
        told = f"only within {', '.join(state.places)}, as its user wants this move"
        decision = replace(decision, reasons=(*decision.reasons, told))
    state = replace(state, spotless=decision.spotless)
    return _frozen(state, row, task, decision, outlook, world)


def decided(
    state: JobState, outlook: Outlook, world: World, *, heading: str | None = None, weighing: bool = False
) -> tuple[Outlook, Decision]:
    """Ask the market and the policy, and keep the record of it. Returns the outlook with the market's zones in it.

    heading: as in `JobState`. weighing: for a job that runs, which holds out for nothing.
    """
    outlook, inputs = _asked(state, outlook, world, heading=heading, weighing=weighing)
    decision = record.decide(inputs)
    passing = decision.offer is None or weighing
    world.records.decided(state.job, inputs.now, record.to_json(inputs, decision), passing=passing)
    return outlook, decision


def destination(state: JobState, world: World, places: Sequence[str] = ()) -> Decision:
    """What a job would take if its user moved it, or took it up again, now, without holding out for spot.

    Nothing is written down. places: patterns as in a task's `infra`, for this one move; none: as the task says. Raises
    InvalidTaskError for what is no place.
    """
    row, left = world.store.job(state.job), replace(state, live=None)
    if state.live is not None:
        request = LaunchRequest.from_json(dict(world.store.placement(state.job, state.live.generation).request))
        memory = Memory.from_json(state.memory).lost(request.offer, LOSSES["asked"], world.clock())
        left = replace(left, memory=memory.to_json())
    outlook = outlook_of(row, Task.from_json(row.task).within(places), left, world)
    return record.decide(_asked(left, outlook, world, weighing=True)[1])


def _asked(
    state: JobState, outlook: Outlook, world: World, *, heading: str | None = None, weighing: bool = False
) -> tuple[Outlook, record.Inputs]:
    """What the market answers, and all else that the decision rests on."""
    book, now = world.market.offers(outlook.wish.queries), world.clock()
    # Where all money is simulated, time is too.
    limits = world.limits(simulated=all(offer.simulated for offer in book.offers))
    if heading is not None:
        # The machine that runs is the other choice, so that what cools down is tried as if nothing else fitted.
        outlook = replace(outlook, wish=replace(outlook.wish, spot="only"), due=None)
    if outlook.due is not None:
        due = with_sky(outlook.due, book.offers, outlook.wish, world.records, now, limits.weigh, state.job)
        outlook = replace(outlook, due=due)
    had = any(row.market == Market.SPOT for row in world.store.placements(state.job))
    inputs = record.Inputs(
        offers=book.offers,
        wish=outlook.wish,
        memory=Memory.from_json(state.memory),
        now=now,
        failures=book.failures,
        experience=outlook.experience,
        due=outlook.due,
        patience=None if weighing else record.Patience(limits.fallback, limits.weigh, state.spotless, had),
        heading=heading,
        past=world.records.past(book.offers, now),
    )
    return outlook, inputs


def _stay(state: JobState, world: World) -> JobState:
    """Nothing better is to be had: the machine that runs goes on."""
    assert state.live is not None
    again = world.clock() + world.limits(simulated=state.live.simulated).weigh
    return state.to("watch", heading=None, weigh_at=again, not_before=None, then="pick", tries=0)


def _too_late(state: JobState, outlook: Outlook, world: World) -> JobState | None:
    """A deadline that has passed ends the job; one whose work is unknown is refused."""
    due = outlook.due
    if due is None:
        return None
    now = world.clock()
    if now >= due.at and state.live is None:
        ago = f" {told((now - due.at) / 3600)} ago; no work of it was saved"
        text = f"deadline reached{'; the newest snapshot is safe' if state.parents else ago}"
        fix = "" if state.parents else f"broker resume {state.job} --deadline TIME begins anew"
        outcome = Outcome("limit", 104, text, fix)
        return state.to("retire" if state.retiring else "account", outcome=outcome)
    if outlook.left.hours is None and not state.launched:
        why = "a deadline needs to know how much work there is"
        outcome = Outcome("error", 78, why, "add `work: {hours: 6}` to the task, or leave deadline out")
        return state.to("account", outcome=outcome)
    return None


def mourn(state: JobState, world: World) -> JobState:
    """Remember the offer that took its machine back or never started it, so that this pick looks elsewhere."""
    if state.lost is None:
        return state
    generation, why = state.lost
    request = LaunchRequest.from_json(dict(world.store.placement(state.job, generation).request))
    now = world.clock()
    memory = Memory.from_json(state.memory).lost(request.offer, LOSSES.get(why, "preemption"), now)
    if why in ("notice", "moved", "preempted"):
        world.records.gone(request.offer, now)
    return replace(state, memory=memory.to_json(), lost=None)


def _nothing(state: JobState, decision: Decision, due: Due | None, world: World) -> JobState:
    """Nothing fits now: the end for a job that never had a machine, else wait and ask again.

    A provider that did not answer may have had something, so the end waits for a few more answers. With a deadline
    what was refused is asked for again as long as it could still be met.
    """
    text = "; ".join(decision.reasons) or "nothing to be had"
    final = _is_final(decision, state)
    waits = decision.waits or (due is not None and decision.next_try is not None)
    if not waits and not state.launched and not state.retiring and final:
        fix = "try again later, raise max_price, or widen resources; `broker plan` shows every offer passed over"
        return state.to("account", outcome=Outcome("unavailable", 75, text, fix))
    now = world.clock()
    first = WAIT_FIRST if state.launched else 1.0
    wait = min(first * 2.0 ** min(state.waits, 10), WAIT_LONGEST)
    at = now + wait if decision.next_try is None else min(now + wait, max(now + 1.0, decision.next_try))
    if decision.waits and decision.next_try is not None:
        at = decision.next_try
    if due is not None:
        at = min(at, now + due.tick * 3600)
    world.store.event(
        state.job,
        "nothing",
        f"waiting {at - now:.0f} s for an offer: {text}",
        generation=state.generation,
        once=f"{state.generation} {decision.timing.why}" if decision.timing else None,
    )
    times = 0 if decision.waits else state.waits + 1
    if times and times % REOPENED == 0:
        state = replace(state, memory=Memory.from_json(state.memory).reopened().to_json())
    return state.to("watch", not_before=at, then="pick", waits=times, spotless=decision.spotless)


def _is_final(decision: Decision, state: JobState) -> bool:
    """Has everybody answered who may have something, or been asked often enough?"""
    return not decision.unasked or state.waits >= ASKED_AGAIN


def _anywhere(state: JobState, decision: Decision, world: World) -> JobState:
    """Where its user wants the job nothing is to be had after all, and its old machine ends: any other will do."""
    text = f"{NOTHING} within {', '.join(state.places)}: {'; '.join(decision.reasons)}; going elsewhere"
    world.store.event(state.job, "warning", text, generation=state.generation, once="elsewhere")
    return replace(state, places=(), waits=0)


def _frozen(state: JobState, row: JobRow, task: Task, decision: Decision, outlook: Outlook, world: World) -> JobState:
    """The request of the next generation, on disk; or the end where no money is left for it."""
    offer, generation, now = decision.offer, state.generation + 1, world.clock()
    assert offer is not None
    limiting = purses(task, state, world, simulated=offer.simulated, but=generation)
    finish = decision.ranked[0].finish
    hazard = finish.hazard if finish is not None else outlook.hazard(offer, now)
    highest = bid(decision, outlook.wish, hazard, limited=bool(limiting))
    any_of = () if state.live is not None else _any_of(decision, world)
    dearest = max(one.hourly for one in (offer, *any_of))
    hourly = max(dearest, highest or 0.0)
    worth = least(world.config, outlook.wish.prospect, offer) if state.live is None else HANDOVER
    if (lack := short(limiting, offer, hourly, worth, now)) is not None:
        return _spent(state, *lack, world)
    end = first_end(limiting, hourly, now)
    ends = [end] if end is not None else []
    ends += [(outlook.due.at, "deadline")] if outlook.due is not None else []
    terms = Terms(tuple(ends), highest, hazard, outlook.measured.save, any_of)
    resources = task.resources[decision.alternative]
    request = freeze(row, task, offer, generation, state.restarts, resources.image, resources.disk, world, terms)
    reasons = [*decision.reasons, *_bounded(request, limiting, now)]
    intent = PlacementRow(
        job=row.id,
        generation=generation,
        status="intent",
        request=request.to_json(),
        reasons=reasons,
        picked_at=request.frozen_at,
    )
    try:
        stands = world.store.intend(intent, **_guard(limiting, state, request, now))
    except OverBudget:
        return state.to("pick")
    if generation == 1:
        world.store.update_job(row.id, plan=decision.to_json())
    where = LaunchRequest.from_json(dict(stands.request)).offer.where
    world.store.event(
        row.id,
        "picked",
        f"picked {where}: {decision.reasons[0]}",
        generation=generation,
        once="",
        at=request.frozen_at,
        reasons=reasons,
        decided_at=now,
    )
    return state.to("launch", generation=generation, tries=0, waits=0, not_before=None)


def _bounded(request: LaunchRequest, limiting: list[Purse], now: float) -> list[str]:
    """That the month's money, and what other jobs are committed to, ends this machine before its time."""
    purse = next((purse for purse in limiting if purse.name == request.end_why == MONTHLY), None)
    if purse is None:
        return []
    left = f"{money(purse.left(now))} of {money(purse.limit)} left"
    return [f"until {clock(request.end_by)} at first, by monthly_budget: {left}, {standing(purse, now)}"]


def _any_of(decision: Decision, world: World) -> tuple[Offer, ...]:
    """What may win in the chosen offer's place, where its provider can be asked for many at once."""
    offer = decision.offer
    if offer is None or not isinstance(world.provider(offer.provider), LaunchesAny):
        return ()
    return together(decision)


def _guard(limiting: list[Purse], state: JobState, request: LaunchRequest, now: float) -> dict[str, Any]:
    """What makes sure that no two jobs spend the same dollar of the month."""
    monthly = next((purse for purse in limiting if purse.name == MONTHLY), None)
    if monthly is None:
        return {}
    mine = Bill(request.dearest, now, request.end_by)

    def fits(bills: Mapping[tuple[str, int], Bill]) -> bool:
        others = tuple(bill for key, bill in bills.items() if key[0] != state.job)
        return replace(monthly, bills=(*others, *monthly.own, mine)).holds(now)

    return {"fits": fits, "since": month(now)}


def _spent(state: JobState, purse: Purse, text: str, world: World) -> JobState:
    """No money is left for another machine."""
    now = world.clock()
    if state.live is not None:
        return _stay(state, world)
    if state.retiring:
        # What they may still cost comes back as they end.
        return state.to("watch", not_before=now + 1.0, then="pick")
    text += "; the newest snapshot is safe" if state.parents else ""
    if purse.name == MONTHLY:
        fix = f"{freed_by(purse, now)}; then broker resume {state.job} goes on"
    else:
        fix = f"broker resume {state.job} --budget USD goes on, with a higher one"
    return state.to("account", outcome=Outcome("limit", 104, text, fix))
