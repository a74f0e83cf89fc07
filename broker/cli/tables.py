"""Tables for people, and the small words in them: money, sizes, times."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from broker.offer import Market, Offer, Trust
from broker.policy.decision import clock as moment

if TYPE_CHECKING:
    from rich.table import Table

    from broker.coverage import FieldReport
    from broker.job import Job
    from broker.ledger import Line
    from broker.planning import Plan
    from broker.policy.decision import Candidate

FOLDED = 16
"""Columns of the screen that what may wrap is given at least."""
TAKEN = {0: "< 5 %", 1: "5-10 %", 2: "10-15 %", 3: "15-20 %", 4: "> 20 %"}
"""The bands of EC2's Spot Instance Advisor: the share of such machines taken back in the past month."""
STATUS_COLORS = {
    "succeeded": "green", "failed": "red", "error": "red", "running": "cyan", "moving": "yellow",
    "kept": "yellow",
}  # fmt: skip
RANKED, REJECTED = 8, 4
"""How many lines of a plan are shown without being asked for all."""


def market(value: Market | str | None) -> str:
    return str(value).replace("_", "-") if value else "–"


def price(usd: float | None) -> str:
    """USD per hour, four decimals below a dollar and two above."""
    if usd is None:
        return "–"
    return f"{usd:.4f}" if usd < 1 else f"{usd:.2f}"


def money(usd: float, *, simulated: bool = False) -> str:
    """An amount in USD, never rounded to nothing."""
    if usd == 0:
        text = "$0"
    elif usd < 0.0001:
        text = "< $0.0001"
    else:
        text = f"${usd:.4f}" if usd < 0.1 else f"${usd:.2f}"
    return f"{text} (simulated)" if simulated else text


