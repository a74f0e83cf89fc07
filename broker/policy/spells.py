"""What has been seen of spot zones: how long each has been up or down, and how it behaved lately.

`Sky.see` takes in one look at all zones; looks may be any time apart and should go on between jobs, since a zone's age
and record are what the timing of a job is decided on. Times are hours on any one clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from functools import lru_cache
from math import exp, inf, log, sqrt
from typing import Any

from broker.policy.renewal import DOWN_HAZARD, EDGES, UP_HAZARD

SHARE_MEMORY, FLIP_MEMORY = 24.0, 96.0
"""Hours after which having been up, and a change, count 1/e. The best pair of 6 to 168 h on traces left out."""

FLIPS = 0.25
"""Changes per hour of a zone that nothing is known of. The tuning zones' median is 0.4; taking a zone for calmer until
it is seen to flap was better where many were to be had (0.25 and 0.5 were tried). Times the region's prior."""

BY_REGION = {"us-east-1": sqrt(3), "us-west-2": 1 / sqrt(3)}
"""How shaky a region's zones are before any was seen; see `broker.policy.hazard`."""

UNKNOWN = 6.0
"""Hours that a spell is taken to have lasted when it was first seen: a spell met at random is likely a long one."""

# A hazard's factor is exp(constant + age * log(age) + share * logit(share up) + flips * log(flips an hour)), fitted by
# Poisson regression to the tuning traces: `benchmarks/policy.py hazards`. Traces left out confirm the fit.
_UP_FACTOR = (0.328, 0.112, -0.250, 0.336)
_DOWN_FACTOR = (0.224, 0.090, 0.198, 0.295)

_ENDS = (*EDGES, inf)
_AGES = (EDGES[0] / 2, *(sqrt(start * end) for start, end in zip(EDGES, (*EDGES[1:], 2 * EDGES[-1]), strict=True)))
_RATES = tuple(rate * max(age, 0.1) ** _UP_FACTOR[1] for rate, age in zip(UP_HAZARD, _AGES, strict=True))


def lasts(age: float, factor: float, hours: float) -> float:
    """Hours, of the next `hours`, that an up-spell of this age still lasts on average.

    `factor`: of the hazard, other than by age; it is taken to stay. Where several zones are up this tells them apart
    better than the hazard does, which says nothing of how soon it will fall.
    """
    phase, chance, total = bisect_right(EDGES, age), 1.0, 0.0
    for rate, end in zip(_RATES[phase:], _ENDS[phase:], strict=True):
        span = min(end - age, hours)
        survives = exp(-rate * factor * span)
        total += chance * (1 - survives) / (rate * factor)
        if span >= hours:
            break
        chance, hours, age = chance * survives, hours - span, end
    return total


@lru_cache(maxsize=64)
def typical(hours: float) -> tuple[float, ...]:
    """What `lasts` says of a zone without a record, by phase of age; rising."""
    return tuple(lasts(age, 1.0, hours) for age in _AGES)


class Zone:
    """One zone's spell and record."""

    __slots__ = ("_at", "_flips", "_share", "since", "up")

    def __init__(self, at: float, up: bool, name: str = "") -> None:
        self.up, self.since = up, at - UNKNOWN
        prior = next((factor for region, factor in BY_REGION.items() if region in name), 1.0)
        self._at, self._share, self._flips = at, 0.5, FLIP_MEMORY * FLIPS * prior

    def see(self, at: float, up: bool) -> None:
        if up != self.up:
            self._share, self._flips = self._record(at)
            self._flips += 1
            self.up, self.since, self._at = up, at, at

    def _record(self, at: float) -> tuple[float, float]:
        """The share of the time that it was up, and how often it changed, both fading."""
        passed = max(0.0, at - self._at)  # a clock set back makes nothing younger than new
        share = self.up + (self._share - self.up) * exp(-passed / SHARE_MEMORY)
        return share, self._flips * exp(-passed / FLIP_MEMORY)

    def _factor(self, at: float) -> float:
        """Of the hazard: what the record makes of it."""
        share, flips = self._record(at)
        c, _, by_share, by_flips = _UP_FACTOR if self.up else _DOWN_FACTOR
        return exp(c + by_share * log((share + 0.03) / (1.03 - share)) + by_flips * log(flips / FLIP_MEMORY + 0.02))

    def hazard(self, at: float) -> float:
        """How often a spell like this ends, per hour."""
        age = max(0.0, at - self.since)
        rates, by_age = (UP_HAZARD, _UP_FACTOR[1]) if self.up else (DOWN_HAZARD, _DOWN_FACTOR[1])
        return rates[bisect_right(EDGES, age)] * float(max(age, 0.1) ** by_age) * self._factor(at)

    def lasts(self, at: float, hours: float) -> float:
        """Hours, of the next `hours`, that it will still be up on average; 0 where it is down."""
        return lasts(max(0.0, at - self.since), self._factor(at), hours) if self.up else 0.0


class Sky:
    """All zones that one job may run in."""

    def __init__(self) -> None:
        self.zones: dict[str, Zone] = {}

    def see(self, at: float, available: Mapping[str, bool]) -> None:
        """One look: which zones can be had now. Zones that were not looked at are left out."""
        for name, up in available.items():
            zone = self.zones.get(name)
            if zone is None:
                self.zones[name] = Zone(at, up, name)
            else:
                zone.see(at, up)

    def to_json(self) -> dict[str, Any]:
        return {
            name: [zone.up, zone.since, zone._at, zone._share, zone._flips]  # noqa: SLF001 - of this very module
            for name, zone in self.zones.items()
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Sky:
        made = cls()
        for name, (up, since, at, share, flips) in data.items():
            zone = made.zones[name] = Zone(at, up)
            zone.since, zone._at, zone._share, zone._flips = since, at, share, flips  # noqa: SLF001
        return made
