"""Are the GPUs of this machine those that were rented?"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

from broker.gpus import card, lacks, same


def difference(offer: Mapping[str, Any] | None) -> str:
    """How the machine's GPUs differ from the offer's, for people; empty where they do not or cannot be told."""
    wanted, count = (offer or {}).get("gpu"), (offer or {}).get("gpu_count") or 0
    if not wanted or not count or not _nvidia(wanted):
        return ""
    if shutil.which("nvidia-smi") is None:
        return f"{count} x {wanted} were rented, and there is no nvidia-smi"
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        return f"{count} x {wanted} were rented, and nvidia-smi does not answer"
    found = [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []
    memory = float((offer or {}).get("gpu_memory") or 0.0)
    if len(found) < count or any(not _same(wanted, memory, line) for line in found):
        shown = "; ".join(f"{line} MiB" if "," in line else line for line in found)
        return f"{count} x {wanted} were rented, and nvidia-smi shows {shown or done.stdout.strip() or 'none'}"
    return ""


def _nvidia(name: str) -> bool:
    """Would nvidia-smi show it? A card nobody knows is taken for one that it would."""
    try:
        return card(name).vendor == "NVIDIA"
    except ValueError:
        return True


def _same(wanted: str, memory: float, line: str) -> bool:
    """Is the card, as its driver names it, the one wanted, or a form of it, with the memory that was offered?

    Drivers call cards alike that differ in their memory only, such as the RTX 3080 of 10 and of 12 GB. A card nobody
    knows passes by its memory. memory: GiB as offered, 0 where that is not known. line: `NAME, MIB`.
    """
    name, _, mib = (part.strip() for part in line.partition(","))
    reported = float(mib) if mib.isascii() and mib.isdigit() else 0.0
    with contextlib.suppress(ValueError):
        memory = memory or card(wanted).memory
    if reported and lacks(reported, memory):
        return False
    try:
        return same(wanted, card(name, reported).name)
    except ValueError:
        return True
