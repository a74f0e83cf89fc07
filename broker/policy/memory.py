"""What a job remembers of offers that refused it or lost it. Plain data: it lives in the state of a durable workflow.

Every method returns a new `Memory`. Times are seconds since the epoch, as the caller's clock has them.

An offer that failed cools down twice over: until `until` any other offer is taken instead; from `again` on, which is
much earlier, it may be tried again if nothing else fits, so that a job with one possible offer does not sit idle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from broker.errors import (
    Ambiguous,
    AuthFailed,
    NoCapacity,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    RateLimited,
)
from broker.offer import Market, Offer

FIRST_RETRY, LAST_RETRY = 30.0, 600.0
LONGEST = 3600.0
QUOTA_REST = 6 * 3600.0
UNKNOWN_LIMIT = 5
REFUSALS: tuple[tuple[type[ProviderError], float], ...] = (
    (NoCapacity, 300.0),
    (ProviderUnavailable, 60.0),
    (Ambiguous, 300.0),
)
UNKNOWN_REST = 1800.0
LOSS_REST = 600.0


@dataclass(frozen=True, slots=True)
class Cooldown:
    """until: taken only for want of others before this. again: not tried at all before this. times: in a row."""

    until: float
    again: float
    why: str
    times: int = 1


@dataclass(frozen=True, slots=True)
class Block:
    """A scope that is left out altogether until `until`; None means for as long as the job lives."""

    why: str
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """cooldowns: by offer key. blocked: by scope, a prefix of offer keys. last_failed: the key that failed last.

    unknown: refusals in a row that no adapter could classify, with the last one's text; `UNKNOWN_LIMIT` of them end it.
    asked_on_demand, refused_on_demand: launches of machines on demand, and those of them that were refused.
    """

    cooldowns: Mapping[str, Cooldown] = field(default_factory=dict)
    blocked: Mapping[str, Block] = field(default_factory=dict)
    last_failed: str | None = None
    unknown: int = 0
    unknown_text: str = ""
    asked_on_demand: int = 0
    refused_on_demand: int = 0

    def asked(self, offer: Offer) -> Memory:
        """Before a launch is sent: how often on-demand machines are refused is a part of a deadline's chances."""
        return replace(self, asked_on_demand=self.asked_on_demand + 1) if offer.market is Market.ON_DEMAND else self

    def refused(self, offer: Offer, error: ProviderError, now: float) -> Memory:
        """After a launch that was refused. What `InvalidRequest` means is the caller's to decide: it should stop."""
        if offer.market is Market.ON_DEMAND:
            self = replace(self, refused_on_demand=self.refused_on_demand + 1)  # noqa: PLW0642 - counted, and the rest
        if isinstance(error, QuotaExceeded):
            why = f"quota exceeded in {error.scope}: {_told(error)}"
            return self._block(error.scope, Block(why, now + QUOTA_REST), offer)
        if isinstance(error, AuthFailed):
            return self._block(offer.provider, Block(f"{offer.provider} refuses this account: {_told(error)}"), offer)
        if isinstance(error, RateLimited):
            return self._cool(offer, "RateLimited", now, error.retry_after, retry=error.retry_after)
        for kind, rest in REFUSALS:
            if isinstance(error, kind):
                return self._cool(offer, kind.__name__, now, rest)
        word = " ".join(part for part in (error.code, error.message) if part)
        cooled = self._cool(offer, error.code or type(error).__name__, now, UNKNOWN_REST)
        return replace(cooled, unknown=self.unknown + 1, unknown_text=word)

    def lost(self, offer: Offer, why: str, now: float) -> Memory:
        """After a machine that was had and lost: `why` is a noun such as "preemption", "silence", "a failed boot"."""
        return self._cool(offer, why, now, LOSS_REST)

    def launched(self) -> Memory:
        """After a launch that was accepted: the row of unknown refusals is broken."""
        return replace(self, unknown=0, unknown_text="") if self.unknown else self

    def reopened(self) -> Memory:
        """For a job that nothing else is left for: a key, or an account's credit, may have been mended meanwhile."""
        return replace(self, blocked={scope: b for scope, b in self.blocked.items() if b.until is not None})

    def _cool(self, offer: Offer, why: str, now: float, rest: float, *, retry: float = FIRST_RETRY) -> Memory:
        kept = {key: c for key, c in self.cooldowns.items() if c.until + LONGEST > now}
        times = kept[offer.key].times + 1 if offer.key in kept else 1
        factor = 2.0 ** min(times - 1, 10)
        again = now + max(retry, min(FIRST_RETRY * factor, LAST_RETRY))
        until = max(now + min(rest * factor, LONGEST), again)
        kept[offer.key] = Cooldown(until, again, why, times)
        return replace(self, cooldowns=kept, last_failed=offer.key)

    def _block(self, scope: str, block: Block, offer: Offer) -> Memory:
        return replace(self, blocked={**self.blocked, scope: block}, last_failed=offer.key)

    def to_json(self) -> dict[str, Any]:
        return {
            "cooldowns": {key: asdict(c) for key, c in self.cooldowns.items()},
            "blocked": {scope: asdict(b) for scope, b in self.blocked.items()},
            "last_failed": self.last_failed,
            "unknown": self.unknown,
            "unknown_text": self.unknown_text,
            "asked_on_demand": self.asked_on_demand,
            "refused_on_demand": self.refused_on_demand,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Memory:
        return cls(
            cooldowns={key: Cooldown(**c) for key, c in data.get("cooldowns", {}).items()},
            blocked={scope: Block(**b) for scope, b in data.get("blocked", {}).items()},
            last_failed=data.get("last_failed"),
            unknown=data.get("unknown", 0),
            unknown_text=data.get("unknown_text", ""),
            asked_on_demand=data.get("asked_on_demand", 0),
            refused_on_demand=data.get("refused_on_demand", 0),
        )


def _told(error: ProviderError) -> str:
    """What was said, and what helps: a quota can be asked for, credit be added, a key be made anew."""
    return f"{error.message} ({error.fix})" if error.fix else error.message
