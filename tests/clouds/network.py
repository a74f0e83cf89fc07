"""The network of machines: each has a namespace of its own and one cable to this host, addresses in 10.231.0.0/16.

A `Block` is one runner's share: an interface whose name numbers it, so that no two have the same, and whose alias says
who holds it. All else that a runner makes bears that name at its front, so that it is found after the runner's death.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from clouds import cgroup

BLOCKS = 64  # of 255 machines each
NAME = "sbm"
LOCK = Path("/run/spotbroker-machines.lock")
METADATA_ADDRESS = "169.254.169.254"
CLONE_NEWNET = 0x40000000

T = TypeVar("T")


class Block:
    """One runner's share of addresses and names. address: this host's, for all of its machines."""

    def __init__(self, folder: Path) -> None:
        with _lock():
            sweep()
            number = next((n for n in range(BLOCKS) if not Path(f"/sys/class/net/{NAME}{n}").exists()), None)
            if number is None:
                raise RuntimeError(f"all {BLOCKS} blocks of addresses for machines are taken: too many test runs")
            self.name = f"{NAME}{number}"
            self._first = number * 4
            self._machines = 0
            self._counting = threading.Lock()
            self.address = f"10.231.{self._first}.1"
            # Nothing is at the other end: what goes to a machine that is cut off ends here, not in the world.
            _ip(
                f"link add {self.name} type veth peer name {self.name}x",
                f'link set {self.name} alias "{os.getpid()} {_started(os.getpid())} {folder}"',
                f"address add {self.address}/22 dev {self.name}",
                f"link set {self.name} up",
            )

    def next(self) -> int:
        """The number of one more machine. RuntimeError after 255."""
        with self._counting:
            self._machines += 1
            if self._machines > 255:
                raise RuntimeError("one runner has 255 machines at most")
            return self._machines

    def addresses(self, number: int) -> tuple[str, str]:
        """This host's end of a machine's cable, and the machine's."""
        third, fourth = self._first + number * 4 // 256, number * 4 % 256
        return f"10.231.{third}.{fourth + 1}", f"10.231.{third}.{fourth + 2}"

    def close(self) -> None:
        with _lock():
            _sweep(self.name)


class Link:
    """A machine's network while it is up. namespace: a file descriptor that keeps it."""

    def __init__(self, block: Block, number: int, *, plugged: bool) -> None:
        self.cable = f"{block.name}-{number}"
        outer, inner = block.addresses(number)

        def make() -> int:
            _checked(_libc.unshare(CLONE_NEWNET))
            _ip(
                f"link add eth0 type veth peer name {self.cable} netns {os.getpid()}",
                f"address add {inner}/30 dev eth0",
                f"address add {METADATA_ADDRESS}/32 dev lo",
                "link set lo up",
                "link set eth0 up",
                f"route add default via {outer}",
            )
            return os.open("/proc/thread-self/ns/net", os.O_RDONLY)

        self.namespace = _aside(make)
        _ip(f"address add {outer}/30 dev {self.cable}")
        self.plugged(plugged)

    def inside(self, call: Callable[[], T]) -> T:
        """Call it in the machine's network; a socket made there stays there."""

        def there() -> T:
            _checked(_libc.setns(self.namespace, CLONE_NEWNET))
            return call()

        return _aside(there)

    def plugged(self, plugged: bool) -> None:
        """Plug this host's end of the cable in, or pull it."""
        if self.namespace >= 0:
            _ip(f"link set {self.cable} {'up' if plugged else 'down'}")

    def close(self) -> None:
        """The namespace goes with its last process and socket."""
        if self.namespace >= 0:
            os.close(self.namespace)
            self.namespace = -1
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip(f"link delete {self.cable}")


def sweep() -> None:
    """Remove what dead runners left. The lock must be held."""
    for place in sorted(Path("/sys/class/net").glob(f"{NAME}[0-9]*/ifalias")):
        name = place.parent.name
        if "-" in name or name.endswith("x"):
            continue
        pid, started, _ = [*place.read_text().strip().split(" ", 2), "", "", ""][:3]
        if not pid or _started(int(pid)) != started:
            _sweep(name)


def _sweep(name: str) -> None:
    """All that bears this block's name; the block itself last, so that a sweep cut short is done again."""
    for group in cgroup.names(f"{name}-"):
        cgroup.remove(group)
    for cable in Path("/sys/class/net").glob(f"{name}-*"):
        with contextlib.suppress(subprocess.CalledProcessError):  # it may go by itself
            _ip(f"link delete {cable.name}")
    _, _, folder = [*Path(f"/sys/class/net/{name}/ifalias").read_text().strip().split(" ", 2), "", "", ""][:3]
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    _ip(f"link delete {name}")


def _started(pid: int) -> str:
    """When a process was started, in the kernel's ticks; empty where it does not live."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


@contextlib.contextmanager
def _lock() -> Iterator[None]:
    with LOCK.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _ip(*commands: str) -> None:
    subprocess.run(["ip", "-batch", "-"], input="\n".join(commands) + "\n", text=True, check=True, capture_output=True)


_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _aside(call: Callable[[], T]) -> T:
    """Call it in a thread of its own: namespaces belong to threads, and this one ends with the call."""
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    thread = threading.Thread(target=work, name="machine-network")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
