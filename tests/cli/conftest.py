"""An installation of its own for every test, and one with a finished job for those that only look."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli import shop
from cli.command import Cli


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    made = Cli(tmp_path)
    # No vendor's real price list is ever asked by a test: what stands in for them is on loopback, by http.
    made.env |= {"HTTPS_PROXY": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    yield made
    if (made.state / "jobs.db").exists():
        made.end()


@pytest.fixture
def market(cli: Cli) -> Cli:
    """An installation with two third-party providers beside `local`."""
    site = cli.folder / "site"
    shop.install(site)
    cli.env["PYTHONPATH"] = f"{site}{os.pathsep}{cli.env['PYTHONPATH']}"
    cli.env.pop("SHOP_API_KEY", None)
    return cli


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Cli, str, subprocess.CompletedProcess[str]]:
    """An installation with one job that has succeeded: the command line, the job's id, what `run` said."""
    made = Cli(tmp_path_factory.mktemp("finished"))
    made.task(steps=10)
    done = made("run", "counter", "-y")
    (row,) = made.json("ps", "-a")
    return made, row["id"], done
