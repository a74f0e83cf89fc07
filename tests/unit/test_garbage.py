"""Which old blobs of a running job go, and which stay."""

from __future__ import annotations

import os
import time
from pathlib import Path

from broker.garbage import collect, kept_snapshots
from broker.home import Home, JobKeys
from broker.restore import write_parent
from broker.snapshot import Snapshotter
from broker.state import Held, JobState, Retiring

KEYS = JobKeys("j")
TWO_DAYS = 2 * 86400.0


def held(generation: int) -> Held:
    return Held(generation, "local", f"m{generation}", "local/a/b/c/spot", 0.1, 0.0, 0.0, 9e9, "max_hours", 1.0)


def publish(home: Home, folder: Path, generation: int, steps: range, parent: tuple[int, int] | None) -> None:
    folder.mkdir(exist_ok=True)
    snapshotter = Snapshotter(home, KEYS, generation, folder, marker=None, keep=2, quiet=0.0)
    write_parent(home, KEYS, generation, parent)
    for step in steps:
        (folder / "state").write_text(f"{generation} {step}")
        assert snapshotter.final() is not None


def age(tmp_path: Path) -> None:
    """Make every blob two days old."""
    for path in (tmp_path / "home" / KEYS.root / "blobs").iterdir():
        os.utime(path, (time.time() - TWO_DAYS, time.time() - TWO_DAYS))


def contents(tmp_path: Path) -> set[str]:
    return {path.read_text() for path in (tmp_path / "home" / KEYS.root / "blobs").iterdir()}


def test_the_lineage_and_what_living_guests_rely_on_stay(home: Home, tmp_path: Path) -> None:
    publish(home, tmp_path / "one", 1, range(5), None)
    publish(home, tmp_path / "two", 2, range(4), (1, 2))
    home.put(f"{KEYS.manifests(1)}/x", b"put there by whoever has the machine")
    age(tmp_path)
    old = Retiring(held(1), "notice", "retire", 0.0)
    state = JobState("j", generation=2, live=held(2), retiring=(old,), parents={1: None, 2: (1, 2)})
    assert kept_snapshots(home, KEYS, state, 2) == {(2, 4), (2, 3), (1, 2), (1, 5), (1, 4)}
    assert collect(home, KEYS, state, 2) == 4
    assert contents(tmp_path) == {"2 3", "2 2", "1 1", "1 4", "1 3"}


def test_a_guest_that_has_not_told_its_parent_may_rely_on_anything(home: Home, tmp_path: Path) -> None:
    publish(home, tmp_path / "one", 1, range(5), None)
    age(tmp_path)
    state = JobState("j", generation=2, live=held(2), parents={1: None})
    assert collect(home, KEYS, state, 2) == 0
    assert len(contents(tmp_path)) == 5


def test_what_is_younger_than_a_day_stays(home: Home, tmp_path: Path) -> None:
    publish(home, tmp_path / "one", 1, range(5), None)
    state = JobState("j", generation=1, live=held(1), parents={1: None})
    assert collect(home, KEYS, state, 1) == 0
    age(tmp_path)
    assert collect(home, KEYS, state, 1) == 4
