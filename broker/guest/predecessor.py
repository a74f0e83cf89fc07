"""The generation before this one: when its program has surely ended, and whether it left anything to do."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

from broker.errors import HomeError
from broker.guest.clock import Clock
from broker.guest.uplink import Uplink
from broker.home import Home, JobKeys

POLL = 0.5
RESULTS = 10  # earlier generations whose result is looked at


def wait_for_predecessor(home: Home, keys: JobKeys, uplink: Uplink, clock: Clock) -> None:
    """Return once this generation may start its program: see "Start of generation N+1" in the protocol."""
    while True:
        order = uplink.order
        if order is None or order.after is None or order.go:
            return
        # Only the store's own time counts here: this machine's clock may be anything.
        if order.not_before is not None and clock.offset is not None and clock.now() > order.not_before:
            return
        with suppress(HomeError):
            if home.find(keys.closed(order.after)) is not None:
                return
        time.sleep(POLL)


def succeeded_before(home: Home, keys: JobKeys, generation: int) -> dict[str, Any] | None:
    """The result of an earlier generation that succeeded, as this one's own; None if there is none."""
    for earlier in range(generation - 1, max(0, generation - 1 - RESULTS), -1):
        try:
            result = json.loads(home.find(keys.result(earlier)) or b"{}")
        except ValueError:
            continue  # whoever had that machine may have written what they liked
        if isinstance(result, dict) and result.get("outcome") == "succeeded":
            return {
                "outcome": "succeeded",
                "reason": f"generation {earlier} had succeeded; nothing was started",
                "outputs": result.get("outputs") or {},
            }
    return None
