"""The task files that come with spotbroker: a folder each, with `task.yaml` and what it runs."""

from __future__ import annotations

import difflib
import shutil
from pathlib import Path

from broker.errors import ConfigError


def _root() -> Path:
    """`broker/_tasks` in an installed wheel; the repository's `tasks/` where broker runs from its sources."""
    here = Path(__file__).resolve().parent
    return installed if (installed := here / "_tasks").is_dir() else here.parent / "tasks"


def names() -> tuple[str, ...]:
    """Every bundled task, sorted."""
    root = _root()
    return tuple(sorted(path.parent.name for path in root.glob("*/task.yaml"))) if root.is_dir() else ()


def folder(name: str) -> Path:
    """The folder of a bundled task. Raises ConfigError for an unknown name."""
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=1)
        raise ConfigError(
            f"no bundled task {name!r}" + (f"; did you mean {near[0]}?" if near else ""),
            fix=f"the bundled tasks are: {', '.join(names())}",
        )
    return _root() / name


def copy_out(name: str, to: str | Path) -> Path:
    """Copy a bundled task into the folder `to`, which must be new or empty; gives that folder. Raises ConfigError."""
    source, target = folder(name), Path(to).expanduser().absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target} is there already and not empty", fix="choose another folder, or remove it first")
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    try:
        shutil.copytree(source, target, ignore=ignore, dirs_exist_ok=True)
    except (OSError, shutil.Error) as error:
        raise ConfigError(f"{name} cannot be copied to {target}: {error}") from error
    return target
