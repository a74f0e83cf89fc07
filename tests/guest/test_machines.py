"""The guest on machines that have nothing of the broker's: a VM, a VM with a container in it, a container."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clouds.machine import IMAGE, Machine, Machines, nvidia
from clouds.seaweedfs import SeaweedFS
from guest.placements import Job

from broker.artefacts import Artefacts
from broker.boot import Boot, boot_script, guest_zipapp, start_command, user_data
from broker.errors import ConfigError
from broker.home import Access, Home
from broker.provider import Kind
from broker.testing import wait_for

PROVIDER = """
import os, subprocess
END_COMMAND = "shutdown -h now || exit 1"
def notice():
    return None
def end_machine(why):
    if os.getpid() == 1:
        os._exit(0)
    subprocess.run(["shutdown", "-h", "now"], check=True)
"""
RUN = """
echo "on $(hostname)"
tr '\\0' ' ' </proc/1/cmdline; echo
echo saved >$BROKER_CHECKPOINT_DIR/one.tmp && mv $BROKER_CHECKPOINT_DIR/one.tmp $BROKER_CHECKPOINT_DIR/one.txt
"""
SAVES = {"path": "checkpoints", "keep": 2}

Launch = Callable[..., Machine]


@pytest.fixture
def job(tmp_path: Path, machines: Machines, seaweedfs: SeaweedFS) -> Job:
    """A job whose home machines can reach."""
    package = tmp_path / "providers" / "broker_rig"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "guest.py").write_text(PROVIDER)
    sys.path.insert(0, str(package.parent))
    try:
        guest = guest_zipapp(["broker_rig"])
    finally:
        sys.path.remove(str(package.parent))
    settings = {**seaweedfs.settings(), "endpoint": machines.reach(seaweedfs.endpoint)}
    return Job(tmp_path, guest, Home(Access(seaweedfs.new_home(), settings)))


@pytest.fixture
def launch(job: Job, machines: Machines) -> Launch:
    """Start generation 1 as the broker has it started."""

    def start(kind: Kind, **changes: Any) -> Machine:
        end_by = time.time() + 300
        try:
            given = Artefacts().provide(job.home, job.keys, "x86_64")
        except ConfigError as error:
            pytest.skip(str(error))
        told = {
            name: {"url": job.home.sign_get(job.keys.artefact(sha256), 600), "sha256": sha256, "key": ""}
            for name, sha256 in (("obstore", given.obstore), ("python", given.python))
            if sha256 is not None
        }
        boot = Boot(
            job=job.id,
            generation=1,
            installation="inst",
            provider="rig",
            home=job.home.access,
            spec_sha256=job.spec_sha256,
            end_by=end_by,
            end_why="max_hours",
            guest_url=job.home.sign_get(job.keys.artefact(job.guest[1]), 600),
            guest_sha256=job.guest[1],
            beat=0.5,
            scan=0.1,
            quiet=0.3,
            kind=str(kind),
            runtime={"architecture": "x86_64", "obstore": None, "python": None, **told},
            **changes,
        )
        job.home.put(job.keys.boot(1), boot_script(boot))
        text = user_data(job.home.sign_get(job.keys.boot(1), 600), end_by, provider="rig", kind=kind)
        job.live = 1
        job.order(1, end_by=end_by, end_why="max_hours")
        cards = nvidia("NVIDIA L4", 1, 23034)
        if kind is Kind.VM:
            return machines.vm("box-1", user_data=text.encode(), gpus=cards)
        return machines.container("box-1", command=start_command(text), gpus=cards)

    return start


@pytest.mark.parametrize(
    ("kind", "container", "first"),
    [
        (Kind.VM, None, "/usr/bin/python3 -I /sbin/init "),
        (Kind.VM, IMAGE, "python3 -I -S /var/lib/spotbroker/runner "),
        (Kind.CONTAINER, None, "python3 -I -S /var/lib/spotbroker/guest.pyz "),
    ],
)
def test_runs_saves_and_ends_its_machine(
    job: Job, launch: Launch, kind: Kind, container: str | None, first: str
) -> None:
    """From user data to the machine's own end, with obstore and all else from the home; and without delay."""
    job.task(RUN, checkpoint=SAVES)
    machine = launch(kind, container=container)
    assert wait_for(lambda: job.home.has(job.keys.result(1)), 30.0), machine.log()
    assert wait_for(lambda: not machine.alive(), 10.0), machine.log()
    assert machine.ended_itself
    log = b"".join(job.home.get(entry.key) for entry in job.home.list(job.keys.logs(1))).decode()
    assert f"on box-1\n{first}" in log
    assert b'"succeeded"' in (job.home.find(job.keys.result(1)) or b"")
    assert job.home.list(job.keys.manifests(1))


def test_a_vm_goes_on_after_a_reboot(job: Job, launch: Launch) -> None:
    """Not a new job and not the end: the unit starts the same generation again, which resumes."""
    job.task("cd $BROKER_CHECKPOINT_DIR; echo start >>starts; [ $(wc -l <starts) -gt 1 ] || sleep 60", checkpoint=SAVES)
    machine = launch(Kind.VM)
    assert wait_for(lambda: bool(job.home.list(job.keys.manifests(1))), 30.0), machine.log()
    machine.reboot()
    assert wait_for(lambda: job.home.has(job.keys.result(1)), 30.0), machine.log()
    assert wait_for(lambda: not machine.alive(), 10.0), machine.log()
    assert machine.ended_itself
