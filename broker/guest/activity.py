"""`Activity`: when the program last gave a sign of life: a step, a line, a snapshot, a GPU at work."""

from __future__ import annotations

import subprocess
import time

GPU_LOOK = 30.0  # seconds between two looks at the GPUs
GPU_BUSY = 3  # percent of use from which a card is at work; drivers show 1 or 2 for nothing
NVIDIA_SMI = ("nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits")


class Activity:
    """Seconds since the last sign. gpus: whether the machine has any that could show one."""

    def __init__(self, *, gpus: bool) -> None:
        self.gpus = gpus
        self._last = self._looked = time.monotonic()
        self._signs: tuple[object, ...] = ()

    def idle(self, *signs: object) -> float:
        """signs: whatever changes while the program is at work, such as its step and the size of its output.

        The GPUs are asked only where all of these stand still, and not at every call.
        """
        now = time.monotonic()
        if signs != self._signs:
            self._signs, self._last = signs, now
        elif self.gpus and now - max(self._last, self._looked) >= GPU_LOOK:
            self._looked = now
            if busy():
                self._last = now
        return now - self._last


def busy() -> bool:
    """Is any GPU at work? Yes where they cannot be asked: unknown is not stuck."""
    try:
        said = subprocess.run(NVIDIA_SMI, capture_output=True, text=True, timeout=20, check=True).stdout
        return any(int(line) >= GPU_BUSY for line in said.split())
    except (OSError, subprocess.SubprocessError, ValueError):
        return True
