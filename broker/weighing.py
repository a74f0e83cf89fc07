"""The phase `weigh`: a job that runs looks at the market again, and moves of its own accord where that pays.

From on-demand back to spot, when what is saved is worth the move; off a machine that is slower than its card has been
seen to be; to no machine at all, where a deadline leaves time to wait for spot; or nowhere, with a higher bid, where
that is cheaper than to be outbid. Money that budgets held back for machines which have ended since goes to the one that
runs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from broker import errors
from broker.offer import Market, Offer
from broker.outlook import Outlook, outlook_of
from broker.picking import decided, mourn
from broker.policy.bid import capped, limit, raised
from broker.policy.budget import UNCLEAR
from broker.policy.decision import Decision, money
from broker.policy.memory import Memory
from broker.policy.timing import Choice
from broker.policy.work import SLOW
from broker.provider import ChangesBid, Instance, LaunchRequest, State
from broker.purse import extended, paid_for
from broker.reaction import Limits, Seen, leave
from broker.state import Held, JobState
from broker.task import Task
from broker.world import World

WORTH = 0.9
"""A move is made where finishing after it costs at most so much of finishing here: prices and hazards are estimates."""
LEAST_HORIZON = 1.0
"""Hours of work that are taken to be left, at the least, where nothing tells: else as many as the job has run."""


def wants_weighing(task: Task, held: Held, world: World) -> bool:
    """Is there anything that a look at the market could change for a job on this machine?"""
    on_demand = not held.offer.endswith(f"/{Market.SPOT}")
    limited = task.budget is not None or world.config.monthly_budget is not None
    paced = task.work is not None and task.spot != "never"
    return (on_demand and task.spot == "auto") or limited or paced or _changes_bids(held, world)


def weigh(state: JobState, world: World) -> JobState:
    """Look at the market for a job that runs: stay, bid more, move, or leave."""
    row, live = world.store.job(state.job), state.live
    if live is None or state.outcome is not None or row.stopping:
        return state.to("watch", weigh_at=None)
    task = Task.from_json(row.task)
    _give_up(state, live, world)
    state = extended(mourn(replace(state, heading=None), world), task, world)
    again = world.clock() + world.limits(simulated=live.simulated).weigh
    stay = state.to("watch", weigh_at=again)
    spot = live.offer.endswith(f"/{Market.SPOT}")
    if not wants_weighing(task, live, world):
        return stay
    outlook = outlook_of(row, task, state, world)
    slow = outlook.lag is not None and outlook.lag < SLOW and task.spot != "never"
    if spot and not slow and not _changes_bids(live, world):
        return stay
    outlook = _as_it_should(outlook, task) if slow else _reckonable(outlook, state, world)
    if outlook.due is None and not spot:
        outlook = replace(outlook, wish=replace(outlook.wish, spot="only"))
    outlook, decision = decided(state, outlook, world, weighing=True)
    if spot and not slow:
        return _bid(stay, live, decision, outlook, task, world)
    if (task.spot != "auto" and not slow) or state.moves + 1 >= task.max_moves:
        return stay  # a move that must be made may still come
    return _better(stay, live, decision, outlook, world)


def _give_up(state: JobState, live: Held, world: World) -> None:
    """Close the placement that the job was moving to when a launch broke off: this machine has gone on."""
    held = {entry.generation for entry in state.retiring}
    for row in world.store.placements(state.job):
        if row.generation > live.generation and row.status in ("intent", "sent") and row.generation not in held:
            cause = {"cause": UNCLEAR} if row.status == "sent" else {}
            closed = {"status": "closed", "note": "given up", "ended_at": world.clock()}
            world.store.update_placement(state.job, row.generation, **closed, **cause)


def _reckonable(outlook: Outlook, state: JobState, world: World) -> Outlook:
    """With hours of work to weigh by, where the task does not say: what has run so long goes on as long."""
    prospect = outlook.wish.prospect
    if prospect is None or prospect.hours is not None:
        return outlook
    now, rows = world.clock(), world.store.placements(state.job)
    ran = sum((row.ended_at or now) - row.program_at for row in rows if row.program_at is not None) / 3600
    hours = max(LEAST_HORIZON, ran)
    return replace(outlook, wish=replace(outlook.wish, prospect=replace(prospect, hours=hours)), due=None)


def _as_it_should(outlook: Outlook, task: Task) -> Outlook:
    """With the hours that the work takes on a machine of this card that is not slow; a deadline waits for the next."""
    prospect, lag = outlook.wish.prospect, outlook.lag
    if prospect is None or prospect.hours is None or lag is None:
        return outlook
    told = task.work is not None and task.work.hours is not None
    hours = prospect.hours if told else prospect.hours * lag
    return replace(outlook, wish=replace(outlook.wish, spot="only", prospect=replace(prospect, hours=hours)), due=None)


def _better(stay: JobState, live: Held, decision: Decision, outlook: Outlook, world: World) -> JobState:
    """Go back to spot, or off the machine, where that is cheaper."""
    if decision.timing is not None:
        if decision.timing.choice is Choice.WAIT:
            _say(stay, world, f"leaves {live.where}: {decision.timing.reason}")
            return leave(replace(stay, weigh_at=None), Seen(world.clock()), _limits(world))
        if decision.timing.choice is Choice.SPOT and decision.offer is not None:
            _say(stay, world, f"goes back to spot in {decision.offer.where}: {decision.timing.reason}")
            return stay.to("pick", heading=decision.offer.key)
        return stay
    spots = [c for c in decision.ranked if c.offer.market is Market.SPOT and c.finish is not None]
    spots = [c for c in spots if c.offer.key != live.offer]
    lag = min(1.0, outlook.lag or 1.0)
    prospect = outlook.wish.prospect
    if not spots or prospect is None or prospect.hours is None:
        return stay
    best, pace = spots[0], prospect.speed_of(_offer(stay, world)) * (lag if lag < SLOW else 1.0)
    assert best.finish is not None
    # This machine goes on working, and being paid for, until the other one is ready.
    meanwhile = min(prospect.restart(best.offer), prospect.hours / pace)
    here = prospect.hours / pace * live.hourly
    there = meanwhile * live.hourly + best.finish.total * (1 - meanwhile * pace / prospect.hours)
    if there > WORTH * here:
        return stay
    sums = f"{money(there)} to finish there, {money(here)} here"
    if lag >= SLOW:
        _say(stay, world, f"goes back to spot in {best.offer.where}: {sums}")
        return stay.to("pick", heading=best.offer.key)
    text = f"makes {100 * lag:.0f} % of the steps that its card has made: goes to spot in {best.offer.where}, {sums}"
    _say(stay, world, text)
    memory = Memory.from_json(stay.memory).lost(_offer(stay, world), "slow work", world.clock())
    return replace(stay, memory=memory.to_json()).to("pick", heading=best.offer.key)


def _bid(stay: JobState, live: Held, decision: Decision, outlook: Outlook, task: Task, world: World) -> JobState:
    """Bid more for the machine that runs, where its price nears the bid and staying is still the cheapest."""
    mine = next((c for c in decision.ranked if c.offer.key == live.offer), None)
    if mine is None:
        return stay
    beside = mine.offer.hourly - mine.offer.price
    standing = live.hourly - beside if live.bid is None else live.bid
    hazard = mine.finish.hazard if mine.finish is not None else outlook.hazard(mine.offer, world.clock())
    others = [c for c in decision.ranked if c is not mine]
    highest = capped(limit(mine, others, outlook.wish.prospect, hazard, running=True), task.max_price) - beside
    new = raised(standing, highest, float(mine.offer.extra.get("bid_floor", mine.offer.price)))
    if new is None:
        return stay
    try:
        cast("ChangesBid", world.provider(live.provider)).change_bid(_instance(live), new)
    except errors.ProviderError as error:
        world.store.event(
            stay.job, "warning", f"{live.provider} did not take a higher bid: {error}", generation=live.generation
        )
        return stay
    _say(stay, world, f"bids {money(new)} instead of {money(standing)} for {live.where}: a move would cost more")
    # The hours before at the old price are booked at the new one: never too low, and a budget holds.
    world.store.update_placement(stay.job, live.generation, hourly=new + beside)
    dearer = replace(live, bid=new, hourly=new + beside)
    return replace(stay, live=paid_for(dearer, stay, task, world))


def _changes_bids(held: Held, world: World) -> bool:
    return held.offer.endswith(f"/{Market.SPOT}") and isinstance(world.provider(held.provider), ChangesBid)


def _offer(state: JobState, world: World) -> Offer:
    assert state.live is not None
    request: dict[str, Any] = dict(world.store.placement(state.job, state.live.generation).request)
    return LaunchRequest.from_json(request).offer


def _instance(held: Held) -> Instance:
    provider, region, zone, kind, market = held.offer.split("/")
    return Instance(
        provider=provider,
        id=held.instance,
        state=State.RUNNING,
        market=Market(market),
        hourly=held.hourly,
        tags={},
        region=region,
        zone=zone,
        instance_type=kind,
    )


def _limits(world: World) -> Limits:
    return Limits(grace=world.limits(simulated=False).grace)


def _say(state: JobState, world: World, text: str) -> None:
    assert state.live is not None
    world.store.event(state.job, "weighed", text, generation=state.live.generation)
