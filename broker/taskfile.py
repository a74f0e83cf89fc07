"""A task file's text: read into a Task, with the place of everything that is wrong.

Three steps: `broker.document` keeps every scalar as typed, with its place; the pydantic models of `broker.fields` know
the fields and give each value its type; `Task` itself checks what the values mean. What is wrong in a later step is
reported together with what was wrong in an earlier one: a wrong value is set aside, the rest is looked at.

`use_spot` is SkyPilot's: true prefers spot and falls back to on-demand, as `spot: auto` does; false is `spot: never`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from broker import alternatives
from broker.coverage import warnings_of
from broker.document import Problem, Value, refuse
from broker.document import read as read_document
from broker.errors import TaskError
from broker.fields import (
    CheckpointFields,
    KeepFields,
    MountFields,
    NotifyFields,
    RehearseFields,
    ScheduleFields,
    TaskFields,
    WorkdirFields,
    explained,
)
from broker.filling import fill
from broker.guest.mask import sensitive
from broker.keeping import Keep
from broker.mounts import Mount
from broker.notify import USUAL, Notify
from broker.offer import Trust
from broker.schedule import Schedule, Window
from broker.task import NAME, Checkpoint, InvalidTaskError, Rehearse, Task, Work

LIMIT = 1_000_000  # bytes: what is bigger is no task file
PLAIN = re.compile(r"[\w./~-]+")  # text that YAML needs no quotes for
NAMES_FILE = re.compile(r"(?<![\w./~$-])(?:\./)?[\w-][\w./-]*\.\w+")  # relative, with a suffix
MEANT = re.compile(r"write `(\w+)`")
PROGRAMS = {".py": "python ", ".sh": "bash ", ".bash": "bash ", ".R": "Rscript ", ".jl": "julia ", ".ipynb": "jupyter "}


def read(
    path: Path,
    *,
    envs: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Task:
    """The Task in a file. `workdir` is relative to the file's folder.

    envs and secrets are set over the file's; a secret without a value anywhere is taken from `environ`, the process's
    environment by default. Raises TaskError: the first thing wrong is the error, with file, line, column and field, and
    everything else that is wrong is listed below it.
    """
    if (program := PROGRAMS.get(path.suffix)) is not None:
        raise TaskError(
            "that is a program, not a task file",
            file=str(path),
            fix=f"broker run -- {program}{path}, or name it in the `run` of a task file",
        )
    try:
        with path.open("rb") as file:
            raw = file.read(LIMIT + 1)
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise TaskError("not UTF-8 text", file=str(path), line=line, fix="save the file as UTF-8") from None
    except OSError as error:
        raise TaskError(f"cannot be read: {error.strerror or error}", file=str(path)) from error
    if len(raw) > LIMIT:
        raise TaskError(f"too big for a task file: more than {LIMIT:,} bytes", file=str(path))
    reader = _Reader(text, path)
    reader.environment("envs", envs or {}, None)
    reader.environment("secrets", secrets or {}, os.environ if environ is None else environ)
    reader.environment("rehearse.envs", {}, None)
    reader.fill()
    return reader.task()


def document(path: Path) -> dict[str, Any]:
    """A task file's plain map: text, null, maps and lists. Raises TaskError where it is no map."""
    value, _ = read_document(path.read_text(encoding="utf-8-sig"), str(path))
    plain: dict[str, Any] = value.plain()
    return plain


@contextlib.contextmanager
def placing(task: Task) -> Iterator[None]:
    """Give what is found wrong with a task only later, such as a file that is not there, its place in the task file."""
    try:
        yield
    except TaskError as error:
        if error.line is not None or not error.field or task.source is None or not task.source.is_file():
            raise
        found, _ = read_document(task.source.read_text(encoding="utf-8-sig"), str(task.source))
        message = error.message.removeprefix(f"{error.file}: ")
        told = [line.removeprefix(f"{error.file}: ") for line in message.split("\n")]
        if not told[0].startswith(error.field):
            told[0] = f"{error.field}: {told[0]}"
        line, column = found.place(_steps(error.field))
        raise type(error)(
            "\n".join(told), file=str(task.source), line=line, column=column, field=error.field, fix=error.fix
        ) from error


