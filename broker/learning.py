"""What a placement has shown, taken down when it has ended: `learn`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from broker import errors
from broker.cache import CacheKeys, newest
from broker.experience import Lesson
from broker.hearsay import LARGEST
from broker.home import JobKeys
from broker.policy.work import Stay
from broker.provider import Cause, LaunchRequest
from broker.report import startup
from broker.restore import read_manifest
from broker.state import JobState, Retiring
from broker.store import JobRow, PlacementRow
from broker.world import World

TAKEN = ("notice", "moved", "preempted")


def learn(state: JobState, entry: Retiring, world: World) -> None:
    """Keep what the machine has shown. What cannot be read teaches nothing, and holds nothing up."""
    try:
        lesson = _lesson(state, entry, world)
    except Exception as error:  # noqa: BLE001 - a machine's own words are in it, and its end waits for this
        text = f"nothing was learned of machine {entry.generation}: {error or type(error).__name__}"
        world.store.event(state.job, "warning", text, generation=entry.generation, once="learn")
        return
    with contextlib.suppress(SQLAlchemyError):
        world.records.learn(lesson)


def _lesson(state: JobState, entry: Retiring, world: World) -> Lesson:
    row, job = world.store.placement(state.job, entry.generation), world.store.job(state.job)
    offer = LaunchRequest.from_json(dict(row.request)).offer
    ended = entry.gone_at or world.clock()
    size, sent = snapshots(row, job.home, ended, world)
    cache, spared = _cached(job, world)
    return Lesson(
        job=row.job,
        generation=row.generation,
        offer=offer,
        began=entry.held.launched_at,
        ended=ended,
        lost=entry.why in TAKEN or entry.cause == Cause.PREEMPTED,
        task=job.name,
        image=row.request.get("container") or row.request.get("image") or "",
        restart=startup(row, world.store.events(state.job, kinds=("first_step", "resumed"))),
        checkpoint=size,
        sent=sent,
        save=_save(row.beat or {}),
        pace=_pace(row),
        cache=cache,
        spared=spared,
    )


def _cached(job: JobRow, world: World) -> tuple[int | None, float | None]:
    """Bytes of a job's cache folders, and seconds that restoring them spares a start; None where that is not known."""
    if not job.task.get("cache"):
        return None, None
    try:
        found = newest(world.home(job.home), CacheKeys(job.id))
    except errors.HomeError:
        return None, None
    if found is None:
        return None, None
    size, times = found[1].size, found[1].times
    spared = None if times.cold is None else max(0.0, times.cold - (times.warm or 0.0))
    # Machines wrote it, and nobody has to believe them.
    return size if 0 <= size < LARGEST else None, spared if spared is not None and spared < LARGEST else None


def _save(beat: Mapping[str, Any]) -> float | None:
    timings = beat.get("timings") or {}
    took = [timings[name] for name in ("save", "upload") if timings.get(name) is not None]
    return float(sum(took)) if took else None


def _pace(row: PlacementRow) -> float | None:
    beat = row.beat or {}
    told = beat.get("progress") or {}
    return Stay(row.program_at, told.get("at"), beat.get("first_step"), told.get("step")).pace


def snapshots(row: PlacementRow, url: str, ended: float, world: World) -> tuple[int | None, float | None]:
    """Bytes of its newest snapshot, and bytes an hour that its snapshots sent: each what the newest did not share with
    the one before."""
    seq = (row.beat or {}).get("seq")
    if not seq:
        return None, None
    keys = JobKeys(row.job)
    try:
        home = world.home(url)
        newest = read_manifest(home, keys, row.generation, seq)
    except (errors.HomeError, FileNotFoundError):
        return None, None
    sent = newest.size
    with contextlib.suppress(errors.HomeError, FileNotFoundError):
        before = {file.sha256 for file in read_manifest(home, keys, row.generation, seq - 1).files.values()}
        sent = sum(file.size for file in newest.files.values() if file.sha256 not in before)
    hours = Stay(row.program_at, ended).hours
    return newest.size, sent * seq / hours if hours else None
