"""The machines behind the stand-ins: what they see, how they end, and that nothing is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from clouds import cgroup
from clouds.machine import IMAGE, Machine, Machines, nvidia
from clouds.metadata import Answer

from broker.testing import wait_for

METADATA = "http://169.254.169.254"
SLEEP = ("sleep", "600")


class Named:
    """A metadata service that tells whose it is, and what it was asked."""

    def __init__(self, name: str) -> None:
        self.name = name

    def handle(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        told = f"{self.name} {method} {path} {headers.get('x-token')} {body.decode()}"
        return (404 if path == "/none" else 200), {"X-Whose": self.name}, told.encode()


class Peers(BaseHTTPRequestHandler):
    """A server outside, for machines: it answers with the address that it sees."""

    def do_GET(self) -> None:
        content = self.client_address[0].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    """Of a server on all of this computer's addresses."""
    with ThreadingHTTPServer(("0.0.0.0", 0), Peers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def get(machine: Machine, url: str, *more: str) -> str:
    """What curl gets there; nothing where it gets nothing within a second."""
    return machine.run("curl", "-s", "--max-time", "1", *more, url).stdout


def logged(machine: Machine, text: str, times: int = 1) -> bool:
    return wait_for(lambda: machine.log().count(text) >= times, 10.0)


class TestContainer:
    def test_first_process_and_environment(self, machines: Machines) -> None:
        box = machines.container(
            "c-1",
            command=["sh", "-c", "echo $$ $COLOUR; cat /etc/mine; exec sleep 600"],
            env={"COLOUR": "green"},
            files={"/etc/mine": b"my file\n", "/opt/x/run": b"#!/bin/sh\necho ran $COLOUR on $(hostname)\n"},
            hostname="host-7",
        )
        assert logged(box, "1 green\nmy file\n")
        assert box.alive()
        assert box.exit_code() is None
        assert box.run("/opt/x/run").stdout == "ran green on host-7\n"
        assert "sleep 600" in Path(f"/proc/{box.pid1}/cmdline").read_text().replace("\0", " ")
        python = "import ssl, sys; print(sys.version_info >= (3, 11), len(ssl.create_default_context().get_ca_certs()))"
        new_enough, certificates = box.run("python3", "-c", python).stdout.split()
        assert (new_enough, int(certificates) > 50) == ("True", True)
        assert box.run("sh", "-c", "cat; exit 9", stdin="typed").stdout == "typed"
        assert box.run("sh", "-c", "exit 9").returncode == 9
        with pytest.raises(subprocess.TimeoutExpired):
            box.run("sleep", "60", timeout=0.2)

    def test_sees_nothing_of_this_computer(self, machines: Machines) -> None:
        box, vm = machines.container("c-1", command=SLEEP), machines.vm("v-1")
        for machine in (box, vm):
            for place in (Path(__file__).parent, Path(sys.prefix), Path.cwd()):
                assert machine.run("test", "-e", str(place)).returncode == 1, (machine.name, place)
            assert machine.run("ls", "/root", "/home", "/mnt").stdout.split() == ["/home:", "/mnt:", "/root:"]
            assert len([entry for entry in machine.run("ls", "/proc").stdout.split() if entry.isdigit()]) < 6
            # Its disk and its kernel's log may be made as devices, and not be read.
            disk = Path("/").stat().st_dev
            for kind, major, minor in (("b", os.major(disk), os.minor(disk)), ("c", 1, 11)):
                assert machine.run("mknod", f"/dev/{kind}", kind, str(major), str(minor)).returncode == 0
                assert machine.run("head", "-c1", f"/dev/{kind}").stderr.endswith("Operation not permitted\n")
            assert machine.run("test", "-w", "/proc/sys/kernel/panic").returncode == 1
        assert box.run("mount", "-t", "tmpfs", "none", "/mnt").returncode != 0
        assert box.run("mkdir", "/sys/fs/cgroup/memory/mine").returncode != 0
        assert vm.run("mkdir", "/sys/fs/cgroup/memory/mine").returncode == 0

    def test_sigterm_and_then_kill_after_the_grace(self, machines: Machines) -> None:
        loop = "echo ready; while :; do sleep 0.05; done"
        deaf = machines.container("deaf", command=["sh", "-c", f"trap 'echo told' TERM; {loop}"])
        heeds = machines.container("heeds", command=["sh", "-c", f"trap 'exit 7' TERM; {loop}"])
        assert logged(deaf, "ready")
        assert logged(heeds, "ready")
        asked = time.monotonic()
        deaf.stop(0.6)
        heeds.stop(60.0)
        assert wait_for(lambda: not heeds.alive(), 10.0)
        assert heeds.exit_code() == 7
        assert logged(deaf, "told")
        assert wait_for(lambda: not deaf.alive(), 10.0)
        assert time.monotonic() - asked >= 0.6
        assert deaf.exit_code() == 137
        assert not deaf.ended_itself

    def test_its_own_end_and_a_restart(self, machines: Machines) -> None:
        script = "echo again >>/kept; cat /kept; [ $(wc -l </kept) -lt 2 ] && exit 3; exec sleep 600"
        box = machines.container("c-1", command=["sh", "-c", script])
        assert wait_for(lambda: not box.alive(), 10.0)
        assert (box.exit_code(), box.ended_itself) == (3, True)
        with pytest.raises(RuntimeError, match="c-1 is down"):
            box.run("true")
        box.start()
        assert logged(box, "again", 3)
        assert (box.alive(), box.exit_code(), box.ended_itself) == (True, None, False)
        box.kill()
        box.start(erase=True)
        assert wait_for(lambda: not box.alive(), 10.0)
        assert box.log().count("again") == 4

    def test_memory_has_a_limit(self, machines: Machines) -> None:
        box = machines.container("c-1", command=["python3", "-c", "x = bytearray(1 << 28)"], memory=64 << 20)
        assert wait_for(lambda: not box.alive(), 10.0)
        assert box.exit_code() == 137

    def test_command_that_is_not_there(self, machines: Machines) -> None:
        with pytest.raises(RuntimeError, match="exec no-such: No such file"):
            machines.container("c-1", command=["no-such"])
        with pytest.raises(LookupError, match="no image other"):
            machines.container("c-2", command=SLEEP, image="other")

    def test_cards(self, machines: Machines) -> None:
        box = machines.container("c-1", command=SLEEP, gpus=nvidia("NVIDIA H100 80GB HBM3", 2, 81559))
        query = ["nvidia-smi", "--query-gpu=name,memory.total"]
        assert box.run(*query, "--format=csv,noheader,nounits").stdout == "NVIDIA H100 80GB HBM3, 81559\n" * 2
        assert box.run(*query, "--format=csv,noheader").stdout == "NVIDIA H100 80GB HBM3, 81559 MiB\n" * 2
        assert box.run("nvidia-smi", "--query-gpu=colour", "--format=csv").returncode == 2


class TestNetwork:
    def test_each_sees_its_own_metadata(self, machines: Machines) -> None:
        first = machines.container("one", command=SLEEP, metadata=Named("one"))
        second = machines.vm("two", metadata=Named("two"))
        bare = machines.container("bare", command=SLEEP)
        assert get(first, f"{METADATA}/a?b=c", "-X", "PUT", "-H", "X-Token: t", "-d", "body") == "one PUT /a?b=c t body"
        assert get(second, f"{METADATA}/a") == "two GET /a None "
        assert get(second, f"{METADATA}/none", "-o", "/dev/null", "-w", "%{http_code}") == "404"
        assert get(bare, f"{METADATA}/a") == ""
        second.reboot()
        assert get(second, f"{METADATA}/a") == "two GET /a None "

    def test_partition_and_healing(self, machines: Machines, port: int) -> None:
        cut, other = (machines.container(name, command=SLEEP, metadata=Named(name)) for name in ("cut", "other"))
        outside = f"http://{machines.address}:{port}/"
        assert get(cut, outside) == cut.address
        cut.partition()
        assert get(cut, outside) == ""
        assert get(cut, f"{METADATA}/a") == "cut GET /a None "
        assert get(other, outside) == other.address
        cut.heal()
        assert wait_for(lambda: get(cut, outside) == cut.address, 10.0)

    def test_a_server_on_loopback(self, machines: Machines) -> None:
        box = machines.container("c-1", command=SLEEP)
        with ThreadingHTTPServer(("127.0.0.1", 0), Peers) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.05,))
            thread.start()
            inside = f"http://127.0.0.1:{server.server_port}/a"
            assert get(box, inside) == ""
            outside = machines.reach(inside)
            assert outside == f"http://{machines.address}:{server.server_port}/a" == machines.reach(inside)
            assert get(box, outside) == "127.0.0.1"
            server.shutdown()
            thread.join()


