"""A YAML text read with the place of every value, and every scalar kept exactly as it was typed.

`1e-4`, `on`, `NO`, `3.10`, `0755` and `12:30:45` are text here; whoever knows the field decides what they mean.
`<<` merges and anchors are resolved, duplicate keys are problems that name both lines, no key can crash anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from broker.errors import TaskError

if TYPE_CHECKING:
    from ruamel.yaml.nodes import MappingNode, Node

LIMIT = 20_000  # values in one file, aliases counted each time: a few lines of nested aliases can mean billions
_CORE = "tag:yaml.org,2002:"
# What is read as it was typed; the others, such as !!binary, stand for something else than their text.
_TAGS = frozenset({"str", "int", "float", "bool", "null", "timestamp", "map", "seq", "merge", "value"})


class Problem(NamedTuple):
    """One thing that is wrong with a task: `field` is its path, such as `resources.any_of.0.cpus`."""

    field: str
    message: str
    fix: str = ""
    line: int | None = None
    column: int | None = None

    @property
    def text(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


def refuse(problems: Sequence[Problem], file: str = "", *, kind: type[TaskError] = TaskError) -> NoReturn:
    """Raise one TaskError that speaks of all problems: the first is its place and field, the rest are listed."""
    first, *rest = problems
    lines = [first.text]
    for problem in rest:
        place = ":".join(str(part) for part in (file, problem.line, problem.column) if part not in ("", None))
        lines.append(f"{place}: {problem.text}" if place else problem.text)
    raise kind(
        "\n".join(lines), file=file, line=first.line, column=first.column, field=first.field, fix=first.fix
    ) from None


@dataclass(frozen=True, slots=True)
class Value:
    """A value with its place, both counted from 1. data: None for null, text as typed, a map, or a list.

    keys: where each key of a map stands. typed: how null was written, such as `~`.
    """

    line: int
    column: int
    data: str | dict[str, Value] | list[Value] | None
    keys: dict[str, tuple[int, int]] = field(default_factory=dict)
    typed: str = ""

    def plain(self) -> Any:
        """The data without places: None, str, dict and list all the way down."""
        if isinstance(self.data, dict):
            return {key: value.plain() for key, value in self.data.items()}
        if isinstance(self.data, list):
            return [value.plain() for value in self.data]
        return self.data

    def place(self, path: Sequence[str | int], *, key: bool = False) -> tuple[int, int]:
        """Line and column of what is at `path`, or of the nearest thing around it. key: of its key, not its value."""
        here, at = self, (self.line, self.column)
        for step in path:
            if isinstance(here.data, dict) and isinstance(step, str) and step in here.data:
                at = here.keys[step] if key else (here.data[step].line, here.data[step].column)
                here = here.data[step]
            elif isinstance(here.data, list) and isinstance(step, int) and step < len(here.data):
                here = here.data[step]
                at = (here.line, here.column)
            else:
                break
        return at

    def at(self, path: Sequence[str | int]) -> Value | None:
        """The value at `path`, None where there is none."""
        here: Value | None = self
        for step in path:
            if here is not None and isinstance(here.data, dict) and isinstance(step, str):
                here = here.data.get(step)
            elif here is not None and isinstance(here.data, list) and isinstance(step, int) and step < len(here.data):
                here = here.data[step]
            else:
                return None
        return here

    @property
    def kind(self) -> str:
        """What it is, for people."""
        if self.data is None:
            return "empty"
        return "a map" if isinstance(self.data, dict) else "a list" if isinstance(self.data, list) else "text"


def read(text: str, file: str) -> tuple[Value, list[Problem]]:
    """The text as a Value, and what is wrong with it though it can be read: duplicate keys, odd keys, foreign tags.

    Raises TaskError with line and column for text that is not YAML, not one document, or not a map.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        root = YAML(typ="safe", pure=True).compose(text)
        builder = _Builder(file)
        value = builder.value(root, "") if root is not None else Value(1, 1, None)
    except MarkedYAMLError as error:
        # Not the error's own text: that quotes the line, and the line may hold a secret.
        mark = error.problem_mark or error.context_mark
        if error.context_mark and "end of stream" in (error.problem or ""):
            # The end is where everything that was left open is noticed, and says nothing about where that is.
            mark = error.context_mark
        what = ", ".join(part for part in (error.problem, error.context) if part)
        raise TaskError(
            f"not readable as YAML: {what}",
            file=file,
            line=mark.line + 1 if mark else None,
            column=mark.column + 1 if mark else None,
            fix=_advice(what, _indent(text, mark.line if mark else 0)),
        ) from None
    except YAMLError as error:
        position = getattr(error, "position", None)
        before = text[:position] if isinstance(position, int) else ""
        raise TaskError(
            "not readable as YAML: a character that YAML does not allow",
            file=file,
            line=before.count("\n") + 1,
            column=len(before) - before.rfind("\n"),
        ) from None
    except RecursionError:
        raise TaskError("not readable: nested too deeply", file=file) from None
    if value.data is None:
        raise TaskError("the file is empty", file=file, fix="a task needs at least `run:`")
    if not isinstance(value.data, dict):
        raise TaskError(
            f"a task must be a map of fields, not {value.kind}", file=file, line=value.line, column=value.column
        )
    return value, builder.problems


