"""Programs of other people's shape, which know nothing of us, and the right verdict for each of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cli.command import Cli

HERE = Path(__file__).parent / "foreign"

GOOD = [
    # name, whose notice, how it is seen to have gone on
    ("hf", "aws", "by the Trainer's log"),
    ("lightning", "vast", "by Lightning's bar"),
    ("torchrun", "aws", "by the log"),
    ("bash", "vast", "by the log"),
    ("perl", "vast", "it read 1 of 1 restored files, primes first"),
    ("binary", "vast", "its first new checkpoint was of step"),
    ("nohup", "vast", "its first new checkpoint was of step"),
    ("tqdm", "gcp", "by a tqdm bar"),
    ("inplace", "vast", "by the log"),
    ("accelerate", "vast", "by a tqdm bar"),
]
BAD = [
    ("ignores", "vast", "it began again at epoch 0.02 although a snapshot", "let it look in $BROKER_CHECKPOINT_DIR"),
    (
        "outside",
        "vast",
        "it never saved anything complete into checkpoints",
        "somewhere/checkpoint-10/model.safetensors",
    ),
    ("slow", "runpod", "it began again from nothing", "its save on SIGTERM was cut off"),
]


def brought(cli: Cli, name: str) -> str:
    shutil.copytree(HERE, cli.folder / "theirs", ignore=shutil.ignore_patterns("__pycache__"))
    return f"theirs/{name}.yaml"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "notice", "seen"), GOOD, ids=[row[0] for row in GOOD])
def test_a_good_program_survives(cli: Cli, name: str, notice: str, seen: str) -> None:
    for needed in {"perl": ["perl"], "binary": ["cc"]}.get(name, []):
        if shutil.which(needed) is None:
            pytest.skip(f"no {needed} here")
    done = cli("rehearse", brought(cli, name), "-y", "--preempt", "1", "--notice", notice, "--seed", "3", code=None)
    assert done.stdout.splitlines()[-1] == "survives preemption", f"{done.stdout}\n{done.stderr}"
    assert done.returncode == 0
    said = " ".join(done.stdout.split())
    assert seen in said
    assert ("on SIGTERM it did not save" in said) == (name in ("hf", "tqdm")), "those two die of it"
    assert ("without a GPU it cannot show" in said) == (name == "hf")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "notice", "why", "advice"), BAD, ids=[row[0] for row in BAD])
def test_a_broken_one_does_not_and_hears_what_to_change(
    cli: Cli, name: str, notice: str, why: str, advice: str
) -> None:
    found = cli.json(
        "rehearse", brought(cli, name), "-y", "--preempt", "1", "--notice", notice, "--seed", "3", code=100
    )
    assert why in found["verdict"], found
    assert any(advice in line for line in found["advice"]), found["advice"]
