"""A task file's text: read into a Task, with the place of everything that is wrong; and a Task written as text.

Three steps: `broker.document` keeps every scalar as typed, with its place; the pydantic models of `broker.fields` know
the fields and give each value its type; `Task` itself checks what the values mean. What is wrong in a later step is
reported together with what was wrong in an earlier one: a wrong value is set aside, the rest is looked at.

`use_spot` is SkyPilot's: true prefers spot and falls back to on-demand, as `spot: auto` does; false is `spot: never`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from broker.document import Problem, Value, refuse
from broker.document import read as read_document
from broker.errors import TaskError
from broker.fields import CheckpointFields, RehearseFields, ResourcesFields, TaskFields, explained
from broker.task import NAME, Checkpoint, InvalidTaskError, Rehearse, Resources, Task, Work

LIMIT = 1_000_000  # bytes: what is bigger is no task file


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
    return reader.task()


class _Reader:
    """One file on its way to a Task; collects what is wrong."""

    def __init__(self, text: str, path: Path) -> None:
        self.path = path
        self.document, self.problems = read_document(text, str(path))
        self.plain = self.document.plain()

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
        holder[field] = {
            name: text
            for name, item in {**self._items(where, value), **values}.items()
            if (text := self._text(where, name, item, environ)) is not None
        }

    def _items(self, where: str, value: Value) -> dict[str, Value]:
        if isinstance(value.data, dict):
            return value.data
        items: dict[str, Value] = {}
        for number, item in enumerate(value.data if isinstance(value.data, list) else (), start=1):
            name, equals, text = item.data.partition("=") if isinstance(item.data, str) else ("", "", "")
            if not NAME.fullmatch(name):  # not shown: it may be a value that lost its name
                self._wrong(where, item, f"entry {number} must be NAME=VALUE")
            elif name in items:
                self._wrong(f"{where}.{name}", item, "given twice", "keep one of them")
            else:
                items[name] = Value(item.line, item.column, text if equals else None)
        return items

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
            said = {problem.field for problem in self.problems}
            for problem in error.problems:
                if not any(problem.field == field or field.startswith(f"{problem.field}.") for field in said):
                    line, column = self.document.place(_steps(problem.field))
                    self.problems.append(problem._replace(line=line, column=column))
        self._check_workdir(model)
        if self.problems:
            unique = dict.fromkeys(self.problems)
            refuse(sorted(unique, key=lambda problem: (problem.line or 0, problem.column or 0)), str(self.path))
        return task

    def _model(self) -> TaskFields:
        """The file's values with their types. What is wrong is noted and left out until the rest is right."""
        while True:
            try:
                return TaskFields.model_validate(self.plain)
            except ValidationError as error:
                for detail in error.errors(include_url=False, include_input=False):
                    unknown = detail["type"] == "extra_forbidden"
                    line, column = self.document.place(detail["loc"], key=unknown)
                    self.problems.append(Problem(*explained(detail), line, column))
                    self._leave_out(detail["loc"])

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
            holder[index] = "" if path[-2] != "any_of" else {}

    def _check_workdir(self, model: TaskFields) -> None:
        if model.workdir is not None and not (folder := self._workdir(model.workdir)).is_dir():
            line, column = self.document.place(("workdir",))
            self.problems.append(Problem("workdir", f"no such folder: {folder}", "", line, column))

    def _workdir(self, text: str) -> Path:
        return Path(os.path.normpath(self.path.absolute().parent / Path(text).expanduser()))

    def _built(self, model: TaskFields) -> Task:
        spot, resources, warnings = _resources(model)
        stem = self.path.absolute().parent.name if self.path.stem == "task" else self.path.stem
        given: dict[str, Any] = {
            "name": model.name or stem,
            "workdir": self._workdir(model.workdir) if model.workdir is not None else None,
            "setup": model.setup,
            "envs": model.envs,
            "secrets": model.secrets,
            "outputs": tuple(model.outputs) if model.outputs else None,
            "resources": resources,
            "checkpoint": _checkpoint(model.checkpoint),
            "work": Work(**model.work.model_dump()) if model.work else None,
            "spot": spot,
            "max_price": model.max_price,
            "max_hours": model.max_hours,
            "max_moves": model.max_moves,
            "max_restarts_on_errors": model.max_restarts_on_errors,
            "home": model.home,
            "rehearse": _rehearse(model.rehearse),
        }
        if model.spot and spot != model.spot:
            at = self.document.place(("spot",))
            message = f"is {model.spot}, but use_spot in resources says otherwise"
            self.problems.append(Problem("spot", message, "keep `spot` only", *at))
            given["spot"] = model.spot
        return Task(
            run=model.run or "",
            source=self.path,
            warnings=warnings,
            **{name: value for name, value in given.items() if value is not None},
        )


