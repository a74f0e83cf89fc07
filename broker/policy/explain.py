"""The reasons of a decision, as lines that a person can act on."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from broker.offer import Market, OfferQuery
from broker.policy.decision import Candidate, Kind, Rejected, Wish, clock, money


def chosen(ranked: Sequence[Candidate], wish: Wish) -> tuple[str, ...]:
    best = ranked[0]
    if wish.ordered and len(wish.queries) > 1:
        order = f"number {best.alternative + 1} of {len(wish.queries)} in the task's order, which goes before the price"
        return (*chosen(ranked, replace(wish, ordered=False)), order)
    if len(ranked) == 1:
        return (best.why, "the only offer that fits")
    second = ranked[1]
    market = "spot" if second.offer.market is Market.SPOT else "on-demand"
    return (best.why, f"next best of {len(ranked)}: {market} in {second.offer.where} at {second.cost:.4f}")


def nothing_fits(
    rejected: Sequence[Rejected], wish: Wish, next_try: float | None, failures: Mapping[str, str]
) -> tuple[str, ...]:
    """Why nothing fits, and what would help; the nearest miss first."""
    asked = ", or ".join(dict.fromkeys(_asked(query) for query in wish.queries))
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
    blocked = dict.fromkeys(r.reason for r in rejected if r.kind is Kind.BLOCKED)
    lines += [f"{why}; ask the provider to raise it" if why.startswith("quota") else why for why in blocked]
    for kind, hint in (
        (Kind.ENDING, "their hosts stop being rentable too soon"),
        (Kind.PRICELESS, "their price is unknown"),
        (Kind.SHAPE, "another GPU, CPU, memory or disk than asked for"),
        (Kind.INFRA, "outside infra; widen infra in the task"),
    ):
        if kind in count:
            example = f" (such as {cheapest[kind].offer.where}: {cheapest[kind].reason})" if kind is Kind.SHAPE else ""
            lines.append(f"{_several(count[kind])} left out: {hint}{example}")
    lines += [f"{name} could not be asked: {text}" for name, text in failures.items()]
    if not rejected and not failures:
        lines.append("no provider offers anything like it now; name other resources under any_of, or add a provider")
    return tuple(lines)


def _asked(query: OfferQuery) -> str:
    parts = [f"{query.gpu}:{max(query.gpu_count, 1)}"] if query.gpu else []
    parts += [f"{query.cpus:g} CPUs"] if query.cpus else []
    parts += [f"{query.memory:g} GiB memory"] if query.memory else []
    parts += [f"{query.disk:g} GiB disk"] if query.disk else []
    return ", ".join(parts or ["any machine"]) + (f" in {' or '.join(query.infra)}" if query.infra else "")


def _several(count: int) -> str:
    return "1 offer is" if count == 1 else f"{count} offers are"
