"""Snapshots published to a home and put back, on real folders."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from broker.blobs import Changed, _parts, upload_file
from broker.complete import Stat
from broker.errors import HomeError, SnapshotCorrupt
from broker.home import Home, JobKeys
from broker.snapshot import File, Manifest, Pace, Snapshotter, restore

KEYS = JobKeys("job-1")
SMALL = Pace(chunk=64 << 10, files=2, parts=2)


class Clock:
    """Monotonic time that moves only when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def save(path: Path, value: float) -> None:
    """A checkpoint of a format that proves to be whole."""
    np.savez(path, value=np.full(1000, value))


def blobs(home: Home) -> set[str]:
    return {entry.key.rpartition("/")[2] for entry in home.list(f"{KEYS.root}/blobs")}


def test_what_is_restored_is_what_was_there(home: Home, folder: Path, tmp_path: Path) -> None:
    (folder / "step-7" / "deep" / "empty").mkdir(parents=True)
    files = {
        "step-7/a b.bin": os.urandom(300_000),
        "step-7/grüße %2F 100%.txt": b"x",
        "step-7/deep/zero": b"",
        "step-7/twin": b"x",
        "plain": os.urandom(64 << 10),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (folder / "step-7" / "twin").chmod(0o750)
    (folder / "step-7" / "deep" / "empty").chmod(0o555)
    (folder / "step-7" / "link").symlink_to("deep/zero")
    (folder / "out").symlink_to("/etc/hostname")
    (folder / "latest").symlink_to(folder / "step-7")
    (folder / "step-7" / "deep" / "seen").symlink_to("/ckpt/step-7/../plain")
    manifest = Snapshotter(home, KEYS, 1, folder, quiet=0, pace=SMALL).publish()
    assert manifest is not None
    assert manifest.step == 7
    assert manifest.entries == {"latest": "quiet", "plain": "quiet", "step-7": "quiet"}
    assert "leads outside" in manifest.skipped["step-7/deep/seen"]
    assert "leads outside" in manifest.skipped["out"]
    assert Manifest.from_bytes(home.get(KEYS.manifest(1, 1))) == manifest

    target = tmp_path / "other machine" / "ckpt"
    report = restore(home, KEYS, manifest, target, pace=SMALL)
    assert report.files == 5
    assert {p.relative_to(target).as_posix(): p.read_bytes() for p in target.rglob("*") if p.is_file()} == {
        **files,
        "step-7/link": b"",
    }
    assert (target / "step-7" / "link").readlink() == Path("deep/zero")
    assert (target / "latest").readlink() == Path("step-7"), "also where it was an absolute link"
    in_container = Snapshotter(home, KEYS, 2, folder, quiet=0, pace=SMALL, seen=Path("/ckpt")).publish()
    assert in_container is not None
    assert in_container.links["step-7/deep/seen"] == "../../plain"
    assert (target / "step-7" / "twin").stat().st_mode & 0o777 == 0o750
    assert (target / "step-7" / "deep" / "empty").stat().st_mode & 0o777 == 0o555
    assert [path.name for path in target.parent.iterdir()] == ["ckpt"]


def test_an_unchanged_checkpoint_costs_nothing(home: Home, folder: Path) -> None:
    save(folder / "step-1.npz", 1)
    snapshotter = Snapshotter(home, KEYS, 1, folder)
    assert snapshotter.publish() is not None
    sent = snapshotter.bytes_uploaded
    assert sent == (folder / "step-1.npz").stat().st_size
    assert snapshotter.publish() is None
    os.utime(folder / "step-1.npz")  # touched: read again, but not sent again
    assert snapshotter.publish() is None
    save(folder / "step-2.npz", 2)
    second = snapshotter.publish()
    assert second is not None
    assert second.seq == 2
    assert snapshotter.bytes_uploaded == sent + (folder / "step-2.npz").stat().st_size


def test_the_step_comes_from_names_then_from_progress(home: Home, folder: Path) -> None:
    asked: list[float] = []

    def step_at(at: float) -> int:
        asked.append(at)
        return 41

    save(folder / "last.npz", 1)
    os.utime(folder / "last.npz", (5000, 5000))
    snapshotter = Snapshotter(home, KEYS, 1, folder)
    first = snapshotter.publish(step_at=step_at)
    assert first is not None
    assert (first.step, asked) == (41, [5000.0])
    for name in ("checkpoint-200.npz", "checkpoint-1000.npz", "checkpoint-900.npz"):
        save(folder / name, 1)
    second = snapshotter.publish(step_at=step_at)
    assert second is not None
    assert second.step == 1000


def test_order_by_time_is_order_by_step_after_a_restore(home: Home, folder: Path, tmp_path: Path) -> None:
    for age, name in enumerate(("checkpoint-1000", "checkpoint-200", "checkpoint-900", "epoch=9-step=950", "best")):
        (folder / name).mkdir()
        save(folder / name / "w.npz", 1)
        os.utime(folder / name / "w.npz", (1000 + age, 1000 + age))
        os.utime(folder / name, (1000 + age, 1000 + age))
    manifest = Snapshotter(home, KEYS, 1, folder, quiet=0).publish()
    assert manifest is not None
    restore(home, KEYS, manifest, tmp_path / "r")
    for member in ("", "w.npz"):
        times = {path.name: (path / member).stat().st_mtime for path in (tmp_path / "r").iterdir()}
        assert sorted(times, key=lambda name: times[name]) == [
            "best",
            "checkpoint-200",
            "checkpoint-900",
            "epoch=9-step=950",
            "checkpoint-1000",
        ]
    assert max(path.stat().st_mtime for path in (tmp_path / "r").iterdir()) <= time.time()


def test_an_overwrite_in_place_never_loses_the_earlier_version(home: Home, folder: Path, tmp_path: Path) -> None:
    save(folder / "last.npz", 1)
    snapshotter = Snapshotter(home, KEYS, 1, folder)
    first = snapshotter.publish()
    assert first is not None
    whole = (folder / "last.npz").read_bytes()
    (folder / "last.npz").write_bytes(whole[:100])  # the program is writing it anew
    save(folder / "other-step-5.npz", 5)
    second = snapshotter.publish()
    assert second is not None
    assert second.entries == {"last.npz": "carried", "other-step-5.npz": "zip"}
    assert "last.npz is cut" in second.skipped["last.npz"]
    restore(home, KEYS, second, tmp_path / "r")
    assert (tmp_path / "r" / "last.npz").read_bytes() == whole
    assert snapshotter.final(killed=True) is None


def test_a_file_that_names_the_newest_checkpoint_never_comes_before_it(home: Home, folder: Path) -> None:
    """Until the one that it names is whole, the snapshot has what it said before."""
    snapshotter = Snapshotter(home, KEYS, 1, folder, quiet=0)
    for step in (100, 200):
        save(folder / f"step{step}.npz", step)
        (folder / "latest").write_text(f"step{step}.npz")
        if step == 200:
            (folder / "step200.npz").write_bytes((folder / "step200.npz").read_bytes()[:100])
            save(folder / "other.npz", 1)
        manifest = snapshotter.publish()
        assert manifest is not None
        assert home.get(KEYS.blob(manifest.files["latest"].sha256)) == b"step100.npz"
    assert manifest.entries["latest"] == "carried"


def test_deleting_the_only_checkpoint_publishes_nothing(home: Home, folder: Path) -> None:
    save(folder / "last.npz", 1)
    save(folder / "log.npz", 1)
    snapshotter = Snapshotter(home, KEYS, 1, folder)
    first = snapshotter.publish()
    assert first is not None
    (folder / "last.npz").unlink()
    assert snapshotter.publish() is None
    save(folder / "log.npz", 2)
    second = snapshotter.publish()
    assert second is not None
    assert second.entries["last.npz"] == "carried"
    (folder / "log.npz").unlink()
    assert snapshotter.final() is None


def test_folders_made_at_the_start_are_no_save(home: Home, folder: Path) -> None:
    (folder / "weights" / "best").mkdir(parents=True)
    snapshotter = Snapshotter(home, KEYS, 1, folder, quiet=0)
    assert snapshotter.publish() is None
    assert snapshotter.final() is None
    save(folder / "weights" / "epoch_1.npz", 1)
    first = snapshotter.publish()
    assert first is not None
    assert (sorted(first.entries), first.step) == (["weights/best", "weights/epoch_1.npz"], None)


def test_rotated_checkpoints_leave_the_snapshot(home: Home, folder: Path) -> None:
    clock = Clock()
    snapshotter = Snapshotter(home, KEYS, 1, folder, clock=clock)
    save(folder / "step-1.npz", 1)
    save(folder / "best.npz", 1)
    assert snapshotter.publish() is not None
    (folder / "step-1.npz").unlink()
    (folder / "best.npz").unlink()
    save(folder / "step-2.npz", 2)
    second = snapshotter.publish()
    assert second is not None
    assert second.entries == {"best.npz": "carried", "step-2.npz": "zip"}
    clock.now += 601
    save(folder / "step-3.npz", 3)
    third = snapshotter.publish()
    assert third is not None
    assert set(third.entries) == {"step-2.npz", "step-3.npz"}


def test_what_changed_after_the_look_is_named_and_skipped(home: Home, folder: Path) -> None:
    save(folder / "step-1.npz", 1)
    save(folder / "step-2.npz", 2)
    save(folder / "step-3.npz", 3)
    (folder / "dir").mkdir()
    save(folder / "dir" / "a.npz", 1)
    snapshotter = Snapshotter(home, KEYS, 1, folder, quiet=0)
    scan = snapshotter.scan()
    save(folder / "step-2.npz", 2.5)
    (folder / "step-3.npz").unlink()
    save(folder / "dir" / "b.npz", 1)  # the directory grew: it was not whole
    manifest = snapshotter.publish(scan)
    assert manifest is not None
    assert set(manifest.entries) == {"step-1.npz"}
    assert "changed" in manifest.skipped["step-2.npz"]
    assert "went away" in manifest.skipped["step-3.npz"]
    assert "changed" in manifest.skipped["dir"]


def test_a_file_replaced_by_one_of_the_same_size_and_time_is_seen(home: Home, folder: Path, tmp_path: Path) -> None:
    save(folder / "w.npz", 1)
    snapshotter = Snapshotter(home, KEYS, 1, folder)
    assert snapshotter.publish() is not None
    before = (folder / "w.npz").stat()
    save(tmp_path / "new.npz", 2)
    os.utime(tmp_path / "new.npz", ns=(before.st_atime_ns, before.st_mtime_ns))
    (tmp_path / "new.npz").replace(folder / "w.npz")
    assert (folder / "w.npz").stat().st_size == before.st_size
    second = snapshotter.publish()
    assert second is not None
    restore(home, KEYS, second, tmp_path / "r")
    assert np.load(tmp_path / "r" / "w.npz")["value"][0] == 2


@pytest.mark.parametrize("size", [1000, 400_000])
def test_a_file_that_changes_while_it_goes_up_gets_no_name(home: Home, tmp_path: Path, size: int) -> None:
    path = tmp_path / "w"
    path.write_bytes(bytes(size))
    found = Stat.of(path.stat())
    with path.open("ab") as file:
        file.write(b"more")
    with pytest.raises(Changed, match="changed"):
        upload_file(home, KEYS.blob("0" * 64), path, found, SMALL)
    assert not blobs(home)


def test_a_change_between_two_parts_aborts_the_upload(home: Home, tmp_path: Path) -> None:
    path = tmp_path / "w"
    path.write_bytes(bytes(400_000))
    os.utime(path, (1000, 1000))
    parts = _parts(path, Stat.of(path.stat()), 64 << 10)

    def meanwhile(write: Callable[[], object]):  # type: ignore[no-untyped-def]
        yield next(parts)
        write()
        yield from parts

    with pytest.raises(Changed):
        home.store.put(KEYS.blob("0" * 64), meanwhile(lambda: path.write_bytes(bytes(400_001))), chunk_size=64 << 10)
    assert not blobs(home)


def test_that_an_object_exists_never_counts_as_uploaded(home: Home, folder: Path) -> None:
    save(folder / "step-1.npz", 1)
    first = Snapshotter(home, KEYS, 1, folder).publish()
    assert first is not None
    (sha,) = first.hashes
    home.put(KEYS.blob(sha), b"damaged by somebody")
    again = Snapshotter(home, KEYS, 2, folder)
    assert again.publish() is not None
    assert again.bytes_uploaded == first.size
    assert len(home.get(KEYS.blob(sha))) == first.size


def test_only_the_last_manifests_stand_for_uploaded(home: Home, folder: Path) -> None:
    snapshotter = Snapshotter(home, KEYS, 1, folder, keep=2)
    sent = []
    for value in (1, 2, 1, 2, 3, 4, 1):
        before = snapshotter.bytes_uploaded
        save(folder / "last.npz", value)
        assert snapshotter.publish() is not None
        sent.append(snapshotter.bytes_uploaded > before)
    assert sent == [True, True, False, False, True, True, True]


def test_what_was_restored_is_neither_read_nor_sent_again(home: Home, folder: Path, tmp_path: Path) -> None:
    save(folder / "step-1.npz", 1)
    save(folder / "step-2.npz", 2)
    first = Snapshotter(home, KEYS, 1, folder).publish()
    assert first is not None
    there = tmp_path / "there"
    restore(home, KEYS, first, there)
    # Equal size, other content, the restored times: only a second reading could tell.
    times = (there / "step-1.npz").stat()
    save(there / "step-1.npz", 9)
    os.utime(there / "step-1.npz", ns=(times.st_atime_ns, times.st_mtime_ns))
    second = Snapshotter(home, KEYS, 2, there, verified=first)
    assert second.publish() is None
    assert second.bytes_uploaded == 0
    save(there / "step-2.npz", 3)  # written by the program: read and sent
    published = second.publish()
    assert published is not None
    assert (published.generation, published.seq) == (2, 1)
    assert published.files["step-2.npz"] != first.files["step-2.npz"]


def test_what_changed_since_the_restore_is_read_again(home: Home, folder: Path, tmp_path: Path) -> None:
    save(folder / "step-1.npz", 1)
    first = Snapshotter(home, KEYS, 1, folder).publish()
    assert first is not None
    there = tmp_path / "there"
    restore(home, KEYS, first, there)
    save(there / "step-1.npz", 2)  # of the same size
    second = Snapshotter(home, KEYS, 2, there, verified=first).publish()
    assert second is not None
    assert second.hashes != first.hashes


def test_numbers_go_on_after_a_restart_of_the_same_generation(home: Home, folder: Path) -> None:
    save(folder / "step-1.npz", 1)
    assert Snapshotter(home, KEYS, 1, folder).publish() is not None
    save(folder / "step-2.npz", 2)
    second = Snapshotter(home, KEYS, 1, folder).publish()
    assert second is not None
    assert second.seq == 2


def test_a_manifest_is_written_once(home: Home, folder: Path) -> None:
    save(folder / "step-1.npz", 1)
    snapshotter = Snapshotter(home, KEYS, 1, folder)
    first = snapshotter.publish()
    assert first is not None
    assert snapshotter._write(replace(first, seq=0)).seq == 2
    snapshotter._seq = 0
    assert snapshotter._write(first) == first  # a replay with equal content has succeeded
    snapshotter._seq = 0
    with pytest.raises(HomeError, match="exists with another content"):
        snapshotter._write(replace(first, step=99))


def test_an_ended_programs_last_files_count(home: Home, folder: Path) -> None:
    (folder / "state.pkl").write_bytes(b"unknown format")
    snapshotter = Snapshotter(home, KEYS, 1, folder, quiet=60)
    assert snapshotter.publish() is None
    assert snapshotter.final(killed=True) is None
    final = snapshotter.final()
    assert final is not None
    assert final.entries == {"state.pkl": "quiet"}


def test_half_made_checkpoints_are_named_in_the_manifest(home: Home, folder: Path) -> None:
    for step, state in ((1000, b'{"global_step": 1000}'), (1200, None), (1300, b'{"global_st')):
        (folder / f"checkpoint-{step}").mkdir()
        save(folder / f"checkpoint-{step}" / "model.npz", step)
        (folder / f"checkpoint-{step}" / "model.bin").write_bytes(b"weights")
        (folder / f"checkpoint-{step}" / "optimizer.pt").write_bytes(b"" if step == 1200 else b"full")
        if state is not None:
            (folder / f"checkpoint-{step}" / "trainer_state.json").write_bytes(state)
    final = Snapshotter(home, KEYS, 1, folder).final()
    assert final is not None
    assert (final.step, set(final.entries)) == (1000, {"checkpoint-1000"})
    assert set(final.skipped) == {"checkpoint-1200", "checkpoint-1300"}


@pytest.mark.parametrize("damage", range(12))
def test_a_damaged_manifest_is_never_believed(damage: int) -> None:
    manifest = Manifest(1, 1, 5.0, 7, {"a": "zip"}, {"a": File("0" * 64, 10, 0o644)}, {"b": "cut"}, {}, {})
    raw = bytearray(manifest.to_bytes())
    assert Manifest.from_bytes(bytes(raw)) == manifest
    if damage < 10:
        raw[len(raw) * damage // 10] ^= 1
    else:
        raw = raw[: len(raw) * (damage - 10) // 2]
    with pytest.raises(SnapshotCorrupt):
        Manifest.from_bytes(bytes(raw))


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "a//b", "", "./a", "a\0b"])
def test_a_manifest_that_names_paths_outside_is_refused(path: str) -> None:
    good = {"a": File("0" * 64, 1, 0o644)}
    for manifest in (
        Manifest(1, 1, 5.0, None, {"a": "zip"}, {path: good["a"]}),
        Manifest(1, 1, 5.0, None, {"a": "zip"}, good, {}, {path: 0o755}),
        Manifest(1, 1, 5.0, None, {"a": "zip"}, good, {}, {}, {path: "a"}),
        Manifest(1, 1, 5.0, None, {"a": "zip"}, good, {}, {}, {"l": "../../x"}),
    ):
        with pytest.raises(SnapshotCorrupt, match="outside"):
            Manifest.from_bytes(manifest.to_bytes())


def test_parts_grow_with_the_file() -> None:
    pace = Pace()
    for size in (1, 5 << 30, 80 << 30, 5 << 40):
        assert pace.part(size) >= 5 << 20
        assert -(-size // pace.part(size)) <= 10_000
