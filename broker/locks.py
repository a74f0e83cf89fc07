"""Locks that are held for the life of a process and freed by whoever outlives it: the kernel, or the database server.

No clock decides who holds one: a broker that is stopped for an hour still holds its lock, one that was killed does not.
The holder of a file writes its process id into it every other second, only so that people can be told of one that does
not move.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from broker.config import Config
from broker.store import database_url

BEAT = 2.0
STILL = 30.0
"""Seconds between two signs of life, and without one after which a broker is said to stand still."""


class FileLock:
    """A lock file that the kernel frees when its holder dies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[str] | None = None

    def take(self) -> bool:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        while True:
            file = self.path.open("a")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(file.fileno()), self.path.stat()):
                    break
            except FileNotFoundError:
                pass
            except OSError:
                file.close()
                return False
            # Its last holder has deleted the file in between: the lock on it is worth nothing.
            file.close()
        self._file = file
        return True

    def beat(self) -> None:
        """Show that the holder moves."""
        with contextlib.suppress(OSError):
            if self._file is not None:
                self._file.truncate(0)
                self._file.write(str(os.getpid()))
                self._file.flush()

    def free(self) -> bool:
        """Could it be taken now? A missing file is a holder that ended in order."""
        if not self.path.exists():
            return True
        if not self.take():
            return False
        self.release()
        return True

    def release(self) -> None:
        if self._file is not None:
            self.path.unlink(missing_ok=True)
            self._file.close()
            self._file = None


class AdvisoryLock:
    """A Postgres session lock: the server frees it when the session ends."""

    def __init__(self, url: str, name: str) -> None:
        self.url = url
        self.number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)
        self._connection: Any = None

    def take(self) -> bool:
        import sqlalchemy as sa

        keepalive = {"keepalives": 1, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
        engine = sa.create_engine(self.url, poolclass=sa.pool.NullPool, connect_args=keepalive)
        connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        taken = bool(connection.execute(sa.text("SELECT pg_try_advisory_lock(:n)"), {"n": self.number}).scalar())
        if not taken:
            connection.close()
            return False
        self._connection = connection
        return True

    def beat(self) -> None:
        """The database server knows by itself which sessions live."""

    def free(self) -> bool:
        if not self.take():
            return False
        self.release()
        return True

    def release(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def lock_of(config: Config, name: str) -> FileLock | AdvisoryLock:
    """The lock of one broker process, by its executor id."""
    if config.database:
        return AdvisoryLock(database_url(config.state, config.database, ""), name)
    return FileLock(config.state / "engine.live" / name)


def gate_of(config: Config) -> FileLock | AdvisoryLock:
    """The lock of the installation's one long-running broker, which takes new jobs."""
    if config.database:
        return AdvisoryLock(database_url(config.state, config.database, ""), "spotbroker up")
    return FileLock(config.state / "up.lock")


@dataclass(frozen=True, slots=True)
class Still:
    """A living broker that has shown no sign of life for so many seconds. name: its executor id."""

    name: str
    pid: int
    host: str
    seconds: float


def standing_still(config: Config) -> list[Still]:
    """The brokers of this installation that hold their jobs and do not move; none where the locks are a database's."""
    found: list[Still] = []
    for path in sorted((config.state / "engine.live").glob("*")):
        try:
            pid, seconds = path.read_text(), time.time() - path.stat().st_mtime
        except OSError:
            continue
        if pid.isdigit() and seconds > STILL and not FileLock(path).free():
            found.append(Still(path.name, int(pid), path.name.rsplit("-", 2)[0], seconds))
    return found
