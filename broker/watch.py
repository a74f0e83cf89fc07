"""Tells each job what changed: one poller per provider, one per home, one for what users ask of their jobs.

A poller runs while some job follows what it polls; every call covers all jobs. Nothing here decides: it keeps the
newest facts and wakes the jobs that they concern, and `watch` looks at the facts as they stand. A failed call changes
nothing: unknown is not gone.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from broker import hearsay
from broker.access import own
from broker.balance import Balances
from broker.control import write_control
from broker.errors import BrokerError, HomeError, ProviderError
from broker.home import Entry, Home, JobKeys
from broker.keeping import Keep
from broker.provider import Instance
from broker.reaction import Beat, Limits, Seen, react, wake_at
from broker.renewals import Renewals
from broker.restore import read_parent
from broker.state import Held, JobState
from broker.world import World

WANTS_POLL = 0.5
ACCESS_GRACE = 1800.0
SAID = {"waiting": "waiting for its predecessor's program to end", "pulling": "the task's image is brought"}
ACCESS_POLL = 15.0  # the shortest access lasts a quarter of an hour
ONE_BY_ONE = 30.0
TROUBLE_AFTER = 3
UNSHOWN_BEATS = 5  # beats longer than its lag that a list is waited for which has never shown a machine that boots
SPEAKS = 2.5  # beats within which a new one was heard of a machine that is there, whatever a list leaves out
HEAR_WITHIN = 30.0  # seconds within which a home that answers at all is read once


@dataclass(slots=True)
class Followed:
    """What one job follows, by generation, and how to wake it. heard: its home has been read well since then.

    wakes: how often it was woken; decided: up to which of them it knows and waits all the same.
    """

    job: str
    home: str
    held: Mapping[int, Held]
    wake: Callable[[], None]
    heard: bool = False
    wakes: int = 0
    decided: int = -1

    @property
    def providers(self) -> set[str]:
        return {held.provider for held in self.held.values()}


@dataclass(slots=True)
class HeardBeat:
    """One guest's newest beat as this process heard it; times are this process's monotonic clock."""

    data: Mapping[str, Any]
    e_tag: str
    changed: float
    reads: int = 0


@dataclass(slots=True)
class Facts:
    """The newest facts; guarded by the watcher's lock. instances: by provider and id. shown: placements that a list has
    shown. good, probed: when a home last answered as it should.
    """

    instances: dict[str, dict[str, Instance]] = field(default_factory=dict)
    absences: dict[tuple[str, int], int] = field(default_factory=dict)
    shown: set[tuple[str, int]] = field(default_factory=set)
    listed: dict[str, float] = field(default_factory=dict)
    beats: dict[tuple[str, int], HeardBeat] = field(default_factory=dict)
    good: dict[str, float] = field(default_factory=dict)
    probed: dict[str, float] = field(default_factory=dict)
    wants: dict[str, str] = field(default_factory=dict)


class Watcher:
    """Owns the pollers. Threads, since adapters and stores are blocking."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.facts = Facts()
        self.balances = Balances()
        self.followed: dict[str, Followed] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._pollers: dict[str, threading.Thread] = {}
        self._pokes: dict[str, threading.Event] = {}
        self._renewals = Renewals(world)

    def close(self) -> None:
        self._stop.set()
        for poke in list(self._pokes.values()):
            poke.set()
        for thread in list(self._pollers.values()):
            thread.join(timeout=5.0)

    def follow(self, followed: Followed) -> None:
        """Start telling a job; replaces what it followed before."""
        with self._lock:
            self.followed[followed.job] = followed
            self._poller("wants", lambda: WANTS_POLL, self._read_wants)
            self._poller("access", lambda: ACCESS_POLL, self._renew_access)
            for name in followed.providers:
                provider = self.world.provider(name)
                self._poller(
                    f"provider {name}",
                    lambda provider=provider: provider.traits.poll,  # type: ignore[misc]
                    lambda name=name: self._list_instances(name),  # type: ignore[misc]
                )
            home = followed.home
            simulated = home.startswith("file:")
            interval = self.world.limits(simulated=simulated).store_poll
            self._poller(f"home {home}", lambda: self._between(home, interval), lambda: self._read_beats(home))

    def _between(self, url: str, interval: float) -> float:
        """Seconds between two looks at a home: where each job's beats are asked for alone, at most 20 a second."""
        # Never by the home itself, which may not be there: a poller ends with what is raised between two polls.
        if not own(self.world.config, url).one_prefix:
            return interval
        least = interval if "store_poll" in self.world.config.changed_limits else ONE_BY_ONE
        return max(interval, least, len(self.followed) / 20)

    def settled(self, jobs: set[str]) -> bool:
        """Do all these jobs wait here, with one good look at what they follow behind them that changed nothing?"""
        with self._lock:
            return all(
                (followed := self.followed.get(job)) is not None
                and followed.decided == followed.wakes
                and all(name in self.facts.listed for name in followed.providers)
                for job in jobs
            )

    def unfollow(self, job: str) -> None:
        with self._lock:
            self.followed.pop(job, None)

    def _poller(self, name: str, interval: Callable[[], float], poll: Callable[[], None]) -> None:
        """Start a poller unless it runs; with the lock held."""
        thread = self._pollers.get(name)
        if thread is not None and thread.is_alive():
            self._pokes[name].set()
            return
        poke = self._pokes[name] = threading.Event()

        def loop() -> None:
            failures, said = 0, False
            while not self._stop.is_set():
                try:
                    poll()
                    failures, said = 0, False
                except Exception as error:  # noqa: BLE001 - a poller that dies would make its jobs blind
                    failures += 1
                    if failures >= TROUBLE_AFTER and not said:
                        said = self._trouble(name, error)
                # A failing call is asked again no oftener than a working one, and ever more rarely.
                poke.wait(interval() * min(2.0 ** max(0, failures - TROUBLE_AFTER), 16.0))
                poke.clear()

        self._pollers[name] = threading.Thread(target=loop, name=f"spotbroker {name}", daemon=True)
        self._pollers[name].start()

    def _trouble(self, name: str, error: Exception) -> bool:
        """Say once per job that something has not answered for a while; nothing is concluded from it.

        False where that cannot be written down now, as on a disk that is full.
        """
        with self._lock:
            jobs = [f.job for f in self.followed.values() if self._concerns(f, name)]
        text = f"{name} does not answer: {error}; nothing is concluded from that"
        if name.startswith("provider "):
            text = f"{name} cannot be asked: {told(error)}; nothing is concluded from that, what it rents out is billed"
        try:
            for job in jobs:
                self.world.store.event(job, "warning", text, once=f"trouble {name} {type(error).__name__}")
        except SQLAlchemyError:
            return False
        return True

    @staticmethod
    def _concerns(followed: Followed, name: str) -> bool:
        kind, _, which = name.partition(" ")
        return which == followed.home if kind == "home" else which in followed.providers

    def _wake(self, jobs: set[str]) -> None:
        with self._lock:
            found = [self.followed[job] for job in jobs if job in self.followed]
            for followed in found:
                followed.wakes += 1
        for followed in found:
            followed.wake()

    # Pollers

    def _read_wants(self) -> None:
        wants = self.world.store.wants()
        with self._lock:
            changed = {job for job, want in wants.items() if self.facts.wants.get(job) != want}
            self.facts.wants = wants
        self._wake(changed)

    def _renew_access(self) -> None:
        """Give every machine fresh access to its home in time, by what its newest beat says of the old one."""
        with self._lock:
            told = {
                (followed.job, generation): (followed.home, heard.data.get("access_expires"))
                for followed in self.followed.values()
                for generation in followed.held
                if (heard := self.facts.beats.get((followed.job, generation))) is not None
            }
        self._renewals.forget(told.keys())
        for (job, generation), (home, expires) in told.items():
            self._renewals.serve(job, generation, home, expires)

    def _list_instances(self, name: str) -> None:
        with self._lock:
            if not any(name in followed.providers for followed in self.followed.values()):
                return
        listed = {
            instance.id: instance
            for instance in self.world.provider(name).instances()
            if instance.installation in ("", self.world.installation)
        }
        now = time.time()
        with self._lock:
            before, changed = self.facts.instances.get(name, {}), set()
            concerned = [followed for followed in self.followed.values() if name in followed.providers]
            for followed in concerned:
                for held in followed.held.values():
                    if held.provider == name and (
                        self._absent(followed.job, held, held.instance in listed, now)
                        or (held.instance in listed and before.get(held.instance) != listed[held.instance])
                    ):
                        changed.add(followed.job)
            self.facts.instances[name] = listed
            words = [(f.job, h, word) for f in concerned for h in f.held.values() if (word := _word(h, listed))]
        for job, held, word in words:
            self.world.store.event(job, "warning", word, generation=held.generation, once=held.instance)
        self._wake(changed)
        with self._lock:
            self.facts.listed[name] = now  # only now: whoever waits for a look waits for those whom it woke, too
        self.balances.look(
            self.world.provider(name),
            listed.values(),
            [followed.job for followed in concerned],
            lambda job, word: self.world.store.event(job, "warning", word),
        )

    def _absent(self, job: str, held: Held, listed: bool, now: float) -> bool:
        """Count a good list without a machine that must be visible by now; is it gone now, by two of them?"""
        key = (job, held.generation)
        if listed:
            self.facts.shown.add(key)
            self.facts.absences.pop(key, None)
            return False
        traits = self.world.provider(held.provider).traits
        heard = self.facts.beats.get(key)
        beat = self.world.limits(simulated=traits.simulated).beat
        lag = traits.list_lag + (UNSHOWN_BEATS * beat if heard is None and key not in self.facts.shown else 0.0)
        if now < held.launched_at + lag:
            return False
        if heard is not None and time.monotonic() - heard.changed < SPEAKS * beat:
            return False  # it speaks: the list is late, or says less than there is
        self.facts.absences[key] = self.facts.absences.get(key, 0) + 1
        return self.facts.absences[key] == 2

    def _read_beats(self, url: str) -> None:
        with self._lock:
            here = [followed for followed in self.followed.values() if followed.home == url]
            wanted = {(followed.job, generation) for followed in here for generation in followed.held}
        if not wanted:
            return
        home = self.world.home(url)
        known = {f"{JobKeys(job).beats}/{generation}": (job, generation) for job, generation in wanted}
        for entry in home.beats(wanted):
            if entry.key in known:
                self._heard(home, entry, *known[entry.key])
        new = {followed.job for followed in here if not followed.heard}
        for followed in here:
            followed.heard = True
        self._wake(new)
        self._prove(home, url, wanted)

    def _heard(self, home: Home, entry: Entry, job: str, generation: int) -> None:
        key = (job, generation)
        with self._lock:
            known = self.facts.beats.get(key)
            if known is not None and known.e_tag == entry.e_tag:
                known.reads += 1
                return
        data = hearsay.heard(home.find(entry.key))
        if data is None:
            return
        with self._lock:
            known = self.facts.beats.get(key)
            before = known.data if known else {}
            if known is None or before.get("n") != data.get("n"):
                self.facts.beats[key] = HeardBeat(data, entry.e_tag, time.monotonic())
            else:
                known.reads += 1
        note_beat(self.world, job, generation, before, data)
        if matters(before) != matters(data):
            self._wake({job})

    def _prove(self, home: Home, url: str, wanted: set[tuple[str, int]]) -> None:
        """A good look at the store is behind us. While some guest is silent, prove that it takes writes too.

        A store that was away was silent itself, and its guests may need longer than we did to find it again: their
        silence counts from its return.
        """
        silence = self.world.limits(simulated=home.is_local).silence
        with self._lock:
            heard = [beat for key, beat in self.facts.beats.items() if key in wanted]
            quiet = any(time.monotonic() - beat.changed > silence / 2 for beat in heard)
        if quiet:
            home.probe()
        now = time.monotonic()
        with self._lock:
            if now - self.facts.good.get(url, now) > silence / 4:
                for beat in heard:
                    beat.changed, beat.reads = now, 0
            self.facts.good[url] = now
            if quiet:
                self.facts.probed[url] = now

    # What one job sees

    def seen(self, state: JobState, home: str) -> Seen:
        """The facts of this moment for one job."""
        now = time.monotonic()
        with self._lock:
            facts = self.facts
            instances: dict[int, Instance | None] = {}
            for held in state.held:
                found = facts.instances.get(held.provider, {}).get(held.instance)
                if found is not None:
                    instances[held.generation] = found
                elif facts.absences.get((state.job, held.generation), 0) >= 2:
                    instances[held.generation] = None
            beats = {
                held.generation: Beat(heard.data, now - heard.changed, 0 if blind(heard.data) else heard.reads)
                for held in state.held
                if (heard := facts.beats.get((state.job, held.generation))) is not None
            }
            probed = now - facts.probed.get(home, float("-inf")) < 60.0
            want = facts.wants.get(state.job)
        return Seen(now=self.world.clock(), want=want, instances=instances, beats=beats, probed=probed)


