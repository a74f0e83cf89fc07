"""`Keep`: how long a machine stays for a person to look, once its program has failed for good. Pure.

The guest enforces it, so that it also ends with no broker alive. It lies within the machine's own end, so that what a
budget holds back for a machine holds back this too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from broker.document import Problem


@dataclass(frozen=True, slots=True)
class Keep:
    """seconds: at most so long. max_usd: at most for so much, None for whatever that time costs."""

    seconds: float
    max_usd: float | None = None

    def problems(self) -> Iterator[Problem]:
        if not 0 < self.seconds < math.inf:
            yield Problem("keep_on_failure.for", f"must be above zero seconds, not {self.seconds}")
        if self.max_usd is not None and not 0 < self.max_usd < math.inf:
            yield Problem("keep_on_failure.max_usd", f"must be above zero USD, not {self.max_usd}")

    def lasts(self, hourly: float) -> float:
        """Seconds for which a machine stays that costs so many USD per hour."""
        if self.max_usd is None or hourly <= 0:
            return self.seconds
        return min(self.seconds, 3600 * self.max_usd / hourly)

    def costs(self, hourly: float) -> float:
        """USD that it comes to at most."""
        return hourly * self.lasts(hourly) / 3600
