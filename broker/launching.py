"""The phase `launch`: look by tag for this generation, else send its frozen request; never create twice under one.

What the provider's answer comes to is decided here, each class of error being one decision.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from broker import errors
from broker.control import JobHome, write_control
from broker.offer import Market, Offer
from broker.policy.budget import UNCLEAR
from broker.policy.memory import Memory
from broker.provider import Instance, LaunchesAny, LaunchRequest, Provider
from broker.purse import paid_for
from broker.state import HANDOVER, Held, JobState, Outcome, Retiring
from broker.store import PlacementRow
from broker.task import Task
from broker.weighing import wants_weighing
from broker.world import World

STALE_REQUEST = 600.0
AMBIGUOUS_TRIES = 3
STALE_PRICE = 60.0
"""Seconds after which a request under a `max_price` is picked anew instead of being sent: prices have moved on."""


def launch(state: JobState, world: World) -> JobState:
    """Look by tag for this generation, else send its frozen request; never create twice under one generation."""
    placement = world.store.placement(state.job, state.generation)
    request = LaunchRequest.from_json(dict(placement.request))
    if placement.status == "intent" and world.store.job(state.job).stopping:
        return _closed(state, request, "stopped by its user before it was sent", world, warn=False)
    provider = world.provider(request.offer.provider)
    # A launch that may have to be given up must not start its program: nobody would wait for that to end.
    write_control(state, world, launching=request, hold=not _repeatable(request, world))
    try:
        found = _by_tag(provider.instances(), request, world)
    except errors.ProviderError as error:
        return _unlisted(state, request, placement, error, world)
    if found is not None:
        return _held(state, request, found, world, adopted=True)
    age = world.clock() - request.frozen_at
    stale = age > STALE_REQUEST or (placement.status == "intent" and age > STALE_PRICE and _max_price(state, world))
    resend = placement.status == "intent" or (_repeatable(request, world) and state.tries < AMBIGUOUS_TRIES)
    listed_by = (placement.sent_at or 0.0) + provider.traits.list_lag if placement.status == "sent" else 0.0
    if not resend and state.live is None and world.clock() < listed_by:
        # A broker died here: what it sent may have made a machine that is not listed yet.
        return state.to("watch", not_before=listed_by, then="launch")
    if stale or not resend:
        why = "its request is too old to be sent" if stale else "its launch was never confirmed"
        if placement.status == "sent":
            unclear = errors.Ambiguous(why, provider=provider.name)
            memory = Memory.from_json(state.memory).refused(request.offer, unclear, world.clock()).to_json()
            state = replace(state, memory=memory)
        return _closed(state, request, why, world, warn=placement.status == "sent")
    world.store.update_placement(state.job, state.generation, status="sent", sent_at=world.clock())
    if not state.tries:
        state = replace(state, memory=Memory.from_json(state.memory).asked(request.offer).to_json())
    try:
        instance = _sent(provider, request)
    except errors.ProviderError as error:
        return _refused(state, request, error, world)
    return _held(state, request, instance, world)


def _repeatable(request: LaunchRequest, world: World) -> bool:
    """Is the same request again the same machine? Of a call for many offers no provider says so."""
    return world.provider(request.offer.provider).traits.token and not request.any_of


def _sent(provider: Provider, request: LaunchRequest) -> Instance:
    """The request as it was frozen, also where its winner is known already and only its answer was lost."""
    if not request.any_of:
        return provider.launch(request)
    assert isinstance(provider, LaunchesAny)
    return provider.launch_any(replace(request, offer=request.any_of[0]), request.any_of)


def _max_price(state: JobState, world: World) -> float | None:
    found: float | None = world.store.job(state.job).task.get("max_price")
    return found


def _by_tag(instances: Iterable[Instance], request: LaunchRequest, world: World) -> Instance | None:
    for instance in instances:
        mine = instance.installation in ("", world.installation)
        if mine and instance.job == request.job and instance.generation == request.generation:
            return instance
    return None


def _unlisted(
    state: JobState, request: LaunchRequest, placement: PlacementRow, error: errors.ProviderError, world: World
) -> JobState:
    """The list by which to look did not come: without a look nothing is sent."""
    now = world.clock()
    if now - request.frozen_at > STALE_REQUEST or isinstance(error, errors.AuthFailed) or state.live is not None:
        memory = Memory.from_json(state.memory).refused(request.offer, error, now).to_json()
        why = f"{request.offer.provider} could not list its machines: {error}"
        return _closed(replace(state, memory=memory), request, why, world, warn=placement.status == "sent")
    return state.to("watch", not_before=now + 5.0, then="launch")


def _held(
    state: JobState, request: LaunchRequest, instance: Instance, world: World, *, adopted: bool = False
) -> JobState:
    """The machine is ours: its id goes to disk before anything else is done."""
    offer, now = request.won_by(instance), world.clock()
    request = replace(request, offer=offer)
    instance = replace(instance, hourly=_charged(instance, offer))
    launched_at = instance.launched_at or now
    world.store.update_placement(
        state.job,
        state.generation,
        status="launched",
        request=request.to_json(),
        instance=instance.id,
        launched_at=launched_at,
        hourly=instance.hourly,
        market=str(instance.market),
    )
    traits = world.provider(offer.provider).traits
    held = Held(
        generation=state.generation,
        provider=offer.provider,
        instance=instance.id,
        offer=offer.key,
        hourly=instance.hourly,
        launched_at=launched_at,
        boot_by=max(launched_at, request.frozen_at) + traits.boot_limit,
        end_by=request.end_by,
        end_why=request.end_why,
        beat=world.limits(simulated=traits.simulated).beat,
        where=f"{offer.where} {instance.market.told}",
        simulated=traits.simulated,
        bid=request.bid,
        latest=request.latest,
    )
    task = Task.from_json(world.store.job(state.job).task)
    held = paid_for(held, state, task, world)
    word = "adopted" if adopted else "launched"
    world.store.event(
        state.job,
        "launched",
        f"{word} {instance.id} in {offer.where}, {instance.market.told}, {instance.hourly:.4f} USD/h",
        generation=state.generation,
        once="",
        adopted=adopted,
    )
    if instance.market is not offer.market:
        world.store.event(
            state.job,
            "warning",
            f"asked for {offer.market.told}, got {instance.market.told} at {instance.hourly:.4f} USD/h",
            generation=state.generation,
            once="market",
        )
    memory = Memory.from_json(state.memory).launched().to_json()
    weigh_at = now + world.limits(simulated=traits.simulated).weigh if wants_weighing(task, held, world) else None
    state = replace(state, launched=state.launched + 1, memory=memory, heading=None, weigh_at=weigh_at)
    if state.live is not None:
        state = _makes_room(state, state.live, now)
    state = state.to("watch", live=held, not_before=None, then="pick")
    if task.max_price is not None and instance.hourly > task.max_price * (1 + 1e-6):
        why = f"costs {held.hourly:.4f} USD/h, above max_price {task.max_price}"
        return _given_back(state, held, "max_price", why, world)
    if task.spot == "only" and instance.market is not Market.SPOT:
        return _given_back(state, held, "market", f"is {instance.market.told}, and the task takes spot only", world)
    return replace(state, places=())


def _charged(instance: Instance, offer: Offer) -> float:
    """USD per hour as its provider says; where it does not, as offered for the market that the machine is of."""
    if instance.hourly > 0:
        return instance.hourly
    on_demand = float(offer.extra.get("on_demand") or 0.0)
    beside = offer.hourly - offer.price
    return offer.hourly if instance.market is offer.market else max(offer.hourly, on_demand + beside)


def _makes_room(state: JobState, old: Held, now: float) -> JobState:
    """The machine that runs goes on until the guest of the new one is ready, or for as long as a handover may take."""
    entry = Retiring(held=old, why="migrate", order="run", since=now, terminate_at=now + HANDOVER)
    retiring, moves = (*state.retiring, entry), state.moves + 1
    return replace(state, retiring=retiring, after=old.generation, start_by=None, go=False, moves=moves)


def _given_back(state: JobState, held: Held, why: str, words: str, world: World) -> JobState:
    """What was rented is not what the task allows: it ends, and the offer is not taken again soon."""
    text = f"{held.instance} {words}: it is ended at once"
    world.store.event(state.job, "warning", text, generation=held.generation, once=f"given back: {why}")
    now = world.clock()
    entry = Retiring(held=held, why=why, order="end", since=now, blocking=True, terminate_at=now)
    out = replace(state, live=None, retiring=(*state.retiring, entry), lost=(held.generation, why))
    return out.to("retire", after=held.generation, start_by=None, go=False)


def _refused(state: JobState, request: LaunchRequest, error: errors.ProviderError, world: World) -> JobState:
    """The launch call raised: each class of error is one decision."""
    now, offer = world.clock(), request.offer
    code = f"{error.code}: " if error.code and not error.message.startswith(error.code) else ""
    world.store.event(
        state.job,
        "refused",
        f"{offer.key}: {type(error).__name__}: {code}{error.message}",
        generation=state.generation,
        error=type(error).__name__,
        code=error.code,
    )
    nowhere = isinstance(error, errors.NoCapacity)
    if nowhere:
        for member in request.any_of or (offer,):
            world.records.gone(member, now)
    if state.live is not None:
        memory = Memory.from_json(state.memory).refused(offer, error, now).to_json()
        ambiguous = isinstance(error, errors.Ambiguous) or _of_another(error)
        return _closed(replace(state, memory=memory), request, f"refused: {error}", world, warn=ambiguous)
    if isinstance(error, errors.InvalidRequest) and not _of_another(error):
        _close(state, f"refused: {error}", world)
        outcome = Outcome("error", 1, f"{offer.provider} refuses the request: {error}", error.fix)
        return state.to("retire" if state.retiring else "account", outcome=outcome)
    if isinstance(error, errors.Ambiguous) or _of_another(error):
        lag = world.provider(offer.provider).traits.list_lag
        return state.to("watch", not_before=now + lag, then="launch", tries=state.tries + 1)
    known = Memory.from_json(state.memory)
    for member in (request.any_of if nowhere else ()) or (offer,):
        known = known.refused(member, error, now)
    return _closed(replace(state, memory=known.to_json()), request, f"refused: {error}", world, warn=False)


def _of_another(error: errors.ProviderError) -> bool:
    """Does the token belong to another request, such as one that other settings were in? Then something was made."""
    return error.code.startswith("Idempotent")


def _close(state: JobState, why: str, world: World, *, unclear: bool = False) -> None:
    cause = {"cause": UNCLEAR} if unclear else {}
    world.store.update_placement(
        state.job, state.generation, status="closed", note=why, ended_at=world.clock(), **cause
    )


def _closed(state: JobState, request: LaunchRequest, why: str, world: World, *, warn: bool) -> JobState:
    """This generation gets no instance, and counts as no move. What may yet appear under it the sweeper ends."""
    _close(state, why, world, unclear=warn)
    if warn:
        world.store.event(
            state.job,
            "warning",
            f"{request.offer.where} may still start a machine for placement {state.generation}; it will be ended",
            generation=state.generation,
            once="ambiguous",
        )
    JobHome(world, state.job).forget(state.generation)
    if state.live is not None:
        again = world.clock() + world.limits(simulated=state.live.simulated).weigh
        return state.to("watch", heading=None, weigh_at=again, not_before=None, then="pick", tries=0)
    return state.to("pick", not_before=None, then="pick", tries=0)
