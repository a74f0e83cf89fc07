"""The first minute at a marketplace, from its prices without an account to a plan, against Vast's stand-in."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest
from cli.command import Cli
from cli.shop import given
from clouds.seaweedfs import SeaweedFS
from clouds.vast.account import Account, Host
from clouds.vast.server import VastServer

TASK = """\
name: tune
run: nvidia-smi
checkpoint: {path: ckpt}
resources: {accelerators: RTX4090, disk_size: 20, infra: vast}
"""


@pytest.fixture
def vast(cli: Cli) -> Iterator[VastServer]:
    account = Account(boot=0.05)
    account.add(
        Host(31_550_001, 40_101, 9_001, dph=0.30, min_bid=0.15),
        Host(31_550_002, 40_102, 9_002, dph=0.50, min_bid=0.40, hosting_type=1),
        Host(31_550_003, 40_103, 9_003, dph=0.10, min_bid=0.05, reliability=0.90),
    )
    cli.env.pop("VAST_API_KEY", None)
    with VastServer(account, scale=0.002) as server:
        (cli.folder / "config.toml").write_text(f'# mine\n[providers.vast]\napi = "{server.url}"\npace = 0.01\n')
        yield server


def test_from_prices_to_a_plan(cli: Cli, vast: VastServer, seaweedfs: SeaweedFS) -> None:
    (cli.folder / "tune.yaml").write_text(TASK)

    # Prices without an account, marked, and what to do.
    shown = cli("offers", "RTX4090", "--infra", "vast")
    rows = [line for line in shown.stdout.splitlines() if "vast/" in line]
    assert len(rows) == 4
    assert all("no key yet" in row for row in rows)
    assert any("datacenter" in row for row in rows)
    assert any("community" in row for row in rows)
    assert "vast: no key yet: broker check vast takes a key; keys are made at https://cloud.vast.ai" in shown.stderr
    refused = cli("plan", "tune.yaml", code=78)
    assert "4 offers fit and none can be rented from here: vast: no key yet" in refused.stderr
    assert refused.stderr.endswith("  try: broker check vast\n")

    # A key, tested, with the balance.
    assert given(cli, "no-such-key", "vast").returncode == 78
    checked = given(cli, vast.account.key, "vast")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "prepaid" in checked.stdout
    assert vast.account.key not in checked.stdout + checked.stderr

    # A home.
    assert "broker home setup" in cli("run", "tune.yaml", "-y", code=78).stderr
    bucket = seaweedfs.new_home("").removeprefix("s3://")
    process = cli.start(
        "home", "setup", "--store", seaweedfs.endpoint, "--bucket", bucket, "--region", "us-east-1", "--key-stdin",
        stdin=subprocess.PIPE,
    )  # fmt: skip
    _, err = process.communicate("minter\nminter-secret\n", timeout=60)
    assert process.returncode == 0, err
    assert (cli.folder / "config.toml").read_text().startswith(f'home = "s3://{bucket}"\n# mine\n')

    # A plan: the cheapest of what is sound, and of who may read the secret.
    plan = cli.json("plan", "tune.yaml")
    assert (plan["home"], plan["offer"]["trust"]) == (f"s3://{bucket}", "community")
    assert "prepaid with vast, enough for" in plan["balance"]
    (cli.folder / "tune.yaml").write_text(TASK + "secrets: {HF_TOKEN: hf-secret-EXAMPLE}\n")
    assert cli.json("plan", "tune.yaml")["offer"]["trust"] == "datacenter"
    told = cli("plan", "tune.yaml").stdout
    assert re.search(r"2 offers from \$0\.1\d+ hidden; the cheapest left is \$0\.4\d+", told), told
    rows = [row for row in cli.json("check") if row["who"] in ("house", "vast")]
    assert {row["state"] for row in rows} == {"ok"}, rows
