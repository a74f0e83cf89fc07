"""The verb for the sum that people make by hand before any run: estimate."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from broker.cli.offers import InfraOption, asked, must_have_provider, nothing
from broker.cli.screen import Screen, Usage
from broker.cli.unanswered import tell_unanswered
from broker.quantity import MOST

if TYPE_CHECKING:
    from rich.table import Table

    from broker.offer import OfferQuery
    from broker.policy.estimate import Assumptions, Estimate, Price, Row

PRICE = re.compile(
    r"(?P<provider>[^:=\s]+):(?P<market>spot|on[_-]demand)=\$?(?P<usd>\d*\.?\d+)(?P<each>/gpu)?", re.IGNORECASE
)


def estimate_verb(
    screen: Screen,
    task: Annotated[
        str | None,
        typer.Argument(metavar="TASK", help="Take the hours, the card and what is known of its checkpoints from it."),
    ] = None,
    hours: Annotated[
        float | None, typer.Option("--hours", metavar="H", help="Hours of work on one machine; by the task without.")
    ] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", metavar="GPU[:N]", help="Such as A100-80GB or H100:8.")] = None,
    price: Annotated[
        list[str] | None,
        typer.Option(
            "--price",
            metavar="PRICE",
            help="provider:spot=USD or provider:on_demand=USD, per hour of the machine, or USD/gpu. Repeatable; "
            "today's without.",
        ),
    ] = None,
    interruptions_per_hour: Annotated[
        float | None, typer.Option(metavar="N", help="How often spot is taken back; by the card without.")
    ] = None,
    checkpoint_min: Annotated[
        float | None, typer.Option(metavar="MIN", help="Minutes between two saves; by the task, else 30.")
    ] = None,
    restart_min: Annotated[float, typer.Option(metavar="MIN", help="Minutes from a loss to the next step.")] = 5.0,
    checkpoint_gb: Annotated[
        float | None, typer.Option(metavar="GB", help="Size of one checkpoint; as earlier jobs of the task had.")
    ] = None,
    hourly_value: Annotated[float, typer.Option(metavar="USD", help="What an hour of your time is worth.")] = 50.0,
    infra: InfraOption = None,
) -> None:
    """Compare what a job costs on-demand and spot.

    With the prices that you state, or with today's. Rents nothing.
    """
    from broker.gpus import counted
    from broker.policy.estimate import Assumptions, estimate

    try:
        card, count = counted(gpu) if gpu else ("", 0)
    except ValueError as error:
        raise Usage(str(error), fix="--gpu A100-80GB:8") from error
    known = Known() if task is None else _known(task, card, count, infra or ())
    query = known.query or asked(gpu, cpus=0.0, memory=0.0, disk=20.0, infra=infra or (), spot=None)
    card, count = query.gpu or "", query.gpu_count
    # Hours that are stated go before the task's, of which its line tells.
    lines = known.lines if hours is None else tuple(line for line in known.lines if line[0] != "work")
    hours = known.hours if hours is None else hours
    if hours is None:
        raise _without_hours(task)
    checkpoint_min = (30.0 if known.every is None else known.every / 60) if checkpoint_min is None else checkpoint_min
    checkpoint_gb = known.gigabytes if checkpoint_gb is None else checkpoint_gb
    _checked("--hours", hours, least=1e-9)
    numbers = {
        "--interruptions-per-hour": interruptions_per_hour or 0.0, "--checkpoint-min": checkpoint_min,
        "--restart-min": restart_min, "--checkpoint-gb": checkpoint_gb, "--hourly-value": hourly_value,
    }  # fmt: skip
    for option, value in numbers.items():
        _checked(option, value)
    given = Assumptions(
        hours=hours, card=card, count=count, interruptions=interruptions_per_hour, checkpoint=checkpoint_min / 60,
        restart=restart_min / 60, gigabytes=checkpoint_gb, value=hourly_value,
    )  # fmt: skip
    prices = [_stated(text, count) for text in price] if price else _today(screen, query, given)
    made = estimate(prices, given)
    if screen.json:
        return screen.data(made.to_json())
    if screen.quiet:
        return screen.line(f"{made.best.provider}:{made.best.market}")
    from broker.cli.tables import labelled

    screen.show(_table(made), "", labelled([*lines, *_lines(made)]))
    return None


@dataclass(frozen=True, slots=True)
class Known:
    """What a task says of the sum. query: of its machine; every: seconds between two saves; lines: what was taken."""

    query: OfferQuery | None = None
    hours: float | None = None
    every: float | None = None
    gigabytes: float = 0.0
    lines: tuple[tuple[str, str], ...] = ()


def _known(name: str, card: str, count: int, infra: Sequence[str]) -> Known:
    """Of a task's first alternative, or of the one with that card."""
    from broker.config import load
    from broker.outlook import planned
    from broker.planning import home_of, records_of
    from broker.policy.explain import asked_for
    from broker.policy.hazard import model
    from broker.task import load as load_task

    task, config = load_task(name).within(infra), load()
    wished = [query for query in task.queries if not card or (query.gpu, max(query.gpu_count, 1)) == (card, count)]
    query = wished[0] if wished else replace(task.queries[0], gpu=card, gpu_count=count)
    records = records_of(config)
    outlook = planned(replace(task, deadline=""), home_of(task, config), config.home_config, records, time.time())
    prospect = outlook.wish.prospect
    assert prospect is not None
    speed = prospect.speed.get(query.gpu or "", prospect.speed.get(model(query.gpu or ""), 1.0))
    lines = [("task", f"{task.name}: {asked_for(query)}" + _others(len(task.queries)))]
    if prospect.hours is not None:
        pace = f", at {speed:g} times that speed" if speed != 1 else ""
        lines.append(("work", f"{outlook.left.source}{pace}"))
    return Known(
        query=query,
        hours=prospect.hours / speed if prospect.hours is not None else None,
        every=task.checkpoint.every if task.checkpoint is not None else None,
        gigabytes=round(prospect.checkpoint * 2**30 / 1e9, 2),
        lines=tuple(lines),
    )


