"""Secrets and the hosts that could read them; offers without a key; what a prepaid account pays for."""

from __future__ import annotations

import json
import subprocess

import pytest
from cli.command import Cli
from cli.shop import KEY, given
from cli.terminal import Terminal
from clouds.seaweedfs import SeaweedFS

TASK = """\
name: tune
run: nvidia-smi
checkpoint: {path: ckpt}
resources: {accelerators: L4, disk_size: 1, infra: shop}
"""
SECRET = "secrets: {HF_TOKEN: hf-secret-EXAMPLE}\n"


@pytest.fixture
def keyed(market: Cli) -> Cli:
    assert given(market, KEY, "shop").returncode == 0
    return market


def task(cli: Cli, more: str = "") -> None:
    (cli.folder / "tune.yaml").write_text(TASK + more)


def plan(cli: Cli) -> str:
    return cli("plan", "tune.yaml").stdout


def test_a_secret_is_kept_from_anybodys_hosts_and_the_plan_says_what_that_costs(keyed: Cli) -> None:
    task(keyed)
    assert "trust" not in plan(keyed)
    task(keyed, SECRET)
    shown = plan(keyed)
    assert (
        "HF_TOKEN: clouds and vouched data centres only. 2 offers from $0.3201 hidden; the cheapest left is $0.4001"
        in shown
    )
    assert "a community host could read HF_TOKEN" in shown
    assert "EXAMPLE" not in shown
    told = keyed.json("plan", "tune.yaml")
    assert told["offer"]["region"] == "r1"
    assert told["trust"] in shown
    task(keyed, "secrets: {HF_TOKEN: {value: hf-secret-EXAMPLE, trust: community}}\n")
    assert keyed.json("plan", "tune.yaml")["offer"]["region"] == "r2"
    task(keyed, "secrets: {HF_TOKEN: {value: hf-secret-EXAMPLE, trust: cloud}}\n")
    refused = keyed("plan", "tune.yaml", code=75)
    assert "`secrets: {HF_TOKEN: {trust: datacenter}}` in the task would let it" in refused.stderr


def test_one_is_asked_once_and_cron_goes_by_the_answer(keyed: Cli) -> None:
    task(keyed, SECRET)
    with Terminal(keyed, "run", "tune.yaml") as terminal:
        terminal.until("in every run of tune? [y/N]")
        assert "HF_TOKEN: kept from community hosts, whose owners could read it." in terminal.shown
        assert "2 offers from $0.3201 hidden; the cheapest left is $0.4001" in terminal.shown
        terminal.type("y\n")
        terminal.until("Rent shop/r2/r2-a spot at 0.3201 USD/h? [y/N]")
        terminal.type("n\n")
        assert terminal.ended() == 1
    assert json.loads((keyed.state / "consents.json").read_text()) == {"tune": {"HF_TOKEN": "community"}}
    assert (keyed.state / "consents.json").stat().st_mode & 0o777 == 0o600
    assert keyed.json("plan", "tune.yaml")["offer"]["region"] == "r2"
    task(keyed, SECRET.replace("HF_TOKEN", "OTHER"))
    assert keyed.json("plan", "tune.yaml")["offer"]["region"] == "r1", "the answer was about one secret"
    task(keyed, "secrets: {HF_TOKEN: {value: x, trust: datacenter}}\n")
    assert keyed.json("plan", "tune.yaml")["offer"]["region"] == "r1", "the task's own word wins"


def test_a_no_is_remembered_too(keyed: Cli) -> None:
    task(keyed, SECRET)
    with Terminal(keyed, "run", "tune.yaml") as terminal:
        terminal.until("in every run of tune? [y/N]")
        terminal.type("\n")
        terminal.until("Rent shop/r1/r1-a spot at 0.4001 USD/h? [y/N]")
        terminal.type("n\n")
        assert terminal.ended() == 1
    with Terminal(keyed, "run", "tune.yaml") as terminal:
        terminal.until("Rent shop/r1/r1-a spot")
        assert "in every run" not in terminal.shown
        terminal.type("n\n")
        assert terminal.ended() == 1


def test_without_a_terminal_and_with_yes_nobody_consents(keyed: Cli) -> None:
    task(keyed, SECRET)
    process = keyed.start("run", "tune.yaml", "--dry-run", "-y", stdin=subprocess.DEVNULL)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "hidden" in out
    assert keyed("run", "tune.yaml", code=2).stderr.count("Rent shop/r1") >= 1
    assert not (keyed.state / "consents.json").exists()


