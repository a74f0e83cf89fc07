"""What a person's `broker ssh` runs: whose host key is believed, what is typed there for them, and how it is quoted."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from broker.config import load
from broker.errors import ConfigError, JobUnfinished
from broker.job import Job
from broker.provider import Shell
from broker.shell import way_in, way_of
from broker.store import JobRow, PlacementRow, open_store

STATE = Path("/state of mine")
SSH = Shell(("ssh", "ubuntu@192.0.2.7"), become=("sudo",), folder="/var/lib/spotbroker", needs="a key")


def test_openssh_keeps_host_keys_in_a_file_of_ours() -> None:
    way = way_of(SSH, "", STATE, Path("/keys/mine"))
    program, *options = way.argv[:-1]
    assert program == "ssh"
    assert options[:4] == [
        "-o", "StrictHostKeyChecking=accept-new", "-o", "UserKnownHostsFile='/state of mine/known_hosts'",
    ]  # fmt: skip
    assert options[4:] == ["-i", "/keys/mine", "-t", "ubuntu@192.0.2.7"]
    # OpenSSH itself reads it so, and one file it is.
    read = subprocess.run([program, "-G", *options[:4], "h"], capture_output=True, text=True, check=True).stdout
    assert "userknownhostsfile '/state of mine/known_hosts'\n" in read or (
        "userknownhostsfile /state of mine/known_hosts\n" in read
    )
    assert "-t" not in way_of(SSH, "nvidia-smi", STATE, None).argv, "a command's output is no terminal's"


def entered(tmp_path: Path, line: str) -> subprocess.CompletedProcess[str]:
    """Run what is meant for the machine, on one whose `enter` says what it is given."""
    here = Shell(("/bin/sh", "-c"), folder=str(tmp_path / "a machine"))
    argv = way_of(here, line, STATE, None).argv
    return subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)


@pytest.mark.parametrize("line", ["", "echo $HOME; exit 3", "a \"b c\" 'd' \\ *"])
def test_the_line_arrives_as_it_was_typed(tmp_path: Path, line: str) -> None:
    assert entered(tmp_path, line).returncode == 101
    assert "has not been started on this machine yet" in entered(tmp_path, line).stderr
    (tmp_path / "a machine").mkdir()
    (tmp_path / "a machine" / "enter").write_text('printf "<%s>" "$@"; exit 4')
    done = entered(tmp_path, line)
    assert (done.stdout, done.returncode) == (f"<{line}>", 4)


def test_where_only_a_terminal_is_given_what_to_type_is_said() -> None:
    way = way_of(Shell(("ssh", "pod@ssh.runpod.io"), commands=False), "", STATE, None)
    assert way.argv[-1] == "pod@ssh.runpod.io"
    assert shlex.split(way.then) == ["sh", "/var/lib/spotbroker/enter"]


def job(folder: Path, status: str = "running") -> Job:
    """A job with nothing rented."""
    (folder / "config.toml").touch()
    config = load(state=folder / "state", file=folder / "config.toml")
    store = open_store(config.state, config.database)
    store.add_job(JobRow("j-1", "j", 1e9, status, "file:///nowhere", {}))
    return Job(store.job("j-1"), config, store)


def test_without_a_machine_it_says_whether_waiting_helps(tmp_path: Path) -> None:
    starting = job(tmp_path, "starting")
    with pytest.raises(JobUnfinished, match="j-1 has no machine at present: starting"):
        way_in(starting)
    starting.store.update_job("j-1", status="limit")
    with pytest.raises(ConfigError, match=r"j-1 has ended \(limit\): its machine is gone") as told:
        way_in(starting)
    assert "broker pull --checkpoint j-1" in told.value.fix


def test_where_a_vendor_has_no_way_in_it_says_why_and_what_else_there_is(tmp_path: Path) -> None:
    running = job(tmp_path)
    offer = {"provider": "vast", "region": "SE", "zone": "", "instance_type": "1x", "market": "spot"}
    row = PlacementRow("j-1", 1, "launched", {"offer": offer}, [], 1e9, instance="77", hourly=0.2, launched_at=1e9)
    running.store.intend(row)
    with pytest.raises(ConfigError, match="Vast puts SSH into a machine only in the place of") as told:
        way_in(running)
    assert told.value.fix.startswith("broker logs j-1 shows its output")
