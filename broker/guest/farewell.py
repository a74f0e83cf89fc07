"""A generation's last words: the last snapshot, `closed`, `result`, the last beat; tried as long as they matter."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

from broker.guest.clock import Clock
from broker.guest.ending import Cause, Verdict
from broker.guest.program import Exit
from broker.guest.publisher import Publisher
from broker.guest.status import Status
from broker.guest.uplink import Uplink

AFTER_NOTICE = 60.0  # seconds past a notice's end, should the machine still be there; its successor then starts anyway
LAST_BEAT = 10.0
LAST_OUTPUT = 60.0  # seconds, and a fifth of what is left, in which the output goes out before the last words
FINISHED = 6  # times the usual patience: for work that is done and would be lost


@dataclass(frozen=True, slots=True)
class Ending:
    """Everything that is known of how this generation ends. ended: None where no program ran.

    cleared: no program of an earlier generation can run any more. note: what its user should know of a success.
    """

    verdict: Verdict
    ended: Exit | None = None
    cause: Cause | None = None
    outputs: dict[str, Any] = field(default_factory=dict)
    last_step: int | None = None
    restarts: int = 0
    cleared: bool = True
    note: str = ""

    @property
    def torn(self) -> bool:
        """May a file of unknown format be cut? So where force ended the program, or it failed by itself."""
        if self.ended is None or self.ended.forced:
            return True
        return self.ended.code != 0 and not self.ended.after_term

    def until(self, clock: Clock, patience: float, *, locked: bool = False) -> float:
        """The monotonic moment until which a silent store is tried. locked: only a broker's renewal opens it again."""
        now = time.monotonic()
        if self.cause is not None and self.cause.kind == "notice":
            return max(self.cause.ends or now, now) + AFTER_NOTICE
        if locked and self.verdict.outcome == "succeeded":
            return max(now, clock.deadline)  # a broker that sleeps wakes in the morning, and the work is done
        times = FINISHED if self.verdict.outcome in ("succeeded", "failed") else 1
        return max(now, min(clock.deadline, now + times * patience))


def publish_last(publisher: Publisher, uplink: Uplink, status: Status, *, torn: bool, until: float) -> None:
    """Finish the running upload, then publish what the ended program has left."""
    if publisher.stop(until):
        uplink.guarded("the last snapshot", lambda: publisher.final(killed=torn), until=until)
    else:
        status.warn("the last upload did not end in time")


def close(
    ending: Ending, uplink: Uplink, status: Status, clock: Clock, *, until: float, kept: float | None = None
) -> str:
    """Write `result` and `closed`, once, and the last beat; returns the result's words. Nothing follows them.

    A generation that falls meanwhile writes no more. kept: until when the machine stays for a person to look,
    monotonic; None where it ends at once.
    """
    generation, keys, home = uplink.boot.generation, uplink.keys, uplink.home
    seq, verdict, ended = status.get("seq"), ending.verdict, ending.ended
    closed = {"seq": seq, "why": ending.cause.why if ending.cause else verdict.outcome, "at": clock.now()}
    result = {
        "outcome": verdict.outcome,
        "exit": ended.code if ended else None,
        "signal": ended.signal if ended else None,
        "reason": status.shown(verdict.reason),
        "why": closed["why"],
        "fix": status.shown(verdict.fix),
        "at": clock.now(),
        "seq": seq,
        "outputs": ending.outputs,
        "note": status.shown(ending.note),
        "restarts": ending.restarts,
        "last_step": ending.last_step,
        "kept_until": None if kept is None else clock.now() + kept - time.monotonic(),
    }
    # The broker may end this machine once it has heard of the end, so the output is out before.
    ends = ending.cause.ends if ending.cause is not None and ending.cause.ends is not None else until
    uplink.flush(min(LAST_OUTPUT, 0.2 * max(0.0, min(ends, until) - time.monotonic())))
    until = max(until, time.monotonic() + LAST_BEAT)
    # `closed` lets the next program start, so the result that may make it needless is there before.
    words = [(keys.result(generation), result, "result")]
    if ending.cleared:
        words.append((keys.closed(generation), closed, "closed"))
    for key, content, name in words:
        raw = json.dumps(content).encode()
        uplink.guarded(name, lambda key=key, raw=raw: (home.create(key, raw),), until=until)  # type: ignore[misc]
        status.set(**{name: content})
    status.set(state="ended" if kept is None else "kept")
    if not uplink.stale:
        uplink.flush(max(LAST_BEAT, min(until - time.monotonic(), 60.0)))
    return f"{verdict.outcome}: {result['reason']}"
