"""`broker.guest.training`: saves now and then, on notice where that fits, at the end; goes on from where it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from broker.testing import wait_for

PROGRAM = """\
import os, sys, time
from broker import guest

kept = os.path.join(guest.checkpoint_dir(), "step")
total, pause, every, save_takes = int(sys.argv[1]), *map(float, sys.argv[2:5])

def save(step):
    time.sleep(save_takes)
    with open(kept, "w") as file:
        file.write(str(step))
    print("saved", step, flush=True)

def load():
    return int(open(kept).read()) if os.path.exists(kept) else None

for step in guest.training(total, save=save, load=load, every_s=every or None):
    print("step", step, flush=True)
    time.sleep(pause)
"""


class Loop:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.progress = folder / "progress"
        (folder / "program.py").write_text(PROGRAM)

    def start(
        self, total: int, *, pause: float = 0.05, every: float = 60, save_takes: float = 0, **envs: str
    ) -> subprocess.Popen[str]:
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "BROKER_CHECKPOINT_DIR": str(self.folder / "kept"),
            "BROKER_PROGRESS": str(self.progress),
            **envs,
        }
        arguments = [str(total), str(pause), str(every), str(save_takes)]
        return subprocess.Popen(
            [sys.executable, "program.py", *arguments],
            cwd=self.folder,
            env=env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    @property
    def saved(self) -> int:
        kept = self.folder / "kept" / "step"
        return int(kept.read_text() or 0) if kept.exists() else 0

    def reached(self, step: int) -> bool:
        try:
            return bool(json.loads(self.progress.read_bytes()[128:])["step"] >= step)
        except (OSError, ValueError):
            return False


def test_it_saves_at_the_end_and_goes_on_from_there(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    said, _ = loop.start(3).communicate(timeout=30)
    assert said.splitlines() == ["step 0", "step 1", "step 2", "saved 3"]
    said, _ = loop.start(5).communicate(timeout=30)
    assert said.splitlines() == ["step 3", "step 4", "saved 5"]
    process = loop.start(5)
    assert process.communicate(timeout=30)[0] == ""
    assert process.returncode == 0


def test_it_saves_every_so_often(tmp_path: Path) -> None:
    said, _ = Loop(tmp_path).start(10, pause=0.1, every=0.25).communicate(timeout=30)
    saves = [int(line.split()[1]) for line in said.splitlines() if line.startswith("saved")]
    assert len(saves) >= 3
    assert saves[-1] == 10
    assert said.splitlines()[-2] == "step 9"


@pytest.mark.parametrize("source", ["variable", "file"])
def test_how_often_is_the_brokers_to_say(tmp_path: Path, source: str) -> None:
    (tmp_path / "every").write_text("0.15\n")
    told = {"BROKER_CHECKPOINT_EVERY": "60" if source == "file" else "0.15"}
    if source == "file":
        told["BROKER_CHECKPOINT_EVERY_FILE"] = str(tmp_path / "every")
    said, _ = Loop(tmp_path).start(8, pause=0.1, every=0, **told).communicate(timeout=30)
    assert said.count("saved") >= 3


def test_sigterm_finishes_the_step_saves_and_ends_with_143(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    process = loop.start(1000)
    wait_for(lambda: loop.reached(2), 30)
    process.send_signal(signal.SIGTERM)
    said, complaint = process.communicate(timeout=30)
    assert process.returncode == 143
    assert said.splitlines()[-1] == f"saved {loop.saved}"
    assert loop.saved >= 3
    assert f"step {loop.saved} is saved" in complaint


def test_a_save_that_would_not_be_whole_is_not_begun(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    process = loop.start(1000, every=0.2, save_takes=0.5)  # the first save shows what one takes
    wait_for(lambda: loop.saved > 0, 30)
    loop.progress.with_name("progress.stop").write_text(json.dumps({"why": "notice", "ends_at": time.time() + 0.3}))
    said, complaint = process.communicate(timeout=30)
    assert process.returncode == 143
    saves = [line for line in said.splitlines() if line.startswith("saved")]
    assert f"step {saves[-1].split()[1]} is saved" in complaint
    assert not said.splitlines()[-1].startswith("saved")


WORKERS = """\
import multiprocessing, os, sys, time
from broker import guest

def work(rank, gate):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")

    def save(step):
        gate.wait(60)  # as where each saves its share
        print("saved", step, rank, flush=True)

    for step in guest.training(100000, save=save, load=lambda: 0, every_s=60 if rank else 0.2):
        gate.wait(60)  # as an all-reduce

if __name__ == "__main__":
    gate = multiprocessing.get_context("fork").Barrier(2)
    workers = [multiprocessing.get_context("fork").Process(target=work, args=(rank, gate)) for rank in range(2)]
    for worker in workers:
        worker.start()
    print("pid", workers[1].pid, flush=True)
    for worker in workers:
        worker.join()
    sys.exit(max(worker.exitcode for worker in workers))
"""


def test_workers_save_and_end_after_the_same_step(tmp_path: Path) -> None:
    """One of them is due to save, the other one is asked to stop."""
    loop = Loop(tmp_path)
    (tmp_path / "program.py").write_text(WORKERS)
    process = loop.start(0)
    assert process.stdout is not None
    said = [process.stdout.readline().split() for _ in range(5)]
    os.kill(next(int(pid) for word, pid, *_ in said if word == "pid"), signal.SIGTERM)
    rest, complaint = process.communicate(timeout=90)
    assert process.returncode == 143, complaint
    saves = [line for line in [*said, *map(str.split, rest.splitlines())] if line[0] == "saved"]
    steps: list[list[str]] = [[step for _, step, rank in saves if rank == str(of)] for of in range(2)]
    assert steps[0] == steps[1]
    assert len(steps[0]) >= 2  # the word to stop may come in a save, and then nothing is left to be saved
    assert complaint.count(f"step {steps[0][-1]} is saved") == 2
