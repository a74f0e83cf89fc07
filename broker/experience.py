"""What this installation has seen, and decides by: machines taken back, what starting and saving took, spot zones.

Kept in the installation's store beside the jobs, in tables of their own. Everything is learned once: what a placement
has shown is written down in one transaction with the note that it has been.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from broker.offer import Market, Offer, OfferQuery, hourly_of
from broker.policy.budget import UNCLEAR
from broker.policy.due import zone
from broker.policy.hazard import Experience, Seen, by_part, ran
from broker.policy.infra import matcher as within_infra
from broker.policy.past import MET, Past
from broker.policy.season import moves, sampled, weekly, zone_of
from broker.policy.shape import misfit
from broker.policy.spells import Sky
from broker.policy.timing import Refusals
from broker.store import insert_into, made, metadata, prices

if TYPE_CHECKING:
    from broker.store import Store
    from broker.task import Task

LATEST = 5
"""A measured value follows the last few: the newest counts for at least a fifth."""
LOOKED_AWAY = 6 * 3600.0
"""Seconds without a look after which a zone's spell is taken for a new one, met at random."""
KEPT = 30 * 86_400.0
"""Seconds for which looks at zones, and their prices, are kept."""
PAST = 21 * 86_400.0
"""Seconds of past prices that tell how they go over the week."""
PART = "part/"
"""Before the number of a part of the day, where a place would stand."""
LATELY = 3600.0
"""Seconds for which one job's refusal on demand tells another something: as long as the longest cooldown."""
BATCH = 500
"""Names in one statement; SQLite takes some thousands."""
PASSING = -1.0
"""Where the newest decision that rented nothing stands: they are many, and the last one says all."""

seen = sa.Table(
    "spotbroker_seen",
    metadata,
    sa.Column("scope", sa.String, primary_key=True),
    sa.Column("hours", sa.Float, nullable=False),
    sa.Column("weekend", sa.Float, nullable=False),
    sa.Column("losses", sa.Integer, nullable=False),
)
measured = sa.Table(
    "spotbroker_measured",
    metadata,
    sa.Column("key", sa.String, primary_key=True),
    sa.Column("value", sa.Float, nullable=False),
    sa.Column("count", sa.Integer, nullable=False),
)
learned = sa.Table(
    "spotbroker_learned",
    metadata,
    sa.Column("job", sa.String, primary_key=True),
    sa.Column("generation", sa.Integer, primary_key=True),
)
looks = sa.Table(
    "spotbroker_looks",
    metadata,
    sa.Column("zone", sa.String, primary_key=True),
    sa.Column("at", sa.Float, primary_key=True),
    sa.Column("up", sa.Boolean, nullable=False),
    sa.Column("fresh", sa.Boolean, nullable=False),
)
zones = sa.Table(
    "spotbroker_zones",
    metadata,
    sa.Column("zone", sa.String, primary_key=True),
    sa.Column("up", sa.Boolean, nullable=False),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("offer", sa.JSON, nullable=False),
)
decisions = sa.Table(
    "spotbroker_decisions",
    metadata,
    sa.Column("job", sa.String, primary_key=True),
    sa.Column("at", sa.Float, primary_key=True),
    sa.Column("record", sa.LargeBinary, nullable=False),
)
TABLES = (seen, measured, learned, looks, zones, decisions)


@dataclass(frozen=True, slots=True)
class Measured:
    """What earlier jobs of a task have shown. restarts: hours from a launch to the first step, by provider.

    checkpoint: GiB of a snapshot. sent: GiB that saves send in an hour. save: seconds that a save and its upload take.
    paces: steps per hour, by card. cache: GiB of the task's cache folders; spared: hours that restoring them spares.
    """

    restarts: Mapping[str, float] = field(default_factory=dict)
    checkpoint: float = 0.0
    sent: float | None = None
    save: float | None = None
    paces: Mapping[str, float] = field(default_factory=dict)
    cache: float = 0.0
    spared: float | None = None


@dataclass(frozen=True, slots=True)
class Lesson:
    """What one placement has shown. began, ended: seconds since the epoch, of its machine; lost: it was taken back.

    task: the task's name; image: the container, "" for none. restart: seconds from its launch to its first step.
    checkpoint: bytes of its newest snapshot. cache: bytes of the task's cache folders; spared: seconds that restoring
    them spares a start. sent: bytes that its saves sent in an hour. save: seconds of a save with
    its upload. pace: steps per hour.
    """

    job: str
    generation: int
    offer: Offer
    began: float
    ended: float
    lost: bool
    task: str
    image: str = ""
    restart: float | None = None
    checkpoint: int | None = None
    sent: float | None = None
    save: float | None = None
    pace: float | None = None
    cache: int | None = None
    spared: float | None = None

    def values(self) -> dict[str, float]:
        """By key, as they are kept."""
        provider = self.offer.provider
        found = {
            f"restart|{provider}": self.restart,
            f"restart|{provider}|{self.image}": self.restart,
            f"checkpoint|{self.task}": self.checkpoint,
            f"sent|{self.task}": self.sent,
            f"save|{self.task}": self.save,
            f"pace|{self.task}|{self.offer.gpu or ''}": self.pace,
            f"cache|{self.task}": self.cache,
            f"spared|{self.task}": self.spared,
        }
        return {key: float(value) for key, value in found.items() if value is not None}