class _Reader:
    """One file on its way to a Task; collects what is wrong."""

    def __init__(self, text: str, path: Path) -> None:
        self.path = path
        self.document, self.problems = read_document(text, str(path))
        self._take_over()
        self.trust: dict[str, str] = {}
        self.plain = self.document.plain()
        if isinstance(self.plain.get("outputs"), dict):
            del self.plain["outputs"]  # SkyPilot's {URL: GB}

    def _take_over(self) -> None:
        """Bring our fields out of `_metadata: {broker: …}`, where SkyPilot lets them pass, to the top level."""
        top = self.document.data
        metadata = top.get("_metadata") if isinstance(top, dict) else None
        ours = metadata.data.get("broker") if metadata and isinstance(metadata.data, dict) else None
        if ours is None or ours.data is None or not isinstance(top, dict):
            return
        if not isinstance(ours.data, dict):
            self._wrong("_metadata.broker", ours, f"must be a map of fields, not {ours.kind}")
            return
        for name, value in ours.data.items():
            at = Value(*ours.keys[name], None)
            if name in top and not (isinstance(value.data, dict) and isinstance(top[name].data, dict)):
                self._wrong(f"_metadata.broker.{name}", at, "is given at the top level too", "keep one of them")
            elif name in top:
                self._merged(name, value)
            else:
                top[name], self.document.keys[name] = value, ours.keys[name]

    def _merged(self, name: str, ours: Value) -> None:
        """A map such as resources that stands in both places: every field in it may be given in one of them."""
        there = self.document.data[name] if isinstance(self.document.data, dict) else ours
        assert isinstance(there.data, dict)
        assert isinstance(ours.data, dict)
        for key, value in ours.data.items():
            if key in there.data:
                at = Value(*ours.keys[key], None)
                self._wrong(f"_metadata.broker.{name}.{key}", at, f"is given in {name} too", "keep one of them")
            else:
                there.data[key], there.keys[key] = value, ours.keys[key]

    def fill(self) -> None:
        """Fill in `${NAME}` where the broker reads the text."""
        for problem in fill(self.plain, sensitive):
            line, column = self.document.place(_steps(problem.field))
            self.problems.append(problem._replace(line=line, column=column))

    def environment(self, where: str, over: Mapping[str, str], environ: Mapping[str, str] | None) -> None:
        """Bring a map, or a list of NAME=VALUE, with what is set over it, into the plain map of one field."""
        *outer, field = where.split(".")
        holder, value = self.plain, self.document
        for step in (*outer, field):
            holder = holder if step == field else holder.get(step)
            if not isinstance(holder, dict) or not isinstance(value.data, dict):
                return
            value = value.data.get(step, Value(value.line, value.column, None))
        if isinstance(value.data, str) or (value.data is None and not over):
            if value.data is not None:
                self._wrong(where, value, "must be a map of names and values, or a list of NAME=VALUE")
            holder.pop(field, None)
            return
        values = {name: Value(value.line, value.column, text) for name, text in over.items()}
        items = self._items(where, value)
        if where == "secrets":
            items = {name: self._trusted(name, item) for name, item in items.items()}
        holder[field] = {
            name: text
            for name, item in {**items, **values}.items()
            if (text := self._text(where, name, item, environ)) is not None
        }

    def _items(self, where: str, value: Value) -> dict[str, Value]:
        if isinstance(value.data, dict):
            return value.data
        items: dict[str, Value] = {}
        for number, item in enumerate(value.data if isinstance(value.data, list) else (), start=1):
            written = item.data if isinstance(item.data, str) else ""
            name, equals, text = written.removeprefix("secrets:" if where == "secrets" else "").partition("=")
            if not NAME.fullmatch(name):  # not shown: it may be a value that lost its name
                self._wrong(where, item, f"entry {number} must be NAME=VALUE")
            elif name in items:
                self._wrong(f"{where}.{name}", item, "given twice", "keep one of them")
            else:
                items[name] = Value(item.line, item.column, text if equals else None)
        return items

    def _trusted(self, name: str, item: Value) -> Value:
        """A secret's value; where it is written as a map, its `trust` is noted."""
        if not isinstance(item.data, dict):
            return item
        for key, at in item.keys.items():
            if key not in ("value", "trust"):
                self._wrong(f"secrets.{name}.{key}", Value(*at, None), "unknown field", "known here: value, trust")
        kind = item.data.get("trust")
        if kind is not None and kind.data not in list(Trust):
            told = f", not {kind.data!r}" if isinstance(kind.data, str) else ""
            self._wrong(f"secrets.{name}.trust", kind, f"must be one of {', '.join(Trust)}{told}")
        elif kind is not None:
            self.trust[name] = str(kind.data)
        return item.data.get("value", Value(item.line, item.column, None))

    def _text(self, where: str, name: str, item: Value, environ: Mapping[str, str] | None) -> str | None:
        if isinstance(item.data, str):
            return item.data
        place = f"{where}.{name}"
        if item.data is not None:
            self._wrong(place, item, f"must be one value, not {item.kind}")
        elif where == "secrets" and environ is not None:
            if name in environ:
                return environ[name]
            self._wrong(place, item, f"has no value, and the environment has no {name}", f"export {name} before")
        elif where == "envs":
            self._wrong(place, item, f"must be given: --env {name}=…", f"add --env {name}=…, or a value in the file")
        else:
            self._wrong(place, item, "has no value")
        return None

    def _wrong(self, field: str, at: Value, message: str, fix: str = "") -> None:
        self.problems.append(Problem(field, message, fix, at.line, at.column))

    def task(self) -> Task:
        model = self._model()
        try:
            task = self._built(model)
        except InvalidTaskError as error:
            said = self._said_already()
            for problem in error.problems:
                covering = said | self._meant(said) if problem[1].startswith("is missing") else said
                if not any(_overlap(problem.field, field) for field in covering):
                    line, column = self.document.place(_steps(problem.field))
                    self.problems.append(problem._replace(line=line, column=column))
        self._check_workdir(model)
        if self.problems:
            unique = dict.fromkeys(self.problems)
            refuse(sorted(unique, key=lambda problem: (problem.line or 0, problem.column or 0)), str(self.path))
        return task

    def _said_already(self) -> set[str]:
        return {problem.field for problem in self.problems}

    def _meant(self, said: set[str]) -> set[str]:
        """Fields that are not missing: written wrongly, or asked for only because another one is wrong."""
        meant = {found[1] for problem in self.problems if (found := MEANT.fullmatch(problem.fix))}
        return meant | ({"checkpoint"} if {"spot", "resources.use_spot"} & (said | meant) else set())

    def _model(self) -> TaskFields:
        """The file's values with their types. What is wrong is noted and left out until the rest is right."""
        while True:
            try:
                return TaskFields.model_validate(self.plain)
            except ValidationError as error:
                for detail in error.errors(include_url=False, include_input=False):
                    unknown = detail["type"] == "extra_forbidden"
                    line, column = self.document.place(detail["loc"], key=unknown)
                    self.problems.append(Problem(*self._said(detail), line, column))
                    self._leave_out(detail["loc"])

    def _said(self, detail: Any) -> tuple[str, str, str]:
        """What is wrong, with what was written where that helps and can be no secret."""
        field, message, fix = explained(detail)
        value = self.document.at(detail["loc"])
        written = value.data if value is not None and isinstance(value.data, str) else None
        if written is not None and detail["type"] == "literal_error":
            message = f"{message}, not {written!r}"
        elif written is not None and field == "checkpoint":
            message = f"write `checkpoint: {{path: {written if PLAIN.fullmatch(written) else 'FOLDER'}}}`"
        return field, message, fix

    def _leave_out(self, path: tuple[str | int, ...]) -> None:
        holder = self.plain
        for step in path[:-1]:
            if not isinstance(holder, dict | list):
                return
            inner = holder.get(step) if isinstance(holder, dict) else holder[int(step)]
            if isinstance(holder, dict) and not isinstance(inner, dict | list):
                # `infra: 3` is wrong at infra.0, because one value stands for a list of one.
                holder.pop(step, None)
                return
            holder = inner
        if isinstance(holder, dict):
            holder.pop(path[-1], None)
        elif isinstance(holder, list):
            # An empty entry keeps the others' places; an empty text is put where text is wanted.
            index = int(path[-1])
            holder[index] = {} if path[-2] in ("any_of", "ordered") else ""

    def _check_workdir(self, model: TaskFields) -> None:
        given, written = model.workdir, self.document.at(("workdir",))
        if written is not None and written.data is None and written.typed == "~":
            self._at(("workdir",), "workdir", "is empty: YAML reads a bare ~ as nothing", "write `workdir: ~/`")
        elif given is not None and given.path is not None and given.url is not None:
            self._at(("workdir",), "workdir", "names a folder and a repository", "keep one of the two")
        elif given is not None and given.path is None and given.url is None:
            self._at(("workdir",), "workdir", "must be a folder, or a map with the url of a git repository")
        elif given is not None and given.url is not None and sensitive("", given.url):
            fix = "put it into secrets, and clone the repository in setup with it"
            self._at(("workdir", "url"), "workdir.url", "holds a password, which logs and lists would show", fix)
        elif given is not None and given.path is not None and not (folder := self._here(given.path)).is_dir():
            self._at(("workdir",), "workdir", f"no such folder: {folder}")

    def _at(self, path: tuple[str | int, ...], field: str, message: str, fix: str = "") -> None:
        self.problems.append(Problem(field, message, fix, *self.document.place(path)))

    def _here(self, text: str) -> Path:
        return Path(os.path.normpath(self.path.absolute().parent / Path(text).expanduser()))

    def _built(self, model: TaskFields) -> Task:
        found = alternatives.read(model.resources)
        for problem in found.problems:
            self._at(_steps(problem.field), *problem[:3])
        spot = found.spot if not (model.spot == "only" and found.spot == "auto") else "only"
        if (nodes := model.num_nodes) is not None and nodes != 1:
            message = f"{nodes} machines at once are not carried out yet: a job runs on one"
            self._at(("num_nodes",), "num_nodes", message, "write num_nodes: 1, and ask for a machine with more GPUs")
        stem = self.path.absolute().parent.name if self.path.stem == "task" else self.path.stem
        given: dict[str, Any] = {
            "name": model.name or stem,
            "workdir": self._here(model.workdir.path) if model.workdir and model.workdir.path is not None else None,
            "setup": _cloning(model.workdir) + (model.setup or ""),
            "envs": model.envs,
            "secrets": model.secrets,
            "trust": {name: kind for name, kind in self.trust.items() if name in (model.secrets or {})},
            "outputs": tuple(model.outputs) if model.outputs else None,
            "cache": tuple(model.cache) if model.cache else None,
            "resources": found.resources,
            "ordered": found.ordered,
            "file_mounts": self._mounts(model),
            "deadline": model.deadline,
            "budget": model.budget,
            "speed": model.speed,
            "schedule": self._schedule(model.schedule),
            "notify": _notify(model.notify),
            "recover_on_exit_codes": found.codes,
            "labels": found.labels,
            "checkpoint": _checkpoint(model.checkpoint),
            "work": Work(**model.work.model_dump(exclude_none=True)) if model.work else None,
            "spot": spot or model.spot,
            "max_price": self._once(model.max_price, found.max_price, "max_price", "max_hourly_cost"),
            "max_hours": model.max_hours,
            "max_moves": model.max_moves,
            "stuck": model.stuck,
            "keep_on_failure": self._keep(model.keep_on_failure),
            "max_restarts_on_errors": self._once(
                model.max_restarts_on_errors, found.restarts, "max_restarts_on_errors", "job_recovery"
            ),
            "home": model.home,
            "rehearse": self._rehearse(model.rehearse),
        }
        if model.spot and spot not in (None, model.spot):
            message = f"is {model.spot}, but use_spot in resources says otherwise"
            self._at(("spot",), "spot", message, "keep `spot` only")
            given["spot"] = model.spot
        warnings = [*found.warnings, *warnings_of(self.document.plain()), *self._left_behind(model)]
        return Task(
            run=model.run or "",
            source=self.path,
            warnings=tuple(warnings),
            **{name: value for name, value in given.items() if value is not None},
        )

    def _left_behind(self, model: TaskFields) -> Iterator[str]:
        """A file beside the task that its scripts name although no workdir brings it along."""
        if model.workdir is not None:
            return
        folder = self.path.absolute().parent
        for field, script in (("setup", model.setup or ""), ("run", model.run or "")):
            for word in dict.fromkeys(NAMES_FILE.findall(script)):
                if (folder / word).is_file():
                    yield (
                        f"{field} names {word}, which lies beside the task file, but without a workdir no file of "
                        "yours goes along: add `workdir: .`"
                    )
                    break

    def _once(self, ours: Any, theirs: Any, name: str, word: str) -> Any:
        """A value that two fields may give, if they agree."""
        if ours is not None and theirs is not None and ours != theirs:
            self._at((name,), name, f"is {ours:g}, but {word} in resources says {theirs:g}", "keep one of them")
        return theirs if ours is None else ours

    def _rehearse(self, model: RehearseFields | None) -> Rehearse | None:
        if model is None:
            return None
        found = alternatives.read(model.resources) if model.resources else None
        for problem in found.problems if found else ():
            self._at(_steps(f"rehearse.{problem.field}"), f"rehearse.{problem.field}", *problem[1:3])
        return Rehearse(
            deterministic=bool(model.deterministic),
            compare=tuple(model.compare or ()),
            envs=dict(model.envs or {}),
            resources=found.resources if found else (),
            step=model.step or "",
        )

    def _schedule(self, model: ScheduleFields | None) -> Schedule | None:
        if model is None:
            return None
        if not model.cron:
            self._at(("schedule",), "schedule.cron", "is missing", "for instance `schedule: {cron: '0 22 * * 1-5'}`")
            return None
        given = {
            name: value for name, value in model.model_dump(exclude={"cron", "window"}).items() if value is not None
        }
        if (window := model.window) is not None:
            given["window"] = Window(window.begin or "", window.to or "", window.start or "cheapest")
        return Schedule.of(model.cron, **given)

    def _keep(self, model: KeepFields | None) -> Keep | None:
        if model is None:
            return None
        if model.seconds is None:
            fix = "for instance `keep_on_failure: {for: 30m, max_usd: 0.50}`"
            self._at(("keep_on_failure",), "keep_on_failure.for", "is missing", fix)
            return None
        return Keep(model.seconds, model.max_usd)

    def _mounts(self, model: TaskFields) -> tuple[Mount, ...]:
        mounts = []
        for target, fields in (model.file_mounts or {}).items():
            source = fields.source or ""
            if source and "://" not in source:
                source = str(self._here(source))
                if not Path(source).exists():
                    self._at(("file_mounts", target), f"file_mounts.{target}", f"no such file or folder: {source}")
            if sensitive("", source):
                fix = "fetch it in setup, with the password from secrets"
                self._at(
                    ("file_mounts", target), f"file_mounts.{target}", "holds a password, which lists would show", fix
                )
            if not source and fields.name is None:
                self._at(("file_mounts", target), f"file_mounts.{target}", "needs a source")
            # Without a source it is SkyPilot's new bucket, mounted unless it says otherwise.
            plain = target if len(target) < 2 else target.rstrip("/")
            mounts.append(Mount(plain, source, fields.mode or "COPY"))
        return tuple(mounts)


