"""What a user wants run: `Task` and its parts, plain frozen data.

A Task is made in Python, or read from a task file by `Task.from_yaml` (`broker.taskfile` knows the text). Both ways the
same checks hold, so a Task that exists is a sound one::

    Task(run="python train.py", checkpoint=Checkpoint("ckpt"), resources=(Resources(gpu="A100"),))
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from broker import gpus, labels, quantity, typed
from broker.document import Problem, refuse
from broker.errors import TaskError
from broker.folders import LITERAL, VARIABLE, cache_problems, checkpoint_problem
from broker.guest.mask import sensitive
from broker.keeping import Keep
from broker.mounts import Mount
from broker.notify import Notify
from broker.offer import Market, OfferQuery, Trust
from broker.resources import Resources
from broker.schedule import Schedule

__all__ = ["Checkpoint", "InvalidTaskError", "Keep", "Mount", "Rehearse", "Resources", "Spot", "Task", "Work", "load"]

Spot = Literal["auto", "only", "never"]
SPOT: tuple[Spot, ...] = ("auto", "only", "never")
# What the guest sets for setup and run; a task cannot set these itself.
RESERVED = frozenset(
    f"BROKER_{name}"
    for name in (
        "CHECKPOINT_DIR",
        "CHECKPOINT_EVERY",
        "CHECKPOINT_EVERY_FILE",
        "JOB",
        "NUM_GPUS",
        "GENERATION",
        "RESUMED",
        "PROGRESS",
        "PLACEMENT",
    )
)
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
STEP_EXAMPLE = r"for instance `step: 'step (\d+)'`"
# An env that is hidden for its name alone, such as TOKENIZERS_PARALLELISM=false, needs no trust.
SHORTEST_SECRET = 8


MOST_HOURS = 1e6
"""A hundred years and some."""
MOST_SPEED = 1000.0
"""Times as fast, or as slow, as one card may be as another."""


def _between(name: str, value: float | None, unit: str, most: float, least: float = 0.0) -> Iterator[Problem]:
    """That a number is above zero, at least `least` and at most `most`; None is none."""
    if value is None or (value > 0 and least <= value <= most):
        return
    limit = "above zero" if not value > 0 else f"at most {most:,.0f}" if value > most else f"at least {least:g}"
    yield Problem(name, f"must be {limit}{unit}, not {value}")


class InvalidTaskError(TaskError):
    """A Task made of wrong values. `problems` holds each of them."""

    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where the program saves. path: relative to the workdir, or `~/...`. every: least seconds between two
    snapshots, None for each save as it appears.

    keep: how many snapshots the home keeps. complete: a glob inside a checkpoint's folder that exists once it is whole,
    such as `DONE`.
    """

    path: str
    every: float | None = None
    keep: int = 3
    complete: str | None = None

    def problems(self) -> Iterator[Problem]:
        path = PurePosixPath(self.path)
        if not self.path.strip() or "\0" in self.path or path.parts in ((), ("/",)) or ".." in path.parts:
            yield Problem("checkpoint.path", f"must be a folder inside the workdir, ~/… or /…, not {self.path!r}")
        elif self.path.startswith("~") and not (self.path.startswith("~/") and len(path.parts) > 1):
            yield Problem("checkpoint.path", f"must name a folder below ~/, not {self.path!r}")
        elif (wrong := checkpoint_problem(self.path)) is not None:
            yield Problem("checkpoint.path", *wrong)
        if self.every is not None and not 0 < self.every < math.inf:
            yield Problem("checkpoint.every", f"must be above zero seconds, not {self.every}")
        if self.keep < 1:
            yield Problem("checkpoint.keep", f"must be at least 1, not {self.keep}")
        if self.complete is not None and not _inside(self.complete):
            yield Problem("checkpoint.complete", f"must be a name or pattern such as DONE, not {self.complete!r}")


