"""`Spec`: the parts of the frozen task that the guest needs, read without any model library."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Spec:
    """A task as its guest sees it. every: least seconds between two snapshots, 0 as they appear; steps: work in all.

    recover_on: exit codes after which the program is started again, uncounted. stuck: seconds without a sign of life
    after which the program is ended, None for as long as it likes.
    """

    name: str
    run: str
    setup: str = ""
    envs: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    checkpoint: str = ""
    every: float = 0.0
    keep: int = 3
    marker: str | None = None
    cache: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    steps: int | None = None
    recover_on: tuple[int, ...] = ()
    stuck: float | None = None

    @classmethod
    def from_bytes(cls, raw: bytes) -> Spec:
        """Raises ValueError where it is no task."""
        data: dict[str, Any] = json.loads(raw)
        if not isinstance(data, dict) or not data.get("run"):
            raise ValueError("the frozen task has no `run`")
        checkpoint = data.get("checkpoint") or {}
        return cls(
            name=data.get("name") or "job",
            run=data["run"],
            setup=data.get("setup") or "",
            envs={str(k): str(v) for k, v in (data.get("envs") or {}).items()},
            secrets=tuple(data.get("secrets") or ()),
            checkpoint=checkpoint.get("path") or "",
            every=float(checkpoint.get("every") or 0.0),
            keep=int(checkpoint.get("keep") or 3),
            marker=checkpoint.get("complete"),
            cache=tuple(data.get("cache") or ()),
            outputs=tuple(data.get("outputs") or ()),
            steps=(data.get("work") or {}).get("steps"),
            recover_on=tuple(data.get("recover_on_exit_codes") or ()),
            stuck=float(data["stuck"]) if data.get("stuck") else None,
        )

    def checkpoint_folder(self, machine: Path, home: Path, *, bare: bool) -> Path:
        """Where the job saves: below its workdir, `~/…`, or absolute; that only where the machine is the job's alone.

        machine: the guest's own folder. home: what `~` means to the program. bare: the machine is also its owner's. The
        path is the program's, which in a container of its own may lie elsewhere here (`Places`). Raises ValueError for
        a path that leaves the machine's folders.
        """
        work = machine / "work"
        if not self.checkpoint:
            return machine / "ckpt"
        path = Path(self.checkpoint)
        if path.is_absolute():
            if bare:
                raise ValueError(
                    f"checkpoint.path {self.checkpoint!r} is absolute: not on a machine shared with its owner"
                )
            return path
        if path.parts[:1] == ("~",):
            base, path = home, Path(*path.parts[1:])
        else:
            base = work
        if ".." in path.parts or not path.parts:
            raise ValueError(f"checkpoint.path {self.checkpoint!r} must name a folder below {base}")
        return base / path
