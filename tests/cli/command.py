"""The command, run as its users run it: a process, its streams, its exit code."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import pytest
from cli.forked import Forked

HERE = Path(__file__).parent
TASK = """\
name: counter
workdir: .
run: python3 counter.py
envs: {{STEPS: {steps}, PAUSE: {pause}, HABIT: {habit}}}
resources: {{infra: local}}
checkpoint: {{path: checkpoints, complete: DONE}}
outputs: [outputs/*]
work: {{steps: {steps}}}
rehearse: {{deterministic: true, compare: [outputs/word.txt]}}
max_hours: 1
"""


@dataclass
class Cli:
    """One installation: its own state and configuration, and an environment that says nothing about terminals.

    forks: its commands are forks of a process that has imported what they need, and not interpreters of their own.
    """

    folder: Path
    env: dict[str, str] = field(default_factory=dict)
    forks: bool = True
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        kept = {
            k: v for k, v in os.environ.items() if not k.startswith(("SPOTBROKER_", "COLUMNS", "NO_COLOR", "FORCE_"))
        }
        self.env = {
            **kept,
            "SPOTBROKER_STATE": str(self.state),
            "SPOTBROKER_CONFIG": str(self.folder / "config.toml"),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def start(self, *args: str, env: Mapping[str, str] | None = None, stdin: int = DEVNULL) -> subprocess.Popen[str]:
        streams = {"stdin": stdin, "stdout": PIPE, "stderr": PIPE}
        if not self.forks:
            return self._interpreter(*args, env=env or {}, **streams)
        process = Forked(args, env={**self.env, **(env or {})}, cwd=self.folder, text=True, **streams)
        self.started.append(process)
        return process

    def at_terminal(self, *args: str, terminal: int, env: Mapping[str, str], **options: Any) -> subprocess.Popen[str]:
        """As `start`, with a terminal's file for all streams, which an interpreter looks at as it starts."""
        return self._interpreter(*args, env=env, stdin=terminal, stdout=terminal, stderr=terminal, **options)

    def _interpreter(self, *args: str, env: Mapping[str, str], **options: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "broker", *args]
        process = subprocess.Popen(command, env={**self.env, **env}, cwd=self.folder, text=True, **options)
        self.started.append(process)
        return process

    def __call__(
        self, *args: str, code: int | None = 0, env: Mapping[str, str] | None = None, timeout: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        """Run to the end; `code` is the exit code that it must have, None for any."""
        process = self.start(*args, env=env)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            pytest.fail(f"broker {' '.join(args)} did not end within {timeout} s\n{out}\n{err}")
        assert "Traceback" not in err, err
        if code is not None:
            assert process.returncode == code, f"exit code {process.returncode}\n{out}\n{err}"
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def json(self, *args: str, code: int | None = 0) -> Any:
        return json.loads(self(*args, "-o", "json", code=code).stdout)

    def task(self, name: str = "counter", *, habit: str = "good", steps: int = 40, pause: float = 0.2) -> Path:
        """A task folder with the counting program."""
        folder = self.folder / name
        folder.mkdir()
        shutil.copy(HERE / "counter.py", folder)
        (folder / "task.yaml").write_text(TASK.format(habit=habit, steps=steps, pause=pause), encoding="utf-8")
        return folder

    def end(self) -> None:
        """End every job, machine and background broker of this installation, by force where need be."""
        try:
            self("stop", "-a", "-y", "--now", code=None, timeout=60.0)
        finally:
            for process in self.started:
                if process.poll() is None:
                    process.kill()
            mark = f"SPOTBROKER_STATE={self.state}".encode()
            for environ in Path("/proc").glob("[0-9]*/environ"):
                with contextlib.suppress(OSError):
                    if mark in environ.read_bytes().split(b"\0"):
                        os.kill(int(environ.parent.name), signal.SIGKILL)


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    """Poll until the condition holds and return what it gave; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"{what}: not within {seconds} s")
        time.sleep(0.1)
    return found
