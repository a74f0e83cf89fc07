"""The reasons of a decision, as lines that a person can act on."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from broker.offer import OfferQuery
from broker.policy.cost import Cost, Prospect
from broker.policy.decision import HOME_KEY, Candidate, Kind, Rejected, Wish, clock, money


def chosen(ranked: Sequence[Candidate], wish: Wish) -> tuple[str, ...]:
    """Why the first was taken, beside which second, and in which order they stand."""
    best = ranked[0]
    lines = [best.why, "the only offer that fits"]
    if len(ranked) > 1:
        second = ranked[1]
        place = f"{second.offer.market.told} in {second.offer.where}"
        lines[1] = f"next best of {len(ranked)}: {place} at {second.cost:.4f}"
        if second.finish is not None:
            lines[1] += f", {money(second.finish.total)} to finish"
    if wish.prospect is not None:
        lines.append(finishing(best.finish, wish.prospect) if best.finish is not None else UNKNOWN_WORK)
    if wish.ordered and len(wish.queries) > 1:
        order = f"number {best.alternative + 1} of {len(wish.queries)} in the task's order, which goes before the price"
        lines.append(order)
    return tuple(lines)


UNKNOWN_WORK = "ranked by price per hour: the task does not say how much work there is (work: {hours: 6})"
LEAST_CHANGE = 0.5
"""Percent by which a price must change over the run to be told."""
LABELS = {"machine": "machine", "rework": "work done again", "restarts": "starting", "later": "after its host's end"}


def finishing(cost: Cost, prospect: Prospect) -> str:
    """The expected cost of finishing with its parts, in one line."""
    parts = " + ".join(f"{LABELS.get(name, name)} {money(usd)}" for name, usd in cost.parts.items())
    risk = f", {100 * cost.hazard:.2g} % an hour to be taken back" if cost.hazard else ""
    return (
        f"ranked by the cost of finishing {prospect.hours:g} h of work, {money(cost.total)} expected here ({parts}): "
        f"{money(cost.per_hour_of_progress)} per hour of progress{risk}{season(cost)}"
    )


def season(cost: Cost) -> str:
    """What the hours of the run do to the price, where they change it: `; over the run 5 % cheaper than now: …`."""
    change = 100 * (cost.season - 1)
    if abs(change) < LEAST_CHANGE:
        return ""
    guess = "nights and weekends are taken to be cheaper until a week of this offer's prices is known"
    why = "as its hours were in past weeks" if cost.seen else guess
    return f"; over the run its price is {abs(change):.2g} % {'lower' if change < 0 else 'higher'} than now: {why}"


def nothing_fits(
    rejected: Sequence[Rejected], wish: Wish, next_try: float | None, failures: Mapping[str, str]
) -> tuple[str, ...]:
    """Why nothing fits, and what would help; the nearest miss first."""
    asked = ", or ".join(dict.fromkeys(asked_for(query) for query in wish.queries))
    lines = [f"no offer fits {asked}"]
    cheapest: dict[Kind, Rejected] = {}
    for entry in rejected:
        if entry.kind not in cheapest or entry.cost < cheapest[entry.kind].cost:
            cheapest[entry.kind] = entry
    count = Counter(entry.kind for entry in rejected)
    if Kind.COOLDOWN in count and next_try is not None:
        near = min((r for r in rejected if r.kind is Kind.COOLDOWN), key=lambda r: r.cost)
        lines.append(f"{near.offer.where} {near.reason}; the next try is at {clock(next_try)}")
    if Kind.PRICE in count:
        near = cheapest[Kind.PRICE]
        enough = math.ceil(near.cost * 10_000) / 10_000
        lines.append(
            f"{_several(count[Kind.PRICE])} above max_price {money(wish.max_price or 0)}: the cheapest is "
            f"{money(near.cost)} in {near.offer.where}; max_price: {money(enough)} would do"
        )
    if Kind.MARKET in count:
        near = cheapest[Kind.MARKET]
        helps = wish.max_price is None or near.cost <= wish.max_price
        lines.append(
            f"{_several(count[Kind.MARKET])} left out by spot: {wish.spot}, from {money(near.cost)} in "
            f"{near.offer.where}; spot: auto would {'take it' if helps else 'not help at this max_price'}"
        )
    for reason in dict.fromkeys(r.reason for r in rejected if r.kind is Kind.TRUST):
        hidden = [r for r in rejected if r.reason == reason]
        near = min(hidden, key=lambda r: r.cost)
        consent = ", ".join(f"{name}: {{trust: {near.offer.trust}}}" for name in near.exposed)
        way = f"`secrets: {{{consent}}}` in the task would let it"
        if HOME_KEY in near.exposed:
            way = "`broker home setup` can find keys for one job only"
        lines.append(
            f"{_several(len(hidden))} left out, from {money(near.cost)} in {near.offer.where}: {reason}; {way}"
        )
    unusable = Counter(r.reason for r in rejected if r.kind is Kind.UNUSABLE)
    lines += [f"{_several(number)} not to be had from here: {reason}" for reason, number in unusable.items()]
    blocked = dict.fromkeys(r.reason for r in rejected if r.kind is Kind.BLOCKED)
    vague = {why for why in blocked if why.startswith("quota") and not why.endswith(")")}
    lines += [f"{why}; ask the provider to raise it" if why in vague else why for why in blocked]
    for kind, hint in (
        (Kind.ENDING, "their hosts stop being rentable too soon"),
        (Kind.PRICELESS, "their price is unknown"),
        (Kind.SHAPE, "another GPU, CPU, memory or disk than asked for"),
        (Kind.INFRA, "outside infra; widen infra in the task"),
    ):
        if kind in count:
            example = f" (such as {cheapest[kind].offer.where}: {cheapest[kind].reason})" if kind is Kind.SHAPE else ""
            lines.append(f"{_several(count[kind])} left out: {hint}{example}")
    lines += [unasked(name, text) for name, text in failures.items()]
    if not rejected and not failures:
        lines.append("no provider offers anything like it now; name other resources under any_of, or add a provider")
    return tuple(lines)


def unasked(name: str, text: str) -> str:
    """That a provider or region could not be asked, naming it once."""
    return text if text.startswith(f"{name} ") else f"{name} could not be asked: {text}"


def asked_for(query: OfferQuery) -> str:
    """What a query asks for, for people: `A100:1, 50 GiB disk in aws`."""
    parts = [f"{query.gpu}:{max(query.gpu_count, 1)}"] if query.gpu else []
    parts += [f"{query.cpus:g} CPUs"] if query.cpus else []
    parts += [f"{query.memory:g} GiB memory"] if query.memory else []
    parts += [f"{query.disk:g} GiB disk"] if query.disk else []
    return ", ".join(parts or ["any machine"]) + (f" in {' or '.join(query.infra)}" if query.infra else "")


def _several(count: int) -> str:
    return "1 offer is" if count == 1 else f"{count} offers are"
