"""What this installation knows: jobs, placements, events and prices, in SQLite or Postgres.

The engine's own tables live apart and hold only where each job's phases stand; what a person asks about is here. Rows
are written inside phases, so every write may happen twice: writes are idempotent by key.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from broker.errors import ConfigError, JobNotFound
from broker.offer import hourly_of
from broker.policy.budget import STRAY, UNCLEAR, Bill
from broker.state import KEEP, SETTLING

metadata = sa.MetaData()

jobs = sa.Table(
    "spotbroker_jobs",
    metadata,
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("name", sa.String, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("status", sa.String, nullable=False),
    sa.Column("want", sa.String),
    sa.Column("home", sa.String, nullable=False),
    sa.Column("task", sa.JSON, nullable=False),
    sa.Column("secrets", sa.LargeBinary),
    sa.Column("prepared", sa.JSON),
    sa.Column("plan", sa.JSON),
    sa.Column("message", sa.String, nullable=False, default=""),
    sa.Column("fix", sa.String, nullable=False, default=""),
    sa.Column("exit_code", sa.Integer),
    sa.Column("ended_at", sa.Float),
    sa.Column("claimed_by", sa.String),
    sa.Column("state", sa.JSON),
)

placements = sa.Table(
    "spotbroker_placements",
    metadata,
    sa.Column("job", sa.String, primary_key=True),
    sa.Column("generation", sa.Integer, primary_key=True),
    sa.Column("status", sa.String, nullable=False),
    sa.Column("request", sa.JSON, nullable=False),
    sa.Column("reasons", sa.JSON, nullable=False),
    sa.Column("picked_at", sa.Float, nullable=False),
    sa.Column("sent_at", sa.Float),
    sa.Column("instance", sa.String),
    sa.Column("market", sa.String),
    sa.Column("hourly", sa.Float),
    sa.Column("launched_at", sa.Float),
    sa.Column("beat", sa.JSON),
    sa.Column("first_beat_at", sa.Float),
    sa.Column("program_at", sa.Float),
    sa.Column("noticed_at", sa.Float),
    sa.Column("ended_at", sa.Float),
    sa.Column("confirmed", sa.Boolean, nullable=False, default=False),
    sa.Column("cause", sa.String),
    sa.Column("note", sa.String, nullable=False, default=""),
)

events = sa.Table(
    "spotbroker_events",
    metadata,
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("job", sa.String, nullable=False, index=True),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("kind", sa.String, nullable=False),
    sa.Column("once", sa.String, nullable=False),
    sa.Column("text", sa.String, nullable=False),
    sa.Column("data", sa.JSON, nullable=False),
    sa.UniqueConstraint("job", "generation", "kind", "once"),
)

prices = sa.Table(
    "spotbroker_prices",
    metadata,
    sa.Column("offer", sa.String, primary_key=True),
    sa.Column("at", sa.Float, primary_key=True),
    sa.Column("price", sa.Float, nullable=False),
)

meta = sa.Table(
    "spotbroker_meta",
    metadata,
    sa.Column("key", sa.String, primary_key=True),
    sa.Column("value", sa.String, nullable=False),
)

ENDED = ("succeeded", "failed", "stopped", "limit", "unavailable", "error")
NETWORK_FILESYSTEMS = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "fuse.sshfs",
    "fuse.s3fs",
    "afs",
    "ceph",
    "glusterfs",
    "lustre",
)


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job. status: pending, starting, running, moving, stopping, kept, or one of `ENDED`.

    kept: its program has failed, which its exit code and message tell, and its machine stays for a person to look.
    """

    id: str
    name: str
    created_at: float
    status: str
    home: str
    task: Mapping[str, Any]
    want: str | None = None
    secrets: bytes | None = field(default=None, repr=False)
    prepared: Mapping[str, Any] | None = None
    plan: Mapping[str, Any] | None = None
    message: str = ""
    fix: str = ""
    exit_code: int | None = None
    ended_at: float | None = None
    claimed_by: str | None = None
    state: Mapping[str, Any] | None = None

    @property
    def done(self) -> bool:
        return self.status in ENDED

    @property
    def kept(self) -> bool:
        return self.status == "kept"

    @property
    def decided(self) -> bool:
        """Is it known how it has ended? A kept one is done only when its machine is gone, as its user may ask."""
        return self.done or (self.kept and not self.stopping)

    @property
    def stopping(self) -> bool:
        """Has its user asked for its end?"""
        return self.want in ("stop", "stop-now")


