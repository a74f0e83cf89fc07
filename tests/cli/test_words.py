"""What costs nothing: help, versions, bad input, and who is told what on which stream."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from cli.command import Cli

from broker import bundled

VERBS = ["init", "schema", "check", "offers", "plan", "rehearse", "run"]
VERBS += ["ps", "show", "logs", "wait", "pull", "stop", "up", "tick"]


def test_help_lists_every_verb_and_is_cheap(cli: Cli) -> None:
    done = cli("--help")
    assert [verb for verb in VERBS if f"\n  {verb} " not in done.stdout] == []
    assert "..." not in done.stdout.partition("Commands:")[2], "a verb's line is too long for 80 columns"
    loaded = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "broker", "--help"],
        env=cli.env, capture_output=True, text=True, check=True,
    ).stderr  # fmt: skip
    heavy = {"dbos", "sqlalchemy", "obstore", "pydantic", "rich.console", "cryptography", "boto3"}
    assert heavy & {line.rpartition("|")[2].strip() for line in loaded.splitlines()} == set()


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(cli: Cli, verb: str) -> None:
    done = cli(verb, "-h")
    assert done.stdout.startswith("Usage: ")
    assert "--output" in done.stdout


def test_version(cli: Cli) -> None:
    from broker import __version__

    assert cli("--version").stdout == f"spotbroker {__version__}\n"


def test_a_fork_of_the_tests_says_what_an_interpreter_says(cli: Cli) -> None:
    for args in (["--version"], ["-q", "offers"], ["show", "nobody"]):
        said = []
        for cli.forks in (True, False):
            done = cli(*args, code=None)
            said.append((done.returncode, done.stdout, done.stderr))
        assert said[0] == said[1]


@pytest.mark.parametrize(
    ("args", "code", "what", "fix"),
    [
        (["frobnicate"], 2, "No such command 'frobnicate'", "--help"),
        (["ps", "--nope"], 2, "No such option: --nope", "ps --help"),
        (["run"], 2, "Missing argument 'TASK", "run --help"),
        (["-o", "yaml", "ps"], 2, "yaml", "--help"),
        (["plan", "nowhere.yaml"], 78, "no task file 'nowhere.yaml'", "quickstart"),
        (["plan", "quickstart", "--spot", "maybe"], 2, "--spot must be auto, only or never", "--spot auto"),
        (["plan", "quickstart", "--env", "=x"], 2, "--env must be KEY=VALUE", "KEY=VALUE"),
        (["plan", "quickstart", "--env", "HF_TOKEN:hf_1"], 2, "--env must be KEY=VALUE", "KEY=VALUE"),
        (["check", "vast", "--key-stdin"], 2, "stdin holds no key", "--key-stdin"),
        (["offers", "--infra", "vst"], 78, "did you mean vast?", "installed is"),
        (["offers", "A100:0"], 2, "'A100:0'", "A100:8"),
        (["offers", "--disk", "-5"], 2, "disk_size: must be above zero, not -5", "A100:8"),
        (["offers", "--memory", "nan"], 2, "memory: must be zero (any) or above, not nan", "A100:8"),
        (["offers", "A100"], 78, "no provider that rents out GPUs can be asked: ", "broker check"),
        (["offers", "--cpus", "100000"], 75, "no offer fits", "try again"),
        (["show", "nobody"], 102, "no job 'nobody'", "broker ps -a"),
        (["logs", "nobody"], 102, "no job 'nobody'", "broker ps -a"),
        (["wait", "nobody"], 102, "no job 'nobody'", "broker ps -a"),
        (["pull", "nobody"], 102, "no job 'nobody'", "broker ps -a"),
        (["stop", "nobody"], 102, "no job 'nobody'", "broker ps -a"),
        (["stop"], 2, "name the jobs", "broker stop -a"),
        (["ps", "-w"], 2, "needs a terminal", "-o json"),
        (["rehearse", "quickstart", "--notice", "ibm"], 2, "'ibm'", "aws, gcp"),
    ],
)
def test_an_error_says_what_and_what_next(cli: Cli, args: list[str], code: int, what: str, fix: str) -> None:
    done = cli(*args, code=code)
    assert done.stdout == ""
    error, remedy = done.stderr.rstrip("\n").split("\n")[-2:]
    assert error.startswith("error: ")
    assert what in error
    assert remedy.startswith("  try: ")
    assert fix in remedy


def test_a_bad_task_file_is_named_by_line(cli: Cli) -> None:
    (cli.folder / "bad.yaml").write_text("name: x\nrun: echo\nchekpoint: {path: c}\n", encoding="utf-8")
    assert "bad.yaml:3:1" in cli("plan", "bad.yaml", code=78).stderr


def test_a_gpu_without_a_provider_is_a_matter_of_configuration(cli: Cli) -> None:
    (cli.folder / "gpu.yaml").write_text(
        "run: nvidia-smi\nspot: never\nresources: {accelerators: A100:8}\n", encoding="utf-8"
    )
    for verb in (["plan", "gpu.yaml"], ["run", "gpu.yaml", "-y"]):
        refused = cli(*verb, code=78).stderr
        assert "no provider that rents out GPUs can be asked" in refused
        assert refused.endswith("  try: broker check says how to set them up\n")


def test_a_broken_configuration_is_named(cli: Cli) -> None:
    (cli.folder / "config.toml").write_text("hom = 1\n", encoding="utf-8")
    assert "unknown key 'hom'" in cli("ps", code=78).stderr


def test_what_nobody_foresaw_is_one_line_and_a_file(cli: Cli) -> None:
    cli.state.mkdir()
    (cli.state / "jobs.db").mkdir()
    done = cli("ps", code=1)
    assert done.stderr.startswith("error: unexpected ")
    assert done.stderr.count("\n") == 2
    (written,) = cli.state.glob("crash-*.txt")
    assert str(written) in done.stderr
    assert "Traceback" in written.read_text(encoding="utf-8")
    assert written.stat().st_mode & 0o077 == 0
    (cli.state / "jobs.db").rmdir()


def test_a_full_disk_is_said_as_such(cli: Cli) -> None:
    assert "no job is active" in cli("ps").stderr
    with contextlib.closing(sqlite3.connect(cli.state / "jobs.db")) as database:
        full = "BEGIN SELECT RAISE(FAIL, 'database or disk is full'); END"
        database.execute(f"CREATE TRIGGER full BEFORE INSERT ON spotbroker_jobs {full}")
        assert (
            cli("run", "quickstart", "-y", "-d", code=1)
            .stderr.splitlines()[-2]
            .startswith("error: this computer's disk")
        )
        database.execute("DROP TRIGGER full")


def test_init_lists_and_copies(cli: Cli) -> None:
    assert cli("init").stdout.split() == list(bundled.names())
    done = cli("init", "quickstart", "--to", "mine")
    assert done.stdout == "mine\n"
    assert "broker rehearse mine" in done.stderr
    assert (cli.folder / "mine" / "task.yaml").is_file()
    assert "not empty" in cli("init", "quickstart", "--to", "mine", code=78).stderr
    assert cli.json("init", "quickstart", "--to", "second")["folder"] == str(cli.folder / "second")


def test_offers_for_people_and_programs(cli: Cli) -> None:
    offers = cli.json("offers")
    assert offers == sorted(offers, key=lambda offer: offer["hourly"])
    assert {offer["market"] for offer in offers} == {"spot", "on_demand"}
    shown = cli("offers")
    assert "WHERE" in shown.stdout
    assert "simulated" in shown.stderr
    assert cli("offers", "-q").stdout.split() == [offer["key"] for offer in offers]
    assert {offer["market"] for offer in cli.json("offers", "--on-demand")} == {"on_demand"}
    # Before the verb or after it, --json or -o json: the same.
    first, second = (json.loads(cli(*args).stdout) for args in (("--json", "offers"), ("offers", "--json")))
    assert [offer["key"] for offer in first] == [offer["key"] for offer in second]


def test_a_plan_ranks_and_explains(cli: Cli) -> None:
    cli.task()
    plan = cli.json("plan", "counter")
    assert plan["offer"]["market"] == "spot"
    assert plan["ranked"][0]["cost"] <= plan["ranked"][1]["cost"]
    shown = cli("plan", "counter").stdout
    for word in ("MACHINE", "DISK", "USD/h", "cheapest", "home", "workdir", "moves"):
        assert word in shown
    never = cli("plan", "counter", "--spot", "never").stdout
    assert re.search(r"^1 +\S+ +\S+ +on-demand", never, re.MULTILINE)
    assert not cli.state.exists() or not (cli.state / "jobs.db").exists(), "a plan leaves nothing behind"
    dry = cli("run", "counter", "--dry-run")
    assert "cheapest" in dry.stdout
    dear = cli("plan", "counter", "--max-price", "0.001", code=75)
    assert "above max_price" in dear.stdout
    assert "--max-price" in dear.stderr.splitlines()[-1]


def test_without_a_terminal_nothing_is_asked(cli: Cli) -> None:
    cli.task()
    done = cli("run", "counter", code=2)
    assert "-y" in done.stderr.splitlines()[-1]
    assert cli("ps", "-a", "-q").stdout == ""


def on_terminal(cli: Cli, *args: str, keys: str = "", env: dict[str, str] | None = None) -> tuple[int, str]:
    """Run at a pseudo-terminal; the exit code and all that was shown."""
    leader, follower = pty.openpty()
    process = cli.at_terminal(*args, terminal=follower, env=env or {})
    os.close(follower)
    shown = b""
    os.write(leader, keys.encode())
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    os.close(leader)
    return process.wait(timeout=60), shown.decode()


def test_a_no_at_the_terminal_rents_nothing(cli: Cli) -> None:
    cli.task()
    code, shown = on_terminal(cli, "run", "counter", keys="n\n")
    assert code == 1
    assert "[y/N]" in shown
    assert "nothing was rented" in shown


def test_colours_only_where_they_are_wanted(cli: Cli) -> None:
    color = re.compile(r"\x1b\[[0-9;]*[1-9][0-9;]*m")
    term = {"TERM": "xterm-256color"}
    plain = {"", "0", "1", "2"}  # bold and dim are no colours

    def colors(text: str) -> set[str]:
        return {part for found in color.findall(text) for part in found[2:-1].split(";")} - plain

    cli.task()
    assert colors(on_terminal(cli, "plan", "counter", env=term)[1])
    assert not colors(on_terminal(cli, "plan", "counter", env={**term, "NO_COLOR": "1"})[1])
    assert not colors(on_terminal(cli, "plan", "counter", "--no-color", env=term)[1])
    assert "\x1b" not in cli("plan", "counter", env=term).stdout


def test_a_reader_that_goes_away_is_no_crash(cli: Cli) -> None:
    command = f"{sys.executable} -m broker offers | true"
    done = subprocess.run(
        ["sh", "-c", command], env=cli.env, cwd=cli.folder, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert "unexpected" not in done.stderr


def test_the_exit_codes_page_knows_every_error() -> None:
    page = (Path(__file__).parents[2] / "docs" / "errors-and-exit-codes.md").read_text(encoding="utf-8")
    from broker import errors

    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, errors.BrokerError):
            assert f"`{name}`" in page, name
            if value.exit_code != 1:
                assert re.search(rf"^\| {value.exit_code} \|", page, re.MULTILINE), value.exit_code
