"""The phases with which a job ends, or a machine of it: retire and account. Each takes the state and returns the next.

Every phase may run again from its start after a crash, so each is idempotent: what it does twice it finds done. The
order within a phase is the point of it: intent is durable before a call, a call's answer before anything else.
`pick` is in `broker.picking`, `launch` in `broker.launching`, `weigh` in `broker.weighing`. `watch` is in
`broker.watch`, since it alone waits; what it decides by is `broker.reaction`.
"""

from __future__ import annotations

from dataclasses import replace

from broker import errors
from broker.control import JobHome, write_control
from broker.learning import learn
from broker.offer import Market
from broker.provider import Instance, State
from broker.purse import LIMITS, extended
from broker.reaction import UNCONFIRMED_AFTER, settled
from broker.state import Held, JobState, Outcome, Retiring
from broker.task import Task
from broker.watch import told
from broker.world import World


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
            if entry.gone_at is not None and now >= max(entry.gone_at, entry.since) + UNCONFIRMED_AFTER:
                # It runs no more, so its job need not wait for ever; what is still listed of it the sweep asks about.
                ended = f"{held.instance} has ended, and {held.provider} takes no word to delete what is left of it"
                _may_bill(held, state, world, f"{ended}: a disk may still be billed")
                _confirmed(entry, state, world)
                return None
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
        listed = f"{held.provider} still lists {held.instance} {UNCONFIRMED_AFTER / 60:.0f} min after its termination"
        _may_bill(held, state, world, f"{listed}: it may still be billing")
        entry = replace(entry, unconfirmed=True)
    _terminate(held, state, world)
    return replace(entry, told_at=now)


def _may_bill(held: Held, state: JobState, world: World, text: str) -> None:
    world.store.event(state.job, "unconfirmed", text, generation=held.generation, once="")
    world.store.update_placement(state.job, held.generation, note="may still be billing")


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
            f"{held.provider} did not take the termination of {held.instance}: {told(error)}; trying again",
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
