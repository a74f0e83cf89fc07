"""What was seen of the spot offers of a market before now: how their prices go, and how long each zone has been up."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf
from typing import Any

from broker.offer import Market, Offer
from broker.policy.renewal import EDGES, UP_HAZARD
from broker.policy.season import PRIOR, Season, moves, zone_of

MET = 6.0
"""Hours that a zone is taken to have been up when it was first seen, as `broker.policy.spells` takes it too."""
_AGES = (0.085, 0.25, 0.5, 1.0, 2.0, 4.0, MET, 16.0, 48.0)
"""The hours that stand for each phase of age."""
RANDOM = bisect_right(EDGES, MET)
"""The phase of a zone that was met at random, for which all published rates are."""


@dataclass(frozen=True, slots=True)
class Past:
    """By the offers' keys. seasons: of those of which a week of prices is known. since: when the zone came up, seconds
    since the epoch, where it was seen to."""

    seasons: Mapping[str, Season] = field(default_factory=dict)
    since: Mapping[str, float] = field(default_factory=dict)

    def season(self, offer: Offer, at: float, hours: float) -> tuple[float, bool]:
        """What an hour costs on average over a run of so many hours, in times of the price now; and whether that was
        seen, or is the prior."""
        if not moves(offer):
            return 1.0, False
        where = zone_of(offer.region)
        season = self.seasons.get(offer.key) if self.seasons else None
        if season is not None and (found := season.ahead(at, hours, where)) is not None:
            return found, True
        return PRIOR.ahead(at, hours, where) or 1.0, False

    def phase(self, offer: Offer, at: float) -> int:
        """Of its zone's age."""
        if not self.since or offer.market is not Market.SPOT:
            return RANDOM
        since = self.since.get(offer.key)
        return RANDOM if since is None else phase_of(since, moments(at))

    def within(self, offers: Iterable[Offer]) -> Past:
        """Only what it has of these offers."""
        keys = [offer.key for offer in offers] if self.seasons or self.since else []
        return Past(
            {key: self.seasons[key] for key in keys if key in self.seasons},
            {key: self.since[key] for key in keys if key in self.since},
        )

    def to_json(self) -> dict[str, Any]:
        return {"seasons": {key: list(season.hours) for key, season in self.seasons.items()}, "since": dict(self.since)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Past:
        return cls({key: Season(tuple(hours)) for key, hours in data["seasons"].items()}, dict(data["since"]))


@lru_cache(maxsize=64)
def moments(at: float) -> tuple[float, ...]:
    """When zones came up that go over into another phase of age now, the oldest first."""
    return tuple(at - edge * 3600 for edge in reversed(EDGES))


def phase_of(since: float, turns: Sequence[float]) -> int:
    """Of a zone that came up then; turns: the `moments` of now."""
    return len(turns) - bisect_left(turns, since)


@lru_cache(maxsize=4096)
def ageing(phase: int, hours: float) -> float:
    """How often a zone of that age is lost over a run of so many hours, in times of one that was met at random.

    The shape is that of the tuning traces (`broker.policy.renewal`): a loss gets ever less likely the longer a zone has
    been up. On a long run it hardly matters how old the zone was at its start.
    """
    return _losses(_AGES[phase], hours) / _losses(MET, hours)


def _losses(age: float, hours: float) -> float:
    """Losses of a zone between an age and so many hours later; per hour where there are none."""
    if hours <= 0:
        return UP_HAZARD[bisect_right(EDGES, age)]
    spans = zip((0.0, *EDGES), (*EDGES, inf), UP_HAZARD, strict=True)
    return sum(rate * max(0.0, min(end, age + hours) - max(start, age)) for start, end, rate in spans)
