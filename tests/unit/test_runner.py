"""The first process of a task's container, played without a container: orders in, output and ends out."""

from __future__ import annotations

import ast
import base64
import json
import os
import pkgutil
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.guest.container import MODULES, install_runner
from broker.guest.runner import EVENT, FRAME
from broker.testing import wait_for


def runs(python: str | None) -> bool:
    """A name that a version manager has put on PATH may stand for nothing."""
    return python is not None and not subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode


PYTHONS = [sys.executable, *filter(runs, (shutil.which(f"python3.{minor}") for minor in (8, 9, 13)))]


class Played:
    """A runner as a process of this computer."""

    def __init__(self, folder: Path, python: str) -> None:
        install_runner(folder / "runner")
        self.folder = folder
        # Whoever has the same mark is taken for a part of the program and ended with it; workers' folders share names.
        self.mark = f"{uuid.uuid4().hex}/1"
        self.process = subprocess.Popen(
            [python, "-I", "-S", folder / "runner", self.mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"PATH": os.environ["PATH"], "OF_THE_IMAGE": "yes"},
        )
        self.output = b""
        self.ready = self.event()

    def order(self, **order: Any) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        self.process.stdin.flush()

    def start(self, script: str, **env: str) -> None:
        (self.folder / "script").write_text(script)
        values = {"PATH": os.environ["PATH"], "BROKER_PLACEMENT": self.mark, **env}
        pairs = [[base64.b64encode(os.fsencode(text)).decode() for text in pair] for pair in values.items()]
        self.order(do="start", script=str(self.folder / "script"), cwd=str(self.folder), env=pairs)

    def event(self) -> dict[str, Any]:
        """The next event; what was printed before it is in `output`."""
        assert self.process.stdout
        while True:
            kind, size = FRAME.unpack(self.process.stdout.read(FRAME.size))
            data = self.process.stdout.read(size)
            if kind == EVENT:
                told: dict[str, Any] = json.loads(data)
                return told
            self.output += data


@pytest.fixture(params=PYTHONS)
def runner(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Played]:
    played = Played(tmp_path, request.param)
    yield played
    played.process.kill()
    with played.process:
        pass


def test_its_modules_are_python_3_8() -> None:
    for name in MODULES:
        source = pkgutil.get_data("broker.guest", name)
        assert source
        tree = ast.parse(source, feature_version=(3, 8))
        called = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert not called & {
            "removeprefix",
            "removesuffix",
            "readlink_to",
            "hardlink_to",
            "is_relative_to",
            "file_digest",
        }
        words = {word.arg for node in ast.walk(tree) if isinstance(node, ast.Call) for word in node.keywords}
        assert not words & {"slots", "kw_only", "umask", "strict"}


def test_scripts_run_one_after_the_other_and_output_comes_before_the_end(runner: Played) -> None:
    environ = {base64.b64decode(k): base64.b64decode(v) for k, v in runner.ready["environ"]}
    assert environ[b"OF_THE_IMAGE"] == b"yes"
    runner.start('echo "$V"; echo err >&2; exit 3', V="é\n'\"$(x)\udcff")
    ended = runner.event()
    assert (ended["event"], ended["code"], ended["signal"], ended["after_term"]) == ("exit", 3, None, False)
    assert runner.output == "é\n'\"$(x)\udcff\nerr\n".encode("utf-8", "surrogateescape")
    runner.start("kill -9 $$")
    ended = runner.event()
    assert (ended["code"], ended["signal"]) == (137, 9)
    runner.start("head -c 3000000 /dev/zero")
    runner.output = b""
    assert runner.event()["code"] == 0
    assert runner.output == bytes(3_000_000)


@pytest.mark.parametrize("by", ["order", "signal"])
def test_an_end_is_asked_for_by_order_and_by_the_engine(runner: Played, by: str) -> None:
    runner.start("trap 'echo saved; exit 5' TERM; touch ready; while :; do sleep 0.02; done")
    assert wait_for((runner.folder / "ready").exists, 10)
    if by == "order":
        runner.order(do="terminate")
    else:
        runner.process.send_signal(signal.SIGTERM)
    ended = runner.event()
    assert (ended["code"], ended["after_term"]) == (5, True)
    assert b"saved\n" in runner.output


def test_when_its_input_ends_it_kills_everything_and_leaves(runner: Played) -> None:
    runner.start("trap '' TERM; (trap '' TERM; setsid sh -c 'echo $$ >pid; exec sleep 600') & wait; sleep 600")
    assert wait_for(lambda: (runner.folder / "pid").exists() and bool((runner.folder / "pid").read_text()), 10)
    assert runner.process.stdin
    runner.process.stdin.close()
    assert runner.process.wait(10) == 0
    pid = int((runner.folder / "pid").read_text())
    assert wait_for(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text(), 5)


def test_a_script_that_cannot_be_started_is_told(runner: Played) -> None:
    runner.order(do="start", script="/nowhere", cwd="/no/such/folder", env=[])
    assert runner.event()["event"] == "failed"
    runner.start("exit 0")
    assert runner.event()["code"] == 0
