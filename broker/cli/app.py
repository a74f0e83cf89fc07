"""The verbs, in the order in which a newcomer meets them."""

from __future__ import annotations

from typing import Annotated

import typer

from broker.cli import (
    checking,
    costing,
    entering,
    estimating,
    homes,
    jobs,
    logs,
    moving,
    offers,
    rehearsal,
    running,
    scheduling,
    service,
    verifying,
)
from broker.cli.verb import JsonOption, Output, OutputOption, PlainOption, QuietOption, screen_of, verb

app = typer.Typer(
    name="broker",
    help="Rents the cheapest GPU that will finish a job, and moves the job when the machine is taken back.",
    epilog="Start with: broker rehearse quickstart. It rents nothing and shows on this computer what a move is like.",
    no_args_is_help=True,
    # Typer's rich help doubles the time that --help takes; plain text says the same.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(value: bool) -> None:
    if value:
        from broker import __version__

        typer.echo(f"spotbroker {__version__}")
        raise typer.Exit


home = typer.Typer(
    help="The object store where jobs keep what must outlive machines.", no_args_is_help=True, rich_markup_mode=None
)
schedule = typer.Typer(
    help="Tasks that run again and again, woken by cron or broker up.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(home, name="home")
app.add_typer(schedule, name="schedule")


@app.callback()
def options(
    context: typer.Context,
    output: OutputOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    no_color: PlainOption = False,
    version: Annotated[  # noqa: ARG001 - its callback has acted
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    context.obj = screen_of(output if isinstance(output, Output) else None, as_json, quiet, no_color, None)


for register, names in (
    (offers, ("init", "schema")),
    (checking, ("check",)),
    (offers, ("offers", "plan")),
    (estimating, ("estimate",)),
    (rehearsal, ("rehearse",)),
    (running, ("run", "resume")),
    (jobs, ("ps", "show")),
    (logs, ("logs",)),
    (jobs, ("wait", "pull", "stop")),
    (entering, ("ssh",)),
    (moving, ("migrate",)),
    (costing, ("cost",)),
    (service, ("up", "tick")),
    (verifying, ("verify",)),
):
    for name in names:
        verb(app, name=name)(getattr(register, f"{name}_verb"))
verb(home, name="setup")(homes.setup_verb)
for name in ("add", "list", "rm", "next"):
    verb(schedule, name=name)(getattr(scheduling, f"{name}_verb"))
verb(schedule, name="fire", hidden=True)(scheduling.fire_verb)
