"""Where one job stands: the whole of what its phases hand on to each other, as plain JSON-able data.

The engine records one `JobState` per finished phase, so a new broker version must read what an older one wrote:
fields are only ever added, with defaults, and `VERSION` counts what could not be done that way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, TypeVar

from broker.errors import ConfigError

VERSION = 1
HANDOVER = 1800.0
"""Seconds that a machine which still runs gives the one it makes room for to be ready."""
SETTLING = 120.0
"""Seconds after the moment when a machine is to be terminated at the latest, until it ends itself."""
KEEP = "keep"
"""The order of a machine that is kept for a look."""
T = TypeVar("T")


class NewerVersion(ConfigError):  # noqa: N818 - the job is left alone, not ended
    """What another version of the broker has written down, and this one cannot read."""


@dataclass(frozen=True, slots=True)
class Held:
    """A placement that has an instance and may be costing money.

    launched_at, end_by, boot_by: seconds since the epoch; hourly: USD per hour; beat: seconds between beats. bid: what
    it may come to cost per hour, None where its price stands. latest: up to when end_by may be moved.
    """

    generation: int
    provider: str
    instance: str
    offer: str
    hourly: float
    launched_at: float
    boot_by: float
    end_by: float
    end_why: str
    beat: float
    where: str = ""
    simulated: bool = False
    bid: float | None = None
    latest: float | None = None


@dataclass(frozen=True, slots=True)
class Retiring:
    """A placement on its way out.

    why: notice, preempted, lost, moved, silence, boot, stop, ended … order: what its guest is told, retire or end;
    keep for one whose program has failed and that stays until terminate_at for a person to look.
    blocking: the next placement waits until this one's end is confirmed. terminate_at: terminate it then at the
    latest. gone_at and cause: the provider's word that it has ended. go: its program is known to have ended.
    """

    held: Held
    why: str
    order: str
    since: float
    blocking: bool = False
    terminate_at: float = 0.0
    terminated_at: float | None = None
    told_at: float | None = None
    gone_at: float | None = None
    cause: str | None = None
    closed: bool = False
    unconfirmed: bool = False

    @property
    def generation(self) -> int:
        return self.held.generation

    @property
    def kept(self) -> bool:
        return self.order == KEEP

    @property
    def end_by(self) -> float:
        """When its guest is told to have ended its machine, seconds since the epoch, should nobody terminate it."""
        return min(self.held.end_by, self.terminate_at + SETTLING)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the job ended. status: succeeded, failed, stopped, limit, unavailable, error."""

    status: str
    exit_code: int
    message: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class JobState:
    """One job between two phases.

    phase: pick, launch, watch, retire, account, done. generation: the last one used. not_before with `then`: wait in
    `watch` until then and go on with that phase. after, start_by: what the next program waits for. tries: how often the
    present generation's launch was ambiguous. strikes: machines in a row that never gave a beat; vain: that met
    their own end without a new snapshot. stuck: how often its
    program was ended for want of a sign of life. lost: the generation
    whose offer the next pick should avoid, and why. places: patterns among which its user wants the next machine;
    dropped once it is had. heading: the offer that a job with a live machine is moving to of
    its own accord; that machine stays live until the other one is had. weigh_at: when the market is looked at again for
    a better machine. spotless: since when there has been no spot machine to be had. run: how often the job has been
    begun or taken up again. parents: generation -> the snapshot it started from. seqs: generation that has left -> the
    newest snapshot heard of from it.
    """

    job: str
    phase: str = "pick"
    version: int = VERSION
    generation: int = 0
    live: Held | None = None
    retiring: tuple[Retiring, ...] = ()
    after: int | None = None
    start_by: float | None = None
    go: bool = False
    moves: int = 0
    launched: int = 0
    memory: Mapping[str, Any] = field(default_factory=dict)
    not_before: float | None = None
    then: str = "pick"
    waits: int = 0
    tries: int = 0
    strikes: int = 0
    vain: int = 0
    stuck: int = 0
    lost: tuple[int, str] | None = None
    errors: int = 0
    restarts: int = 0
    run: int = 1
    places: tuple[str, ...] = ()
    heading: str | None = None
    weigh_at: float | None = None
    spotless: float | None = None
    outcome: Outcome | None = None
    parents: Mapping[int, tuple[int, int] | None] = field(default_factory=dict)
    seqs: Mapping[int, int] = field(default_factory=dict)

    @property
    def held(self) -> tuple[Held, ...]:
        """The placements that have an instance."""
        return (*(entry.held for entry in self.retiring), *((self.live,) if self.live is not None else ()))

    def to(self, phase: str, **changes: Any) -> JobState:
        return replace(self, phase=phase, **changes)

    def again(self) -> JobState:
        """Where a job that has ended is taken up again: its lineage goes on, its counts begin anew."""
        return JobState(self.job, generation=self.generation, parents=self.parents, seqs=self.seqs, run=self.run + 1)

    def to_json(self) -> dict[str, Any]:
        data = asdict(self)
        data["parents"] = {str(n): list(p) if p else None for n, p in self.parents.items()}
        data["seqs"] = {str(n): seq for n, seq in self.seqs.items()}
        data["memory"] = dict(self.memory)
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> JobState:
        """What any version up to this one wrote. Raises NewerVersion for what a newer one wrote."""
        values = dict(data)
        if values.get("version", 1) > VERSION:
            raise newer(f"version {values['version']} of its state")
        values["live"] = _made(Held, values["live"]) if values.get("live") else None
        values["retiring"] = tuple(
            _made(Retiring, {**entry, "held": _made(Held, entry["held"])}) for entry in values.get("retiring", ())
        )
        values["places"] = tuple(values.get("places", ()))
        values["lost"] = tuple(values["lost"]) if values.get("lost") else None
        values["outcome"] = _made(Outcome, values["outcome"]) if values.get("outcome") else None
        values["parents"] = {int(n): (p[0], p[1]) if p else None for n, p in values.get("parents", {}).items()}
        values["seqs"] = {int(n): int(seq) for n, seq in values.get("seqs", {}).items()}
        return _made(cls, values)


def _made(kind: type[T], values: Mapping[str, Any]) -> T:
    unknown = sorted(values.keys() - {entry.name for entry in fields(kind)})  # type: ignore[arg-type]
    if unknown:
        raise newer(f"{kind.__name__}.{unknown[0]}")
    return kind(**values)


def newer(what: str) -> NewerVersion:
    return NewerVersion(
        f"a newer spotbroker has driven this job, and this one does not know {what}",
        fix="pip install --upgrade spotbroker, then start the broker again",
    )