class Records:
    """All reads and writes of it. Threads may share one."""

    def __init__(self, store: Store) -> None:
        self.store, self._engine = store, store.engine
        made(store.engine, TABLES)

    # Machines

    def learn(self, lesson: Lesson) -> bool:
        """Keep what a placement has shown; False where it was kept before."""
        with self._engine.begin() as db:
            note = insert_into(self._engine, learned).values(job=lesson.job, generation=lesson.generation)
            if db.execute(note.on_conflict_do_nothing().returning(learned.c.job)).first() is None:
                return False
            if (more := ran(lesson.offer, lesson.began, lesson.ended, lost=lesson.lost)) is not None:
                self._add(db, *more)
            for part, share in by_part(lesson.offer, lesson.began, lesson.ended, lost=lesson.lost).items():
                self._add(db, f"{PART}{part}", share)
            for key, value in lesson.values().items():
                self._measure(db, key, value)
        return True

    def _add(self, db: sa.Connection, scope: str, more: Seen) -> None:
        insert = insert_into(self._engine, seen).values(
            scope=scope, hours=more.hours, weekend=more.weekend, losses=more.losses
        )
        sums = {name: seen.c[name] + insert.excluded[name] for name in ("hours", "weekend", "losses")}
        db.execute(insert.on_conflict_do_update(index_elements=["scope"], set_=sums))

    def _measure(self, db: sa.Connection, key: str, value: float) -> None:
        insert = insert_into(self._engine, measured).values(key=key, value=value, count=1)
        before, count = measured.c.value, measured.c.count
        weight = sa.case((count + 1 < LATEST, count + 1), else_=LATEST)
        blended = before + (insert.excluded.value - before) / sa.cast(weight, sa.Float)
        db.execute(insert.on_conflict_do_update(index_elements=["key"], set_={"value": blended, "count": count + 1}))

    def experience(self) -> Experience:
        """Hours and losses of spot machines, for their hazards."""
        with self._engine.connect() as db:
            rows = db.execute(sa.select(seen)).all()
        found = {row.scope: Seen(row.hours, row.weekend, row.losses) for row in rows}
        parts = {int(scope.removeprefix(PART)): entry for scope, entry in found.items() if scope.startswith(PART)}
        return Experience({scope: e for scope, e in found.items() if not scope.startswith(PART)}, parts)

    def measured(self, task: Task) -> Measured:
        """What earlier jobs of a task have shown: of that name, and on the providers with its image."""
        images = {f"restart|{{}}|{resources.image or ''}" for resources in task.resources}
        name = task.name
        wanted = sa.or_(
            measured.c.key.startswith("restart|"),
            measured.c.key.in_([f"{what}|{name}" for what in ("checkpoint", "sent", "save", "cache", "spared")]),
            measured.c.key.startswith(f"pace|{name}|", autoescape=True),
        )
        with self._engine.connect() as db:
            found = {row.key: row.value for row in db.execute(sa.select(measured).where(wanted))}
        providers = {key.split("|")[1] for key in found if key.startswith("restart|")}
        restarts = {
            provider: next(
                (found[key] for image in sorted(images) if (key := image.format(provider)) in found),
                found.get(f"restart|{provider}", 0.0),
            )
            / 3600
            for provider in providers
        }
        paces = {key.rsplit("|", 1)[1]: value for key, value in found.items() if key.startswith("pace|")}
        size, sent, cache = (
            found[key] / 2**30 if (key := f"{what}|{name}") in found else None
            for what in ("checkpoint", "sent", "cache")
        )
        spared = found[key] / 3600 if (key := f"spared|{name}") in found else None
        return Measured(restarts, size or 0.0, sent, found.get(f"save|{name}"), paces, cache or 0.0, spared)

    # Zones

    def looked(
        self, queries: Sequence[OfferQuery], offers: Iterable[Offer], at: float, *, answered: Collection[str] = ()
    ) -> None:
        """One look at the market. answered: providers whose whole answer to the queries this is: a known zone that
        would fit and is not in it is down.

        A look is written where something has changed, so that a month of them stays small.
        """
        up = {zone(o): o for o in offers if o.market is Market.SPOT}
        with self._engine.begin() as db:
            known = {row.zone: row for row in db.execute(sa.select(zones))}
            found = [(offer, known.get(name), True) for name, offer in up.items()]
            for name, row in known.items():
                if name not in up and name.partition("/")[0] in answered:
                    offer = Offer.from_json(row.offer)
                    if any(within_infra(q.infra)(offer) and not misfit(offer, q) for q in queries):
                        found.append((offer, row, False))
            self._see(db, found, at)
            self._forget(db, at - KEPT)

    def _forget(self, db: sa.Connection, before: float) -> None:
        """What is older, but for the newest of each: that is how things have been since."""
        for old, name in ((looks, "zone"), (prices, "offer")):
            newer = old.alias()
            later = sa.exists().where(newer.c[name] == old.c[name], newer.c.at > old.c.at, newer.c.at <= before)
            db.execute(sa.delete(old).where(old.c.at < before, later))
        db.execute(sa.delete(zones).where(zones.c.at < before))

    def gone(self, offer: Offer, at: float) -> None:
        """A machine there was refused, or taken back: the zone is down now, whatever its lists say."""
        if offer.market is not Market.SPOT:
            return
        with self._engine.begin() as db:
            row = db.execute(sa.select(zones).where(zones.c.zone == zone(offer))).first()
            self._see(db, [(offer, row, False)], at)

    def _see(self, db: sa.Connection, found: Iterable[tuple[Offer, Any, bool]], at: float) -> None:
        """Offers with what was known of their zones, and whether they are up. Markets are large: few statements."""
        turns, points, fresh_rows, same = [], [], [], []
        for offer, before, up in found:
            name = zone(offer)
            fresh = before is None or at - before.at > LOOKED_AWAY
            repriced = before is None or before.offer["price"] != offer.price
            if fresh and before is not None:
                turns.append({"zone": name, "at": before.at, "up": before.up, "fresh": False})  # so long it was seen
            if fresh or before.up != up:
                turns.append({"zone": name, "at": at, "up": up, "fresh": fresh})
            if up and repriced:
                points.append({"offer": offer.key, "at": at, "price": offer.price})
            if fresh or repriced or before.up != up:
                fresh_rows.append({"zone": name, "up": up, "at": at, "offer": offer.to_json()})
            else:
                same.append(name)
        if turns:
            insert = insert_into(self._engine, looks)
            db.execute(
                insert.on_conflict_do_update(index_elements=["zone", "at"], set_={"up": insert.excluded.up}), turns
            )
        if points:
            db.execute(insert_into(self._engine, prices).on_conflict_do_nothing(), points)
        if fresh_rows:
            insert = insert_into(self._engine, zones)
            set_ = {name: insert.excluded[name] for name in ("up", "at", "offer")}
            db.execute(insert.on_conflict_do_update(index_elements=["zone"], set_=set_), fresh_rows)
        for start in range(0, len(same), BATCH):
            db.execute(sa.update(zones).where(zones.c.zone.in_(same[start : start + BATCH])).values(at=at))

    def last_look(self) -> float:
        """When the market was last looked at, seconds since the epoch; 0 for never."""
        with self._engine.connect() as db:
            return float(db.execute(sa.select(sa.func.max(zones.c.at))).scalar() or 0.0)

    def sky(self, kinds: Iterable[tuple[str, str]], since: float, until: float) -> tuple[Sky, dict[str, float]]:
        """What was seen of the zones that have machines of these kinds (provider, instance type), and their prices."""
        wanted = set(kinds)
        query = sa.select(looks).where(looks.c.at >= since, looks.c.at <= until).order_by(looks.c.at)
        with self._engine.connect() as db:
            # What has not changed since before then was written before then.
            stood = sorted(_newest(db, looks.c.zone, since - 1.0).values(), key=lambda row: row.at)
            rows = [row for row in (*stood, *db.execute(query)) if _kind(row.zone) in wanted]
            last = {row.zone: row.offer for row in db.execute(sa.select(zones)) if _kind(row.zone) in wanted}
        sky, at, together = Sky(), None, {}
        for row in rows:
            if at is not None and row.at != at:
                sky.see(at / 3600, together)
                together = {}
            if row.fresh:
                sky.zones.pop(row.zone, None)
            at, together[row.zone] = row.at, row.up
        if at is not None:
            sky.see(at / 3600, together)
        return sky, {name: hourly_of(offer) for name, offer in last.items()}

    def past(self, offers: Iterable[Offer], now: float) -> Past:
        """What was seen of these offers: how their prices go over the week, and since when their zones have been up."""
        spots = {o.key: o for o in offers if o.market is Market.SPOT and not o.simulated}
        with self._engine.connect() as db:
            last = {row.zone: row for row in db.execute(sa.select(zones.c.zone, zones.c.up, zones.c.at))}
            turned = _newest(db, looks.c.zone, now)
        since = {}
        for key, offer in spots.items():
            name = zone(offer)
            row, turn = last.get(name), turned.get(name)
            if row is not None and row.up and turn is not None and now - row.at <= LOOKED_AWAY:
                since[key] = turn.at - (MET * 3600 if turn.fresh else 0.0)
        moving = {key: spot for key, spot in spots.items() if moves(spot)}
        seasons = {key: weekly(samples, zone_of(moving[key].region)) for key, samples in self.samples(moving, now)}
        return Past({key: season for key, season in seasons.items() if season is not None}, since)

    def samples(self, keys: Collection[str], now: float) -> Iterator[tuple[str, list[tuple[float, float]]]]:
        """By the offer's key: (moment, price) on each hour of the last weeks at which its price was known."""
        ordered = list(keys)
        for start in range(0, len(ordered), BATCH):
            part = ordered[start : start + BATCH]
            names = {key: key.rpartition("/")[0] for key in part}
            with self._engine.connect() as db:
                points = _grouped(db, sa.select(prices).where(prices.c.offer.in_(part)), prices.c.offer)
                seen_at = _grouped(db, sa.select(looks).where(looks.c.zone.in_(set(names.values()))), looks.c.zone)
                ends = sa.select(zones.c.zone, zones.c.at).where(zones.c.zone.in_(set(names.values())))
                until = {row.zone: row.at for row in db.execute(ends)}
            for key, rows in points.items():
                turns = [(row.at, row.up, row.fresh) for row in seen_at.get(names[key], ()) if row.at <= now]
                found = [(row.at, row.price) for row in rows if row.at <= now]
                known = sampled(found, turns if key.endswith(f"/{Market.SPOT}") else (), until.get(names[key], 0.0))
                yield key, [(at, price) for at, price in known if at >= now - PAST]

    # Machines on demand

    def refusals(self, offers: Iterable[Offer], job: str, now: float) -> Refusals:
        """What asking for machines on demand, such as these, has lately come to for the other jobs than this one."""
        keys = {offer.key for offer in offers if offer.market is Market.ON_DEMAND}
        others = [row for row in self.store.sent(now - LATELY) if row.job != job] if keys else []
        asked = [row for row in others if Offer.from_json(row.request["offer"]).key in keys]
        refused = [row for row in asked if row.status == "closed" and row.cause != UNCLEAR]
        return Refusals(len(asked), len(refused))

    # Decisions

    def decided(self, job: str, at: float, record: Mapping[str, Any], *, passing: bool = False) -> None:
        """Keep what a decision was made of and what it came to. passing: nothing was rented by it, so that only the
        newest of its kind is kept."""
        packed = zlib.compress(json.dumps(record).encode())
        with self._engine.begin() as db:
            insert = insert_into(self._engine, decisions).values(job=job, at=PASSING if passing else at, record=packed)
            db.execute(insert.on_conflict_do_update(index_elements=["job", "at"], set_={"record": packed}))

    def decisions(self, job: str) -> list[dict[str, Any]]:
        """The records of a job's decisions, oldest first."""
        query = sa.select(decisions).where(decisions.c.job == job).order_by(decisions.c.at)
        with self._engine.connect() as db:
            return [json.loads(zlib.decompress(row.record)) for row in db.execute(query)]


def _newest(db: sa.Connection, by: sa.Column[str], until: float) -> dict[str, Any]:
    """The newest look at each zone that came or went."""
    newest = sa.select(by, sa.func.max(looks.c.at).label("at")).where(looks.c.at <= until).group_by(by).subquery()
    both = looks.join(newest, sa.and_(looks.c.zone == newest.c.zone, looks.c.at == newest.c.at))
    return {row.zone: row for row in db.execute(sa.select(looks).select_from(both))}


def _grouped(db: sa.Connection, query: sa.Select[Any], by: sa.Column[str]) -> dict[str, list[Any]]:
    """A table's rows by one column, each in order of time."""
    found: dict[str, list[Any]] = {}
    for row in db.execute(query.order_by(by, query.selected_columns.at)):
        found.setdefault(row[0], []).append(row)
    return found


def _kind(name: str) -> tuple[str, str]:
    provider, _, rest = name.partition("/")
    return provider, rest.rsplit("/", 1)[-1]
