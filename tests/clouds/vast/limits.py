"""How often each of Vast's endpoints may be called, as documented, and what it answers to who calls too often."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field

THRESHOLDS = {  # seconds between two calls of one endpoint by one identity
    "PUT /api/v0/asks/{id}/": 4.5,
    "PUT /api/v0/instances/bid_price/{id}/": 5.5,
    "DELETE /api/v0/instances/{id}/": 3.0,
    "GET /api/v0/instances/{id}/": 2.0,
    "PUT /api/v0/instances/{id}/": 1.0,
    "GET /api/v1/instances/": 1.0,
}
PENALTIES = {"PUT /api/v0/asks/{id}/": 12.0}  # seconds that are lost by calling too often
PER_PERIOD = {"POST /api/v0/bundles/": (10, 60.0)}  # calls in so many seconds, by address


@dataclass
class Limits:
    """scale: multiplies every time; 0 for no limits. form: how a refusal is worded. retry_after: the least
    that header says, in seconds; None sends none. heard: when each endpoint was called, by the monotonic clock."""

    scale: float = 1.0
    form: str = "text"
    retry_after: int | None = None
    refused: int = 0
    heard: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    _last: dict[tuple[str, str], float] = field(default_factory=dict)
    _barred: dict[tuple[str, str], float] = field(default_factory=dict)
    _calls: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def refuse(self, endpoint: str, identity: str, address: str) -> tuple[dict[str, str], str, bytes] | None:
        """Headers, content type and body of a 429; None where the call is in order."""
        with self._lock:
            self.heard[endpoint].append(time.monotonic())
            wait, threshold = self._wait(endpoint, identity, address)
            if wait <= 0:
                return None
            self.refused += 1
            headers = {"Retry-After": str(max(self.retry_after, round(wait)))} if self.retry_after else {}
            named = f"endpoint threshold={threshold}"
            if self.form == "text":
                return headers, "text/plain", b"API requests too frequent"
            if self.form == "threshold":
                return headers, "text/plain", f"API requests too frequent: {named}".encode()
            told: dict[str, object] = {"detail": f"API requests too frequent {named}"}
            if self.form == "json":
                told = {"success": False, "error": "rate_limit_exceeded", "msg": f"API requests too frequent {named}"}
            return headers, "application/json", json.dumps(told).encode()

    def _wait(self, endpoint: str, identity: str, address: str) -> tuple[float, float]:
        now = time.monotonic()
        if endpoint in PER_PERIOD:
            calls, period = PER_PERIOD[endpoint]
            recent = [at for at in self._calls[endpoint, address] if at > now - period * self.scale]
            if len(recent) >= calls:
                return recent[0] + period * self.scale - now, period
            self._calls[endpoint, address] = [*recent, now]
            return 0.0, period
        threshold = THRESHOLDS.get(endpoint, 0.0) * self.scale
        place = (endpoint, identity)
        wait = max(self._last.get(place, float("-inf")) + threshold, self._barred.get(place, float("-inf"))) - now
        if threshold and wait > 0:
            self._barred[place] = now + PENALTIES.get(endpoint, 0.0) * self.scale
            return wait, threshold
        self._last[place] = now
        return 0.0, threshold
