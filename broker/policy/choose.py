"""The decision: which of the offers a job takes now, with its reasons and what it passed over.

Ranked by the expected cost of finishing where the work is known, else by full cost, USD per hour of machine and disk
together. On a tie on-demand goes first, since it costs the same and is not taken back. Pure: the same arguments give
the same decision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

from broker import gpus
from broker.offer import Market, Offer, Trust
from broker.policy.decision import COULD_READ, Candidate, Decision, Kind, Rejected, Wish, clock, money
from broker.policy.due import Due, timed
from broker.policy.explain import chosen, nothing_fits
from broker.policy.hazard import Experience
from broker.policy.infra import matcher, within
from broker.policy.memory import UNKNOWN_LIMIT, Cooldown, Memory
from broker.policy.past import Past
from broker.policy.reckon import NEAR, SHOWN, Reckoning, reckoning
from broker.policy.shape import misfit

__all__ = ["Candidate", "Decision", "Kind", "Memory", "Rejected", "Wish", "choose"]

ELSEWHERE = "infra does not match"
Machine = tuple[str, str, str, str]
SHORTEST_LIFE = 900.0
"""Seconds a marketplace host must still be rentable to be worth booting."""


def choose(
    offers: Iterable[Offer],
    *,
    wish: Wish,
    memory: Memory,
    now: float,
    moves_left: int | None = None,
    failures: Mapping[str, str] | None = None,
    experience: Experience | None = None,
    due: Due | None = None,
    past: Past | None = None,
) -> Decision:
    """Rank the offers, take the first, say why.

    now: seconds since the epoch. moves_left: placements still allowed; at 0 nothing is chosen; None means no limit.
    failures: what the market could not ask, by provider or region; only named in the reasons when nothing fits.
    experience: what was seen of machines taken back; without any the priors stand. due: the deadline, where the task
    has one and its work is known: what has cooled down long enough to be tried again is weighed like the rest then.
    past: what was seen of prices and zones; without any, prices stay as they are and zones are as good as each other.
    """
    if moves_left is not None and moves_left <= 0:
        return Decision(None, reasons=("moved as often as max_moves allows; raise max_moves to go on",))
    if memory.unknown >= UNKNOWN_LIMIT:
        text = f"stopped after {memory.unknown} unknown refusals in a row, the last: {memory.unknown_text}"
        return Decision(None, reasons=(text,))
    sieve = _Sieve(wish, memory, now)
    for offer in offers:
        sieve.take(offer)
    fitting, cooling = sieve.settle()
    if not fitting or due is not None:
        fitting += [candidate for candidate, cooldown in cooling if cooldown.again <= now]
        cooling = [(candidate, cooldown) for candidate, cooldown in cooling if cooldown.again > now]
    rejected = [*sieve.rejected, *(_cooled(candidate) for candidate, _ in cooling)]
    reckoned = reckoning(wish, experience, now, past)
    ranked, ending = _ranked(fitting, wish, memory, reckoned)
    rejected += ending
    if ranked:
        decision = Decision(ranked[0].offer, ranked, tuple(rejected), chosen(ranked, wish))
        if due is None or reckoned is None:
            return decision
        decision = timed(decision, wish, due, now)
        return replace(decision, ranked=reckoned.shown(decision.ranked))
    next_try = min((cooldown.again for _, cooldown in cooling), default=None)
    reasons = nothing_fits(rejected, wish, next_try, failures or {})
    return Decision(None, (), tuple(rejected), reasons, next_try, unasked=bool(failures))


def _ranked(
    fitting: list[Candidate], wish: Wish, memory: Memory, reckoned: Reckoning | None
) -> tuple[tuple[Candidate, ...], list[Rejected]]:
    """The candidates, best first, and those whose hosts end too early."""
    if reckoned is None:
        costs = [candidate.cost for candidate in fitting]
        return tuple(_sorted(fitting, sorted(range(len(costs)), key=costs.__getitem__), costs, wish, memory)), []
    fitting, ending = reckoned.sift(fitting)
    first = len(fitting) if wish.ordered else SHOWN
    order, costs = reckoned.order([candidate.offer for candidate in fitting], first)
    return reckoned.shown(_sorted(fitting, order, costs, wish, memory)), ending


def _sorted(
    fitting: list[Candidate], order: list[int], costs: list[float], wish: Wish, memory: Memory
) -> list[Candidate]:
    """By the task's order where it has one, then by cost; what is left of a tie is decided by `_tie`.

    order: the places by cost. Ties are few among many offers, so that most are sorted by one number.
    """
    if wish.ordered:
        order.sort(key=lambda n: fitting[n].alternative)
    found = [fitting[n] for n in order]
    for start, end in _ties(found, [costs[n] for n in order], ordered=wish.ordered):
        found[start:end] = sorted(found[start:end], key=_tie(memory))
    return found


def _ties(found: list[Candidate], costs: list[float], *, ordered: bool) -> Iterator[tuple[int, int]]:
    """Where candidates that are equal begin and end."""
    equal = [
        n
        for n, (one, other) in enumerate(pairwise(costs), 1)
        if other - one < NEAR
        and _cents(one) == _cents(other)
        and (not ordered or found[n].alternative == found[n - 1].alternative)
    ]
    start = end = -1
    for n in equal:
        if n != end:
            if start >= 0:
                yield start, end
            start = n - 1
        end = n + 1
    if start >= 0:
        yield start, end


def _tie(memory: Memory) -> Callable[[Candidate], tuple[float | bool | str, ...]]:
    """On-demand first, then what did not fail last, what is taken back less often, and by name."""
    failed = memory.last_failed

    def key(candidate: Candidate) -> tuple[float | bool | str, ...]:
        offer = candidate.offer
        return (
            offer.market is Market.SPOT,
            failed is not None and offer.key == failed,
            offer.interruption or 0.0,
            *_machine(offer),
        )

    return key


def _cents(cost: float) -> float:
    """Costs equal to a millionth of a dollar are a tie, whatever the sums' last bits say."""
    return round(cost, 6)