def test_offers_without_a_key_are_shown_marked_and_never_taken(market: Cli) -> None:
    done = market("offers", "L4")
    rows = [line for line in done.stdout.splitlines() if "shop/" in line]
    assert len(rows) == 4
    assert all(line.endswith("no key yet") for line in rows)
    assert "shop: no key yet: keys are made at https://shop.example/keys; `broker check shop` takes one" in done.stderr
    assert not any(line.endswith("no key yet") for line in done.stdout.splitlines() if "plain/" in line)
    task(market)
    refused = market("run", "tune.yaml", "-y", code=78)
    assert "4 offers fit and none can be rented from here: shop: no key yet" in refused.stderr
    assert refused.stderr.endswith("  try: broker check shop\n")
    (market.folder / "tune.yaml").write_text(TASK.replace("infra: shop", "infra: [shop, plain]"))
    assert market.json("plan", "tune.yaml")["offer"]["provider"] == "plain"


def test_a_balance_is_held_against_the_plan(keyed: Cli) -> None:
    task(keyed)
    assert "$20.00 prepaid with shop, enough for 62 h at 0.32 USD/h" in plan(keyed)
    task(keyed, "work: {hours: 100, on: L4}\n")
    shown = plan(keyed)
    assert "finishing is expected to cost $" in shown
    (keyed.folder / "config.toml").write_text("[providers.shop]\nbalance = 0.25\n")
    refused = keyed("run", "tune.yaml", "-y", code=78)
    assert "too little money: $0.25 prepaid does not pay for an hour; add some in shop's console" in refused.stderr


def test_a_run_on_real_machines_offers_to_make_a_home_first(keyed: Cli, seaweedfs: SeaweedFS) -> None:
    task(keyed)
    refused = keyed("run", "tune.yaml", "-y", code=78)
    assert "is a folder on this computer, which no machine of shop can reach" in refused.stderr
    assert refused.stderr.endswith("  try: broker home setup makes a home in an object store\n")
    bucket = seaweedfs.new_home("").removeprefix("s3://")
    with Terminal(keyed, "run", "tune.yaml") as terminal:
        terminal.until("USD/h? [y/N]")
        terminal.type("y\n")
        terminal.until("Make a home in an object store now? [y/N]")
        terminal.type("y\n")
        for question, answer in (
            ("Store [r2]: ", seaweedfs.endpoint), ("Bucket [", bucket), ("key id: ", "minter"),
            ("(not shown): ", "minter-secret"),
        ):  # fmt: skip
            terminal.until(question)
            terminal.type(f"{answer}\n")
        terminal.until("submitted; Ctrl-C asks")
    (job,) = keyed.json("ps", "-a")
    assert job["home"] == f"s3://{bucket}"


def test_a_home_with_one_key_for_all_keeps_marketplaces_out(keyed: Cli) -> None:
    task(keyed)
    config = keyed.folder / "config.toml"
    config.write_text('home = "s3://bucket/home"\n')
    refused = keyed("plan", "tune.yaml", code=78)
    assert "shop: machines would get the home's key as [home_config] has it, and it has none" in refused.stderr
    home = 'home = "s3://bucket/home"\n[home_config]\naccess_key_id = "AKIA"\nsecret_access_key = "s"\n'
    config.write_text(home)
    refused = keyed("plan", "tune.yaml", code=75)
    assert "could read the home's key; `broker home setup` can find keys for one job only" in refused.stderr
    (keyed.folder / "tune.yaml").write_text(TASK.replace("infra: shop", "infra: [shop, plain]"))
    shown = plan(keyed)
    assert "the home's key: clouds only. 4 offers from $0.3201 hidden" in shown
    config.write_text(f"{home}dedicated = true\n")
    assert "the home's key" not in plan(keyed)


def test_where_only_instance_profiles_reach_the_home_others_are_passed_over(keyed: Cli) -> None:
    task(keyed)
    settings = '[home_config]\nmint = "instance-profile"\ninstance_profile = "ours"\n'
    (keyed.folder / "config.toml").write_text(f'home = "s3://bucket/home"\n{settings}')
    refused = keyed("plan", "tune.yaml", code=78)
    assert "none can be rented from here: shop: its machines cannot have the instance profile ours" in refused.stderr
    assert "set mint in [home_config], such as federation" in refused.stderr
    assert "try: do what is said above" in refused.stderr
