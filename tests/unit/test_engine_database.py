"""The connection that DBOS keeps its workflows through."""

from __future__ import annotations

import sqlite3
import time

from broker.engine import WalConnection


def test_times_are_known_on_every_sqlite() -> None:
    with sqlite3.connect(":memory:", factory=WalConnection) as database:
        database.execute("CREATE TABLE rows (at INTEGER NOT NULL DEFAULT (unixepoch('subsec') * 1000), what TEXT)")
        database.execute("INSERT INTO rows (what) VALUES ('x') ON CONFLICT DO NOTHING")
        (at,) = database.execute("SELECT at FROM rows").fetchone()
    assert abs(at / 1000 - time.time()) < 60
