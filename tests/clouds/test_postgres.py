"""The database fixture itself: a real server, a database for each test."""

from __future__ import annotations

import psycopg
from clouds.postgres import Postgres


def test_every_test_gets_a_database_of_its_own(postgres: Postgres) -> None:
    first, second = postgres.new_database(), postgres.new_database()
    assert first != second
    with psycopg.connect(first) as connection:
        connection.execute("CREATE TABLE seen (x int)")
    with psycopg.connect(second) as connection:
        row = connection.execute("SELECT to_regclass('seen')").fetchone()
    assert row == (None,)
