"""The folder of one machine: everything known about it, as small files. Standard library only.

::

    machines/<id>/
      machine.json      the record, complete before anything runs; never changed
      user-data         the bootstrap
      env.json          the environment of its first process
      supervisor.json   whose process watches over it; made once, so no machine starts twice
      terminate.json    the broker's order to end it
      reclaim.json      the provider takes it back: when, and how
      metadata/notice.json   what the machine itself can read of that
      metadata/end      made by the machine: end me; its text is why
      ended.json        the end: when and of what cause; the first writer's word stands
      console.log       what the bootstrap wrote
      disk/             HOME, SPOTBROKER_DIR and TMPDIR; goes when the broker terminates the machine

Files appear whole (rename or link) and nothing is kept in memory, so every process sees the same machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker_local import processes

MARK = processes.MARK
START = "import sys; sys.path.append(sys.argv[1]); from broker_local.supervisor import main; main(sys.argv[2])"
DRAFTS = 600.0  # seconds after which a draft is surely nobody's
BROKER, SELF, PREEMPTED, USER, FAILED = "broker", "self", "preempted", "user", "failed"


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine by its folder; every answer is read from there."""

    folder: Path

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def disk(self) -> Path:
        return self.folder / "disk"

    @property
    def metadata(self) -> Path:
        return self.folder / "metadata"

    def read(self, name: str) -> dict[str, Any] | None:
        """One of its JSON files; None where there is none. A file that is not JSON counts as empty."""
        try:
            text = (self.folder / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            data = json.loads(text)
        except ValueError:
            return {}
        return data if isinstance(data, dict) else {}

    def record(self) -> dict[str, Any]:
        """The record. Raises FileNotFoundError where there is no such machine."""
        data = self.read("machine.json")
        if data is None:
            raise FileNotFoundError(self.folder)
        return data

    def write_once(self, name: str, data: Mapping[str, Any]) -> bool:
        """Make a file whole; False where it was there already."""
        draft = self.folder / f".{uuid.uuid4().hex}"
        draft.write_text(json.dumps(data), encoding="utf-8")
        try:
            (self.folder / name).hardlink_to(draft)
        except FileExistsError:
            return False
        finally:
            draft.unlink()
        return True

    def wake(self) -> bool:
        """Have the supervisor look at the folder now; False where none lives."""
        claim = self.read("supervisor.json")
        return claim is not None and processes.send(processes.Process(claim["pid"], 0, claim["start"]), signal.SIGUSR1)

    def cause(self, now: float) -> str | None:
        """What the orders in the folder say should end it by now, the first of them; None where nothing does."""
        due: list[tuple[float, str]] = []
        if (order := self.read("terminate.json")) is not None:
            due.append((order.get("at", 0.0), order.get("cause", BROKER)))
        with contextlib.suppress(FileNotFoundError):
            due.append(((self.metadata / "end").stat().st_mtime, SELF))
        if (reclaim := self.read("reclaim.json")) is not None and reclaim.get("ends_at", 0.0) <= now:
            due.append((reclaim["ends_at"], PREEMPTED))
        return min(due)[1] if due else None

    def bury(self, cause: str, why: str, *, below: int | None = None) -> bool:
        """End it: kill what is left of it, drop its disk where that was ordered, write down the end.

        Safe to repeat and to race. False while some process resists even KILL (it hangs in the kernel).
        """
        if processes.kill_all(self.id, below=below):
            return False
        if (self.folder / "terminate.json").exists():
            self.drop_disk()
        self.write_once("ended.json", {"at": time.time(), "cause": cause, "why": why})
        return True

    def drop_disk(self) -> None:
        """Remove the disk of an ended machine, unless its record says to keep it, and its TMPDIR in any case."""
        record = self.record()
        shutil.rmtree(record["tmp"], ignore_errors=True)
        if not record.get("keep_disk"):
            shutil.rmtree(self.disk, ignore_errors=True)


def create(root: Path, machine_id: str, record: Mapping[str, Any], env: Mapping[str, str], user_data: str) -> bool:
    """Make a machine's folder, complete and its owner's only, under its id; False where there is one already.

    A folder is renamed onto its name, which fails where a full folder of that name exists: of any number of racing
    processes one makes the machine.
    """
    machines = root / "machines"
    machines.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = Machine(machines / f".{uuid.uuid4().hex}")
    draft.folder.mkdir(mode=0o700)
    draft.metadata.mkdir()
    draft.disk.mkdir()
    (draft.folder / "user-data").write_text(user_data, encoding="utf-8")
    draft.write_once("env.json", env)
    draft.write_once("machine.json", record)
    try:
        draft.folder.rename(machines / machine_id)
    except OSError:
        shutil.rmtree(draft.folder, ignore_errors=True)
        if not (machines / machine_id).is_dir():
            raise
        return False
    return True


def sweep_drafts(root: Path, now: float) -> None:
    """Remove what launches left that were killed before their machine had its name."""
    for draft in (root / "machines").glob(".*"):
        with contextlib.suppress(FileNotFoundError):
            if draft.stat().st_mtime < now - DRAFTS:
                shutil.rmtree(draft, ignore_errors=True)


def start(machine: Machine, log: str = "supervisor.log") -> None:
    """Start the supervisor of a machine as a process that belongs to nobody; harmless where it has had one."""
    with (machine.folder / log).open("ab") as output:
        subprocess.run(
            [sys.executable, "-I", "-S", "-c", START, str(Path(__file__).parent.parent), str(machine.folder)],
            cwd="/",
            env={"PATH": os.defpath},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            check=False,
        )


def find(root: Path, machine_id: str) -> Machine | None:
    """A machine by its id, also one that ended long ago."""
    for place in ("machines", "gone"):
        machine = Machine(root / place / machine_id)
        if machine_id and "/" not in machine_id and (machine.folder / "machine.json").is_file():
            return machine
    return None
