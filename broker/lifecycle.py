"""The phases of a job: pick, launch, watch, weigh, retire, account. Each takes the state and returns the next one.

Every phase may run again from its start after a crash, so each is idempotent: what it does twice it finds done. The
order within a phase is the point of it: intent is durable before a call, a call's answer before anything else.
`pick` is in `broker.picking`, `weigh` in `broker.weighing`. `watch` is in `broker.watch`, since it alone waits; what it
decides by is `broker.reaction`.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from broker import errors
from broker.access import erase
from broker.home import Control, Home, JobKeys, Order
from broker.learning import learn
from broker.offer import Market, Offer
from broker.outlook import wish_of
from broker.picking import pick
from broker.policy.budget import UNCLEAR
from broker.policy.memory import Memory
from broker.provider import Cause, Instance, LaunchesAny, LaunchRequest, Provider, State
from broker.purse import LIMITS, extended, paid_for
from broker.reaction import UNCONFIRMED_AFTER, settled
from broker.state import HANDOVER, SETTLING, Held, JobState, Outcome, Retiring
from broker.store import JobRow, PlacementRow
from broker.task import Task
from broker.weighing import wants_weighing, weigh
from broker.world import World

__all__ = [
    "account",
    "control_of",
    "launch",
    "narrate",
    "pick",
    "retire",
    "status_of",
    "weigh",
    "wish_of",
    "write_control",
]

STALE_REQUEST = 600.0
AMBIGUOUS_TRIES = 3
STALE_PRICE = 60.0
"""Seconds after which a request under a `max_price` is picked anew instead of being sent: prices have moved on."""
OUT_WORDS = {
    "notice": ("notice", "its provider takes the machine back"),
    "preempted": ("preempted", "taken back by its provider"),
    "lost": ("lost", "the machine ended without a word"),
    "moved": ("notice", "its program ended after a notice"),
    "silence": ("lost", "no beat for too long; ended before a new one starts"),
    "boot": ("lost", "no first beat in time; ended before a new one starts"),
    "user": ("lost", "ended by hand at the provider"),
    "stop": ("stopping", "told to save and end"),
    "stuck": ("stuck", "its program gives no sign of life"),
    "migrate": ("moved", "told to move to another machine"),
}


def launch(state: JobState, world: World) -> JobState:
    """Look by tag for this generation, else send its frozen request; never create twice under one generation."""
    placement = world.store.placement(state.job, state.generation)
    request = LaunchRequest.from_json(dict(placement.request))
    if placement.status == "intent" and world.store.job(state.job).stopping:
        return _closed(state, request, "stopped by its user before it was sent", world, warn=False)
    provider = world.provider(request.offer.provider)
    write_control(state, world, launching=request)
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


def _by_tag(instances: Any, request: LaunchRequest, world: World) -> Instance | None:
    for instance in instances:
        mine = instance.installation in ("", world.installation)
        if mine and instance.job == request.job and instance.generation == request.generation:
            return instance  # type: ignore[no-any-return]
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
        where=f"{offer.where} {instance.market}",
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
        f"{word} {instance.id} in {offer.where}, {instance.market}, {instance.hourly:.4f} USD/h",
        generation=state.generation,
        once="",
        adopted=adopted,
    )
    if instance.market is not offer.market:
        world.store.event(
            state.job,
            "warning",
            f"asked for {offer.market}, got {instance.market} at {instance.hourly:.4f} USD/h",
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
        return _given_back(state, held, "market", f"is {instance.market}, and the task takes spot only", world)
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


def retire(state: JobState, world: World) -> JobState:
    """Serve everything that is on its way out: tell, terminate, confirm, write down what it cost."""
    write_control(state, world)
    served = (_serve(entry, state, world) for entry in state.retiring)
    remaining = tuple(entry for entry in served if entry is not None)
    go = state.go or (state.after is not None and settled(remaining, state.after))
    state = replace(state, retiring=remaining, go=go)
    if state.live is not None and state.live.end_why in LIMITS:
        state = extended(state, Task.from_json(world.store.job(state.job).task), world)
    write_control(state, world)
    if state.outcome is not None and state.live is None and not remaining:
        return state.to("account")
    return state.to("watch")


def _serve(entry: Retiring, state: JobState, world: World) -> Retiring | None:
    """One step for one retiring placement; None once its end is confirmed and written down."""
    now, held = world.clock(), entry.held
    if entry.terminated_at is None:
        # One that its provider took, too: it may have left a disk that is billed.
        if now < entry.terminate_at:
            return entry
        if not _terminate(held, state, world):
            return replace(entry, terminate_at=now + min(60.0, max(5.0, 0.1 * (now - entry.since))))
        entry = replace(entry, terminated_at=now, told_at=now)
        if entry.gone_at is None:
            text = f"termination of {held.instance} accepted"
            world.store.event(state.job, "terminated", text, generation=held.generation, once="")
            return entry
    if entry.gone_at is not None:
        _confirmed(entry, state, world)
        return None
    if now - (entry.terminated_at or now) >= UNCONFIRMED_AFTER and not entry.unconfirmed:
        world.store.event(
            state.job,
            "unconfirmed",
            f"{held.provider} still lists {held.instance} {UNCONFIRMED_AFTER / 60:.0f} min after its termination: "
            "it may still be billing",
            generation=held.generation,
            once="",
        )
        world.store.update_placement(state.job, held.generation, note="may still be billing")
        entry = replace(entry, unconfirmed=True)
    _terminate(held, state, world)
    return replace(entry, told_at=now)


def _confirmed(entry: Retiring, state: JobState, world: World) -> None:
    """Its end is written down, with what it was like; nothing more is to be done about it."""
    generation, ended = entry.generation, {"ended_at": entry.gone_at, "cause": entry.cause or entry.why}
    world.store.update_placement(state.job, generation, status="ended", confirmed=True, **ended)
    text = f"{entry.held.instance} is gone"
    world.store.event(state.job, "confirmed", text, generation=generation, once="", cause=entry.cause)
    learn(state, entry, world)
    JobHome(world, state.job).forget(generation)


def _terminate(held: Held, state: JobState, world: World) -> bool:
    """Ask the provider to end a machine; False where it did not accept, which is tried again."""
    provider = world.provider(held.provider)
    instance = Instance(
        provider=held.provider,
        id=held.instance,
        state=State.RUNNING,
        market=Market.SPOT if held.offer.endswith("/spot") else Market.ON_DEMAND,
        hourly=held.hourly,
        tags={},
        region=held.offer.split("/")[1],
        zone=held.offer.split("/")[2],
    )
    try:
        provider.terminate(instance)
    except errors.NotFound:
        return True
    except errors.ProviderError as error:
        world.store.event(
            state.job,
            "warning",
            f"{held.provider} did not take the termination of {held.instance}: {error}; trying again",
            generation=held.generation,
            once=f"terminate {type(error).__name__}",
        )
        return False
    return True


def account(state: JobState, world: World) -> JobState:
    """Everything has ended: write down how, forget the secrets, leave the snapshots and outputs in the home."""
    shown = world.store.job(state.job).state
    if shown is not None and shown.get("run", 1) != state.run:
        # A broker died here after the end was written down, and the job has been taken up again since.
        return state.to("done")
    outcome = state.outcome or Outcome("error", 1, "ended without an outcome")
    rows = world.store.placements(state.job)
    JobHome(world, state.job).tidy(state, [row.generation for row in rows])
    now = world.clock()
    spent = sum(row.cost(now) for row in rows)
    text = f"{outcome.status}: {outcome.message}"
    once = f"run {state.run} after {state.generation}"
    world.store.event(state.job, "ended", text, once=once, spent=spent)
    # The status comes last: whoever waits for it may end this process at once, and reads no event after it.
    world.store.update_job(
        state.job,
        status=outcome.status,
        exit_code=outcome.exit_code,
        message=outcome.message,
        fix=outcome.fix or _resumed_by(state, outcome),
        ended_at=now,
        secrets=None,
    )
    return state.to("done")


def _resumed_by(state: JobState, outcome: Outcome) -> str:
    """The next command for a job that could go on; empty where there is none."""
    if outcome.status not in ("stopped", "limit") or not state.parents:
        return ""
    if outcome.message.startswith("budget"):
        return f"broker resume {state.job} --budget USD goes on from its newest snapshot, with a higher one"
    if outcome.message.startswith("monthly_budget"):
        return f"raise monthly_budget, then broker resume {state.job} goes on from its newest snapshot"
    if outcome.message.startswith("deadline"):
        return f"broker resume {state.job} --deadline TIME goes on from its newest snapshot"
    return f"broker resume {state.job} goes on from its newest snapshot"


class JobHome:
    """What the broker tidies away in a job's home. A store that does not answer is no reason to stop."""

    def __init__(self, world: World, job: str) -> None:
        self.world, self.job, self.keys = world, job, JobKeys(job)

    @property
    def home(self) -> Home:
        return self.world.home(self.world.store.job(self.job).home)

    def forget(self, generation: int) -> None:
        """Delete what only that placement's machine could use: its boot object, with the secrets in it."""
        self._delete([self.keys.boot(generation), self.keys.access(generation)], for_good=True)

    def tidy(self, state: JobState, generations: list[int]) -> None:
        write_control(state, self.world)
        self._delete([self.keys.beat(n) for n in generations] + [self.keys.boot(n) for n in generations])

    def _delete(self, keys: list[str], *, for_good: bool = False) -> None:
        try:
            if for_good:
                erase(self.world.config, self.home, keys)
            else:
                self.home.delete(keys)
        except errors.HomeError as error:
            self.world.store.event(self.job, "warning", f"the home kept {keys[0]} and others: {error}", once=keys[0])


