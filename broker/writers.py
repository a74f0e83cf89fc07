"""Which files some process has open for writing, as the kernel tells. Linux; elsewhere nothing is known."""

from __future__ import annotations

import os
from pathlib import Path

PROC = Path("/proc")


def open_for_writing(path: Path) -> bool | None:
    """Has any process that we may look at this file open for writing? None where that cannot be told.

    FileNotFoundError where the file has gone. Looks through all processes, so it is for the few files that nothing
    cheaper decides.
    """
    wanted = path.stat()
    if not (PROC / "self" / "fd").is_dir():
        return None
    return any(process.name.isdigit() and _writes(process, wanted) for process in PROC.iterdir())


def _writes(process: Path, wanted: os.stat_result) -> bool:
    try:
        with os.scandir(process / "fd") as descriptors:
            numbers = [entry.name for entry in descriptors]
    except OSError:
        return False  # it has ended, or it is another user's
    for number in numbers:
        try:
            found = os.stat(process / "fd" / number)  # noqa: PTH116 - follows the link that the kernel keeps
            if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                flags = (process / "fdinfo" / number).read_text(encoding="ascii").split("flags:", 1)[1].split()[0]
                if int(flags, 8) & (os.O_WRONLY | os.O_RDWR):
                    return True
        except (OSError, IndexError, ValueError):
            continue
    return False
