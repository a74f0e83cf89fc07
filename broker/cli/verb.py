"""The options that every verb has, added in one place, and the `Screen` that they make."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer
import typer.core

from broker.cli.screen import Screen


class Output(StrEnum):
    table = "table"
    json = "json"


OutputOption = Annotated[Output | None, typer.Option("-o", "--output", help="table for people, json for programs.")]
JsonOption = Annotated[bool, typer.Option("--json", help="The same as -o json.")]
QuietOption = Annotated[bool, typer.Option("-q", "--quiet", help="Print ids only, and errors.")]
PlainOption = Annotated[bool, typer.Option("--no-color", help="No colours; NO_COLOR in the environment does the same.")]
COMMON: dict[str, tuple[Any, Any]] = {
    "output": (OutputOption, None),
    "as_json": (JsonOption, False),
    "quiet": (QuietOption, False),
    "no_color": (PlainOption, False),
}


TYPES = re.compile(r" <(?:str|list\[str\])>|; x>=\d+(?=\])|  \[x>=\d+\]|\s+\[required\]")
BRACES = re.compile(r"\{([^{}\s|]+)\}(\.\.\.)?")


class Verb(typer.core.TyperCommand):
    """A verb whose help speaks of its arguments without the names of Python's types."""

    def get_help(self, ctx: Any) -> str:
        usage, line, rest = TYPES.sub("", super().get_help(ctx)).partition("\n")
        usage = usage.replace("…]...", "…]")
        return BRACES.sub(_bare, usage) + line + rest


def _bare(found: re.Match[str]) -> str:
    """`{TASK}...` as `TASK…`."""
    return found[1] + ("…" if found[2] and not found[1].endswith("…") else "")


def screen_of(output: Output | None, as_json: bool, quiet: bool, no_color: bool, base: Screen | None) -> Screen:
    """What the options ask for, on top of those given before the verb."""
    base = base or Screen()
    wants_json = as_json or output is Output.json
    return Screen(
        json=wants_json or (base.json and output is None),
        quiet=quiet or base.quiet,
        color=base.color and not no_color,
    )


def verb(app: typer.Typer, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as a verb. It gets a `Screen` first; the global options are taken off its hands."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def command(context: typer.Context, **given: Any) -> Any:
            common = {name: given.pop(name) for name in COMMON}
            screen = screen_of(**common, base=context.obj if isinstance(context.obj, Screen) else None)
            screen.verb = context.command_path
            return function(screen, **given)

        own = inspect.signature(function, eval_str=True)
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters = [
            inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context),
            *(p.replace(kind=kind) for p in list(own.parameters.values())[1:]),
            *(inspect.Parameter(n, kind, default=d, annotation=a) for n, (a, d) in COMMON.items()),
        ]
        command.__signature__ = own.replace(parameters=parameters, return_annotation=None)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        del command.__wrapped__
        app.command(cls=Verb, **options)(command)
        return function

    return register
