"""What counts as a complete checkpoint, on real files."""

from __future__ import annotations

import io
import itertools
import json
import os
import struct
import subprocess
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save as safetensors_bytes

from broker.complete import Judge, link_stays_inside
from broker.entries import newest_step, step_of, unfinished
from broker.formats import inspect
from broker.writers import open_for_writing

WEIGHTS = safetensors_bytes({"w": np.arange(64, dtype=np.float32), "b": np.ones(3, dtype=np.float64)})


class Clock:
    """Monotonic time that moves only when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def torch_zip() -> bytes:
    """The layout that torch.save writes: an uncompressed zip with `archive/data.pkl` and one member per storage."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
        archive.writestr("archive/data/0", os.urandom(4000))
    return buffer.getvalue()


def trainer(folder: Path, step: int, **changes: bytes | None) -> Path:
    """A Hugging Face Trainer's checkpoint. changes: file name with `__` for the dot -> content, None for no file."""
    files: dict[str, bytes | None] = {
        "config__json": b"{}",
        "model__safetensors": WEIGHTS,
        "optimizer__pt": torch_zip(),
        "rng_state__pth": torch_zip(),
        "trainer_state__json": json.dumps({"global_step": step}).encode(),
        **changes,
    }
    place = folder / f"checkpoint-{step}"
    place.mkdir()
    for name, content in files.items():
        if content is not None:
            (place / name.replace("__", ".")).write_bytes(content)
    return place


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-1000", 1000),
        ("epoch=9-step=950.ckpt", 950),
        ("step_0000200", 200),
        ("global_step77", 77),
        ("iter_0000100", 100),
        ("ckpt-5.npz", 5),
        ("model_500.pt", 500),
        ("1200", 1200),
        ("checkpoint-best", None),
        ("model-00001-of-00003.safetensors", None),
        ("last.ckpt", None),
        ("v2-final", None),
    ],
)
def test_a_name_carries_its_step(name: str, step: int | None) -> None:
    assert step_of(name) == step


def test_the_newest_step_goes_by_number_not_by_text_or_time() -> None:
    names = ["checkpoint-200", "checkpoint-1000", "checkpoint-900", "checkpoint-best", "epoch=9-step=950.ckpt"]
    assert {newest_step(order) for order in itertools.permutations(names)} == {1000}
    assert newest_step(["checkpoint-best"]) is None


@pytest.mark.parametrize(
    "name",
    [
        "tmp-checkpoint-1100",
        "a.tmp",
        "a.part",
        "a.incomplete",
        ".~lock",
        "new_tmp",
        ".hidden",
        "s.orbax-checkpoint-tmp-7",
    ],
)
def test_names_that_say_unfinished_are_never_taken(tmp_path: Path, name: str) -> None:
    assert unfinished(name)
    (tmp_path / name).write_bytes(WEIGHTS)
    scan = Judge(tmp_path, quiet=0).look(ended=True)
    assert not scan.complete
    assert scan.skipped == {name: "its name says it is not finished"}


def test_a_trainers_checkpoint_is_complete_at_once(tmp_path: Path) -> None:
    trainer(tmp_path, 1000)
    assert Judge(tmp_path).look().how == {"checkpoint-1000": "hf"}


def test_half_made_trainer_checkpoints_are_named(tmp_path: Path) -> None:
    trainer(tmp_path, 1000)
    trainer(tmp_path, 1200, optimizer__pt=b"", trainer_state__json=None)
    (tmp_path / "checkpoint-1300").mkdir()
    (tmp_path / "checkpoint-1300" / "trainer_state.json").write_text('{"global_st')
    for ended in (False, True):
        scan = Judge(tmp_path, quiet=0).look(ended=ended)
        assert scan.how == {"checkpoint-1000": "hf"}
        assert "optimizer.pt is empty" in scan.skipped["checkpoint-1200"]
        assert "trainer_state.json is cut" in scan.skipped["checkpoint-1300"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"trainer_state__json": None}, "trainer_state.json is missing"),
        ({"trainer_state__json": b""}, "trainer_state.json is cut"),
        ({"trainer_state__json": b"{}"}, "no global_step"),
        ({"trainer_state__json": b'{"global_step": "9"}'}, "no global_step"),
        ({"trainer_state__json": b"\xff\xfe"}, "trainer_state.json is cut"),
        ({"model__safetensors": None}, "no model weights"),
        ({"model__safetensors": WEIGHTS[:-1]}, "model.safetensors is cut"),
        ({"model__safetensors": None, "pytorch_model__bin": b""}, "pytorch_model.bin is empty"),
        ({"model__safetensors": None, "pytorch_model__bin": bytes(9000)}, "pytorch_model.bin holds zeros"),
        ({"optimizer__pt": bytes(9000)}, "optimizer.pt holds zeros where it begins"),
        ({"optimizer__pt": torch_zip()[:-10]}, "optimizer.pt is cut"),
        (
            {"model__safetensors__index__json": b'{"weight_map": {"w": "model-00002-of-00002.safetensors"}}'},
            "model-00002-of-00002.safetensors is missing",
        ),
    ],
)
def test_each_thing_a_resume_needs_is_checked(tmp_path: Path, changes: dict[str, bytes | None], why: str) -> None:
    trainer(tmp_path, 7, **changes)
    scan = Judge(tmp_path, quiet=0).look(ended=True)
    assert not scan.complete
    assert why in scan.skipped["checkpoint-7"]


