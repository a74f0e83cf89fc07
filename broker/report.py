"""What happened to a job, from its rows and snapshots: pure functions from those to plain data.

`broker.cli.timeline` draws it. Times are seconds since the epoch, durations seconds, money USD.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broker.job import Job
    from broker.manifest import Manifest
    from broker.rehearse.series import Series
    from broker.store import Event, JobRow, PlacementRow

PREEMPTED = "preempted"
ENDS = {"succeeded": "done", "failed": "failed"}


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a placement's life. what: boot, setup, wait, restore, run or close."""

    what: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment of it. what: save, notice, preempted, lost, done, failed or stopped."""

    what: str
    at: float


@dataclass(frozen=True, slots=True)
class Stay:
    """One placement. cost: USD. on_demand: what the same time would have cost on demand, None where unknown.

    startup: seconds from its launch to its program's first step, or to the program's start where it reports none.
    first_step, last_step: the first and the last that its program reported. cause: the provider's word for its end.
    """

    generation: int
    where: str
    market: str
    instance: str
    instance_type: str
    hourly: float
    why: str
    segments: tuple[Segment, ...]
    marks: tuple[Mark, ...]
    start: float
    end: float
    cost: float
    on_demand: float | None
    startup: float | None
    first_step: int | None
    last_step: int | None
    saves: int
    cause: str | None
    note: str = ""

    @property
    def place(self) -> str:
        """`provider/zone` where the zone carries its region's name, else `provider/region/zone`."""
        provider, _, rest = self.where.partition("/")
        region, _, zone = rest.partition("/")
        return f"{provider}/{zone}" if zone.startswith(region) and zone else self.where

    def seconds(self, what: str) -> float:
        return sum(s.end - s.start for s in self.segments if s.what == what)


@dataclass(frozen=True, slots=True)
class Move:
    """From one placement to the next whose program ran.

    why: notice, preempted or lost. reached: the last step before it. restored: the snapshot taken up, as (generation,
    seq); restored_step: the step that it stands for. resumed: the first step reported after it. lost: steps done twice.
    gap: seconds from one program's end to the other's start; setup: of these, how long setup ran. startup: the
    target's.
    """

    source: int
    target: int
    why: str
    reached: int | None
    restored: tuple[int, int] | None
    restored_step: int | None
    resumed: int | None
    lost: int | None
    gap: float | None
    setup: float
    startup: float | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """A job's whole story. unit: of what its program counts, step or epoch.

    spent and on_demand: USD; on_demand is None where no price for it is known.
    """

    job: str
    name: str
    status: str
    message: str
    created: float
    end: float
    stays: tuple[Stay, ...]
    moves: tuple[Move, ...]
    spent: float
    on_demand: float | None
    simulated: bool
    unit: str = "step"
    plan: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def outcome(self) -> str:
        """The last line about a job: how it ended, or how it stands."""
        told = not self.message or self.message.startswith(self.status) or self.status == "kept"
        return self.message if told else f"{self.status}: {self.message}"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "outcome": self.outcome or self.status}


def build(
    job: JobRow,
    placements: Sequence[PlacementRow],
    events: Sequence[Event],
    manifests: Mapping[int, Sequence[Manifest]],
    *,
    now: float,
    reached: Mapping[int, int] | None = None,
) -> Report:
    """The report of a job as it stands at `now`.

    manifests: the snapshots of each generation, in order. reached: last steps known better than by the last beat.
    """
    rented = [p for p in placements if p.launched_at is not None]
    prices = on_demand_prices(job.plan or {})
    stays = tuple(
        _stay(
            p,
            [e for e in events if e.generation == p.generation],
            manifests.get(p.generation, ()),
            prices,
            now,
            reached,
        )
        for p in rented
    )
    steps = {(m.generation, m.seq): m.step for several in manifests.values() for m in several}
    moves = _moves(rented, stays, events, steps)
    end = job.ended_at or now
    return Report(
        job=job.id,
        name=job.name,
        status=job.status,
        message=job.message,
        created=job.created_at,
        end=max([end, *(s.end for s in stays)]),
        stays=stays,
        moves=moves,
        spent=sum(s.cost for s in stays),
        on_demand=None if any(s.on_demand is None for s in stays) else sum(s.on_demand or 0.0 for s in stays),
        simulated=any(p.request["offer"].get("simulated") for p in rented),
        plan=tuple((job.plan or {}).get("reasons") or ()),
        refused=tuple(e.text for e in events if e.kind in ("refused", "nothing")),
        warnings=tuple(dict.fromkeys(e.text for e in events if e.kind in ("warning", "unconfirmed"))),
    )


def on_demand_prices(plan: Mapping[str, Any]) -> dict[str, float]:
    """USD per hour on demand by an offer's key without its market, from a stored decision."""
    found: dict[str, float] = {}
    for entry in (*plan.get("ranked", ()), *plan.get("rejected", ())):
        machine, _, market = str(entry["key"]).rpartition("/")
        if entry.get("on_demand") is not None:
            found.setdefault(machine, float(entry["on_demand"]))
        if market == "on_demand" and entry.get("cost") is not None:
            found[machine] = float(entry["cost"])
    return found


