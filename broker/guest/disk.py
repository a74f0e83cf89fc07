"""What the guest keeps on its disk for others: the job's library, and the word to the boot script's timer."""

from __future__ import annotations

import math
import pkgutil
import time
from pathlib import Path

LIBRARY = ("__init__.py", "loop.py", "transformers.py", "lightning.py")  # what a job may import of `broker.guest`


def install_library(lib: Path) -> None:
    """Put the part of this package that a job may import where its PYTHONPATH finds it, readable by any user."""
    package = lib / "broker" / "guest"
    package.mkdir(parents=True, exist_ok=True)
    (package.parent / "__init__.py").write_bytes(b"")
    for name in LIBRARY:
        source = pkgutil.get_data("broker.guest", name)
        assert source is not None
        (package / name).write_bytes(source)
    for folder in (lib.parent, lib, package.parent, package):
        folder.chmod(0o755)
    for file in (package.parent / "__init__.py", *(package / name for name in LIBRARY)):
        file.chmod(0o644)


def arm_timer(folder: Path, left: float) -> None:
    """Tell the boot script's timer, which outlives this process, that the machine ends in `left` seconds.

    It counts whole seconds, a moment late rather than early. Raises OSError; the timer then stays as it was.
    """
    file, at = folder / "deadline", math.ceil(uptime() + max(0.0, left)) + 1
    try:
        before = int(file.read_text())
    except (OSError, ValueError):
        before = 0
    if abs(before - at) > 2:
        new = folder / "deadline.new"
        new.write_text(f"{at}\n")
        new.rename(file)


def fire_timer(folder: Path) -> None:
    """Let the boot script's timer end the machine within seconds, by the shell's own means. Raises OSError."""
    new = folder / "deadline.new"
    new.write_text("0\n")
    new.rename(folder / "deadline")


def uptime() -> float:
    """Seconds by the clock that the timer counts by: since boot where /proc says so, else the wall's."""
    try:
        return float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return time.time()
