"""How often a program should save: Young's and Daly's interval, from how often machines are lost and what a save takes.

A save every `t` seconds costs `save / t` of the time, and a loss costs half of `t` on average; together that is least
near `sqrt(2 * save / hazard)` (J. W. Young 1974; J. T. Daly 2006). Runs on the rented machine too: standard library
only.
"""

from __future__ import annotations

from math import sqrt

SHORTEST, LONGEST = 60.0, 1800.0
UNMEASURED = 600.0
"""Seconds, until a save has been measured."""


def interval(hazard: float, save: float | None, *, every: float | None = None) -> float:
    """Seconds between two saves. hazard: losses per hour. save: seconds that one takes, its upload included.

    every: the task's own word, which stands: it is the most that the user is ready to lose without a notice.
    """
    if every is not None:
        return every
    if save is None:
        return UNMEASURED
    if hazard <= 0:
        return LONGEST
    return min(LONGEST, max(SHORTEST, sqrt(2 * save * 3600 / hazard)))
