"""What the policy is asked about a job: its wish, the work it has left, its deadline, and what was seen before.

Reads what is written down; decides nothing. `wish_of` serves a task that is no job yet, `outlook_of` a job.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from broker import errors, images
from broker.access import narrow
from broker.document import Problem, refuse
from broker.experience import Measured, Records
from broker.home import JobKeys
from broker.offer import Market, Offer, Trust
from broker.policy import egress
from broker.policy.cost import LOST, Prospect
from broker.policy.decision import HOME_KEY, Wish
from broker.policy.due import Due, told, zone
from broker.policy.hazard import Experience, hazard, model
from broker.policy.memory import Memory
from broker.policy.shape import misfit
from broker.policy.timing import Choice, Refusals
from broker.policy.work import UNKNOWN, Left, Stay, lag, left
from broker.restore import read_manifest
from broker.schedule import moment
from broker.state import JobState
from broker.store import JobRow, PlacementRow
from broker.task import InvalidTaskError, Task
from broker.world import World

HISTORY = 14 * 86_400.0
"""Seconds of a zone's past that are looked at: as long as the timing's benchmark gives."""
NO_WORK = Problem(
    "deadline",
    "cannot be held: nothing tells how much work there is",
    "add `work: {hours: 6, on: A100}`, or `work: {steps: 20000}` once a job of this task has run",
)
DEADLINES = "give one that lies ahead: `6h` from the launch, the next `07:00`, or a date with its time"
STATE_FILE = "trainer_state.json"
RESERVE, SAVES, MARGIN, SHARE = 30.0, 1.5, 10.0, 0.2
"""Seconds that a guest keeps back at a machine's end for a save that was never measured; else so many times what one
took; some more for the end itself; and the most of all its time (`broker.guest.control`)."""
BIGGEST_STATE = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Outlook:
    """wish: what is asked for. experience: of machines taken back. left: the work ahead. due: the deadline, with what
    is known of the market but for the spot zones, which `with_sky` adds. measured: what earlier jobs have shown. lag:
    how fast the machine that runs is, in times of what its card should be; None where nothing tells."""

    wish: Wish
    experience: Experience = field(default_factory=Experience)
    left: Left = UNKNOWN
    due: Due | None = None
    measured: Measured = field(default_factory=Measured)
    lag: float | None = None

    def hazard(self, offer: Offer, at: float) -> float:
        """Losses per hour that are expected of an offer."""
        return hazard(offer, at=at, hours=self.left.hours or 0.0, experience=self.experience)


def wish_of(task: Task) -> Wish:
    """What the policy is asked for a task. Both markets are asked for, so that each can be compared to the other."""
    markets = (Market.SPOT, Market.ON_DEMAND)
    queries = tuple(resources.query(markets) for resources in task.resources)
    return Wish(
        queries=queries,
        spot=task.spot,
        max_price=task.max_price,
        ordered=task.ordered,
        prospect=prospect_of(task),
        trust=task.readers,
    )


def prospect_of(task: Task) -> Prospect:
    """The whole work of a task; with a machine half of what lies between two saves is lost, without any save all."""
    hours = task.work.hours if task.work is not None else None
    saves, speed = task.checkpoint, relative(task.speed, task.work.on if task.work is not None else None)
    if saves is None:
        lost = hours / 2 if hours is not None else LOST
    else:
        lost = saves.every / 2 / 3600 if saves.every is not None else LOST
    down, up = (task.work.download, task.work.upload) if task.work is not None else (None, None)
    return Prospect(hours, lost=lost, speed=speed, download=down or 0.0, upload=up or 0.0)


def relative(speed: Mapping[str, float], on: str | None) -> dict[str, float]:
    """Speeds by card, as times the card that the work's hours were measured on; that card is 1 where it has none."""
    base = speed.get(on, speed.get(model(on))) if on else None
    return {card: value / base for card, value in speed.items()} if base else dict(speed)


def speeds(task: Task, measured: Measured, on: str) -> dict[str, float]:
    """How fast cards are, in times of the one that the work's hours are for: as the task says, or else as measured.

    on: "" where nothing tells what card that is. Steps an hour say nothing then, nor of a card that was never measured.
    """
    if task.speed:
        return relative(task.speed, on)
    known = on and (on in measured.paces or model(on) in measured.paces)
    return relative(measured.paces, on) if known else {}


