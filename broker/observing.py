"""Looks at the market between jobs: `observe`.

How long a zone has been up and how often it changes is what the timing of the next job rests on, and only who has
looked knows. So a live broker looks at what the installation's tasks ask for, at a bounded price: every provider is
asked for its offers at most `MOST` times in `EVERY` seconds, whatever the number of jobs. Asking costs no money.
"""

from __future__ import annotations

from broker.offer import OfferQuery
from broker.outlook import wish_of
from broker.policy.infra import may_name
from broker.task import Task
from broker.world import World

EVERY = 600.0
"""Seconds between two looks: published probes of spot zones, and so the benchmark's traces, are as far apart."""
MOST = 4
"""Different wishes that are looked for, the newest jobs' first."""
RECENT = 14 * 86_400.0
"""Seconds since a job's submission for which its zones are looked at."""


def observe(world: World) -> bool:
    """Look at the market for what recent jobs asked for, unless that was done just now. False: nothing was asked."""
    now = world.clock()
    wanted = queries(world)
    if not wanted or now - world.records.last_look() < EVERY / 2:
        return False
    world.market.offers(wanted)
    return True


def queries(world: World) -> tuple[OfferQuery, ...]:
    """The different wishes of recent jobs that any paid provider may answer."""
    found: dict[OfferQuery, None] = {}
    paid = [name for name in world.market.names if name != "local"]
    for row in world.store.jobs(since=world.clock() - RECENT):
        for query in wish_of(Task.from_json(row.task)).queries:
            if any(may_name(query.infra, name) for name in paid):
                found.setdefault(query)
    return tuple(found)[:MOST]
