"""Says when a broker that holds jobs does not move, such as one that was stopped with SIGSTOP: nobody else can act."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from broker.cli.screen import Screen

if TYPE_CHECKING:
    from broker.config import Config

LOOK_EVERY = 5.0


def tell_still(screen: Screen, config: Config, told: set[str] | None = None) -> None:
    """Warn of every broker here that stands still, once where `told` is kept."""
    from broker.cli.tables import duration
    from broker.locks import standing_still

    told = set() if told is None else told
    for still in standing_still(config):
        if still.name in told:
            continue
        told.add(still.name)
        where = "" if still.host == socket.gethostname() else f" on {still.host}"
        # A stopped process takes no SIGTERM before it goes on.
        screen.warn(
            f"the broker with process id {still.pid}{where} has not moved for {duration(still.seconds)} (stopped?); "
            f"`kill -CONT {still.pid}` wakes it, `kill -9 {still.pid}` lets another take its jobs over"
        )


@contextlib.contextmanager
def telling_still(screen: Screen, config: Config) -> Iterator[None]:
    """Do so now and for as long as the block waits."""
    told: set[str] = set()
    over = threading.Event()

    def keep_telling() -> None:
        with contextlib.suppress(OSError):
            while not over.wait(LOOK_EVERY):
                tell_still(screen, config, told)

    tell_still(screen, config, told)
    thread = threading.Thread(target=keep_telling, name="spotbroker still", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
