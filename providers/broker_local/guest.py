"""What a program inside a `local` machine can learn and do: read its notice, end its machine.

Standard library only; it is packed alone into the guest. `SPOTBROKER_METADATA` names the folder that stands for a
cloud's metadata service.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

METADATA = "SPOTBROKER_METADATA"
END_COMMAND = 'echo "$why" >"${SPOTBROKER_METADATA:?}/end"'  # how a shell ends the machine; `why` is the reason
SIGTERM_SECONDS = 5.0  # RunPod's time from SIGTERM to KILL, the one way of warning here that comes by signal


def notice() -> dict[str, Any] | None:
    """Word that this machine will be taken back: `at`, `ends_at` (seconds since the epoch), `kind`; None without.

    Raises OSError where the metadata cannot be read: unknown is not none.
    """
    folder = _metadata()
    try:
        text = (folder / "notice.json").read_text(encoding="utf-8")
    except FileNotFoundError:
        if not folder.is_dir():
            raise
        return None
    data = json.loads(text)
    return {"at": data["at"], "ends_at": data.get("ends_at"), "kind": data.get("kind", "terminate")}


def end_machine(why: str) -> None:
    """End this machine, its disk left to the broker. Returns on acceptance; safe to repeat. Raises OSError.

    A shell does the same by END_COMMAND.
    """
    folder = _metadata()
    (folder / "end").write_text(why, encoding="utf-8")
    try:
        claim = json.loads((folder.parent / "supervisor.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    # Only a hint to look now rather than in a moment; our own parent surely is that process.
    if claim.get("pid") == os.getppid():
        os.kill(os.getppid(), signal.SIGUSR1)


def sigterm_is_notice() -> float | None:
    """Seconds left when the machine's first process gets SIGTERM."""
    return SIGTERM_SECONDS


def _metadata() -> Path:
    folder = os.environ.get(METADATA)
    if not folder:
        raise FileNotFoundError(f"{METADATA} is not set: this is no local machine")
    return Path(folder)
