"""EC2's instance metadata service, version 2 only, as one machine sees it."""

from __future__ import annotations

import http.server
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime

Answer = tuple[int, Mapping[str, str], bytes]
TOKEN = "/latest/api/token"
LONGEST = 21_600


class InstanceMetadata:
    """What 169.254.169.254 answers to one machine. token_life: seconds at most, shorter than asked for on request.

    silent: requests get no answer for so many seconds.
    """

    def __init__(self, instance_id: str, type_: str = "g6.xlarge", zone: str = "", region: str = "") -> None:
        self.pages: dict[str, str | Callable[[], str]] = {
            "/latest/meta-data/instance-id": instance_id,
            "/latest/meta-data/instance-type": type_,
            "/latest/meta-data/placement/availability-zone": zone,
            "/latest/meta-data/placement/region": region,
        }
        self.token_life = float(LONGEST)
        self.silent = 0.0
        self.status: int | None = None
        self.asked: list[tuple[str, str, int]] = []
        self._tokens: dict[str, float] = {}
        self._lock = threading.Lock()

    def interrupt(self, at: float, action: str = "terminate") -> None:
        """From now on there is a notice: `action` at that moment, seconds since the epoch."""
        told = {"action": action, "time": f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}"}
        self.pages["/latest/meta-data/spot/instance-action"] = json.dumps(told)

    def recommend(self) -> None:
        """EC2 recommends to rebalance."""
        told = {"noticeTime": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"}
        self.pages["/latest/meta-data/events/recommendations/rebalance"] = json.dumps(told)

    def grant(self, role: str, keys: Callable[[], Mapping[str, str]]) -> None:
        """The machine has a role; keys: AccessKeyId, SecretAccessKey, Token and Expiration, whenever they are asked."""
        base = "/latest/meta-data/iam/security-credentials/"
        told = {"Code": "Success", "Type": "AWS-HMAC", "LastUpdated": "2026-01-01T00:00:00Z"}
        self.pages[base] = self.pages[base.rstrip("/")] = role
        self.pages[f"{base}{role}"] = lambda: json.dumps({**told, **keys()})

    def forget_tokens(self) -> None:
        with self._lock:
            self._tokens.clear()

    def handle(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        if self.silent:
            time.sleep(self.silent)
        answer = self._answer(method, path.partition("?")[0], headers)
        with self._lock:
            self.asked.append((method, path, answer[0]))
        return answer

    def _answer(self, method: str, path: str, headers: Mapping[str, str]) -> Answer:
        named = {key.lower(): value for key, value in headers.items()}
        if self.status is not None:
            return self.status, {}, b""
        if path == TOKEN:
            wish = named.get("x-aws-ec2-metadata-token-ttl-seconds", "")
            if method != "PUT" or not wish.isdigit() or not 0 < int(wish) <= LONGEST or "x-forwarded-for" in named:
                return 400, {}, b""
            token = uuid.uuid4().hex
            with self._lock:
                self._tokens[token] = time.monotonic() + min(int(wish), self.token_life)
            return 200, {"X-aws-ec2-metadata-token-ttl-seconds": wish}, token.encode()
        with self._lock:
            good = self._tokens.get(named.get("x-aws-ec2-metadata-token", ""), 0.0) > time.monotonic()
        if not good:
            return 401, {}, b""
        if path not in self.pages:
            return 404, {}, b""
        page = self.pages[path]
        return 200, {"Content-Type": "text/plain"}, (page if isinstance(page, str) else page()).encode()


@contextmanager
def on_loopback(service: InstanceMetadata) -> Iterator[str]:
    """The service at a URL on loopback, for programs that are told so."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def _answer(self) -> None:
            status, headers, body = service.handle(self.command, self.path, dict(self.headers.items()), b"")
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = _answer  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Nothing: a test's output is for tests."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