@dataclass(frozen=True, slots=True)
class PlacementRow:
    """One placement. status: intent, sent, launched, ended, closed (it never got an instance)."""

    job: str
    generation: int
    status: str
    request: Mapping[str, Any]
    reasons: Sequence[str]
    picked_at: float
    sent_at: float | None = None
    instance: str | None = None
    market: str | None = None
    hourly: float | None = None
    launched_at: float | None = None
    beat: Mapping[str, Any] | None = None
    first_beat_at: float | None = None
    program_at: float | None = None
    noticed_at: float | None = None
    ended_at: float | None = None
    confirmed: bool = False
    cause: str | None = None
    note: str = ""

    def cost(self, now: float) -> float:
        """USD spent on this placement until it ended, or until now."""
        if self.launched_at is None or self.hourly is None:
            return 0.0
        return self.hourly * max(0.0, (self.ended_at or now) - self.launched_at) / 3600


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a job; text is for people, data for programs."""

    seq: int
    job: str
    generation: int
    at: float
    kind: str
    text: str
    data: Mapping[str, Any]


class OverBudget(Exception):  # noqa: N818 - the caller reckons again, nothing is wrong
    """Another job has taken what this placement was to cost."""


class Store:
    """All reads and writes of our tables. Threads may share it."""

    def __init__(self, url: str) -> None:
        options: dict[str, Any] = {"pool_pre_ping": True}
        if url.startswith("sqlite"):
            options = {"connect_args": {"timeout": 30, "check_same_thread": False}}
        self.url = url
        self.engine = sa.create_engine(url, **options)
        if url.startswith("sqlite"):
            sa.event.listen(self.engine, "connect", _sqlite_settings)
            sa.event.listen(self.engine, "begin", _sqlite_begin)
        self._create()

    def _create(self) -> None:
        made(self.engine, (jobs, placements, events, prices, meta))

    def close(self) -> None:
        self.engine.dispose()

    def installation(self) -> str:
        """The name that tags this installation's machines; made at first use."""
        with self.engine.begin() as db:
            found = db.execute(sa.select(meta.c.value).where(meta.c.key == "installation")).scalar()
            if found is None:
                found = uuid.uuid4().hex[:12]
                insert = insert_into(self.engine, meta).values(key="installation", value=found)
                db.execute(insert.on_conflict_do_nothing())
                found = db.execute(sa.select(meta.c.value).where(meta.c.key == "installation")).scalar_one()
        return str(found)

    # Jobs

    def add_job(self, row: JobRow) -> None:
        """Write a new job down; a job of that id already there is left as it is."""
        values = {c.name: getattr(row, c.name) for c in jobs.columns}
        with self.engine.begin() as db:
            db.execute(insert_into(self.engine, jobs).values(**values).on_conflict_do_nothing())

    def job(self, job: str) -> JobRow:
        """One job by id. Raises JobNotFound."""
        with self.engine.connect() as db:
            row = db.execute(sa.select(jobs).where(jobs.c.id == job)).mappings().first()
        if row is None:
            raise JobNotFound(f"no job {job!r} here", fix="broker ps -a lists all jobs")
        return JobRow(**row)

    def find(self, name_or_id: str) -> JobRow:
        """A job by id, or the newest by name. Raises JobNotFound."""
        query = (
            sa.select(jobs)
            .where(sa.or_(jobs.c.id == name_or_id, jobs.c.name == name_or_id))
            .order_by(sa.case((jobs.c.id == name_or_id, 0), else_=1), jobs.c.created_at.desc())
        )
        with self.engine.connect() as db:
            row = db.execute(query.limit(1)).mappings().first()
        if row is None:
            raise JobNotFound(f"no job {name_or_id!r} here", fix="broker ps -a lists all jobs")
        return JobRow(**row)

    def jobs(self, *, active: bool = False, since: float | None = None) -> list[JobRow]:
        """All jobs, the newest first; `active`: only those that have not ended."""
        query = sa.select(jobs).order_by(jobs.c.created_at.desc())
        if active:
            query = query.where(jobs.c.status.not_in(ENDED))
        if since is not None:
            query = query.where(jobs.c.created_at >= since)
        with self.engine.connect() as db:
            return [JobRow(**row) for row in db.execute(query).mappings()]

    def update_job(self, job: str, **values: Any) -> None:
        with self.engine.begin() as db:
            db.execute(sa.update(jobs).where(jobs.c.id == job).values(**values))

    def revive(self, job: str, state: Mapping[str, Any], secrets: bytes | None, **changed: Any) -> bool:
        """Make a job that has ended otherwise than by success one that nobody has started; False if it is none.

        changed: columns that are to be other than they were.
        """
        query = sa.update(jobs).where(jobs.c.id == job, jobs.c.status.in_(ENDED), jobs.c.status != "succeeded")
        fresh = {"status": "pending", "want": None, "message": "", "fix": "", "claimed_by": None}
        with self.engine.begin() as db:
            values = {**fresh, **changed, "exit_code": None, "ended_at": None, "state": dict(state), "secrets": secrets}
            return db.execute(query.values(**values)).rowcount == 1

    def ask(self, job: str, want: str) -> None:
        """Write down what the user wants of a job, for its watch to read: `stop`, `stop-now`, or to be moved
        (`broker.leaving`). A wish to stop stands: no later wish to move takes it back."""
        with self.engine.begin() as db:
            query = sa.update(jobs).where(jobs.c.id == job, jobs.c.status.not_in(ENDED))
            if want not in ("stop", "stop-now"):
                query = query.where(sa.or_(jobs.c.want.is_(None), jobs.c.want.not_in(("stop", "stop-now"))))
            db.execute(query.values(want=want))

    def wants(self) -> dict[str, str]:
        """What is wanted of the jobs that have not ended."""
        query = sa.select(jobs.c.id, jobs.c.want).where(jobs.c.want.is_not(None), jobs.c.status.not_in(ENDED))
        with self.engine.connect() as db:
            return {row.id: row.want for row in db.execute(query)}

    def claim(self, job: str, by: str) -> bool:
        """Take a job that nobody has started; False if somebody has."""
        query = sa.update(jobs).where(jobs.c.id == job, jobs.c.claimed_by.is_(None)).values(claimed_by=by)
        with self.engine.begin() as db:
            return db.execute(query).rowcount == 1

    def unclaimed(self) -> list[str]:
        query = sa.select(jobs.c.id).where(jobs.c.claimed_by.is_(None), jobs.c.status.not_in(ENDED))
        with self.engine.connect() as db:
            return [row.id for row in db.execute(query)]

    # Placements

    def intend(
        self,
        row: PlacementRow,
        *,
        fits: Callable[[Mapping[tuple[str, int], Bill]], bool] | None = None,
        since: float = 0.0,
    ) -> PlacementRow:
        """Write a placement's frozen request down before anything is sent; returns what stands.

        A row of the same generation that was already sent stands as it is, whoever sent it. fits: asked with the bills
        of everything since `since`, as `bills` has them, while nobody else can write; where it says no, nothing is
        written. Raises OverBudget then.
        """
        values = {c.name: getattr(row, c.name) for c in placements.columns}
        with self.engine.begin() as db:
            if fits is not None:
                if self.engine.dialect.name != "sqlite":
                    db.execute(sa.text("SELECT pg_advisory_xact_lock(7301947)"))
                if not fits(_bills(db, since, bool(row.request["offer"].get("simulated")))):
                    raise OverBudget
            insert = insert_into(self.engine, placements).values(**values)
            db.execute(
                insert.on_conflict_do_update(
                    index_elements=["job", "generation"],
                    set_={key: values[key] for key in ("request", "reasons", "picked_at")},
                    where=placements.c.status == "intent",
                )
            )
        return self.placement(row.job, row.generation)

    def placement(self, job: str, generation: int) -> PlacementRow:
        query = sa.select(placements).where(placements.c.job == job, placements.c.generation == generation)
        with self.engine.connect() as db:
            return PlacementRow(**db.execute(query).mappings().one())

    def placements(self, job: str) -> list[PlacementRow]:
        """All placements of a job, oldest first."""
        query = sa.select(placements).where(placements.c.job == job).order_by(placements.c.generation)
        with self.engine.connect() as db:
            return [PlacementRow(**row) for row in db.execute(query).mappings()]

    def unclear(self, since: float) -> list[PlacementRow]:
        """Placements given up since a moment whose launch was never answered: something may have come of it."""
        query = sa.select(placements).where(placements.c.cause == UNCLEAR, placements.c.ended_at >= since)
        with self.engine.connect() as db:
            return [PlacementRow(**row) for row in db.execute(query).mappings()]

    def sent(self, since: float) -> list[PlacementRow]:
        """Placements of all jobs whose launch was sent since a moment."""
        query = sa.select(placements).where(placements.c.sent_at >= since)
        with self.engine.connect() as db:
            return [PlacementRow(**row) for row in db.execute(query).mappings()]

    def update_placement(self, job: str, generation: int, **values: Any) -> None:
        query = sa.update(placements).where(placements.c.job == job, placements.c.generation == generation)
        with self.engine.begin() as db:
            db.execute(query.values(**values))

    def first(self, job: str, generation: int, **values: Any) -> None:
        """Set columns that are set once: what already has a value keeps it."""
        for key, value in values.items():
            column = placements.c[key]
            query = sa.update(placements).where(
                placements.c.job == job, placements.c.generation == generation, column.is_(None)
            )
            with self.engine.begin() as db:
                db.execute(query.values({key: value}))

    def bills(self, since: float, *, simulated: bool) -> dict[tuple[str, int], Bill]:
        """What has cost money since a moment, or may yet: by job and generation. Simulated money stands apart."""
        with self.engine.connect() as db:
            return _bills(db, since, simulated)

    # Events

    def event(
        self,
        job: str,
        kind: str,
        text: str,
        *,
        generation: int = 0,
        once: str | None = None,
        at: float | None = None,
        **data: Any,
    ) -> None:
        """Write an event down. One with the same `once` for the same job, generation and kind is written once."""
        values = {
            "job": job,
            "generation": generation,
            "at": time.time() if at is None else at,
            "kind": kind,
            "once": uuid.uuid4().hex if once is None else once,
            "text": text,
            "data": json.loads(json.dumps(data)),
        }
        with self.engine.begin() as db:
            db.execute(insert_into(self.engine, events).values(**values).on_conflict_do_nothing())

    def events(self, job: str, *, after: int = 0, kinds: Iterable[str] = ()) -> list[Event]:
        """A job's events in the order they were written; `after` is the last `seq` already seen."""
        query = sa.select(events).where(events.c.job == job, events.c.seq > after).order_by(events.c.seq)
        if wanted := tuple(kinds):
            query = query.where(events.c.kind.in_(wanted))
        with self.engine.connect() as db:
            return [
                Event(row.seq, row.job, row.generation, row.at, row.kind, row.text, row.data)
                for row in db.execute(query)
            ]


