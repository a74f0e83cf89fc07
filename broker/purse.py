"""The budgets that a job's machines count against, read from what is written down: `purses`.

`budget` is the task's, over all of its machines; `monthly_budget` the installation's, over all of its jobs in a
calendar month (UTC). Simulated money counts against simulated money only. How a machine is billed and committed is in
`broker.policy.budget`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from broker.config import Config
from broker.offer import Offer
from broker.policy.budget import LONGEST_MARGIN, MARGIN, STRAY, UNCLEAR, Bill, Purse, ends, month, next_month
from broker.policy.cost import Prospect
from broker.policy.decision import clock, money
from broker.policy.due import told
from broker.state import HANDOVER, SETTLING, Held, JobState, Retiring
from broker.store import PlacementRow, Store, claimed
from broker.task import Task
from broker.world import World

MONTHLY = "monthly_budget"
LIMITS = ("budget", MONTHLY)
SHOWN = 5
"""Jobs that are named with what they are committed to."""
LEAST_GAIN = 1.0
"""Seconds by which an end is moved at the least."""
LEAST_BEATS = 3
"""A machine that must end before it could give so many beats is not worth renting, however soon it starts."""


def purses(task: Task, state: JobState, world: World, *, simulated: bool, but: int | None = None) -> list[Purse]:
    """What limits a machine of this job. but: a generation of it that is left out, being about to be reckoned anew."""
    monthly = world.config.monthly_budget
    if task.budget is None and monthly is None:
        return []
    own = {
        (state.job, row.generation): replace(bill, job=state.job)
        for row in world.store.placements(state.job)
        if row.generation != but
        and _simulated(row) is simulated
        and (bill := _own(row, state, world.clock())) is not None
    }
    found = []
    if task.budget is not None:
        found.append(Purse("budget", task.budget, tuple(own.values())))
    if monthly is not None:
        start = month(world.clock())
        others = {key: b for key, b in world.store.bills(start, simulated=simulated).items() if key[0] != state.job}
        bills = (*others.values(), *own.values())
        found.append(Purse(MONTHLY, monthly, bills, start, tuple(own.values()), next_month(start)))
    return found


def ahead(task: Task, config: Config, store: Store | None, now: float, *, simulated: bool) -> list[Purse]:
    """What will limit a task that is no job yet. store: None where there never was a job."""
    found = [Purse("budget", task.budget)] if task.budget is not None else []
    monthly = of_month(config, store, now, simulated=simulated)
    return [*found, monthly] if monthly is not None else found


def of_month(config: Config, store: Store | None, now: float, *, simulated: bool) -> Purse | None:
    """The month's purse over all jobs; None without a limit."""
    if config.monthly_budget is None:
        return None
    start = month(now)
    bills = tuple(store.bills(start, simulated=simulated).values()) if store is not None else ()
    return Purse(MONTHLY, config.monthly_budget, bills, start, end=next_month(start))


def standing(purse: Purse, now: float) -> str:
    """What a purse has spent and is committed to, by job where it is not one job's own: `3.20 spent, …`."""
    text = f"{money(purse.spent(now))} spent"
    claims = purse.claims(now)
    if not claims:
        return text
    text += f", {money(sum(usd for usd, _ in claims.values()))} committed to machines that run"
    if purse.name == MONTHLY:
        each = [f"{job} {money(usd)} until {clock(until)} at the latest" for job, (usd, until) in claims.items()]
        text += f" ({', '.join(each[:SHOWN])}{', …' if len(each) > SHOWN else ''})"
    return text


def short(found: Sequence[Purse], offer: Offer, hourly: float, worth: float, now: float) -> tuple[Purse, str] | None:
    """The purse that a machine at that price would empty before it is worth its launch, and what would do; or None.

    hourly: what is charged at the most. worth: seconds that a machine must have.
    """
    end = first_end(found, hourly, now)
    if end is None or end[0] - now >= worth:
        return None
    purse = next(purse for purse in found if purse.name == end[1])
    need = min(worth / (1 - MARGIN), worth + LONGEST_MARGIN)
    enough = ceil(100 * (purse.limit - purse.left(now) + need * hourly / 3600)) / 100
    word = "reached" if purse.spent(now) > 0 else "is too little"
    rest = told(max(0.0, end[0] - now) / 3600)
    what = offer.market.told
    text = f"{purse.name} of {purse.limit:g} USD {word}: {standing(purse, now)}, which leaves {rest} of {what} in "
    text += f"{offer.where} at {money(hourly)}; a start needs {told(worth / 3600)}, for which {money(enough)} would do"
    return purse, text


