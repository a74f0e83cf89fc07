"""What somebody meets on the first day: nothing to pull, nothing printed, a name with a space, another broker."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time

import pytest
from cli.command import Cli, wait_for
from cli.test_words import on_terminal

Finished = tuple[Cli, str, subprocess.CompletedProcess[str]]


def test_without_a_verb_the_help_is_shown(cli: Cli) -> None:
    done = cli()
    assert done.stdout == cli("--help").stdout
    assert done.stderr == ""


def test_a_run_tells_of_its_outputs_and_how_it_is_left(finished: Finished) -> None:
    _, job, done = finished
    assert f"outputs  1 file: broker pull {job}" in done.stdout
    assert "SIGINT or SIGTERM hands it to a broker in the background" in done.stderr
    assert "Ctrl-C asks" not in done.stderr


def test_pulled_outputs_are_left_out_of_the_next_workdir(finished: Finished) -> None:
    cli, job, _ = finished
    folder = cli.folder / "counter"
    before = cli.json("plan", "counter")["workdir_bytes"]
    cli("pull", job, "--to", str(folder / "made"))
    assert (folder / "made/outputs/word.txt").is_file()
    assert cli.json("plan", "counter")["workdir_bytes"] == before
    (folder / "mine").mkdir()
    cli("pull", job, "--to", str(folder / "mine"))
    assert cli.json("plan", "counter")["workdir_bytes"] > before, "a folder that was there is its owner's"


def test_stopping_an_ended_job_says_so(finished: Finished) -> None:
    cli, job, _ = finished
    done = cli("stop", job)
    assert done.stdout == f"{job} succeeded\n"
    assert f"{job} had already ended" in done.stderr


def test_a_name_is_found_as_its_id_has_it(cli: Cli) -> None:
    (cli.folder / "show me.py").write_text("print(1)", encoding="utf-8")
    cli("run", "-y", "-q", "--infra", "local", "--spot", "never", "--", "python3", "show me.py")
    (row,) = cli.json("ps", "-a")
    assert row["name"] == "show me"
    for name in ("show me", "show-me", row["id"]):
        assert cli.json("show", name)["job"] == row["id"]
    assert "no job 'show'" in cli("show", "show", code=102).stderr


@pytest.mark.parametrize(("run", "words"), [("true", "the program printed nothing"), ("exit 3", "printed nothing")])
def test_a_silent_program_and_no_outputs(cli: Cli, run: str, words: str) -> None:
    (cli.folder / "t.yaml").write_text(f"run: {run}\nspot: never\nresources: {{infra: local}}\n", encoding="utf-8")
    cli("run", "t.yaml", "-y", code=None)
    logs = cli("logs", "t")
    assert (logs.stdout, words in logs.stderr) == ("", True)
    assert "names no `outputs`" in cli("pull", "t", code=101).stderr


def test_a_program_that_never_started_is_told(cli: Cli) -> None:
    (cli.folder / "t.yaml").write_text(
        "run: echo hi\nsetup: exit 4\nspot: never\nresources: {infra: local}\noutputs: [x]\n", encoding="utf-8"
    )
    cli("run", "t.yaml", "-y", code=100)
    assert "the program never started: failed" in cli("logs", "t").stderr
    assert "it ended before they were written" in cli("pull", "t", code=101).stderr


def test_a_second_broker_waits_for_the_first(cli: Cli) -> None:
    cli.task(steps=30, pause=0.1)
    job = cli("run", "counter", "-y", "-d").stdout.strip()
    second = cli("up", "--until-idle", timeout=90)
    assert "a broker is already up here and drives all jobs" in second.stderr
    wait_for(lambda: cli("wait", job, "--timeout", "0", code=None).returncode == 0, "the job's end", 1.0)


def test_a_quoted_command_is_refused_with_the_words_to_write(cli: Cli) -> None:
    refused = cli("run", "--spot", "never", "--cpus", "1", "--", "python3 train.py", code=78)
    assert "no program is called 'python3 train.py'" in refused.stderr
    assert "-- python3 train.py, or" in refused.stderr


def test_help_speaks_of_no_types(cli: Cli) -> None:
    for verb in ("offers", "run", "plan", "wait", "tick", "stop", "rehearse"):
        shown = cli(verb, "-h").stdout
        assert [word for word in ("<str>", "<list", "x>=", "[[", "{", "0.0 ") if word in shown] == [], verb


@pytest.mark.parametrize("verb", ["plan", "run", "rehearse"])
@pytest.mark.parametrize(
    "path", ["checkpoint: {path: /data/ckpt}", "checkpoint: {path: c}\nfile_mounts: {/data: t.yaml}"]
)
def test_an_absolute_path_is_refused_before_anything_starts(cli: Cli, verb: str, path: str) -> None:
    (cli.folder / "t.yaml").write_text(f"run: echo hi\n{path}\n", encoding="utf-8")
    refused = cli(verb, "t.yaml", *(["-y"] if verb != "plan" else []), code=78)
    assert "is absolute, and `local` machines share this computer" in refused.stderr
    assert "below ~/" in refused.stderr
    assert refused.stdout == ""


def test_a_plan_says_what_does_not_go_along(cli: Cli) -> None:
    (cli.folder / "train.py").touch()
    (cli.folder / "t.yaml").write_text("run: python train.py\nspot: never\n", encoding="utf-8")
    done = cli("plan", "t.yaml")
    assert "none: no file of yours goes along" in done.stdout
    assert "none are kept" in done.stdout
    assert "run names train.py, which lies beside the task file" in done.stderr
    cli.task()
    assert "outputs/*: kept for broker pull" in cli("plan", "counter").stdout


def test_a_provider_that_is_not_there_is_named(cli: Cli) -> None:
    (cli.folder / "t.yaml").write_text(
        "run: echo\nspot: never\nresources: {accelerators: A100, infra: [acme, nowhere/us-1]}\n", encoding="utf-8"
    )
    cli.task()
    for args in (["plan", "t.yaml"], ["plan", "counter", "--infra", "acme", "--infra", "nowhere"]):
        refused = cli(*args, code=78)
        assert "no provider named acme or nowhere is installed" in refused.stderr
        assert re.search(r"installed is: .*\blocal\b", refused.stderr)
    mixed = cli("plan", "counter", "--infra", "acme", "--infra", "local")
    assert "warning: no provider named acme is installed" in mixed.stderr


def test_a_kept_rehearsal_can_be_read_and_goes_after_a_week(cli: Cli) -> None:
    old, recent = (cli.state / "rehearsals" / name for name in ("20200101-000000-1", "20200101-000000-2"))
    for folder, at in ((old, 1.6e9), (recent, time.time())):
        (folder / "local").mkdir(parents=True)
        for path in (folder / "local", folder):
            os.utime(path, (at, at))
    cli.task(steps=6, habit="fails")
    done = cli("rehearse", "counter", "-y", code=101)
    assert "removed 1 kept rehearsal older than a week" in done.stderr
    assert (old.exists(), recent.exists()) == (False, True)
    lines = dict(
        line.split("  ", 1) for line in done.stderr.splitlines() if line.startswith(("its output", "remove it"))
    )
    state, *command = shlex.split(lines["its output"])
    read = subprocess.run(
        [sys.executable, "-m", "broker", *command[1:]],
        env={**cli.env, "SPOTBROKER_STATE": state.partition("=")[2]}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "something broke" in read.stdout
    assert shlex.split(lines["remove it"])[:2] == ["rm", "-r"]
    verdict = done.stdout.splitlines()[-1]
    assert verdict.startswith("not proven: ")
    assert done.stdout.count(verdict.removeprefix("not proven: ")) == 1, "said once"


NARROW = {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}


def test_tables_fit_eighty_columns(finished: Finished) -> None:
    cli, job, _ = finished
    for args in (["offers"], ["plan", "counter"], ["ps", "-a"], ["show", job]):
        code, shown = on_terminal(cli, *args, env=NARROW)
        assert code == 0
        places = [line for line in re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines() if "local/" in line]
        assert all(re.search(r"local/(north/)?(north|south|east)-1\b", line) for line in places), shown
        assert max(map(len, places)) <= 80, shown
    assert "saves 62%" in shown
    assert "on-demand would be" not in shown.partition("boot")[0], "the table leaves out what it shows elsewhere"


def test_an_error_breaks_between_words_at_a_terminal_only(cli: Cli) -> None:
    places = ["--infra", "a-cloud-that-nobody-has-heard-of", "--infra", "another-one-of-which-nobody-has"]
    _, shown = on_terminal(cli, "plan", "quickstart", *places, env=NARROW)
    lines = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()]
    assert max(map(len, lines)) <= 80
    assert [line[:7] for line in lines] == ["error: ", " " * 7, "  try: ", " " * 7]
    assert len(cli("plan", "quickstart", *places, code=78, env=NARROW).stderr.splitlines()) == 2
