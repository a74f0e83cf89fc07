"""Which snapshot is restored, and what happens when it cannot be."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Self

import numpy as np
import pytest

from broker.config import load
from broker.errors import HomeError, SnapshotCorrupt
from broker.home import Access, Home, JobKeys, folder_url
from broker.job import Job
from broker.restore import unmatched, write_parent
from broker.snapshot import (
    File,
    Manifest,
    Pace,
    Snapshotter,
    collect_garbage,
    download,
    restore,
    restore_newest,
    upload_tree,
)
from broker.state import JobState
from broker.store import JobRow, open_store

KEYS = JobKeys("job-1")
DAY = 86400.0
ROOT = Path(__file__).resolve().parents[2]


class Runs:
    """Generations of a job that each publish numbered snapshots; `value` tells them apart once restored."""

    def __init__(self, home: Home, place: Path) -> None:
        self.home, self.place = home, place

    def publish(self, generation: int, values: list[int], parent: tuple[int, int] | None = None) -> list[Manifest]:
        write_parent(self.home, KEYS, generation, parent)
        folder = self.place / f"machine-{generation}"
        folder.mkdir(exist_ok=True)
        snapshotter = Snapshotter(self.home, KEYS, generation, folder)
        made = []
        for value in values:
            np.savez(folder / "last.npz", value=np.full(1000, value))
            manifest = snapshotter.publish()
            assert manifest is not None
            made.append(manifest)
        return made

    def restored(self, below: int, parents: dict[int, tuple[int, int] | None] | None = None) -> int:
        target = self.place / "target"
        shutil.rmtree(target, ignore_errors=True)
        manifest, _problems = restore_newest(self.home, KEYS, below, target, parents or {})
        assert manifest is not None
        return int(np.load(target / "last.npz")["value"][0])

    def spoil(self, manifest: Manifest) -> None:
        for sha in manifest.hashes:
            self.home.put(KEYS.blob(sha), b"x" * manifest.size)


@pytest.fixture
def runs(home: Home, tmp_path: Path) -> Runs:
    return Runs(home, tmp_path)


def test_the_newest_snapshot_of_the_newest_generation_is_restored(runs: Runs) -> None:
    runs.publish(1, [11, 12])
    assert runs.restored(2) == 12
    runs.publish(2, [], parent=(1, 2))
    assert runs.restored(3) == 12
    runs.publish(3, [31], parent=(1, 2))
    assert runs.restored(4) == 31


def test_what_a_cut_off_machine_writes_later_is_never_read(runs: Runs) -> None:
    runs.publish(1, [11, 12])
    runs.publish(2, [], parent=(1, 1))  # generation 2 took up snapshot 1 while machine 1 was cut off
    assert runs.restored(3) == 11
    runs.publish(4, [41], parent=(1, 1))
    assert runs.restored(5, {1: None, 3: (1, 2), 4: (1, 1)}) == 41


def test_the_brokers_copy_of_the_lineage_wins(runs: Runs) -> None:
    runs.publish(1, [11, 12])
    runs.publish(2, [], parent=(1, 2))
    assert runs.restored(3) == 12
    assert runs.restored(3, {1: None, 2: (1, 1)}) == 11


def test_nothing_counts_after_the_closing_word(runs: Runs, home: Home) -> None:
    runs.publish(1, [11, 12, 13])
    home.put(KEYS.closed(1), json.dumps({"seq": 2, "why": "notice", "at": 0}).encode())
    assert runs.restored(2) == 12


@pytest.mark.parametrize("how", ["missing", "other content", "shorter", "manifest damaged"])
def test_a_corrupt_snapshot_falls_back_to_its_predecessor(runs: Runs, home: Home, tmp_path: Path, how: str) -> None:
    _first, second = runs.publish(1, [11, 12])
    (sha,) = second.hashes
    if how == "missing":
        home.delete([KEYS.blob(sha)])
    elif how == "other content":
        runs.spoil(second)
    elif how == "shorter":
        home.put(KEYS.blob(sha), home.get(KEYS.blob(sha))[:-1])
    else:
        home.put(KEYS.manifest(1, 2), home.get(KEYS.manifest(1, 2))[:-20])
    manifest, problems = restore_newest(home, KEYS, 2, tmp_path / "target", {})
    assert manifest is not None
    assert (manifest.generation, manifest.seq) == (1, 1)
    assert len(problems) == 1
    assert "snapshot 1/2" in problems[0]
    assert np.load(tmp_path / "target" / "last.npz")["value"][0] == 11


def test_an_older_snapshot_is_pulled_with_a_word(runs: Runs, home: Home, tmp_path: Path) -> None:
    runs.publish(1, [11])
    (spoilt,) = runs.publish(2, [21], parent=(1, 1))
    runs.spoil(spoilt)
    config = load(state=tmp_path / "state", file=tmp_path / "config.toml")
    state = JobState("job-1", generation=2, parents={1: None, 2: (1, 1)}).to_json()
    store = open_store(config.state)
    store.add_job(JobRow(id="job-1", name="j", created_at=0.0, status="stopped", home=home.url, task={}, state=state))
    job = Job(store.job("job-1"), config, store)
    (file,) = job.pull(tmp_path / "pulled", checkpoint=True)
    assert np.load(file)["value"][0] == 11
    (event,) = job.events()
    assert event.kind == "warning"
    assert event.text.startswith("snapshot 1/1 was pulled, an older one: snapshot 2/1: ")
    store.close()


def test_all_corrupt_stops_instead_of_starting_from_nothing(runs: Runs, home: Home, tmp_path: Path) -> None:
    for manifest in runs.publish(1, [11, 12]):
        runs.spoil(manifest)
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(SnapshotCorrupt, match=r"no snapshot can be restored.*1/2.*1/1"):
        restore_newest(home, KEYS, 2, target, {})
    assert list(target.iterdir()) == []
    assert not [path for path in tmp_path.iterdir() if "restoring" in path.name]


def test_vanished_snapshots_stop_it_too(runs: Runs, home: Home, tmp_path: Path) -> None:
    runs.publish(1, [11])
    runs.publish(2, [], parent=(1, 1))
    home.delete([KEYS.manifest(1, 1)])
    with pytest.raises(SnapshotCorrupt, match="all have gone"):
        restore_newest(home, KEYS, 3, tmp_path / "target", {})


def test_manifests_that_have_gone_stop_it_too(runs: Runs, home: Home, tmp_path: Path) -> None:
    """The broker knows from the beats that there were some."""
    runs.publish(1, [11, 12])
    home.delete([KEYS.manifest(1, 1), KEYS.manifest(1, 2)])
    with pytest.raises(SnapshotCorrupt, match="up to 1/2, but none is there"):
        restore_newest(home, KEYS, 2, tmp_path / "target", {1: None}, expected={1: 2})
    home.delete([KEYS.parent(1)])
    with pytest.raises(SnapshotCorrupt, match="up to 1/2, but none is there"):
        restore_newest(home, KEYS, 2, tmp_path / "target", {}, expected={1: 2})
    assert not (tmp_path / "target").exists()


def test_fewer_manifests_than_were_told_of_are_a_problem_only(runs: Runs, home: Home, tmp_path: Path) -> None:
    runs.publish(1, [11, 12, 13])
    runs.publish(2, [21], parent=(1, 2))
    whole = {1: 3, 2: 1, 7: 5}
    manifest, problems = restore_newest(home, KEYS, 3, tmp_path / "target", {}, expected={1: 3, 2: 1})
    assert manifest is not None
    assert (manifest.generation, manifest.seq, problems) == (2, 1, ())
    home.delete([KEYS.manifest(2, 1), KEYS.manifest(1, 3)])  # 1/3 is outside the chain
    manifest, problems = restore_newest(home, KEYS, 3, tmp_path / "target", {}, expected=whole)
    assert manifest is not None
    assert (manifest.generation, manifest.seq) == (1, 2)
    assert problems == ("machine 2 had published snapshots up to 2/1, but none is there",)
    home.delete([KEYS.manifest(1, 2)])
    manifest, problems = restore_newest(home, KEYS, 3, tmp_path / "target", {}, expected=whole)
    assert manifest is not None
    assert (manifest.seq, problems[1]) == (
        1,
        "machine 1 had published snapshots up to 1/2, but the newest there is 1",
    )


def test_what_else_lies_among_the_snapshots_is_none(runs: Runs, home: Home, tmp_path: Path) -> None:
    """Such as what a file manager leaves in a folder that somebody has looked into: it stops no machine's snapshots."""
    runs.publish(1, [11])
    home.put(f"{KEYS.manifests(1)}/.DS_Store", b"x")
    runs.publish(1, [12])  # by a guest that was started again
    assert runs.restored(2) == 12


