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

Needs Linux, root, control groups of version 1 and a few Debian packages; `missing()` says what is not here, and the
fixture skips with it. What is on a machine's disk is in `image.py`, how it comes into being in `inside.py`.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

import pytest
from clouds import cgroup, image
from clouds.image import IMAGE
from clouds.layer import Gpus, nvidia, nvidia_smi, vm_layer
from clouds.metadata import Metadata
from clouds.network import Block
from clouds.power import Plan, Power
from clouds.relay import Relay

PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>

__all__ = ["IMAGE", "Gpus", "Machine", "Machines", "Metadata", "machines", "missing", "nvidia"]

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
POWER_BUTTON = 38  # Linux's SIGRTMIN + 4: systemd's, and so our init's, for an orderly end
REBOOT = 113  # a VM's init ends with it when it wants to be booted again; the kernel's reboot(2) gives SIGHUP
LONGEST_HOSTNAME = 63
NEEDED = (12, 21, 27)  # CAP_NET_ADMIN, CAP_SYS_ADMIN, CAP_MKNOD


def missing() -> str:
    """Why there can be no machines on this computer, for people; empty where there can."""
    if sys.platform != "linux" or os.getuid() != 0:
        return "machines need Linux and root"
    capabilities = int(Path("/proc/self/status").read_text().split("CapEff:")[1].split()[0], 16)
    if any(not capabilities >> number & 1 for number in NEEDED):
        return "machines need a root that may make namespaces, networks and devices"
    for program, package in (("ip", "iproute2"), ("unshare", "util-linux")):
        if shutil.which(program) is None:
            return f"machines need {program}; on Debian: apt-get install {package}"
    packages = image.missing()
    if packages:
        return f"machines are made of Debian packages: apt-get install --no-install-recommends {' '.join(packages)}"
    return cgroup.missing()


