"""What a user wants run: `Task` and its parts, plain frozen data.

A Task is made in Python, or read from a task file by `Task.from_yaml` (`broker.taskfile` knows the text). Both ways the
same checks hold, so a Task that exists is a sound one::

    Task(run="python train.py", checkpoint=Checkpoint("ckpt"), resources=(Resources(gpu="A100"),))
"""

from __future__ import annotations

import difflib
import json
import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from broker import gpus
from broker.document import Problem, refuse
from broker.errors import TaskError
from broker.offer import Market, OfferQuery

Spot = Literal["auto", "only", "never"]
SPOT: tuple[Spot, ...] = ("auto", "only", "never")
# What the guest sets for setup and run; a task cannot set these itself.
RESERVED = frozenset(
    f"BROKER_{name}" for name in ("CHECKPOINT_DIR", "JOB", "GENERATION", "RESUMED", "PROGRESS", "PLACEMENT")
)
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_HIDDEN = re.compile("KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)


class InvalidTaskError(TaskError):
    """A Task made of wrong values. `problems` holds each of them."""

    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Resources:
    """What a machine must have; sizes are at least. gpu: a card's canonical name, gpu_count of them.

    memory and disk: GiB. infra: patterns `provider[/region[/zone]]` with `*`, any of which will do. image: a container
    image.
    """

    gpu: str | None = None
    gpu_count: int = 0
    cpus: float = 0.0
    memory: float = 0.0
    disk: float = 20.0
    infra: tuple[str, ...] = ()
    image: str | None = None

    def query(self, markets: Sequence[Market] = (Market.SPOT, Market.ON_DEMAND)) -> OfferQuery:
        """The same wish, as providers are asked it."""
        return OfferQuery(
            gpu=self.gpu,
            gpu_count=self.gpu_count,
            cpus=self.cpus,
            memory=self.memory,
            disk=self.disk,
            infra=self.infra,
            image=self.image,
            markets=tuple(markets),
        )

    def named(self) -> Resources:
        """The same with the card's canonical name, one card where none were counted. Raises ValueError."""
        if self.gpu is None:
            return self
        return replace(self, gpu=gpus.canonical(self.gpu), gpu_count=self.gpu_count or 1)

    def problems(self) -> Iterator[Problem]:
        if self.gpu is None and self.gpu_count:
            yield Problem("resources.accelerators", f"{self.gpu_count} GPUs of no name")
        if self.gpu_count < 0:
            yield Problem("resources.accelerators", "the number of GPUs must be above zero")
        for name, value in (("cpus", self.cpus), ("memory", self.memory)):
            if not 0 <= value < math.inf:
                yield Problem(f"resources.{name}", f"must be zero (any) or above, not {value}")
        if not 0 < self.disk < math.inf:
            yield Problem("resources.disk_size", f"must be above zero, not {self.disk}")
        for pattern in self.infra:
            parts = pattern.split("/")
            if not 1 <= len(parts) <= 3 or not all(part and part == part.strip() for part in parts):
                yield Problem("resources.infra", f"must be provider[/region[/zone]] with * for any, not {pattern!r}")


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
        if not self.path.strip() or "\0" in self.path or not path.parts or ".." in path.parts:
            yield Problem("checkpoint.path", f"must be a folder inside the workdir, or ~/…, not {self.path!r}")
        elif self.path.startswith("~") and not (self.path.startswith("~/") and len(path.parts) > 1):
            yield Problem("checkpoint.path", f"must name a folder below ~/, not {self.path!r}")
        if self.every is not None and not 0 < self.every < math.inf:
            yield Problem("checkpoint.every", f"must be above zero seconds, not {self.every}")
        if self.keep < 1:
            yield Problem("checkpoint.keep", f"must be at least 1, not {self.keep}")
        if self.complete is not None and not _inside(self.complete):
            yield Problem("checkpoint.complete", f"must be a name or pattern such as DONE, not {self.complete!r}")


@dataclass(frozen=True, slots=True)
class Work:
    """How much there is to do. hours: of one machine with the card `on`; steps: as `progress` counts them."""

    hours: float | None = None
    on: str | None = None
    steps: int | None = None

    def problems(self) -> Iterator[Problem]:
        if self.hours is None and self.steps is None:
            yield Problem("work", "needs hours or steps", "for instance `work: {hours: 6, on: A100}`")
        if self.hours is not None and not 0 < self.hours < math.inf:
            yield Problem("work.hours", f"must be above zero, not {self.hours}")
        if self.steps is not None and self.steps < 1:
            yield Problem("work.steps", f"must be at least 1, not {self.steps}")


@dataclass(frozen=True, slots=True)
class Rehearse:
    """How a rehearsal judges. deterministic: the same seed gives the same bytes in the outputs named by `compare`.

    envs: set on top of the task's own while rehearsing, to make it shorter for instance.
    """

    deterministic: bool = False
    compare: tuple[str, ...] = ()
    envs: Mapping[str, str] = field(default_factory=dict, repr=False)

    def problems(self) -> Iterator[Problem]:
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

    run, setup: shell scripts; their folder is the workdir's copy. envs, secrets: strings, handed over byte for byte.
    resources: alternatives, any of which will do. outputs: globs relative to the workdir.
    spot: `auto` takes spot where it pays and on-demand where not; `only`, `never`.
    max_price: USD per hour of the whole machine, disk included. max_hours: of one machine. max_moves: from machine to
    machine. max_restarts_on_errors: of a program that failed, counted apart. home: URL of the store, empty for the
    configured one. source: the file it was read from. warnings: what its reader should tell the user.

    Raises InvalidTaskError, which is a TaskError, for wrong values, with all of them named.
    """

    run: str
    name: str = ""
    setup: str = ""
    workdir: Path | None = None
    envs: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    resources: tuple[Resources, ...] = (Resources(),)
    checkpoint: Checkpoint | None = None
    outputs: tuple[str, ...] = ()
    work: Work | None = None
    spot: Spot = "auto"
    max_price: float | None = None
    max_hours: float = 72.0
    max_moves: int = 50
    max_restarts_on_errors: int = 0
    home: str = field(default="", repr=False)
    rehearse: Rehearse | None = None
    source: Path | None = None
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Brings what may be written in several ways into one form, then checks."""
        problems: list[Problem] = []

        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        put("resources", (self.resources,) if isinstance(self.resources, Resources) else tuple(self.resources))
        for name in ("workdir", "source"):
            if (value := getattr(self, name)) is not None:
                put(name, Path(value).expanduser().absolute())
        for name in ("envs", "secrets"):
            put(name, dict(getattr(self, name)))
        put("outputs", tuple(self.outputs))
        put("name", self.name or (self.workdir.name if self.workdir else "") or "task")
        try:
            put("resources", tuple(wish.named() for wish in self.resources))
        except ValueError as error:
            problems.append(Problem("resources.accelerators", str(error)))
        try:
            if self.work is not None and self.work.on is not None:
                put("work", replace(self.work, on=gpus.canonical(self.work.on)))
        except ValueError as error:
            problems.append(Problem("work.on", str(error)))
        problems.extend(self._problems())
        if problems:
            try:
                refuse(problems, kind=InvalidTaskError)
            except InvalidTaskError as error:
                error.problems = tuple(problems)
                raise

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
        for part in (*self.resources, self.checkpoint, self.work, self.rehearse):
            if part is not None:
                yield from part.problems()
        for pattern in self.outputs:
            if not _inside(pattern):
                yield Problem("outputs", f"must be a path or glob inside the workdir, not {pattern!r}")
        yield from self._limit_problems()

    def _limit_problems(self) -> Iterator[Problem]:
        if self.spot not in SPOT:
            yield Problem("spot", f"must be auto, only or never, not {self.spot!r}")
        elif self.spot != "never" and self.checkpoint is None:
            yield Problem(
                "checkpoint.path",
                "is missing: a spot machine may be taken back at any time, and all work since its start would be lost",
                "name the folder the program saves to, as `checkpoint: {path: checkpoints}`, or set `spot: never`",
            )
        if self.max_price is not None and not 0 < self.max_price < math.inf:
            yield Problem("max_price", f"must be above zero USD per hour, not {self.max_price}")
        if not 0 < self.max_hours < math.inf:
            yield Problem("max_hours", f"must be above zero hours, not {self.max_hours}")
        for name in ("max_moves", "max_restarts_on_errors"):
            if getattr(self, name) < 0:
                yield Problem(name, f"must be zero or above, not {getattr(self, name)}")

    @property
    def markets(self) -> tuple[Market, ...]:
        """The markets this task may rent from."""
        return {"only": (Market.SPOT,), "never": (Market.ON_DEMAND,)}.get(self.spot, (Market.SPOT, Market.ON_DEMAND))

    @property
    def slug(self) -> str:
        """The name as object stores and every cloud's tags can hold it: a-z, 0-9 and `-`, at most 40 characters."""
        plain = unicodedata.normalize("NFKD", self.name).encode("ascii", "ignore").decode().lower()
        return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:40].strip("-") or "task"

    @property
    def queries(self) -> tuple[OfferQuery, ...]:
        """What providers are asked: one query per alternative."""
        return tuple(wish.query(self.markets) for wish in self.resources)

    @property
    def hidden(self) -> tuple[str, ...]:
        """Values never shown to people: all secrets, and envs whose names contain KEY, TOKEN, SECRET or PASSWORD."""
        envs = {**self.envs, **(self.rehearse.envs if self.rehearse else {})}
        values = [*self.secrets.values(), *(value for name, value in envs.items() if _HIDDEN.search(name))]
        return tuple(sorted({value for value in values if value}))

    def with_hidden_sealed(self) -> Task:
        """The same task with the envs that people never see among its secrets, so that they are kept as secrets are."""
        moved = {name: value for name, value in self.envs.items() if _HIDDEN.search(name)}
        if not moved:
            return self
        envs = {name: value for name, value in self.envs.items() if name not in moved}
        return replace(self, envs=envs, secrets={**moved, **self.secrets})

    def with_values(self, envs: Mapping[str, str] | None = None, secrets: Mapping[str, str] | None = None) -> Task:
        """The same task with some envs and secrets set over its own."""
        if not envs and not secrets:
            return self
        return replace(self, envs={**self.envs, **(envs or {})}, secrets={**self.secrets, **(secrets or {})})

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
        from broker import taskfile

        return taskfile.write(self)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON for the store and the guest. Of secrets only the names."""
        from dataclasses import asdict

        data = asdict(self)
        data["secrets"] = sorted(self.secrets)
        data["workdir"] = str(self.workdir) if self.workdir else None
        data["source"] = str(self.source) if self.source else None
        plain: dict[str, Any] = json.loads(json.dumps(data))
        return plain

    @classmethod
    def from_json(cls, data: Mapping[str, Any], secrets: Mapping[str, str] | None = None) -> Task:
        """What `to_json` gave. secrets: their values; a name without one gets the empty string."""
        values = dict(data)
        rehearse = values["rehearse"]
        return cls(
            **{
                **values,
                "secrets": {name: (secrets or {}).get(name, "") for name in values["secrets"]},
                "resources": tuple(Resources(**{**r, "infra": tuple(r["infra"])}) for r in values["resources"]),
                "checkpoint": Checkpoint(**values["checkpoint"]) if values["checkpoint"] else None,
                "work": Work(**values["work"]) if values["work"] else None,
                "rehearse": Rehearse(**{**rehearse, "compare": tuple(rehearse["compare"])}) if rehearse else None,
                "warnings": tuple(values["warnings"]),
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
