#!/usr/bin/python3 -I
"""A virtual machine's first process: enabled units at every boot, user data at the first, and an orderly end.

It plays the few parts of systemd and cloud-init that a cloud image shows to its user. `systemctl` beside it talks to it
over SOCKET: one JSON object with `do` and `units`, answered by one with `code` and `text`. Standard library only.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import selectors
import shlex
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

UNITS = (Path("/etc/systemd/system"), Path("/usr/lib/systemd/system"))
WANTED = UNITS[0] / "multi-user.target.wants"
CLOUD = Path("/var/lib/cloud/instance")
OUTPUT = "/var/log/cloud-init-output.log"
SOCKET = "/run/init.socket"
GROUPS = [place for place in (Path("/sys/fs/cgroup") / name for name in ("systemd", "pids")) if place.is_dir()]
STOP_LIMIT = 90.0  # systemd's DefaultTimeoutStopSec
LAST_LIMIT = 10.0  # for what is no unit's, containers above all; docker's
NOT_STARTED = 203  # systemd's code for a command that could not be executed
REBOOT = 113  # the exit code after which the machine is booted again
POWER_BUTTON, RESTART_BUTTON = signal.SIGRTMIN + 4, signal.SIGRTMIN + 5  # as systemd has them


def say(text: str) -> None:
    print(f"init: {text}", file=sys.stderr, flush=True)


def spawn(command: list[str], env: dict[str, str], group: Path, folder: str = "/") -> int:
    """Start a program in a session and a control group of its own, its output on the console."""
    group.mkdir(parents=True, exist_ok=True)
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            (group / "cgroup.procs").write_text("0")
            for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            os.chdir(folder)
            os.execvpe(command[0], command, env)
        except OSError as error:
            say(f"{command[0]}: {error.strerror}")
        os._exit(NOT_STARTED)
    return child


def seconds(text: str) -> float:
    """systemd's time spans, as far as one number goes. Raises ValueError."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    return float(number) * {"": 1, "s": 1, "sec": 1, "ms": 0.001, "m": 60, "min": 60, "h": 3600}[text[len(number) :]]