UNIT = b"""#!/bin/sh
echo "user data as $(id -u) home ${HOME-none} $COLOUR"
cat >/etc/systemd/system/mine.service <<'END'
[Unit]
After=network-online.target
[Service]
Environment=SHAPE=round "SIZE=very large"
WorkingDirectory=/var/log
ExecStart=/bin/sh -c 'echo "unit in $PWD $COLOUR $SHAPE $SIZE"; trap "echo unit told; exit" TERM; sleep 600 & wait'
[Install]
WantedBy=multi-user.target
END
systemctl daemon-reload && systemctl enable mine.service || exit
touch /tmp/volatile /run/volatile /var/lib/lasting
echo user data done
"""


class TestVm:
    def test_user_data_once_and_a_unit_at_each_boot(self, machines: Machines) -> None:
        vm = machines.vm("v-1", user_data=UNIT, env={"COLOUR": "green"})
        assert logged(vm, "user data as 0 home none green")
        assert logged(vm, "user data done")
        assert vm.run("grep", "-c", "user data done", "/var/log/cloud-init-output.log").stdout == "1\n"
        assert vm.run("systemctl", "is-enabled", "mine").stdout == "enabled\n"
        assert vm.run("systemctl", "is-active", "mine").returncode == 3
        seen = {vm.run("cat", "/proc/sys/kernel/random/boot_id").stdout}
        for boots in (1, 2):
            vm.reboot()
            assert float(vm.run("cat", "/proc/uptime").stdout.split()[0]) < 10.0
            seen.add(vm.run("cat", "/proc/sys/kernel/random/boot_id").stdout)
            assert logged(vm, "unit in /var/log green round very large", boots)
        assert vm.run("systemctl", "is-active", "mine").stdout == "active\n"
        assert vm.run("ls", "/tmp", "/run/volatile", "/var/lib/lasting").stdout.split() == ["/var/lib/lasting", "/tmp:"]
        assert vm.log().count("user data as") == 1
        assert len(seen) == 3

    def test_ends_by_itself(self, machines: Machines) -> None:
        vm = machines.vm("v-1", user_data=UNIT + b"systemctl start mine\n")
        for boots, (command, reboots) in enumerate(
            ((["reboot"], True), (["shutdown", "-h", "now"], False), (["systemctl", "poweroff", "-ff"], False)), 1
        ):
            assert logged(vm, "unit in", boots)
            before = vm.pid1
            vm.run(*command)
            if reboots:
                assert wait_for(partial(rebooted, vm, before), 10.0)
                assert vm.alive()
            else:
                assert wait_for(lambda: not vm.alive(), 10.0)
                assert vm.ended_itself
                vm.start()
        # Told to end, except where the power went.
        assert vm.log().count("unit told") == 2

    def test_stop_shuts_down_in_order(self, machines: Machines) -> None:
        program = b"trap 'echo child told' TERM; echo child up; while :; do sleep 0.05; done"
        unit = UNIT.replace(b'echo "unit in', b'sh /child & echo "unit in').replace(
            b"[Install]", b"KillMode=mixed\n[Install]"
        )
        vm = machines.vm(
            "v-1", user_data=b'#!/bin/sh\necho "' + program + b'" >/child\n' + unit + b"systemctl start mine\n"
        )
        assert logged(vm, "unit in")
        assert logged(vm, "child up")
        vm.stop(60.0)
        assert wait_for(lambda: not vm.alive(), 10.0)
        assert "unit told" in vm.log()
        assert "child told" not in vm.log()
        assert (vm.exit_code(), vm.ended_itself) == (0, False)

    def test_systemctl_restarts_and_stops(self, machines: Machines) -> None:
        vm = machines.vm("v-1", user_data=UNIT.replace(b"[Install]", b"Restart=always\nRestartSec=0.1\n[Install]"))
        assert logged(vm, "user data done")
        assert vm.run("systemctl", "enable", "--now", "mine").returncode == 0
        assert logged(vm, "unit in", 1)
        vm.run("sh", "-c", "kill -9 $(pgrep -f 'unit i[n]')")
        assert logged(vm, "unit in", 2)
        assert vm.run("systemctl", "restart", "mine").returncode == 0
        assert logged(vm, "unit in", 3)
        assert vm.run("systemctl", "stop", "mine").returncode == 0
        assert vm.run("systemctl", "is-active", "mine").returncode == 3
        refused = vm.run("systemctl", "isolate", "mine")
        assert (refused.returncode, refused.stderr) == (1, "systemctl: isolate is not played here\n")

    def test_docker_run(self, machines: Machines, port: int, tmp_path: Path) -> None:
        (tmp_path / "mine.py").write_text("print('imported')\n")
        vm = machines.vm("v-1", metadata=Named("vm"), gpus=nvidia("NVIDIA L4", 1, 23034), packages=tmp_path)
        script = "echo written >>/kept; cat /kept; python3 -c 'import mine'; nvidia-smi -L"
        script += f"; curl -s {METADATA}/d; curl -s {machines.address}:{port}"
        ran = vm.run("docker", "run", "--gpus", "all", "--name", "job", IMAGE, "sh", "-c", script)
        card = "GPU 0: NVIDIA L4 (UUID: GPU-00000000-0000-0000-0000-000000000000)\n"
        assert ran.stdout == f"written\nimported\n{card}vm GET /d None {vm.address}", ran.stderr
        vm.reboot()
        assert "written\nwritten\nimported\n" in vm.run("docker", "start", "-a", "job").stdout


