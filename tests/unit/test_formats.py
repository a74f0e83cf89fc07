"""Checkpoints of torch.distributed, Lightning and Orbax, written here by hand after what the libraries write."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from broker.complete import Judge
from broker.entries import newest_step, step_of


def torch_zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
        archive.writestr("archive/data/0", os.urandom(4000))
    return buffer.getvalue()


def at(path: Path, second: int) -> None:
    os.utime(path, (1000 + second, 1000 + second))


def dcp(place: Path, *, ranks: int = 2, files: int = 1) -> Path:
    """As torch.distributed.checkpoint.save with 2.13.0: every rank its shards, then rank 0 the metadata.

    There `.metadata` pickles a Metadata whose storage_data maps to _StorageInfo(relative_path, offset, length).
    """
    place.mkdir(parents=True, exist_ok=True)
    names = [f"__{rank}_{number}.distcp" for rank in range(ranks) for number in range(files)]
    for name in names:
        (place / name).write_bytes(torch_zip())
        at(place / name, 1)
    (place / ".metadata").write_bytes(pickle.dumps({f"w{n}": (name, 0, 1705) for n, name in enumerate(names)}))
    at(place / ".metadata", 2)
    return place


def orbax(place: Path, **changes: str | None) -> Path:
    """As ocp.CheckpointManager.save: `changes` replaces files by name, None removes."""
    files: dict[str, str | None] = {
        "_CHECKPOINT_METADATA": json.dumps({"item_handlers": {}, "commit_timestamp_nsecs": 1}),
        "params/_METADATA": "{}",
        "params/manifest.ocdbt": "x",
        "params/_sharding": "{}",
        "params/d/0a1b": "x",
        "params/ocdbt.process_0/d/2c": "x",
        **changes,
    }
    for name, content in files.items():
        if content is not None:
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(content)
    return place


def look(folder: Path, **options: bool) -> tuple[dict[str, str], dict[str, str]]:
    scan = Judge(folder, quiet=60).look(**options)
    return dict(scan.how), dict(scan.skipped)


def test_a_sharded_checkpoint_is_complete_at_once(tmp_path: Path) -> None:
    dcp(tmp_path / "step-100", ranks=4, files=2)
    scan = Judge(tmp_path, quiet=60).look()
    assert scan.how == {"step-100": "dcp"}
    assert "step-100/.metadata" in scan.complete["step-100"].files
    assert not scan.skipped
    assert newest_step(scan.how) == 100


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        ("rm .metadata", "step-1/.metadata is missing: the shards are not all written"),
        ("mv .metadata .metadata.tmp", "step-1/.metadata is missing"),
        ("rm __1_0.distcp", "step-1/__1_0.distcp is missing"),
        (": > __0_0.distcp", "step-1/__0_0.distcp is empty"),
    ],
)
@pytest.mark.parametrize("ended", [False, True])
def test_what_cannot_be_loaded_is_never_taken(tmp_path: Path, harm: str, why: str, ended: bool) -> None:
    dcp(tmp_path / "step-1")
    os.system(f"cd {tmp_path}/step-1 && {harm}")
    how, skipped = look(tmp_path, ended=ended)
    assert not how
    assert why in skipped["step-1"]


def test_shards_newer_than_the_metadata_wait(tmp_path: Path) -> None:
    """The directory is being written over: its metadata is the last save's."""
    at(dcp(tmp_path / "latest") / "__1_0.distcp", 5)
    how, skipped = look(tmp_path)
    assert not how
    assert "changed 0 s ago" in skipped["latest"]
    assert look(tmp_path, ended=True)[0] == {"latest": "dcp"}


def test_a_folder_that_is_itself_the_checkpoint_goes_as_one(tmp_path: Path) -> None:
    dcp(tmp_path)
    assert look(tmp_path) == ({".metadata": "dcp", "__0_0.distcp": "dcp", "__1_0.distcp": "dcp"}, {})
    at(tmp_path / "__0_0.distcp", 9)
    how, skipped = look(tmp_path)
    assert not how
    assert set(skipped) == {".metadata", "__0_0.distcp", "__1_0.distcp"}
    (tmp_path / ".metadata").unlink()
    assert look(tmp_path, ended=True)[0] == {}


def test_shards_deeper_down_are_checked_and_the_rest_waited_for(tmp_path: Path) -> None:
    """accelerate and the Trainer put them below, and write more beside them afterwards."""
    dcp(tmp_path / "checkpoint_3" / "pytorch_model_fsdp_0")
    assert "changed 0 s ago" in look(tmp_path)[1]["checkpoint_3"]
    assert look(tmp_path, ended=True)[0] == {"checkpoint_3": "quiet"}
    (tmp_path / "checkpoint_3" / "pytorch_model_fsdp_0" / ".metadata").unlink()
    assert "fsdp_0/.metadata is missing" in look(tmp_path, ended=True)[1]["checkpoint_3"]
    (tmp_path / "checkpoint_3" / "trainer_state.json").write_text('{"global_step": 3}')
    assert "fsdp_0/.metadata is missing" in look(tmp_path, ended=True)[1]["checkpoint_3"]


