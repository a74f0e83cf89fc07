"""`broker plan --explain`: the parts of what finishing costs, for people and for programs."""

from __future__ import annotations

import re

import pytest
from cli.command import Cli


def test_the_parts_of_each_candidate(cli: Cli) -> None:
    file = cli.task() / "task.yaml"
    file.write_text(file.read_text(encoding="utf-8").replace("work: {", "work: {hours: 10, "), encoding="utf-8")
    shown = cli("plan", "counter", "--explain").stdout
    for word in ("TO FINISH", "REWORK", "TOTAL", "LOST/h", "ranked", "by the cost of finishing 10 h of work"):
        assert word in shown
    assert "REWORK" not in cli("plan", "counter").stdout
    plan = cli.json("plan", "counter")
    totals = [entry["finish"]["total"] for entry in plan["ranked"]]
    assert totals == sorted(totals)
    finish = plan["ranked"][0]["finish"]
    parts = (
        "machine",
        "disk",
        "address",
        "rework",
        "restarts",
        "egress",
        "cache",
        "download",
        "upload",
        "minimum",
        "later",
    )
    assert sum(finish[name] for name in parts) == pytest.approx(finish["total"])
    assert finish["restarts"] == 0, "a simulated machine starts at once"
    text = file.read_text(encoding="utf-8")
    file.write_text(text + "deadline: 12h\nbudget: 0.2\n", encoding="utf-8")
    told = " ".join(cli("plan", "counter").stdout.split())
    assert re.search(
        r"all of it on demand would cost 0\.3\d+, more than that, so that the deadline hangs on spot", told
    )
    file.write_text(text + "deadline: 12h\nbudget: 0.9\n", encoding="utf-8")
    assert "hangs on spot" not in cli("plan", "counter").stdout


def test_without_hours_there_are_no_parts_and_the_plan_says_why(cli: Cli) -> None:
    cli.task()
    shown = cli("plan", "counter", "--explain").stdout
    assert "REWORK" not in shown
    assert shown.count("does not say how much work there is") == 1
