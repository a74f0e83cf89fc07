"""HTTP with JSON against a real server that answers what a test has laid out, or breaks the connection."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from broker.errors import (
    Ambiguous,
    AuthFailed,
    InvalidRequest,
    NoCapacity,
    NotFound,
    ProviderError,
    ProviderUnavailable,
    RateLimited,
)
from broker.keys import Key
from broker.rest import RETRY_AFTER, Budget, Rest

KEY = Key("k-EXAMPLE-1", "a test")


class Vendor:
    """A server that gives one answer after another, and remembers what it was asked."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str], bytes]] = []
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.hang_up = False
        vendor = self

        class Handler(BaseHTTPRequestHandler):
            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                vendor.asked.append((self.command, self.path, dict(self.headers), body))
                if vendor.hang_up:
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                    return
                status, headers, answer = vendor.answers.pop(0)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST = do_PUT = do_DELETE = handle_any  # noqa: N815

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def says(self, status: int, answer: Any = None, **headers: str) -> None:
        raw = answer if isinstance(answer, bytes) else b"" if answer is None else json.dumps(answer).encode()
        self.answers.append((status, {name.replace("_", "-"): value for name, value in headers.items()}, raw))

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def vendor() -> Iterator[Vendor]:
    made = Vendor()
    yield made
    made.close()


def rest(vendor: Vendor, **changes: Any) -> Rest:
    return Rest("acme", vendor.base, **{"key": KEY, "how_to_key": "keys are made at acme.example", **changes})


def test_key_travels_in_the_header_only(vendor: Vendor) -> None:
    vendor.says(200, {"fine": True})
    assert rest(vendor).call("POST", "/things", params={"limit": 3}, body={"a": 1}) == {"fine": True}
    method, path, headers, body = vendor.asked[0]
    assert (method, path, json.loads(body)) == ("POST", "/things?limit=3", {"a": 1})
    assert headers["Authorization"] == f"Bearer {KEY.value}"
    assert KEY.value not in path + body.decode()
    assert KEY.value not in repr(rest(vendor).key)


