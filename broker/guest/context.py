"""`Context`: what the parts of one guest share, and how something that may block is done without missing a notice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from broker.errors import HomeAccessDenied, HomeAccessExpired, HomeUnavailable
from broker.guest.bootfile import Boot
from broker.guest.clock import Clock
from broker.guest.contain import Containment
from broker.guest.control import Watchman
from broker.guest.ending import Cause
from broker.guest.log import Log
from broker.guest.mask import Mask
from broker.guest.notice import Notices
from broker.guest.program import Exit
from broker.guest.status import Status
from broker.guest.steps import Steps
from broker.guest.uplink import Uplink, reachable
from broker.home import Home, JobKeys

T = TypeVar("T")
TICK = 0.1  # seconds between two looks at whether the program has ended or something asks for its end
PAUSE, LONGEST_PAUSE = 0.2, 5.0


class Stale(Exception):  # noqa: N818 - a state, not an error
    """This generation does not stand: run nothing, write nothing, end the machine."""


class Interrupted(Exception):  # noqa: N818
    """Something asked for the end before a program ran."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.reason)
        self.cause = cause


class Refused(Exception):  # noqa: N818
    """The job cannot be run here; the text is the result's reason."""


class SetupFailed(Refused):
    """The task's own setup failed."""


@dataclass(frozen=True, slots=True)
class Context:
    """folder: the guest's own on this machine. environ: the guest's own environment."""

    boot: Boot
    folder: Path
    environ: dict[str, str]
    keys: JobKeys
    home: Home
    clock: Clock
    contain: Containment
    steps: Steps
    mask: Mask
    status: Status
    log: Log
    notices: Notices
    uplink: Uplink
    watchman: Watchman

    @property
    def generation(self) -> int:
        return self.boot.generation

    def aside(self, what: str, call: Callable[[], T]) -> T:
        """Do something that may block, in a thread of its own, again and again while the store is silent.

        Raises what `call` raises, else Interrupted or Stale as soon as something asks for the end; the thread is then
        left behind.
        """
        done: list[T] = []
        failed: list[Exception] = []

        def work() -> None:
            pause = PAUSE
            while True:
                try:
                    reachable(self.home.url)
                    done.append(call())
                    return
                except (HomeUnavailable, HomeAccessExpired, HomeAccessDenied) as error:
                    if isinstance(error, HomeAccessDenied) and not self.uplink.expired:
                        failed.append(error)
                        return
                    self.status.warn(f"{what}: {error}")
                    if not isinstance(error, HomeUnavailable):
                        self.uplink.renew()
                except Exception as error:  # noqa: BLE001 - handed to the thread that waits for it
                    failed.append(error)
                    return
                time.sleep(pause)
                pause = min(LONGEST_PAUSE, 2 * pause)

        thread = threading.Thread(target=work, name=what, daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(TICK)
            if thread.is_alive():
                self.check()
        if failed:
            raise failed[0]
        return done[0]

    def check(self) -> None:
        """Raises Interrupted or Stale if something asks for the end."""
        if (cause := self.watchman.cause()) is not None:
            self.interrupt(cause)

    def interrupt(self, cause: Cause) -> None:
        if cause.kind == "stale":
            raise Stale
        raise Interrupted(cause)

    def notice_before(self, ended: Exit) -> bool:
        """Did a notice come before the program's end? After a failure the provider is asked once more."""
        word = self.notices.look() if ended.code != 0 else self.notices.word
        return word is not None and word.at <= ended.at
