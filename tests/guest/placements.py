"""Real guests: user data run by sh in a folder that stands for a machine, a folder home, a provider of our own."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from broker.boot import Boot, boot_script, user_data
from broker.home import Access, Control, Home, JobKeys, Order, folder_url

PROVIDER = """
import json, os, signal
HERE = os.environ["SPOTBROKER_DIR"] + "/../"
END_COMMAND = 'echo "$why" > "$SPOTBROKER_DIR/../ended"; kill -KILL 0'

def notice():
    try:
        with open(HERE + "notice") as file:
            return json.load(file)
    except FileNotFoundError:
        return None

def end_machine(why):
    with open(HERE + "ended.new", "w") as file:
        file.write(why)
    os.rename(HERE + "ended.new", HERE + "ended")
    os.killpg(0, signal.SIGKILL)

def sigterm_is_notice():
    return 4.0
"""


def wait_for(condition: Callable[[], Any], seconds: float = 20.0, what: str = "") -> Any:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if value := condition():
            return value
        time.sleep(0.03)
    raise AssertionError(f"not within {seconds} s: {what or condition}")


def holds(condition: Callable[[], Any], seconds: float) -> None:
    """The condition is true now and stays so."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert condition()
        time.sleep(0.03)


def alive(mark: str) -> list[int]:
    """Processes that carry the placement's mark."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                if f"BROKER_PLACEMENT={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
    return found


class Placement:
    """One generation's machine."""

    def __init__(self, job: Job, generation: int, **changes: Any) -> None:
        self.job, self.generation = job, generation
        self.folder = job.folder / f"machine-{generation}"
        self.disk = self.folder / "disk"
        self.disk.mkdir(parents=True)
        self.env: dict[str, str] = changes.pop("env", {})
        end_by = changes.pop("end_by", time.time() + 300)
        values: dict[str, Any] = {
            "job": job.id,
            "generation": generation,
            "installation": "inst",
            "provider": "testing",
            "home": Access(url=job.home.url),
            "spec_sha256": job.spec_sha256,
            "end_by": end_by,
            "end_why": "max_hours",
            "guest_url": job.home.sign_get(job.keys.artefact(job.guest[1]), 600),
            "guest_sha256": job.guest[1],
            "notice": None,
            "beat": 0.5,
            "scan": 0.1,
            "quiet": 0.3,
            "grace": 5.0,
            "patience": 3.0,
            "python": sys.executable,
        }
        self.boot = Boot(**{**values, **changes})
        job.home.put(job.keys.boot(generation), boot_script(self.boot))
        text = user_data(
            job.home.sign_get(job.keys.boot(generation), 600),
            end_by,
            provider=self.boot.provider,
            kind=self.boot.kind,
            limit=16_384,
        )
        (self.folder / "user-data").write_text(text)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Placement:
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "SPOTBROKER_DIR": str(self.disk),
            "RUNPOD_API_KEY": "provider-key-0003",
            **self.env,
        }
        with (self.folder / "console").open("ab") as console:
            self.process = subprocess.Popen(
                ["/bin/sh", str(self.folder / "user-data")],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    @property
    def mark(self) -> str:
        return f"{self.job.id}/{self.generation}"

    def read(self, key: str) -> Any:
        raw = self.job.home.find(key)
        return json.loads(raw) if raw else None

    @property
    def beat(self) -> dict[str, Any]:
        return self.read(self.job.keys.beat(self.generation)) or {}

    @property
    def closed(self) -> Any:
        return self.read(self.job.keys.closed(self.generation))

    @property
    def result(self) -> Any:
        return self.read(self.job.keys.result(self.generation))

    @property
    def log(self) -> str:
        entries = self.job.home.list(self.job.keys.logs(self.generation))
        return b"".join(self.job.home.get(entry.key) for entry in entries).decode()

    @property
    def own_log(self) -> str:
        """What the program itself printed."""
        return "".join(line for line in self.log.splitlines(keepends=True) if not line.startswith("[spotbroker] "))

    @property
    def console(self) -> str:
        return (self.folder / "console").read_text()

    @property
    def ended(self) -> str:
        file = self.folder / "ended"
        return file.read_text() if file.exists() else ""

    def until_state(self, *states: str, seconds: float = 20.0) -> dict[str, Any]:
        return wait_for(lambda: (b := self.beat).get("state") in states and b, seconds, f"state {states}: {self.beat}")

    def until_ended(self, seconds: float = 30.0) -> Any:
        """Wait for the machine's end; its result."""
        assert self.process is not None
        try:
            wait_for(lambda: self.ended, seconds)
        except AssertionError as error:
            raise AssertionError(f"did not end: {self.beat}\n{self.log}\n{self.console}") from error
        self.process.wait(5)
        assert alive(self.mark) == [], "a process outlived its placement"
        return self.result

    def notice(self, seconds: float | None, kind: str = "terminate") -> float:
        now = time.time()
        ends_at = None if seconds is None else now + seconds
        new = self.folder / "notice.new"
        new.write_text(json.dumps({"at": now, "ends_at": ends_at, "kind": kind}))
        new.rename(self.folder / "notice")
        return ends_at or 0.0

    def kill(self) -> None:
        """Pull the plug."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        while left := alive(self.mark):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


class Job:
    """A job's home and what the broker would keep of it. placement: what its machines are."""

    placement: type[Placement] = Placement

    def __init__(self, folder: Path, guest: tuple[bytes, str], home: Home | None = None) -> None:
        self.folder, self.guest = folder, guest
        self.id = "j" + uuid.uuid4().hex[:10]
        self.home = home or Home(Access(url=folder_url(folder / "home")))
        self.keys = JobKeys(self.id)
        self.placements: list[Placement] = []
        self.orders: dict[int, Order] = {}
        self.live: int | None = None
        self.retiring: tuple[int, ...] = ()
        self.parents: dict[int, tuple[int, int] | None] = {}
        self.seqs: dict[int, int] = {}
        self.spec_sha256 = ""
        self.home.put(self.keys.artefact(guest[1]), guest[0])

    def task(self, run: str, **fields: Any) -> Job:
        spec = {"name": "t", "run": run, "setup": "", "envs": {}, "secrets": [], "outputs": [], **fields}
        raw = json.dumps(spec).encode()
        self.spec_sha256 = hashlib.sha256(raw).hexdigest()
        self.home.put(self.keys.spec, raw)
        return self

    def place(self, generation: int = 1, *, order: Mapping[str, Any] | None = None, **changes: Any) -> Placement:
        placement = self.placement(self, generation, **changes)
        self.placements.append(placement)
        self.live = generation
        self.order(generation, **{"end_by": placement.boot.end_by, "end_why": placement.boot.end_why, **(order or {})})
        return placement.start()

    def order(self, generation: int, **changes: Any) -> None:
        before = self.orders.get(generation) or Order(end_by=0, end_why="")
        values = {name: getattr(before, name) for name in Order.__slots__}
        self.orders[generation] = Order(**{**values, **changes})
        self.write_control()

    def write_control(self) -> None:
        control = Control("inst", 1, self.live, self.retiring, self.orders, self.parents, self.seqs)
        self.home.put(self.keys.control, control.to_bytes())
