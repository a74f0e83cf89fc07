"""`ProviderHalf`: the provider's `broker_X/guest.py` as the guest calls it."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

SIGTERM_SECONDS = 10.0  # taken to be left after SIGTERM, where the provider does not say
LONGEST_PAUSE = 60.0


@dataclass(frozen=True, slots=True)
class ProviderHalf:
    """notice: raises where it cannot know. end: asks for this machine's end; raises where that was refused."""

    notice: Callable[[], Mapping[str, Any] | None]
    end: Callable[[str], None]
    sigterm: Callable[[], float | None] = lambda: None

    @classmethod
    def load(cls, module: str) -> ProviderHalf:
        found = importlib.import_module(module)
        return cls(found.notice, found.end_machine, getattr(found, "sigterm_is_notice", lambda: None))

    def sigterm_seconds(self) -> float:
        return self.sigterm() or SIGTERM_SECONDS

    def end_machine(self, why: str, refused: Callable[[str], None]) -> None:
        """Return only once the end was accepted; tried for ever, because a machine that stays goes on billing.

        refused: told of every try that failed.
        """
        pause = 1.0
        while True:
            try:
                self.end(why)
                return
            except Exception as error:  # noqa: BLE001 - a provider's own code; whatever it is, try again
                refused(f"the machine could not be ended: {error}")
            time.sleep(pause)
            pause = min(LONGEST_PAUSE, 2 * pause)