def test_model_weights_alone_are_incomplete_beside_a_trainers_checkpoint(tmp_path: Path) -> None:
    trainer(tmp_path, 1000)
    trainer(tmp_path, 1100, optimizer__pt=None, rng_state__pth=None, trainer_state__json=None)
    assert "trainer_state.json is missing" in Judge(tmp_path, quiet=0).look().skipped["checkpoint-1100"]


def test_other_programs_name_directories_like_a_trainer(tmp_path: Path) -> None:
    place = tmp_path / "checkpoint-500"  # accelerate's save_state, as diffusers' scripts call it
    place.mkdir()
    (place / "model.safetensors").write_bytes(WEIGHTS)
    (place / "optimizer.bin").write_bytes(torch_zip())
    (place / "random_states_0.pkl").write_bytes(b"x")
    assert Judge(tmp_path, quiet=0).look().how == {"checkpoint-500": "quiet"}


def test_a_torch_file_is_complete_at_once_and_cut_ones_are_not(tmp_path: Path) -> None:
    whole = torch_zip()
    (tmp_path / "whole.pt").write_bytes(whole)
    (tmp_path / "named-otherwise.weights").write_bytes(whole)
    (tmp_path / "cut.pt").write_bytes(whole[:-30])
    (tmp_path / "begun.ckpt").write_bytes(b"")
    np.savez(tmp_path / "arrays.npz", a=np.zeros(5))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "arrays.npz").read_bytes()[:-5])
    (tmp_path / "zeros.npz").write_bytes(bytes(100))
    scan = Judge(tmp_path, quiet=0).look(ended=True)
    assert scan.how == {"whole.pt": "torch", "named-otherwise.weights": "torch", "arrays.npz": "zip"}
    assert set(scan.skipped) == {"cut.pt", "begun.ckpt", "cut.npz", "zeros.npz"}


@given(keep=st.integers(0, len(WEIGHTS) - 1))
def test_safetensors_cut_anywhere_are_found(tmp_path_factory: pytest.TempPathFactory, keep: int) -> None:
    path = tmp_path_factory.getbasetemp() / "cut.safetensors"
    path.write_bytes(WEIGHTS[:keep])
    assert inspect(path, keep).fault


