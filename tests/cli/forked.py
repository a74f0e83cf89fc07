"""The command as a process of its own that need not import everything first: a fork of one that has.

`Forked` is what `Popen([sys.executable, "-m", "broker", …])` is, at a tenth of its cost, with streams, a folder, an
environment, signals and an exit code of its own. A server, this file as a program, has imported what verbs import; for
each request it forks, and the fork runs `python -m broker` from its first line. What depends on how an interpreter
starts, such as how it buffers what goes to a terminal, needs a real one.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

HEADER = struct.Struct("!I")
STATUS = struct.Struct("!i")
SDKS = ("boto3", "cryptography.fernet", "dbos", "obstore.store", "pathspec", "requests", "rich.live", "rich.table")
SDKS += ("ruamel.yaml", "sqlalchemy.dialects.sqlite", "tenacity", "tomlkit", "typer._adapters")
UNNEEDED = ("broker.__main__", "broker.guest", "broker.testing")


class Forked(subprocess.Popen[Any]):
    """`broker ARGS`, the first of which stands for the interpreter and its `-m broker`."""

    def _execute_child(self, args: Any, *given: Any) -> None:
        _, _, _, _, cwd, env, _, _, _, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *more = given
        self._ends, write = os.pipe()
        request = {"argv": list(args), "cwd": str(cwd or Path.cwd()), "env": dict(env), "session": more[5]}
        files = [own if own != -1 else of for of, own in enumerate((p2cread, c2pwrite, errwrite))]
        self.pid = server().fork(request, [*files, write])
        self._child_created = True
        os.close(write)
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        """As `waitpid` answers, which only the server may ask: pid and status, or zeros while it runs."""
        if wait_flags & os.WNOHANG and not selected(self._ends):
            return 0, 0
        told = os.read(self._ends, STATUS.size)
        os.close(self._ends)
        assert told, "the server that forks has ended"
        return self.pid, STATUS.unpack(told)[0]

    def _internal_poll(self, _deadstate: int | None = None, **_: Any) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(False):
            try:
                pid, status = self._try_wait(os.WNOHANG) if self.returncode is None else (0, 0)
                if pid:
                    self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode


def selected(file: int) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(file, selectors.EVENT_READ)
        return bool(selector.select(0))


class Server:
    """The process that forks; it ends with this one."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        theirs.close()
        atexit.register(self.close)

    def fork(self, request: dict[str, Any], files: list[int]) -> int:
        """The new process's id."""
        data = json.dumps(request).encode()
        with self._lock:
            socket.send_fds(self._socket, [HEADER.pack(len(data))], files)
            self._socket.sendall(data)
            told = self._socket.recv(HEADER.size, socket.MSG_WAITALL)
        assert told, "the server that forks has ended"
        return int(HEADER.unpack(told)[0])

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


@cache
def server() -> Server:
    return Server()


# The server


def load() -> None:
    """Import what verbs import."""
    import broker

    for name in SDKS:
        with suppress(ImportError):
            importlib.import_module(name)
    for found in pkgutil.walk_packages(broker.__path__, "broker."):
        if not found.name.startswith(UNNEEDED):
            importlib.import_module(found.name)
    # What has been imported is never garbage: no fork need look at it, and copy it.
    gc.collect()
    gc.freeze()
    assert threading.active_count() == 1, "threads do not survive a fork"


def serve(listener: socket.socket) -> dict[str, Any]:
    """Fork for each request; returns in the fork, with the request. Ends the server with its client."""
    waking, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, int] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(waking, selectors.EVENT_READ)
        selector.register(listener, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if waking in ready:
                os.read(waking, 4096)
                reap(running)
            if listener.fileno() not in ready:
                continue
            header, files, _, _ = socket.recv_fds(listener, HEADER.size, 4, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
            if not header:
                sys.exit()
            request = json.loads(listener.recv(HEADER.unpack(header)[0], socket.MSG_WAITALL))
            *streams, ends = files
            if pid := os.fork():
                for file in streams:
                    os.close(file)
                running[pid] = ends
                continue
            if request["session"]:
                os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number, file in enumerate(streams):
                os.dup2(file, number)
            for file in {*files, *running.values(), waking, woken} - {0, 1, 2}:
                os.close(file)
            listener.sendall(HEADER.pack(os.getpid()))
            listener.close()
            return dict(request)


def reap(running: dict[int, int]) -> None:
    """Tell of every fork that has ended."""
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            with os.fdopen(running.pop(found[0]), "wb") as ends, suppress(BrokenPipeError):
                ends.write(STATUS.pack(found[1]))


def become(request: dict[str, Any]) -> None:
    """Be what the request asks for, as if just started."""
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    given = [path for path in request["env"].get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [request["cwd"], *given, *(path for path in sys.path[1:] if path not in given)]
    sys.argv[1:] = request["argv"]
    importlib.invalidate_caches()
    try:
        runpy.run_module("broker", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = int(ended.code or 0)
    else:
        code = 0
    # All that Python does at its end but to take down, object by object, what the server has imported.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    load()
    become(serve(socket.socket(fileno=int(sys.argv[1]))))