def test_a_damaged_last_word_is_no_word(runs: Runs, home: Home) -> None:
    runs.publish(1, [11, 12])
    home.put(KEYS.closed(1), b'{"seq"')
    assert runs.restored(2) == 12


def test_where_it_is_unknown_what_a_machine_started_from_nothing_is_started_from_nothing(
    runs: Runs, home: Home, tmp_path: Path
) -> None:
    runs.publish(1, [11])
    runs.publish(2, [21], parent=(1, 1))
    home.put(KEYS.parent(2), b"{}")
    assert runs.restored(3) == 21
    assert runs.restored(3, {2: (1, 1)}) == 21
    home.delete([KEYS.manifest(2, 1)])
    with pytest.raises(SnapshotCorrupt, match="what machine 2 started from is damaged"):
        restore_newest(home, KEYS, 3, tmp_path / "target", {})
    assert runs.restored(3, {2: (1, 1)}) == 11


def test_a_job_without_snapshots_starts_from_nothing(runs: Runs, home: Home, tmp_path: Path) -> None:
    assert restore_newest(home, KEYS, 1, tmp_path / "target", {}) == (None, ())
    runs.publish(1, [])
    assert restore_newest(home, KEYS, 2, tmp_path / "target", {}) == (None, ())
    assert not (tmp_path / "target").exists()


