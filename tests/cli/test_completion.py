"""What the shell's TAB offers, asked for as bash does it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cli.command import Cli

from broker.cli import completing

PROGRAM = """\
import atexit, sys
atexit.register(lambda: print(*sorted(sys.modules), file=sys.stderr))
sys.argv[0] = "broker"
from broker.cli import main
main()
"""


def offered(cli: Cli, line: str) -> tuple[list[str], set[str]]:
    """The words that are offered for the last one of a line, and the modules that it took."""
    env = {**cli.env, "_BROKER_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, cwd=cli.folder, text=True, capture_output=True, check=True
    )
    return done.stdout.split(), set(done.stderr.split())


def test_verbs_jobs_tasks_and_schedules(finished: tuple[Cli, str, object]) -> None:
    cli, job, _ = finished
    assert {"run", "logs", "migrate"} <= set(offered(cli, "broker ")[0])
    for verb in ("show", "logs -f", "wait", "pull", "stop", "migrate", "resume"):
        words, modules = offered(cli, f"broker {verb} cou")
        assert words == [job, "counter"]
        assert not {"sqlalchemy", "dbos", "rich.console", "ruamel.yaml", "obstore", "boto3"} & modules
    (cli.folder / "other.yaml").touch()
    (cli.folder / "other.txt").touch()
    words = offered(cli, "broker run ")[0]
    assert words[:2] == ["counter", "other.yaml"]
    assert "quickstart" in words
    assert "other.txt" not in words
    assert offered(cli, "broker plan counter/")[0] == ["counter/task.yaml"]
    assert offered(cli, "broker schedule rm ")[0] == []


def test_nothing_is_offered_where_something_is_wrong(cli: Cli) -> None:
    assert offered(cli, "broker show ")[0] == []
    cli.state.mkdir()
    (cli.state / "jobs.db").write_text("no database, and a good deal longer than the header of one would be")
    assert offered(cli, "broker show ")[0] == []
    (cli.folder / "config.toml").write_text("no = [toml")
    assert offered(cli, "broker show ")[0] == []


def test_what_begins_at_the_root_is_of_the_root() -> None:
    assert all(Path(word).exists() for word, _ in completing.tasks("/"))
    assert any(word == "/usr/" for word, _ in completing.tasks("/u"))
