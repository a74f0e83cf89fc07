"""The vendor's own client against the stand-in: what it can do there, Vast's service does in the same words.

It lives in a virtual environment of its own, since its pins are its own affair; that is made once and kept.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clouds.vast.stage import Stage

from broker.provider import State
from broker.testing.conformance import request_for

CLIENT = "vastai==1.9.1"
Run = Callable[..., Any]


@pytest.fixture(scope="session")
def vastai(pytestconfig: pytest.Config) -> Path:
    """The client's program. Skips with the reason where it cannot be installed."""
    cache = pytestconfig.cache
    assert cache is not None
    folder = cache.mkdir(CLIENT.replace("==", "-"))
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            for command in (
                [sys.executable, "-m", "venv", "--clear", str(folder / "venv")],
                [str(folder / "venv" / "bin" / "pip"), "install", "--quiet", "--retries=1", "--timeout=20", CLIENT],
            ):
                made = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
                if made.returncode:
                    pytest.skip(f"{CLIENT} cannot be installed: {made.stderr.strip()[-300:]}")
            (folder / "done").touch()
    return folder / "venv" / "bin" / "vastai"


@pytest.fixture
def vast(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path / "state") as stage:
        yield stage


@pytest.fixture
def run(vast: Stage, vastai: Path, tmp_path: Path) -> Run:
    def call(*arguments: str, raw: bool = True) -> Any:
        home = tmp_path / "home"
        home.mkdir(exist_ok=True)
        environment = {
            "HOME": str(home),
            "PATH": os.defpath,
            "VAST_URL": vast.server.url,
            "VAST_API_KEY": vast.account.key,
            "VASTAI_NO_UPDATE_CHECK": "1",
        }
        command = [str(vastai), *(["--raw"] if raw else []), *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout) if raw else done.stdout

    return call


def test_search(vast: Stage, run: Run) -> None:
    vast.host(dph=0.41, min_bid=0.19)
    vast.host(gpu_name="RTX 3090", gpu_ram=24268)
    vast.host(verification="unverified")
    vast.host(reliability=0.5)
    wish = "gpu_name=RTX_4090 num_gpus=1 reliability>0.9 gpu_ram>=24"
    (row,) = run("search", "offers", wish, "--storage", "20")
    assert (row["gpu_name"], row["dph_base"]) == ("RTX 4090", 0.41)
    (bid,) = run("search", "offers", wish, "--type", "bid", "--storage", "20")
    assert bid["min_bid"] == 0.19
    assert len(run("search", "offers", "verified=any", "--new")) == 4
    ours = {offer.extra["ask"] for offer in vast.offers()}
    assert ours == {row["id"]}


def test_life_of_an_interruptible(vast: Stage, run: Run) -> None:
    host = vast.host(dph=0.41, min_bid=0.19)
    made = run(
        "create", "instance", str(host.ask), "--image", "python:3.12", "--disk", "20", "--bid_price", "0.2",
        "--label", "mine", "--onstart-cmd", "/bin/sh", "--args", "-c", "sleep 60",
    )  # fmt: skip
    number = str(made["new_contract"])
    shown = run("show", "instance", number)
    assert (shown["is_bid"], shown["label"], shown["dph_base"]) == (True, "mine", 0.2)
    assert [row["id"] for row in run("show", "instances")] == [int(number)]
    assert not vast.provider().instances(), "what is not labelled as ours is none of our business"
    contract = vast.account.contracts[int(number)]
    assert contract.body["args"] == ["-c", "sleep 60"]
    vast.account.outbid(contract, 0.25)
    assert run("show", "instance", number)["cur_state"] == "stopped"
    run("change", "bid", number, "--price", "0.3", raw=False)
    assert run("show", "instance", number)["cur_state"] == "running"
    run("destroy", "instance", number, "-y", raw=False)
    assert not vast.account.contracts


def test_what_we_rent_it_shows(vast: Stage, run: Run) -> None:
    vast.host(dph=0.41, min_bid=0.19)
    instance = vast.provider().launch(request_for(vast.offer()))
    (row,) = run("show", "instances")
    assert str(row["id"]) == instance.id
    assert row["label"].startswith("spotbroker:conformance:")
    assert row["dph_total"] == pytest.approx(instance.hourly)
    run("stop", "instance", instance.id, raw=False)
    (seen,) = vast.provider().instances()
    assert seen.state is State.STOPPED
    run("start", "instance", instance.id, raw=False)
    (seen,) = vast.provider().instances()
    assert seen.state is State.RUNNING
    assert run("show", "user")["credit"] == pytest.approx(25.0, abs=0.1)


def test_every_page(vast: Stage, run: Run) -> None:
    host = vast.host(parts=60)
    for _ in range(60):
        vast.account.rent(host, {"label": "x", "image": "i", "price": 0.3})
    assert len(run("show", "instances")) == 60
