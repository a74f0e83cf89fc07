"""How a program's end is read: pure functions, one branch for each row of the protocol's table."""

from __future__ import annotations

from dataclasses import dataclass

from broker.guest.program import Exit

MOVES = {"notice", "migrate", "silence", "preempted", "sigterm", "hardware", "stuck"}


@dataclass(frozen=True, slots=True)
class Cause:
    """Why the guest wants the program to end. kind: notice | order | end_by | hardware | stuck | stale.

    why: notice, migrate, stop, budget, deadline … ends: the monotonic moment at which the machine may be gone.
    """

    kind: str
    why: str
    reason: str
    ends: float | None = None

    @property
    def outcome(self) -> str:
        """moved | stopped | ended, for a program that ended because of this."""
        if self.kind == "notice" or self.why in MOVES:
            return "moved"
        return "stopped" if self.why == "stop" else "ended"


@dataclass(frozen=True, slots=True)
class Verdict:
    """outcome: succeeded | failed | moved | stopped | ended. fix: what its user could do, where that is known."""

    outcome: str
    reason: str
    fix: str = ""


def judge(exit: Exit, cause: Cause | None, *, noticed: bool, at_total: bool) -> Verdict:  # noqa: A002 - it is the word
    """Read an end. noticed: a notice came before it; at_total: `progress` had reached its total."""
    if exit.after_term and cause is not None:
        # With another exit code it was cut off in what comes after its last step, such as writing its outputs.
        if at_total and exit.code == 0:
            return Verdict("succeeded", f"its progress had reached the total when it was ended ({cause.reason})")
        return Verdict(cause.outcome, cause.reason)
    if exit.code == 0:
        return Verdict("succeeded", "exit 0")
    if noticed:
        return Verdict("moved", f"{describe(exit)}, after a notice that the machine will be taken back")
    return Verdict("failed", describe(exit))


def describe(exit: Exit) -> str:  # noqa: A002
    """An end that is no success, for people."""
    killed = exit.signal == 9 or exit.code == 137
    if exit.oom and killed:
        return f"out of memory (exit {exit.code}; the kernel killed {exit.oom} of its processes for memory)"
    if exit.oom:
        return f"exit {exit.code}; the kernel killed {exit.oom} of its processes for memory"
    if killed:
        return f"exit {exit.code} (killed)"
    return f"exit {exit.code}" + (f" (signal {exit.signal})" if exit.signal else "")