def test_a_snapshot_that_fails_at_once_can_be_passed_over(runs: Runs, home: Home, tmp_path: Path) -> None:
    runs.publish(1, [11, 12])
    manifest, problems = restore_newest(home, KEYS, 2, tmp_path / "target", {}, avoid={(1, 2)})
    assert manifest is not None
    assert (manifest.seq, problems) == (1, ("snapshot 1/2 is passed over",))
    with pytest.raises(SnapshotCorrupt):
        restore_newest(home, KEYS, 2, tmp_path / "target", {}, avoid={(1, 2), (1, 1)})


def test_what_lay_in_the_folder_is_moved_aside(runs: Runs, home: Home, tmp_path: Path) -> None:
    (manifest,) = runs.publish(1, [11])
    target = tmp_path / "target"
    target.mkdir()
    (target / "mine").write_text("kept")
    (tmp_path / ".target.restoring-dead").mkdir()  # of a restore that was killed
    report = restore(home, KEYS, manifest, target)
    assert [path.name for path in target.iterdir()] == ["last.npz"]
    assert report.aside is not None
    assert (report.aside / "mine").read_text() == "kept"
    restore(home, KEYS, manifest, target)
    assert len([path for path in tmp_path.iterdir() if path.name.startswith(".target.")]) == 1


def test_a_folder_that_is_a_mount_point_is_restored_into(runs: Runs, tmp_path: Path) -> None:
    """It cannot be renamed over, so its entries are moved one by one."""
    (manifest,) = runs.publish(1, [11])
    with small_disk(tmp_path, 16) as target:
        restored = target.run(f"restore(home, KEYS, manifest({manifest.generation}, {manifest.seq}), DISK)")
        assert restored.returncode == 0, restored.stderr
        assert "['last.npz']" in target.run_last("print(sorted(os.listdir(DISK)))").stdout


