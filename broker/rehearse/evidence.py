"""What the machines of a rehearsal left behind: logs, disks, snapshots. Gathered once, for the verdict to weigh."""

from __future__ import annotations

import fnmatch
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.complete import Judge
from broker.entries import newest_step, step_of
from broker.formats import ARCHIVES, WEIGHTS
from broker.rehearse.hand import SECONDS
from broker.rehearse.series import Series, falls, read
from broker.report import with_steps

if TYPE_CHECKING:
    from broker.job import Job
    from broker.manifest import Manifest
    from broker.rehearse.hand import TakeBack
    from broker.report import Report
    from broker.store import PlacementRow
    from broker.task import Task

ASKED, NOT_ASKED = " s to save and end", "a save would not arrive in time"
"""What the guest's log says of a program that got SIGTERM, and of one that was ended at once."""
KILLED = 137
NOT_THEIRS = {"node_modules", "site-packages", "venv", ".venv", ".git", "__pycache__", ".cache"}
SOME = 5


@dataclass(frozen=True, slots=True)
class Seen:
    """One machine. steps: those in its log. opened: the guest's word on which restored files were read.

    new_step: the step in the name of its first new checkpoint; restored_step: the newest in the names of what was
    restored to it. asked: its program got SIGTERM and time to save. saved: it did. in_time: it ended by itself then.
    save: seconds that a save took. cut: half-written entries on its disk, and why they were passed over. strays: what
    looks like checkpoints elsewhere.
    """

    steps: Series | None = None
    opened: Mapping[str, Any] | None = None
    new_step: int | None = None
    restored_step: int | None = None
    asked: bool = False
    not_asked: bool = False
    saved: bool = False
    in_time: bool = True
    save: float | None = None
    cut: Mapping[str, str] = field(default_factory=dict)
    strays: tuple[str, ...] = ()

    @property
    def ignored(self) -> bool:
        """Is it certain that none of the restored files was read?"""
        return bool(self.opened and self.opened["of"] and not self.opened["read"] and not self.opened["why"])


@dataclass(frozen=True, slots=True)
class Evidence:
    """seen: by generation. falls: what `rehearse.step` finds goes back within a run."""

    seen: Mapping[int, Seen] = field(default_factory=dict)
    falls: bool = False

    def of(self, generation: int) -> Seen:
        return self.seen.get(generation, Seen())


def gather(job: Job, root: Path | None, taken: Sequence[TakeBack], task: Task) -> Evidence:
    """Read everything. root: of the local machines, whose disks are still there; None where only the home is left."""
    from broker.report import read_manifests

    rows = [row for row in job.placements() if row.launched_at is not None]
    manifests = read_manifests(job.home, job.id, [row.generation for row in rows])
    every = {(m.generation, m.seq): m for several in manifests.values() for m in several}
    disks = {row.generation: _disk(root, row) for row in rows}
    logs = {row.generation: _log(job, row, disks[row.generation]) for row in rows}
    pattern = task.rehearse.step if task.rehearse else ""
    series = dict(zip(logs, read(list(logs.values()), pattern), strict=True))
    takes = {take.generation: take for take in taken}
    seen: dict[int, Seen] = {}
    for row in rows:
        beat, own, take = row.beat or {}, manifests.get(row.generation, []), takes.get(row.generation)
        restored = every.get(tuple(beat["restored"])) if beat.get("restored") else None
        log, disk = logs[row.generation], disks[row.generation]
        cut = half_written(disk, task, own[-1] if own else restored) if disk and take else {}
        seen[row.generation] = Seen(
            steps=series[row.generation],
            opened=beat.get("opened"),
            new_step=new_step(restored, own),
            restored_step=newest_step(restored.entries) if restored else None,
            asked=take is not None and SECONDS[take.notice] > 0 and ASKED in log,
            not_asked=NOT_ASKED in log,
            saved=take is not None and _saved_when_asked(take.at, disk, task, own, cut),
            in_time=(beat.get("result") or {}).get("exit") != KILLED,
            save=(beat.get("timings") or {}).get("save"),
            cut=cut,
            strays=strays(disk, task, row.launched_at or 0.0) if disk else (),
        )
    return Evidence(seen, bool(pattern) and falls(list(logs.values()), pattern))


def new_step(restored: Manifest | None, own: Iterable[Manifest]) -> int | None:
    """The lowest step in the names of the first checkpoints that were made or changed after a restore."""
    if restored is None:
        return None
    for manifest in own:
        fresh = [name for name in manifest.entries if _content(manifest, name) != _content(restored, name)]
        found = [step for name in fresh if (step := step_of(name)) is not None]
        if found:
            return min(found)
    return None


