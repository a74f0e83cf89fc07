"""What runs as the first process of the task's container: starts setup and run, ends them, says how they ended.

It takes orders on its input, one JSON object a line, and answers on its output in frames (`FRAME`), events and the
program's output in one stream, so that no output comes after the end it belongs to. When its input ends, whoever gave
the orders is gone: it kills everything and leaves, and the container with it. As PID 1 it collects all orphans.

Standard library, from Python 3.8 on: it runs by the image's own Python.
"""

from __future__ import annotations

import base64
import json
import os
import select
import signal
import struct
import sys
import threading
from pathlib import Path
from typing import Any

from broker.guest.contain import Containment
from broker.guest.program import Exit, Program

FRAME = struct.Struct(">cI")  # kind, length; then so many bytes
EVENT, OUTPUT = b"e", b"o"
TICK = 0.05  # seconds between two looks at whether the program has ended


class Runner:
    """One container's life. Threads: this one takes orders and looks; a program's reader hands its output on."""

    def __init__(self, contain: Containment) -> None:
        self.contain = contain
        self.program: Program | None = None
        self.asked_to_end = False
        self._lock = threading.Lock()
        self._pending = b""

    def run(self) -> None:
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGINT, self._on_term)
        environ = [[_packed(k), _packed(v)] for k, v in os.environb.items()]
        self.say({"event": "ready", "python": sys.version.split()[0], "environ": environ})
        while True:
            ready = select.select([0], [], [], TICK)[0]
            if ready and not self._listen():
                break
            self._look()
        self.contain.kill()

    def say(self, event: dict[str, Any]) -> None:
        self._send(EVENT, json.dumps(event).encode())

    def _send(self, kind: bytes, data: bytes) -> None:
        """Whoever listened may be gone; then the input ends too."""
        with self._lock:
            left = memoryview(FRAME.pack(kind, len(data)) + data)
            try:
                while left:
                    left = left[os.write(1, left) :]
            except OSError:
                return

    def _listen(self) -> bool:
        """Take in orders; False once no more will come."""
        data = os.read(0, 1 << 16)
        self._pending += data
        while b"\n" in self._pending:
            line, self._pending = self._pending.split(b"\n", 1)
            self._obey(json.loads(line))
        return bool(data)

    def _obey(self, order: dict[str, Any]) -> None:
        what = order["do"]
        if what == "start":
            self._start(order)
        elif self.program is not None and what == "terminate":
            self.program.terminate()
        elif self.program is not None and what == "kill":
            self._ended(self.program.kill())

    def _start(self, order: dict[str, Any]) -> None:
        try:
            self.program = Program(
                Path(order["script"]),
                cwd=Path(order["cwd"]),
                env={_unpacked(k): _unpacked(v) for k, v in order["env"]},
                contain=self.contain,
                output=lambda data: self._send(OUTPUT, data),
            )
        except OSError as error:
            self.say({"event": "failed", "why": str(error)})

    def _look(self) -> None:
        if self.program is None:
            self.contain.reap()
            return
        if self.asked_to_end:
            self.program.terminate()
        ended = self.program.poll()
        if ended is not None:
            self._ended(ended)

    def _ended(self, ended: Exit) -> None:
        self.program = None
        self.say({"event": "exit", **vars(ended)})

    def _on_term(self, *_: Any) -> None:
        """Somebody stops the container from outside: the program is asked as the guest would ask it."""
        self.asked_to_end = True


def _packed(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _unpacked(text: str) -> bytes:
    return base64.b64decode(text)


def main() -> None:
    Runner(Containment.open(sys.argv[1])).run()
