"""What a task may name as its cache folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.errors import TaskError
from broker.task import Task

FILE = """\
run: python train.py
envs: {{WHERE: ~/models}}
checkpoint: {{path: ckpt/x}}
cache:
  - ~/.cache/huggingface
  - {name}
"""


def read(tmp_path: Path, name: str) -> Task:
    path = tmp_path / "task.yaml"
    path.write_text(FILE.format(name=name))
    return Task.from_yaml(path)


@pytest.mark.parametrize("name", ["~/.cache/uv", "/workspace/hf", "data/raw", "ckpt-data", "~/.cache/huggingface-2"])
def test_folders_of_any_place(tmp_path: Path, name: str) -> None:
    task = read(tmp_path, name)
    assert task.cache == ("~/.cache/huggingface", name)
    assert Task.from_json(task.to_json()) == task
    (tmp_path / "again.yaml").write_text(task.to_yaml())
    assert Task.from_yaml(tmp_path / "again.yaml").cache == task.cache


def test_one_folder_needs_no_list_and_envs_are_filled_in(tmp_path: Path) -> None:
    assert read(tmp_path, "${WHERE}").cache[1] == "~/models"
    (tmp_path / "one.yaml").write_text("run: x\ncheckpoint: {path: c}\ncache: ~/.cache/uv\n")
    assert Task.from_yaml(tmp_path / "one.yaml").cache == ("~/.cache/uv",)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("/", "/ is too much: all that a program writes would be kept"),
        ("~/", "~/ is too much"),
        ("/root", "/root is too much"),
        (".", "must be a folder, without .., not '.'"),
        ("~/a/../..", "must be a folder, without .."),
        ("~other/x", "must be a folder below ~/"),
        ("''", "must be a folder"),
        ("/proc/x", "/proc/x is the system's own"),
        ("/var/lib/spotbroker/work", "/var/lib/spotbroker is the broker's own folder"),
        ("$BROKER_CHECKPOINT_DIR/x", "$BROKER_CHECKPOINT_DIR/x is the broker's own folder"),
        ("$HF_HOME", "$HF_HOME is filled in only as ${NAME} of the task's envs"),
        ("ckpt/x/", "ckpt/x/ is the checkpoint's folder ckpt/x"),
        ("ckpt", "ckpt holds the checkpoint's folder ckpt/x"),
        ("ckpt/x/y", "ckpt/x/y lies in the checkpoint's folder ckpt/x"),
        ("/root/.cache/huggingface/", "/root/.cache/huggingface/ is given twice"),
        ("~/.cache/huggingface/hub", "~/.cache/huggingface/hub lies in ~/.cache/huggingface, which is kept too"),
        ("~/.cache", "~/.cache/huggingface lies in ~/.cache, which is kept too"),
    ],
)
def test_what_cannot_be_a_cache_is_refused_by_line(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(TaskError) as refused:
        read(tmp_path, name)
    assert str(refused.value).startswith(f"{tmp_path}/task.yaml:6:5: cache.1: {why}")
    assert refused.value.fix