def _resources(model: TaskFields) -> tuple[str | None, tuple[Resources, ...], tuple[str, ...]]:
    """Which market, which alternatives (an entry of any_of takes over what stands around it), and what to tell."""
    outer = model.resources or ResourcesFields()
    around = {name: getattr(outer, name) for name in outer.model_fields_set - {"any_of"}}
    alternatives = [
        {**around, **{name: getattr(entry, name) for name in entry.model_fields_set}} for entry in outer.any_of or ()
    ] or [around]
    wishes, warnings = [], []
    for fields in alternatives:
        given = {
            "cpus": fields.get("cpus"),
            "memory": fields.get("memory"),
            "disk": fields.get("disk_size"),
            "infra": tuple(fields.get("infra") or ()),
            "image": fields.get("image_id"),
        }
        for gpu, many in fields.get("accelerators") or ((None, 0),):
            wish: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
            wishes.append(Resources(gpu=gpu, gpu_count=many, **wish))
    spots = {fields["use_spot"] for fields in alternatives if fields.get("use_spot") is not None}
    if len(spots) == 2:
        warnings.append("use_spot is true here and false there: every alternative may be rented on either market")
    spot: str | None = model.spot
    if spots == {False}:
        spot = "never"
    elif spots and spot != "only":
        spot = "auto"
    return spot, tuple(wishes), tuple(warnings)


def _checkpoint(model: CheckpointFields | None) -> Checkpoint | None:
    if model is None or model.path is None:
        return None
    return Checkpoint(**{name: value for name, value in model.model_dump().items() if value is not None})


def _rehearse(model: RehearseFields | None) -> Rehearse | None:
    if model is None:
        return None
    return Rehearse(
        deterministic=bool(model.deterministic), compare=tuple(model.compare or ()), envs=dict(model.envs or {})
    )


def _steps(field: str) -> tuple[str | int, ...]:
    return tuple(int(step) if step.isdigit() else step for step in field.split("."))


def write(task: Task) -> str:
    """The Task as the text of a task file that reads back as the same Task, but for its source and its warnings.

    Secrets keep their names only: their values are taken from the environment when the file is read.
    """
    from io import StringIO

    from ruamel.yaml import YAML
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString as Quoted
    from ruamel.yaml.scalarstring import LiteralScalarString as Literal

    def clean(value: Any) -> Any:
        # Quoted, so that other readers of YAML see the same text: plain NO and 1e-4 would turn into other things.
        if isinstance(value, str):
            return Literal(value) if _readable(value) else Quoted(value)
        if isinstance(value, Mapping):
            return {name: clean(inner) for name, inner in value.items() if inner not in (None, "", [], {}, ())}
        if isinstance(value, list | tuple):
            return [clean(inner) for inner in value]
        return value

    data = task.to_json()
    del data["source"], data["warnings"]
    alternatives = [
        {
            "accelerators": f"{wish.gpu}:{wish.gpu_count}" if wish.gpu else None,
            "cpus": wish.cpus or None,
            "memory": wish.memory or None,
            "disk_size": wish.disk,
            "infra": list(wish.infra),
            "image_id": wish.image,
        }
        for wish in task.resources
    ]
    data["resources"] = alternatives[0] if len(alternatives) == 1 else {"any_of": alternatives}
    written = clean(data)
    # Empty values are values here, unlike above.
    for holder, values in ((written, task.envs), (written.get("rehearse", {}), getattr(task.rehearse, "envs", {}))):
        if values:
            holder["envs"] = {name: Quoted(value) for name, value in values.items()}
    if task.secrets:
        written["secrets"] = dict.fromkeys(sorted(task.secrets))
    yaml = YAML()
    yaml.width = 1_000_000
    out = StringIO()
    yaml.dump(written, out)
    return out.getvalue()


def _readable(text: str) -> bool:
    """May it be written as a block, line by line as it is?"""
    *lines, last = text.split("\n")
    if not lines or last or not all(line.isprintable() for line in lines):
        return False
    return bool(lines[-1].strip()) and bool(lines[0]) and not lines[0][0].isspace()