class Disk:
    """A file system of a few MiB, mounted in a namespace of its own for each program that runs on it."""

    def __init__(self, tmp_path: Path, size: int) -> None:
        self.tmp_path, self.size, self.done = tmp_path, size, ""

    def __enter__(self) -> Self:
        if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
            pytest.skip("a small file system needs Linux's unshare")
        return self

    def __exit__(self, *_: object) -> None:
        return

    def run(self, code: str) -> subprocess.CompletedProcess[str]:
        self.done = code
        place = self.tmp_path / "disk"
        place.mkdir(exist_ok=True)
        program = f"""
import os, sys
from pathlib import Path
from broker.home import *
from broker.snapshot import *
from broker.restore import read_manifest
from broker.blobs import fetch
from broker.errors import *
KEYS = JobKeys('job-1')
DISK = Path({str(place)!r})
home = Home(Access(folder_url({str(self.tmp_path / "home")!r})))
manifest = lambda g, s: read_manifest(home, KEYS, g, s)
{code}
"""
        script = f'mount -t tmpfs -o size={self.size}m none "{place}" && exec "$0" -c "$1"'
        return subprocess.run(
            ["unshare", "-rm", "sh", "-c", script, sys.executable, program],
            check=False,
            capture_output=True,
            text=True,
            cwd=self.tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
            timeout=60,
        )

    def run_last(self, more: str) -> subprocess.CompletedProcess[str]:
        return self.run(f"{self.done}\n{more}")


def small_disk(tmp_path: Path, size: int) -> Disk:
    return Disk(tmp_path, size)


def large(home: Home, tmp_path: Path, size: int) -> Manifest:
    write_parent(home, KEYS, 1, None)
    (tmp_path / "large").mkdir()
    (tmp_path / "large" / "step-1.bin").write_bytes(os.urandom(size))
    manifest = Snapshotter(home, KEYS, 1, tmp_path / "large", quiet=0).publish()
    assert manifest is not None
    return manifest


def test_a_restore_to_a_small_disk_says_so_before_it_begins(home: Home, tmp_path: Path) -> None:
    large(home, tmp_path, 6 << 20)
    with small_disk(tmp_path, 4) as disk:
        result = disk.run("restore_newest(home, KEYS, 2, DISK / 'ckpt', {})")
        assert f"no space left at {tmp_path / 'disk' / 'ckpt'}" in result.stderr
        assert "needs 6 MiB, 4 MiB are free" in result.stderr
        assert "SnapshotCorrupt" not in result.stderr


def test_a_disk_that_fills_up_during_a_restore_is_named(home: Home, tmp_path: Path) -> None:
    large(home, tmp_path, 6 << 20)
    with small_disk(tmp_path, 4) as disk:
        result = disk.run("fetch(home, KEYS, {DISK / 'w': manifest(1, 1).files['step-1.bin']})")
        assert f"HomeError: no space left at {tmp_path / 'disk'} (" in result.stderr
        assert "MiB free)" in result.stderr


def test_a_full_home_keeps_the_older_snapshot(tmp_path: Path) -> None:
    with small_disk(tmp_path, 8) as disk:
        result = disk.run(
            """
home = Home(Access(folder_url(DISK / 'home')))
work = Path('work'); work.mkdir()
(work / 'step-1.bin').write_bytes(os.urandom(3 << 20))
write = Snapshotter(home, KEYS, 1, work, quiet=0)
write.publish()
(work / 'step-2.bin').write_bytes(os.urandom(9 << 20))
try: write.publish()
except HomeError as error: print(error)
print([entry.key for entry in home.list(KEYS.manifests(1))])
print(restore_newest(home, KEYS, 2, Path('r'), {1: None})[0].step)
"""
        )
        assert f"no space left at {folder_url(tmp_path / 'disk' / 'home')} (" in result.stdout, result
        assert "00000001']" in result.stdout
        assert result.stdout.endswith("\n1\n")


