"""`broker verify`: what it rents is always ended, costs no more than was said, and is told without what is private."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cli import crooked
from cli.command import Cli
from cli.terminal import Terminal

from broker.meter import Ledger
from broker.provider import State
from broker.testing import wait_for as quickly
from broker_local import LocalProvider

KEY = "crooked-key-EXAMPLE"


@pytest.fixture
def market(cli: Cli) -> Cli:
    site = cli.folder / "site"
    crooked.install(site)
    cli.env["PYTHONPATH"] = f"{site}{os.pathsep}{cli.env['PYTHONPATH']}"
    return cli


ANY = tuple(state for state in State if state is not State.TERMINATED)


def alive(cli: Cli, states: Sequence[State] = ANY) -> list[str]:
    """Machines of `local` in one of these states, by default any that is billed."""
    return [i.id for i in LocalProvider({}, cli.state).instances() if i.state in states]


def ledger(cli: Cli) -> list[dict[str, Any]]:
    return list(Ledger(cli.state / "verify" / "local.log").entries())


def report(cli: Cli, provider: str) -> tuple[str, dict[str, Any]]:
    (page,) = cli.folder.glob(f"verify-{provider}-*.md")
    return page.read_text(), json.loads(page.with_suffix(".json").read_text())


def test_local_keeps_its_contract_on_a_users_account(cli: Cli) -> None:
    done = cli("verify", "local", "-y", "--max-usd", "1")
    assert "all that was tried is as the adapter expects" in done.stdout
    text, data = report(cli, "local")
    assert {verdict["result"] for verdict in data["verdicts"]} == {"kept"}
    assert {"O1", "L1", "L2", "L4", "L6", "I1", "I2", "T1", "T2", "N1"} <= {v["number"] for v in data["verdicts"]}
    assert data["measured"]["running after"]["calls"] >= 5
    assert 0 < data["spent"] < 0.01
    assert "| L2 | kept |" in text
    assert not alive(cli)
    assert str(cli.state) not in text


def started(cli: Cli, *more: str) -> subprocess.Popen[str]:
    """A run that has rented something just now."""
    process = cli.start("verify", "local", "-y", *more)
    # A simulated machine may live for a tenth of a second only.
    assert quickly(lambda: any(entry["what"] == "rented" for entry in ledger(cli)), 60.0, every=0.002)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_what_it_has_rented(cli: Cli, number: int) -> None:
    process = started(cli, "--only", "L1", "--only", "L5")
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted: ending what was rented" in err
    assert not alive(cli)
    report(cli, "local")
    assert "nothing is left" in cli("verify", "local", "--clean").stderr


def killed(cli: Cli) -> None:
    """A run that is killed while what it has rented lives; tried again where the machine's end was quicker."""
    for _ in range(10):
        process = started(cli, "--only", "L5")
        process.send_signal(signal.SIGSTOP)
        assert quickly(lambda: stopped(process.pid), 10.0)  # noqa: B023 - called at once
        left = alive(cli, (State.PENDING, State.RUNNING))
        process.kill()
        process.communicate()
        if left:
            return
        (cli.state / "verify" / "local.log").unlink()
    pytest.fail("no run could be killed in time")


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_what_a_killed_run_has_left_is_ended_by_hand_or_by_the_next(cli: Cli) -> None:
    killed(cli)
    assert "broker verify local --clean" in cli("check", "local", code=1).stdout
    done = cli("verify", "local", "--clean")
    assert "ending " in done.stderr
    assert not alive(cli)
    (cli.state / "verify" / "local.log").unlink()
    killed(cli)
    # As if it had been killed between the intent and the answer, while it wrote: the account knows the machine.
    path = cli.state / "verify" / "local.log"
    kept = [line for line in path.read_text().splitlines() if '"intent"' in line]
    path.write_text("\n".join(kept) + '\n{"what": "ren')
    done = cli("verify", "local", "-y", "--only", "O1")
    assert "an earlier run may have left something: ending it first" in done.stderr
    assert not alive(cli)


def test_one_is_asked_before_anything_is_rented(cli: Cli) -> None:
    refused = cli("verify", "local", code=2)
    assert "add -y to answer yes" in refused.stderr
    with Terminal(cli, "verify", "local") as terminal:
        terminal.until("Go on? [y/N]")
        assert "never for more than $1.00 in all" in terminal.shown
        terminal.type("n\n")
        assert terminal.ended() == 1
    assert not ledger(cli)


def test_what_may_cost_more_is_refused(cli: Cli) -> None:
    refused = cli("verify", "local", "-y", "--max-usd", "0.001", code=78)
    assert "the cheapest offer of local, local/north/north-1/cpu-2/spot, may cost 0.01 USD" in refused.stderr
    assert "--max-usd 0.01" in refused.stderr
    assert not ledger(cli)


def run(market: Cli, fault: str, *only: str) -> tuple[str, dict[str, Any]]:
    (market.folder / "config.toml").write_text(f'[providers.crooked]\nkey = "{KEY}"\nfault = "{fault}"\n')
    picked = [word for number in only for word in ("--only", number)]
    done = market("verify", "crooked", "-y", *picked, code=1)
    assert "differs: " in done.stdout
    assert KEY not in done.stdout + done.stderr
    return report(market, "crooked")


def test_a_difference_is_told_with_what_was_seen(market: Cli) -> None:
    text, data = run(market, "price", "O1", "L1")
    kept, differs = data["verdicts"]
    assert (kept["result"], differs["number"], differs["result"]) == ("kept", "L1", "differs")
    assert "did not hold: assert instance.hourly == pytest.approx(offer.hourly, rel=0.01)" in differs["detail"]
    assert any(line.startswith("instance = ") and "USD/h in r" in line for line in differs["detail"])
    assert "## L1 differs" in text


def test_an_adapters_own_bug_is_a_difference(market: Cli) -> None:
    _, data = run(market, "ghost", "T2")
    assert data["verdicts"][0]["detail"][0].startswith("ProviderError, code 'KeyError'")


def test_a_report_holds_nothing_private(market: Cli) -> None:
    text, data = run(market, "leaky", "L1")
    for private in ("123456789012", "203.0.113.7", "me@example.com", KEY, str(market.folder)):
        assert private not in text
        assert private not in json.dumps(data)
    assert "account <account " in text
    assert "E_42" in text, "the vendor's own code is what the report is for"


@pytest.mark.parametrize(
    ("args", "code", "what"),
    [
        (["verify", "nimbus"], 2, "there is no provider 'nimbus'"),
        (["verify", "local", "-y", "--only", "X9"], 78, "no safe sentence has the number X9"),
        (["verify"], 2, "Missing argument 'PROVIDER'"),
    ],
)
def test_what_is_wrong_is_named(cli: Cli, args: list[str], code: int, what: str) -> None:
    assert what in cli(*args, code=code).stderr
    assert Path(cli.folder).is_dir()