class Machine:
    """One machine. Every method may be called from any thread, and in any state of the machine.

    name: as given. address: its own, as servers outside see it as their peer.
    """

    def __init__(self, name: str, plan: Plan, maker: Machines) -> None:
        self.name = name
        self.address = maker.block.addresses(plan.number)[1]
        self._plan, self._maker = plan, maker
        self._lock = threading.RLock()
        self._power: Power | None = None
        self._code: int | None = None
        self._asked = False
        self._new = True
        self._plugged = True
        self._removed = False

    @property
    def pid1(self) -> int:
        """Its first process as this host numbers it; 0 while it is down."""
        power = self._power
        return power.pid1 if power is not None and power.alive() else 0

    @property
    def ended_itself(self) -> bool:
        """Is it down, and neither `kill` nor `stop` had asked for that?"""
        return not self.alive() and not self._asked

    def alive(self) -> bool:
        """Is it up? False from the moment its first process is gone, unless it is rebooting itself."""
        with self._lock:
            power = self._power
            return power is not None and (power.alive() or self._boots_again(power.wait(0)))

    def exit_code(self) -> int | None:
        """PID 1's exit code of the last run, 128 + N for signal N; None while it is up."""
        with self._lock:
            return self._code if self._power is None else self._power.wait(0)

    def kill(self) -> None:
        """Cut its power. All processes, mounts and the network are gone on return; only the disk stays."""
        with self._lock:
            self._asked = True
            if self._power is not None:
                self._end(self._power)

    def stop(self, grace: float) -> None:
        """SIGTERM to PID 1 (a VM: shut down in order), `kill` after `grace` seconds. Returns at once."""
        with self._lock:
            self._asked = True
            power = self._power
        if power is not None:
            power.signal(POWER_BUTTON if self._plan.spec["vm"] else signal.SIGTERM)

            def follow() -> None:
                if power.wait(grace) is None:
                    self._end(power)

            threading.Thread(target=follow, name=f"stop-{self.name}", daemon=True).start()

    def start(self, *, erase: bool = False) -> None:
        """Up again with the same disk, or an erased one. A container's command, or the VM's boot, runs anew.

        Files of a container are all kept; a VM's /run and /tmp are empty. RuntimeError if it is up or removed.
        """
        with self._lock:
            if self.alive() or self._removed:
                raise RuntimeError(f"{self.name} is {'removed' if self._removed else 'up'}")
            if self._power is not None:
                self._end(self._power)
            if erase or self._new:
                _make_disk(self._plan.disk)
            self._asked = False
            new = erase or self._new
            power = Power(self._plan, self._maker.block, self._maker.spawn, new=new, plugged=self._plugged)
            self._power, self._new = power, False
            threading.Thread(target=self._follow, args=(power,), name=f"power-{self.name}", daemon=True).start()

    def reboot(self) -> None:
        """`kill`, then `start`."""
        with self._lock:
            self.kill()
            self.start()

    def partition(self) -> None:
        """Take its network away, over restarts too; its metadata service still answers. Neither side is told."""
        self._plug(False)

    def heal(self) -> None:
        """Give the network back. It works again within about a second."""
        self._plug(True)

    def run(self, *argv: str, timeout: float = 60.0, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """A command inside, as root, as over ssh; with the machine's environment. RuntimeError if it is down."""
        return self._up().enter(argv, stdin=stdin, timeout=timeout)

    def log(self) -> str:
        """All that it wrote on its console: PID 1's output, a VM's user data's and units' too. Kept over restarts."""
        try:
            return (self._plan.disk / "console").read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def remove(self) -> None:
        """`kill`, and the disk is gone too. May be repeated."""
        with self._lock:
            self.kill()
            self._removed = True
            shutil.rmtree(self._plan.disk, ignore_errors=True)

    def _plug(self, plugged: bool) -> None:
        with self._lock:
            self._plugged = plugged
            if self._power is not None:
                self._power.link.plugged(plugged)

    def _up(self) -> Power:
        power = self._power
        if power is None or not power.alive():
            raise RuntimeError(f"{self.name} is down")
        return power

    def _end(self, power: Power) -> None:
        with self._lock:
            power.cut()
            if self._power is power:
                self._code = power.wait()
                self._power = None

    def _follow(self, power: Power) -> None:
        """Clean up after it once its first process ends, and boot it again if it asked for that."""
        code = power.wait()
        with self._lock:
            was_ours = self._power is power
            self._end(power)
            if was_ours and self._boots_again(code):
                self.start()

    def _boots_again(self, code: int | None) -> bool:
        return bool(self._plan.spec["vm"]) and not self._asked and code in (REBOOT, 128 + signal.SIGHUP)


class Machines:
    """All machines of one test: a context manager. What dead runners left is swept at the start, all own at the end.

    address: an address of this host; a server that listens on 0.0.0.0 is reached by it from the host and from every
    machine. Machines reach neither each other nor the world. python: the version of their Python, such as `3.11`.
    """

    def __init__(self) -> None:
        # A guest that a test ran in this process has made it the reaper of orphans. A machine's would come here too, be
        # reaped by nobody, and keep the machine's first process from ending.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        self._image = image.image()
        self.python = self._image.python
        self._folder = Path(tempfile.mkdtemp(prefix="spotbroker-machines-"))
        self._folder.chmod(0o755)
        self.block = Block(self._folder)
        self.address = self.block.address
        self._machines: list[Machine] = []
        # A process dies with the thread that made it (PR_SET_PDEATHSIG), and this one lasts.
        self._spawner = ThreadPoolExecutor(1, thread_name_prefix="machines")
        self._vm_layer = vm_layer(self._folder / "vm")
        self._relays: dict[int, Relay] = {}

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
        hostname: the name by default. LookupError for an image that is not IMAGE.
        """
        if image != IMAGE:
            raise LookupError(f"there is no image {image}, only {IMAGE}")
        hostname = hostname or name
        environment = {"PATH": PATH, "HOSTNAME": hostname, "HOME": "/root", **(env or {})}
        layers = [self._image.base]
        return self._made(name, hostname, command, environment, layers, files or {}, [], memory, metadata, gpus)

    def vm(
        self,
        name: str,
        *,
        user_data: bytes = b"",
        metadata: Metadata | None = None,
        memory: int | None = None,
        env: Mapping[str, str] | None = None,
        gpus: Gpus | None = None,
        packages: Path | None = None,
    ) -> Machine:
        """A virtual machine, booting on return.

        user_data: with a `#!` line, run as root once, at the first boot, as cloud-init does it: from a copy under
        /var/lib/cloud/instance/scripts, output to the console and /var/log/cloud-init-output.log, without HOME. Its
        end does not end the machine. Units in /etc/systemd/system that `systemctl enable` has enabled start at every
        boot, before user data (ExecStart, Environment, EnvironmentFile, WorkingDirectory, Restart, RestartSec, Type).
        `shutdown`, `poweroff`, `halt` and `reboot` work; the first three leave `ended_itself`. `docker run IMAGE …`
        is podman on the VM's own network. memory: bytes. env: what user data and units get besides. packages: a folder
        of Python packages that its containers have, as an image has them that was made with them.
        """
        environment = {"PATH": PATH, "LANG": "C.UTF-8", **(env or {})}
        layers = [self._vm_layer, self._image.vm, self._image.base]
        files = {"/var/lib/cloud/instance/user-data.txt": user_data}
        binds: list[tuple[Path | str, str, bool]] = [(self._image.store, "run/images", True)]
        if packages is not None:
            binds.append((packages, "run/packages", True))
            volume = f"/run/packages:/usr/local/lib/python{self._image.python}/dist-packages:ro"
            files["/etc/containers/containers.conf.d/packages.conf"] = (
                f'[containers]\nvolumes = ["{volume}"]\n'.encode()
            )
        return self._made(name, name, ["/sbin/init"], environment, layers, files, binds, memory, metadata, gpus)

    def reach(self, url: str) -> str:
        """The URL at which machines, and this host, reach a server that listens on this host's loopback only.

        Same port, other address; `http://127.0.0.1:8333/a` -> `http://10.231.0.1:8333/a`. A cut cable cuts it too.
        """
        parts = urlsplit(url)
        assert parts.port is not None, url
        if parts.port not in self._relays:
            self._relays[parts.port] = Relay(self.address, parts.port)
        return urlunsplit(parts._replace(netloc=f"{self.address}:{parts.port}"))

    def _made(
        self,
        name: str,
        hostname: str,
        command: Sequence[str],
        env: Mapping[str, str],
        layers: Sequence[Path],
        files: Mapping[str, bytes],
        binds: Sequence[tuple[Path | str, str, bool]],
        memory: int | None,
        metadata: Metadata | None,
        gpus: Gpus | None,
    ) -> Machine:
        number = self.block.next()
        disk = self._folder / str(number)
        vm = command == ["/sbin/init"]
        if vm:
            binds = [*binds, (disk / "containers", "var/lib/containers", False)]
        files = {**files, **({"/usr/bin/nvidia-smi": nvidia_smi(gpus)} if gpus is not None else {})}
        outer, inner = self.block.addresses(number)
        spec: dict[str, Any] = {
            "vm": vm,
            "disk": str(disk),
            "console": str(disk / "console"),
            "layers": [str(layer) for layer in layers],
            "hierarchies": cgroup.hierarchies(),
            "binds": [(str(source), target, read_only) for source, target, read_only in binds],
            "files": [],
            "hostname": hostname[:LONGEST_HOSTNAME],
            "hosts": f"127.0.0.1\tlocalhost\n{inner}\t{hostname[:LONGEST_HOSTNAME]}\n",
            "dns": f"nameserver {outer}\n",
            "command": list(command),
            "env": dict(env),
        }
        (disk / "files").mkdir(parents=True)
        for index, (path, content) in enumerate(files.items()):
            kept = disk / "files" / str(index)
            kept.write_bytes(content)
            spec["files"].append((str(kept), path, 0o755 if content.startswith(b"#!") else 0o644))
        machine = Machine(name, Plan(disk, number, memory, metadata, spec), self)
        self._machines.append(machine)
        machine.start()
        return machine

    def spawn(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process that dies with this runner."""
        return self._spawner.submit(partial(subprocess.Popen, command, **options)).result()

    def close(self) -> None:
        """Remove every machine, and what they were made of."""
        try:
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(Machine.remove, self._machines))
        finally:
            for relay in self._relays.values():
                relay.close()
            self._spawner.shutdown()
            self.block.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _make_disk(disk: Path) -> None:
    for name in ("up", "work", "root", "containers"):
        shutil.rmtree(disk / name, ignore_errors=True)
        (disk / name).mkdir(mode=0o755)


@pytest.fixture
def machines() -> Iterator[Machines]:
    """Machines for one test; skips where there can be none. For a wider scope: `with Machines() as machines`."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    with Machines() as found:
        yield found