def claimed(request: Mapping[str, Any]) -> float:
    """USD per hour that a launch whose machine is not known yet may cost: the dearest of those that may win."""
    offers = (request["offer"], *(request.get("any_of") or ()))
    return max(hourly_of(offer) for offer in offers)


def _bills(db: sa.Connection, since: float, simulated: bool) -> dict[tuple[str, int], Bill]:
    p = placements.c
    moments = (p.picked_at, p.sent_at, p.launched_at, p.ended_at)
    query = (
        sa.select(p.job, p.generation, p.request, p.status, *moments, p.hourly, jobs.c.state)
        .join(jobs, jobs.c.id == p.job)
        .where(sa.or_(p.status != "closed", p.cause == UNCLEAR), sa.or_(p.ended_at.is_(None), p.ended_at >= since))
    )
    found: dict[tuple[str, int], Bill] = {}
    for row in db.execute(query):
        offer = row.request["offer"]
        if bool(offer.get("simulated")) is not simulated:
            continue
        hourly = row.hourly or claimed(row.request)
        began = row.launched_at or row.sent_at or row.picked_at
        ended = row.ended_at + STRAY if row.ended_at is not None and row.status == "closed" else row.ended_at
        until = ended or _end_by(row.state, row.generation) or row.request["end_by"]
        most = row.request.get("bid")
        over = row.ended_at is not None
        found[row.job, row.generation] = Bill(hourly, began, until, over=over, most=most, job=row.job)
    return found


