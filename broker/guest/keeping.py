"""Keeping the machine, as its program has left it, for a person to look: how long, and the wait itself."""

from __future__ import annotations

import time

from broker.guest.context import TICK, Context

MARGIN = 2.0  # seconds before the machine's end by which it ends itself
LATE = 20.0  # seconds after which the boot script's timer ends a kept machine whose guest has not


def kept_until(c: Context) -> float | None:
    """The monotonic moment up to which a machine stays whose program has failed for good; None for none of it.

    Not one that goes anyway: on a notice, by an order, at its own end.
    """
    if not c.boot.keep or c.watchman.cause() is not None:
        return None
    return min(time.monotonic() + c.boot.keep, c.clock.deadline - MARGIN)


def stay(c: Context, until: float) -> str:
    """Wait until then, or until something ends the machine before; why it ends."""
    while (left := min(until, c.clock.deadline - MARGIN) - time.monotonic()) > 0:
        cause = c.watchman.cause()
        if cause is not None and cause.kind != "end_by":
            return cause.reason
        time.sleep(min(TICK, left))
    return "its time to be looked at is over"
