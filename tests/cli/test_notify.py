"""A job tells a command and a webhook how it ended, once; what cannot be told holds nothing up."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from cli.command import Cli


class Hook:
    """A webhook that keeps what it gets. status: what it answers."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.status = 200
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                hook.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(hook.status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook/KEY0003"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def hook() -> Iterator[Hook]:
    made = Hook()
    yield made
    made.server.shutdown()
    made.server.server_close()


def told_by(cli: Cli, notify: str, **options: Any) -> None:
    with (cli.task(**options) / "task.yaml").open("a", encoding="utf-8") as file:
        file.write(f"notify: {notify}\n")


def test_a_command_and_a_webhook_hear_of_the_end_once(cli: Cli, hook: Hook) -> None:
    out = cli.folder / "told"
    told_by(cli, f"{{command: 'echo $SPOTBROKER_EVENT >>{out}; cat >>{out}', webhook: env:HOOK}}", steps=8, pause=0.05)
    cli.env["HOOK"] = hook.url
    cli("run", "counter", "-y")
    cli("tick", "--wait", "1")
    (row,) = cli.json("ps", "-a")
    event, first, *rest = out.read_text().splitlines()
    assert (event, first) == ("finished", f"{row['id']} succeeded")
    assert any(line.startswith("took ") for line in rest)
    assert sum(line.startswith(row["id"]) for line in [first, *rest]) == 1
    (message,) = hook.got
    assert (message["event"], message["job"], message["status"]) == ("finished", row["id"], "succeeded")
    assert message["text"] == message["content"]
    found = [path for path in cli.state.rglob("*") if path.is_file() and b"KEY0003" in path.read_bytes()]
    assert found == [], "the URL is kept sealed"


def test_what_could_not_be_told_is_a_warning_without_the_url(cli: Cli, hook: Hook) -> None:
    hook.status = 500
    told_by(
        cli, f"{{command: 'echo out of order >&2; exit 3', webhook: '{hook.url}'}}", steps=6, pause=0.05, habit="fails"
    )
    done = cli("run", "counter", "-y", code=100)
    assert [message["event"] for message in hook.got] == ["failed"]
    shown = cli.json("show", "counter")
    warnings = [event["text"] for event in shown["events"] if event["kind"] == "warning"]
    assert "notify: the command was not told that the job has failed: exit 3: out of order" in warnings
    assert "notify: the webhook was not told that the job has failed: 127.0.0.1 answered 500" in warnings
    assert "KEY0003" not in json.dumps(shown) + done.stderr + done.stdout


def test_only_what_was_asked_for_is_told(cli: Cli, hook: Hook) -> None:
    told_by(cli, f"{{webhook: '{hook.url}', on: [failed, moved]}}", steps=6, pause=0.05)
    cli("run", "counter", "-y")
    assert hook.got == []


def test_a_variable_that_is_not_set_is_said_before_anything_is_rented(cli: Cli) -> None:
    told_by(cli, "{webhook: env:NO_SUCH_HOOK}")
    assert "the environment has no NO_SUCH_HOOK" in cli("run", "counter", "-y", code=78).stderr
    assert cli.json("ps", "-a") == []
