"""Finds machines with our tag that no job owns, and ends them."""

from __future__ import annotations

from broker.errors import BrokerError, ConfigError, JobNotFound
from broker.provider import Instance, State
from broker.state import JobState
from broker.store import claimed
from broker.watch import told
from broker.world import World

LATE = 86_400.0
"""Seconds for which a machine may still be there that came of a launch without an answer."""


def owned(instance: Instance, world: World) -> bool:
    """May some job still want this machine? In doubt yes: a job between two phases owns its newest placement."""
    try:
        row = world.store.job(instance.job)
    except JobNotFound:
        return False
    if row.done:
        return False
    if row.state is None:
        return True
    try:
        state = JobState.from_json(row.state)
    except ConfigError:
        return True  # a newer broker's
    if instance.generation > state.generation:
        return True
    for held in state.held:
        if held.generation == instance.generation:
            return held.instance == instance.id  # a second one of one launch is nobody's
    return any(
        placement.generation == instance.generation
        and placement.status in ("intent", "sent", "launched")
        and placement.instance in (None, instance.id)
        for placement in world.store.placements(instance.job)
    )


def orphans(world: World) -> list[Instance]:
    """Machines of this installation that may cost money and that no job owns.

    A provider that fails is left out: the jobs are told for which something of theirs may be there.
    """
    found: list[Instance] = []
    for name in world.market.names:
        try:
            listed = world.provider(name).instances()
        except BrokerError as error:
            _unasked(name, error, world)
            continue
        found += [
            instance
            for instance in listed
            if instance.state is not State.TERMINATED
            and instance.installation == world.installation
            and not owned(instance, world)
        ]
    return found


def _unasked(name: str, error: BrokerError, world: World) -> None:
    """Say it to every job one of whose launches there was never answered; nobody else has anything there unseen."""
    for row in world.store.unclear(world.clock() - LATE):
        if row.request["offer"]["provider"] == name:
            text = (
                f"{name} cannot be asked whether a machine came of placement {row.generation}, "
                f"which would go on being billed: {told(error)}"
            )
            world.store.event(
                row.job, "warning", text, generation=row.generation, once=f"unasked {type(error).__name__}"
            )


def _book(instance: Instance, world: World) -> None:
    """What came of a launch that had been given up has cost something, too."""
    for row in world.store.placements(instance.job):
        if row.generation == instance.generation and row.status == "closed" and row.launched_at is None:
            world.store.update_placement(
                instance.job,
                instance.generation,
                launched_at=instance.launched_at or row.sent_at or row.picked_at,
                hourly=instance.hourly or claimed(row.request),
                ended_at=world.clock(),
            )


def sweep(world: World) -> list[str]:
    """End every orphan; returns what was ended, `provider/id`. One that cannot be ended now is met again next time."""
    ended: list[str] = []
    for instance in orphans(world):
        try:
            world.provider(instance.provider).terminate(instance)
        except BrokerError as error:
            text = f"orphan {instance.id} at {instance.provider} could not be ended: {told(error)}"
            world.store.event(instance.job, "warning", text, generation=instance.generation, once=f"orphan {error}")
            continue
        ended.append(f"{instance.provider}/{instance.id}")
        _book(instance, world)
        text = f"ended {instance.id} at {instance.provider}, which no job owns"
        world.store.event(instance.job, "swept", text, generation=instance.generation, once=instance.id)
    return ended
