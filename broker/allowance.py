"""When a cache is worth its way: how long a restore may take, and what sending it may cost. Pure, but for a clock.

Time is worth what the machine costs. Runs on the rented machine: standard library only.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from broker.cache import Times, told_size

PATIENT = 5.0
"""Seconds of a restore before its speed is judged, or all that it may take if that is less: beginnings are slow."""
CENT = 0.01
"""USD that are paid for what was never measured."""


def to_restore(octets: int, times: Times, hourly: float, egress: float) -> tuple[float | None, str]:
    """How many seconds a restore may take, None for as many as it takes; and why none at all, empty if it may begin.

    octets: to be read. hourly: USD per hour of the machine. egress: USD per GiB that the home charges for reading.
    """
    price = octets / 2**30 * egress
    costs = f"reading {told_size(octets)} from this home costs {price:.2g} USD"
    if times.cold is None:
        return None, f"{costs}, and how long fetching it again takes was never measured" if price > CENT else ""
    saved = max(0.0, times.cold - (times.warm or 0.0))
    if (worth := saved * hourly / 3600) <= price and price > 0:
        return 0.0, f"{costs} and spares {saved:.0f} s, which are {worth:.2g} USD on this machine"
    limit = saved - price / hourly * 3600 if price else saved
    return limit, "" if limit > 0 else f"starting takes {times.cold:.0f} s without it and {times.warm:.0f} s with it"


def to_send(octets: int, cold: float | None, hourly: float, leaving: float) -> str:
    """Why a cache is not sent to the home, empty where it may be: it must pay with the first machine that restores it.

    octets: that the home does not have. cold: seconds that fetching takes, None where that was not measured. leaving:
    USD per GiB that the machine's cloud charges for sending.
    """
    price = octets / 2**30 * leaving
    costs = f"sending {told_size(octets)} to this home costs {price:.2g} USD"
    if cold is None:
        return f"{costs}, and how long fetching it again takes was never measured" if price > CENT else ""
    worth = cold * hourly / 3600
    return f"{costs}, and fetching it again {cold:.0f} s, {worth:.2g} USD on this machine" if price > worth else ""


class TooSlow(Exception):  # noqa: N818 - a decision
    """A restore that would take longer than it spares; its text says how long it would."""


class Stopwatch:
    """The gate of a restore: breaks it off once its speed shows that it takes longer than it may."""

    def __init__(self, octets: int, limit: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.octets, self.limit, self.clock = octets, limit, clock
        self.done = 0
        self._began = clock()

    def __call__(self, octets: int) -> None:
        # Threads may lose a piece of each other's count; the speed is an estimate anyway.
        self.done += octets
        taken = self.clock() - self._began
        if self.limit is None or taken < min(PATIENT, self.limit):
            return
        whole = taken * max(1.0, self.octets / max(self.done, 1))
        if whole > self.limit:
            raise TooSlow(f"{told_size(self.octets)} would take {whole:.0f} s")
