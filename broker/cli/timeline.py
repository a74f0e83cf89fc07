"""A report for people: a timeline drawn in text, and the lines around it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from broker.cli.tables import duration, fit, market, money, price, table
from broker.report import Move, Report, Stay

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

GLYPHS = {"boot": "·", "setup": "░", "wait": "╌", "restore": "▒", "run": "━", "close": "╴", "kept": "┈"}
MARKS = {"save": "┿", "notice": "!", "preempted": "✗", "lost": "?", "done": "✓", "failed": "✗", "stopped": "■"}
COLORS = {
    "boot": "dim", "setup": "blue", "wait": "dim", "restore": "magenta", "run": "green", "close": "dim",
    "kept": "yellow",
    "save": "bold green", "notice": "bold yellow", "preempted": "bold red", "lost": "bold red", "done": "bold green",
    "failed": "bold red", "stopped": "bold yellow",
}  # fmt: skip
WORDS = {
    "boot": "boot", "setup": "setup", "wait": "wait", "restore": "restore", "run": "run", "save": "snapshot",
    "notice": "notice", "preempted": "taken back (preempted)", "lost": "lost", "done": "done", "failed": "failed",
    "stopped": "stopped", "close": "closing", "kept": "kept for a look",
}  # fmt: skip
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400, 604800)
"""Seconds between two labels of an axis."""
TOLD = 0.0001
"""USD below which amounts say nothing, and are not compared."""
ENDINGS = ("preempted", "lost", "done", "failed", "stopped")
STRONG = (*ENDINGS, "notice", "save")
"""Which mark stands where several fall on one character."""


def render(report: Report, width: int) -> list[RenderableType]:
    """The whole report, without its last line."""
    from rich.text import Text

    parts: list[RenderableType] = [_head(report), Text()]
    if report.stays:
        parts += [_placements(report, width), Text(), *lanes(report, width), Text()]
    if report.moves:
        parts += [_moves(report.moves, report.unit, width), Text()]
    for text in report.refused[:5]:
        parts.append(Text(f"passed over  {text}", style="dim"))
    for text in report.warnings[:5]:
        parts.append(Text(f"warning  {text}", style="yellow"))
    parts.append(_money(report))
    return parts


def _head(report: Report) -> Text:
    from rich.text import Text

    machines = len(report.stays)
    moves = len(report.moves)
    head = Text(report.job, style="bold")
    head.append(
        f"  {report.status} after {duration(report.end - report.created)}: {machines} machine{'s' * (machines != 1)}, "
        f"{moves} move{'s' * (moves != 1)}",
        style="",
    )
    return head


def _placements(report: Report, width: int) -> RenderableType:
    made = table(
        "#",
        "WHERE",
        "MARKET",
        "USD/h",
        "COST",
        "STARTUP",
        f"{report.unit.upper()}S",
        "SNAPSHOTS",
        "WHY",
        right=("#", "USD/h", "COST", "STARTUP", "SNAPSHOTS"),
        fold=("WHY",),
    )
    for stay in report.stays:
        steps = (
            "–"
            if stay.last_step is None
            else f"{stay.first_step if stay.first_step is not None else '?'}–{stay.last_step}"
        )
        made.add_row(
            str(stay.generation), stay.place, market(stay.market), price(stay.hourly), money(stay.cost),
            _startup(stay.startup), steps, str(stay.saves), stay.note or _short(stay.why),
        )  # fmt: skip
    return fit(made, width, "SNAPSHOTS", "STARTUP", "USD/h")


def _short(why: str) -> str:
    """A decision's reason without what the other columns say: a first one without more says nothing else."""
    return re.sub(r"on-demand would be [\d.]+, (?=saves)", "", why.partition("; ")[2]) or "best offer"


def lanes(report: Report, width: int) -> list[Text]:
    """One lane per placement on a common axis, an axis above and a legend below."""
    from rich.text import Text

    names = [f"{stay.generation} {stay.place} {market(stay.market)}" for stay in report.stays]
    margin = min(max(len(name) for name in names), 28) + 2
    room = max(20, width - margin - 1)
    begin = min([report.created, *(stay.start for stay in report.stays)])
    span = max(report.end - begin, 1e-9)
    rows = [Text(" " * margin + axis(span, room), style="dim")]
    used: set[str] = set()
    for name, stay in zip(names, report.stays, strict=True):
        row = Text(f"{name[: margin - 2]:<{margin}}")
        for what in lane(stay, begin, span, room):
            row.append({**GLYPHS, **MARKS}.get(what, " "), style=COLORS.get(what, ""))
            used.add(what)
        rows.append(row)
    return [*rows, _legend(used, margin, width)]


