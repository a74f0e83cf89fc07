"""Candidates by what finishing costs with them: the hazards, hosts that end too early, and the figures to show."""

from __future__ import annotations

from collections.abc import Sequence

from broker.offer import Market, Offer
from broker.policy.cost import Cost, Prospect
from broker.policy.decision import Candidate, Kind, Rejected, Wish, clock
from broker.policy.hazard import Experience, Hazards
from broker.policy.past import RANDOM, Past
from broker.policy.season import moves

SHORT_LIFE = 24 * 3600.0
"""Seconds below which a host that ends inside the work is passed over while others fit, whatever its price: a day's
saving is not worth the move, of which no price tells whether the next machine is to be had then."""
SHOWN = 1000
"""How many of the first candidates carry their figures. The others were reckoned too, but 100,000 at once take a
second to keep and nobody looks at them."""


class Reckoning:
    """What finishing costs with each offer, for one decision at `now`, seconds since the epoch.

    past: what was seen of prices and zones; None where prices are to be taken as they are now, and no zone as young or
    old. after: USD per hour of work that a job is thought to pay once its host has ended, the best of those that last.
    """

    def __init__(self, prospect: Prospect, experience: Experience, now: float, past: Past | None = None) -> None:
        self.prospect, self.now, self.past = prospect, now, past
        self.after: float | None = None
        self._hazards = Hazards(experience, now, prospect.hours or 0.0, past)
        self._spot: dict[tuple[object, ...], tuple[float, float, float]] = {}
        self._on_demand: dict[tuple[object, ...], tuple[float, float, float]] = {}
        self._priors: dict[tuple[str, float], tuple[float, bool]] = {}

    def totals(self, offers: Sequence[Offer]) -> list[float]:
        """What `cost` comes to with each. Where nothing but time and the home's egress is billed it is a line over the
        price, and one reckoning serves all offers of a kind: a market has many offers and few kinds."""
        past, spot, phase = self.past, Market.SPOT, RANDOM
        known = past.seasons if past is not None else {}
        found: list[float] = []
        for offer in offers:
            if offer.ends_at is not None or offer.extra or (known and offer.key in known):
                found.append(self.cost(offer).total)
                continue
            if past is not None:
                phase = past.phase(offer, self.now)
            kind = (offer.provider, offer.region, offer.gpu, offer.interruption, offer.simulated, phase)
            lines = self._spot if offer.market is spot else self._on_demand
            line = lines.get(kind)
            if line is None:
                line = lines[kind] = self._line(offer)
            least, machine, hours = line
            found.append(least + machine * offer.price + hours * (offer.disk_price + offer.address_price))
        return found

    def _line(self, offer: Offer) -> tuple[float, float, float]:
        """USD whatever the price, and the hours that the machine's price counts for, and those that all else does."""
        cost = self.cost(offer)
        beside = cost.hours * (offer.disk_price + offer.address_price)
        machine = cost.hours * cost.season
        return cost.total - machine * offer.price - beside, machine, cost.hours

    def cost(self, offer: Offer) -> Cost:
        length = self.prospect.length(offer)
        hazard = self._hazards.of(offer, length)
        return self.prospect.cost(offer, hazard, self.now, self.after, self._season(offer, length))

    def _season(self, offer: Offer, length: float) -> tuple[float, bool]:
        past = self.past
        if past is None or not moves(offer):
            return 1.0, False
        if past.seasons and offer.key in past.seasons:
            return past.season(offer, self.now, length)
        prior = self._priors.get((offer.region, length))
        if prior is None:
            prior = self._priors[offer.region, length] = Past().season(offer, self.now, length)
        return prior

    def sift(self, fitting: list[Candidate]) -> tuple[list[Candidate], list[Rejected]]:
        """Without the hosts that end too early for the work, where others last."""
        ending = {id(c) for c in fitting if c.offer.ends_at is not None and self.cost(c.offer).ends}
        if not ending or len(ending) == len(fitting):
            return fitting, []
        self.after = min(self.cost(c.offer).per_hour_of_progress for c in fitting if id(c) not in ending)
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
        return (*(self._with(candidate) for candidate in ranked[:SHOWN]), *ranked[SHOWN:])

    def _with(self, candidate: Candidate) -> Candidate:
        c = candidate
        return Candidate(c.offer, c.cost, c.alternative, c.on_demand, c.insisted, c.taken, self.cost(c.offer))


def reckoning(wish: Wish, experience: Experience | None, now: float, past: Past | None = None) -> Reckoning | None:
    """None where the work is not known."""
    if wish.prospect is None or wish.prospect.hours is None:
        return None
    return Reckoning(wish.prospect, experience or Experience(), now, past)
