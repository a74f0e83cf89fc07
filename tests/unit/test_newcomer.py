"""What people write the first time: each slip gets one message, with the words to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.errors import TaskError
from broker.task import load
from broker.workdir import mark_outputs, measure

GOOD = "run: echo hi\nspot: never\n"


def refused(folder: Path, text: str, name: str = "task.yaml") -> TaskError:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TaskError) as caught:
        load(path)
    return caught.value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("command: echo hi\nspot: never\n", "command: unknown field; did you mean run?"),
        ("cmd: echo hi\nspot: never\n", "did you mean run?"),
        ("script: echo hi\nspot: never\n", "did you mean run?"),
        (f"{GOOD}gpu: A100\n", "write `resources: {accelerators: A100:1}`"),
        (f"{GOOD}gpus: 1\n", "write `resources: {accelerators: A100:1}`"),
        ("run: echo hi\nspot: yes\n", "must be 'auto', 'only' or 'never', not 'yes'"),
        ("run: echo hi\ncheckpoint: ckpt/last\n", "checkpoint: write `checkpoint: {path: ckpt/last}`"),
        ("run: echo hi\ncheckpoint: 'a: b'\n", "checkpoint: write `checkpoint: {path: FOLDER}`"),
    ],
)
def test_a_slip_is_answered_by_what_to_write(tmp_path: Path, text: str, words: str) -> None:
    assert words in refused(tmp_path, text).message


def test_one_slip_is_one_message(tmp_path: Path) -> None:
    assert "\n" not in refused(tmp_path, "run: echo hi\ncheckpoint: ckpt\n").message


def test_a_tab_is_named(tmp_path: Path) -> None:
    error = refused(tmp_path, "run: echo hi\nresources:\n\tcpus: 1\n")
    assert (error.line, error.fix) == (3, "indent with spaces: YAML takes no tabs")
    assert "tabs" not in refused(tmp_path, "run: [\n").fix


def test_a_program_is_no_task_file(tmp_path: Path) -> None:
    error = refused(tmp_path, "print('hi')\n", "train.py")
    assert "is a program" in error.message
    assert f"broker run -- python {tmp_path}/train.py" in error.fix


@pytest.mark.parametrize(
    ("script", "named"),
    [
        ("python train.py --lr 0.1", "train.py"),
        ("cd /tmp; bash ./go.sh", "./go.sh"),
        ("python src/a.py", "src/a.py"),
        ("python /opt/train.py", None),
        ("python ~/train.py", None),
        ("python other.py", None),
        ("python $HERE/train.py", None),
    ],
)
def test_a_file_left_behind_is_told(tmp_path: Path, script: str, named: str | None) -> None:
    for name in ("train.py", "go.sh", "src/a.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    path = tmp_path / "task.yaml"
    path.write_text(f"run: {script}\nspot: never\n", encoding="utf-8")
    told = [text for text in load(path).warnings if "workdir" in text]
    assert (told == []) == (named is None)
    assert named is None or told[0].startswith(f"run names {named}, which lies beside the task file")
    path.write_text(f"run: {script}\nspot: never\nworkdir: .\n", encoding="utf-8")
    assert load(path).warnings == ()


def test_what_was_pulled_does_not_travel(tmp_path: Path) -> None:
    for name in ("train.py", "train-1a2b3c/model.bin", "data/a"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"12")
    assert measure(tmp_path).files == 3
    mark_outputs(tmp_path / "train-1a2b3c")
    assert measure(tmp_path).files == 2
    assert measure(tmp_path / "train-1a2b3c").files == 2, "asked for by name it is taken"
