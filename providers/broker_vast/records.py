"""What the adapter keeps in the state folder, `STATE/vast`, for itself and for every later process.

- `destroyed/ID`: when we asked for a contract's end. It tells an end of ours from a host's. Kept a day at least.
- `answers/HASH.json`: what the service answered not long ago, for questions that everybody asks in the same words.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

KEPT = 86_400.0  # seconds


class Records:
    """folder: made when something is written. Nothing here is worth failing for: what cannot be kept is asked again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def note(self, contract: str) -> None:
        """We ask for this contract's end now, or have before."""
        path = self.folder / "destroyed" / contract
        if not path.exists():
            self._write(path, repr(time.time()))

    def made(self, contract: str) -> None:
        """A contract of that number has been made now: what was written down of one that had it before is over."""
        with contextlib.suppress(OSError):
            (self.folder / "destroyed" / contract).unlink(missing_ok=True)

    def noted(self, contract: str) -> float | None:
        """When we first asked for its end; None where we did not, or nothing can be read here."""
        path = self.folder / "destroyed" / contract
        try:
            return float(path.read_text(encoding="ascii"))
        except OSError:
            return None
        except ValueError:
            return path.stat().st_mtime

    def forget(self, listed: set[str]) -> None:
        """Drop the records of contracts that are not listed, and answers, where they are old."""
        for folder, kept in (("destroyed", listed), ("answers", set[str]())):
            with contextlib.suppress(OSError):
                for path in (self.folder / folder).iterdir():
                    if path.name not in kept and path.stat().st_mtime < time.time() - KEPT:
                        path.unlink(missing_ok=True)

    def answer(self, question: Any, fresh: float, ask: Callable[[], Any]) -> Any:
        """The answer to a question in JSON: one that was had within `fresh` seconds, else a new one by `ask`.

        Whatever `ask` raises is raised. An empty answer is not kept.
        """
        name = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:32]
        path = self.folder / "answers" / f"{name}.json"
        with contextlib.suppress(OSError, ValueError):
            if 0 <= time.time() - path.stat().st_mtime <= fresh:
                return json.loads(path.read_text(encoding="utf-8"))
        found = ask()
        if found:
            self._write(path, json.dumps(found))
        return found

    def _write(self, path: Path, text: str) -> None:
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft = path.with_name(f".{path.name}.{os.getpid()}")
            draft.write_text(text, encoding="utf-8")
            draft.replace(path)