def _legend(used: set[str], margin: int, width: int) -> Text:
    """What the characters mean, below the lanes; from the edge where it is too long for that."""
    from rich.text import Text

    signs = {**GLYPHS, **MARKS}
    shown = [Text.assemble((signs[what], COLORS[what]), (f" {WORDS[what]}", "dim")) for what in WORDS if what in used]
    legend = Text("  ").join(shown)
    indent = min(margin, max(0, width - len(legend)))
    return Text(" " * indent).append_text(legend)


def lane(stay: Stay, begin: float, span: float, room: int) -> list[str]:
    """What each of `room` columns shows of a placement: a segment's word, a mark's, or nothing."""
    cells = [""] * room

    def column(at: float) -> int:
        return min(room - 1, max(0, int((at - begin) / span * room)))

    for segment in stay.segments:
        first = column(segment.start)
        last = max(first, column(segment.end) - 1)
        cells[first : last + 1] = [segment.what] * (last + 1 - first)
    for mark in sorted(stay.marks, key=lambda m: -STRONG.index(m.what)):
        place = column(mark.at)
        # Where the program's end and its last snapshot fall together, both are worth seeing.
        if place and mark.what in ENDINGS and cells[place] == "save" and cells[place - 1] == "run":
            cells[place - 1] = "save"
        cells[place] = mark.what
    return cells


def axis(span: float, room: int) -> str:
    """Labels of round times along `room` characters."""
    step = next((s for s in TICKS if span / s <= max(2, room // 12)), TICKS[-1])
    line = [" "] * (room + 12)
    for number in range(int(span / step + 1e-9) + 1):
        at = number * step
        label = _tick(at, step)
        place = int(at / span * room)
        if place + len(label) <= room:
            line[place : place + len(label)] = label
    return "".join(line).rstrip()


def _tick(seconds: float, step: float) -> str:
    """A label in the unit that suits the distance between two labels."""
    if step < 1:
        return f"{seconds:.1f}s" if seconds else "0"
    unit, length = next((u, n) for u, n in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)) if step >= n)
    return f"{seconds // length:.0f}{unit}" if seconds else "0"


def _moves(moves: Sequence[Move], unit: str, width: int) -> RenderableType:
    """Each move in steps, then how long no program ran, how much of that was setup, and the new machine's startup."""
    numbers = ("REACHED", "RESTORED", "WENT ON AT", "LOST", "DOWN FOR", "SETUP", "STARTUP")
    made = table("MOVE", "WHY", *numbers, right=numbers)
    words = {"notice": "notice", "preempted": "no notice", "lost": "lost", "moved": "moved"}
    for move in moves:
        made.add_row(
            f"{move.source} → {move.target}",
            words[move.why],
            _step(move.reached),
            "nothing" if move.restored is None else _step(move.restored_step),
            _step(move.resumed),
            "?" if move.lost is None else f"{move.lost} {unit}{'s' * (move.lost != 1)}",
            "?" if move.gap is None else f"{move.gap:.1f} s",
            f"{move.setup:.1f} s",
            _startup(move.startup),
        )
    return fit(made, width, "STARTUP", "SETUP")


def _startup(seconds: float | None) -> str:
    """From the launch to the first step."""
    return "–" if seconds is None else f"{seconds:.1f} s" if seconds < 60 else duration(seconds)


def _step(step: int | None) -> str:
    return "?" if step is None else f"{step}"


def _money(report: Report) -> Text:
    from rich.text import Text

    line = Text("spent ")
    line.append(money(report.spent, simulated=report.simulated), style="bold")
    if report.on_demand and report.on_demand >= TOLD:
        saved = report.on_demand - report.spent
        line.append(f"; on demand {money(report.on_demand)}")
        line.append(f", saved {money(saved)} ({100 * saved / report.on_demand:.0f}%)" if saved > 0 else "")
    return line
