"""One run of a machine, from power on to power off: its processes, control groups, network and metadata service."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clouds import cgroup
from clouds.metadata import Metadata, Server
from clouds.network import Block, Link

INSIDE = Path(__file__).with_name("inside.py")
START_LIMIT = 30.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a machine is, whenever it is up. disk: its folder. number: of its network. spec: the rest for `inside`."""

    disk: Path
    number: int
    memory: int | None
    metadata: Metadata | None
    spec: Mapping[str, Any] = field(repr=False)


class Power:
    """A machine that is up, or was. pid1: its first process as this host numbers it."""

    def __init__(
        self, plan: Plan, block: Block, start: Callable[..., subprocess.Popen[Any]], *, new: bool, plugged: bool
    ) -> None:
        self._plan, self._start = plan, start
        self._group = f"{block.name}-{plan.number}"
        self._ending = threading.Lock()
        self._off = False
        self.pid1 = 0
        self.link = Link(block, plan.number, plugged=plugged)
        self._server: Server | None = None
        self._process: subprocess.Popen[Any] | None = None
        try:
            self._server = Server(self.link, plan.metadata) if plan.metadata is not None else None
            self._groups = [str(group) for group in cgroup.make(self._group, memory=plan.memory)]
            self.pid1 = self._boot(new)
        except BaseException:
            self.cut()
            raise

    def _boot(self, new: bool) -> int:
        reader, writer = os.pipe()
        boot_id = self._plan.disk / "boot_id"
        boot_id.write_text(f"{uuid.uuid4()}\n")
        spec = {
            **self._plan.spec,
            "boot_id": str(boot_id),
            "files": self._plan.spec["files"] if new else [],
            "groups": self._groups,
            "network": self.link.namespace,
            "ready": writer,
        }
        with os.fdopen(reader, encoding="utf-8") as ready:
            self._process = self._run("boot", spec, pass_fds=(self.link.namespace, writer))
            os.close(writer)
            # Its end is that the first process has become its command, which closes the other end.
            if not select.select([ready], [], [], START_LIMIT)[0]:
                raise RuntimeError("the machine did not start in time")
            lines = ready.read().splitlines()
        pids = [int(line) for line in lines if line.isdigit()]
        errors = [line for line in lines if not line.isdigit()]
        if errors or not pids:
            raise RuntimeError(f"the machine did not start: {'; '.join(errors) or 'see its console'}")
        return pids[0]

    def _run(self, verb: str, spec: Mapping[str, Any], pass_fds: Sequence[int] = (), **more: Any) -> Any:
        reader, writer = os.pipe()
        with os.fdopen(reader, "rb"):
            command = [sys.executable, "-I", "-S", str(INSIDE), verb, str(os.getpid()), str(reader)]
            process = self._start(command, pass_fds=(*pass_fds, reader), start_new_session=True, **more)
        with contextlib.suppress(BrokenPipeError), os.fdopen(writer, "w", encoding="utf-8") as told:
            json.dump(spec, told)
        return process

    def enter(self, argv: Sequence[str], *, stdin: str, timeout: float) -> subprocess.CompletedProcess[str]:
        """A command inside. subprocess.TimeoutExpired, and it is killed, after `timeout` seconds."""
        env = {"HOME": "/root", **self._plan.spec["env"]}
        spec = {
            "vm": self._plan.spec["vm"],
            "env": env,
            "groups": self._groups,
            "pid1": self.pid1,
            "command": list(argv),
        }
        pipes: dict[str, Any] = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
        }
        with self._run("enter", spec, **pipes) as process:
            try:
                out, err = process.communicate(stdin, timeout=timeout)
            except BaseException:
                process.kill()
                raise
            return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def alive(self) -> bool:
        """Does its first process live?"""
        return self._process is not None and self._process.poll() is None

    def signal(self, number: int) -> None:
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid1, number)

    def wait(self, timeout: float | None = None) -> int | None:
        """The exit code of its first process, 128 + N for signal N; None if it still lives after `timeout` seconds."""
        assert self._process is not None
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        return code if code >= 0 else 128 - code

    def cut(self) -> None:
        """Everything goes at once; nothing is left on return but the disk."""
        with self._ending:
            if self._off:
                return
            if self._process is not None and not self.pid1:
                self._process.kill()
            # Its first process dies before the one outside, which so reaps it.
            cgroup.remove(self._group)
            if self._process is not None:
                self._process.wait()
            if self._server is not None:
                self._server.close()
            self.link.close()
            self._off = True