def _stay(
    row: PlacementRow,
    events: Sequence[Event],
    manifests: Sequence[Manifest],
    prices: Mapping[str, float],
    now: float,
    reached: Mapping[int, int] | None,
) -> Stay:
    offer, beat = row.request["offer"], row.beat or {}
    start, end = row.launched_at or row.picked_at, row.ended_at or now
    progress = beat.get("progress") or {}
    machine = "/".join(str(offer[k]) for k in ("provider", "region", "zone", "instance_type"))
    usual = prices.get(machine)
    last = [step for step in ((reached or {}).get(row.generation), progress.get("step")) if step is not None]
    return Stay(
        generation=row.generation,
        where="/".join(part for part in (offer["provider"], offer["region"], offer["zone"]) if part),
        market=row.market or offer["market"],
        instance=row.instance or "",
        instance_type=offer["instance_type"],
        hourly=row.hourly or 0.0,
        why=str(row.reasons[0]) if row.reasons else "",
        segments=segments(row, {e.kind: e.at for e in events}, end),
        marks=_marks(row, events, manifests),
        start=start,
        end=end,
        cost=row.cost(now),
        on_demand=None if usual is None else usual * (end - start) / 3600,
        startup=startup(row, events),
        first_step=beat.get("first_step"),
        last_step=max(last, default=None),
        saves=len(manifests),
        cause=row.cause,
        note=row.note,
    )


def startup(row: PlacementRow, events: Iterable[Event]) -> float | None:
    """Seconds from a placement's launch to its program's first step; to its start where it reports none or not yet.

    events: the job's, or the placement's. None while neither has been.
    """
    steps = [e.at for e in events if e.generation == row.generation and e.kind in ("first_step", "resumed")]
    first = min(steps, default=(row.beat or {}).get("program_started_at") or row.program_at)
    return max(0.0, first - row.launched_at) if first is not None and row.launched_at is not None else None


def segments(row: PlacementRow, seen: Mapping[str, float], end: float) -> tuple[Segment, ...]:
    """What a placement did from its launch to its end. seen: when each kind of event was.

    The guest measures how long setup and restoring took; whatever lies between the known moments was waiting.
    """
    beat, start = row.beat or {}, row.launched_at or row.picked_at
    timings = beat.get("timings") or {}
    cuts: list[tuple[float, str]] = [(start, "boot")]
    booted = row.first_beat_at
    program = beat.get("program_started_at") or row.program_at
    setup = seen.get("setup") or (booted if timings.get("setup") else None)
    if setup is not None:
        cuts.append((setup, "setup"))
        if timings.get("setup") is not None:
            cuts.append((setup + timings["setup"], "wait"))
    elif booted is not None and "waiting" in seen:
        cuts.append((seen["waiting"], "wait"))
    if program is not None:
        restore = timings.get("restore") or 0.0
        if restore:
            cuts.append((program - restore, "restore"))
        cuts.append((program, "run"))
        if (closed := stopped_at(row, seen)) is not None:
            cuts.append((closed, "close"))
    if "kept" in seen:
        cuts.append((seen["kept"], "kept"))
    return _laid(cuts, end)


def _laid(cuts: Sequence[tuple[float, str]], end: float) -> tuple[Segment, ...]:
    """Cuts in the order of a placement's life to stretches without gap or overlap; the later cut wins."""
    made: list[Segment] = []
    for index, (at, what) in enumerate(cuts):
        until = min([end, *(later for later, _ in cuts[index + 1 :])])
        if until > at:
            made.append(Segment(what, at, until))
    return tuple(made)


def stopped_at(row: PlacementRow, seen: Mapping[str, float] | None = None) -> float | None:
    """When the program ended, as far as that is known apart from the machine's end."""
    beat = row.beat or {}
    for word in (beat.get("closed"), beat.get("result")):
        if word and word.get("at"):
            return float(word["at"])
    times = [at for kind, at in (seen or {}).items() if kind in ("closed", "result")]
    return min(times, default=None)


def _marks(row: PlacementRow, events: Sequence[Event], manifests: Sequence[Manifest]) -> tuple[Mark, ...]:
    marks = [Mark("save", m.at) for m in manifests]
    if row.noticed_at is not None:
        marks.append(Mark("notice", row.noticed_at))
    result = (row.beat or {}).get("result") or {}
    outcome = str(result.get("outcome") or "")
    at = stopped_at(row, {e.kind: e.at for e in events})
    if outcome in ENDS or outcome == "stopped":
        marks.append(Mark(ENDS.get(outcome, outcome), at or row.ended_at or row.picked_at))
    elif row.ended_at is not None and row.cause == PREEMPTED:
        marks.append(Mark("preempted", row.ended_at))
    elif row.ended_at is not None:
        why = next((e.kind for e in events if e.kind in ("notice", PREEMPTED, "lost")), "")
        if why == "lost":
            marks.append(Mark("lost", row.ended_at))
        elif why:
            marks.append(Mark("preempted", at or row.ended_at))
    return tuple(sorted(marks, key=lambda mark: mark.at))