class _Sieve:
    """One pass over the offers; keeps what fits, what cools down and what is rejected."""

    def __init__(self, wish: Wish, memory: Memory, now: float) -> None:
        self.wish, self.memory, self.now = wish, memory, now
        self.asked = [(query, matcher(query.infra)) for query in wish.queries]
        self.blocks = [(scope, b) for scope, b in memory.blocked.items() if b.until is None or b.until > now]
        self.too_dear = f"above max_price {money(wish.max_price or 0.0)}"
        self.exposed = {kind: _exposed(kind, wish.trust) for kind in Trust}
        # Side by side, since a tuple for each of 100,000 offers keeps the garbage collector busy.
        self.found: list[Offer] = []
        self.costs: list[float] = []
        self.alternatives: list[int] = []
        self.rejected: list[Rejected] = []
        self.on_demand: dict[Machine, float] = {}
        self.usable_on_demand: dict[Machine, float] = {}

    def take(self, offer: Offer) -> None:
        cost = offer.hourly
        alternative, kind, reason = self._fit(offer)
        if not kind:
            kind, reason = self._refusal(offer, cost)
        if offer.market is Market.ON_DEMAND:
            if kind in (None, Kind.MARKET, Kind.BLOCKED, Kind.PRICE, Kind.UNUSABLE, Kind.TRUST):
                self.on_demand[_machine(offer)] = cost
            if not kind and not self._cooldown(offer):
                self.usable_on_demand[_machine(offer)] = cost
        if kind:
            self.rejected.append(Rejected(offer, reason, kind, cost))
        else:
            self.found.append(offer)
            self.costs.append(cost)
            self.alternatives.append(alternative)

    def settle(self) -> tuple[list[Candidate], list[tuple[Candidate, Cooldown]]]:
        """What may be taken now, and what only its cooldown holds back."""
        fitting: list[Candidate] = []
        cooling: list[tuple[Candidate, Cooldown]] = []
        auto, asked = self.wish.spot == "auto", [query.gpu for query in self.wish.queries]
        regional = any(not zone for _, _, zone, _ in self.on_demand)
        for offer, cost, alternative in zip(self.found, self.costs, self.alternatives, strict=True):
            beside = usable = None
            if self.on_demand and offer.market is Market.SPOT:
                machine = _machine(offer)
                beside = _beside(self.on_demand, machine, regional)
                if auto and beside is not None:
                    usable = _beside(self.usable_on_demand, machine, regional)
            if usable is not None and _cents(cost) >= _cents(usable):
                reason = f"spot is not cheaper than on-demand here ({money(cost)} against {money(usable)})"
                self.rejected.append(Rejected(offer, reason, Kind.TIE, cost))
                continue
            card = asked[alternative]
            taken = gpus.taken(card, offer.gpu, offer.gpu_memory) if card and offer.gpu else ""
            if cooldown := self._cooldown(offer):
                insisted = f"cools down until {clock(cooldown.until)} after {cooldown.why}"
                cooling.append((Candidate(offer, cost, alternative, beside, insisted, taken), cooldown))
            else:
                fitting.append(Candidate(offer, cost, alternative, beside, "", taken))
        return fitting, cooling

    def _cooldown(self, offer: Offer) -> Cooldown | None:
        cooldown = self.memory.cooldowns.get(offer.key) if self.memory.cooldowns else None
        return cooldown if cooldown and cooldown.until > self.now else None

    def _fit(self, offer: Offer) -> tuple[int, Kind | None, str]:
        """The first alternative that the offer fits, or the kind and the reason why it fits none."""
        kind = Kind.INFRA
        reasons: dict[str, None] = {}
        for index, (query, matches) in enumerate(self.asked):
            reason = misfit(offer, query) if matches(offer) else ELSEWHERE
            if not reason:
                return index, None, ""
            kind = kind if reason is ELSEWHERE else Kind.SHAPE
            reasons[reason] = None
        return 0, kind, "; ".join(reasons)

    def _refusal(self, offer: Offer, cost: float) -> tuple[Kind | None, str]:
        if not math.isfinite(cost) or offer.disk_price < 0 or offer.address_price < 0:
            return Kind.PRICELESS, "its price is unknown"
        if offer.ends_at is not None and offer.ends_at < self.now + SHORTEST_LIFE:
            return Kind.ENDING, f"its host stops being rentable at {clock(offer.ends_at)}"
        spot = self.wish.spot
        if spot == "never" and offer.market is Market.SPOT:
            return Kind.MARKET, "spot: never"
        if spot == "only" and offer.market is Market.ON_DEMAND:
            return Kind.MARKET, "spot: only"
        for scope, block in self.blocks:
            if within(scope, offer):
                return Kind.BLOCKED, block.why
        limit = self.wish.max_price
        if limit is not None and _cents(cost) > _cents(limit):
            return Kind.PRICE, self.too_dear
        if offer.blocked:
            return Kind.UNUSABLE, offer.blocked
        if exposed := self.exposed[offer.trust]:
            return Kind.TRUST, exposed
        return None, ""


def _exposed(kind: Trust, secrets: Mapping[str, Trust]) -> str:
    """Why a host of that kind gets none of these secrets; empty where it may read all of them."""
    names = [name for name, least in secrets.items() if not kind.reaches(least)]
    return f"a {kind}{COULD_READ}{', '.join(names)}" if names else ""


def _beside(table: Mapping[Machine, float], machine: Machine, regional: bool) -> float | None:
    """What the same machine costs on demand, in the zone or, where a provider prices by region, in the region."""
    cost = table.get(machine)
    return table.get((machine[0], machine[1], "", machine[3])) if cost is None and regional else cost


def _machine(offer: Offer) -> Machine:
    return offer.provider, offer.region, offer.zone, offer.instance_type


def _cooled(candidate: Candidate) -> Rejected:
    return Rejected(candidate.offer, candidate.insisted, Kind.COOLDOWN, candidate.cost)