def test_lightnings_sharded_checkpoint_ends_with_its_own_file(tmp_path: Path) -> None:
    place = dcp(tmp_path / "epoch=1-step=20.ckpt")
    assert "changed 0 s ago" in look(tmp_path)[1][place.name]
    (place / "meta.pt").write_bytes(torch_zip())
    assert look(tmp_path)[0] == {place.name: "dcp"}


def test_lightnings_files(tmp_path: Path) -> None:
    for name in ("epoch=2-step=30.ckpt", "epoch=2-step=30-v1.ckpt", "last.ckpt", "last-v1.ckpt"):
        (tmp_path / name).write_bytes(torch_zip())
    (tmp_path / "epoch=3-step=40.ckpt").write_bytes(torch_zip()[:-20])
    how, skipped = look(tmp_path)
    assert set(how.values()) == {"torch"}
    assert len(how) == 4
    assert set(skipped) == {"epoch=3-step=40.ckpt"}
    assert [step_of(name) for name in ("epoch=2-step=30-v1.ckpt", "last-v1.ckpt")] == [30, None]


def test_lightnings_last_as_a_link(tmp_path: Path) -> None:
    """ModelCheckpoint(save_last="link"): it goes with what it leads to, and waits while that is not whole."""
    (tmp_path / "epoch=2-step=30.ckpt").write_bytes(torch_zip())
    (tmp_path / "last.ckpt").symlink_to("epoch=2-step=30.ckpt")
    scan = Judge(tmp_path, quiet=0).look()
    assert set(scan.how) == {"epoch=2-step=30.ckpt", "last.ckpt"}
    assert scan.complete["last.ckpt"].links == {"last.ckpt": "epoch=2-step=30.ckpt"}
    (tmp_path / "epoch=2-step=30.ckpt").write_bytes(torch_zip()[:-20])
    assert set(Judge(tmp_path, quiet=0).look().skipped) == {"epoch=2-step=30.ckpt", "last.ckpt"}


def test_orbax_is_complete_once_it_was_renamed(tmp_path: Path) -> None:
    judge = Judge(tmp_path, quiet=60)
    place = orbax(tmp_path / "100.orbax-checkpoint-tmp-1733000000")
    assert not judge.look().complete
    place.rename(tmp_path / "100")
    orbax(tmp_path / "200")
    scan = judge.look()
    assert scan.how == {"100": "orbax", "200": "orbax"}
    assert newest_step(scan.how) == 200
    (tmp_path / "300").mkdir()
    (tmp_path / "300" / "orbax.checkpoint").touch()  # its version 1
    (tmp_path / "300" / "pytree").write_text("x")
    assert judge.look().how["300"] == "orbax"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"_CHECKPOINT_METADATA": '{"commit_timestamp_nsecs": null}'}, "says that it is not committed"),
        ({"_CHECKPOINT_METADATA": '{"commit_ti'}, "_CHECKPOINT_METADATA is cut"),
        ({"_CHECKPOINT_METADATA": ""}, "is empty"),
        ({"params/manifest.ocdbt": ""}, "manifest.ocdbt is empty"),
        ({"opt.orbax-checkpoint-tmp-7/d/0": "x"}, "opt.orbax-checkpoint-tmp-7 is not finished"),
    ],
)
def test_orbax_that_was_not_committed_is_not_taken(tmp_path: Path, changes: dict[str, str], why: str) -> None:
    orbax(tmp_path / "7", **changes)
    how, skipped = look(tmp_path, ended=True)
    assert not how
    assert why in skipped["7"]


def test_what_is_known_of_a_directory_is_not_read_again(tmp_path: Path) -> None:
    """Each read of a restored file would pass for the program's."""
    trainer = tmp_path / "checkpoint-3"
    trainer.mkdir()
    (trainer / "model.safetensors.index.json").write_text('{"weight_map": {"w": "a.safetensors"}}')
    (trainer / "a.bin").write_bytes(b"w")
    (trainer / "a.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    (trainer / "trainer_state.json").write_text('{"global_step": 3}')
    orbax(tmp_path / "7")
    dcp(tmp_path / "step-9")
    judge = Judge(tmp_path, quiet=0)
    assert set(judge.look().how.values()) == {"hf", "orbax", "dcp"}
    if sys.platform != "linux":
        pytest.skip("needs inotify")
    from broker.guest.opened import Opened

    opened = Opened(tmp_path, [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()])
    judge.look()
    opened.end()
    assert (opened.read, opened.why) == (0, "")
    shutil.rmtree(trainer)
    assert "checkpoint-3" not in judge.look().how