def write_control(state: JobState, world: World, *, launching: LaunchRequest | None = None) -> None:
    """Make the home's `control` say what the state says; written only where it differs.

    A store that does not answer is retried by whoever calls next: the state is the authority, `control` its copy.
    """
    keys = JobKeys(state.job)
    sent = launching
    if sent is None and state.live is None and state.then == "launch":
        # Its launch is not settled, so its machine may be there: it stands, or it would end itself before it is found.
        sent = LaunchRequest.from_json(dict(world.store.placement(state.job, state.generation).request))
    # A launch that may have to be given up must not start its program: nobody would wait for that to end.
    settles = sent is not None and sent is launching and _repeatable(sent, world)
    try:
        home = JobHome(world, state.job).home
        standing = _standing(home.find(keys.control))
        wanted = control_of(state, world.installation, standing.epoch if standing else 0, sent, hold=not settles)
        if standing is None or wanted.to_bytes() != standing.to_bytes():
            home.put(keys.control, replace(wanted, epoch=wanted.epoch + 1).to_bytes())
    except errors.HomeError as error:
        if launching is not None:
            raise
        world.store.event(state.job, "warning", f"the home did not take control: {error}", once=f"control {error}"[:80])


def _standing(raw: bytes | None) -> Control | None:
    """The control that is there; None without one, and where it is damaged and must be written anew."""
    try:
        return Control.from_bytes(raw) if raw else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def control_of(
    state: JobState, owner: str, epoch: int, launching: LaunchRequest | None = None, *, hold: bool = False
) -> Control:
    """The broker's word to the guests, as the state has it. Pure. hold: the launching one waits for another word."""
    generations: dict[int, Order] = {
        entry.generation: Order(end_by=entry.end_by, end_why=entry.held.end_why, order=entry.order, why=entry.why)
        for entry in state.retiring
    }
    live: int | None = None
    retiring = [entry.generation for entry in state.retiring]
    if state.live is not None and launching is not None:
        # It goes on while another machine is asked for, and until that one is ready.
        old, live = state.live, launching.generation
        end_by = min(old.end_by, launching.frozen_at + HANDOVER + SETTLING)
        generations[old.generation] = Order(end_by=end_by, end_why=old.end_why)
        retiring.append(old.generation)
        after = live if hold else old.generation
        generations[live] = Order(end_by=launching.end_by, end_why=launching.end_why, after=after)
    elif state.live is not None:
        live = state.live.generation
        generations[live] = _run_order(state, state.live.end_by, state.live.end_why)
    elif launching is not None:
        live = launching.generation
        order = _run_order(state, launching.end_by, launching.end_why)
        generations[live] = replace(order, after=live, not_before=None, go=False) if hold else order
    return Control(
        owner=owner,
        epoch=epoch,
        live=live,
        retiring=tuple(retiring),
        generations=generations,
        parents=state.parents,
        seqs=state.seqs,
    )


