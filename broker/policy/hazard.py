"""How likely an offer is to be lost, per hour: what is known beforehand, and what this installation has seen since.

A hazard is a rate of losses per hour of running. `Offer.interruption` is one already, where an adapter could read its
provider's own figure; the functions `advisor`, `eviction`, `preemption` and `reliability` make one of each kind of
figure. Without one, the prior stands:

* by card, on weekdays: A100 2.3 % an hour, V100 0.8, H100 4.1. These are the published rates that this project started
  from (spot GPUs of the large clouds). Any other card is taken for an A100, the middle of the three, and a machine
  without a card for a V100, the least sought after of them.
* at weekends 40 % lower than on weekdays, by UTC; over a run, the mean of its hours.
* no figure is published for the hour of the day, so that all are alike until losses were seen: then each part of the
  day, by the region's clock, has the share of them that fell into it (`BY_HOUR`).
* by the zone's age, where it was seen to come up: a new one is lost more often, an old one less (`broker.policy.past`).
* us-east-1 three times us-west-2. Only the ratio is known, so the one is a root of three above and the other below.
* on-demand machines are not taken back: 0, unless the offer itself says otherwise. A private host goes offline now and
  then, by its `reliability`, whatever is paid for it; on spot that comes on top of being outbid.

Prior and experience meet as gamma and Poisson. What is estimated is by how much the prior is wrong: a factor with a
gamma prior of mean 1 and shape `WEIGHT`, so that the prior counts like so many losses seen. Losses elsewhere at the
same provider with the same card move that factor's mean, losses in the same region the factor itself.

Pure: no clock but the one passed in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from math import log
from typing import Any

from broker import gpus
from broker.offer import Market, Offer
from broker.policy.past import RANDOM, Past, ageing
from broker.policy.season import offset, zone_of
from broker.policy.spells import BY_REGION

BY_CARD = {"A100": 0.023, "V100": 0.008, "H100": 0.041}
OTHER_CARD = BY_CARD["A100"]
NO_CARD = BY_CARD["V100"]
WEEKEND = 0.6
WEIGHT = 2.0
TOGETHER = 4
"""Hours of the day that are taken together: an installation sees few losses."""
BY_HOUR = 20.0
"""Losses in one part of the day that count as much as that all are alike: the tuning traces hardly show the hour."""
MONTH = 730.0
"""Hours of a month."""
ADVISOR = (0.025, 0.075, 0.125, 0.175, 0.30)
"""The middle of each of AWS's bands: <5, 5-10, 10-15, 15-20 and >20 % in a month; the last is open, 30 % is taken."""
_SMALL = 1e-9
_DAY = 86_400.0
_WEEK = 7 * _DAY
_MONDAY = 3 * _DAY
"""The epoch was a Thursday: so long before it a week began."""


def advisor(band: int) -> float:
    """AWS Spot Advisor's index `r`, 0 to 4: the share of machines taken back within a month, here per hour."""
    return -log(1 - ADVISOR[band]) / MONTH


def eviction(low: float, high: float | None = None) -> float:
    """Azure's eviction rate, a band in percent within one hour, such as 5 and 10; without an end (20+) 30 is taken."""
    share = (low + (max(low, 40.0) if high is None else high)) / 200
    return -log(1 - min(share, 0.99))


def preemption(rate: float, uptime: float) -> float:
    """GCP's preemption rate, the share of spot machines that ended by being preempted; uptime: their mean hours."""
    return rate / uptime


def reliability(share: float, outage: float = 1.0) -> float:
    """Vast's reliability, the share of time that a host is up; outage: hours that one outage takes, taken for one."""
    share = min(max(share, 0.01), 1.0)
    return (1 - share) / (share * outage)


def outages(offer: Offer) -> float:
    """How often a marketplace's host goes offline by itself, by its reliability; on demand or not, at any hour."""
    share = offer.extra.get("reliability") if offer.extra else None
    return reliability(share) if isinstance(share, int | float) and 0 < share <= 1 else 0.0


def weekend_share(at: float, hours: float) -> float:
    """The share of the hours from `at` on, seconds since the epoch, that lie in a weekend by UTC."""
    if hours <= 0:
        return 1.0 if (at + _MONDAY) % _WEEK >= 5 * _DAY else 0.0
    share = (_weekends(at + hours * 3600) - _weekends(at)) / (hours * 3600)
    return min(1.0, max(0.0, share))  # the difference of two large numbers, over a small one