def _moves(
    rows: Sequence[PlacementRow],
    stays: Sequence[Stay],
    events: Sequence[Event],
    steps: Mapping[tuple[int, int], int | None],
) -> tuple[Move, ...]:
    """One per placement that followed another; one that never ran its program is joined to the next that did."""
    kinds = {(e.generation, e.kind) for e in events}
    ran = [
        (r, s)
        for r, s in zip(rows, stays, strict=True)
        if s.seconds("run") > 0 or (r.beat or {}).get("program_started_at")
    ]
    made: list[Move] = []
    for (old_row, old), (row, stay) in itertools.pairwise(ran):
        beat = row.beat or {}
        restored = tuple(beat["restored"]) if beat.get("restored") else None
        restored_step = steps.get((restored[0], restored[1])) if restored else None
        why = next((k for k in ("notice", PREEMPTED, "lost") if (old.generation, k) in kinds), "moved")
        lost = None
        begun = restored_step if restored_step is not None else (0 if restored is None else None)
        if old.last_step is not None and begun is not None:
            lost = max(0, old.last_step - begun)
        started = beat.get("program_started_at") or row.program_at
        ended = stopped_at(old_row) or old.end
        made.append(
            Move(
                source=old.generation,
                target=stay.generation,
                why=why,
                reached=old.last_step,
                restored=(restored[0], restored[1]) if restored else None,
                restored_step=restored_step,
                resumed=stay.first_step,
                lost=lost,
                gap=max(0.0, started - ended) if started else None,
                setup=sum(max(0.0, s.end - max(s.start, ended)) for s in stay.segments if s.what == "setup"),
                startup=stay.startup,
            )
        )
    return tuple(made)


def read_manifests(home: Any, job: str, generations: Iterable[int]) -> dict[int, list[Manifest]]:
    """Every readable snapshot of a job, by generation; a damaged one is left out. Raises HomeError."""
    from broker.errors import SnapshotCorrupt
    from broker.home import JobKeys
    from broker.manifest import Manifest

    keys = JobKeys(job)
    found: dict[int, list[Manifest]] = {}
    for generation in generations:
        for entry in home.numbered(keys.manifests(generation)):
            raw = home.find(entry.key)
            try:
                if raw is not None:
                    found.setdefault(generation, []).append(Manifest.from_bytes(raw))
            except SnapshotCorrupt:
                continue
    return found


def with_steps(report: Report, logs: Mapping[int, Series], firsts: Mapping[int, float] | None = None) -> Report:
    """The report with the steps that its machines' logs show, where the program reports none by itself.

    firsts: when each machine's first step was printed, seconds since the epoch, where that is known.
    """
    found = {generation: series for generation, series in logs.items() if series.first % 1 == series.last % 1 == 0}
    if not found or any(stay.first_step is not None for stay in report.stays):
        return report

    def stay(one: Stay) -> Stay:
        steps = found.get(one.generation)
        if steps is None:
            return one
        at = (firsts or {}).get(one.generation)
        took = one.startup if at is None else max(one.startup or 0.0, at - one.start)
        return replace(one, first_step=int(steps.first), last_step=int(steps.last), startup=took)

    def move(one: Move) -> Move:
        old, new = found.get(one.source), found.get(one.target)
        one = replace(one, startup=took.get(one.target), reached=int(old.last) if old else one.reached)
        if old is None or new is None:
            return one
        again = max(0, round(old.last - new.first + min(new.spacing, new.first)))
        # Some print an epoch when it begins and some when it ends: how much of one was lost nobody can say.
        return replace(one, resumed=int(new.first), lost=again if new.unit == "step" else None)

    unit, stays = next(iter(found.values())).unit, tuple(map(stay, report.stays))
    took = {one.generation: one.startup for one in stays}
    return replace(report, unit=unit, stays=stays, moves=tuple(map(move, report.moves)))


def shown(job: Job) -> Report:
    """The report for people: where the program reports no steps, those that its output shows, as a rehearsal reads it.

    Of a long output only its two ends are read.
    """
    from broker.errors import HomeError
    from broker.output import Output
    from broker.rehearse.series import read

    report = of(job)
    ran = [stay.generation for stay in report.stays if stay.seconds("run") > 0]
    if not ran or any(stay.first_step is not None for stay in report.stays):
        return report
    rehearse = job.row.task.get("rehearse") or {}
    try:
        output = Output(job)
        found = read([output.ends(generation) for generation in ran], rehearse.get("step") or "")
        series = {g: one for g, one in zip(ran, found, strict=True) if one is not None}
        firsts = {g: output.when(g, one.line) for g, one in series.items()}
    except HomeError:
        return report
    return with_steps(report, series, {g: at for g, at in firsts.items() if at is not None})


def of(job: Any, *, reached: Mapping[int, int] | None = None) -> Report:
    """The report of a `broker.job.Job`. A home that does not answer leaves the snapshots out."""
    import time

    from broker.errors import BrokerError

    placements = job.placements()
    try:
        manifests = read_manifests(job.home, job.id, [p.generation for p in placements])
    except BrokerError:
        manifests = {}
    return build(job.row, placements, job.events(), manifests, now=time.time(), reached=reached)