def _word(held: Held, listed: Mapping[str, Instance]) -> str:
    """What a provider says of a machine of a job's that failed; empty for any other."""
    found = listed.get(held.instance)
    return f"{held.provider} says of {found.id}: {found.word}" if found is not None and found.word else ""


def told(error: BaseException) -> str:
    """An error as one line, with what helps."""
    return f"{error} ({error.fix})" if isinstance(error, BrokerError) and error.fix else str(error)


def blind(beat: Mapping[str, Any]) -> bool:
    """Has its guest's access to the home ended a moment ago? It cannot say anything then, so its silence says nothing.

    Fresh access is there at once, from a live broker; a guest that does not take it is silent after all.
    """
    expires = beat.get("access_expires")
    return expires is not None and expires < time.time() < expires + ACCESS_GRACE


def matters(beat: Mapping[str, Any]) -> tuple[Any, ...]:
    """The part of a beat that a decision may rest on."""
    return (
        bool(beat),
        json.dumps(beat.get("notice"), sort_keys=True),
        bool(beat.get("closed")),
        bool(beat.get("result")),
        beat.get("parent_written"),
        beat.get("state"),
    )


def note_beat(world: World, job: str, generation: int, before: Mapping[str, Any], data: Mapping[str, Any]) -> None:
    """Keep what a beat newly says, for people: the placement's row and events. Decisions read the beat itself."""
    store = world.store
    store.update_placement(job, generation, beat=dict(data))
    now = world.clock()

    def say(kind: str, text: str, once: str = "", **more: Any) -> None:
        store.event(job, kind, text, generation=generation, once=once, at=data.get("at"), **more)

    if not before:
        store.first(job, generation, first_beat_at=data.get("at", now))
        say("booted", "the guest has started")
    state = data.get("state")
    if state != before.get("state") and state in ("pulling", "setup", "waiting", "restoring", "running"):
        say(state, SAID.get(state, state))
    if data.get("program_started_at") and not before.get("program_started_at"):
        store.first(job, generation, program_at=data["program_started_at"])
    if data.get("first_step") is not None and before.get("first_step") is None:
        restored = data.get("restored")
        kind = "resumed" if restored else "first_step"
        say(kind, f"first step {data['first_step']}", restored=restored, first_step=data["first_step"])
    if (data.get("seq") or 0) > (before.get("seq") or 0):
        step = data.get("manifest_step")
        text = f"snapshot {data['seq']}" + (f", step {step}" if step is not None else "")
        say("snapshot", text, once=str(data["seq"]), seq=data["seq"], step=step)
    if data.get("notice") and not before.get("notice"):
        notice = data["notice"]
        left = f"{notice['ends_at'] - data.get('at', now):.0f} s left" if notice.get("ends_at") else "no time said"
        store.first(job, generation, noticed_at=notice.get("at") or now)
        say("notice", f"the provider takes the machine back, {left}", ends_at=notice.get("ends_at"))
    for kind in ("closed", "result"):
        if data.get(kind) and not before.get(kind):
            value = data[kind]
            say(kind, str(value.get("reason") or value.get("why") or value.get("outcome") or kind), **{kind: value})
    for kind, text in _words(before, data):
        say(kind, text, once=text[:200])


