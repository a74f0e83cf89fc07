"""Sleep is held off for as long as asked, and not a moment longer, whatever becomes of the one who asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from broker.awake import held
from broker.testing import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="systemd's way")
GRANTS = '#!/bin/sh\necho $$ "$@" >"{told}"\nshift 4\nexec "$@"\n'


def inhibitor(folder: Path, text: str) -> str:
    """A PATH whose systemd-inhibit is this script; what it is asked for is really run."""
    program = folder / "systemd-inhibit"
    program.write_text(text, encoding="utf-8")
    program.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_it_is_held_while_the_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "told"
    monkeypatch.setenv("PATH", inhibitor(tmp_path, GRANTS.format(told=told)))
    with held("a test") as granted:
        assert granted
        pid, *asked = told.read_text().split()
        assert asked == ["--what=sleep:idle", "--who=spotbroker", "--why=a", "test", "--mode=block", "cat"]
        assert alive(int(pid))
    assert not alive(int(pid))


def test_a_refusal_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", inhibitor(tmp_path, "#!/bin/sh\nexit 1\n"))
    with held("a test") as granted:
        assert not granted
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with held("a test") as granted:
        assert not granted


def test_it_ends_with_whoever_asked_for_it_even_by_force(tmp_path: Path) -> None:
    told = tmp_path / "told"
    program = "from broker.awake import held\nwith held('x') as ok:\n    print(ok, flush=True)\n    input()"
    env = {**os.environ, "PATH": inhibitor(tmp_path, GRANTS.format(told=told)), "PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], env=env, text=True, **pipes) as asker:
        assert asker.stdout is not None
        assert asker.stdout.readline() == "True\n"
        pid = int(told.read_text().split()[0])
        asker.send_signal(signal.SIGKILL)
        asker.wait()
    wait_for(lambda: not alive(pid), 10)