def size(octets: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if octets < 1024 or unit == "GiB":
            return f"{octets:.0f} {unit}" if unit == "B" else f"{octets:.1f} {unit}"
        octets /= 1024
    raise AssertionError


def duration(seconds: float) -> str:
    """`8 s`, `2 m 05 s`, `3 h 20 m`, `2 d 4 h`."""
    seconds = max(0.0, seconds)
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} m {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} m" if hours < 24 else f"{hours // 24} d {hours % 24} h"


def clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def table(*columns: str, right: Iterable[str] = (), fold: Iterable[str] = ()) -> Table:
    """An empty table in the style of all our tables. right: columns of numbers; fold: the ones that may wrap."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    right, fold = set(right), set(fold)
    for name in columns:
        made.add_column(name, justify="right" if name in right else "left", no_wrap=name not in fold, overflow="fold")
    return made


def fit(made: Table, width: int, *spare: str) -> Table:
    """The table without as many of its spare columns, the first named first, as do not fit a screen of that width."""
    from rich.cells import cell_len
    from rich.table import Table

    kept = list(made.columns)

    def needed() -> int:
        longest = [max(cell_len(str(cell)) for cell in (column.header, *column.cells)) for column in kept]
        return sum(
            2 + (length if column.no_wrap else min(length, FOLDED))
            for column, length in zip(kept, longest, strict=True)
        )

    for name in spare:
        if needed() - 2 <= width:
            break
        kept = [column for column in kept if column.header != name]
    slim = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in kept:
        slim.add_column(column.header, justify=column.justify, no_wrap=column.no_wrap, overflow=column.overflow)
    for row, cells in zip(made.rows, zip(*(column.cells for column in kept), strict=True), strict=True):
        slim.add_row(*cells, style=row.style)
    return slim


def where(provider: str, region: str, zone: str) -> str:
    """A place in short: most zones carry their region's name already."""
    parts = (provider, zone) if zone.startswith(region) and zone else (provider, region, zone)
    return "/".join(part for part in parts if part)


def place(offer: Offer) -> str:
    return where(offer.provider, offer.region, offer.zone)


def labelled(lines: Iterable[tuple[str, str]]) -> Table:
    """Lines with a label before each; a long one wraps beside its label."""
    from rich.table import Table

    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for label, text in lines:
        made.add_row(label, text)
    return made


def gpu(offer: Offer) -> str:
    return f"{offer.gpu}:{offer.gpu_count}" if offer.gpu else "–"


def shape(offer: Offer) -> str:
    """What the machine has, in short."""
    parts = [gpu(offer)] if offer.gpu else []
    parts += [f"{offer.cpus:g} CPU"] if offer.cpus else []
    parts += [f"{offer.memory:.3g} GiB" if offer.memory < 1000 else f"{offer.memory:.0f} GiB"] if offer.memory else []
    return ", ".join(parts)


def taken(offer: Offer) -> str:
    """How many such machines were taken back in the past month, where the provider says so."""
    band = offer.extra.get("band")
    return TAKEN.get(band, "") if isinstance(band, int) and offer.market is Market.SPOT else ""


def saving(offer: Offer, usual: Mapping[str, float]) -> str:
    """What spot saves of the same machine's price on demand, disk included; empty where that price is not known."""
    price = usual.get(offer.key.rpartition("/")[0], offer.extra.get("on_demand"))
    if offer.market is not Market.SPOT or not isinstance(price, int | float) or price <= 0:
        return ""
    share = 1 - offer.hourly / (price + offer.hourly - offer.price)
    return f"{round(share, 2) + 0.0:.0%}"  # a tie is 0%, and not -0%


def price_parts(offers: Sequence[Offer]) -> dict[str, Callable[[Offer], float]]:
    """The parts of an hour's price by their column; an address only where one costs anything."""
    parts: dict[str, Callable[[Offer], float]] = {"MACHINE": lambda o: o.price, "DISK": lambda o: o.disk_price}
    if any(offer.address_price for offer in offers):
        parts["ADDRESS"] = lambda o: o.address_price
    return parts


def offers_table(offers: Sequence[Offer], width: int) -> Table:
    """What can be rented now, one line per offer; USD per hour, on a narrow screen without the parts of the price."""
    parts = price_parts(offers)
    cards = any(offer.gpu for offer in offers)
    usual = {o.key.rpartition("/")[0]: o.price for o in offers if o.market is Market.ON_DEMAND}
    signs: dict[str, Callable[[Offer], str]] = {
        "SAVES": lambda offer: saving(offer, usual),
        "TAKEN/MONTH": taken,
        "PRICE OF": lambda offer: f"{age(time.time() - at)} ago" if (at := offer.extra.get("price_at")) else "",
    }
    signs = {name: show for name, show in signs.items() if any(show(offer) for offer in offers)}
    more = ["TRUST"] if any(offer.trust is not Trust.CLOUD for offer in offers) else []
    more += ["RENT"] if any(offer.blocked for offer in offers) else []
    made = table(
        "#", "WHERE", "TYPE", "HAS", "MARKET", *parts, "USD/h", *(["USD/GPU-h"] if cards else []),
        *signs, "NOTICE", *more,
        right=("#", *parts, "USD/h", "USD/GPU-h", "SAVES", "NOTICE"), fold=("HAS",),
    )  # fmt: skip
    for rank, offer in enumerate(offers, 1):
        spot = offer.market is Market.SPOT
        notice = ("none" if offer.notice is None else f"{offer.notice:.0f} s") if spot else ""
        per_card = [price(offer.hourly / max(offer.gpu_count, 1))] if cards else []
        made.add_row(
            str(rank), place(offer), offer.instance_type, shape(offer), market(offer.market),
            *(price(part(offer)) for part in parts.values()), price(offer.hourly), *per_card,
            *(show(offer) for show in signs.values()), notice,
            *([str(offer.trust)] if "TRUST" in more else []), *([mark(offer.blocked)] if "RENT" in more else []),
            style="dim" if offer.blocked else None,
        )  # fmt: skip
    return fit(
        made, width, "ADDRESS", "DISK", "MACHINE", "PRICE OF", "TAKEN/MONTH", "SAVES", "USD/GPU-h", "NOTICE", "RENT"
    )


def mark(blocked: str) -> str:
    """Why an offer cannot be rented, in a few words: what comes before the advice."""
    return re.split(r"[:;,(]", blocked, maxsplit=1)[0].strip()[:30]


def plan_table(plan: Plan, width: int, *, everything: bool = False) -> Table:
    """The ranked offers with full prices and what finishing costs where that is known, then what was passed over.

    On a narrow screen without the parts of the price.
    """
    decision = plan.decision
    known = bool(decision.ranked and decision.ranked[0].finish)
    parts = price_parts([*(entry.offer for entry in decision.ranked), *(entry.offer for entry in decision.rejected)])
    made = table(
        "#", "WHERE", "TYPE", "MARKET", *parts, "USD/h", *(["TO FINISH"] if known else []), "WHY",
        right=("#", *parts, "USD/h", "TO FINISH"), fold=("WHY",),
    )  # fmt: skip
    ranked = decision.ranked if everything else decision.ranked[:RANKED]
    for rank, candidate in enumerate(ranked, 1):
        offer = candidate.offer
        made.add_row(
            str(rank), place(offer), offer.instance_type, market(offer.market),
            *(price(part(offer)) for part in parts.values()), price(candidate.cost),
            *([money(candidate.finish.total) if candidate.finish else ""] if known else []),
            why(candidate, decision.ranked[0], rank),
            style="bold green" if rank == 1 else None,
        )  # fmt: skip
    if len(ranked) < len(decision.ranked):
        made.add_row("", f"… {len(decision.ranked) - len(ranked)} more", style="dim")
    rejected = sorted(decision.rejected, key=lambda entry: entry.cost)
    for entry in rejected if everything else rejected[:REJECTED]:
        offer = entry.offer
        made.add_row(
            "–", place(offer), offer.instance_type, market(offer.market),
            *(price(part(offer)) for part in parts.values()), price(entry.cost), *([""] if known else []), entry.reason,
            style="dim",
        )  # fmt: skip
    if not everything and len(rejected) > REJECTED:
        made.add_row("", f"… {len(rejected) - REJECTED} more passed over", style="dim")
    return fit(made, width, "ADDRESS", "DISK", "MACHINE")


def parts_table(ranked: Sequence[Candidate]) -> Table:
    """What finishing is expected to cost, one line per candidate and one column per part; USD, and hours.

    PRICE: by how much the machine's price over the run is thought to differ from that of now.
    """
    costs = [candidate.finish for candidate in ranked if candidate.finish is not None]
    names = [name for name in costs[0]._fields if any(name in cost.parts for cost in costs)]
    heads = [name.upper() for name in names]
    seasonal = ["PRICE"] if any(cost.season != 1 for cost in costs) else []
    made = table(
        "#", "WHERE", "MARKET", *heads, "TOTAL", "PER h", "HOURS", "LOSSES", "LOST/h", *seasonal,
        right=("#", *heads, "TOTAL", "PER h", "HOURS", "LOSSES", "LOST/h", *seasonal), fold=("WHERE",),
    )  # fmt: skip
    for rank, candidate in enumerate(ranked, 1):
        cost, offer = candidate.finish, candidate.offer
        if cost is not None:
            made.add_row(
                str(rank), place(offer), market(offer.market), *(money(getattr(cost, name)) for name in names),
                money(cost.total), price(cost.per_hour_of_progress), f"{cost.hours:.2f}", f"{cost.moves:.2f}",
                f"{100 * cost.hazard:.2g}%", *([f"{100 * (cost.season - 1):+.0f}%"] if seasonal else []),
            )  # fmt: skip
    return made


def fields_table(reports: Sequence[FieldReport]) -> Table:
    """What becomes of a task file's fields: one line for each, those that are simply honoured in one line together."""
    made = table("FIELD", "HERE", "WHY", fold=("FIELD", "WHY"))
    plain = [report.field for report in reports if report.how == "honoured"]
    for report in sorted(reports, key=lambda report: ("refused", "ignored", "emulated", "honoured").index(report.how)):
        if report.how != "honoured":
            made.add_row(report.field, report.how, report.why, style="bold" if report.how == "refused" else None)
    if plain:
        made.add_row(", ".join(plain), "honoured", "", style="dim")
    return made


def why(candidate: Candidate, best: Candidate, rank: int) -> str:
    """The line's reason, beside the numbers that the table shows already."""
    mine, least = candidate.cost, best.cost
    if candidate.finish is not None and best.finish is not None:
        mine, least = candidate.finish.total, best.finish.total
    more = 100 * (mine / least - 1) if least else 0.0
    parts = ["cheapest" if rank == 1 else f"+{more:.0f}%" if more >= 0.5 else "as cheap"]
    if candidate.finish is None and best.finish is not None:
        parts = []  # only the first thousand carry it
    if candidate.on_demand and candidate.offer.market is Market.SPOT:
        saves = 100 * (1 - candidate.cost / candidate.on_demand)
        parts.append(f"saves {saves:.0f}%" if saves >= 0 else "saves nothing")
    if candidate.taken:
        parts.append(f"is {candidate.taken}")
    ends = candidate.offer.ends_at
    if candidate.finish is not None and candidate.finish.ends and ends is not None:
        parts.append(f"ends {moment(ends)}, migration planned")
    if candidate.insisted:
        parts.append(candidate.insisted)
    return ", ".join(parts)


def jobs_table(rows: Sequence[dict[str, Any]], width: int) -> Table:
    """Jobs, one a line; on a narrow screen without the number of moves and the price per hour, and so on."""
    from rich.text import Text

    made = table(
        "JOB", "STATUS", "WHERE", "USD/h", "SPENT", "MOVES", "PROGRESS", "AGE",
        right=("USD/h", "SPENT", "MOVES", "PROGRESS", "AGE"), fold=("JOB",),
    )  # fmt: skip
    for row in rows:
        status = Text(row["status"], style=STATUS_COLORS.get(row["status"], ""))
        place = f"{row['place']} {market(row['market'])}" if row["place"] else "–"
        made.add_row(
            row["id"], status, place, price(row["hourly"]), money(row["spent"]), str(row["moves"]),
            progress(row["step"], row["total"]), age(row["age"]),
        )  # fmt: skip
    return fit(made, width, "MOVES", "USD/h", "AGE", "PROGRESS", "WHERE", "SPENT")


def costs_table(lines: Sequence[Line], by: str, width: int) -> Table:
    """The ledger with its sums; simulated money never adds to real."""
    from broker.ledger import total

    made = table(by.upper(), "SPENT", "ON DEMAND", "SAVED", "HOURS", "MACHINES", right=("HOURS", "MACHINES"))
    sums = [
        total(lines, simulated=simulated)
        for simulated in (False, True)
        if sum(line.simulated is simulated for line in lines) > 1
    ]
    for line in (*lines, *sums):
        usual, saved = "–", "–"
        if line.on_demand is not None and line.saved is not None:
            usual = money(line.on_demand)
            share = f" ({line.saved / line.on_demand:.0%})" if line.on_demand > 0 else ""
            saved = f"{'-' if line.saved < 0 else ''}{money(abs(line.saved))}{share}"
        hours = f"{line.hours:.2f}" if line.hours >= 0.01 else "< 0.01"
        made.add_row(line.what, money(line.spent, simulated=line.simulated), usual, saved, hours, str(line.machines))
    return fit(made, width, "MACHINES", "HOURS", "ON DEMAND")


def age(seconds: float) -> str:
    """One unit is enough: `8s`, `24m`, `3h`, `2d`."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"


def progress(step: int | None, total: int | None) -> str:
    if step is None:
        return "–"
    return f"{step}/{total}" if total else str(step)


def job_row(job: Job, now: float) -> dict[str, Any]:
    """One job as plain data: what `ps -o json` prints and its table shows."""
    placements = job.placements()
    rented = [p for p in placements if p.launched_at is not None]
    last = rented[-1] if rented else None
    offer = last.request["offer"] if last is not None else {}
    whole = "/".join(part for part in (offer.get("provider"), offer.get("region"), offer.get("zone")) if part)
    beat = (last.beat or {}) if last is not None else {}
    # A machine that has only just come has no progress yet: the last known one still stands.
    known = [p.beat["progress"] for p in rented if p.beat and p.beat.get("progress")]
    reached = known[-1] if known else {}
    return {
        "id": job.id,
        "name": job.name,
        "status": job.status,
        "message": job.message,
        "exit_code": job.row.exit_code,
        "where": whole,
        "place": where(offer["provider"], offer["region"], offer["zone"]) if offer else "",
        "instance": last.instance if last is not None else None,
        "market": last.market if last is not None else None,
        "hourly": last.hourly if last is not None and not job.done else None,
        "spent": sum(p.cost(now) for p in placements),
        "simulated": bool(offer.get("simulated")),
        "moves": max(0, len(rented) - 1),
        "step": reached.get("step"),
        "total": reached.get("total"),
        "state": beat.get("state"),
        "age": now - job.row.created_at,
        "created_at": job.row.created_at,
        "ended_at": job.row.ended_at,
        "labels": dict(job.row.task.get("labels") or {}),
        "home": job.row.home,
    }