def planned(task: Task, home: str, home_config: Mapping[str, str], records: Records | None, now: float) -> Outlook:
    """For a task that is no job yet. records: what this installation has seen, None where it has seen nothing.

    Raises InvalidTaskError for a deadline that has passed, and where nothing tells how much work there is.
    """
    measured = records.measured(task) if records is not None else Measured()
    work = _left(task, (), None, measured)
    at = moment(task.deadline, now) if task.deadline else None
    if at is not None and at <= now:
        refuse((passed(task.deadline, at, now),), str(task.source or ""), kind=InvalidTaskError)
    if at is not None and work.hours is None:
        refuse((NO_WORK,), str(task.source or ""), kind=InvalidTaskError)
    due = Due(at, reserve=reserve_of(measured, at - now)) if at is not None else None
    prospect = _prospect(task, work, measured, home, home_config, resumed=False)
    wish = replace(wish_of(task), prospect=prospect, trust=_trust(task, home, home_config))
    return Outlook(wish, records.experience() if records else Experience(), work, due, measured)


def passed(deadline: str, at: float, now: float) -> Problem:
    """That it is no deadline any more, and since when."""
    return Problem("deadline", f"{deadline} has passed {told((now - at) / 3600)} ago", DEADLINES)


def outlook_of(row: JobRow, task: Task, state: JobState, world: World) -> Outlook:
    """For a job as it stands."""
    records = world.records
    measured, rows = records.measured(task), world.store.placements(row.id)
    saves = {event.generation: event.at for event in world.store.events(row.id, kinds=("snapshot",))}
    stays = tuple(_stay(one, state, saves.get(one.generation), world.clock()) for one in rows if one.program_at)
    work = _left(task, stays, None, measured)
    if work.hours is None and stays:
        work = _left(task, stays, _told_by_checkpoint(row, rows, world), measured)
    home_config = world.config.home_config
    prospect = _prospect(task, work, measured, row.home, home_config, resumed=bool(state.parents))
    wish = replace(wish_of(task), prospect=prospect, trust=_trust(task, row.home, home_config))
    due = _due(row, task, state, measured)
    return Outlook(wish, records.experience(), work, due, measured, lag(stays, measured.paces))


def _trust(task: Task, home: str, home_config: Mapping[str, str]) -> dict[str, Trust]:
    """Who may read what goes along: the task's secrets, and the home's own key where machines would get that."""
    return task.readers if narrow(home, home_config) else {**task.readers, HOME_KEY: Trust.CLOUD}


def deadline_of(row: JobRow, task: Task) -> float | None:
    """When a job's work must be done, seconds since the epoch: as fixed at its submission."""
    if not task.deadline:
        return None
    fixed = (row.prepared or {}).get("deadline")
    return float(fixed) if fixed is not None else moment(task.deadline, row.created_at)


def _due(row: JobRow, task: Task, state: JobState, measured: Measured) -> Due | None:
    at = deadline_of(row, task)
    if at is None:
        return None
    memory, live = Memory.from_json(state.memory), state.live
    running = Choice.WAIT if live is None else Choice.SPOT if live.offer.endswith("/spot") else Choice.ON_DEMAND
    refusals = Refusals(memory.asked_on_demand, memory.refused_on_demand)
    reserve = reserve_of(measured, at - row.created_at)
    return Due(at, refusals=refusals, running=running, began=bool(state.launched), reserve=reserve)


def reserve_of(measured: Measured, whole: float) -> float:
    """Hours before its end at which a machine asks its program to save and end, as its guest will reckon it.

    whole: seconds from the submission to the deadline, of which a fifth at the most is held back.
    """
    known = RESERVE if measured.save is None else SAVES * measured.save
    return min(known + MARGIN, SHARE * max(0.0, whole)) / 3600


