"""A job's cache taken over from an earlier job of the same name: copied within the store, before the first machine.

Machines hold keys for their own job only, so the broker copies, and no byte passes through its computer. A cache is
what other machines have written, and programs run what is in it: it is taken over only where every machine of the
earlier job was at least as trusted as the one that is about to be rented, and whatever it had taken over itself. A
marketplace's host thus never puts anything before a job on a cloud. Where machines get the key of a whole bucket, any
of them may have written anything.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from broker.cache import Cache, CacheKeys, newest, told_size
from broker.home import Home, JobKeys
from broker.offer import Offer, Trust
from broker.policy.budget import UNCLEAR
from broker.store import JobRow, PlacementRow
from broker.task import Task
from broker.world import World

LOOKED_AT = 10
"""Jobs of the name whose caches are looked at, the newest first."""
FAILED = 2
"""Jobs in a row that fail with a cache taken over, after which the next begins without."""
MOST, SECONDS, AT_ONCE = 20_000, 120.0, 16
"""Blobs that are copied, how long that may take before the launch, and how many at once."""


class TooMuch(Exception):  # noqa: N818 - a decision
    """A cache that cannot be copied in good time."""


@dataclass(frozen=True, slots=True)
class Heirloom:
    """An earlier job's cache. trust: that of the least trusted machine that may have written any of it."""

    job: str
    generation: int
    cache: Cache
    trust: Trust


def inherit(row: JobRow, task: Task, offer: Offer, world: World) -> None:
    """Give a job that has no cache of its own that of an earlier one, and delete those that nobody will take any more.

    A home that does not answer leaves the job without: its setup fetches everything itself, and an event says so.
    """
    if not task.cache:
        return
    home, keys = world.home(row.home), CacheKeys(row.id)
    try:
        if home.list(keys.caches):
            if _written(row, world) or _taken_over(row, world, Trust.COMMUNITY).reaches(offer.trust):
                return
            # Taken over for another machine, which was then not to be had.
            drop(home, keys)
            world.store.event(row.id, "cache", "what was taken over is not for this machine", trust=str(Trust.CLOUD))
        earlier = _earlier(row, world)
        if failed := _in_vain(earlier, world):
            text = f"fetched anew: {failed} failed with what they had taken over"
            world.store.event(row.id, "cache", text, once="inherited")
            return
        found = list(_heirlooms(earlier, home, world))
        taken = next((one for one in found if one.trust.reaches(offer.trust) and _fits(one.cache, task)), None)
        if taken is not None:
            _copy(home, taken, keys)
            text = f"cache of {taken.job} taken over: {told_size(taken.cache.size)}"
            world.store.event(row.id, "cache", text, trust=str(taken.trust), source=taken.job)
        _forget(home, found)
    except Exception as error:  # noqa: BLE001 - untrusted machines wrote it, and it is no reason not to start
        text = f"no earlier job's cache is taken over: {error or type(error).__name__}"
        world.store.event(row.id, "cache", text, once="inherited")


def _written(row: JobRow, world: World) -> list[PlacementRow]:
    """The job's machines that may have written a cache."""
    return [p for p in world.store.placements(row.id) if p.launched_at is not None or p.cause == UNCLEAR]


def _taken_over(row: JobRow, world: World, unknown: Trust) -> Trust:
    """How far what the job has taken over from others is to be trusted. unknown: where nothing is written down."""
    told = [event.data["trust"] for event in world.store.events(row.id, kinds=["cache"]) if "trust" in event.data]
    return Trust(told[-1]) if told else unknown


def _earlier(row: JobRow, world: World) -> list[JobRow]:
    """The jobs of this name in this home that have ended, the newest first."""
    jobs = [j for j in world.store.jobs() if j.name == row.name and j.home == row.home and j.done and j.id != row.id]
    return jobs[:LOOKED_AT]


def _in_vain(earlier: list[JobRow], world: World) -> str:
    """The newest jobs, if all of them failed with a cache that they had taken over: it may be what they fail by, such
    as half a file that a program takes for a whole one. Empty otherwise.
    """
    newest_ones = earlier[:FAILED]
    took = [
        any(event.data.get("source") for event in world.store.events(job.id, kinds=["cache"]))
        for job in newest_ones
        if job.status == "failed"
    ]
    return " and ".join(job.id for job in newest_ones) if len(took) == FAILED and all(took) else ""


def _heirlooms(earlier: list[JobRow], home: Home, world: World) -> Iterator[Heirloom]:
    """The caches of these jobs."""
    for job in earlier:
        machines = _written(job, world)
        found = newest(home, JobKeys(job.id)) if machines else None
        if found is not None:
            trusts = [Offer.from_json(machine.request["offer"]).trust for machine in machines]
            trusts.append(_taken_over(job, world, Trust.CLOUD))
            least = Trust.COMMUNITY if _open_to_all(home.url, world) else max(trusts, key=list(Trust).index)
            yield Heirloom(job.id, *found, least)


def _open_to_all(url: str, world: World) -> bool:
    """Do hosts of marketplaces get a key that opens other jobs' objects too?"""
    settings = world.config.home_config
    lone = settings.get("dedicated", "").lower() == "true"
    return lone and settings.get("mint", "none") == "none" and not url.startswith("file:")


def _fits(cache: Cache, task: Task) -> bool:
    return bool(cache.folders.keys() & set(task.cache))


def _copy(home: Home, taken: Heirloom, keys: CacheKeys) -> None:
    """Blobs first, the manifest last: a copy that is broken off leaves none."""
    blobs = list(taken.cache.blobs)
    if len(blobs) > MOST:
        raise TooMuch(f"that of {taken.job} has {len(blobs):,} parts")
    source, until = CacheKeys(taken.job), time.monotonic() + SECONDS
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="cache") as pool:
        copies = [pool.submit(home.copy, source.blob(sha), keys.blob(sha)) for sha in blobs]
        try:
            for copy in copies:
                copy.result(timeout=max(0.0, until - time.monotonic()))
        except TimeoutError:
            raise TooMuch(f"copying that of {taken.job} takes longer than {SECONDS:.0f} s") from None
        finally:
            for copy in copies:
                copy.cancel()
    home.put(keys.cache(0), taken.cache.to_bytes())


def _forget(home: Home, found: list[Heirloom]) -> None:
    """Delete every cache that is older than one which is at least as trusted: no job would take it."""
    best: Trust | None = None
    for one in found:
        if best is not None and best.reaches(one.trust):
            drop(home, JobKeys(one.job))
        else:
            best = one.trust


def drop(home: Home, keys: JobKeys) -> None:
    """Delete a job's whole cache, its manifests first."""
    for prefix in (keys.caches, keys.cached("").rstrip("/")):
        home.delete(entry.key for entry in home.list(prefix))


def collect(home: Home, keys: JobKeys, now: float, age: float) -> int:
    """Delete what the newest cache of a running job does not need and is older than `age` seconds; how many blobs.

    now: the store's time, seconds since the epoch.
    """
    found = newest(home, keys)
    if found is None:
        return 0
    generation, cache = found
    needed = cache.blobs
    entries = home.list(keys.cached("").rstrip("/"))
    stale = [e.key for e in entries if e.key.rpartition("/")[2] not in needed and now - e.modified > age]
    old = [e.key for e in home.list(keys.caches) if e.key != keys.cache(generation) and now - e.modified > age]
    home.delete([*old, *stale])
    return len(stale)
