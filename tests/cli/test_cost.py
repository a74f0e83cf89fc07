"""`broker cost`, as its users run it."""

from __future__ import annotations

import csv
import io
import subprocess

from cli.command import Cli


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
    assert "nothing was rented since 12h" in cli("cost", "--since", "12h").stderr
    refused = cli("cost", "--since", "yesterday", code=2)
    assert "--since yesterday" in refused.stderr
    assert "30d" in refused.stderr
