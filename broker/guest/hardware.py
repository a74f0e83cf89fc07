"""Are the GPUs of this machine those that were rented?"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

from broker.gpus import canonical, card, same


def difference(offer: Mapping[str, Any] | None) -> str:
    """How the machine's GPUs differ from the offer's, for people; empty where they do not or cannot be told."""
    wanted, count = (offer or {}).get("gpu"), (offer or {}).get("gpu_count") or 0
    if not wanted or not count or not _nvidia(wanted):
        return ""
    if shutil.which("nvidia-smi") is None:
        return f"{count} x {wanted} were rented, and there is no nvidia-smi"
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        return f"{count} x {wanted} were rented, and nvidia-smi does not answer"
    found = [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []
    if len(found) < count or any(not _same(wanted, name) for name in found):
        return (
            f"{count} x {wanted} were rented, and nvidia-smi shows {', '.join(found) or done.stdout.strip() or 'none'}"
        )
    return ""


def _nvidia(name: str) -> bool:
    """Would nvidia-smi show it? A card nobody knows is taken for one that it would."""
    try:
        return card(name).vendor == "NVIDIA"
    except ValueError:
        return True


def _same(wanted: str, name: str) -> bool:
    """Is the card, as its driver names it, the one wanted, or a form of it? A card nobody knows passes."""
    try:
        found = canonical(name)
    except ValueError:
        return True
    return same(wanted, found)
