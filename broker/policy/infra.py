"""Patterns that name places: `local`, `local/south`, `aws/us-*/us-east-1?`.

A pattern has the segments of an offer's key, of which all but the first may be left out:
`provider/region/zone/instance_type/market`. `*` stands for any text within one segment, `?` for one character.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable
from functools import lru_cache

from broker.offer import Market, Offer


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    segments = pattern.strip().strip("/").lower().split("/")
    text = "/".join(re.escape(segment).replace(r"\*", "[^/]*").replace(r"\?", "[^/]") for segment in segments)
    return re.compile(rf"{text}(/|$)")


def matcher(patterns: Iterable[str]) -> Callable[[Offer], bool]:
    """A test for many offers; without patterns every offer passes. Upper and lower case are one."""
    compiled = [_compiled(pattern) for pattern in patterns]
    if not compiled:
        return lambda _offer: True
    known: dict[tuple[str, str, str, str, Market], bool] = {}

    def matches(offer: Offer) -> bool:
        place = (offer.provider, offer.region, offer.zone, offer.instance_type, offer.market)
        if place not in known:
            text = "/".join(place).lower()
            known[place] = any(pattern.match(text) for pattern in compiled)
        return known[place]

    return matches


def may_name(patterns: Iterable[str], provider: str) -> bool:
    """Can any of these patterns match an offer of this provider? Without patterns, any may."""
    heads = [pattern.strip().strip("/").split("/", 1)[0] for pattern in patterns]
    return not heads or any(_compiled(head).match(provider.lower()) for head in heads)


def within(scope: str, offer: Offer) -> bool:
    """Does the offer lie within a scope as `QuotaExceeded` names it: `aws`, `aws/us-east-1`, `aws/us-east-1/spot`?

    A market may close a scope of any length, so that one quota can cover all zones of a region; and a segment may be a
    pattern, as in `aws/us-east-1/*/p[5-9]*/spot`, so that it covers the types that count to it and no others.
    """
    parts = scope.strip("/").split("/")
    market = parts.pop() if len(parts) > 1 and parts[-1] in (Market.SPOT, Market.ON_DEMAND) else offer.market
    place = [offer.provider, offer.region, offer.zone, offer.instance_type]
    fits = all(
        own == part or fnmatch.fnmatchcase(own, part) for own, part in zip(place[: len(parts)], parts, strict=False)
    )
    return market == offer.market and len(parts) <= len(place) and fits
