"""Messages on their way: commands that hang, fail or tell too much, servers that are busy or send them elsewhere."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from broker import messages
from broker.messages import NotSent, post, run

MESSAGE: dict[str, Any] = {"event": "failed", "job": "j", "status": "failed", "subject": "né\0e", "text": "schön ✓"}


@pytest.mark.parametrize("command", ["echo $$ >{pid}; sleep 100; true", "echo $$ >{pid}; sleep 100 | cat >&2"])
def test_a_command_that_hangs_is_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(messages, "PATIENCE", 0.5)
    began = time.monotonic()
    with pytest.raises(NotSent, match="did not end within"):
        run(command.format(pid=tmp_path / "pid"), MESSAGE)
    assert time.monotonic() - began < 60
    group = int((tmp_path / "pid").read_text())
    while running(group):
        time.sleep(0.05)


def running(group: int) -> bool:
    """Is there a process in a group that has not ended? One that nobody has reaped has."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, pgrp, *_ = path.read_text().rpartition(")")[2].split()
            if int(pgrp) == group and state not in "ZX":
                return True
    return False


def test_what_a_command_leaves_in_the_background_holds_nothing_up(tmp_path: Path) -> None:
    run(f"(while [ ! -e {tmp_path}/end ]; do sleep 0.1; done; touch {tmp_path}/went-on) &", MESSAGE)
    (tmp_path / "end").touch()
    while not (tmp_path / "went-on").exists():
        time.sleep(0.05)


def test_any_bytes_go_in_and_come_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    run(f"cat >{tmp_path}/in; printf '%s' \"$SPOTBROKER_SUBJECT\" >{tmp_path}/subject; printf '\\377' >&2", MESSAGE)
    assert (tmp_path / "in").read_bytes() == "schön ✓\n".encode()
    assert (tmp_path / "subject").read_bytes() == "née".encode()
    with pytest.raises(NotSent) as raised:
        run("printf 'first\\nb\\377d \\033[31m\\n' >&2; exit 3", MESSAGE)
    assert raised.value.message == "exit 3: b\N{REPLACEMENT CHARACTER}d [31m"


def test_what_a_command_says_of_keys_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAT_TOKEN", "chat-example-0001")
    with pytest.raises(NotSent) as raised:
        run('echo "+ curl -u $CHAT_TOKEN https://ntfy.example.com/KEY0002?auth=KEY0003" >&2; exit 22', MESSAGE)
    assert raised.value.message == "exit 22: + curl -u *** https://ntfy.example.com/…"


class Server:
    """Answers what `answers` holds, one after another: a code, and where it sends one. got: what was asked for."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, str]] = []
        self.got: list[tuple[str, str, bytes, str]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                server.got.append((self.command, self.path, body, self.headers.get("Authorization") or ""))
                code, where = server.answers.pop(0) if server.answers else (200, "")
                self.send_response(code)
                if where:
                    self.send_header("Location", where)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST  # noqa: N815

            def log_message(self, *_: object) -> None:
                return

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.at = f"127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def asked(self) -> list[str]:
        return [f"{method} {path} {'with it' if body else 'without'}" for method, path, body, _ in self.got]


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


@pytest.mark.parametrize(
    ("code", "where", "then"),
    [
        (301, "/new", "POST /new with it"),
        (302, "/hook/", "POST /hook/ with it"),
        (307, "/new", "POST /new with it"),
        (308, "/new", "POST /new with it"),
        (302, "/answer", "GET /answer without"),
        (303, "/answer", "GET /answer without"),
    ],
)
def test_a_message_goes_where_it_is_sent_on_to(server: Server, code: int, where: str, then: str) -> None:
    server.answers = [(code, where)]
    post(f"http://{server.at}/hook", MESSAGE)
    assert server.asked == ["POST /hook with it", then]


def test_a_busy_server_is_asked_again_and_no_other(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "PAUSE", 0.01)
    server.answers = [(503, ""), (429, "")]
    post(f"http://{server.at}/hook", MESSAGE)
    assert len(server.got) == 3
    for code, times in ((502, 3), (500, 1), (404, 1)):
        server.got.clear()
        server.answers = [(code, "")] * 9
        with pytest.raises(NotSent, match=f"^127.0.0.1 answered {code}$"):
            post(f"http://{server.at}/hook/KEY0001", MESSAGE)
        assert len(server.got) == times
    server.http.server_close()
    server.http.shutdown()
    with pytest.raises(NotSent, match=r"^127\.0\.0\.1 did not answer: .*refused$"):
        post(f"http://{server.at}/hook/KEY0001", MESSAGE)


def test_an_address_may_have_a_login_and_any_letters(server: Server) -> None:
    server.answers = [(307, "/moved")]
    post(f"http://me:p%40ss@{server.at}/alarm/schön?to=büro%20x#here", MESSAGE)
    assert [path for _, path, _, _ in server.got] == ["/alarm/sch%C3%B6n?to=b%C3%BCro%20x", "/moved"]
    assert {login for _, _, _, login in server.got} == {"Basic bWU6cEBzcw=="}
