"""`broker cost` and `broker migrate`, as their users run them."""

from __future__ import annotations

import csv
import io
import subprocess

from cli.command import Cli, wait_for


def test_what_a_job_has_cost(finished: tuple[Cli, str, subprocess.CompletedProcess[str]]) -> None:
    cli, job, _ = finished
    shown = cli("cost").stdout
    assert shown.splitlines()[0].split() == ["JOB", "SPENT", "ON", "DEMAND", "SAVED", "HOURS", "MACHINES"]
    assert job in shown
    assert "(simulated)" in shown
    (line,) = cli.json("cost", "--by", "provider")
    assert (line["what"], line["machines"], line["simulated"]) == ("local", 1, True)
    assert 0 < line["spent"] < line["on_demand"]
    (row,) = csv.DictReader(io.StringIO(cli("cost", "--csv", "--by", "day", "--since", "2d").stdout))
    assert float(row["saved_usd"]) > 0
    assert row["simulated"] == "yes"


def test_nothing_spent_and_a_wrong_time(cli: Cli) -> None:
    assert "nothing was rented in the last 12h" in cli("cost", "--since", "12h").stderr
    refused = cli("cost", "--since", "yesterday", code=2)
    assert "--since yesterday" in refused.stderr
    assert "30d" in refused.stderr


def test_a_job_is_moved_by_hand(cli: Cli) -> None:
    cli.task(steps=150, pause=0.1)
    cli("run", "counter", "-y", "-d")
    (row,) = cli.json("ps")
    wait_for(lambda: [e for e in cli.json("show", row["id"])["stays"] if e["saves"]], "a snapshot")
    moved = cli("migrate", "counter", "-y", timeout=90)
    assert f"{row['id']} moved from" in moved.stdout
    story = cli.json("show", row["id"])
    assert len(story["stays"]) == 2
    cli("wait", row["id"], timeout=90)
    (move,) = cli.json("show", row["id"])["moves"]
    assert move["restored"] is not None
    refused = cli("migrate", "counter", "-y", code=78)
    assert "has no machine to be moved from" in refused.stderr
