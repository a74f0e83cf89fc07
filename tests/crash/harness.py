"""Brokers that are killed, machines that are taken back, and the audit afterwards.

Everything is real: the broker is a process and `kill -9` ends it; machines are process trees of the local provider;
what is audited is what the program itself wrote down, what runs on this computer, and what the provider lists.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker.config import Config, load
from broker.job import Job, submit
from broker.provider import State
from broker.store import Store, open_store
from broker.task import Checkpoint, Resources, Task
from broker_local import LocalProvider
from broker_local.cloud import take_back

HERE = Path(__file__).parent


def wait_for(condition: Callable[[], Any], what: str, timeout: float = 60.0) -> Any:
    """Wait until a condition holds and return its value; fail loudly naming it."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout:.0f} s for {what}")
        time.sleep(0.02)
    return value


@dataclass
class Site:
    """One installation in a folder of its own, with its jobs."""

    folder: Path
    database: str = ""
    home: str = ""
    settings: str = "[limits]\nscan = 0.1\nquiet = 0.5"
    jobs: list[Job] = field(default_factory=list)

    def __post_init__(self) -> None:
        file = self.folder / "config.toml"
        lines = [f'database = "{self.database}"'] if self.database else []
        lines += [f'home = "{self.home}"'] if self.home else []
        file.write_text("\n".join([*lines, self.settings]))
        self.config: Config = load(state=self.folder / "state", file=file)
        self.store: Store = open_store(self.config.state, self.config.database)
        self.provider = LocalProvider(self.config.provider("local"), self.config.state)
        self.work = self.folder / "work"
        self.work.mkdir()
        (self.work / "counter.py").write_text((HERE / "counter.py").read_text())

    @property
    def root(self) -> Path:
        return Path(self.config.provider("local").get("root", self.config.state / "local"))

    def task(self, name: str, *, steps: int = 120, every: int = 10, pause: float = 0.02, **changes: Any) -> Task:
        values: dict[str, Any] = {
            "name": name,
            "run": f"exec {sys.executable} counter.py",
            "workdir": self.work,
            "envs": {
                "STEPS": str(steps),
                "EVERY": str(every),
                "PAUSE": str(pause),
                "TRACE": str(self.folder / f"{name}.trace"),
                "GUARD": str(self.folder / f"{name}.guard"),
            },
            "resources": (Resources(cpus=1, infra=("local",)),),
            "checkpoint": Checkpoint("ckpt"),
            "outputs": ("out/*",),
            "max_hours": 1.0,
        }
        return Task(**{**values, **changes})

    def submit(self, task: Task) -> Job:
        job = submit(task, config=self.config, store=self.store)
        self.jobs.append(job)
        return job

    def broker(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a broker process: `up`, `tick`, or any other command."""
        environment = {
            **os.environ,
            "SPOTBROKER_STATE": str(self.config.state),
            "SPOTBROKER_CONFIG": str(self.config.file),
        }
        with (self.folder / "broker.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "broker", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    @contextlib.contextmanager
    def up(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        process = self.broker("up", *arguments)
        try:
            yield process
        finally:
            kill(process)

    def machines(self) -> list[Any]:
        return [found for found in self.provider.instances() if found.state is not State.TERMINATED]

    def trace(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / f"{name}.trace"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def phase(self, job: Job) -> str:
        state = self.store.job(job.id).state
        return str(state["phase"]) if state else ""

    def take_one_back(self, chance: random.Random) -> bool:
        """Take a random running machine back, with a random kind of notice of a few seconds at most."""
        machines = self.machines()
        if not machines:
            return False
        victim = chance.choice(machines)
        notice = chance.choice(["aws", "gcp", "runpod", "vast", "vast"])
        take_back(self.root, victim.id, notice, seconds=chance.uniform(1.0, 4.0) if notice != "vast" else None)
        return True

    def settle(self, timeout: float = 120.0) -> None:
        """Let one healthy broker finish everything."""
        with self.up() as process:
            for job in self.jobs:
                wait_for(lambda job=job: job.refresh().done, f"the end of {job.id}: {self._tell(job)}", timeout)
            wait_for(lambda: not self.machines(), "all machines to be gone", 30.0)
            assert process.poll() is None, "the broker ended by itself"

    def _tell(self, job: Job) -> str:
        return "\n".join(f"{e.at:.2f} {e.generation} {e.kind}: {e.text}" for e in job.events()[-30:])

    def audit(self, *, lost_at_most: int) -> None:
        """Everything succeeded, one program at a time, nothing lost beyond one interval, nothing left running."""
        assert not self.machines(), "machines are left"
        assert not marked(self.root), f"processes are left: {marked(self.root)}"
        for job in self.jobs:
            name, told = job.name, self._tell(job)
            assert job.refresh().status == "succeeded", f"{job.id}: {job.status}: {job.message}\n{told}"
            trace = self.trace(name)
            steps = int(job.task.envs["STEPS"])
            assert not [line for line in trace if line["kind"] in ("two at once", "corrupt", "no api")], told
            last = 0
            for line in trace:
                if line["kind"] == "start":
                    assert line["step"] <= last, f"{job.id} started ahead of itself"
                    assert last - line["step"] <= lost_at_most, (
                        f"{job.id} fell from {last} to {line['step']} at generation {line['generation']}\n{told}"
                    )
                last = line.get("step", last)
            assert last == steps
            pulled = job.pull(self.folder / "pulled" / job.id)
            assert [path.read_text() for path in pulled] == [str(sum(range(steps + 1)))]
            rows = job.placements()
            assert all(row.confirmed for row in rows if row.instance), told
            launched = [row.instance for row in rows if row.instance]
            assert len(set(launched)) == len(launched)


def marked(root: Path) -> list[str]:
    """Command lines of the processes on this computer that belong to a machine of that root."""
    from broker_local.processes import MARK

    machines = {entry.name for entry in (root / "machines").iterdir()}
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            for variable in (entry / "environ").read_bytes().split(b"\0"):
                name, _, value = variable.decode(errors="replace").partition("=")
                if name == MARK and value in machines:
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def kill(process: subprocess.Popen[bytes]) -> None:
    """`kill -9`, and reap."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