class TestNothingIsLeft:
    def test_after_a_power_cut(self, machines: Machines) -> None:
        vm = machines.vm("v-1", metadata=Named("v-1"))
        assert vm.run("docker", "run", "-d", IMAGE, *SLEEP).returncode == 0
        prefix = f"{machines.block.name}-"
        network = Path(f"/proc/{vm.pid1}/ns/net").readlink()
        (group,) = cgroup.names(prefix)
        pids = cgroup.processes(group)
        assert len(pids) >= 3
        assert list(Path("/sys/class/net").glob(f"{prefix}*"))
        assert str(machines._folder) in mounted(Path(f"/proc/{vm.pid1}/mountinfo"))
        vm.kill()
        assert not vm.alive()
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        assert not cgroup.names(prefix)
        assert not list(Path("/sys/class/net").glob(f"{prefix}*"))
        folder = str(machines._folder)
        assert not [place for place in Path("/proc").glob("[0-9]*/mountinfo") if folder in mounted(place)]
        assert network not in networks()

    def test_after_a_runner_was_killed(self, machines: Machines) -> None:
        program = (
            "import sys; sys.path[:0] = sys.argv[1:]\n"
            "from clouds.machine import Machines\n"
            "machines = Machines()\n"
            "vm = machines.vm('v', user_data=b'#!/bin/sh\\nsleep 600')\n"
            "box = machines.container('c', command=['sleep', '600'])\n"
            "print(machines.block.name, machines._folder, box.pid1, vm.pid1, flush=True)\n"
            "sys.stdin.read()\n"
        )
        tests = str(Path(__file__).parents[1])
        with subprocess.Popen(
            [sys.executable, "-c", program, tests], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as runner:
            assert runner.stdout is not None
            name, folder, *pids = runner.stdout.readline().split()
            assert wait_for(lambda: all(Path(f"/proc/{pid}").exists() for pid in pids), 10.0)
            # Another runner may take the name as soon as it is free, so what bears it is known by its number.
            left = [Path(folder), *Path("/sys/fs/cgroup").glob(f"*/{name}-*"), *Path("/sys/class/net").glob(f"{name}*")]
            numbers = {path: path.stat().st_ino for path in left}
            assert len(numbers) >= 1 + 2 * len(cgroup.hierarchies()) + 3
            runner.send_signal(signal.SIGKILL)
        assert wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 10.0)
        with Machines():
            assert not [path for path, number in numbers.items() if path.exists() and path.stat().st_ino == number]


def rebooted(vm: Machine, before: int) -> bool:
    return vm.pid1 not in (0, before) or not vm.alive()


def mounted(table: Path) -> str:
    """A process's mounts; none where it has just gone."""
    try:
        return table.read_text()
    except OSError:
        return ""


def networks() -> set[Path]:
    """All network namespaces that processes are in, or that this one holds."""
    found = set()
    for place in (*Path("/proc").glob("[0-9]*/ns/net"), *Path("/proc/self/fd").glob("*")):
        try:
            found.add(place.readlink())
        except OSError:
            continue
    return found
