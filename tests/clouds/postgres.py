"""A real PostgreSQL for tests: a throw-away cluster on a free port, gone when the session ends or is killed."""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

START_LIMIT = 60.0


@dataclass(frozen=True, slots=True)
class Postgres:
    """A running server that trusts everybody on this computer. folder: where its Unix socket is."""

    folder: Path
    port: int

    def url(self, database: str = "postgres", *, driver: str = "") -> str:
        """`postgresql://…`, or `postgresql+DRIVER://…` for SQLAlchemy."""
        return f"postgresql{'+' + driver if driver else ''}://postgres@127.0.0.1:{self.port}/{database}"

    def new_database(self, *, driver: str = "") -> str:
        """Create an empty database of a name of its own; return its URL."""
        import psycopg

        name = f"test_{uuid.uuid4().hex}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"'.encode())
        return self.url(name, driver=driver)


def programs() -> Path | None:
    """The folder of initdb and postgres: on the PATH, or where Debian and Homebrew put them; the newest one."""
    found = shutil.which("initdb")
    if found and Path(found).with_name("postgres").exists():
        return Path(found).parent
    places = [*Path("/usr/lib/postgresql").glob("*/bin"), *Path("/opt/homebrew/opt").glob("postgresql@*/bin")]
    places = [place for place in places if (place / "initdb").exists() and (place / "postgres").exists()]
    return max(places, key=lambda place: [int(n) for n in str(place).split("/") if n.isdigit()], default=None)


def account() -> dict[str, int | list[int]]:
    """The account that may run a server: PostgreSQL refuses root."""
    if os.getuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise RuntimeError("root cannot run PostgreSQL, and there is no account postgres or nobody")


def end_with_parent() -> None:
    """On Linux, a killed test session takes its server along."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGINT)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One server for the session; tests take `postgres.new_database()`."""
    place = programs()
    if place is None:
        pytest.skip("no PostgreSQL here; on Debian: apt-get install postgresql")
    who = account()
    folder = Path(tempfile.mkdtemp(prefix="spotbroker-postgres-"))
    if who:
        os.chown(folder, who["user"], who["group"])  # type: ignore[arg-type]
    try:
        data = folder / "data"
        command = [place / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder, **who)  # type: ignore[call-overload]
        server = Postgres(folder, free_port())
        process = start(place / "postgres", server, data, who)
        try:
            wait_until_it_answers(server, process)
            yield server
        finally:
            stop(process)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def start(program: Path, server: Postgres, data: Path, who: dict[str, int | list[int]]) -> subprocess.Popen[bytes]:
    settings = {
        "listen_addresses": "127.0.0.1",
        "port": server.port,
        "unix_socket_directories": server.folder,
        "max_connections": 200,
        "fsync": "off",
        "shared_buffers": "32MB",
    }
    arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    with (server.folder / "log").open("wb") as log:
        process: subprocess.Popen[bytes] = subprocess.Popen(
            [program, "-D", data, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=server.folder,
            preexec_fn=end_with_parent,  # noqa: PLW1509 - no threads yet, and only prctl is called
            **who,  # type: ignore[call-overload]
        )
    return process


def wait_until_it_answers(server: Postgres, process: subprocess.Popen[bytes]) -> None:
    import psycopg

    deadline = time.monotonic() + START_LIMIT
    while True:
        try:
            psycopg.connect(server.url(), connect_timeout=2).close()
            return
        except psycopg.OperationalError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start: {(server.folder / 'log').read_text()}") from error
            time.sleep(0.05)


def stop(process: subprocess.Popen[bytes]) -> None:
    """SIGINT disconnects everybody and shuts down; SIGKILL where that takes too long."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
