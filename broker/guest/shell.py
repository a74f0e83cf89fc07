"""What a person's shell on the machine begins with: `enter`, beside the guest, and the script that it goes on with.

`enter [COMMAND]` is a shell where the program runs, with its environment, in its container if it has one. It is root's
as the program is, and holds what the program's environment holds.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from broker.guest.contain import VARIABLE
from broker.guest.engine import Engine

ENTER = "enter"
NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*")
# By which an engine finds its containers.
FINDS = re.compile("PATH|HOME|XDG_RUNTIME_DIR|(CONTAINERS|DOCKER)_[A-Z_]+")
# A shell's own, which it does not let anybody set. The mark would make a person's shell one of the program's processes.
LEFT_OUT = {b"UID", b"EUID", b"PPID", b"SHELLOPTS", b"BASHOPTS", VARIABLE.encode()}
INSIDE = """shell=$(command -v bash) || shell=/bin/sh
[ $# -eq 0 ] || exec "$shell" -c "$*"
PS1="(@JOB@) \\\\w \\\\$ "
export PS1
case $shell in */bash) exec "$shell" --norc ;; esac
exec "$shell"
"""


def say_way(folder: Path, job: str, env: Mapping[bytes, bytes], engine: Engine | None, container: str) -> None:
    """Write both scripts anew. folder: the guest's own. engine: what runs the program's container, None without one.

    A full disk costs only this.
    """
    inside = folder / "task" / ENTER
    pairs = [(name, value) for name, value in env.items() if NAME.fullmatch(name) and name not in LEFT_OUT]
    exports = b"".join(b"export %s=%s\n" % (name, _quoted(value)) for name, value in pairs)
    start = f"cd {shlex.quote(str(folder / 'work'))} || exit 1\n".encode()
    with suppress(OSError):
        _write(inside, exports + start + INSIDE.replace("@JOB@", job).encode())
        _write(folder / ENTER, _outer(inside, engine, container).encode())


def _outer(inside: Path, engine: Engine | None, container: str) -> str:
    rest = f'/bin/sh {shlex.quote(str(inside))} "$@"\n'
    if engine is None:
        return f"exec {rest}"
    known = {name: value for name, value in (engine.environ or {}).items() if FINDS.fullmatch(name)}
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in known.items())
    return (
        f"{exports}t=\n[ ! -t 0 ] || t=--tty\n"
        f"exec {shlex.join(engine.argv)} exec --interactive $t {shlex.quote(container)} {rest}"
    )


def _quoted(value: bytes) -> bytes:
    return b"'" + value.replace(b"'", b"'\\''") + b"'"


def _write(file: Path, text: bytes) -> None:
    new = file.with_name(file.name + ".new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as opened:  # noqa: PTH123
        opened.write(text)
    new.rename(file)