def _overlap(one: str, other: str) -> bool:
    """Is one of two fields the other, or a part of it? What is said about either then needs no second word."""
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


def _checkpoint(model: CheckpointFields | None) -> Checkpoint | None:
    if model is None or model.path is None:
        return None
    return Checkpoint(**{name: value for name, value in model.model_dump().items() if value is not None})


def _notify(model: NotifyFields | None) -> Notify | None:
    if model is None:
        return None
    return Notify(
        on=USUAL if model.on is None else tuple(model.on),
        command=model.command or "",
        webhook=model.webhook or "",
        apprise=tuple(model.apprise or ()),
    )


def _cloning(workdir: WorkdirFields | None) -> str:
    """The lines of setup that fetch a git workdir; into a folder that the checkpoint's may be in already."""
    if workdir is None or workdir.url is None:
        return ""
    url, ref = shlex.quote(workdir.url), shlex.quote(workdir.ref or "HEAD")
    return f"(set -e; git init -q .; git fetch -q --depth 1 {url} {ref}; git checkout -q -f FETCH_HEAD) || exit 1\n"


def _steps(field: str) -> tuple[str | int, ...]:
    if field.startswith("file_mounts."):  # a target may hold dots
        target, dot, rest = field.removeprefix("file_mounts.").rpartition(".")
        return (
            ("file_mounts", target, rest)
            if dot and rest in MountFields.model_fields
            else ("file_mounts", target + dot + rest)
        )
    return tuple(int(step) if step.isdigit() else step for step in field.split("."))
