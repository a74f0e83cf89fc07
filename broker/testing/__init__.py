"""For tests of providers and of programs that use spotbroker: the conformance suite and two fakes.

FakeProvider   does what it is told: errors in line, a log of calls, reset
FakeCloud      behaves: time passes, machines boot, get notices, are taken back; it lies on request
FakeClock      the time of a FakeCloud, moved by hand
ProviderConformance   the provider contract as test classes for pytest, with three fixtures to write
Hand           what those tests need of a cloud besides its API

Only the conformance suite needs pytest, and imports it at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.testing.fake import Call, FakeProvider, sample_offers
from broker.testing.fakecloud import FakeClock, FakeCloud
from broker.testing.hand import Hand, wait_for

if TYPE_CHECKING:
    from broker.testing.conformance import ProviderConformance

__all__ = [
    "Call",
    "FakeClock",
    "FakeCloud",
    "FakeProvider",
    "Hand",
    "ProviderConformance",
    "sample_offers",
    "wait_for",
]


def __getattr__(name: str) -> Any:
    if name == "ProviderConformance":
        from broker.testing.conformance import ProviderConformance

        return ProviderConformance
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
