"""What a program inside a Lambda machine can learn and do: nothing of notices, and no end of its own.

Standard library only; it is packed alone into the guest. Lambda has no metadata service for notices, no key inside the
machine, and bills it until its API is told to terminate it: one that is shut down from inside goes on costing. The
shutdown here only sees to it that nothing runs on; the broker ends the machine.
"""

from __future__ import annotations

import subprocess
from typing import Any

END_COMMAND = "shutdown -h now || poweroff -f"


def notice() -> dict[str, Any] | None:
    """Lambda gives none."""
    return None


def end_machine(why: str) -> None:
    """Shut the system down; the broker terminates the machine. Raises OSError where that was refused."""
    del why
    done = subprocess.run(["/bin/sh", "-c", END_COMMAND], capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        raise OSError(f"shutdown: {done.stderr.strip() or done.returncode}")
