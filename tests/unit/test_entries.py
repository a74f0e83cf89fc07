"""Directories that only hold checkpoints, and what a snapshot of them holds."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from broker.complete import Judge
from broker.entries import containers_of, entry_of, holds_checkpoints, newest_step
from broker.home import Home, JobKeys
from broker.snapshot import Manifest, Snapshotter, restore

KEYS = JobKeys("job-1")


def make(folder: Path, *paths: str) -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        if path.endswith("/"):
            (folder / path).mkdir(exist_ok=True)
        else:
            (folder / path).write_bytes(path.encode())


def save(path: Path, value: float = 1.0) -> None:
    """A checkpoint of a format that proves to be whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, value=np.full(100, value))


def tree(folder: Path) -> dict[str, bytes | str | None]:
    return {
        path.relative_to(folder).as_posix(): str(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else None
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize(
    "paths",
    [
        ["version_0/checkpoints/step=5.ckpt", "version_0/metrics.csv"],
        ["output/checkpoint-100/model.bin"],
        ["output/trainer_state.json", "output/checkpoint-100/trainer_state.json"],
        ["run1/a/b/100/weights"],
        ["lightning_logs/version_0/checkpoints/epoch=1-step=5.ckpt"],
        ["run/tmp-checkpoint-100/"],
        ["weights/ep30-loss0.05.ckpt"],
        ["weights/model_Epoch3.pth"],
    ],
)
def test_a_directory_that_holds_checkpoints_is_a_container(tmp_path: Path, paths: list[str]) -> None:
    make(tmp_path, *paths)
    assert holds_checkpoints(tmp_path / paths[0].partition("/")[0])


@pytest.mark.parametrize(
    "paths",
    [
        ["ckpt-100/weights", "ckpt-100/optim", "ckpt-100/global_step100/mp_rank_00_model_states.pt"],
        ["saved_model/saved_model.pb", "saved_model/variables/variables.data-00000-of-00001"],
        ["last/model.safetensors", "last/model_1.safetensors", "last/rng_state_0.pth"],
        ["last/model-00001-of-00002.safetensors", "last/model-00002-of-00002.safetensors"],
        ["last/weights", "last/step-500.json"],
        ["last/trainer_state.json", "last/global_step100/mp_rank_00_model_states.pt"],
        ["last/.metadata", "last/__0_0.distcp", "last/step-1/x"],
        ["last/_CHECKPOINT_METADATA", "last/default/0/x"],
        ["last/params/.zarray", "last/params/0", "last/params/1/0"],
        ["last/params/zarr.json", "last/params/c/0/0"],
        ["best/a/b/c/step-5.pt"],
        ["best/.cache/step-5.pt"],
        ["epoch_3/model_epoch_3.pt", "epoch_3/optimizer_epoch_3.pt"],
        ["last/prep3.bin", "last/deep30.bin"],
    ],
)
def test_one_checkpoint_in_many_files_is_none(tmp_path: Path, paths: list[str]) -> None:
    make(tmp_path, *paths)
    assert not holds_checkpoints(tmp_path / paths[0].partition("/")[0])


def test_a_path_belongs_to_one_entry() -> None:
    containers = containers_of(["version_0/checkpoints/step=5.ckpt", "version_0/hparams.yaml", "last.pt"])
    assert containers == {"version_0", "version_0/checkpoints"}
    assert entry_of("version_0/checkpoints/step=5.ckpt/a/b", containers) == "version_0/checkpoints/step=5.ckpt"
    assert entry_of("version_0/x", containers) == "version_0/x"
    assert entry_of("last.pt", containers) == "last.pt"
    assert entry_of("other/deep/file", containers) == "other"
    assert newest_step(["checkpoint-9000/x.log", "version_7/step=5.ckpt"]) == 5


def test_a_log_that_is_written_all_the_time_holds_up_nothing_beside_it(home: Home, folder: Path) -> None:
    """The layout of Lightning's own loggers."""
    save(folder / "version_0" / "checkpoints" / "step=5.npz")
    snapshotter = Snapshotter(home, KEYS, 1, folder, quiet=60)
    with (folder / "version_0" / "metrics.csv").open("w") as log:
        log.write("1,0.1\n")
        log.flush()
        scan = snapshotter.scan()
        assert scan.how == {"version_0/checkpoints/step=5.npz": "zip"}
        assert set(scan.incomplete) == {"version_0/metrics.csv"}
        manifest = snapshotter.publish(scan)
    assert manifest is not None
    assert (manifest.step, list(manifest.files)) == (5, ["version_0/checkpoints/step=5.npz"])


def test_a_temporary_name_in_a_container_is_remembered(folder: Path) -> None:
    make(folder, "run/ckpt/step-5", "run/ckpt/step-6.tmp", "run/ckpt/.hidden", "new.tmp/a/step-1/x")
    judge = Judge(folder, quiet=60)
    scan = judge.look()
    assert not scan.complete
    assert {name for name, why in scan.skipped.items() if "not finished" in why} == {
        "new.tmp",
        "run/ckpt/step-6.tmp",
        "run/ckpt/.hidden",
    }
    (folder / "run" / "ckpt" / "step-6.tmp").rename(folder / "run" / "ckpt" / "step-6")
    (folder / "new.tmp").rename(folder / "new")
    assert judge.look().how == {"run/ckpt/step-6": "renamed", "new/a/step-1": "renamed"}
    assert judge.look().how == {"run/ckpt/step-6": "renamed", "new/a/step-1": "renamed"}


def test_a_trainers_output_folder_is_judged_checkpoint_by_checkpoint(folder: Path) -> None:
    make(folder, "output/checkpoint-100/model.bin", "output/checkpoint-100/trainer_state.json")
    (folder / "output/checkpoint-100/trainer_state.json").write_text('{"global_step": 100}')
    make(folder, "output/checkpoint-200/model.bin")
    scan = Judge(folder, quiet=0).look()
    assert scan.how == {"output/checkpoint-100": "hf"}
    assert "trainer_state.json is missing" in scan.skipped["output/checkpoint-200"]


def test_with_a_marker_a_directory_stays_whole(folder: Path) -> None:
    make(folder, "run/step-1/x", "run/DONE")
    assert Judge(folder, marker="DONE").look().how == {"run": "marker"}


def test_links_in_containers_wait_for_what_they_lead_to(folder: Path) -> None:
    save(folder / "run" / "ckpt" / "step-5.npz")
    make(folder, "run/ckpt/step-6.npz")
    for name, target in {"last": "step-5.npz", "newer": "step-6.npz", "up": "..", "out": "../../../x"}.items():
        (folder / "run" / "ckpt" / name).symlink_to(target)
    (folder / "latest").symlink_to("run/ckpt")
    scan = Judge(folder, quiet=0).look()
    assert set(scan.complete) == {f"run/ckpt/{name}" for name in ("step-5.npz", "last", "up")} | {"latest"}
    assert scan.skipped["run/ckpt/newer"] == "leads to run/ckpt/step-6.npz, which is not complete"
    assert "outside" in scan.skipped["run/ckpt/out"]


def test_a_restore_gives_the_same_tree(home: Home, folder: Path, tmp_path: Path) -> None:
    for step in (5, 40, 300):
        save(folder / "version_0" / "checkpoints" / f"step={step}.npz", step)
    make(folder, "version_0/metrics.csv", "version_0/media/a/b", "run/checkpoint-7/deep/x", "run/none/", "plain")
    (folder / "version_0" / "checkpoints" / "last").symlink_to("step=300.npz")
    (folder / "version_0" / "checkpoints").chmod(0o550)
    manifest = Snapshotter(home, KEYS, 1, folder, quiet=0).publish()
    assert manifest is not None
    assert list(manifest.entries)[-4:] == ["version_0/checkpoints/step=5.npz", "run/checkpoint-7"] + [
        f"version_0/checkpoints/step={step}.npz" for step in (40, 300)
    ]
    restore(home, KEYS, Manifest.from_bytes(manifest.to_bytes()), tmp_path / "r")
    assert tree(tmp_path / "r") == tree(folder)
    checkpoints = tmp_path / "r" / "version_0" / "checkpoints"
    assert checkpoints.stat().st_mode & 0o777 == 0o550
    by_time = sorted(checkpoints.glob("step*"), key=lambda path: path.stat().st_mtime)
    assert [path.name for path in by_time] == ["step=5.npz", "step=40.npz", "step=300.npz"]
    assert checkpoints.parent.stat().st_mtime == by_time[-1].stat().st_mtime
    verified = Snapshotter(home, KEYS, 2, tmp_path / "r", quiet=0, verified=manifest)
    assert verified.publish() is None  # the same lies there, so there is no news
    assert verified.bytes_uploaded == 0


def test_a_manifest_with_whole_directories_still_restores(home: Home, folder: Path, tmp_path: Path) -> None:
    """As written before there were containers."""
    make(folder, "version_0/checkpoints/step=5", "version_0/metrics.csv", "last")
    manifest = Snapshotter(home, KEYS, 1, folder, quiet=0).publish()
    assert manifest is not None
    restore(home, KEYS, replace(manifest, entries={"last": "quiet", "version_0": "quiet"}), tmp_path / "r")
    assert tree(tmp_path / "r") == tree(folder)
    older = replace(manifest, entries={"last": "quiet", "version_0": "quiet"})
    snapshotter = Snapshotter(home, KEYS, 2, tmp_path / "r", quiet=0, verified=older)
    assert snapshotter.publish() is None
    (tmp_path / "r" / "version_0" / "metrics.csv").unlink()
    make(tmp_path / "r", "version_0/checkpoints/step=6")
    second = snapshotter.publish()
    assert second is not None
    assert second.entries["version_0/metrics.csv"] == "carried"
    assert second.entries["version_0/checkpoints/step=6"] == "quiet"
    assert "version_0" not in second.entries


def test_a_leaf_that_becomes_a_container_loses_nothing(home: Home, folder: Path, tmp_path: Path) -> None:
    make(folder, "run/config", "run/notes/a", "run/gone/b")
    snapshotter = Snapshotter(home, KEYS, 1, folder, quiet=0)
    first = snapshotter.publish()
    assert first is not None
    assert first.entries == {"run": "quiet"}
    snapshotter = Snapshotter(home, KEYS, 2, folder, quiet=60, verified=first)  # nothing but the new one is complete
    save(folder / "run" / "step-5.npz")
    shutil.rmtree(folder / "run" / "gone")
    (folder / "run" / "config").write_bytes(b"half")
    second = snapshotter.publish()
    assert second is not None
    assert second.entries["run/step-5.npz"] == "zip"
    assert {name for name, how in second.entries.items() if how == "carried"} == {"run/config", "run/notes", "run/gone"}
    restore(home, KEYS, second, tmp_path / "r")
    assert (tmp_path / "r" / "run" / "config").read_bytes() == b"run/config"
    assert (tmp_path / "r" / "run" / "gone" / "b").exists()
    assert (tmp_path / "r" / "run" / "step-5.npz").exists()


def test_a_container_that_becomes_a_leaf_loses_nothing(home: Home, folder: Path, tmp_path: Path) -> None:
    save(folder / "run" / "step-5.npz", 5)
    make(folder, "run/config")
    first = Snapshotter(home, KEYS, 1, folder, quiet=0).publish()
    assert first is not None
    assert first.entries == {"run/config": "quiet", "run/step-5.npz": "zip"}
    (folder / "run" / "step-5.npz").rename(folder / "run" / "weights.npz")
    save(folder / "other.npz")
    snapshotter = Snapshotter(home, KEYS, 2, folder, quiet=60, verified=first)
    second = snapshotter.publish()
    assert second is not None
    assert second.entries == {"other.npz": "zip", "run": "carried"}
    restore(home, KEYS, second, tmp_path / "r")
    assert sorted(path.name for path in (tmp_path / "r" / "run").iterdir()) == ["config", "step-5.npz"]


def test_a_container_stays_one_between_two_saves(home: Home, folder: Path) -> None:
    """Its only checkpoint is removed before the next is written."""
    make(folder, "run/config", "run/step-5")
    snapshotter = Snapshotter(home, KEYS, 1, folder, quiet=0)
    assert snapshotter.publish() is not None
    (folder / "run" / "step-5").unlink()
    scan = snapshotter.scan()
    assert set(scan.complete) == {"run/config"}
    assert snapshotter.publish(scan) is None
    make(folder, "run/step-6")
    third = snapshotter.publish()
    assert third is not None
    assert set(third.entries) == {"run/config", "run/step-6"}


def test_a_container_that_was_replaced_is_not_carried(home: Home, folder: Path) -> None:
    """Entry by entry, as at the top: with a successor of its kind it is gone for good, without one it may come back."""
    save(folder / "version_0" / "step=5.npz", 5)
    make(folder, "version_0/notes")
    snapshotter = Snapshotter(home, KEYS, 1, folder, quiet=0)
    assert snapshotter.publish() is not None
    shutil.rmtree(folder / "version_0")
    save(folder / "version_1" / "step=6.npz", 6)
    second = snapshotter.publish()
    assert second is not None
    assert second.entries == {"version_0/notes": "carried", "version_1/step=6.npz": "zip"}
    assert set(second.folders) == {"version_0", "version_1"}


def change_to_file(folder: Path) -> None:
    shutil.rmtree(folder / "run")
    save(folder / "run.npz")
    (folder / "run.npz").rename(folder / "run")


def change_to_one(folder: Path) -> None:
    save(folder / "run" / "x.npz")
    (folder / "run" / "trainer_state.json").write_text('{"global_step": 9}')


@pytest.mark.parametrize("change", [change_to_file, change_to_one, lambda folder: shutil.rmtree(folder / "run")])
def test_whatever_becomes_of_a_container_the_next_snapshot_restores(
    home: Home, folder: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    save(folder / "run" / "a" / "step-5.npz", 5)
    snapshotter = Snapshotter(home, KEYS, 1, folder, quiet=0)
    assert snapshotter.publish() is not None
    change(folder)
    save(folder / "other.npz")
    second = snapshotter.publish()
    assert second is not None
    restore(home, KEYS, second, tmp_path / "r")
    assert (tmp_path / "r" / "run").exists()
    assert {entry_of(path, containers_of(second.entries)) for path in second.files} == set(second.entries)


def test_a_file_that_becomes_a_container(home: Home, folder: Path, tmp_path: Path) -> None:
    make(folder, "run")
    snapshotter = Snapshotter(home, KEYS, 1, folder, quiet=0)
    assert snapshotter.publish() is not None
    (folder / "run").unlink()
    make(folder, "run/step-5")
    second = snapshotter.publish()
    assert second is not None
    assert set(second.entries) == {"run/step-5"}
    restore(home, KEYS, second, tmp_path / "r")
    assert tree(tmp_path / "r") == tree(folder)