def test_netrc_does_not_take_the_keys_place(vendor: Vendor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("default login somebody password else\n")
    monkeypatch.setenv("NETRC", str(netrc))
    vendor.says(200, {})
    vendor.says(200, {})
    rest(vendor).call("GET", "/")
    rest(vendor, key=None).call("GET", "/", keyless=True)
    assert vendor.asked[0][2]["Authorization"] == f"Bearer {KEY.value}"
    assert "Authorization" not in vendor.asked[1][2]


def test_without_a_key_nothing_is_sent(vendor: Vendor) -> None:
    with pytest.raises(AuthFailed) as caught:
        rest(vendor, key=None).call("GET", "/things")
    assert caught.value.fix == "keys are made at acme.example"
    assert not vendor.asked


def test_an_answer_without_body_is_none(vendor: Vendor) -> None:
    vendor.says(204)
    assert rest(vendor).call("DELETE", "/things/1") is None


@pytest.mark.parametrize(
    ("status", "kind", "creating"),
    [
        (400, InvalidRequest, InvalidRequest),
        (401, AuthFailed, AuthFailed),
        (403, AuthFailed, AuthFailed),
        (404, NotFound, NotFound),
        (408, ProviderUnavailable, Ambiguous),
        (418, ProviderError, ProviderError),
        (422, InvalidRequest, InvalidRequest),
        (429, RateLimited, RateLimited),
        (500, ProviderUnavailable, Ambiguous),
        (502, ProviderUnavailable, Ambiguous),
        (504, ProviderUnavailable, Ambiguous),
    ],
)
def test_each_status_is_one_decision(
    vendor: Vendor, status: int, kind: type[ProviderError], creating: type[ProviderError]
) -> None:
    for paid, expected in ((False, kind), (True, creating)):
        vendor.says(status, {"message": "because"})
        with pytest.raises(ProviderError) as caught:
            rest(vendor).call("PUT", "/things", creating=paid)
        assert type(caught.value) is expected
        assert "because" in str(caught.value)
        assert caught.value.code == str(status)


def test_a_redirected_create_is_not_followed(vendor: Vendor) -> None:
    vendor.says(307, None, Location=f"{vendor.base}/elsewhere")
    with pytest.raises(Ambiguous):
        rest(vendor).call("POST", "/things", creating=True)
    assert len(vendor.asked) == 1


@pytest.mark.parametrize(
    ("headers", "least", "most"),
    [
        ({}, RETRY_AFTER, RETRY_AFTER),
        ({"Retry_After": "7"}, 7.0, 7.0),
        ({"Retry_After": "soon"}, RETRY_AFTER, RETRY_AFTER),
        ({"Retry_After": "-3"}, 0.0, 0.0),
        ({"Retry_After": "in a minute"}, RETRY_AFTER, RETRY_AFTER),
    ],
)
def test_a_429_may_say_when_and_may_be_no_json(
    vendor: Vendor, headers: dict[str, str], least: float, most: float
) -> None:
    vendor.says(429, b"API requests too frequent", **headers)
    with pytest.raises(RateLimited) as caught:
        rest(vendor).call("GET", "/")
    assert least <= caught.value.retry_after <= most
    assert "too frequent" in str(caught.value)


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        (lambda: str(int(time.time()) + 30), 30.0),
        (lambda: str(int(time.time()) - 30), 0.0),
        (lambda: "nan", RETRY_AFTER),
        (lambda: "inf", RETRY_AFTER),
        (lambda: "soon", RETRY_AFTER),
        (lambda: "31536000", 86_400.0),
        (lambda: "0", 0.0),
    ],
)
def test_retry_after_in_other_units_is_no_year(vendor: Vendor, said: Callable[[], str], seconds: float) -> None:
    vendor.says(429, Retry_After=said())
    with pytest.raises(RateLimited) as caught:
        Rest("fake", vendor.base, key=KEY).call("GET", "/x")
    assert caught.value.retry_after == pytest.approx(seconds, abs=10 if seconds == 30.0 else 0.01)


def test_retry_after_may_be_a_date(vendor: Vendor) -> None:
    vendor.says(429, {}, Retry_After=formatdate(time.time() + 30, usegmt=True))
    with pytest.raises(RateLimited) as caught:
        rest(vendor).call("GET", "/")
    assert 25 < caught.value.retry_after <= 30


def test_the_vendors_own_words_come_first(vendor: Vendor) -> None:
    def explain(status: int, data: Any) -> ProviderError | None:
        return NoCapacity("none left", provider="acme", code=data["error"]) if data["error"] == "sold_out" else None

    vendor.says(400, {"error": "sold_out"})
    vendor.says(400, {"error": "typo"})
    with pytest.raises(NoCapacity):
        rest(vendor, explain=explain).call("PUT", "/", creating=True)
    with pytest.raises(InvalidRequest):
        rest(vendor, explain=explain).call("PUT", "/", creating=True)


@pytest.mark.parametrize("answer", [b"<html>maintenance</html>", b'{"cut": tr', b"\xff\xfe"])
def test_success_that_is_no_json_is_no_answer(vendor: Vendor, answer: bytes) -> None:
    vendor.says(200, answer)
    with pytest.raises(ProviderUnavailable):
        rest(vendor).call("GET", "/")
    vendor.says(200, answer)
    with pytest.raises(Ambiguous):
        rest(vendor).call("PUT", "/", creating=True)


def test_a_broken_connection_is_ambiguous_once_something_was_sent(vendor: Vendor) -> None:
    vendor.hang_up = True
    with pytest.raises(ProviderUnavailable):
        rest(vendor).call("GET", "/")
    with pytest.raises(Ambiguous):
        rest(vendor).call("PUT", "/", creating=True)


def test_a_proxy_that_is_away_is_said_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with pytest.raises(ProviderUnavailable) as caught:
        Rest("acme", "https://acme.example", key=KEY).call("PUT", "/", creating=True)
    assert str(caught.value).startswith("acme did not answer: Failed to establish a new connection: ")
    assert str(caught.value).endswith("Connection refused")


