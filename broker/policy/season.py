"""How the price of a spot machine goes over the week: what is taken for granted, and what was seen. Pure.

Nobody tells a price of tomorrow. Until a week of an offer's own prices is known, nights and weekends are taken to be 10
to 15 % cheaper than working hours (`PRIOR`); after that each hour is what it usually was, working days and weekends
apart. Only ratios count: the price now, by what its hour usually is, tells the level.

Hours are those of the offer's region (`zone_of`), with that day's distance from UTC for the whole of a run. Moments are
seconds since the epoch, prices USD per hour.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from itertools import zip_longest
from math import ceil, inf
from zoneinfo import ZoneInfo

from broker.offer import Market, Offer

OFF_PEAK = 0.875
"""Times the usual price at night and at weekends, where nothing is known: 10 to 15 % lower."""
NIGHT_BEGINS, NIGHT_ENDS = 22, 7
HOURS = 24
WEEK = 6.5 * 86_400.0
"""Seconds that prices must span to be a week's; looks are not made on the minute."""
_HOUR, _DAY = 3600.0, 86_400.0
_MONDAY = 3 * _DAY
"""The epoch was a Thursday: so long before it a week began."""
_LONG = 7 * HOURS
_SMALL = 1e-6
# AWS's regions by the beginnings of their names; everywhere else it is UTC.
_ZONES = {
    "us-east": "America/New_York", "us-west": "America/Los_Angeles", "us-gov-east": "America/New_York",
    "us-gov-west": "America/Los_Angeles", "ca-central": "America/Toronto", "ca-west": "America/Edmonton",
    "mx-central": "America/Mexico_City", "sa-east": "America/Sao_Paulo", "eu-west-1": "Europe/Dublin",
    "eu-west-2": "Europe/London", "eu-west-3": "Europe/Paris", "eu-central": "Europe/Berlin",
    "eu-north": "Europe/Stockholm", "eu-south-1": "Europe/Rome", "eu-south-2": "Europe/Madrid",
    "il-central": "Asia/Jerusalem", "me-": "Asia/Dubai", "af-south": "Africa/Johannesburg",
    "ap-south-": "Asia/Kolkata", "ap-southeast-1": "Asia/Singapore", "ap-southeast-2": "Australia/Sydney",
    "ap-southeast-3": "Asia/Jakarta", "ap-southeast-4": "Australia/Melbourne", "ap-southeast-5": "Asia/Singapore",
    "ap-southeast-6": "Pacific/Auckland", "ap-southeast-7": "Asia/Bangkok", "ap-east-1": "Asia/Hong_Kong",
    "ap-east-2": "Asia/Taipei", "ap-northeast-2": "Asia/Seoul", "ap-northeast": "Asia/Tokyo",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Season:
    """A price by the hour of the day: 24 of working days, then 24 of weekends; None for an hour never seen.

    seen: made of what was looked at, not taken for granted.
    """

    hours: tuple[float | None, ...]
    seen: bool = True

    def usual(self, local: float) -> float | None:
        """At a moment of the local clock, seconds since its epoch."""
        return self.hours[_cell(local)]

    def mean(self, local: float, hours: float) -> float | None:
        """Over so many hours from a moment of the local clock on; None where any of them is not known."""
        total = 0.0
        for cell, share in _shares(local, hours):
            value = self.hours[cell]
            if value is None:
                return None
            total += share * value
        return total

    def ahead(self, at: float, hours: float, zone: tzinfo) -> float | None:
        """What an hour costs on average over a run from `at` on, in times of what it costs then."""
        local = at + offset(zone, at)
        now, run = self.usual(local), self.mean(local, hours)
        return run / now if now and run is not None else None


PRIOR = Season(
    (
        *(OFF_PEAK if hour >= NIGHT_BEGINS or hour < NIGHT_ENDS else 1.0 for hour in range(HOURS)),
        *(OFF_PEAK for _ in range(HOURS)),
    ),
    seen=False,
)


def weekly(samples: Sequence[tuple[float, float]], zone: tzinfo) -> Season | None:
    """The mean price of each hour, of (moment, price) samples in any order; None until they span a week."""
    if not samples or max(at for at, _ in samples) - min(at for at, _ in samples) < WEEK:
        return None
    found: list[list[float]] = [[] for _ in range(2 * HOURS)]
    for at, price in samples:
        found[_cell(at + offset(zone, at))].append(price)
    return Season(tuple(sum(prices) / len(prices) if prices else None for prices in found))


def sampled(
    points: Sequence[tuple[float, float]], looks: Sequence[tuple[float, bool, bool]], until: float
) -> list[tuple[float, float]]:
    """The price on each full hour at which it was known, of points that were written when it changed.

    points: (moment, price). looks: (moment, up, fresh) of its zone, written when it came or went; fresh: nobody had
    looked for long, so that nothing is known of the time before. Both in order. until: the last look. Without looks
    each point stands for itself.
    """
    known = [(at, end) for at, up, end in _spells(looks, until) if up and end > at]
    found: list[tuple[float, float]] = []
    for (at, price), after in zip_longest(points, points[1:]):
        found.append((at, price))
        end = inf if after is None else after[0]
        for begin, close in known:
            hour = _HOUR * ceil(max(at, begin) / _HOUR)
            while hour < end and hour <= close:
                if hour > at:
                    found.append((hour, price))
                hour += _HOUR
    return found


def _spells(looks: Sequence[tuple[float, bool, bool]], until: float) -> Iterator[tuple[float, bool, float]]:
    """From when, up or not, and until when that was seen."""
    for (at, up, _), after in zip_longest(looks, looks[1:]):
        yield at, up, until if after is None else at if after[2] else after[0]


def level(samples: Iterable[tuple[float, float]], zone: tzinfo) -> Season:
    """The prior, at the level of the few prices that are known; without any only its ratios count."""
    found = [price / (PRIOR.usual(at + offset(zone, at)) or 1.0) for at, price in samples]
    usual = sum(found) / len(found) if found else 1.0
    return Season(tuple(usual * (value or 1.0) for value in PRIOR.hours), seen=False)


def moves(offer: Offer) -> bool:
    """Does its price change while it runs? Not on demand, and not where the bid itself is paid."""
    return offer.market is Market.SPOT and not offer.simulated and not (offer.extra and offer.extra.get("pays_bid"))


@lru_cache(maxsize=1024)
def zone_of(region: str) -> tzinfo:
    """The time zone of a provider's region; UTC where it is not known."""
    found = max((name for name in _ZONES if region.startswith(name)), key=len, default="")
    return ZoneInfo(_ZONES[found]) if found else UTC


@lru_cache(maxsize=65_536)
def _hourly_offset(zone: tzinfo, hour: int) -> float:
    found = datetime.fromtimestamp(hour * _HOUR, zone).utcoffset()
    return found.total_seconds() if found is not None else 0.0


def offset(zone: tzinfo, at: float) -> float:
    """Seconds that a zone's clock is ahead of UTC at a moment."""
    return _hourly_offset(zone, int(at // _HOUR))


@lru_cache(maxsize=4096)
def _shares(local: float, hours: float) -> tuple[tuple[int, float], ...]:
    """The cells that a run of so many hours goes through, and its share in each."""
    if hours < _SMALL:
        return ((_cell(local), 1.0),)
    weeks, left = divmod(hours, _LONG)
    spent = [weeks] * _LONG if weeks else [0.0] * _LONG
    place = (local + _MONDAY) % (7 * _DAY) / _HOUR
    while left > 0:
        hour = int(place)
        step = min(left, hour + 1 - place)
        spent[hour % _LONG] += step
        place, left = hour + 1.0, left - step
    found = [0.0] * (2 * HOURS)
    for hour, span in enumerate(spent):
        found[hour % HOURS + (HOURS if hour >= 5 * HOURS else 0)] += span / hours
    return tuple((cell, share) for cell, share in enumerate(found) if share)


def _cell(local: float) -> int:
    day, rest = divmod((local + _MONDAY) % (7 * _DAY), _DAY)
    return int(rest // _HOUR) + (HOURS if day >= 5 else 0)