def _end_by(state: Mapping[str, Any] | None, generation: int) -> float | None:
    """When a machine must have ended by its job's state, which may have been moved since its launch."""
    for entry in (state or {}).get("retiring", ()):
        if entry["held"]["generation"] == generation:
            end_by: float = entry["held"]["end_by"]
            # The guest of a kept one ends it by then, whoever hears of that.
            return min(end_by, entry["terminate_at"] + SETTLING) if entry["order"] == KEEP else end_by
    live = (state or {}).get("live")
    return live["end_by"] if live and live["generation"] == generation else None


def open_store(state: Path, database: str = "") -> Store:
    """Open the installation's store, creating what is missing.

    Raises ConfigError for a network filesystem, and for a database that cannot be reached; its text never shows the
    password.
    """
    url = database_url(state, database, "jobs.db")
    try:
        return Store(url)
    except (sa.exc.SQLAlchemyError, ImportError, ValueError) as error:
        if not database:
            raise
        if isinstance(error, ImportError):
            raise ConfigError("a Postgres database needs psycopg", fix="pip install 'spotbroker[postgres]'") from error
        where = _without_password(url)
        told = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
        if (password := _password(url)) and password in told:
            told = type(error).__name__
        raise ConfigError(
            f"the database {where} cannot be opened: {told}",
            fix="mend `database` in the configuration, or start that server",
        ) from None