def _advice(what: str, indent: str) -> str:
    if "another document" in what:
        return "one task in a file: what follows the line `---` belongs into a file of its own"
    if "mapping values are not allowed" in what:
        return "text with a colon and a space in it needs quotes, or the block form: `run: |` and the lines below it"
    return "indent with spaces: YAML takes no tabs" if "\t" in indent else ""


def _indent(text: str, line: int) -> str:
    """The white space before the first word of a line, counted from 0."""
    lines = text.split("\n")
    here = lines[line] if line < len(lines) else ""
    return here[: len(here) - len(here.lstrip())]


class _Builder:
    """Turns ruamel's nodes into Values; remembers what it meets on the way."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self.open: set[int] = set()
        self.seen = 0

    def value(self, node: Node, path: str) -> Value:
        line, column = node.start_mark.line + 1, node.start_mark.column + 1
        self.seen += 1
        if self.seen > LIMIT:
            raise TaskError(f"too big: more than {LIMIT} values", file=self.file, line=line, column=column)
        if id(node) in self.open:
            self.problems.append(Problem(path, "an alias that contains itself", line=line, column=column))
            return Value(line, column, None)
        tag = str(node.tag)
        if tag.removeprefix(_CORE) not in _TAGS or not tag.startswith(_CORE):
            shown = tag.replace(_CORE, "!!")
            self.problems.append(Problem(path, f"the tag {shown} means nothing here", line=line, column=column))
        self.open.add(id(node))
        try:
            return self._filled(node, tag, path, line, column)
        finally:
            self.open.discard(id(node))

    def _filled(self, node: Node, tag: str, path: str, line: int, column: int) -> Value:
        from ruamel.yaml.nodes import MappingNode, SequenceNode

        if isinstance(node, MappingNode):
            return self._map(node, path, line, column)
        if isinstance(node, SequenceNode):
            return Value(
                line, column, [self.value(item, f"{path}.{i}".lstrip(".")) for i, item in enumerate(node.value)]
            )
        text = str(node.value)
        return Value(line, column, None, typed=text) if tag == f"{_CORE}null" else Value(line, column, text)

    def _map(self, node: MappingNode, path: str, line: int, column: int) -> Value:
        data: dict[str, Value] = {}
        keys: dict[str, tuple[int, int]] = {}
        merged: list[Value] = []
        for key_node, value_node in node.value:
            at = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            key = key_node.value
            if str(key_node.tag) == f"{_CORE}merge":
                merged.extend(self._merge(value_node, path, at))
            elif not isinstance(key, str):
                self.problems.append(Problem(path, "a key must be text, not a map or a list", "", *at))
            elif key in data:
                field = f"{path}.{key}".lstrip(".")
                twice = f"given twice: in line {keys[key][0]} and again in line {at[0]}"
                self.problems.append(Problem(field, twice, "keep one of them", *at))
            else:
                value = self.value(value_node, f"{path}.{key}".lstrip("."))
                # What is not there has no place of its own: ruamel puts it behind the line's end.
                data[key] = Value(*at, None, typed=value.typed) if value.data is None else value
                keys[key] = at
        for base in merged:
            assert isinstance(base.data, dict)
            for key, inherited in base.data.items():
                if key not in data:
                    data[key], keys[key] = inherited, base.keys[key]
        return Value(line, column, data, keys)

    def _merge(self, node: Node, path: str, at: tuple[int, int]) -> Iterator[Value]:
        """The maps that `<<` names, nearest first, as YAML's merge type has it: what comes first wins."""
        value = self.value(node, path)
        for base in value.data if isinstance(value.data, list) else [value]:
            if isinstance(base.data, dict):
                yield base
            else:
                self.problems.append(Problem(path, f"`<<` takes a map or a list of maps, not {base.kind}", "", *at))
