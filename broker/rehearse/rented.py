"""Rehearses a task on machines that are really rented, for a bounded amount of money.

::

    rented = Rented.of(task, config, on="vast", max_usd=0.30)
    result = rented.perform(follow)

Two machines at most: the first until its program has saved twice, then a move by the broker's own hand, the second
until it has gone on; then the job is stopped. It is a job of this installation like any other, so it is seen, stopped
and swept like any other. Each machine's own end is fixed at its launch so that both together stay below the limit even
if no broker lives: half of the money, the least that is billed and the seconds that a termination takes counted in.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.errors import ConfigError, HomeError, NothingAvailable
from broker.policy.budget import SETTLING
from broker.policy.cost import Prospect
from broker.rehearse.hand import SECONDS
from broker.rehearse.mover import Mover, Traffic
from broker.rehearse.verdict import Verdict, judge, without_checkpoint
from broker.task import Task

if TYPE_CHECKING:
    from broker.config import Config
    from broker.job import Job
    from broker.offer import Offer
    from broker.planning import Plan
    from broker.provider import Instance
    from broker.rehearse import Result
    from broker.report import Report

MACHINES = 2
HEADROOMS = (2.5, 1.25)
"""How much dearer than the first machine the second may be: the more the money allows, the more there is to move to."""
COMFORTABLE = 900.0
"""Seconds of each machine that are worth more than a dearer second one."""
SHORTEST, SHORTEST_SIMULATED = 240.0, 20.0
"""Seconds of a machine in which something can be shown: it must boot, set up and save."""
GONE_WITHIN = 180.0
FOR_TRAFFIC = 0.2
"""The share of the money for the checkpoints' traffic, where a host takes money for it."""

Follow = Callable[[str, "Job", Mover], None]
"""Called with the phase, its job and the mover; returns when the job has ended."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a rehearsal may cost. price: USD per hour of a machine at most. seconds: of each machine.

    usd: what all its machines cost at most, ended by nobody but themselves.
    """

    price: float
    seconds: float
    usd: float


def bounds(
    hourly: float, max_usd: float, *, minimum_hours: float = 0.0, traffic: float = 0.0, cap: float | None = None,
    longest: float = 72.0, shortest: float = SHORTEST,
) -> Bounds:  # fmt: skip
    """How long two machines may run for `max_usd`. Pure.

    hourly: USD per hour of the offer, disk included; minimum_hours: billed at least; traffic: USD for what every
    machine is sent; cap: the task's own max_price. longest: hours, shortest: seconds. Raises ConfigError where it is
    too little.
    """
    each = max_usd / MACHINES - traffic
    most = min(HEADROOMS[0] * hourly, cap or math.inf)
    for price, enough in ((most, COMFORTABLE), (min(HEADROOMS[1] * hourly, most), shortest), (hourly, shortest)):
        needed = min(enough, longest * 3600)
        seconds = min(each / price * 3600 - SETTLING, longest * 3600)
        # What is named as the least must be enough, whatever the last bits of these sums say.
        if seconds >= needed - 1e-7 and each >= price * minimum_hours * (1 - 1e-12):
            seconds = max(seconds, needed)
            billed = max((seconds + SETTLING) / 3600, minimum_hours)
            return Bounds(price, seconds, MACHINES * (price * billed + traffic))
    least = MACHINES * (hourly * max((shortest + SETTLING) / 3600, minimum_hours) + traffic)
    billed_text = f", of which {minimum_hours:g} h are billed at least" if minimum_hours else ""
    raise ConfigError(
        f"{max_usd:.2f} USD are too little for {MACHINES} machines at {hourly:.4f} USD per hour{billed_text}",
        fix=f"--max-usd {_up(least)} is the least",
    )


def _up(usd: float) -> str:
    """An amount rounded up to cents."""
    return f"{int(usd * 100 + 0.999999) / 100:.2f}"