def _password(url: str) -> str:
    try:
        return str(sa.engine.make_url(url).password or "")
    except (sa.exc.SQLAlchemyError, ValueError):
        return url.partition("://")[2].rpartition("@")[0].partition(":")[2]


def _without_password(url: str) -> str:
    """The URL as people may see it."""
    try:
        return sa.engine.make_url(url).render_as_string(hide_password=True).replace("postgresql+psycopg", "postgresql")
    except (sa.exc.SQLAlchemyError, ValueError):
        return "postgresql://" + url.rpartition("@")[2]


def database_url(state: Path, database: str, file: str) -> str:
    """The SQLAlchemy URL of one of our databases: the configured Postgres, else a SQLite file in the state folder.

    SQLite's locks are not safe on network filesystems, so a state folder on one is refused.
    """
    if database:
        scheme, found, rest = database.partition("://")
        if not found or scheme.partition("+")[0] not in ("postgres", "postgresql"):
            raise ConfigError("database must be a postgresql:// URL", fix="leave it out to use a file")
        return f"postgresql+psycopg://{rest}"
    try:
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(
            f"the state folder {state} cannot be made: {error.strerror or error}",
            fix="let SPOTBROKER_STATE name a folder that can be written",
        ) from error
    kind = filesystem(state)
    if kind in NETWORK_FILESYSTEMS:
        raise ConfigError(
            f"{state} lies on a network filesystem ({kind}), where SQLite's locks cannot be trusted",
            fix="set SPOTBROKER_STATE to a local folder, or `database` in the configuration to a Postgres URL",
        )
    return f"sqlite:///{state / file}"


def filesystem(folder: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """The type of the filesystem that holds a folder, as the kernel names it; empty where it cannot be told."""
    try:
        lines = mounts.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    target = str(folder.resolve())
    for line in lines:
        fields = line.split()
        if len(fields) < 3:
            continue
        point = fields[1].encode().decode("unicode_escape")
        inside = point == "/" or target == point or target.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind


def made(engine: sa.Engine, tables: Sequence[sa.Table]) -> None:
    """Create the tables that are missing."""
    # Two first starts at once may both create them; the loser finds them made and goes on.
    for attempt in range(5):
        try:
            metadata.create_all(engine, tables)
            return
        except (sa.exc.OperationalError, sa.exc.ProgrammingError, sa.exc.IntegrityError):
            if attempt == 4:
                raise
            time.sleep(0.2 * (attempt + 1))


def insert_into(engine: sa.Engine, table: sa.Table) -> Any:
    if engine.dialect.name == "sqlite":
        from sqlalchemy.dialects.sqlite import insert as sqlite_insert

        return sqlite_insert(table)
    from sqlalchemy.dialects.postgresql import insert as postgres_insert

    return postgres_insert(table)


def _sqlite_settings(connection: Any, _record: Any) -> None:
    # Autocommit hands BEGIN to `_sqlite_begin`; WAL with synchronous FULL keeps an intent through a power cut.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA busy_timeout=30000")
    cursor.close()


def _sqlite_begin(connection: Any) -> None:
    # A deferred transaction that reads first and writes later fails with "locked" instead of waiting.
    connection.exec_driver_sql("BEGIN IMMEDIATE")