class Unit:
    """A service: what its file says, and how it stands."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.group = GROUPS[0] / "system.slice" / name
        self.pid = 0
        self.state = "inactive"
        self.again_at = 0.0  # when it is started again, by the monotonic clock
        self.kill_at = 0.0
        self.left: list[list[str]] = []  # commands still to come
        self.waiting: list[tuple[socket.socket, bool]] = []  # who asked to stop it, and whether it then starts

    def load(self) -> None:
        path = next((folder / self.name for folder in UNITS if (folder / self.name).is_file()), None)
        if path is None:
            raise FileNotFoundError(f"Unit {self.name} could not be found.")
        self.lines: list[tuple[str, str]] = []
        section = ""
        for raw in path.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
            line = raw.strip()
            if line.startswith("["):
                section = line.strip("[]")
            elif section == "Service" and line and line[0] not in "#;":
                key, _, value = line.partition("=")
                self.lines.append((key.strip(), value.strip()))

    def every(self, key: str) -> list[str]:
        """The values of a key that may come several times; an empty one forgets those before it."""
        found: list[str] = []
        for name, value in self.lines:
            if name == key:
                found = [*found, value] if value else []
        return found

    def last(self, key: str, default: str = "") -> str:
        return (self.every(key) or [default])[-1]

    def start(self) -> None:
        """Raises FileNotFoundError and ValueError for a unit that cannot be started."""
        self.load()
        self.again_at = self.kill_at = 0.0
        self.stop_limit = seconds(self.last("TimeoutStopSec", str(STOP_LIMIT)))
        self.pause = seconds(self.last("RestartSec", "100ms"))
        self.kill_mode = self.last("KillMode", "control-group")
        self.left = [shlex.split(line.lstrip("@-:+!")) for line in self.every("ExecStart")]
        if not self.left:
            raise ValueError(f"{self.name}: Service has no ExecStart= setting.")
        self.next()

    def next(self) -> None:
        self.state = "active"
        self.pid = spawn(self.left.pop(0), self.environment(), self.group, self.last("WorkingDirectory", "/"))

    def environment(self) -> dict[str, str]:
        env = dict(os.environ)
        words = [word for line in self.every("Environment") for word in shlex.split(line)]
        for name in self.every("EnvironmentFile"):
            try:
                lines = Path(name.lstrip("-")).read_text(encoding="utf-8").splitlines()
            except OSError as error:
                if not name.startswith("-"):
                    raise ValueError(f"{self.name}: {name}: {error.strerror}") from error
                continue
            words += [word for line in lines if line.strip()[:1] not in ("#", ";") for word in shlex.split(line)]
        env.update(word.partition("=")[::2] for word in words)
        return env

    def ended(self, code: int) -> None:
        """Its first process is gone, and so are the others: the next command, the same again, or nothing."""
        self.pid = 0
        if self.kill_mode in ("mixed", "control-group"):
            self.tell(signal.SIGKILL if self.kill_mode == "mixed" else signal.SIGTERM)
        if self.kill_at:
            self.state = "inactive"
        elif code == 0 and self.left:
            self.next()
        else:
            stays = self.last("Type") == "oneshot" and self.last("RemainAfterExit") in ("yes", "true", "1", "on")
            self.state = "failed" if code else "active" if stays else "inactive"
            when = {"always": True, "on-failure": code != 0, "on-success": code == 0}
            if when.get(self.last("Restart", "no"), False):
                self.again_at = time.monotonic() + self.pause

    def stop(self) -> None:
        self.again_at, self.left = 0.0, []
        if not self.pid:
            self.state = "inactive"
            return
        self.kill_at = time.monotonic() + self.stop_limit
        self.tell(signal.SIGTERM, all_of_it=self.kill_mode == "control-group")

    def stopped(self) -> bool:
        """Is nothing left of it? What `kill_mode` spares does not count."""
        if self.pid or (self.kill_at and self.kill_mode in ("mixed", "control-group") and self.processes()):
            return False
        self.kill_at = 0.0
        return True

    def processes(self) -> set[int]:
        found: set[int] = set()
        for file in self.group.rglob("cgroup.procs"):
            with contextlib.suppress(OSError):
                found |= {int(pid) for pid in file.read_text().split()}
        return found

    def tell(self, number: int, *, all_of_it: bool = True) -> None:
        for pid in self.processes() if all_of_it else {self.pid} - {0}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


class Init:
    """The loop of the first process; it alone forks and reaps."""

    def __init__(self) -> None:
        self.units: dict[str, Unit] = {}
        self.ending = 0  # the exit code + 1, once the machine is going down
        self.end_at = 0.0  # when a shutdown that was asked for begins
        self.end_code = 0
        self.kill_at = 0.0
        self.script = 0
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(SOCKET)
        self.listener.listen(16)
        self.woken, self.waker = socket.socketpair()
        self.waker.setblocking(False)
        signal.set_wakeup_fd(self.waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(POWER_BUTTON, lambda *_: self.shut_down(0))
        signal.signal(RESTART_BUTTON, lambda *_: self.shut_down(REBOOT))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    def run(self) -> int:
        """From boot to the exit code of the machine."""
        for link in sorted(WANTED.glob("*.service")):
            self.start(self.unit(link.name))
        self.cloud_init()
        with selectors.DefaultSelector() as selector:
            selector.register(self.listener, selectors.EVENT_READ)
            selector.register(self.woken, selectors.EVENT_READ)
            while not (self.ending and self.alone()):
                for key, _ in selector.select(self.pause()):
                    if key.fileobj is self.woken:
                        self.woken.recv(4096)
                    else:
                        self.serve(self.listener.accept()[0])
                self.reap()
                self.due()
        return self.ending - 1

    def unit(self, name: str) -> Unit:
        name = name if "." in name else f"{name}.service"
        return self.units.setdefault(name, Unit(name))

    def start(self, unit: Unit) -> str:
        """Start a unit; why it did not start, or nothing."""
        if not unit.pid and not self.ending:
            try:
                unit.start()
            except (OSError, ValueError, KeyError) as error:
                unit.state = "failed"
                say(str(error))
                return str(error)
        return ""

    def cloud_init(self) -> None:
        """Run the user data, if this is the instance's first boot and it is a script; from a copy, as root."""
        done, given = CLOUD / "sem/config_scripts_user", CLOUD / "user-data.txt"
        if done.exists() or not given.exists():
            return
        raw = given.read_bytes()
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
        done.parent.mkdir(parents=True, exist_ok=True)
        done.touch()
        if not raw.startswith(b"#!"):
            if raw:
                say(f"user data that is no script: {raw[:60]!r}")
            return
        copy = CLOUD / "scripts/part-001"
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(raw)
        copy.chmod(0o700)
        show = f'"$0" 2>&1 </dev/null | {{ trap "" TERM; exec tee -a {OUTPUT}; }}'
        self.script = spawn(["/bin/sh", "-c", show, str(copy)], dict(os.environ), self.unit("cloud-final").group)

    def pause(self) -> float | None:
        if self.ending or any(unit.kill_at for unit in self.units.values()):
            return 0.02
        moments = [self.end_at, *(moment for unit in self.units.values() for moment in (unit.again_at, unit.kill_at))]
        return max(0.0, min((m for m in moments if m), default=1e9) - time.monotonic()) if any(moments) else None

    def due(self) -> None:
        now = time.monotonic()
        for unit in self.units.values():
            if unit.kill_at and now >= unit.kill_at:
                unit.tell(signal.SIGKILL, all_of_it=unit.kill_mode != "process")
            elif unit.again_at and now >= unit.again_at:
                self.start(unit)
            self.stopped(unit)
        if self.end_at and now >= self.end_at and not self.ending:
            self.shut_down(self.end_code)
        if self.ending and not any(unit.kill_at for unit in self.units.values()):
            if not self.kill_at:
                self.kill_at = now + LAST_LIMIT
                self.everybody(signal.SIGTERM)
                self.everybody(signal.SIGCONT)
            elif now >= self.kill_at:
                self.everybody(signal.SIGKILL)

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            if pid == self.script:
                say("the user data has ended")
            for unit in self.units.values():
                if unit.pid == pid:
                    unit.ended(code)

    def stopped(self, unit: Unit) -> None:
        if unit.stopped():
            waiting, unit.waiting = unit.waiting, []
            for peer, starts in waiting:
                self.answer(peer, self.start(unit) if starts and not self.ending else "")

    def answer(self, peer: socket.socket, error: str = "", *, code: int = 1, text: str = "") -> None:
        with peer, contextlib.suppress(OSError):
            told = {"code": code if error else 0, "text": error or text}
            peer.sendall(json.dumps(told).encode())

    def serve(self, peer: socket.socket) -> None:
        peer.settimeout(5.0)
        try:
            asked: dict[str, Any] = json.loads(peer.recv(65536))
        except (OSError, ValueError):
            peer.close()
            return
        action, names = asked["do"], asked.get("units", [])
        if action in ("poweroff", "reboot"):
            self.end_code = REBOOT if action == "reboot" else 0
            self.end_at = time.monotonic() + asked.get("after", 0.0)
            if asked.get("force"):
                self.everybody(signal.SIGKILL)
                self.shut_down(self.end_code)
            self.answer(peer)
        elif action == "cancel":
            self.end_at = 0.0
            self.answer(peer)
        elif action == "state":
            states = [self.unit(name).state for name in names]
            self.answer(peer, "" if "active" in states else "\n".join(states), code=3, text="\n".join(states))
        elif action == "start":
            self.answer(peer, "\n".join(filter(None, [self.start(self.unit(name)) for name in names])), code=5)
        else:
            for unit in map(self.unit, names[:1]):
                unit.waiting.append((peer, action == "restart"))
                unit.stop()
                self.stopped(unit)

    def shut_down(self, code: int) -> None:
        """End every process: units first, in their way, then what is left; told at first, killed after its limit."""
        if not self.ending:
            say("going down")
            self.ending = code + 1
            for unit in self.units.values():
                unit.stop()

    def everybody(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, number)

    def alone(self) -> bool:
        try:
            os.kill(-1, 0)
        except ProcessLookupError:
            return True
        return False


if __name__ == "__main__":
    sys.exit(Init().run())