@dataclass
class Rented:
    """One rehearsal on rented machines. task: the one given; plan: of what really runs, with the offer; notice: whose.

    notes: what was changed, and what is not counted. spent: USD, once it has ended, with what is billed at least.
    """

    task: Task
    plan: Plan
    config: Config
    bounds: Bounds
    notice: str
    max_usd: float
    notes: tuple[str, ...] = ()
    job: Job | None = field(default=None, init=False)

    @classmethod
    def of(cls, task: Task, config: Config, *, on: Sequence[str], max_usd: float, notice: str = "") -> Rented:
        """Choose the offer and bound the money; rents nothing yet.

        on: places, `provider[/region[/zone]]`. notice: whose way of taking back, the provider's own by default. Raises
        ConfigError and TaskError for what cannot be rehearsed there, NothingAvailable where nothing fits now.
        """
        from broker import registry
        from broker.planning import plan

        rehearsed, notes = adapted(task, on)
        if rehearsed.checkpoint is None:
            raise ConfigError(without_checkpoint().why, fix="name the folder the program saves to")
        planned = plan(rehearsed, config=config)
        offer = planned.decision.offer
        if offer is None:
            failed = [f"{where}: {problem}" for where, problem in planned.failures.items()]
            raise NothingAvailable(
                "; ".join([*planned.decision.reasons[:3], *failed]) or "no offer fits now",
                fix="ask for less in rehearse.resources, name another place with --on, or try again later",
            )
        traits = registry.get(offer.provider, config).traits
        if planned.home.startswith("file:") and not traits.simulated:
            raise ConfigError(
                f"the home {planned.home} is a folder on this machine, which {offer.provider} cannot reach",
                fix="set `home` to an object store, such as s3://BUCKET/PREFIX",
            )
        bound = bounds(
            offer.hourly,
            max_usd - _set_aside(planned, max_usd),
            minimum_hours=_billed_least(planned, offer),
            traffic=_traffic(planned),
            cap=task.max_price,
            longest=task.max_hours,
            shortest=SHORTEST_SIMULATED if traits.simulated else SHORTEST,
        )
        # The budget holds for what the two machines' own ends do not: a launch whose answer was lost.
        final = dataclasses.replace(
            rehearsed,
            max_price=bound.price,
            max_hours=bound.seconds / 3600,
            max_moves=MACHINES - 1,
            budget=max_usd,
        )
        planned = dataclasses.replace(planned, task=final)
        whose = notice or usual_notice(traits.notice)
        told = (*notes, *_uncounted(planned, max_usd))
        return cls(task, planned, config, bound, whose, max_usd, told)

    def perform(self, follow: Follow) -> Result:
        """Run it. Leaving `follow` by an exception ends the job and its machines, too."""
        from broker import engine
        from broker.job import submit
        from broker.store import open_store

        with engine.running(self.config) as live:
            store = open_store(self.config.state, self.config.database)
            job = self.job = submit(self.plan.task, config=self.config, store=store, decision=self.plan.decision)
            up, down = per_gib(self.plan.prospect, self._offer)
            aside = _set_aside(self.plan, self.max_usd)
            mover = Mover(job, self.notice, self.bounds.seconds, traffic=Traffic(up, down, aside))
            try:
                live.drive(job.id)
                with mover:
                    follow("rehearsal", job, mover)
            finally:
                self.end()
            return self._judged(job, mover)

    def end(self) -> None:
        """Stop the job where it still runs, and wait until its machines are gone; needs the live broker of `perform`.

        Where that takes too long a background broker goes on with it.
        """
        from broker import brokers

        if self.job is None or self.job.refresh().done:
            return
        self.job.stop(now=True)
        deadline = time.monotonic() + GONE_WITHIN
        while not self.job.refresh().done and time.monotonic() < deadline:
            time.sleep(0.2)
        if not self.job.done:
            brokers.ensure_background(self.config)

    def left(self) -> list[Instance]:
        """Machines of the rehearsal that their providers still list as alive. Raises ProviderError."""
        from broker import registry

        if self.job is None:
            return []
        names = {row.request["offer"]["provider"] for row in self.job.placements()}
        return [
            instance
            for name in sorted(names)
            for instance in registry.get(name, self.config).instances()
            if instance.job == self.job.id and instance.alive
        ]

    def remove(self) -> None:
        """Delete what the rehearsal has put into the home; its record and what it cost are kept."""
        from broker.home import JobKeys

        if self.job is None:
            return
        home, keys = self.job.home, JobKeys(self.job.id)
        with contextlib.suppress(HomeError):
            for prefix in (keys.root, keys.beats):
                home.delete(entry.key for entry in home.list(f"{prefix}/"))

    def _judged(self, job: Job, mover: Mover) -> Result:
        from broker import report
        from broker.rehearse import Result
        from broker.rehearse.evidence import gather, told

        story = report.of(job.refresh(), reached=mover.reached)
        evidence = gather(job, None, mover.taken, self.plan.task)
        verdict = _in_time(story, mover) or judge(
            job.row,
            story,
            mover.taken,
            wanted=1,
            interval=mover.interval,
            evidence=evidence,
            cut_short=mover.satisfied,
        )
        where = None if job.row.home.startswith("file:") else job.row.home
        notes = self.notes if where is None else (*self.notes, f"snapshots went through {where}")
        return Result(
            verdict, 0, self.config.state, told(story, evidence), None, tuple(mover.taken), notes=notes,
            limit=self.max_usd, spent=self.spent(),
        )  # fmt: skip

    @property
    def _offer(self) -> Offer:
        assert self.plan.decision.offer is not None
        return self.plan.decision.offer

    def spent(self) -> float:
        """USD that the rehearsal has cost, with what is billed at least; now, if it still runs."""
        now, total = time.time(), 0.0
        for row in self.job.placements() if self.job is not None else ():
            least = float(row.request["offer"].get("extra", {}).get("minimum_hours") or 0.0) * (row.hourly or 0.0)
            total += max(row.cost(now), least) if row.launched_at is not None else 0.0
        return total