def freed_by(purse: Purse, now: float) -> str:
    """What makes room in a month's purse."""
    raising = "raise monthly_budget in the configuration"
    claims = purse.claims(now)
    if not claims:
        return raising
    names = f"broker stop {next(iter(claims))}"
    return (
        f"what is committed and not used is free again when its job ends: wait, or {names}; a task's max_hours and "
        f"budget bound what it is committed to; or {raising}"
    )


def first_end(found: Sequence[Purse], hourly: float, now: float) -> tuple[float, str] | None:
    """When the budgets end a machine at that price, and which of them does; None without one."""
    return min(ends(found, hourly, now), default=None)


def paid_for(held: Held, state: JobState, task: Task, world: World) -> Held:
    """The job's machine, with the end that the budgets allow at what it really costs; never a later one."""
    now = world.clock()
    simulated = _simulated(world.store.placement(state.job, held.generation))
    limiting = purses(task, state, world, simulated=simulated, but=held.generation)
    billed = Bill(held.hourly, held.launched_at, now, over=True, most=held.bid)
    found = [replace(purse, bills=(*purse.bills, billed)) for purse in limiting]
    end = first_end(found, max(held.hourly, held.bid or 0.0), now)
    if end is None or end[0] >= held.end_by:
        return held
    return replace(held, end_by=end[0], end_why=end[1])


def extended(state: JobState, task: Task, world: World) -> JobState:
    """The state with its live machine's end moved to what the budgets allow now; never to an earlier moment.

    What was held back for machines that have ended since, or for a price that has not risen, is its to use.
    """
    held, now = state.live, world.clock()
    if held is None or held.latest is None or held.end_why not in LIMITS:
        return state
    simulated = _simulated(world.store.placement(state.job, held.generation))
    limiting = purses(task, state, world, simulated=simulated, but=held.generation)
    spent = [
        replace(p, bills=(*p.bills, Bill(held.hourly, held.launched_at, now, over=True, most=held.bid)))
        for p in limiting
    ]
    end = first_end(spent, max(held.hourly, held.bid or 0.0), now)
    end_by, end_why = min((held.latest, "max_hours"), *([end] if end is not None else []))
    if end_by <= held.end_by + LEAST_GAIN:
        return state
    return replace(state, live=replace(held, end_by=end_by, end_why=end_why))


def least(config: Config, prospect: Prospect | None, offer: Offer) -> float:
    """Seconds below which a machine's time is not worth its launch: it would not get to its first step."""
    start = prospect.restart(offer) * 3600 if prospect is not None else 0.0
    return max(start, LEAST_BEATS * config.limits(simulated=offer.simulated).beat)


def _simulated(row: PlacementRow) -> bool:
    return bool(row.request["offer"].get("simulated"))


def _own(row: PlacementRow, state: JobState, now: float) -> Bill | None:
    """One machine of the job as its state has it; None for a placement that got none."""
    if row.status == "closed" and row.cause != UNCLEAR:
        return None
    if row.status == "closed" and row.ended_at is not None:
        return Bill(claimed(row.request), row.sent_at or row.picked_at, row.ended_at + STRAY, over=True)
    retiring = next((entry for entry in state.retiring if entry.generation == row.generation), None)
    if retiring is not None:
        return _leaving(retiring)
    if state.live is not None and state.live.generation == row.generation:
        held = state.live
        # One that makes room for another is told to end with the handover.
        until = held.end_by if state.heading is None else min(held.end_by, now + HANDOVER + SETTLING)
        return Bill(held.hourly, held.launched_at, until, most=held.bid)
    if row.ended_at is not None:
        most = row.request.get("bid")
        return Bill(row.hourly or 0.0, row.launched_at or row.ended_at, row.ended_at, over=True, most=most)
    return Bill(claimed(row.request), row.sent_at or row.picked_at, row.request["end_by"])


def _leaving(entry: Retiring) -> Bill:
    held: Held = entry.held
    if entry.gone_at is not None:
        return Bill(held.hourly, held.launched_at, entry.gone_at, over=True, most=held.bid)
    until = entry.end_by if entry.terminated_at is None else entry.terminated_at
    return Bill(held.hourly, held.launched_at, until, most=held.bid)
