"""What a notebook shows of a Job, a Plan and offers: the command line's own tables, as HTML."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from broker.offer import Offer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from broker.job import Job
    from broker.planning import Plan

WIDTH = 100
"""Columns, which fit the usual page beside a notebook's panes."""
FORMAT = '<pre style="line-height:1.25;font-family:monospace;white-space:pre;overflow-x:auto">{code}</pre>'
SEEN = [
    (128, 128, 128), (217, 72, 72), (38, 158, 76), (184, 134, 11),
    (64, 128, 224), (176, 92, 184), (24, 150, 160), (128, 128, 128),
]  # fmt: skip
"""Black, red, green, yellow, blue, magenta, cyan and white, each read on white as well as on black."""


class Offers(list[Offer]):
    """A list of offers, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        from broker.cli.tables import offers_table

        return html([offers_table(self, WIDTH)]) if self else "<p>no offers</p>"


def of_plan(plan: Plan) -> str:
    """As `broker plan` shows it."""
    from broker.cli.offers import plan_lines
    from broker.cli.tables import labelled, plan_table

    return html([plan_table(plan, WIDTH), "", labelled(plan_lines(plan))])


def of_job(job: Job) -> str:
    """As `broker show` shows it, as far as the job has come."""
    from broker import report
    from broker.cli.timeline import render

    return html(render(report.shown(job.refresh()), WIDTH))


def html(parts: list[RenderableType]) -> str:
    """Rich's renderables in one `pre`, coloured by inline styles, with nothing of them taken for markup."""
    from rich.console import Console
    from rich.terminal_theme import TerminalTheme

    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, highlight=False, emoji=False)
    for part in parts:
        console.print(part, markup=False)
    # Rich's own greens and yellows are hard to read on a dark page; these are seen on either.
    middle = TerminalTheme((255, 255, 255), (0, 0, 0), SEEN, SEEN)
    return console.export_html(inline_styles=True, code_format=FORMAT, theme=middle)
