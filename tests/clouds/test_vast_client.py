"""The vendor's own client against the stand-in: what it can do there, Vast's service does in the same words.

It lives in a virtual environment of its own, since its pins are its own affair; that is made once and kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clouds import vendor
from clouds.vast.stage import Stage

from broker.provider import State
from broker.testing.conformance import request_for

CLIENT = "vastai==1.9.1"
# Its `main` can be called once in a process.
PROGRAM = """
import os, sys
from vastai.cli.main import main

def run(words):
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        sys.stdout, sys.stderr, sys.argv[1:] = open(writing, "w"), sys.__stderr__, words
        try:
            code = main()
        except SystemExit as end:
            code = end.code
        sys.stdout.flush()
        os._exit(code or 0)
    os.close(writing)
    with open(reading) as output:
        print(output.read(), end="")
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""
Run = Callable[..., Any]


@pytest.fixture
def vast(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path / "state") as stage:
        yield stage


@pytest.fixture
def run(vast: Stage, tmp_path: Path) -> Iterator[Run]:
    variables = {
        "HOME": str(tmp_path),
        "VAST_URL": vast.server.url,
        "VAST_API_KEY": vast.account.key,
        "VASTAI_NO_UPDATE_CHECK": "1",
    }
    with vendor.commands(PROGRAM, variables, CLIENT) as said:

        def call(*arguments: str, raw: bool = True) -> Any:
            shown = said(*(["--raw"] if raw else []), *arguments)
            return json.loads(shown) if raw else shown

        yield call


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