def test_files_of_many_parts_and_many_files_come_back(home: Home, tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(150):
        (folder / f"f{number}").write_bytes(b"%d" % (number % 100) * 5000)
    for number in range(10):  # each goes as one stream, of several ranges
        (folder / f"middle{number}").write_bytes(os.urandom(200_000 + number))
    (folder / "big").write_bytes(os.urandom((3 << 20) + 7))  # in parts, side by side
    pace = Pace(chunk=64 << 10, files=2, parts=2)
    manifest = Snapshotter(home, KEYS, 1, folder, quiet=0, pace=pace).publish()
    assert manifest is not None
    assert len(manifest.files) == 161
    restore(home, KEYS, manifest, tmp_path / "r", pace=pace)
    for path in folder.iterdir():
        assert (tmp_path / "r" / path.name).read_bytes() == path.read_bytes()


def test_outputs_go_up_and_come_down(home: Home, tmp_path: Path) -> None:
    work = tmp_path / "work"
    for name in ("out/a.txt", "out/deep/b c.txt", "model.bin", "other.bin", "out/x%20ü"):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(name)
    (work / "out" / "leak").symlink_to("/etc/hostname")
    files = upload_tree(home, KEYS, work, ["out", "./mod*.bin"])
    assert set(files) == {"out/a.txt", "out/deep/b c.txt", "model.bin", "out/x%20ü"}
    assert unmatched(files, ["out", "./mod*.bin", "nope/*", "out/leak", "out/deep/"]) == ("nope/*", "out/leak")
    to = tmp_path / "pulled"
    download(home, KEYS, files, to)
    assert {path.relative_to(to).as_posix() for path in to.rglob("*") if path.is_file()} == set(files)
    assert (to / "out" / "deep" / "b c.txt").read_text() == "out/deep/b c.txt"
    download(home, KEYS, files, to)


def test_a_machine_cannot_write_outside_the_folder_that_is_pulled_to(home: Home, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a").write_text("x")
    (file,) = upload_tree(home, KEYS, tmp_path / "work", ["a"]).values()
    for path in ("../evil", "/tmp/evil", "a/../../evil"):
        with pytest.raises(SnapshotCorrupt, match="outside"):
            download(home, KEYS, {path: file}, tmp_path / "to")
    assert not (tmp_path / "evil").exists()


def test_a_damaged_output_is_not_written(home: Home, tmp_path: Path) -> None:
    with pytest.raises(SnapshotCorrupt, match="missing"):
        download(home, KEYS, {"a": File("0" * 64, 5, 0o644)}, tmp_path / "to")
    assert list((tmp_path / "to").iterdir()) == []


def test_garbage_is_what_no_kept_manifest_names_for_a_day(runs: Runs, home: Home) -> None:
    first, second, third = runs.publish(1, [11, 12, 13])
    now = max(entry.modified for entry in home.list(f"{KEYS.root}/blobs"))
    kept = [(1, 2), (1, 3)]
    assert collect_garbage(home, KEYS, kept, now + DAY - 1) == 0
    assert collect_garbage(home, KEYS, kept, now + DAY + 1) == 1
    left = {entry.key.rpartition("/")[2] for entry in home.list(f"{KEYS.root}/blobs")}
    assert left == second.hashes | third.hashes
    assert not left & first.hashes
    home.delete([KEYS.manifest(1, 3)])
    with pytest.raises(SnapshotCorrupt):
        collect_garbage(home, KEYS, kept, now + 2 * DAY)
    assert {entry.key.rpartition("/")[2] for entry in home.list(f"{KEYS.root}/blobs")} == left


def test_an_unreachable_store_is_not_an_empty_one(tmp_path: Path) -> None:
    nowhere = Home(
        Access(
            "s3://bucket/home",
            {
                "endpoint": "http://127.0.0.1:9",
                "region": "us-east-1",
                "access_key_id": "a",
                "secret_access_key": "b",
            },
        )
    )
    with pytest.raises(HomeError) as caught:
        restore_newest(nowhere, KEYS, 2, tmp_path / "target", {1: None})
    assert not isinstance(caught.value, SnapshotCorrupt)