def test_a_safetensors_file_is_complete_by_its_header(tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(WEIGHTS)
    (tmp_path / "longer.safetensors").write_bytes(WEIGHTS + b"\0")
    (tmp_path / "no-json.safetensors").write_bytes(struct.pack("<Q", 4) + b"]]]]")
    scan = Judge(tmp_path).look()
    assert scan.how == {"m.safetensors": "safetensors"}
    assert set(scan.skipped) == {"longer.safetensors", "no-json.safetensors"}


def test_large_files_are_judged_without_reading_them(tmp_path: Path) -> None:
    size = 1 << 40
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    path = tmp_path / "huge.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + size)
    begun = time.monotonic()
    assert Judge(tmp_path).look().how == {"huge.safetensors": "safetensors"}
    assert time.monotonic() - begun < 5


def test_quiescence_counts_monotonic_seconds_since_first_seen_so(tmp_path: Path) -> None:
    path = tmp_path / "state.pkl"
    path.write_bytes(b"1")
    os.utime(path, (1, 1))  # an old file, copied in a moment ago: its time says nothing
    clock = Clock()
    judge = Judge(tmp_path, quiet=5, clock=clock)
    assert not judge.look().complete
    clock.now += 4.9
    assert "5 s without change" in judge.look().skipped["state.pkl"]
    path.write_bytes(b"2")
    clock.now += 4.9
    assert not judge.look().complete
    clock.now += 5
    assert judge.look().how == {"state.pkl": "quiet"}


def test_a_program_that_has_ended_needs_no_quiet_time(tmp_path: Path) -> None:
    (tmp_path / "state.pkl").write_bytes(b"1")
    assert Judge(tmp_path, quiet=60).look(ended=True).how == {"state.pkl": "quiet"}


@pytest.mark.parametrize("directory", [False, True])
def test_what_lay_there_under_a_temporary_name_is_complete_when_renamed(tmp_path: Path, directory: bool) -> None:
    judge = Judge(tmp_path, quiet=60)
    temporary = tmp_path / "state.tmp"
    if directory:
        temporary.mkdir()
    (temporary / "state.pkl" if directory else temporary).write_bytes(b"half")
    assert not judge.look().complete
    temporary.rename(tmp_path / "state")
    assert judge.look().how == {"state": "renamed"}
    (tmp_path / "state" / "state.pkl" if directory else tmp_path / "state").write_bytes(b"written again")
    assert not judge.look().complete


def test_a_file_put_over_its_predecessor_by_rename_is_complete(tmp_path: Path) -> None:
    judge = Judge(tmp_path, quiet=60)
    path, elsewhere = tmp_path / "state.pkl", tmp_path.parent / f"{tmp_path.name}-new"
    path.write_bytes(b"one")
    judge.look()
    elsewhere.write_bytes(b"two")
    while elsewhere.stat().st_ctime_ns >= time.time_ns() - 50_000_000:
        os.sched_yield()  # the rename must fall into a later tick of the file system's clock
    elsewhere.replace(path)
    assert judge.look().how == {"state.pkl": "renamed"}


def test_a_new_file_under_a_known_name_is_not_taken_for_a_rename(tmp_path: Path) -> None:
    judge = Judge(tmp_path, quiet=60)
    path = tmp_path / "state.pkl"
    path.write_bytes(b"one")
    judge.look()
    path.rename(tmp_path.parent / f"{tmp_path.name}-old")  # so that its inode is not given to the next file
    with path.open("wb") as file:
        file.write(b"tw")
        file.flush()
        assert not judge.look().complete
    assert not judge.look().complete


def test_saves_that_follow_faster_than_quiet_are_seen_while_the_program_runs(tmp_path: Path) -> None:
    """Each under a new name, written and renamed within one tick of the clock: only that it is closed tells."""
    judge = Judge(tmp_path, quiet=60)
    for number in range(20):
        fresh = tmp_path / "t.tmp"
        fresh.write_bytes(b"x")
        fresh.rename(tmp_path / f"ck{number}")
        assert f"ck{number}" in judge.look(steady=lambda: True).complete
        (tmp_path / f"ck{number}").unlink()


def test_what_is_closed_counts_only_while_the_program_runs_undisturbed(tmp_path: Path) -> None:
    """A program that dies closes its files too, whole or cut."""
    judge = Judge(tmp_path, quiet=60)
    with (tmp_path / "state").open("wb") as file:
        file.write(b"half")
        file.flush()
        assert not judge.look(steady=lambda: True).complete
    assert not judge.look(steady=lambda: False).complete
    assert not judge.look().complete
    assert judge.look(steady=lambda: True).how == {"state": "closed"}


def test_directories_are_never_taken_for_closed(tmp_path: Path) -> None:
    """More files may follow."""
    (tmp_path / "epoch").mkdir()
    (tmp_path / "epoch" / "one").write_bytes(b"1")
    assert not Judge(tmp_path, quiet=60).look(steady=lambda: True).complete


def test_writers_of_other_processes_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"1")
    assert open_for_writing(path) is False
    with path.open("rb"):
        assert open_for_writing(path) is False
    command = ["sh", "-c", 'exec 3>>"$1"; echo ready; read -r _', "sh", str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert open_for_writing(path) is True
        process.communicate(b"\n")
    assert open_for_writing(path) is False


def test_the_tasks_marker_decides(tmp_path: Path) -> None:
    place = tmp_path / "epoch-3"
    place.mkdir()
    (place / "weights").write_bytes(b"1234")
    judge = Judge(tmp_path, marker="DONE", quiet=60)
    assert judge.look(ended=True).skipped["epoch-3"] == "holds no DONE yet"
    (place / "DONE").touch()
    assert judge.look().how == {"epoch-3": "marker"}


def test_a_marker_older_than_the_weights_waits_for_quiet(tmp_path: Path) -> None:
    place = tmp_path / "last"
    place.mkdir()
    (place / "DONE").touch()
    os.utime(place / "DONE", (1000, 1000))
    (place / "weights").write_bytes(b"being written over")
    clock = Clock()
    judge = Judge(tmp_path, marker="DONE", quiet=5, clock=clock)
    assert "newer than its DONE" in judge.look().skipped["last"]
    clock.now += 5
    assert judge.look().how == {"last": "marker"}


def test_temporary_members_are_left_out_and_named(tmp_path: Path) -> None:
    place = tmp_path / "run"
    place.mkdir()
    (place / "a").write_bytes(b"1")
    (place / "b.tmp").write_bytes(b"2")
    (place / ".zarray").write_bytes(b"3")
    os.mkfifo(place / "pipe")
    scan = Judge(tmp_path, quiet=0).look()
    assert set(scan.complete["run"].files) == {"run/a", "run/.zarray"}
    assert set(scan.skipped) == {"run/b.tmp", "run/pipe"}


def test_a_link_to_what_is_not_complete_waits_for_it(tmp_path: Path) -> None:
    trainer(tmp_path, 100)
    trainer(tmp_path, 200, trainer_state__json=None)
    (tmp_path / "latest").symlink_to("checkpoint-200")
    (tmp_path / "best").symlink_to("checkpoint-100/")
    scan = Judge(tmp_path, quiet=0).look()
    assert set(scan.complete) == {"checkpoint-100", "best"}
    assert scan.skipped["latest"] == "leads to checkpoint-200, which is not complete"


@pytest.mark.parametrize(
    ("name", "pointer", "text"),
    [
        ("global_step{}", "latest", "global_step{}"),  # DeepSpeed
        ("global_step{}", "latest", "/mnt/ckpt/global_step{}/\n"),
        ("iter_{:07d}", "latest_checkpointed_iteration.txt", "{}\n"),  # Megatron-LM
        ("ckpt-{}", "checkpoint", 'model_checkpoint_path: "ckpt-{}"\nall_model_checkpoint_paths: "ckpt-100"\n'),
    ],
)
def test_a_small_file_that_names_what_is_not_complete_waits_for_it(
    tmp_path: Path, name: str, pointer: str, text: str
) -> None:
    """It is closed at once, and what it names has still to lie quiet: alone, a program would begin anew by it."""
    clock = Clock()
    judge = Judge(tmp_path, quiet=5.0, clock=clock)
    for step in (100, 200):
        place = tmp_path / name.format(step)
        place.mkdir()
        (place / "model_states.pt").write_bytes(torch_zip())
        (tmp_path / pointer).write_text(text.format(step))
        (tmp_path / "notes.txt").write_text("loss 0.3")
        scan = judge.look(steady=lambda: True)
        assert scan.skipped[pointer] == f"names {place.name}, which is not complete"
        assert "notes.txt" in scan.complete
        clock.now += 6
        assert {place.name, pointer} <= judge.look(steady=lambda: True).complete.keys()


def test_files_of_one_checkpoint_by_its_name_without_an_ending(tmp_path: Path) -> None:
    (tmp_path / "ckpt-9.pt").write_bytes(torch_zip()[:200])
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "ckpt-9"')
    scan = Judge(tmp_path, quiet=0).look(ended=True)
    assert scan.skipped["checkpoint"] == "names ckpt-9.pt, which is not complete"


def test_a_missing_folder_is_an_empty_one(tmp_path: Path) -> None:
    assert not Judge(tmp_path / "none").look().complete


@pytest.mark.parametrize(
    ("path", "target", "inside"),
    [
        ("d/l", "f", True),
        ("d/l", "../other/f", True),
        ("l", "d", True),
        ("d/l", "../../x", False),
        ("l", "../x", False),
        ("l", "/etc/passwd", False),
        ("l", "d/../../x", False),
    ],
)
def test_links_that_lead_outside_are_seen(path: str, target: str, inside: bool) -> None:
    assert link_stays_inside(path, target) is inside
