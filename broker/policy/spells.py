"""What has been seen of spot zones: how long each has been up or down, and how it behaved lately.

`Sky.see` takes in one look at all zones; looks may be any time apart and should go on between jobs, since a zone's age
and record are what the timing of a job is decided on. Times are hours on any one clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from math import exp, log
from typing import Any

from broker.policy.renewal import DOWN_HAZARD, EDGES, UP_HAZARD, UP_SHARE

SHARE_MEMORY, FLIP_MEMORY = 24.0, 96.0
"""Hours after which having been up, and a change, count 1/e. The best pair of 6 to 168 h on traces left out."""

FLIPS = 0.25
"""Changes per hour of a zone that nothing is known of. The tuning zones' median is 0.4; taking a zone for calmer until
it is seen to flap was better where many were to be had (0.25 and 0.5 were tried)."""

UNKNOWN = 6.0
"""Hours that a spell is taken to have lasted when it was first seen: a spell met at random is likely a long one."""

# A hazard's factor is exp(constant + age * log(age) + share * logit(share up) + flips * log(flips an hour)), fitted by
# Poisson regression to the tuning traces: `benchmarks/policy.py hazards`. Traces left out confirm the fit.
_UP_FACTOR = (0.328, 0.112, -0.250, 0.336)
_DOWN_FACTOR = (0.224, 0.090, 0.198, 0.295)

_LEVELS = (0.0, 0.15, 0.3, 0.6, 1.0, 1.5, 2.5, 4.0, 8.0)
_PRIOR = 4.0  # losses that the assumption about other zones is worth
_KIN = 0.5  # other zones count half until seen: they tend to be down together
_DOWN = 1.0 - sum(UP_SHARE)


class Zone:
    """One zone's spell and record."""

    __slots__ = ("_at", "_flips", "_share", "since", "up")

    def __init__(self, at: float, up: bool) -> None:
        self.up, self.since = up, at - UNKNOWN
        self._at, self._share, self._flips = at, 0.5, FLIP_MEMORY * FLIPS

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

    def hazard(self, at: float) -> float:
        """How often a spell like this ends, per hour."""
        age = max(0.0, at - self.since)
        share, flips = self._record(at)
        c, by_age, by_share, by_flips = _UP_FACTOR if self.up else _DOWN_FACTOR
        factor = c + by_age * log(max(age, 0.1)) + by_share * log((share + 0.03) / (1.03 - share))
        factor += by_flips * log(flips / FLIP_MEMORY + 0.02)
        return (UP_HAZARD if self.up else DOWN_HAZARD)[bisect_right(EDGES, age)] * exp(factor)


class Sky:
    """All zones that one job may run in."""

    def __init__(self) -> None:
        self.zones: dict[str, Zone] = {}
        self.losses = self.replaced = 0
        self._oldest: str | None = None

    def see(self, at: float, available: Mapping[str, bool]) -> None:
        """One look: which zones can be had now. Zones that were not looked at are left out."""
        for name, up in available.items():
            zone = self.zones.get(name)
            if zone is None:
                self.zones[name] = Zone(at, up)
            else:
                zone.see(at, up)
        if len(self.zones) > 1:
            self._count()

    def _count(self) -> None:
        """Counts how often another zone was up when the one that had been up longest went down."""
        up = [name for name, zone in self.zones.items() if zone.up]
        if self._oldest is not None and not self.zones[self._oldest].up:
            self.losses += 1
            self.replaced += bool(up)
            self._oldest = None
        if self._oldest is None and up:
            self._oldest = min(up, key=lambda name: self.zones[name].since)

    @property
    def others(self) -> float:
        """What the other zones are worth, in average zones that come and go on their own; in steps, for `table`."""
        if len(self.zones) < 2:
            return 0.0
        assumed = 1 - _DOWN ** ((len(self.zones) - 1) * _KIN)
        replaced = (self.replaced + _PRIOR * assumed) / (self.losses + _PRIOR)
        number = log(max(1e-3, 1 - replaced)) / log(_DOWN)
        return min(_LEVELS, key=lambda level: abs(level - number))

    def to_json(self) -> dict[str, Any]:
        zones = {
            name: [zone.up, zone.since, zone._at, zone._share, zone._flips]  # noqa: SLF001 - of this very module
            for name, zone in self.zones.items()
        }
        return {"zones": zones, "losses": self.losses, "replaced": self.replaced, "oldest": self._oldest}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Sky:
        made = cls()
        for name, (up, since, at, share, flips) in data["zones"].items():
            zone = made.zones[name] = Zone(at, up)
            zone.since, zone._share, zone._flips = since, share, flips  # noqa: SLF001
        made.losses, made.replaced, made._oldest = data["losses"], data["replaced"], data["oldest"]
        return made
