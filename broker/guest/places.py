"""`Places`: where a program's paths lie on the machine. In a container of its own they may lie elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from broker.guest.bootfile import Boot

BOXED_HOME = Path("/root")  # the program is root in its container, as it is on a marketplace's machine


def boxed(boot: Boot) -> bool:
    """Does the program run in a container that the guest starts?"""
    return boot.container is not None and boot.kind != "container"


@dataclass(frozen=True, slots=True)
class Places:
    """folder: the guest's own on the machine, the same inside. home: what `~` means to the program.

    boxed: the program runs in a container that the guest starts. shared: the machine is also its owner's, so nothing
    may be put at absolute paths.
    """

    folder: Path
    home: Path
    boxed: bool
    shared: bool

    @classmethod
    def of(cls, boot: Boot, folder: Path, environ: Mapping[str, str], *, as_root: bool = True) -> Places:
        """as_root: the program is root in its container; else it is who the guest is."""
        inside = boxed(boot)
        home = Path(environ.get("HOME") or folder)
        if inside:
            home = BOXED_HOME if as_root else folder / "home"
        return cls(folder, home, inside, shared=boot.provider == "local" and not inside)

    def here(self, path: Path) -> Path:
        """Where the machine keeps what the program sees at this path."""
        if not self.boxed or path.is_relative_to(self.folder):
            return path
        return self.folder / "outside" / path.relative_to("/")

    def mounts(self, paths: Iterable[Path]) -> list[tuple[Path, Path]]:
        """Pairs (here, seen) that bring these paths into a container, the outermost only, as they hold the others."""
        outer: list[Path] = []
        for path in sorted({Path(os.path.normpath(path)) for path in paths}, key=lambda each: len(each.parts)):
            if not any(path.is_relative_to(known) for known in outer):
                outer.append(path)
        return [(self.here(path), path) for path in outer]