def _others(count: int) -> str:
    return f", the first of its {count} alternatives; --gpu names another" if count > 1 else ""


def _without_hours(task: str | None) -> Usage:
    if task is None:
        return Usage("how many hours of work?", fix="--hours 48, or a task file that says it")
    return Usage(
        f"nothing tells how many hours of work {task} has",
        fix="--hours 48, or `work: {hours: 48}` in the task",
    )


def _checked(option: str, value: float, *, least: float = 0.0) -> None:
    if value > MOST:
        raise Usage(f"{option} must be at most {MOST:,.0f}, not {value:g}", fix=f"{option} 1")
    if not value >= least:
        raise Usage(f"{option} must be {'above' if least else 'at least'} 0, not {value:g}", fix=f"{option} 1")


def _stated(text: str, count: int) -> Price:
    from broker.offer import Market
    from broker.policy.estimate import Price

    found = PRICE.fullmatch(text.strip())
    if found is None or not float(found["usd"]):
        raise Usage(f"--price {text!r} is not a price", fix="--price runpod:on_demand=1.89 or --price vast:spot=0.89")
    usd = float(found["usd"]) * (max(count, 1) if found["each"] else 1)
    return Price(found["provider"], Market(found["market"].lower().replace("-", "_")), usd)


def _today(screen: Screen, query: OfferQuery, given: Assumptions) -> list[Price]:
    """The cheapest offer of each provider and market."""
    from broker.config import load
    from broker.market import Marketplace
    from broker.offer import Market, Offer
    from broker.policy.estimate import Price
    from broker.policy.hazard import hazard
    from broker.policy.shape import fits

    must_have_provider([query])
    with screen.waiting("the providers' answers"):
        book = Marketplace(load()).offers([query])
    best: dict[tuple[str, Market], Offer] = {}
    for offer in sorted(book.offers, key=lambda o: (o.hourly, o.key)):
        if fits(offer, query):
            best.setdefault((offer.provider, offer.market), offer)
    if not best:
        raise nothing([query], book.failures)
    tell_unanswered(screen, book.failures)
    if any(offer.simulated for offer in best.values()):
        screen.say("local is this computer: its money is simulated", style="dim")
    now = time.time()
    return [
        Price(offer.provider, offer.market, offer.hourly, hazard(offer, at=now, hours=given.hours))
        for offer in best.values()
    ]


