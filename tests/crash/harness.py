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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cli.forked import Forked

from broker.config import Config, load
from broker.home import Home, JobKeys
from broker.job import Job, submit
from broker.provider import Instance, State
from broker.restore import read_manifest
from broker.store import Event, Store, open_store
from broker.task import Checkpoint, Resources, Task
from broker_local import LocalProvider
from broker_local.cloud import take_back

HERE = Path(__file__).parent


def wait_for(
    condition: Callable[[], Any], what: str, timeout: float = 60.0, tell: Callable[[], str] = str, pause: float = 0.03
) -> Any:
    """Wait until a condition holds and return its value; fail loudly naming it, with what `tell` tells."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout:.0f} s for {what}\n{tell()}")
        time.sleep(pause)
    return value


def table(name: str, values: Mapping[str, Any]) -> list[str]:
    """A TOML table's lines; a JSON value is a TOML value here."""
    return [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())] if values else []


@dataclass
class Site:
    """One installation in a folder of its own, with its jobs."""

    folder: Path
    database: str = ""
    home: str = ""
    home_config: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    local: Mapping[str, Any] = field(default_factory=dict)
    providers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    jobs: list[Job] = field(default_factory=list)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        file = self.folder / "config.toml"
        lines = [f'database = "{self.database}"'] if self.database else []
        lines += [f'home = "{self.home}"'] if self.home else []
        lines += table("limits", {"scan": 0.1, "quiet": 0.5, **self.limits})
        lines += table("home_config", self.home_config) + table("providers.local", self.local)
        for name, values in self.providers.items():
            lines += table(f"providers.{name}", values)
        file.write_text("\n".join(lines))
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
        return self._started(Forked, [*arguments])

    def python(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a Python process that finds this installation; what it says goes to `broker.log`."""
        return self._started(subprocess.Popen, [sys.executable, *arguments])

    def _started(self, kind: type[subprocess.Popen[bytes]], command: list[str]) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "SPOTBROKER_STATE": str(self.config.state),
            "SPOTBROKER_CONFIG": str(self.config.file),
        }
        with self.log.open("ab") as log:
            process = kind(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    @property
    def log(self) -> Path:
        return self.folder / "broker.log"

    @contextlib.contextmanager
    def up(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        process = self.broker("up", *arguments)
        try:
            yield process
        finally:
            kill(process)

    @staticmethod
    def config_with(config: Config, home_config: Mapping[str, str]) -> Config:
        """The same configuration with another way to the home."""
        return replace(config, home_config=home_config)

    def folder_of(self, machine: Instance) -> Path:
        return self.root / "machines" / machine.id

    def supervisor(self, machine: Instance) -> int:
        """The process that watches over a machine: its host, so to say."""
        return int(json.loads((self.folder_of(machine) / "supervisor.json").read_text())["pid"])

    def close(self) -> None:
        """End what still runs: brokers first, then machines."""
        for process in self.processes:
            kill(process)
        for machine in self.machines():
            self.provider.terminate(machine)
        wait_for(lambda: not self.machines(), "all machines to be gone", 30.0)
        self.store.close()

    def machines(self) -> list[Any]:
        return [found for found in self.provider.instances() if found.state is not State.TERMINATED]

    def machine(self, job: Job, generation: int, timeout: float = 60.0) -> Any:
        """The running machine of one placement, as soon as there is one."""

        def look() -> Any:
            mine = [m for m in self.machines() if m.job == job.id and m.generation == generation]
            return mine[0] if mine and mine[0].state is State.RUNNING else None

        return wait_for(look, f"machine {generation} of {job.id}", timeout, lambda: self.story(job))

    def event(self, job: Job, kind: str, generation: int | None = None, timeout: float = 60.0) -> Event:
        """The first event of a kind, of one placement if asked so, as soon as there is one."""

        def look() -> Event | None:
            found = [e for e in self.store.events(job.id, kinds=[kind]) if generation in (None, e.generation)]
            return found[0] if found else None

        found: Event = wait_for(look, f"{kind} of {job.id}", timeout, lambda: self.story(job))
        return found

    def done(self, job: Job, timeout: float = 60.0) -> Job:
        """The job, once it has ended and its machines are gone."""
        wait_for(lambda: job.refresh().done, f"the end of {job.id}", timeout, lambda: self.story(job))
        wait_for(lambda: not [m for m in self.machines() if m.job == job.id], "its machines to be gone", 30.0)
        assert all(row.confirmed for row in job.placements() if row.instance), self.story(job)
        return job

    def step(self, name: str, at_least: int, generation: int | None = None, timeout: float = 60.0) -> int:
        """The step that a job's program has reached, as soon as it is so far."""
        return int(wait_for(lambda: self._step(name, at_least, generation), f"step {at_least} of {name}", timeout))

    def _step(self, name: str, at_least: int, generation: int | None) -> int:
        steps = [
            line["step"]
            for line in self.trace(name)
            if line["kind"] == "step" and generation in (None, line["generation"])
        ]
        return steps[-1] if steps and steps[-1] >= at_least else 0

    def of(self, name: str, kind: str, generation: int | None = None) -> list[dict[str, Any]]:
        """What a job's program wrote down of one kind, by one placement if asked so."""
        return [x for x in self.trace(name) if x["kind"] == kind and generation in (None, x["generation"])]

    def trace(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / f"{name}.trace"
        whole = path.read_text().rpartition("\n")[0] if path.exists() else ""  # a line may be seen half written
        return [json.loads(line) for line in whole.splitlines()]

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
                tell = lambda job=job: self.story(job)  # noqa: E731
                wait_for(lambda job=job: job.refresh().done, f"the end of {job.id}", timeout, tell)
            wait_for(lambda: not self.machines(), "all machines to be gone", 30.0)
            assert process.poll() is None, "the broker ended by itself"

    def story(self, job: Job) -> str:
        """What happened to a job, for whoever reads a failed test."""
        return "\n".join(f"{e.at:.2f} {e.generation} {e.kind}: {e.text}" for e in job.events()[-30:])

    def stories(self) -> str:
        return "\n\n".join(self.story(job) for job in self.jobs if not job.refresh().done)

    def audit(self, *, lost_at_most: int) -> None:
        """Everything succeeded, one program at a time, nothing lost beyond one interval, nothing left running."""
        assert not self.machines(), "machines are left"
        assert not marked(self.root), f"processes are left: {marked(self.root)}"
        for job in self.jobs:
            name, told = job.name, self.story(job)
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


def saved(home: Home, job: Job, generation: int) -> tuple[int, int]:
    """A placement's newest snapshot: its number, and the step that the program had saved in it."""
    keys = JobKeys(job.id)
    seq = int(home.list(keys.manifests(generation))[-1].key.rsplit("/", 1)[1])
    file = read_manifest(home, keys, generation, seq).files["state.json"]
    return seq, int(json.loads(home.get(keys.blob(file.sha256)))["step"])


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
