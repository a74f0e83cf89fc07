"""What a shell's TAB offers besides verbs and options: jobs, tasks, schedules. Asks nobody, imports next to nothing.

Whatever is wrong, nothing is offered: a shell has no place for an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def jobs(incomplete: str) -> list[tuple[str, str]]:
    """Ids of the newest jobs and what stands behind them, and their names."""
    rows = _read("SELECT id, name, status FROM spotbroker_jobs ORDER BY created_at DESC LIMIT 50")
    ids = [(job, status) for job, _, status in rows]
    names = dict.fromkeys(name for _, name, _ in rows)
    return _beginning(incomplete, [*ids, *((name, "the newest of this name") for name in names)])


def schedules(incomplete: str) -> list[tuple[str, str]]:
    """Names of schedules."""
    rows = _read("SELECT name, file FROM spotbroker_schedules ORDER BY name")
    return _beginning(incomplete, rows)


def tasks(incomplete: str) -> list[tuple[str, str]]:
    """Task files here, folders that hold one or lead on, and the bundled tasks."""
    from broker import bundled

    folder, slash, _ = incomplete.rpartition("/")
    found: list[tuple[str, str]] = []
    with contextlib.suppress(OSError):
        for path in sorted(Path(folder or slash or ".").expanduser().iterdir()):
            shown = f"{folder}/{path.name}" if "/" in incomplete else path.name
            if path.suffix in (".yaml", ".yml") and path.is_file():
                found.append((shown, "a task file"))
            elif path.is_dir() and not path.name.startswith("."):
                found.append((shown, "a task") if (path / "task.yaml").is_file() else (f"{shown}/", "a folder"))
    return _beginning(incomplete, [*found, *((name, "bundled") for name in bundled.names())])


def tasks_and_schedules(incomplete: str) -> list[tuple[str, str]]:
    return [*schedules(incomplete), *tasks(incomplete)]


def _beginning(incomplete: str, found: Sequence[Any]) -> list[tuple[str, str]]:
    return [(word, about) for word, about in dict(found).items() if word.startswith(incomplete)]


def _read(query: str) -> list[Any]:
    """Rows of this installation's own file; none where there is none, or it lies in another database."""
    import sqlite3

    from broker.config import load
    from broker.errors import BrokerError

    with contextlib.suppress(OSError, BrokerError, sqlite3.Error):
        config = load()
        file = config.state / "jobs.db"
        if not config.database and file.is_file():
            where = f"{file.absolute().as_uri()}?mode=ro"
            with contextlib.closing(sqlite3.connect(where, uri=True, timeout=1.0)) as db:
                return db.execute(query).fetchall()
    return []
