"""A whole installation on a fake cloud whose time a test moves: real phases, a real store and home, a played guest.

The guest is played: its beats say what a guest would say at that moment. All else is the product: `pick`, `launch`,
`weigh`, `retire` and `account` run as the engine runs them, `react` decides on what the cloud and the beats show.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker.config import Config
from broker.contract import wrap
from broker.engine import PHASES
from broker.job import Job, submit
from broker.market import Marketplace
from broker.offer import Market, Offer
from broker.provider import Instance, LaunchRequest, State
from broker.reaction import Beat, Limits, Seen, react, wake_at
from broker.state import JobState
from broker.store import open_store
from broker.task import Checkpoint, Resources, Task, Work
from broker.testing.fakecloud import FakeClock, FakeCloud
from broker.watch import note_beat
from broker.world import World

START = 1_800_000_000.0
ON_DEMAND, SPOT = 3.06, 0.9731


def offer(zone: str, market: Market = Market.SPOT, price: float | None = None, **more: Any) -> Offer:
    usual = SPOT if market is Market.SPOT else ON_DEMAND
    values: dict[str, Any] = {
        "provider": "fake", "region": zone[:-1], "zone": zone, "instance_type": "v100", "market": market,
        "price": price or usual, "cpus": 8.0, "memory": 61.0,
    }  # fmt: skip
    return Offer(**{**values, **more})


@dataclass
class Guest:
    """One machine's guest and program. start: seconds from its launch to the program's progress. rate: its speed."""

    generation: int
    at: float
    start: float
    began: float | None = None
    base: float = 0.0
    rate: float = 1.0
    ended: float | None = None
    result: dict[str, Any] | None = None
    said: dict[str, Any] = field(default_factory=dict)

    def steps(self, now: float) -> float:
        """Seconds of work that are done."""
        if self.began is None:
            return self.base
        return self.base + self.rate * max(0.0, min(now, self.ended or now) - self.began)

    def done_at(self, work: float) -> float:
        """When so many seconds of work are done."""
        assert self.began is not None
        return self.began + (work - self.base) / self.rate


class Stage:
    """restart: seconds from a launch to progress. work: seconds that the program takes, which it reports as steps.

    rates: how fast machines are, by zone, where not as they should.
    """

    def __init__(
        self,
        folder: Path,
        stock: Sequence[Offer],
        *,
        restart: float = 720.0,
        work: float = 6 * 3600.0,
        limits: dict[str, float] | None = None,
        monthly: float | None = None,
    ) -> None:
        self.clock = FakeClock(START)
        self.cloud = FakeCloud(clock=self.clock, stock=list(stock), on_launch=self._launched)
        config = Config(
            state=folder / "state",
            file=folder / "config.toml",
            changed_limits={"weigh": 600.0, "fallback": 300.0, **(limits or {})},
            monthly_budget=monthly,
        )
        self.store = open_store(config.state)
        self.config, self.restart, self.work = config, restart, work
        self.world = World(config, self.store, self.clock, self.store.installation())
        provider = wrap(self.cloud.provider(), {}, sleep=self.clock.sleep)
        self.world._providers["fake"] = provider
        self.world._market = Marketplace(config, ["fake"], opener=lambda *_: provider, on_look=self.world._looked)
        self.guests: dict[tuple[str, int], Guest] = {}
        self.at_tick: Callable[[float], float | None] = lambda now: None
        self.rates: dict[str, float] = {}

    def close(self) -> None:
        self.store.close()

    def submit(self, **changes: Any) -> Job:
        values: dict[str, Any] = {
            "run": "train", "name": "t", "resources": (Resources(cpus=1, disk=0.001),), "checkpoint": Checkpoint("c"),
            "work": Work(hours=self.work / 3600),
        }  # fmt: skip
        job = submit(Task(**{**values, **changes}), config=self.config, store=self.store)
        # What was submitted just now on this computer's clock was so on the stage's.
        row = self.store.job(job.id)
        prepared = dict(row.prepared or {})
        if row.task["deadline"]:
            prepared["deadline"] = self.clock() + prepared["deadline"] - row.created_at
        self.store.update_job(job.id, created_at=self.clock(), prepared=prepared)
        return job

    def state(self, job: Job) -> JobState:
        shown = self.store.job(job.id).state
        return JobState.from_json(shown) if shown else JobState(job.id)

    def step(self, job: Job) -> bool:
        """One phase, or one stretch of waiting up to the next thing that can happen; False once the job is done."""
        state = self.state(job)
        if state.phase == "done":
            return False
        if state.phase == "watch":
            seen = self._seen(state)
            limits = Limits(silence=4 * 3600.0, max_moves=int(self.store.job(job.id).task["max_moves"]))
            following = react(state, seen, limits)
            if following is None:
                self._wait(state, seen, limits)
                return True
        else:
            following = PHASES[state.phase](state, self.world)
        self.store.update_job(job.id, state=following.to_json())
        return True

    def run(self, job: Job, *, until: Callable[[], bool] = lambda: False, steps: int = 20_000) -> Job:
        """To the job's end, or until something holds."""
        for _ in range(steps):
            if until() or not self.step(job):
                return job.refresh()
        raise AssertionError(f"{job.id} has not ended: {self.story(job)}")

    def story(self, job: Job) -> str:
        return "\n".join(f"{e.at - START:.0f} {e.generation} {e.kind}: {e.text}" for e in job.events()[-40:])

    def living(self, job: Job | str) -> list[Instance]:
        """The job's machines that are not over, listed or not."""
        name = job if isinstance(job, str) else job.id
        return [machine for machine in self.cloud.living() if machine.job == name]

    # Time

    def _wait(self, state: JobState, seen: Seen, limits: Limits) -> None:
        now = self.clock()
        ahead = [wake_at(state, seen, limits)]
        for guest in self._mine(state.job):
            if guest.began is None:
                ahead.append(guest.at + guest.start)
            elif guest.ended is None:
                ahead.append(guest.done_at(self.work))
                ahead += [b.end_by for b in [self._request(state.job, guest)]]
        following = self.at_tick(now)
        ahead += [following] if following is not None else []
        self.clock.now = max(now + 0.5, min(moment for moment in ahead if moment > now + 1e-6))
        self.at_tick(self.clock())

    # Guests

    def _launched(self, instance: Instance, request: LaunchRequest) -> None:
        guest = Guest(request.generation, self.clock(), self.restart, rate=self.rates.get(request.offer.zone, 1.0))
        self.guests[request.job, request.generation] = guest

    def _mine(self, job: str) -> list[Guest]:
        return [guest for (owner, _), guest in self.guests.items() if owner == job]

    def _request(self, job: str, guest: Guest) -> LaunchRequest:
        return LaunchRequest.from_json(dict(self.store.placement(job, guest.generation).request))

    def _seen(self, state: JobState) -> Seen:
        now = self.clock()
        listed = {i.generation: i for i in self.world.provider("fake").instances() if i.job == state.job}
        late = {machine.id for machine in self.cloud.rented.values() if machine.hidden_until > now}
        instances = {
            held.generation: listed.get(held.generation)
            for held in state.held
            if held.generation in listed or held.instance not in late
        }
        there = {**listed, **{machine.generation: machine for machine in self.living(state.job)}}
        for guest in self._mine(state.job):
            self._play(state, guest, there.get(guest.generation), now)
        beats, finals = {}, {}
        for generation in [held.generation for held in state.held]:
            guest = self.guests[state.job, generation]
            data = self.said(state, guest, now)
            machine = instances.get(generation)
            if generation in instances and (machine is None or machine.state in (State.TERMINATED, State.STOPPED)):
                finals[generation] = {"result": guest.result, "closed": None, "beat": guest.said}
            if data is not None:
                note_beat(self.world, state.job, generation, guest.said, data)
                guest.said = data
                beats[generation] = Beat(data)
        want = self.store.wants().get(state.job)
        return Seen(now, want, instances=instances, beats=beats, finals=finals, parents={})

    def _play(self, state: JobState, guest: Guest, machine: Instance | None, now: float) -> None:
        """What the program has done by now. It starts once no other runs; it, its order or its machine ends it."""
        gone = machine is None or machine.state in (State.TERMINATED, State.STOPPED)
        if gone:
            ended = machine.ended_at if machine is not None and machine.ended_at is not None else now
            guest.ended = guest.ended or ended
            return
        if guest.result is not None:
            return
        others = [g for g in self._mine(state.job) if g.generation < guest.generation and g.ended is None and g.began]
        if guest.began is None and not others and now >= guest.at + guest.start - 1e-6:
            guest.base = max((g.steps(now) for g in self._mine(state.job) if g is not guest), default=0.0)
            ended = max((g.ended or 0.0 for g in self._mine(state.job) if g is not guest and g.began), default=0.0)
            guest.began = max(guest.at + guest.start, ended)
        order = next((e.order for e in state.retiring if e.generation == guest.generation), "run")
        entry = next((e for e in state.retiring if e.generation == guest.generation), None)
        end_by = entry.end_by if entry else state.live.end_by if state.live else now
        if guest.began is not None and guest.steps(now) >= self.work - 1e-6:
            guest.ended = guest.done_at(self.work)
            guest.result = {"outcome": "succeeded", "reason": "exit 0"}
        elif order in ("retire", "end"):
            guest.ended = now
            guest.result = {"outcome": "moved" if order == "retire" else "stopped", "reason": order}
        elif now >= end_by - 1e-6:
            guest.ended = end_by
            guest.result = {"outcome": "ended", "reason": "its time is over"}

    def said(self, state: JobState, guest: Guest, now: float) -> dict[str, Any] | None:
        step = int(guest.steps(now))
        waits = guest.began is None and now >= guest.at + guest.start - 1e-6
        data = {
            "n": int(now), "at": now, "state": "running" if guest.began else "waiting" if waits else "setup",
            "program_started_at": guest.began, "seq": 1 if guest.began else 0, "manifest_step": step,
            "result": guest.result, "closed": guest.result,
        }  # fmt: skip
        if guest.began is not None:
            data |= {"first_step": int(guest.base), "progress": {"step": step, "total": int(self.work), "at": now}}
        return data
