"""Rehearsals on rented machines: bounded in money, asked for, judged, and nothing left of them."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
from cli import paid
from cli.command import Cli
from clouds.seaweedfs import SeaweedFS

from broker.cli.rehearsal import rehearse_verb
from broker.cli.screen import Screen, Usage
from broker.config import load
from broker.home import Access, Home
from broker.job import get
from broker.policy.budget import SETTLING


def requests(cli: Cli, job: str) -> list[dict[str, Any]]:
    """The frozen requests of a job's machines, as they were sent."""
    found = get(job, config=load(state=cli.state, file=cli.folder / "config.toml"))
    return [dict(row.request) for row in found.placements() if row.launched_at is not None]


def worst(request: dict[str, Any]) -> float:
    """USD that a machine costs if nobody but itself ends it, at the latest second that it has."""
    offer = request["offer"]
    return float(offer["price"] + offer["disk_price"]) * (request["end_by"] - request["frozen_at"] + SETTLING) / 3600


def test_on_real_machines_it_costs_no_more_than_allowed_and_leaves_nothing(cli: Cli, seaweedfs: SeaweedFS) -> None:
    home = seaweedfs.new_home()
    paid.install(cli, home, seaweedfs)
    cli.task(steps=200, pause=0.1)
    done = cli("rehearse", "counter", "--on", "paid", "--max-usd", "0.02", "-y", "-o", "json")
    data = json.loads(done.stdout)
    assert data["verdict"] == "survives preemption"
    assert [take["notice"] for take in data["taken"]] == ["vast"], "this provider gives no notice"
    (move,) = data["report"]["moves"]
    assert move["resumed"] > move["restored_step"] > 0
    assert 0 < data["spent"] <= data["max_usd"] == 0.02
    assert "its machines are gone, by their provider's own list" in done.stderr
    sent = requests(cli, data["report"]["job"])
    assert len(sent) == 2
    assert sum(map(worst, sent)) <= 0.02, "it would hold with the broker dead, too"
    assert [request["end_why"] for request in sent] == ["max_hours"] * 2
    store = Home(Access(home, seaweedfs.settings()), make=False)
    assert store.list("jobs/") == store.list("beats/") == []
    assert cli.json("ps", "-a")[0]["status"] == "stopped", "what it cost stays on record"


def test_a_program_that_forgets_is_caught_there_too(cli: Cli) -> None:
    cli.task(steps=200, pause=0.1, habit="forgets")
    done = cli("rehearse", "counter", "--on", "local", "--max-usd", "0.30", "-y", code=100)
    assert done.stdout.splitlines()[-1].startswith("does not survive preemption: move 1 → 2: it began again at step 1")
    assert "0.30 USD, simulated at most" in done.stderr
    assert f"jobs/{cli.json('ps', '-a')[0]['id']}" in done.stderr


def test_one_that_ends_before_it_is_moved_proves_nothing(cli: Cli) -> None:
    cli.task(steps=6, pause=0.1)
    done = cli("rehearse", "counter", "--on", "local", "--max-usd", "0.30", "-y", code=101)
    assert done.stdout.splitlines()[-1].startswith("not proven: it ended before it was taken back")


def test_without_a_terminal_nothing_is_rented_unasked(cli: Cli) -> None:
    cli.task()
    done = cli("rehearse", "counter", "--on", "local", "--max-usd", "0.30", code=2)
    assert "add -y to answer yes" in done.stderr
    assert cli.json("ps", "-a") == []


def test_too_little_money_is_said_with_what_would_do(cli: Cli) -> None:
    key = '[home_config]\naccess_key_id = "AKIA"\nsecret_access_key = "s"'
    paid.install(cli, "s3://nowhere/home", settings=f"extra = {{minimum_hours = 1.0}}\n{key}")
    cli.task()
    done = cli("rehearse", "counter", "--on", "paid", "--max-usd", "0.02", "-y", code=78)
    assert "0.02 USD are too little for 2 machines at 0.01" in done.stderr
    assert "of which 1 h are billed at least" in done.stderr
    assert "--max-usd 0.03 is the least" in done.stderr


def test_a_home_that_real_machines_cannot_reach_is_refused_before_the_question(cli: Cli) -> None:
    paid.install(cli)
    cli.task()
    done = cli("rehearse", "counter", "--on", "paid", "--max-usd", "0.30", code=78)
    assert "is a folder on this machine, which paid cannot reach" in done.stderr
    assert cli.json("ps", "-a") == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"on": ["local"]}, "add --max-usd 0.30"),
        ({"max_usd": 0.30}, "add --on PROVIDER"),
        ({"on": ["local"], "max_usd": 0.0}, "--max-usd 0.30"),
        ({"on": ["local"], "max_usd": 1.0, "preempt": 3}, "leave out --seed, --preempt"),
        ({"on": ["local"], "max_usd": 1.0, "seed": 3}, "leave out --seed, --preempt"),
        ({"on": ["local"], "max_usd": 1.0, "notice": ["aws", "vast"]}, "all but one --notice"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], says: str) -> None:
    with pytest.raises(Usage) as raised:
        rehearse_verb(Screen(), "no such task", **options)
    assert says in raised.value.fix


def test_a_place_that_is_not_installed(cli: Cli) -> None:
    cli.task()
    done = cli("rehearse", "counter", "--on", "nowhere", "--max-usd", "1", "-y", code=78)
    assert "no provider named nowhere is installed" in done.stderr


def test_ctrl_c_ends_it_with_its_machines(cli: Cli) -> None:
    cli.task(steps=400)
    process = cli.start("rehearse", "counter", "--on", "local", "--max-usd", "0.30", "-y")
    assert process.stderr is not None
    for line in process.stderr:
        if "the program runs" in line:
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "its machines are gone" in err
    assert cli.json("ps") == []


def test_a_machine_that_its_provider_takes_back_meanwhile_serves_as_well(cli: Cli) -> None:
    from broker_local.cloud import take_back

    # The second save, at which the rehearsal would move it itself, is six seconds after the first.
    cli.task(steps=300, pause=0.6)
    process = cli.start("rehearse", "counter", "--on", "local", "--max-usd", "0.30", "-y", "-o", "json")
    assert process.stderr is not None
    for line in process.stderr:
        if " snapshot " in line:
            break
    (machine,) = cli.json("ps", "--instances")
    take_back(cli.state / "local", machine["instance"], "vast")
    out, err = process.communicate(timeout=90)
    assert process.returncode == 0, err
    data = json.loads(out)
    assert data["verdict"] == "survives preemption"
    assert len(data["taken"]) == 1
    assert data["report"]["moves"][0]["resumed"] > data["report"]["moves"][0]["restored_step"] > 0
