"""Which offer a job takes: pure functions, without I/O and without any clock but the one passed in.

`choose` ranks what the market offers and says why; `Memory` is what a job has learnt from refusals and losses.
"""

from broker.policy.choose import choose
from broker.policy.decision import Candidate, Decision, Kind, Rejected, Wish
from broker.policy.memory import Memory

__all__ = ["Candidate", "Decision", "Kind", "Memory", "Rejected", "Wish", "choose"]