def _run_order(state: JobState, end_by: float, end_why: str) -> Order:
    return Order(
        end_by=end_by, end_why=end_why, after=state.after, not_before=state.start_by, go=state.go or state.after is None
    )


def narrate(before: JobState, after: JobState, world: World) -> None:
    """Write down as events what a phase's change of state means to a person."""
    gone = {entry.generation for entry in after.retiring} - {entry.generation for entry in before.retiring}
    for entry in after.retiring:
        if entry.generation not in gone:
            continue
        kind, text = ("kept", kept_words(entry)) if entry.kept else OUT_WORDS.get(entry.why, ("", ""))
        if kind == "lost" and entry.cause == Cause.PREEMPTED:
            kind, text = OUT_WORDS["preempted"]
        if kind:
            name = f"{entry.held.instance} ({entry.held.where})"
            world.store.event(
                after.job, kind, f"{name}: {text}", generation=entry.generation, once="", at=entry.since, why=entry.why
            )


def kept_words(entry: Retiring) -> str:
    """Until when a machine is kept, by this computer's clock, and at what cost."""
    until = time.strftime("%H:%M", time.localtime(entry.terminate_at))
    return f"its program has failed; the machine is kept until {until}, at {entry.held.hourly:.4f} USD/h"


def verdict_of(state: JobState, row: JobRow) -> dict[str, Any]:
    """How a job has ended whose machine is still kept, as its row's columns; nothing for any other."""
    outcome = state.outcome
    kept = next((entry for entry in state.retiring if entry.kept), None)
    if outcome is None or (kept is None and not row.kept):
        return {}
    if kept is None:
        return {"message": outcome.message, "fix": outcome.fix}
    words = kept_words(kept).partition("; ")[2]
    fix = f"broker ssh {state.job} looks at it, broker stop {state.job} ends it now"
    return {"exit_code": outcome.exit_code, "message": f"{outcome.message}; {words}", "fix": fix}


def status_of(state: JobState, row: JobRow, program_runs: bool) -> str:
    """The job's status for people, from where its state stands."""
    if state.outcome is not None and any(entry.kept for entry in state.retiring):
        return "kept"
    if state.outcome is not None:
        return state.outcome.status if state.phase == "done" else "stopping"
    if row.stopping:
        return "stopping"
    if state.live is not None and program_runs:
        return "running"
    return "moving" if state.launched > 1 or (state.launched == 1 and state.live is None) else "starting"
