"""Deadlines and budgets at the command: what the plan says, what is refused, and how a job goes on after its limit."""

from __future__ import annotations

import re
import time

from cli.command import Cli

from broker.experience import Lesson, Records
from broker.offer import Market, Offer
from broker.store import open_store

LIMITED = """\
name: limited
workdir: .
run: python3 counter.py
envs: {STEPS: 200, PAUSE: 0.05, HABIT: good}
resources: {infra: local}
checkpoint: {path: checkpoints, complete: DONE}
"""


def written(cli: Cli, more: str) -> None:
    folder = cli.folder / "limited"
    if not folder.exists():
        cli.task("limited")
    (folder / "task.yaml").write_text(LIMITED + more)


def test_the_plan_tells_the_deadline_the_work_and_the_budget(cli: Cli) -> None:
    written(cli, "work: {hours: 6}\ndeadline: 9h\nbudget: 0.05\n")
    plan = cli.json("plan", "limited")
    assert plan["work"] == {"hours": 6.0, "source": "work.hours: 6", "on": "", "share": None}
    assert abs(plan["deadline"] - time.time() - 9 * 3600) < 60
    assert plan["timing"]["choice"] == "spot"
    shown = cli("plan", "limited").stdout
    assert "6 h left, by work.hours: 6" in shown
    assert "in 9 h 00 m, 6 h of work left, 2 h 59 m to spare" in " ".join(shown.split())
    assert re.search(r"more than that; budget: 0\.\d\d would do", " ".join(shown.split()))


def test_a_budget_that_pays_for_no_start_is_said_before_the_launch(cli: Cli) -> None:
    written(cli, "work: {hours: 6}\nbudget: 0.000001\n")
    for verb in (("plan",), ("run", "-y")):
        refused = cli(*verb, "limited", code=75).stderr
        assert "budget of 1e-06 USD is too little: 0.00 spent, which leaves 0 s of spot in local/" in refused
        assert "for which 0.01 would do; finishing is expected to cost 0." in refused
        assert "raise budget in the task" in refused
    assert cli.json("ps", "-a") == []


def test_the_plan_tells_what_is_left_of_the_month(cli: Cli) -> None:
    written(cli, "work: {hours: 6}\n")
    (cli.folder / "config.toml").write_text("monthly_budget = 1.0\n", encoding="utf-8")
    shown = " ".join(cli("plan", "limited").stdout.split())
    assert "this month 1.00 of 1.00 USD left: 0.00 spent; what is left pays for " in shown


def test_the_plan_tells_what_a_move_takes(cli: Cli) -> None:
    """Once a job of this task has shown how large its checkpoints are; the home here is a folder, which is free."""
    written(cli, "work: {hours: 6}\n")
    assert cli.json("plan", "limited")["egress_per_move"] is None
    store = open_store(cli.state)
    offer = Offer("local", "north", "north-1", "cpu-2", Market.SPOT, 0.01, simulated=True)
    Records(store).learn(Lesson("j", 1, offer, 1e9, 1e9 + 60, lost=False, task="limited", checkpoint=3 * 2**30))
    store.close()
    assert cli.json("plan", "limited")["egress_per_move"] == {"gib": 3.0, "usd_per_gib": 0.0}
    assert "3 GiB x 0 USD/GiB = 0.00 USD" in cli("plan", "limited").stdout


def test_a_deadline_is_refused_where_it_cannot_be_held(cli: Cli) -> None:
    written(cli, "work: {hours: 6}\ndeadline: 5h\n")
    refused = cli("run", "limited", "-y", code=75).stderr
    assert "the deadline in 5 h 00 m cannot be met: 6 h of work, done soonest in 6 h 00 m" in refused
    assert "deadline: 362m would do" in refused
    written(cli, "deadline: 5h\n")
    refused = cli("run", "limited", "-y", code=78).stderr
    assert "deadline: cannot be held: nothing tells how much work there is" in refused
    assert cli.json("ps", "-a") == []


def test_a_deadline_that_has_passed_is_said_as_that(cli: Cli) -> None:
    """Whether or not anything tells how much work there is."""
    day = time.strftime("%Y-%m-%d %H:%M", time.localtime(time.time() - 26 * 3600))
    for work in ("", "work: {hours: 6}\n"):
        written(cli, f"{work}deadline: {day}\n")
        for verb in (("plan",), ("run", "-y")):
            refused = cli(*verb, "limited", code=78).stderr
            assert f"deadline: {day} has passed 26 h 0" in refused
            assert "a date with its time" in refused
            assert "work" not in refused.partition("deadline:")[2]
    assert cli.json("ps", "-a") == []


def test_a_job_at_its_budget_says_how_it_goes_on_and_does(cli: Cli) -> None:
    written(cli, "budget: 0.00002\nmax_hours: 1\n")
    ended = cli("run", "limited", "-y", code=104)
    said = ended.stdout + ended.stderr
    assert "budget reached; the newest snapshot is safe" in said
    (row,) = cli.json("ps", "-a")
    assert f"broker resume {row['id']} --budget USD" in said
    assert "of its budget of 2e-05 USD" in cli("resume", row["id"], "-y", code=78).stderr
    asked = cli("resume", row["id"], "--budget", "1", code=2).stderr
    assert f"Take up {row['id']} again and rent local/" in asked
    assert asked.splitlines()[-1] == "  try: add -y to answer yes"
    cli("resume", row["id"], "--budget", "1", "-y")
    (row,) = cli.json("ps", "-a")
    assert row["status"] == "succeeded"
