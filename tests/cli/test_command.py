"""`broker run -- COMMAND`: a job without a task file."""

from __future__ import annotations

import json

import pytest
from cli.command import Cli

SHOW = "import json, sys; open('seen.json', 'w').write(json.dumps(sys.argv[1:]))"


def test_a_command_runs_word_for_word_in_a_copy_of_this_folder(cli: Cli) -> None:
    (cli.folder / "show me.py").write_text(SHOW)
    words = ["a b", "$HOME", "`id`", 'it\'s "quoted"', "", "--spot", "-y", "*", "\n"]
    cli(
        "run",
        "-y",
        "--infra",
        "local",
        "--spot",
        "never",
        "--outputs",
        "seen.json",
        "--",
        "python3",
        "show me.py",
        *words,
    )
    (row,) = cli.json("ps", "-a")
    assert (row["status"], row["name"]) == ("succeeded", "show me")
    cli("pull", row["id"], "--to", "out")
    assert json.loads((cli.folder / "out" / "seen.json").read_text()) == words
    assert not (cli.folder / "seen.json").exists()


def test_a_command_that_may_run_on_spot_must_say_where_it_saves(cli: Cli) -> None:
    refused = cli("run", "-y", "--cpus", "1", "--", "python3", "train.py", code=78)
    assert "nothing says where the command saves" in refused.stderr
    assert "--checkpoint FOLDER" in refused.stderr
    assert "--spot never" in refused.stderr
    done = cli("-o", "json", "run", "--dry-run", "--infra", "local", "--checkpoint", "c", "--", "python3", "train.py")
    plan = json.loads(done.stdout)
    assert (plan["task"], plan["offer"]["market"]) == ("train", "spot")


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["--gpu", "A100-40G", "--spot", "never", "--", "x", "y"], 78, "did you mean A100?"),
        (["--gpu", "A100:1", "--spot", "never", "--", "./train.sh"], 78, "no provider that rents out GPUs can be"),
        (["task.yaml", "--gpu", "A100"], 2, "--gpu is for a command: task.yaml says itself what it needs"),
        (["--gpu", "A100", "--spot", "sometimes", "--checkpoint", "c", "--", "x"], 78, "spot must be auto"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(cli: Cli, args: list[str], code: int, words: str) -> None:
    assert words in cli("run", *args, code=code).stderr
