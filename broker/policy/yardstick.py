"""The timing policy as a plug-in of the deadline benchmark: `evaluate.py --policy broker.policy.yardstick:policy`.

The benchmark tells the time in seconds and asks once a tick; see `timing` for what is decided and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.policy.spells import Sky
from broker.policy.timing import Choice, Situation, decide, spots

_KINDS = {"SPOT": Choice.SPOT, "OD": Choice.ON_DEMAND, "NONE": Choice.WAIT}
_NAMES = {choice: name for name, choice in _KINDS.items()}


class YardstickPolicy:
    """One job at a time: `reset`, then `decide` at every tick."""

    def __init__(self) -> None:
        self._sky = Sky()
        self._starting = 0.0
        self._seen: Mapping[str, bool] | None = None

    def reset(self, job: Mapping[str, Any]) -> None:
        """A new job; its zones' past (a byte for each tick, up to the start) is all that is kept of earlier looks."""
        self.__init__()  # type: ignore[misc]
        zones, tick = list(job["zones"]), job["tick_s"] / 3600
        past = [job["history"].get(zone, b"") for zone in zones]
        length = min(map(len, past))
        before: tuple[int, ...] = ()
        for number, looks in enumerate(zip(*(one[len(one) - length :] for one in past), strict=True)):
            if looks != before:
                self._sky.see((number - length) * tick, {zone: bool(up) for zone, up in zip(zones, looks, strict=True)})
                before = looks

    def decide(
        self,
        elapsed_s: float,
        progress_s: float,
        tick_s: float,
        task_s: float,
        deadline_s: float,
        restart_s: float,
        spot_price: float,
        od_price: float,
        available: Mapping[str, bool],
        zone: str | None,
        kind: str,
    ) -> tuple[str, str | None]:
        """`("SPOT", zone)`, `("OD", None)` or `("NONE", None)`."""
        at = elapsed_s / 3600
        if available is not self._seen:  # the same object while nothing has changed
            self._sky.see(at, available)
            self._seen = available
        running = _KINDS[kind]
        if running is Choice.SPOT:
            return kind, zone
        self._starting = max(0.0, self._starting - tick_s) if running is Choice.ON_DEMAND else 0.0
        work = (task_s - progress_s) / 3600
        timing = decide(
            Situation(
                work=work,
                time=(deadline_s - elapsed_s) / 3600,
                delay=restart_s / 3600,
                tick=tick_s / 3600,
                on_demand=od_price,
                spots=spots(self._sky, at, available, dict.fromkeys(available, spot_price), work),
                running=running,
                zone=zone,
                starting=self._starting / 3600,
            )
        )
        if timing.choice is Choice.ON_DEMAND and running is not Choice.ON_DEMAND:
            self._starting = restart_s
        return _NAMES[timing.choice], timing.zone


policy = YardstickPolicy
