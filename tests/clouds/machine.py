"""The machines behind every stand-in of a cloud: real processes in namespaces of their own, on this computer.

`Machines.container` is what a marketplace rents: an image, a writable layer, the command as PID 1, no privileges.
`Machines.vm` is what a cloud boots: its own root, init, cloud-init's way with user data, a small systemctl, docker.
Both see only their own files, processes and network; they die with the process that made them.

::

    def test_it(machines: Machines) -> None:
        server = ThreadingHTTPServer(("0.0.0.0", 0), Handler)           # reached at machines.address from both sides
        box = machines.container("c-1", command=["sleep", "600"], env={"CONTAINER_ID": "1"}, metadata=MyMetadata())
        assert box.run("curl", "-s", f"http://{machines.address}:{server.server_port}/").returncode == 0
        box.stop(grace=5.0)

Needs Linux, root and Debian's mmdebstrap; `missing()` says what is not here, and the fixture skips with it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

import pytest

from clouds.metadata import Metadata

__all__ = ["IMAGE", "Gpus", "Machine", "Machines", "Metadata", "machines", "missing", "nvidia"]

IMAGE = "spotbroker.test/python:3.11"  # Debian 12 with python3, curl and CA certificates; also what `docker run` finds


@dataclass(frozen=True, slots=True)
class Gpus:
    """What nvidia-smi shows in a machine. name: as the driver says it; memory in MiB per card."""

    name: str
    count: int
    memory_mib: int


def nvidia(name: str, count: int, memory_mib: int) -> Gpus:
    """Cards for `gpus=`: `nvidia("NVIDIA H100 80GB HBM3", 8, 81559)`."""
    return Gpus(name, count, memory_mib)


def missing() -> str:
    """Why there can be no machines on this computer, for people; empty where there can."""
    raise NotImplementedError


class Machine:
    """One machine. Every method may be called from any thread, and in any state of the machine.

    name: as given. address: its own address, as servers outside see it as their peer. pid1: its first process as the
    host numbers it; 0 while it is down. ended_itself: it is down, and neither `kill` nor `stop` had asked for that.
    """

    name: str
    address: str

    @property
    def pid1(self) -> int:
        raise NotImplementedError

    @property
    def ended_itself(self) -> bool:
        raise NotImplementedError

    def alive(self) -> bool:
        """Is it up? False from the moment its first process is gone."""
        raise NotImplementedError

    def exit_code(self) -> int | None:
        """PID 1's exit code of the last run, 128 + N for signal N; None while it is up."""
        raise NotImplementedError

    def kill(self) -> None:
        """Cut its power. All processes, mounts and the network are gone on return; only the disk stays."""
        raise NotImplementedError

    def stop(self, grace: float) -> None:
        """SIGTERM to PID 1 (a VM: shut down in order), `kill` after `grace` seconds. Returns at once."""
        raise NotImplementedError

    def start(self, *, erase: bool = False) -> None:
        """Up again with the same disk, or an erased one. A container's command, or the VM's boot, runs anew.

        Files of a container are all kept; a VM's /run and /tmp are empty. RuntimeError if it is up or removed.
        """
        raise NotImplementedError

    def reboot(self) -> None:
        """`kill`, then `start`."""
        raise NotImplementedError

    def partition(self) -> None:
        """Take its network away; its metadata service still answers. Nothing is told to either side."""
        raise NotImplementedError

    def heal(self) -> None:
        """Give the network back. It works again within about a second."""
        raise NotImplementedError

    def run(self, *argv: str, timeout: float = 60.0, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """A command inside, as root, as over ssh; with the machine's environment. RuntimeError if it is down."""
        raise NotImplementedError

    def log(self) -> str:
        """All that it wrote on its console: PID 1's output, a VM's user data's and units' too. Kept over restarts."""
        raise NotImplementedError

    def remove(self) -> None:
        """`kill`, and the disk is gone too. May be repeated."""
        raise NotImplementedError


class Machines:
    """All machines of one test: a context manager. What dead runners left is swept at the start, all own at the end.

    address: an address of this host; a server that listens on 0.0.0.0 is reached by it from the host and from every
    machine. Machines reach neither each other nor the world.
    """

    address: str

    def container(
        self,
        name: str,
        *,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        image: str = IMAGE,
        memory: int | None = None,
        files: Mapping[str, bytes] | None = None,
        metadata: Metadata | None = None,
        hostname: str = "",
        gpus: Gpus | None = None,
    ) -> Machine:
        """A marketplace container, up on return: `command` is PID 1, unprivileged root as in docker.

        memory: bytes. files: absolute path -> content, mode 0755 where it starts with `#!`, else 0644.
        hostname: the name by default.
        """
        raise NotImplementedError

    def vm(
        self,
        name: str,
        *,
        user_data: bytes = b"",
        metadata: Metadata | None = None,
        memory: int | None = None,
        env: Mapping[str, str] | None = None,
        gpus: Gpus | None = None,
    ) -> Machine:
        """A virtual machine, booting on return.

        user_data: with a `#!` line, run as root once, at the first boot, as cloud-init does it: from a copy under
        /var/lib/cloud/instance/scripts, output to the console and /var/log/cloud-init-output.log. Its end does not
        end the machine. Units in /etc/systemd/system that `systemctl enable` has enabled start at every boot, before
        user data (ExecStart, Environment, EnvironmentFile, WorkingDirectory, Restart, RestartSec, Type).
        `shutdown`, `poweroff`, `halt` and `reboot` work; the first three leave `ended_itself`. `docker run IMAGE …`
        is podman on the VM's own network. memory: bytes. env: what user data and units get besides.
        """
        raise NotImplementedError

    def __enter__(self) -> Machines:
        raise NotImplementedError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        raise NotImplementedError


@pytest.fixture
def machines() -> Iterator[Machines]:
    """Machines for one test; skips where there can be none. For a wider scope: `with Machines() as machines`."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    with Machines() as found:
        yield found
