"""Candidates by what finishing costs with them: the hazards, hosts that end too early, and the figures to show."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from broker.offer import Market, Offer
from broker.policy.cost import Cost, Prospect
from broker.policy.decision import Candidate, Kind, Rejected, Wish, clock
from broker.policy.hazard import Experience, Hazards
from broker.policy.past import RANDOM, Past, moments, phase_of
from broker.policy.renewal import PHASES
from broker.policy.season import moves

SHORT_LIFE = 24 * 3600.0
"""Seconds below which a host that ends inside the work is passed over while others fit, whatever its price: a day's
saving is not worth the move, of which no price tells whether the next machine is to be had then."""
SHOWN = 1000
"""How many of the first candidates carry their figures. The others were reckoned too, but 100,000 at once take a
second to keep and nobody looks at them."""


NEAR = 1e-6
"""USD by which costs may differ that count as equal."""
OLDEST = PHASES - 1
"""The phase of age of the zones that are lost least."""
_NOTHING = Past()


_Line = tuple[float, float, float, float, float, float]
"""What finishing costs with the offers of one kind: USD whatever the price, the hours that the machine's price now
counts for, and those that its disk's and address's do; the moment from which on a host's end comes too late to matter;
machines that need the cache, 0 where it costs nothing; USD per GiB of it. Plain, since 100,000 are unpacked."""


class Reckoning:
    """What finishing costs with each offer, for one decision at `now`, seconds since the epoch.

    past: what was seen of prices and zones; None where prices are to be taken as they are now, and no zone as young or
    old. after: USD per hour of work that a job is thought to pay once its host has ended, the best of those that last.
    """

    def __init__(self, prospect: Prospect, experience: Experience, now: float, past: Past | None = None) -> None:
        self.prospect, self.now, self.past = prospect, now, past
        self.after: float | None = None
        self._hazards = Hazards(experience, now, prospect.hours or 0.0, past)
        self._kinds: dict[tuple[object, ...], list[_Line | None]] = {}
        self._alike: dict[tuple[object, ...], list[_Line | None]] = {}

    def order(self, offers: Sequence[Offer], first: int = SHOWN) -> tuple[list[int], list[float]]:
        """The places of the offers, those first with which finishing costs least; and what it costs with each.

        Both are exact for the first so many. Behind them stands what cannot come before them, by the least that it
        could cost, had its zone been up for long: looking up how long it has been takes more than all the rest.
        """
        costs = self._totals(offers, exact=False)
        order = sorted(range(len(offers)), key=costs.__getitem__)
        if not order or self.past is None or not self.past.since:
            return order, costs
        dearest = max(self.totals([offers[n] for n in order[:first]]))
        end = len(order) if len(order) <= first else bisect_right(order, dearest + NEAR, key=costs.__getitem__)
        head = order[:end]
        for n, total in zip(head, self.totals([offers[n] for n in head]), strict=True):
            costs[n] = total
        return [*sorted(head, key=costs.__getitem__), *order[end:]], costs

    def totals(self, offers: Sequence[Offer]) -> list[float]:
        """What `cost` comes to with each."""
        return self._totals(offers, exact=True)

    def _totals(self, offers: Sequence[Offer], *, exact: bool) -> list[float]:
        """It is a line over the price, and one reckoning serves all offers of a kind: a market has many offers and few
        kinds. Only hosts that end inside the work are reckoned one by one. Not exact: at most the cost."""
        past, kinds = self.past or _NOTHING, self._kinds
        seasons, turns, spot = past.seasons, moments(self.now), Market.SPOT
        ages = past.since if exact else {}
        unseen, found = RANDOM if exact or not past.since else OLDEST, []
        for offer in offers:
            named = (
                offer.provider, offer.region, offer.gpu, offer.interruption, offer.market, offer.simulated,
                _told(offer.extra) if offer.extra else None,
            )  # fmt: skip
            kind = kinds.get(named)
            if kind is None:
                kind = kinds[named] = self._kind(offer)
            phase = unseen
            if ages:
                up = ages.get(offer.key)
                phase = RANDOM if up is None or offer.market is not spot else phase_of(up, turns)
            line = kind[phase]
            if line is None:
                line = kind[phase] = self._line(offer, phase)
            least, machine, hours, until, starts, egress = line
            if offer.ends_at is not None and offer.ends_at < until:
                found.append(self.cost(offer).total)
                continue
            if seasons and offer.key in seasons and moves(offer):
                machine = hours * self._season(offer, self.prospect.length(offer))[0]
            if starts:
                least += starts * self.prospect.cached(egress, offer.hourly)
            found.append(least + machine * offer.price + hours * (offer.disk_price + offer.address_price))
        return found

    def _kind(self, offer: Offer) -> list[_Line | None]:
        """Its lines by the phase of its zone's age, once reckoned; one list for all offers of like hazard and terms."""
        length = self.prospect.length(offer)
        what = (self.prospect.terms(offer), self._hazards.met(offer, length), self._usual(offer, length), offer.market)
        return self._alike.setdefault(what, [None] * PHASES)

    def _line(self, offer: Offer, phase: int) -> _Line:
        length = self.prospect.length(offer)
        phase = phase if offer.market is Market.SPOT else RANDOM
        hazard = self._hazards.aged(self._hazards.met(offer, length), phase, length)
        cost = self.prospect.cost(offer, hazard, None)
        hours = cost.hours + cost.minimum / offer.hourly
        until = self.now + cost.hours * 3600
        least = cost.egress + cost.download + cost.upload
        egress = self.prospect.terms(offer).egress
        starts = cost.moves + 1 if egress * self.prospect.cache else 0.0
        return least, hours * self._usual(offer, length), hours, until, starts, egress

    def _usual(self, offer: Offer, length: float) -> float:
        """What an hour costs over the run, in times of its price now, where the offer's own hours are not known."""
        return 1.0 if self.past is None else _NOTHING.season(offer, self.now, length)[0]

    def cost(self, offer: Offer) -> Cost:
        length = self.prospect.length(offer)
        hazard = self._hazards.of(offer, length)
        return self.prospect.cost(offer, hazard, self.now, self.after, self._season(offer, length))

    def _season(self, offer: Offer, length: float) -> tuple[float, bool]:
        return (1.0, False) if self.past is None else self.past.season(offer, self.now, length)

    def sift(self, fitting: list[Candidate]) -> tuple[list[Candidate], list[Rejected]]:
        """Without the hosts that end too early for the work, where others last."""
        ending = {id(c) for c in fitting if c.offer.ends_at is not None and self.cost(c.offer).ends}
        if not ending or len(ending) == len(fitting):
            return fitting, []
        lasting = self.totals([c.offer for c in fitting if id(c) not in ending])
        self.after = min(lasting) / self.prospect.hours if self.prospect.hours else 0.0
        kept: list[Candidate] = []
        rejected: list[Rejected] = []
        for candidate in fitting:
            ends = candidate.offer.ends_at
            if id(candidate) in ending and ends is not None and ends < self.now + SHORT_LIFE:
                reason = f"its host ends at {clock(ends)}, before the work is done"
                rejected.append(Rejected(candidate.offer, reason, Kind.ENDING, candidate.cost))
            else:
                kept.append(candidate)
        return kept, rejected

    def shown(self, ranked: Sequence[Candidate]) -> tuple[Candidate, ...]:
        """With their figures."""
        if all(candidate.finish is not None for candidate in ranked[:SHOWN]):
            return tuple(ranked)
        return (*(self._with(candidate) for candidate in ranked[:SHOWN]), *ranked[SHOWN:])

    def _with(self, candidate: Candidate) -> Candidate:
        if (c := candidate).finish is not None:
            return c
        return Candidate(c.offer, c.cost, c.alternative, c.on_demand, c.insisted, c.taken, self.cost(c.offer))


def _told(extra: Mapping[str, Any]) -> tuple[object, ...]:
    """What the cost takes from an offer's extra."""
    get = extra.get
    return (
        get("download_per_gib"), get("upload_per_gib"), get("minimum_hours"), get("reliability"), get("pays_bid")
    )  # fmt: skip


def reckoning(wish: Wish, experience: Experience | None, now: float, past: Past | None = None) -> Reckoning | None:
    """None where the work is not known."""
    if wish.prospect is None or wish.prospect.hours is None:
        return None
    return Reckoning(wish.prospect, experience or Experience(), now, past)
