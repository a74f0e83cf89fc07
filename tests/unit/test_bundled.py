"""The tasks that come along: found by name, copied out, and the quickstart's training survives what it claims to."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from broker import bundled
from broker.errors import ConfigError, TaskError
from broker.task import load


def test_every_bundled_task_is_sound() -> None:
    assert "quickstart" in bundled.names()
    for name in bundled.names():
        task = load(name)
        assert task.name == name
        assert task.workdir == bundled.folder(name)


def test_an_unknown_name_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="did you mean quickstart"):
        bundled.folder("quikstart")
    with pytest.raises(TaskError, match="did you mean quickstart") as caught:
        load("quikstart")
    assert "quickstart" in caught.value.fix


def test_copying_out_gives_a_folder_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = bundled.copy_out("quickstart", tmp_path / "quickstart")
    assert sorted(path.name for path in target.iterdir()) == ["README.md", "task.yaml", "train.py"]
    with pytest.raises(ConfigError, match="not empty"):
        bundled.copy_out("quickstart", target)
    with pytest.raises(ConfigError, match="not empty"):
        bundled.copy_out("quickstart", target / "task.yaml")
    monkeypatch.chdir(tmp_path)
    assert load("quickstart").workdir == target  # one's own copy comes first


SHORT = {"STEPS": "30", "STEP_WORK": "2", "SAVE_EVERY": "4"}


class Training:
    """The quickstart's program, run by hand in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = folder / "kept"
        folder.mkdir()

    def start(self, **envs: str) -> subprocess.Popen[str]:
        task = load("quickstart")
        given = {**os.environ, **task.envs, **SHORT, **envs, "BROKER_CHECKPOINT_DIR": str(self.checkpoints)}
        command = [sys.executable, str(bundled.folder("quickstart") / "train.py")]
        return subprocess.Popen(command, cwd=self.folder, env=given, stdout=subprocess.PIPE, text=True)

    def run(self, **envs: str) -> str:
        process = self.start(**envs)
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0, out
        return out

    def newest(self) -> int:
        found = [int(path.stem.split("-")[1]) for path in self.checkpoints.glob("step-*.npz")]
        return max(found, default=0)

    @property
    def weights(self) -> str:
        return hashlib.sha256((self.folder / "outputs" / "model.npz").read_bytes()).hexdigest()


@pytest.fixture
def needs_numpy() -> None:
    for name in ("numpy", "sklearn"):
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed")


@pytest.mark.usefixtures("needs_numpy")
def test_interruptions_do_not_change_the_weights_by_a_bit(tmp_path: Path) -> None:
    whole = Training(tmp_path / "whole")
    whole.run(STEPS="60")
    cut = Training(tmp_path / "cut")
    # Steps long enough to be hit between two saves.
    for number, kill in enumerate((signal.SIGKILL, signal.SIGTERM, signal.SIGKILL)):
        before = cut.newest()
        process = cut.start(STEPS="60")
        deadline = time.monotonic() + 60
        while cut.newest() < before + 8 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(random.Random(number).uniform(0, 0.02))
        process.send_signal(kill)
        out, _ = process.communicate(timeout=60)
        assert process.returncode == (143 if kill is signal.SIGTERM else -kill), out
        assert number == 0 or f"resumed at step {before}" in out
        if kill is signal.SIGTERM:
            assert f"saved step {cut.newest()}" in out
    assert "resumed at step" in cut.run(STEPS="60")
    assert cut.weights == whole.weights


@pytest.mark.usefixtures("needs_numpy")
def test_a_cut_checkpoint_is_passed_over_and_a_finished_run_just_writes_its_outputs(tmp_path: Path) -> None:
    training = Training(tmp_path / "t")
    training.run()
    weights = training.weights
    newest = training.checkpoints / "step-000030.npz"
    newest.write_bytes(newest.read_bytes()[:5000])
    out = training.run()
    assert "step-000030.npz cannot be read" in out
    assert "resumed at step 28" in out
    assert training.weights == weights
    assert "resumed at step 30" in training.run()
    assert training.weights == weights


@pytest.mark.usefixtures("needs_numpy")
def test_it_really_learns(tmp_path: Path) -> None:
    training = Training(tmp_path / "t")
    training.run(STEPS="60", STEP_WORK="10")
    assert json.loads((training.folder / "outputs" / "metrics.json").read_text())["accuracy"] > 0.95