def test_what_never_left_has_made_nothing() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = Rest("acme", f"http://127.0.0.1:{closed.getsockname()[1]}", key=KEY)
        with pytest.raises(ProviderUnavailable):
            nobody.call("PUT", "/", creating=True)
    with pytest.raises(ProviderUnavailable) as caught:
        Rest("acme", "http://no-such-host.invalid", key=KEY).call("PUT", "/", creating=True)
    assert str(caught.value).startswith("acme did not answer: Failed to resolve 'no-such-host.invalid'")


# Budget


def calls(budget: Budget, lane: str, count: int) -> list[float]:
    began, found = time.monotonic(), []
    for _ in range(count):
        budget.wait(lane)
        found.append(time.monotonic() - began)
    return found


def test_a_lane_keeps_its_interval_and_others_are_free(tmp_path: Path) -> None:
    budget = Budget(tmp_path, "acme", KEY, {"get": 0.1})
    moments = calls(budget, "get", 4)
    assert all(at >= 0.1 * number - 0.01 for number, at in enumerate(moments)), moments
    assert calls(budget, "put", 50)[-1] < 0.1


def test_a_quota_lets_a_burst_through_and_no_more(tmp_path: Path) -> None:
    budget = Budget(tmp_path, "acme", KEY, {}, quotas={"search": (3, 0.5)})
    moments = calls(budget, "search", 7)
    assert moments[2] < 0.4, "the burst waited"
    assert all(at >= 0.5 * (number // 3) - 0.01 for number, at in enumerate(moments)), moments


def test_threads_share_a_lane(tmp_path: Path) -> None:
    began, found = time.monotonic(), list[float]()

    def work() -> None:
        Budget(tmp_path, "acme", KEY, {"get": 0.05}).wait("get")
        found.append(time.monotonic())

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(found) - began >= 5 * 0.05 - 0.01


def test_processes_share_a_lane_and_keys_do_not(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from broker.keys import Key; from broker.rest import Budget\n"
        "Budget(Path(sys.argv[1]), 'acme', Key('k-EXAMPLE-1', ''), {'get': 0.5}).wait('get'); print(time.time())"
    )
    budget = Budget(tmp_path, "acme", KEY, {"get": 0.5})
    budget.wait("get")
    began = time.time()
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True, timeout=60
    )
    budget.wait("get")
    assert time.time() - began >= 0.95 or float(done.stdout) - began >= 0.95
    assert calls(Budget(tmp_path, "acme", Key("k-EXAMPLE-2", ""), {"get": 0.5}), "get", 1)[0] < 0.2
    names = [path.name for path in (tmp_path / "rates").iterdir()]
    assert len(names) == 2
    assert not any(KEY.value in name for name in names)


@pytest.mark.parametrize("left", ["", "nonsense", "-1", "9e99", "nan", "1.0 2.0 garbage"])
def test_what_lies_in_the_way_stops_no_lane(tmp_path: Path, left: str) -> None:
    budget = Budget(tmp_path, "acme", KEY, {"get": 30.0})
    budget.folder.mkdir(parents=True)
    (budget.folder / "get").write_text(left)
    assert calls(budget, "get", 1)[0] < 1.0


def test_a_clock_that_went_back_stops_no_lane(tmp_path: Path) -> None:
    budget = Budget(tmp_path, "acme", KEY, {"get": 0.05})
    budget.folder.mkdir(parents=True)
    (budget.folder / "get").write_text(repr(time.time() + 3600))
    assert calls(budget, "get", 1)[0] < 0.5


def test_every_call_waits_for_its_lane(vendor: Vendor, tmp_path: Path) -> None:
    budget = Budget(tmp_path, "acme", KEY, {"get": 0.1, "slow": 0.2})
    api = rest(vendor, budget=budget)
    began = time.monotonic()
    for lane in ("", "", "slow", "slow"):
        vendor.says(200, {})
        api.call("GET", "/", lane=lane)
    assert time.monotonic() - began >= 0.29
