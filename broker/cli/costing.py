"""`broker cost`: what was spent, and what it would have been on demand."""

from __future__ import annotations

import csv
import io
import time
from typing import Annotated, Literal

import typer

from broker.cli.logs import moment
from broker.cli.screen import Screen


def cost_verb(
    screen: Screen,
    since: Annotated[str, typer.Option(metavar="TIME", help="Of the last 30d, or since a date.")] = "",
    by: Annotated[Literal["job", "provider", "day"], typer.Option(help="What makes a line.")] = "job",
    as_csv: Annotated[bool, typer.Option("--csv", help="Comma-separated, for a spreadsheet.")] = False,
) -> None:
    """Show what was spent, and what on demand would have cost."""
    from broker.job import jobs
    from broker.ledger import ledger

    now = time.time()
    after = moment(since, "--since") if since else None
    lines = ledger(((job.row, job.placements()) for job in jobs()), by=by, now=now, since=after)
    if screen.json:
        return screen.data([line.to_json() for line in lines])
    if as_csv:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([by, "spent_usd", "on_demand_usd", "saved_usd", "hours", "machines", "simulated"])
        for line in lines:
            numbers = [
                "" if value is None else f"{value:.6f}"
                for value in (line.spent, line.on_demand, line.saved, line.hours)
            ]
            writer.writerow([line.what, *numbers, line.machines, "yes" if line.simulated else "no"])
        return screen.line(text.getvalue().rstrip("\n"))
    if not lines:
        return screen.say("nothing was rented" + (f" since {since}" if since else ""))
    from broker.cli.tables import costs_table

    return screen.show(costs_table(lines, by, screen.width))
