"""`broker migrate`, as its users run it: to another offer, to a place of their choice, and not at all."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from cli.command import Cli, wait_for

import broker
from broker.cli.moving import _elsewhere, lost_by
from broker.config import load
from broker.job import submit
from broker.offer import Market, Offer
from broker.picking import NOTHING
from broker.resources import Resources
from broker.store import PlacementRow, open_store
from broker.task import Checkpoint, Task
from broker_local import cloud


def saved(cli: Cli) -> None:
    wait_for(lambda: [stay for stay in cli.json("show", "counter")["stays"] if stay["saves"]], "a snapshot")


@contextlib.contextmanager
def up(cli: Cli) -> Iterator[None]:
    process = cli.start("up")
    try:
        yield
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_a_job_is_moved_by_hand_and_where_it_is_wanted(cli: Cli) -> None:
    """To a place of its user's choice; then a broker that is dead, and a machine that is taken back meanwhile."""
    cli.task(steps=400, pause=0.1)
    job = cli("run", "counter", "-y", "-d").stdout.strip()
    saved(cli)
    refused = cli("migrate", job, "--to", "local/nowhere", "--to", "local/w*", "-y", code=75)
    assert f"{job} stays where it is, nothing to move to within local/nowhere, local/w*" in refused.stderr
    assert "no provider named locla" in cli("migrate", job, "--to", "locla", "-y", code=78).stderr
    assert "--to: resources.infra: must be provider" in cli("migrate", job, "--to", "local//b", "-y", code=2).stderr
    asked = cli("migrate", job, "--to", "local/e*", code=2).stderr
    assert "local/north/north-1 at 0.0122 USD/h, to local/east/east-1 spot at 0.0162 USD/h, 33% dearer?" in asked
    assert len(cli.json("show", job)["stays"]) == 1, "nothing was touched"

    follower = cli.start("logs", "-f", "--since", "1h", job)
    moved = cli("migrate", job, "--to", "local/e*", "-y", timeout=90)
    assert "in local/north/north-1 to m-" in moved.stdout
    assert "in local/east/east-1" in moved.stdout
    assert "later moves go where the task and the prices say" in moved.stderr

    (lock,) = (cli.state / "engine.live").iterdir()
    os.kill(int(wait_for(lock.read_text, "a sign of life")), signal.SIGKILL)
    config = load(state=cli.state, file=cli.folder / "config.toml")
    handle = broker.get(job, config=config)
    handle.move(to=["local/south"])
    cloud.take_back(cli.state / "local", handle.placements()[-1].instance or "", notice="vast")
    with up(cli):
        third = wait_for(lambda: cli.json("show", job)["stays"][2:], "the third machine")[0]
        first = wait_for(lambda: cli.json("show", job)["moves"], "a program after the first move")[0]
        assert first["restored"] is not None
        assert third["where"] == "local/south/south-1"
        (row,) = (row for row in handle.placements() if row.generation == third["generation"])
        assert (third["market"], row.reasons[-1]) == (
            "spot", "only within local/south, as its user wants this move",
        )  # fmt: skip
        cloud.refuse(cli.state / "local", "local/east/*")
        elsewhere = cli("migrate", job, "--to", "local/e*", "-y", code=75, timeout=90)
        assert "nothing within local/e* was to be had after all" in elsewhere.stderr
        assert f"{job} moved from" in elsewhere.stdout
        assert any("is to be had within local/e*" in text for text in cli.json("show", job)["warnings"])
        cli("stop", job, "--now")
        followed, markers = follower.communicate(timeout=60)
    assert f"{job} stopped" in markers
    everything = cli("logs", job).stdout
    assert followed == everything, "no gap and no line twice, over four machines"
    assert cli("logs", job, "--tail", "2", "--since", "2020-01-01").stdout.splitlines() == everything.splitlines()[-2:]
    assert "no output since 0.001s" in cli("logs", job, "--since", "0.001s").stderr
    assert "--since 10x: must be a time such as 10m" in cli("logs", job, "--since", "10x", code=2).stderr
    assert "has no machine to be moved from" in cli("migrate", "counter", "-y", code=78).stderr


def test_what_a_move_would_lose_is_said_before() -> None:
    row = PlacementRow("j", 1, "launched", {}, [], 0.0)
    task = Task(run="x", spot="never")
    assert "from the beginning: the task has no checkpoint" in lost_by(task, [row])
    saves = replace(task, checkpoint=Checkpoint("ckpt"))
    assert "unless it saves when it is told to end: nothing of it is saved yet" in lost_by(saves, [row])
    assert lost_by(saves, [replace(row, beat={"seq": 1}), row]) == ""


def test_of_two_wishes_the_one_that_was_not_heard_is_told_so(tmp_path: Path) -> None:
    config = load(state=tmp_path / "state", file=tmp_path / "config.toml")
    store = open_store(config.state)
    task = Task(run="x", spot="never", resources=(Resources(infra=("local",)),))
    job = submit(task, config=config, store=store)
    offer = Offer("local", "east", "east-1", "cpu-2", Market.SPOT, 0.01)
    row = PlacementRow(job.id, 1, "launched", {"offer": offer.to_json()}, [], 0.0, instance="m-1", launched_at=1.0)
    store.intend(replace(row, status="intended"))
    store.update_placement(job.id, 1, status="launched", launched_at=1.0)
    job.move(to=["local/east"], off=2)
    assert job.refresh().row.want is None, "it has left the machine that it was to be moved off"
    job.move(to=["local/east"], off=1)
    assert job.refresh().row.want == 'move 1 ["local/east"]'
    again = f"another one was asked for: broker migrate {job.id} --to 'local/e*'"
    assert _elsewhere(job, ["local/e*"]).endswith(again)
    store.event(job.id, "warning", f"{NOTHING} within local/e*: refused; going elsewhere")
    assert _elsewhere(job, ["local/e*"]).startswith("nothing within local/e* was to be had after all")
