"""Nothing that a job starts outlives it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from guest.placements import alive, holds, wait_for

# Leaves its group, its session, its parent and its environment, and ignores SIGTERM.
ESCAPE = '''
cat >escape.py <<'EOF'
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
again = """import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("pid", "w").write(str(os.getpid()))
time.sleep(600)"""
os.execve(sys.executable, [sys.executable, "-c", again], {})
EOF
python escape.py
until [ -s pid ]; do sleep 0.02; done
echo ready
'''


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize("then", ["exit 0", "while :; do sleep 0.05; done"])
def test_what_escapes_is_dead_after_the_end(job, then):
    placement = job.task(ESCAPE + then).place()
    if then != "exit 0":
        wait_for(lambda: "ready" in placement.log)
        placement.notice(20)
    result = placement.until_ended(15)
    assert result["outcome"] == ("succeeded" if then == "exit 0" else "moved")
    assert gone(int((placement.disk / "work" / "pid").read_text()))


@pytest.mark.parametrize("net", ["groups", "descent", "mark"])
def test_each_net_by_itself(tmp_path, net):
    """The cgroup, the subreaper and the mark each catch a setsid'ed, TERM-ignoring process without the others."""
    script = textwrap.dedent(f"""
        import os, pathlib, sys
        from broker.guest.contain import Containment
        from broker.guest.program import Program
        net = {net!r}
        if net == "mark":
            contain = Containment("mark-{os.getpid()}/1")  # no groups, no subreaper
        else:
            contain = Containment.open("{net}-{os.getpid()}/1")
        if net == "groups" and not contain.groups:
            sys.exit(77)
        if net == "groups":
            contain.subreaper = False
        else:
            contain.groups = []
        env = {{"PATH": os.environ["PATH"]}}
        if net == "mark":
            env["BROKER_PLACEMENT"] = contain.mark
        escape = pathlib.Path("escape")
        escape.write_text(
            "(trap '' TERM; exec setsid sh -c 'echo $$ >pid; exec sleep 600') & until [ -s pid ]; do sleep 0.02; done"
        )
        program = Program(
            escape, cwd=pathlib.Path(), contain=contain, output=lambda data: None,
            env={{k.encode(): v.encode() for k, v in env.items()}},
        )
        while program.wait(0.05) is None:
            pass
        left = contain.members()
        contain.close()
        print(program.exit.code, left)
    """)
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode == 77:
        pytest.skip("no cgroup can be written here")
    assert done.stdout.split() == ["0", "set()"], done.stderr
    assert gone(int((tmp_path / "pid").read_text()))


def test_store_unreachable_at_the_notice(job):
    """The program is dead by the notice's end, and the machine is ended, though nothing can be written."""
    import time

    placement = job.task("trap '' TERM; echo ready; while :; do sleep 0.05; done").place()
    wait_for(lambda: "ready" in placement.log)
    away = job.folder / "away"
    (job.folder / "home").rename(away)
    (job.folder / "home").touch()
    ends_at = placement.notice(6)
    wait_for(lambda: not alive(placement.mark), 8)
    assert time.time() < ends_at
    assert not placement.ended, "last words are still tried"
    (job.folder / "home").unlink()
    away.rename(job.folder / "home")
    result = placement.until_ended(15)
    assert result["outcome"] == "moved"


def test_store_unreachable_while_running_ends_nothing(job):
    """Nor is an empty home made in the place of one that is not there."""
    checkpoint = {"path": "ckpt", "every": None, "keep": 3, "complete": None}
    run = "echo ready; until [ -e ../../go ]; do sleep 0.02; done; echo 1 >ckpt/a"
    placement = job.task(run, checkpoint=checkpoint).place()
    wait_for(lambda: "ready" in placement.log)
    away = job.folder / "away"
    (job.folder / "home").rename(away)
    (placement.folder / "go").touch()
    wait_for(lambda: "program has ended" in (placement.disk / "log").read_text(), 8)
    holds(lambda: not (job.folder / "home").exists(), 2.0)
    away.rename(job.folder / "home")
    result = placement.until_ended(15)
    assert (result["outcome"], result["seq"]) == ("succeeded", 1)
    assert placement.own_log == "ready\n"