def _usd(usd: float) -> str:
    """To the cent; what is less than ten cents to four places."""
    return f"{usd:,.4f}" if 0 < abs(usd) < 0.1 else f"{usd:,.2f}"


def _table(made: Estimate) -> Table:
    from broker.cli.tables import market, price, table

    span = f"{made.assumptions.hours:g} h"
    heads = ("USD/h", span, "SAVED", "INTERRUPTIONS", "EXPECTED", "BREAK-EVEN")
    shown = table("PROVIDER", "MARKET", *heads, right=heads)
    for row in made.rows:
        spot = row.break_even is not None or row.hazard > 0
        shown.add_row(
            row.provider, market(row.market), price(row.hourly), _usd(row.cost),
            "" if row.saved is None or row is made.against else f"{row.saved:.0f}%",
            f"{row.losses:.2g}" if spot else "", _usd(row.expected), _rate(row),
            style="bold green" if row is made.best else None,
        )  # fmt: skip
    return shown


def _rate(row: Row) -> str:
    if row.break_even is None:
        return ""
    return f"{row.break_even:.2f}/h" if row.break_even else "never cheaper"


def _lines(made: Estimate) -> list[tuple[str, str]]:
    from broker.cli.tables import duration, market
    from broker.policy.estimate import KEPT, STORE

    given, best, against, instead = made.assumptions, made.best, made.against, made.instead
    machine = f"one machine with {given.card}:{given.count}" if given.card else "one machine"
    lines = [("prices", f"USD per hour of {machine}")]
    rates = sorted({row.hazard for row in made.rows if row.hazard})
    text = " to ".join(f"{100 * rate:.3g} %" for rate in dict.fromkeys((rates[0], rates[-1]))) if rates else "none"
    lost = f"each loses {30 * given.checkpoint:g} min of work and {60 * given.restart:g} min to start again"
    lines.append(("interruptions", f"{text} an hour; {lost}; the first start is left out"))
    if against is not None:
        lines.append(("saved", f"against {against.provider} on-demand, {_usd(against.cost)}"))
    if instead is not None:
        lines.append(
            (
                "break-even",
                f"interruptions at which spot costs {_usd(instead.cost)}, as {instead.provider} on-demand does",
            )
        )
    if given.gigabytes:
        kept = f"{KEPT} checkpoints of {given.gigabytes:g} GB for {given.hours:g} h at {STORE} USD per GB and month"
        lines.append(("storage", f"{_usd(made.storage)} for {kept}"))
    else:
        lines.append(("storage", "not counted; --checkpoint-gb says how much one checkpoint takes"))
    if made.saving is None or instead is None:
        return [*lines, ("golden rule", "state an on-demand price too, and the saving can be told")]
    if best is instead or made.saving <= 0:
        return [*lines, ("golden rule", f"{instead.provider} on-demand is the cheapest: spot saves nothing here")]
    text = f"{best.provider} {market(best.market)} saves {_usd(made.saving)} against {instead.provider} on-demand"
    if made.worth is not None:
        span = duration(3600 * made.worth)
        text += f"; worth it while it takes less than {span} of your time at {_usd(given.value)} an hour"
    return [*lines, ("golden rule", text)]
