"""`broker check`: the house, every provider, keys taken without echo."""

from __future__ import annotations

import json
import os
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from cli.command import Cli
from cli.shop import KEY, given
from cli.terminal import Terminal

from broker.house import clock_finding


def found(rows: list[dict[str, Any]], who: str) -> dict[str, dict[str, Any]]:
    return {row["what"]: row for row in rows if row["who"] == who}


def test_a_new_installation_works_with_local(cli: Cli) -> None:
    rows = cli.json("check")
    house = found(rows, "house")
    assert {"name", "state folder", "home"} <= house.keys()
    assert {row["state"] for row in (*house.values(), *found(rows, "local").values())} == {"ok"}
    assert "put, list, get, delete and conditional put work" in house["home"]["found"]
    assert "6 offers" in found(rows, "local")["offers"]["found"]


def test_what_has_no_key_yet_is_no_fault_until_it_is_asked_for(market: Cli) -> None:
    done = market("check")
    assert "no key yet" in done.stdout
    assert "keys are made at https://shop.example/keys" in done.stdout
    assert "no key yet for " in done.stderr
    rows = market.json("check", "shop", code=78)
    assert found(rows, "shop")["key"]["state"] == "failed"
    assert "offers" in found(rows, "shop"), "its prices are public"


def test_a_key_from_stdin_is_kept_for_its_owner_only(market: Cli) -> None:
    done = given(market, KEY, "shop")
    assert done.returncode == 0, done.stderr
    assert KEY not in done.stdout + done.stderr
    kept = market.state / "keys" / "shop"
    assert kept.read_text() == f"{KEY}\n"
    assert kept.stat().st_mode & 0o777 == 0o600
    rows = market.json("check", "shop")
    assert found(rows, "shop")["balance"]["found"] == "$20.00 prepaid"
    assert found(rows, "shop")["quota"]["found"] == "4 machines at once"


def test_a_key_at_a_terminal_is_not_shown(market: Cli) -> None:
    with Terminal(market, "check", "shop") as terminal:
        terminal.until("Key for shop")
        terminal.type(f"{KEY}\n")
        assert terminal.ended() == 0
        assert KEY not in terminal.shown
        assert "$20.00 prepaid" in terminal.shown
    with Terminal(market, "check", "shop", "--new-key") as terminal:
        terminal.until("Key for shop")
        terminal.type("bad-key\n")
        assert terminal.ended() == 78
        assert "shop does not know this key" in terminal.shown
        assert "broker check shop --new-key" in terminal.shown


def test_keys_go_only_where_they_are_read(market: Cli) -> None:
    assert "plain takes no key here" in given(market, KEY, "plain").stderr
    assert given(market, KEY).returncode == 2
    assert "cannot be sent" in given(market, "", "shop").stderr or not (market.state / "keys" / "shop").exists()
    (market.folder / "config.toml").write_text('[providers.shop]\nkey = "good-old"\n')
    told = given(market, KEY, "shop")
    assert told.returncode == 2
    assert "[providers.shop] key" in told.stderr
    assert not (market.state / "keys" / "shop").exists()
    assert "there is no provider 'nimbus'" in market("check", "nimbus", code=2).stderr


def test_a_provider_without_any_checks_is_looked_over_by_what_all_have(market: Cli) -> None:
    rows = market.json("check", "plain")
    assert found(rows, "plain")["instances"]["found"] == "none of ours running"
    assert "offers, from 0.0" in found(rows, "plain")["offers"]["found"]
    (market.folder / "config.toml").write_text("[providers.plain]\ndown = true\npatience = 0.1\n")
    done = market("check", "plain", code=1)
    assert "connection refused" in done.stdout
    assert "1 thing to mend" in done.stderr


def test_an_empty_balance_is_a_fault(market: Cli) -> None:
    given(market, KEY, "shop")
    (market.folder / "config.toml").write_text("[providers.shop]\nbalance = 0\n")
    rows = market.json("check", "shop", code=1)
    assert found(rows, "shop")["balance"]["state"] == "failed"


def test_real_machines_need_a_real_home(market: Cli) -> None:
    given(market, KEY, "shop")
    rows = market.json("check", code=78)
    assert found(rows, "house")["home"]["fix"] == "broker home setup makes one in an object store"


def test_the_other_project_of_this_name_is_told_of(cli: Cli) -> None:
    info = cli.folder / "site" / "broker-0.6.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broker\nVersion: 0.6\n")
    (info / "entry_points.txt").write_text("[console_scripts]\nbroker = broker.commands:cli\n")
    cli.env["PYTHONPATH"] = f"{info.parent}{os.pathsep}{cli.env['PYTHONPATH']}"
    name = found(cli.json("check", code=78), "house")["name"]
    assert name["state"] == "failed"
    assert name["fix"].startswith("pip uninstall broker, then pip install --force-reinstall spotbroker")


def test_another_command_of_this_name_is_told_of(cli: Cli) -> None:
    other = cli.folder / "bin" / "broker"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\necho not ours\n")
    other.chmod(0o755)
    cli.env["PATH"] = f"{other.parent}{os.pathsep}{cli.env['PATH']}"
    name = found(cli.json("check", code=78), "house")["name"]
    assert (name["state"], name["fix"]) == ("failed", "call this one `spotbroker` instead")


def test_a_file_of_keys_that_others_can_read_is_told_of(market: Cli) -> None:
    given(market, KEY, "shop")
    (market.state / "keys" / "shop").chmod(0o644)
    done = market("check", code=78)
    assert f"chmod 600 {market.state / 'keys' / 'shop'}" in done.stdout


def test_a_state_folder_that_cannot_be_written_is_told_of(cli: Cli) -> None:
    cli.state.write_text("a file in its place")
    rows = cli.json("check", code=78)
    assert found(rows, "house")["state folder"]["state"] == "failed"


def test_quiet_prints_who_is_at_fault(market: Cli) -> None:
    assert market("-q", "check", "shop", code=78).stdout == "shop\n"
    assert market("-q", "check", "plain").stdout == ""


@pytest.mark.parametrize(("off", "ok"), [(0.0, True), (-600.0, False), (3600.0, False)])
def test_a_clock_that_is_wrong_is_seen_by_any_servers_date(off: float, ok: bool) -> None:
    class Dated(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response_only(403)
            self.send_header("Date", formatdate(time.time() + off, usegmt=True))
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Dated)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        finding = clock_finding(f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        server.server_close()
    assert finding.ok is ok
    assert ("behind" if off > 0 else "ahead of") in finding.found or ok


def test_check_help_says_that_nothing_is_rented(cli: Cli) -> None:
    assert "Rents nothing." in cli("check", "-h").stdout
    assert json.loads(cli("check", "local", "--json").stdout)
    assert Path(cli.folder).is_dir()


def test_a_provider_whose_package_is_not_there_is_simply_not_set_up(market: Cli) -> None:
    for name in ("boto3", "requests"):
        line = f"raise ModuleNotFoundError(\"No module named '{name}'\", name='{name}')\n"
        (market.folder / "site" / f"{name}.py").write_text(line)
    market.forks = False  # which would have them already
    market.env |= {"VAST_API_KEY": "a-key", "AWS_PROFILE": "mine"}
    rows = market.json("check")
    for who, package in (("aws", "boto3"), ("vast", "requests")):
        (row,) = found(rows, who).values()
        assert (row["what"], row["state"]) == ("package", "not set up"), row
        assert package in row["found"]
        assert row["fix"] == f"pip install 'spotbroker[{who}]'"
    assert found(market.json("check", "vast", code=78), "vast")["package"]["state"] == "failed"
