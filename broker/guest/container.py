"""`TaskContainer`: the container that setup and run share, and `ContainedProgram`, one of them in it.

Its first process is our runner (`broker.guest.runner`), which takes orders on the container's input: when this guest
dies, however that is, the input ends, and the container with all in it. Containers are named after their placement and
labelled, so what a dead machine's guest has left is found and removed at the next start.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pkgutil
import re
import shutil
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from broker.guest.engine import Engine, HostUnfit, ImageRefused, last_line
from broker.guest.program import Exit
from broker.guest.runner import EVENT, FRAME, OUTPUT

LABEL = "spotbroker"
START_WITHIN = 600.0  # seconds from the engine's `run` to the runner's first word: a large image is laid out meanwhile
END_WITHIN = 15.0  # seconds for the runner to kill everything, before the engine is asked to
NO_PYTHON = 97
# The runner's modules, each readable by Python 3.8.
MODULES = ("__init__.py", "contain.py", "program.py", "runner.py")
MAIN = b"from broker.guest.runner import main\n\nmain()\n"
# Becomes the runner by the first Python that can be it: the image's own, else the static one where it was brought.
START = """for p in python3 python /usr/local/bin/python3 /usr/bin/python3 /opt/*/bin/python3 "$2"; do
  if "$p" -I -S -c 'import sys,ctypes,json,select; sys.exit(sys.version_info<(3,8))' 2>/dev/null; then
    exec "$p" -I -S "$1" "$3"
  fi
done
exit 97
"""
NO_SHELL = re.compile(r"/bin/sh.*(no such file|not found)|(no such file|not found).*/bin/sh", re.IGNORECASE)
NO_GPU = re.compile(
    r"could not select device driver|nvidia-container-cli|unresolvable CDI devices|failed to initialize NVML|"
    r"nvidia\.com/gpu",
    re.IGNORECASE,
)


class NoPython(Exception):  # noqa: N818 - a state, not an error
    """Neither the image nor the guest's folder has a Python that the runner could be run by."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What container is wanted. mark: the placement's. gpus: give it all cards. mounts: (here, seen).

    passed: variables of the machine that its own watchers look for. user: `uid:gid`.
    """

    image: str
    name: str
    mark: str
    folder: Path
    mounts: Sequence[tuple[Path, Path]]
    home: Path
    gpus: bool = False
    disk: float = 0.0
    user: str = "0:0"
    passed: Mapping[str, str] = field(default_factory=dict)


class TaskContainer:
    """A running container. Started by the constructor, which returns once the runner has spoken.

    environ: that of the container's image. Raises ImageRefused, HostUnfit, NoPython.
    """

    def __init__(self, engine: Engine, wanted: Wanted, output: Callable[[bytes], None]) -> None:
        self.engine, self.wanted = engine, wanted
        self.environ: dict[str, str] = {}
        self._output = output
        self._changed = threading.Condition()
        self._events: list[dict[str, Any]] = []
        self._ready = self._over = False
        install_runner(wanted.folder / "runner")
        engine.remove(wanted.name)
        engine.sweep(LABEL)
        self._errors = wanted.folder / "engine.err"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command(engine, wanted),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=engine.environ,
                start_new_session=True,
            )
        threading.Thread(target=self._listen, name="container", daemon=True).start()
        try:
            self._await_ready()
        except BaseException:
            self.close()
            raise

    @property
    def over(self) -> bool:
        """Has it ended?"""
        return self._over

    def start(self, script: Path, *, cwd: Path, env: Mapping[bytes, bytes]) -> ContainedProgram:
        """Start a script in it, with exactly this environment. Raises HostUnfit where the container has gone."""
        if self._over:
            raise HostUnfit(f"the task's container has ended: {self.last_words()}")
        with self._changed:
            self._events.clear()
        pairs = [[base64.b64encode(k).decode(), base64.b64encode(v).decode()] for k, v in env.items()]
        self.order({"do": "start", "script": str(script), "cwd": str(cwd), "env": pairs})
        return ContainedProgram(self)

    def order(self, order: Mapping[str, Any]) -> None:
        """Send one order; a runner that has gone is seen by its silence."""
        stream = self._process.stdin
        assert stream is not None
        with contextlib.suppress(OSError, ValueError):
            stream.write(json.dumps(order).encode() + b"\n")
            stream.flush()

    def event(self, seconds: float) -> dict[str, Any] | None:
        """The next thing it says of its program; None where nothing comes within `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: self._events or self._over, max(0.0, seconds))
            return self._events.pop(0) if self._events else None

    def last_words(self) -> str:
        """What the engine or the runner wrote as an error, its last line."""
        try:
            return last_line(self._errors.read_text(errors="replace"))
        except OSError as error:
            return str(error)

    def close(self) -> None:
        """End it, with everything in it. May be repeated."""
        stream = self._process.stdin
        with contextlib.suppress(OSError):
            if stream is not None:
                stream.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_WITHIN if self._ready else 1.0)
        self.engine.remove(self.wanted.name)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _await_ready(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._over, START_WITHIN)
            if self._ready:
                return
        if not self._over:
            raise HostUnfit(f"the task's container did not start within {START_WITHIN:.0f} s: {self.last_words()}")
        code = self._process.wait()
        if code == NO_PYTHON:
            raise NoPython
        text, image = self._errors.read_text(errors="replace"), self.wanted.image
        if NO_SHELL.search(text):
            raise ImageRefused(f"the image {image} has no /bin/sh, which setup and run need: choose another image")
        if NO_GPU.search(text):
            raise HostUnfit(f"{self.engine.name} cannot give a container this machine's GPUs: {last_line(text)}")
        self.engine.judge(text, image, self.wanted.disk)
        raise HostUnfit(f"{self.engine.name} could not start the task's container ({code}): {last_line(text)}")

    def _listen(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        while (frame := _frame(stream)) is not None:
            kind, data = frame
            if kind == OUTPUT:
                self._output(data)
            elif kind == EVENT:
                self._heard(json.loads(data))
            else:
                break
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _heard(self, event: dict[str, Any]) -> None:
        with self._changed:
            if event["event"] == "ready":
                decoded = ((base64.b64decode(k), base64.b64decode(v)) for k, v in event["environ"])
                self.environ = {os.fsdecode(k): os.fsdecode(v) for k, v in decoded}
                self._ready = True
            else:
                self._events.append(event)
            self._changed.notify_all()


class ContainedProgram:
    """One run of a script in the task's container; used as `broker.guest.program.Program` is."""

    def __init__(self, container: TaskContainer) -> None:
        self.container = container
        self.started = time.monotonic()
        self.started_at = time.time()
        self.terminated_at: float | None = None
        self.exit: Exit | None = None

    def steady(self) -> bool:
        """Does it run, with nothing having asked for its end? From any thread."""
        return self.terminated_at is None and self.exit is None and not self.container.over

    def poll(self) -> Exit | None:
        return self.wait(0.0)

    def wait(self, seconds: float) -> Exit | None:
        """How it ended, once it has; None where it still runs after `seconds`."""
        if self.exit is None:
            event = self.container.event(seconds)
            if event is not None and event["event"] == "exit":
                self.exit = Exit(**{name: event[name] for name in Exit.__dataclass_fields__})
            elif event is not None:
                raise HostUnfit(f"the script could not be started in the task's container: {event['why']}")
            elif self.container.over:
                self.exit = self._lost()
        return self.exit

    def terminate(self) -> None:
        """Ask for the end, once: SIGTERM to the script's group, unless it has ended already."""
        if self.poll() is None and self.terminated_at is None:
            self.terminated_at = time.monotonic()
            self.container.order({"do": "terminate"})

    def kill(self) -> Exit:
        """End it now, with everything it started; the container with it where the runner does not answer."""
        if self.poll() is None:
            self.terminated_at = self.terminated_at or time.monotonic()
            self.container.order({"do": "kill"})
            if self.wait(END_WITHIN) is None:
                self.container.close()
                self.exit = self._lost()
        assert self.exit is not None
        return self.exit

    def _lost(self) -> Exit:
        """The container is gone and said nothing of its program."""
        return Exit(
            code=137,
            signal=9,
            oom=0,
            at=time.time(),
            after_term=self.terminated_at is not None,
            forced=True,
            seconds=time.monotonic() - self.started,
        )


