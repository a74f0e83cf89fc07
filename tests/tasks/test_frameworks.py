"""The bundled tasks in the frameworks people train with: taken back, they end with the very same weights."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli.command import Cli, wait_for

from broker import bundled

NEEDS = {
    "bash": (),
    "torch": ("torch",),
    "hf-finetune": ("torch", "transformers", "accelerate"),
    "lightning": ("lightning",),
    "jax": ("jax", "optax", "orbax"),
}


def needed(name: str) -> None:
    for package in NEEDS.get(name, (name,)):
        if importlib.util.find_spec(package) is None:
            group = "jax" if name == "jax" else "frameworks"
            pytest.skip(f"{package} is not installed: pip install --group {group}")


@pytest.mark.parametrize("name", NEEDS)
def test_it_survives_a_notice_and_a_sudden_end(cli: Cli, name: str) -> None:
    needed(name)
    # Once with a notice and once without; where every start takes seconds, the sudden end alone.
    often = ("--preempt", "2") if name in ("bash", "torch") else ("--preempt", "1", "--notice", "vast")
    done = cli("rehearse", name, "-y", "--seed", "3", *often, timeout=280)
    assert "survives preemption" in done.stdout.splitlines()[-1], done.stdout
    assert "equals the run without interruption, bit for bit" in done.stdout
    lost = re.findall(r"(\d+) steps? lost of at most (\d+)", done.stdout)
    assert all(int(steps) <= int(most) for steps, most in lost)


class Workers:
    """The torch task's program, by hand, on one worker or several."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def start(self, workers: int, **envs: str) -> subprocess.Popen[str]:
        program = str(bundled.folder("torch") / "train.py")
        command = [sys.executable, program]
        if workers > 1:
            launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(workers)]
            command = [sys.executable, *launcher, program]
        given = {**os.environ, "OMP_NUM_THREADS": "1", "SAVE_EVERY": "1000", "STEPS": "40", **envs}
        given["BROKER_CHECKPOINT_DIR"] = str(self.folder / "kept")
        return subprocess.Popen(
            command, cwd=self.folder, env=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def saved(self) -> list[int]:
        """The steps of the checkpoints in the folder."""
        return [int(path.stem.split("-")[1]) for path in (self.folder / "kept").glob("step-*.pt")]

    def metrics(self) -> dict[str, float]:
        read: dict[str, float] = json.loads((self.folder / "outputs" / "metrics.json").read_text())
        return read


def children(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            after = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(after[1]) == pid:
            found.append(int(path.parent.name))
    return found


def losses(said: str) -> dict[int, float]:
    """Of the steps that were saved, in their order."""
    return {int(step): float(loss) for step, loss in re.findall(r"^step (\d+)/\d+  loss ([\d.]+)", said, re.MULTILINE)}


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_two_workers_learn_what_one_learns_and_a_job_that_moves_to_one_keeps_its_batch(tmp_path: Path) -> None:
    needed("torch")
    learnt = {}
    for count in (1, 2):
        run = Workers(tmp_path / str(count))
        process = run.start(count, STEPS="4000", SAVE_EVERY="5")
        wait_for(lambda p=process, r=run: p.poll() is not None or max(r.saved(), default=0) >= 30, "step 30", 120)
        workers = children(process.pid)
        process.send_signal(signal.SIGTERM)  # as the guest does it: to what `run` has started
        said, _ = process.communicate(timeout=90)
        assert process.returncode != 0, said
        learnt[count] = losses(said)
        # All have saved at one step and ended there.
        assert [*learnt[count]][-1] == max(run.saved())
    # Equal but for dropout, which each worker draws for itself.
    assert learnt[1][30] == pytest.approx(learnt[2][30], rel=0.03)
    assert len(workers) == 2
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers), "a worker outlived its launcher"
    reached = max(run.saved())
    process = run.start(1, STEPS=str(reached + 10))
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert f"resumed at step {reached}" in said
    after = run.metrics()
    assert (after["steps"], after["batch"], after["workers"]) == (reached + 10, 32, 1)


CURVE = """\
name: curve
workdir: .
resources: {infra: local}
envs: {WANDB_MODE: offline, WANDB_SILENT: "true"}
checkpoint: {path: kept}
outputs: [runs/*]
run: exec python3 curve.py
max_hours: 1
"""
CURVE_PROGRAM = """\
import os, pathlib, signal, sys, time
import wandb
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
run = wandb.init(project="p", dir=os.environ["BROKER_CHECKPOINT_DIR"])
state = pathlib.Path(os.environ["BROKER_CHECKPOINT_DIR"], "step")
step = int(state.read_text()) if state.exists() else 0
for step in range(step + 1, 31):
    run.log({"loss": 1 / step}, step=step)
    new = state.with_name("step.part")
    new.write_text(str(step))
    new.replace(state)
    print("step", step, flush=True)
    time.sleep(1.0 if os.environ["BROKER_GENERATION"] == "1" else 0.1)  # it is moved off the first in time
    if asked:
        run.finish(exit_code=0)
        sys.exit(143)
run.finish()
runs = pathlib.Path("runs")
runs.mkdir()
for folder in pathlib.Path(os.environ["BROKER_CHECKPOINT_DIR"], "wandb").glob("offline-run-*"):
    (runs / folder.name).write_text("")
"""


def test_one_curve_runs_over_all_machines(cli: Cli) -> None:
    needed("wandb")
    folder = cli.folder / "curve"
    folder.mkdir()
    (folder / "task.yaml").write_text(CURVE)
    (folder / "curve.py").write_text(CURVE_PROGRAM)
    cli("run", "curve", "-y", "-d")
    (row,) = cli.json("ps")
    wait_for(lambda: [stay for stay in cli.json("show", row["id"])["stays"] if stay["saves"]], "a snapshot")
    cli("migrate", "curve", "-y", timeout=120)
    cli("wait", row["id"], timeout=120)
    cli("pull", row["id"], "--to", str(cli.folder / "out"))
    runs = [path.name for path in (cli.folder / "out" / "runs").iterdir()]
    assert len(runs) == 2, runs
    assert all(name.endswith(f"-{row['id']}") for name in runs), runs