def _in_time(story: Report, mover: Mover) -> Verdict | None:
    """The verdict where time, money or luck ran out before anything was shown."""
    from broker.rehearse.check import UNPROVEN

    if mover.problem:
        return Verdict(UNPROVEN, mover.problem)
    if story.status == "limit":
        what = "before it had gone on elsewhere" if mover.taken else "before it had saved twice"
        advice = "raise --max-usd, or make it save oftener while it is rehearsed, by `rehearse: {envs: …}`"
        return Verdict(UNPROVEN, f"the time that the money buys was over {what}", advice=(advice,))
    return None


def adapted(task: Task, on: Sequence[str]) -> tuple[Task, tuple[str, ...]]:
    """The task as it is rehearsed there, and what had to be changed for that."""
    wish, notes = task.rehearse, []
    asked = wish.resources if wish and wish.resources else task.resources
    if wish and wish.resources:
        notes.append("rehearse.resources stand in for the task's own")
    made = dataclasses.replace(
        task,
        name=f"{task.name[:80]}-rehearsal",
        resources=tuple(dataclasses.replace(one, infra=tuple(on)) for one in asked),
        envs={**task.envs, **(wish.envs if wish else {})},
        ordered=False,
        work=None,
        deadline="",
        budget=None,
        schedule=None,
        keep_on_failure=None,
        warnings=(),
    )
    return made, tuple(notes)


def usual_notice(seconds: float | None) -> str:
    """The way of taking back that leaves as much time as the provider does, or the next shorter one."""
    known = sorted(SECONDS.items(), key=lambda entry: -entry[1])
    return next(name for name, left in known if left <= (seconds or 0.0))


def _billed_least(plan: Plan, offer: Offer) -> float:
    """Hours billed at least, of whichever offer near this price the second machine may be."""
    near = [offer, *(c.offer for c in plan.decision.ranked if c.offer.hourly <= HEADROOMS[0] * offer.hourly)]
    return max(float(one.extra.get("minimum_hours") or 0.0) for one in near)


def _traffic(plan: Plan) -> float:
    """USD for what is known to be sent to each machine: the workdir and the mounts."""
    gib = ((plan.size or 0) + sum(mount.bytes for mount in plan.mounts)) / 1024**3
    return gib * _charges(plan)[1]


def per_gib(known: Prospect | None, offer: Offer) -> tuple[float, float]:
    """USD per GiB that goes from the machine to the home, and back: what host, cloud and home take together."""
    if offer.simulated:
        return 0.0, 0.0
    known = known or Prospect()
    down = float(offer.extra.get("download_per_gib") or 0.0) + (known.egress_of(offer) or 0.0)
    return known.leaving_of(offer) or 0.0, down


def _charges(plan: Plan) -> tuple[float, float]:
    return per_gib(plan.prospect, plan.decision.offer) if plan.decision.offer is not None else (0.0, 0.0)


def _set_aside(plan: Plan, max_usd: float) -> float:
    """USD that are kept back for the checkpoints' traffic, where that is billed."""
    return FOR_TRAFFIC * max_usd if any(_charges(plan)) else 0.0


def _uncounted(plan: Plan, max_usd: float) -> Iterator[str]:
    if aside := _set_aside(plan, max_usd):
        up, down = _charges(plan)
        yield (
            f"{up:g} USD are taken per GiB sent and {down:g} received: {aside:.2f} USD are set aside for the "
            "checkpoints, and the rehearsal stops when they are used up, which needs this broker alive"
        )