def _words(before: Mapping[str, Any], data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What a beat newly says in words of the guest's own: kind of event, and text."""
    if data.get("cache") and data["cache"] != before.get("cache"):
        yield "cache", data["cache"]
    for text in data.get("warnings") or ():
        if text not in (before.get("warnings") or ()):
            yield "warning", text


async def watch(state: JobState, world: World, watcher: Watcher) -> JobState:
    """Wait until something is to be done about a job, writing nothing; returns the next state."""
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()
    row = await asyncio.to_thread(world.store.job, state.job)
    held = state.held
    limits = Limits(
        silence=world.limits(simulated=all(h.simulated for h in held)).silence,
        grace=world.limits(simulated=False).grace,
        max_moves=int(row.task.get("max_moves", 50)),
        keep=Keep(**kept) if (kept := row.task.get("keep_on_failure")) else None,
        saves=row.task.get("checkpoint") is not None,
    )

    def wake() -> None:
        loop.call_soon_threadsafe(changed.set)

    followed = Followed(
        job=state.job,
        home=row.home,
        held={placement.generation: placement for placement in held},
        wake=wake,
    )
    await asyncio.to_thread(write_control, state, world)
    await asyncio.to_thread(watcher.follow, followed)
    finals: dict[int, Mapping[str, Any]] = {}
    parents: dict[int, tuple[int, int] | None] = {}
    patient_until = time.monotonic() + HEAR_WITHIN
    try:
        while True:
            changed.clear()
            wakes = followed.wakes
            heard = followed.heard or (None if time.monotonic() > patient_until else False)
            seen = watcher.seen(state, row.home)
            if seen.want is not None:
                # What was heard of may be of an earlier run of the job, which was taken up again since.
                seen = replace(seen, want=(await asyncio.to_thread(world.store.job, state.job)).want)
            await asyncio.to_thread(read_home, world, row.home, state, seen, finals, parents)
            seen = replace(seen, finals=finals, parents=parents, heard=heard)
            following = react(state, seen, limits)
            if following is not None:
                # A wish may have come since the last look for wishes, such as where to go from a machine that is lost.
                want = (await asyncio.to_thread(world.store.job, state.job)).want
                if want != seen.want:
                    following = react(state, replace(seen, want=want), limits)
            if following is not None:
                return following
            delay = max(0.05, wake_at(state, seen, limits) - world.clock())
            if seen.heard is False:
                delay = min(delay, HEAR_WITHIN)
            followed.decided = wakes
            try:
                await asyncio.wait_for(changed.wait(), timeout=delay)
            except TimeoutError:
                continue
    finally:
        watcher.unfollow(state.job)


def read_home(
    world: World,
    url: str,
    state: JobState,
    seen: Seen,
    finals: dict[int, Mapping[str, Any]],
    parents: dict[int, tuple[int, int] | None],
) -> None:
    """Read from the home what beats cannot tell: the last words of a machine that has ended, and new parents."""
    keys = JobKeys(state.job)
    for generation in (held.generation for held in state.held):
        try:
            home = world.home(url)
            if seen.over(generation) is not None and generation not in finals:
                last = hearsay.heard(home.find(keys.beat(generation)))
                if last is not None:
                    heard = seen.beat(generation)
                    note_beat(world, state.job, generation, heard.data if heard else {}, last)
                found = {
                    "beat": last,
                    "result": hearsay.heard(home.find(keys.result(generation))),
                    "closed": hearsay.heard(home.find(keys.closed(generation))),
                }
                finals[generation] = found
            beat = seen.beat(generation)
            if generation not in state.parents and generation not in parents:
                told = beat is not None and beat.data.get("parent_written")
                if told or generation in finals:
                    raw = home.find(keys.parent(generation))
                    if raw is not None:
                        parents[generation] = read_parent(raw)
        except (HomeError, ProviderError, ValueError, TypeError, LookupError):
            continue