def _weekends(at: float) -> float:
    """Seconds of weekend since the first Monday before the epoch."""
    weeks, rest = divmod(at + _MONDAY, _WEEK)
    return weeks * 2 * _DAY + max(0.0, rest - 5 * _DAY)


@dataclass(frozen=True, slots=True)
class Seen:
    """Hours of running in one place, those of them at weekends, and the losses in them."""

    hours: float = 0.0
    weekend: float = 0.0
    losses: int = 0

    @property
    def weighted(self) -> float:
        """As weekday hours."""
        return self.hours - (1 - WEEKEND) * self.weekend


@dataclass(frozen=True, slots=True)
class Experience:
    """What this installation has seen of spot machines, by `provider/region/card`. Plain data, for a store.

    parts: the same of all of them by the part of the day, `TOGETHER` hours each, on the clocks of their regions.
    """

    seen: Mapping[str, Seen] = field(default_factory=dict)
    parts: Mapping[int, Seen] = field(default_factory=dict)

    def ran(self, offer: Offer, start: float, end: float, *, lost: bool) -> Experience:
        """With a machine that ran from `start` to `end`, seconds since the epoch, and was taken back then or not."""
        found = ran(offer, start, end, lost=lost)
        if found is None:
            return self
        scope, more = found
        old = self.seen.get(scope, Seen())
        both = Seen(old.hours + more.hours, old.weekend + more.weekend, old.losses + more.losses)
        return Experience({**self.seen, scope: both}, self.parts)

    def to_json(self) -> dict[str, Any]:
        return {
            "seen": {scope: asdict(entry) for scope, entry in self.seen.items()},
            "parts": {str(part): asdict(entry) for part, entry in self.parts.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Experience:
        return cls(
            {scope: Seen(**entry) for scope, entry in data.get("seen", {}).items()},
            {int(part): Seen(**entry) for part, entry in data.get("parts", {}).items()},
        )


def ran(offer: Offer, start: float, end: float, *, lost: bool) -> tuple[str, Seen] | None:
    """What a machine adds to the experience of which place; None where it adds nothing (on demand, simulated)."""
    if offer.market is not Market.SPOT or offer.simulated:
        return None
    hours = max(0.0, end - start) / 3600
    weekend = hours * weekend_share(start, hours) if hours else 0.0
    return _scope(offer), Seen(hours, weekend, int(lost))


def by_part(offer: Offer, start: float, end: float, *, lost: bool) -> dict[int, Seen]:
    """What a machine adds to the experience of each part of the day; nothing on demand or simulated."""
    if offer.market is not Market.SPOT or offer.simulated:
        return {}
    ahead = offset(zone_of(offer.region), start)
    found = {part: Seen(hours) for part, hours in _parts(start + ahead, max(0.0, end - start) / 3600).items()}
    if lost:
        last = _part(end + ahead)
        found[last] = Seen(found[last].hours if last in found else 0.0, 0.0, 1)
    return found


def _part(local: float) -> int:
    return int(local % _DAY // (TOGETHER * 3600))


def _parts(local: float, hours: float) -> dict[int, float]:
    """The hours of a run in each part of the day that it touches."""
    days, left = divmod(hours, 24)
    found = dict.fromkeys(range(24 // TOGETHER), days * TOGETHER) if days else {}
    while left > _SMALL:
        step = min(left, TOGETHER - local / 3600 % TOGETHER)
        found[_part(local)] = found.get(_part(local), 0.0) + step
        local, left = local + step * 3600, left - step
    return found


def prior(card: str, region: str) -> float:
    """Losses per weekday hour that are expected of a spot machine before any has been seen; card: "" for none."""
    rate = BY_CARD.get(card, OTHER_CARD) if card else NO_CARD
    return rate * BY_REGION.get(region, 1.0)


def updated(prior: float, *, expected: float, losses: float, weight: float = WEIGHT, mean: float = 1.0) -> float:
    """The prior, a rate, after `losses` where it made one expect `expected`. mean: what its factor is thought to be."""
    return prior * (weight + losses) / (weight / mean + expected)


class Hazards:
    """Losses per hour of many offers, for work that starts at `at` and takes `hours`; each kind is computed once.

    past: how long zones have been up; None where that is not to count.
    """

    def __init__(self, experience: Experience, at: float, hours: float, past: Past | None = None) -> None:
        self._experience, self._at, self._hours = experience, at, hours
        self._past = past
        self._known: dict[tuple[object, ...], float] = {}
        self._seasons: dict[float, float] = {}
        self._days: dict[tuple[float, float], float] = {}

    def of(self, offer: Offer, hours: float | None = None) -> float:
        """Losses per hour, over the hours that the work takes on this offer.

        A provider's own figure is taken as it is for all hours: its period has its own weekends.
        """
        hours = self._hours if hours is None else hours
        phase = RANDOM if self._past is None else self._past.phase(offer, self._at)
        return self.aged(self.met(offer, hours), phase, hours)

    @staticmethod
    def aged(met: float, phase: int, hours: float) -> float:
        """In a zone of that phase of age, of the hazard in one that was met at random."""
        return met if phase == RANDOM else met * ageing(phase, hours)

    def met(self, offer: Offer, hours: float) -> float:
        """In a zone that was met at random."""
        kind = (
            offer.market, offer.simulated, offer.provider, offer.region, offer.gpu, offer.interruption, hours,
            offer.extra.get("reliability") if offer.extra else None,
        )  # fmt: skip
        found = self._known.get(kind)
        if found is None:
            found = self._known[kind] = self._rate(offer, hours)
        return found

    def _rate(self, offer: Offer, hours: float) -> float:
        if offer.market is not Market.SPOT or offer.simulated:
            return outages(offer) if offer.interruption is None else offer.interruption
        card = model(offer.gpu or "")
        expected = prior(card, offer.region)
        scope = _scope(offer)
        own = self._experience.seen.get(scope, Seen())
        mean = self._elsewhere(offer.provider, card, scope)
        if offer.interruption is not None:
            return updated(offer.interruption, expected=offer.interruption * own.hours, losses=own.losses, mean=mean)
        rate = updated(expected, expected=expected * own.weighted, losses=own.losses, mean=mean)
        day = self._day(offset(zone_of(offer.region), self._at), hours)
        return rate * self._season(hours) * day + outages(offer)

    def _season(self, hours: float) -> float:
        """What weekends in the run make of it."""
        found = self._seasons.get(hours)
        if found is None:
            found = self._seasons[hours] = 1 - (1 - WEEKEND) * weekend_share(self._at, hours)
        return found

    def _day(self, ahead: float, hours: float) -> float:
        """What the hours of the day in the run make of it, by what was seen. ahead: of UTC, in seconds."""
        parts = self._experience.parts
        if not parts:
            return 1.0
        found = self._days.get((ahead, hours))
        if found is None:
            ran, lost = (sum(getattr(seen, name) for seen in parts.values()) for name in ("hours", "losses"))
            local, mean = self._at + ahead, 0.0
            touched = _parts(local, hours) or {_part(local): 1.0}
            for part, span in touched.items():
                seen = parts.get(part, Seen())
                expected = lost * seen.hours / ran if ran else 0.0
                mean += span * updated(1.0, expected=expected, losses=seen.losses, weight=BY_HOUR)
            found = self._days[ahead, hours] = mean / sum(touched.values())
        return found

    def _elsewhere(self, provider: str, card: str, scope: str) -> float:
        """By how much the prior is wrong in the provider's other regions."""
        expected = losses = 0.0
        for place, entry in self._experience.seen.items():
            there, _, rest = place.partition("/")
            region, _, its = rest.rpartition("/")
            if there == provider and its == card and place != scope:
                expected += prior(card, region) * entry.weighted
                losses += entry.losses
        return updated(1.0, expected=expected, losses=losses)


def hazard(
    offer: Offer, *, at: float, hours: float = 0.0, experience: Experience | None = None, past: Past | None = None
) -> float:
    """Losses per hour to expect of one offer, see `Hazards`."""
    return Hazards(experience or Experience(), at, hours, past).of(offer)


@lru_cache(maxsize=1024)
def model(name: str) -> str:
    """The card's model without form or memory: `A100` of every A100; "" of none."""
    if not name:
        return ""
    try:
        name = gpus.card(name).family
    except ValueError:
        return name
    return re.sub(r"-\d+GB$", "", name)


def _scope(offer: Offer) -> str:
    return f"{offer.provider}/{offer.region}/{model(offer.gpu or '')}"
