"""What DBOS is given and what is done around it: its connection, and the end of its loop."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from pathlib import Path

from broker.config import load
from broker.engine import WalConnection, running
from broker.testing import wait_for


def test_times_are_known_on_every_sqlite() -> None:
    with sqlite3.connect(":memory:", factory=WalConnection) as database:
        database.execute("CREATE TABLE rows (at INTEGER NOT NULL DEFAULT (unixepoch('subsec') * 1000), what TEXT)")
        database.execute("INSERT INTO rows (what) VALUES ('x') ON CONFLICT DO NOTHING")
        (at,) = database.execute("SELECT at FROM rows").fetchone()
    assert abs(at / 1000 - time.time()) < 60


def test_a_workflow_that_ends_in_the_round_in_which_its_broker_closes_is_heard(tmp_path: Path) -> None:
    """Else the thread that waits for it waits for ever, and so does the process's exit."""
    held, go = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        go.wait(30.0)

    with running(load(state=tmp_path / "state", file=tmp_path / "config.toml")) as engine:
        loop = engine._loop
        assert loop is not None
        ending = loop.create_future()

        async def workflow() -> None:
            await ending

        heard = asyncio.run_coroutine_threadsafe(workflow(), loop)
        assert wait_for(lambda: bool(asyncio.all_tasks(loop)), 10.0)
        loop.call_soon_threadsafe(hold)
        assert held.wait(10.0)
        loop.call_soon_threadsafe(ending.set_result, None)
        before = len(loop._ready)  # type: ignore[attr-defined]

        def release() -> None:
            wait_for(lambda: len(loop._ready) > before, 30.0)  # type: ignore[attr-defined]
            go.set()

        threading.Thread(target=release).start()
    assert heard.done()