@dataclass(frozen=True, slots=True)
class Work:
    """How much there is to do. hours: of one machine with the card `on`; steps: as `progress` counts them.

    download: GiB that each machine fetches; upload: GiB that leave, snapshots not counted.
    """

    hours: float | None = None
    on: str | None = None
    steps: int | None = None
    download: float | None = None
    upload: float | None = None

    def problems(self) -> Iterator[Problem]:
        for name, gib in (("download", self.download), ("upload", self.upload)):
            if gib is not None and not 0 <= gib <= quantity.MOST:
                yield Problem(f"work.{name}", f"must be zero or more GiB, not {gib}")
        if self.hours is None and self.steps is None:
            yield Problem("work", "needs hours or steps", "for instance `work: {hours: 6, on: A100}`")
        yield from _between("work.hours", self.hours, " hours", MOST_HOURS, 1 / quantity.MOST)
        if self.steps is not None and self.steps < 1:
            yield Problem("work.steps", f"must be at least 1, not {self.steps}")


@dataclass(frozen=True, slots=True)
class Rehearse:
    """How a rehearsal judges. deterministic: the same seed gives the same bytes in the outputs named by `compare`.

    envs: set on top of the task's own while rehearsing, to make it shorter for instance. resources: in the place of the
    task's own then; empty: these. step: a regular expression that finds the step in a line of the log, as its group
    `step`, its only or its first one.
    """

    deterministic: bool = False
    compare: tuple[str, ...] = ()
    envs: Mapping[str, str] = field(default_factory=dict, repr=False)
    resources: tuple[Resources, ...] = ()
    step: str = ""

    def problems(self) -> Iterator[Problem]:
        for wish in self.resources:
            for problem in wish.problems():
                yield problem._replace(field=f"rehearse.{problem.field}")
        try:
            if self.step and not re.compile(self.step).groups:
                yield Problem(
                    "rehearse.step",
                    f"finds no number: {self.step!r} has no group",
                    r"for instance `step: 'step (\d+)'`",
                )
        except re.error as error:
            yield Problem("rehearse.step", f"is no regular expression: {error}", STEP_EXAMPLE)
        for path in self.compare:
            if not _inside(path):
                yield Problem("rehearse.compare", f"must be a path inside the workdir, not {path!r}")
        if self.deterministic and not self.compare:
            yield Problem(
                "rehearse.compare", "deterministic needs the outputs to compare", "for instance `compare: [model.npz]`"
            )
        yield from _environment_problems("rehearse.envs", self.envs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One thing to run until it has finished, on whatever machine is cheapest.

    run, setup: shell scripts; their folder is the workdir's copy. envs, secrets: strings, handed over byte for
    byte. trust: secret -> the least trusted kind of host that may read it; `datacenter` for those not named here.
    resources: alternatives, any of which will do. cache: folders that setup downloads to, kept from machine to machine
    where that pays. outputs: globs relative to the workdir. spot: `auto` takes spot
    where it pays and on-demand where not; `only`, `never`. max_price: USD per hour of the whole machine, disk
    included. max_hours: of one machine. max_moves: from machine to machine. max_restarts_on_errors: of a program
    that failed, counted apart; after recover_on_exit_codes it is started again uncounted. stuck: seconds without a
    sign of life after which it is moved once, then ended. keep_on_failure: how long the machine of a program that
    failed for good stays for a person to look. ordered: the first of the resources that can be had wins,
    whatever the prices. file_mounts: what is brought along besides the workdir. labels: tags of the machines.
    deadline as typed, budget in USD. schedule: when it runs again and again, once `broker schedule add` was told of
    it. notify: whom it tells how it goes. home: URL of the store, empty for the configured one. source: the file it was
    read from. warnings: what its reader should tell.

    Raises InvalidTaskError, which is a TaskError, for wrong values, with all of them named.
    """

    run: str
    name: str = ""
    setup: str = ""
    workdir: Path | None = None
    envs: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    trust: Mapping[str, Trust] = field(default_factory=dict)
    resources: tuple[Resources, ...] = (Resources(),)
    checkpoint: Checkpoint | None = None
    cache: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    work: Work | None = None
    spot: Spot = "auto"
    max_price: float | None = None
    max_hours: float = 72.0
    max_moves: int = 50
    max_restarts_on_errors: int = 0
    recover_on_exit_codes: tuple[int, ...] = ()
    stuck: float | None = None
    keep_on_failure: Keep | None = None
    ordered: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    file_mounts: tuple[Mount, ...] = ()
    deadline: str = ""
    budget: float | None = None
    speed: Mapping[str, float] = field(default_factory=dict)
    schedule: Schedule | None = None
    notify: Notify | None = None
    home: str = field(default="", repr=False)
    rehearse: Rehearse | None = None
    source: Path | None = None
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Brings what may be written in several ways into one form, then checks."""
        problems = [*self._one_form()]
        if not problems:
            problems.extend(self._named_cards())
            problems.extend(self._named_trust())
            problems.extend(self._problems())
        if problems:
            try:
                refuse(problems, kind=InvalidTaskError)
            except InvalidTaskError as error:
                error.problems = tuple(problems)
                raise

    def _one_form(self) -> Iterator[Problem]:
        """One value becomes a list of one, None nothing, any path a Path; a problem for each value of another type."""

        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        for name in ("resources", "cache", "outputs", "recover_on_exit_codes", "file_mounts"):
            value = getattr(self, name)
            alone = isinstance(value, str | int | Mount | Resources)
            put(name, (value,) if alone else tuple(value) if isinstance(value, list | tuple | set) else value or ())
        for name in ("workdir", "source"):
            if isinstance(value := getattr(self, name), str | os.PathLike):
                put(name, Path(value).expanduser().absolute())
        for name in ("envs", "secrets", "trust", "labels", "speed"):
            try:
                put(name, dict(getattr(self, name) or {}))
            except (TypeError, ValueError):
                yield Problem(name, "must be a map of names and values")
        for name in ("setup", "deadline", "home"):
            put(name, "" if getattr(self, name) is None else getattr(self, name))
        put("name", self.name or (self.workdir.name if isinstance(self.workdir, Path) else "") or "task")
        yield from typed.problems(self, skip=("envs", "secrets", "trust", "labels"))

    def _named_cards(self) -> Iterator[Problem]:
        """Gives every card its canonical name; a problem for each that nobody knows."""
        alone = any(path.startswith("/") for path in self.paths)
        try:
            object.__setattr__(self, "resources", tuple(replace(w.named(), alone=alone) for w in self.resources))
        except ValueError as error:
            yield Problem("resources.accelerators", str(error))
        try:
            if self.rehearse is not None:
                named = tuple(wish.named() for wish in self.rehearse.resources)
                object.__setattr__(self, "rehearse", replace(self.rehearse, resources=named))
        except ValueError as error:
            yield Problem("rehearse.resources.accelerators", str(error))
        try:
            speed = {gpus.canonical(card): value for card, value in self.speed.items()}
            if len(speed) < len(self.speed):
                yield Problem("speed", f"names a card twice: {', '.join(self.speed)} are {', '.join(speed)}")
            object.__setattr__(self, "speed", speed)
        except ValueError as error:
            yield Problem("speed", str(error))
        try:
            if self.work is not None and self.work.on is not None:
                object.__setattr__(self, "work", replace(self.work, on=gpus.canonical(self.work.on)))
        except ValueError as error:
            yield Problem("work.on", str(error))

    def _named_trust(self) -> Iterator[Problem]:
        """Gives every kind of host its type; a problem for each that there is not, and for a secret that is none."""
        kinds = ", ".join(Trust)
        for name, kind in dict(self.trust).items():
            if kind not in list(Trust):
                yield Problem(f"secrets.{name}.trust", f"must be one of {kinds}, not {kind!r}")
            elif name not in self.secrets:
                yield Problem(f"secrets.{name}", "has a trust, and is no secret of this task", "add it to secrets")
            else:
                object.__setattr__(self, "trust", {**self.trust, name: Trust(kind)})

    def _problems(self) -> Iterator[Problem]:
        if not self.run.strip():
            yield Problem("run", "is missing: nothing to run", "add `run: python train.py` or the like")
        if not self.name.isprintable() or len(self.name) > 100 or "/" in self.name:
            yield Problem("name", "must be one printable line of at most 100 characters, without /")
        for name, script in (("run", self.run), ("setup", self.setup)):
            if "\0" in script:
                yield Problem(name, "must not contain a NUL character")
        yield from _environment_problems("envs", self.envs)
        yield from _environment_problems("secrets", self.secrets)
        for name in self.envs.keys() & self.secrets.keys():
            yield Problem(f"envs.{name}", "is among secrets too", "keep it in secrets only")
        if not self.resources:
            yield Problem("resources", "at least one alternative is needed")
        parts = (self.checkpoint, self.work, self.rehearse, self.schedule, self.notify, self.keep_on_failure)
        for part in (*self.resources, *parts):
            if part is not None:
                yield from part.problems()
        yield from cache_problems(self.cache, self.checkpoint.path if self.checkpoint is not None else None)
        for pattern in self.outputs:
            if not _inside(pattern):
                yield Problem("outputs", f"must be a path or glob inside the workdir, not {pattern!r}")
            elif (found := VARIABLE.search(pattern)) is not None:
                yield Problem("outputs", f"${found[1]} in {pattern!r} is filled in only as ${{NAME}} of envs", LITERAL)
        yield from labels.problems(self.labels)
        yield from self._mount_problems()
        yield from self._limit_problems()

    def _mount_problems(self) -> Iterator[Problem]:
        seen: set[str] = set()
        for mount in self.file_mounts:
            yield from mount.problems()
            if mount.target in seen:
                yield Problem(f"file_mounts.{mount.target}", "given twice")
            seen.add(mount.target)
            kept = self.checkpoint is not None and mount.covers(self.checkpoint.path)
            if not mount.source and not kept:
                yield Problem(
                    f"file_mounts.{mount.target}",
                    "has no source: it would be an empty folder, and nothing written there would outlive the machine",
                    f"name it as the checkpoint's folder, `checkpoint: {{path: {mount.target}}}`, or give it a source",
                )

    def _limit_problems(self) -> Iterator[Problem]:
        if self.spot not in SPOT:
            yield Problem("spot", f"must be auto, only or never, not {self.spot!r}")
        elif self.spot != "never" and self.checkpoint is None:
            yield Problem(
                "checkpoint.path",
                "is missing: a spot machine may be taken back at any time, and all work since its start would be lost",
                "name the folder the program saves to, as `checkpoint: {path: checkpoints}`, or set `spot: never`",
            )
        for card, value in self.speed.items():
            yield from _between(f"speed.{card}", value, "", MOST_SPEED, 1 / MOST_SPEED)
        yield from _between("budget", self.budget, " USD", quantity.MOST)
        try:
            if self.deadline:
                quantity.deadline(self.deadline)
        except ValueError as error:
            yield Problem("deadline", str(error))
        yield from self._count_problems()

    def _count_problems(self) -> Iterator[Problem]:
        if not all(0 <= code <= 255 for code in self.recover_on_exit_codes):
            yield Problem("recover_on_exit_codes", "must be exit codes from 0 to 255")
        yield from _between("max_price", self.max_price, " USD per hour", quantity.MOST)
        yield from _between("max_hours", self.max_hours, " hours", MOST_HOURS)
        if self.stuck is not None and not 0 < self.stuck < math.inf:
            yield Problem("stuck", f"must be above zero seconds, not {self.stuck}")
        for name in ("max_moves", "max_restarts_on_errors"):
            if getattr(self, name) < 0:
                yield Problem(name, f"must be zero or above, not {getattr(self, name)}")

    @property
    def paths(self) -> tuple[str, ...]:
        """Where it has files on its machine: the checkpoint's folder and what is brought along."""
        checkpoint = (self.checkpoint.path,) if self.checkpoint is not None else ()
        return (*checkpoint, *(mount.target for mount in self.file_mounts))

    @property
    def markets(self) -> tuple[Market, ...]:
        """The markets this task may rent from."""
        return {"only": (Market.SPOT,), "never": (Market.ON_DEMAND,)}.get(self.spot, (Market.SPOT, Market.ON_DEMAND))

    @property
    def slug(self) -> str:
        """The name as object stores and every cloud's tags can hold it: a-z, 0-9 and `-`, at most 40 characters."""
        return slug_of(self.name)

    @property
    def queries(self) -> tuple[OfferQuery, ...]:
        """What providers are asked: one query per alternative."""
        return tuple(wish.query(self.markets) for wish in self.resources)

    @property
    def hidden(self) -> tuple[str, ...]:
        """Values never shown to people: all secrets, and envs that count as such."""
        envs = {**self.envs, **(self.rehearse.envs if self.rehearse else {})}
        values = [*self.secrets.values(), *(value for name, value in envs.items() if sensitive(name, value))]
        return tuple(sorted({value for value in values if value}))

    def with_hidden_sealed(self) -> Task:
        """The same task with the envs that people never see among its secrets, so that they are kept as secrets are.

        Of `rehearse.envs`, which only a rehearsal sets, and among envs, it keeps those that people may see.
        """
        if self.rehearse is not None and (shown := _shown(self.rehearse.envs)) != self.rehearse.envs:
            return replace(self, rehearse=replace(self.rehearse, envs=shown)).with_hidden_sealed()
        moved = {name: value for name, value in self.envs.items() if sensitive(name, value)}
        if not moved:
            return self
        envs = _shown(self.envs)
        plain = {name: Trust.COMMUNITY for name, value in moved.items() if len(value) < SHORTEST_SECRET}
        return replace(self, envs=envs, secrets={**moved, **self.secrets}, trust={**plain, **self.trust})

    @property
    def readers(self) -> dict[str, Trust]:
        """Of each secret, envs that people never see among them, the least trusted kind of host that may read it."""
        sealed = self.with_hidden_sealed()
        return {name: sealed.trust.get(name, Trust.DATACENTER) for name in sorted(sealed.secrets)}

    def with_values(self, envs: Mapping[str, str] | None = None, secrets: Mapping[str, str] | None = None) -> Task:
        """The same task with some envs and secrets set over its own."""
        if not envs and not secrets:
            return self
        return replace(self, envs={**self.envs, **(envs or {})}, secrets={**self.secrets, **(secrets or {})})

    def within(self, places: Sequence[str]) -> Task:
        """The same task with other places in its `infra`; without any, as it is."""
        named = (places,) if isinstance(places, str) else tuple(places)
        found = tuple(replace(wish, infra=named) for wish in self.resources)
        return replace(self, resources=found) if places else self

    @classmethod
    def from_yaml(
        cls,
        path: str | Path,
        *,
        envs: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Task:
        """Read a task file; see `broker.taskfile.read`."""
        from broker import taskfile

        return taskfile.read(Path(path), envs=envs, secrets=secrets, environ=environ)

    def to_yaml(self) -> str:
        """The task as a task file; secrets are written without their values, to be taken from the environment."""
        from broker.taskwriter import write

        return write(self)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON for the store and the guest. Of secrets only the names."""
        from dataclasses import asdict

        data = asdict(self)
        data["secrets"] = sorted(self.secrets)
        data["notify"] = self.notify.shown() if self.notify is not None else None
        data["workdir"] = str(self.workdir) if self.workdir else None
        data["source"] = str(self.source) if self.source else None
        plain: dict[str, Any] = json.loads(json.dumps(data))
        return plain

    @classmethod
    def from_json(cls, data: Mapping[str, Any], secrets: Mapping[str, str] | None = None) -> Task:
        """What `to_json` gave. secrets: their values; a name without one gets the empty string.

        Raises NewerVersion for what another version gave and this one does not know.
        """
        try:
            return cls._read(data, secrets)
        except TypeError as error:  # a field's name; what the fields hold was looked at when the task was made
            from broker.state import newer

            raise newer(f"what its task says ({error})") from error

    @classmethod
    def _read(cls, data: Mapping[str, Any], secrets: Mapping[str, str] | None) -> Task:
        values = dict(data)
        rehearse, again = values["rehearse"], values.get("schedule")
        return cls(
            **{
                **values,
                "secrets": {name: (secrets or {}).get(name, "") for name in values["secrets"]},
                "resources": _resources(values["resources"]),
                "checkpoint": Checkpoint(**values["checkpoint"]) if values["checkpoint"] else None,
                "work": Work(**values["work"]) if values["work"] else None,
                "notify": _notify(values.get("notify")),
                "keep_on_failure": Keep(**values["keep_on_failure"]) if values.get("keep_on_failure") else None,
                "schedule": Schedule.from_json(again) if isinstance(again, dict) else None,
                "rehearse": Rehearse(
                    **{
                        **rehearse,
                        "compare": tuple(rehearse["compare"]),
                        "resources": _resources(rehearse.get("resources", ())),
                    }
                )
                if rehearse
                else None,
                "warnings": tuple(values["warnings"]),
                "recover_on_exit_codes": tuple(values.get("recover_on_exit_codes", ())),
                "file_mounts": tuple(Mount(**mount) for mount in values.get("file_mounts", ())),
            }
        )


def load(
    task: Task | str | Path,
    *,
    envs: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Task:
    """A Task from a Task, a task file, a folder that holds `task.yaml`, or the name of a bundled task.

    envs and secrets are set over the task's own and fill what it leaves open. environ: where a secret without a value
    is taken from, the process's own environment by default. A folder here comes before a bundled task of the same name.
    Raises TaskError.
    """
    if isinstance(task, Task):
        return task.with_values(envs, secrets)
    from broker import bundled

    if not isinstance(task, str | os.PathLike):
        raise TaskError(f"a task is a Task, a task file or the name of a bundled one, not {type(task).__name__}")
    path = Path(task).expanduser()
    if (path / "task.yaml").is_file():
        path = path / "task.yaml"
    elif not path.is_file() and str(task) in bundled.names():
        path = bundled.folder(str(task)) / "task.yaml"
    elif not path.is_file():
        near = difflib.get_close_matches(str(task), bundled.names(), n=1)
        if path.is_dir():
            raise TaskError(f"no task.yaml in the folder {path}", file=str(path))
        raise TaskError(
            f"no task file {str(path)!r}" + (f"; did you mean {near[0]}?" if near else ""),
            fix=f"give a task file, or one of the bundled tasks: {', '.join(bundled.names())}",
        )
    return Task.from_yaml(path, envs=envs, secrets=secrets, environ=environ)


def _notify(data: Mapping[str, Any] | None) -> Notify | None:
    """What `to_json` wrote of it, which says only where its URLs lead."""
    return Notify(**{**data, "on": tuple(data["on"]), "apprise": tuple(data["apprise"])}) if data else None


def slug_of(name: str) -> str:
    """A name in a-z, 0-9 and `-`, at most 40 characters."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:40].strip("-") or "task"


def _resources(data: Iterable[Mapping[str, Any]]) -> tuple[Resources, ...]:
    """Alternatives as `to_json` wrote them."""
    return tuple(Resources(**{**wish, "infra": tuple(wish["infra"])}) for wish in data)


def _shown(envs: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in envs.items() if not sensitive(name, value)}


def _inside(pattern: str) -> bool:
    """Is this a relative path or glob that stays inside its folder?"""
    path = PurePosixPath(pattern)
    return bool(path.parts) and "\0" not in pattern and ".." not in path.parts and not pattern.startswith(("/", "~"))


def _environment_problems(where: str, values: Mapping[str, str]) -> Iterator[Problem]:
    """Never shows a value: it may be a secret."""
    for name, value in values.items():
        place = f"{where}.{name}"
        if not isinstance(name, str) or not NAME.fullmatch(name):
            yield Problem(where, f"{name!r} cannot be the name of an environment variable: letters, digits, _")
        elif name in RESERVED:
            yield Problem(place, "is set by the broker itself", "choose another name")
        elif not isinstance(value, str):
            yield Problem(place, f"must be text, not {type(value).__name__}")
        elif "\0" in value:
            yield Problem(place, "must not contain a NUL character")
        elif not _encodable(value):
            yield Problem(place, "must be text that UTF-8 can express")


def _encodable(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