def _content(manifest: Manifest, entry: str) -> dict[str, str]:
    return {path: file.sha256 for path, file in manifest.files.items() if f"{path}/".startswith(f"{entry}/")}


def _disk(root: Path | None, row: PlacementRow) -> Path | None:
    if root is None:
        return None
    from broker_local.machine import find

    machine = find(root, row.instance or "")
    return machine.disk if machine is not None and machine.disk.is_dir() else None


def _log(job: Job, row: PlacementRow, disk: Path | None) -> str:
    """What a machine's programs printed: from its disk to the last byte, else as far as it reached the home."""
    from broker.home import JobKeys

    try:
        if disk is not None:
            return (disk / "spotbroker" / "log").read_bytes().decode("utf-8", "replace")
    except OSError:
        pass
    parts = job.home.list(JobKeys(job.id).logs(row.generation))
    return b"".join(job.home.find(part.key) or b"" for part in parts).decode("utf-8", "replace")


def _checkpoints(disk: Path, task: Task) -> Path:
    from broker.guest.places import BOXED_HOME, Places
    from broker.guest.spec import Spec

    spec, folder = Spec.from_bytes(json.dumps(task.to_json()).encode()), disk / "spotbroker"
    if (folder / "runner").is_dir():  # the program ran in a container
        places = Places(folder, BOXED_HOME, boxed=True, shared=False)
        return places.here(spec.checkpoint_folder(folder, places.home, bare=False))
    return spec.checkpoint_folder(folder, disk, bare=True)


def _saved_when_asked(
    taken_at: float, disk: Path | None, task: Task, own: Sequence[Manifest], cut: Mapping[str, str]
) -> bool:
    """Did the program save after SIGTERM, and finish it? Its files' times say, without its disk the snapshots'."""
    asked = disk / "spotbroker" / "task" / "progress.stop" if disk is not None else None
    if disk is None or asked is None or not asked.exists():
        return any(manifest.at > taken_at for manifest in own)
    moment, folder = asked.stat().st_mtime, _checkpoints(disk, task)
    left_out = tuple(f"{name}/" for name in cut)
    return any(
        path.stat().st_mtime >= moment
        for path in _files(folder, set())
        if not f"{path.relative_to(folder).as_posix()}/".startswith(left_out)
    )


def half_written(disk: Path, task: Task, last: Manifest | None) -> dict[str, str]:
    """What lies in a dead machine's checkpoint folder and is in no snapshot, because it was not whole."""
    marker = task.checkpoint.complete if task.checkpoint else None
    scan = Judge(_checkpoints(disk, task), marker, 0.0).look(ended=True)
    cut = scan.incomplete
    known = last.entries if last is not None else {}
    for name, how in scan.how.items():
        if how == "quiet" and known.get(name, "carried") == "carried":
            cut[name] = "was being written when the machine went"
    return cut


def strays(disk: Path, task: Task, since: float) -> tuple[str, ...]:
    """Paths outside the checkpoint folder that were written by the program and look like checkpoints, a few of them.

    since: seconds since the epoch. Relative to the workdir, or with `~/`.
    """
    work, inside = disk / "spotbroker" / "work", _checkpoints(disk, task)
    found: list[str] = []
    for top, mark in ((work, ""), (disk, "~/")):
        for path in _files(top, {inside, disk / "spotbroker"} - {top}):
            name = path.relative_to(top).as_posix()
            output = not mark and any(fnmatch.fnmatchcase(name, pattern) for pattern in task.outputs)
            if not output and _looks_like_one(path, top) and path.stat().st_mtime >= since:
                found.append(mark + name)
    return tuple(sorted(found)[:SOME])


def _files(top: Path, without: set[Path]) -> Iterator[Path]:
    for folder, folders, files in os.walk(top):
        here = Path(folder)
        folders[:] = [name for name in folders if name not in NOT_THEIRS and here / name not in without]
        yield from (here / name for name in files if not (here / name).is_symlink())


def _looks_like_one(path: Path, top: Path) -> bool:
    names = [path.name, *(parent.name for parent in path.relative_to(top).parents)]
    by_name = any(step_of(name) is not None or name.lower().startswith(("ckpt", "checkpoint")) for name in names)
    return by_name or path.suffix.lower() in WEIGHTS | (ARCHIVES - {".zip"})


def told(report: Report, evidence: Evidence) -> Report:
    """The report with steps from the logs, where the program reports none by itself."""
    return with_steps(report, {g: seen.steps for g, seen in evidence.seen.items() if seen.steps})
