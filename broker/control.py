"""The broker's word to the guests of a job, `control`, as the state has it; and what is tidied away in its home."""

from __future__ import annotations

from dataclasses import replace

from broker import errors
from broker.access import erase
from broker.home import Control, Home, JobKeys, Order
from broker.provider import LaunchRequest
from broker.state import HANDOVER, SETTLING, JobState
from broker.world import World


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


def write_control(state: JobState, world: World, *, launching: LaunchRequest | None = None, hold: bool = True) -> None:
    """Make the home's `control` say what the state says; written only where it differs. hold: as for `control_of`.

    A store that does not answer is retried by whoever calls next: the state is the authority, `control` its copy.
    """
    keys = JobKeys(state.job)
    sent = launching
    if sent is None and state.live is None and state.then == "launch":
        # Its launch is not settled, so its machine may be there: it stands, or it would end itself before it is found.
        sent = LaunchRequest.from_json(dict(world.store.placement(state.job, state.generation).request))
    try:
        home = JobHome(world, state.job).home
        standing = _standing(home.find(keys.control))
        wanted = control_of(state, world.installation, standing.epoch if standing else 0, sent, hold=hold)
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