def with_sky(
    due: Due, offers: Sequence[Offer], wish: Wish, records: Records | None, now: float, tick: float, job: str = ""
) -> Due:
    """The deadline with what was seen of the spot zones that have such machines as these offers that fit, and of how
    other jobs fared who asked for them on demand.

    tick: seconds until the market is looked at again. job: the one that decides, "" where it is none yet.
    """
    due = replace(due, tick=tick / 3600)
    fitting = [offer for offer in offers if any(not misfit(offer, query) for query in wish.queries)]
    kinds = {(offer.provider, offer.instance_type) for offer in fitting}
    up = {zone(o): o for o in offers if o.market is Market.SPOT and (o.provider, o.instance_type) in kinds}
    if records is None:
        due.sky.see(now / 3600, dict.fromkeys(up, True))
        return due
    sky, prices = records.sky(kinds, now - HISTORY, now)
    seen = {name: name in up for name in {*sky.zones, *up}}
    sky.see(now / 3600, seen)
    prices |= {name: offer.hourly for name, offer in up.items()}
    return replace(due, sky=sky, prices=prices, refusals=due.refusals + records.refusals(fitting, job, now))


def _left(task: Task, stays: Sequence[Stay], checkpoint: tuple[int, int] | None, measured: Measured) -> Left:
    work = task.work
    return left(
        work.hours if work else None,
        work.steps if work else None,
        on=(work.on or "") if work else "",
        stays=stays,
        checkpoint=checkpoint,
        paces=measured.paces,
        speed=speeds(task, measured, (work.on or "") if work else ""),
    )


def _prospect(
    task: Task, work: Left, measured: Measured, home: str, home_config: Mapping[str, str], *, resumed: bool
) -> Prospect:
    base = prospect_of(task)
    return replace(
        base,
        hours=work.hours,
        lost=base.lost if task.checkpoint is not None else max(base.lost, (work.hours or 0.0) / 2),
        restarts=measured.restarts,
        speed=speeds(task, measured, work.on),
        checkpoint=measured.checkpoint,
        egress=egress.by_place(home, home_config),
        leaving=egress.leaving(home, home_config),
        sent=measured.sent,
        cache=measured.cache if task.cache else 0.0,
        spared=measured.spared,
        image=_image(task),
        resumed=resumed,
    )


def _image(task: Task) -> float:
    """GiB that pulling the task's container takes, where that is known; 0 for a machine image."""
    found = images.parse(task.resources[0].image)
    if found is not None and found.machine:
        return 0.0
    return (images.size_gb(found.name if found else None) or 0.0) * 1e9 / 2**30


def _stay(row: PlacementRow, state: JobState, saved: float | None, now: float) -> Stay:
    """saved: when its newest snapshot was seen. What a machine that has gone did after that is done again."""
    beat: Mapping[str, Any] = row.beat or {}
    told: Mapping[str, Any] = beat.get("progress") or {}
    live = state.live is not None and state.live.generation == row.generation
    gone = min(t for t in (row.noticed_at, row.ended_at, now) if t is not None)
    kept = row.program_at if saved is None else saved
    return Stay(
        began=row.program_at,
        until=told.get("at") or (now if live or kept is None else min(gone, kept)),
        first=beat.get("first_step"),
        step=told.get("step"),
        total=told.get("total"),
        saved=beat.get("manifest_step"),
        card=row.request["offer"].get("gpu") or "",
        live=live,
    )


def _told_by_checkpoint(row: JobRow, rows: Sequence[PlacementRow], world: World) -> tuple[int, int] | None:
    """(step, all steps) as the newest snapshot's Hugging Face trainer has them; None where there is no such file.

    transformers, `TrainerState`: `global_step` and `max_steps`.
    """
    keys = JobKeys(row.id)
    for placement in reversed(rows):
        seq = (placement.beat or {}).get("seq")
        if not seq:
            continue
        try:
            home = world.home(row.home)
            files = read_manifest(home, keys, placement.generation, seq).files
            found = [(path, file) for path, file in files.items() if path.rsplit("/", 1)[-1] == STATE_FILE]
            states = [json.loads(home.get(keys.blob(f.sha256))) for _, f in found if f.size <= BIGGEST_STATE]
            steps = [(int(s["global_step"]), int(s["max_steps"])) for s in states]
        except (errors.HomeError, FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        return max((pair for pair in steps if pair[1] > 0), default=None)
    return None