def command(engine: Engine, wanted: Wanted) -> list[str]:
    """The engine's command line for the container. No secret is on it: those go to the runner's input."""
    shared = [wanted.folder / "work", wanted.folder / "task"]
    fixed = [wanted.folder / "lib", wanted.folder / "runner"]
    python = wanted.folder / "python"
    fixed += [python] if python.is_dir() else []
    options = ["run", "--interactive", "--rm", "--name", wanted.name, "--label", LABEL, "--log-driver", "none"]
    options += ["--network", "host", "--ipc", "host", "--security-opt", "label=disable", "--user", wanted.user]
    options += ["--pull", "never", "--entrypoint", "/bin/sh"]
    for name, value in {"HOME": str(wanted.home), "BROKER_PLACEMENT": wanted.mark, **wanted.passed}.items():
        options += ["--env", f"{name}={value}"]
    if wanted.gpus:
        options += ["--device", "nvidia.com/gpu=all"] if engine.is_podman else ["--gpus", "all"]
    for here, seen in [*((path, path) for path in shared), *wanted.mounts]:
        options += ["--mount", f"type=bind,source={here},target={seen}"]
    for path in fixed:
        options += ["--mount", f"type=bind,source={path},target={path},readonly"]
    runner = wanted.folder / "runner"
    inside = [str(runner / "start"), str(runner), str(python / "bin" / "python3"), wanted.mark]
    return [*engine.argv, *options, *engine.run_options, wanted.image, *inside]


def install_runner(folder: Path) -> None:
    """Write the runner's modules out, for a Python inside the container."""
    package = folder / "broker" / "guest"
    package.mkdir(parents=True, exist_ok=True)
    (folder / "start").write_text(START)
    (folder / "__main__.py").write_bytes(MAIN)
    (package.parent / "__init__.py").write_bytes(b"")
    for name in MODULES:
        source = pkgutil.get_data("broker.guest", name)
        assert source is not None
        (package / name).write_bytes(source)


def unpack_python(archive: Path, folder: Path) -> None:
    """Put the static Python, whose hash was checked, where the container finds it. Raises OSError."""
    beside = folder / "python.new"
    shutil.rmtree(beside, ignore_errors=True)
    with tarfile.open(archive) as packed:
        packed.extractall(beside)  # noqa: S202 - what its hash names is ours
    (beside / "python").rename(folder / "python")
    shutil.rmtree(beside, ignore_errors=True)


def _frame(stream: IO[bytes]) -> tuple[bytes, bytes] | None:
    """The next frame; None at the end, or where it is cut."""
    head = stream.read(FRAME.size)
    if len(head) < FRAME.size:
        return None
    kind, size = FRAME.unpack(head)
    data = stream.read(size)
    return (kind, data) if len(data) == size else None
