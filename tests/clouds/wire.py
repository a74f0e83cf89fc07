"""The HTTP half of a stand-in: a real server on a port of its own, a log of its calls, and the ways it can go wrong."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass
class Call:
    """One request as it came. key: what the Authorization header bears; body: its JSON, None without."""

    method: str
    path: str
    query: dict[str, str]
    key: str
    body: Any
    at: float


@dataclass
class Answer:
    """body: sent as JSON, or as it is where it is text; None sends nothing."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    kind: str = "application/json"


class Dropped(Exception):  # noqa: N818 - the connection is closed without an answer
    pass


class Wire:
    """A server; `answer` is the cloud, and `calls` all that it was asked.

    host: 127.0.0.1, or 0.0.0.0 where machines are to reach it.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        wire = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else each answer waits 40 ms for the client's ACK of its headers
            wbufsize = 65_536

            def _serve(self) -> None:
                wire._serve(self)

            do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _serve  # noqa: N815

            def log_message(self, *args: Any) -> None:
                pass

        self.calls: list[Call] = []
        self.lock = threading.RLock()
        self._server = ThreadingHTTPServer((host, 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answer(self, call: Call) -> Answer:
        raise NotImplementedError

    def counted(self) -> Counter[str]:
        """`METHOD /path` -> how often it was called."""
        with self.lock:
            return Counter(f"{call.method} {call.path}" for call in self.calls)

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(handler.path)
        raw = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        bearer = handler.headers.get("Authorization", "")
        try:
            body = json.loads(raw) if raw else None
        except ValueError:
            body = raw.decode("utf-8", "replace")
        call = Call(
            handler.command,
            parts.path,
            dict(parse_qsl(parts.query)),
            bearer.removeprefix("Bearer ").strip(),
            body,
            time.time(),
        )
        with self.lock:
            self.calls.append(call)
        try:
            self._send(handler, self.answer(call))
        except Dropped:
            handler.close_connection = True

    @staticmethod
    def _send(handler: BaseHTTPRequestHandler, answer: Answer) -> None:
        text = answer.body if isinstance(answer.body, str) else "" if answer.body is None else json.dumps(answer.body)
        raw = text.encode()
        handler.send_response(answer.status)
        for name, value in {"Content-Type": answer.kind, **answer.headers}.items():
            handler.send_header(name, value)
        if answer.status != 204:
            handler.send_header("Content-Length", str(len(raw)))
        handler.end_headers()
        if answer.status != 204:
            handler.wfile.write(raw)
        handler.wfile.flush()


class Faults:
    """Lies told on request: each is told once, or so many times, to the next calls that it fits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: list[tuple[str, Any, int]] = []

    def add(self, name: str, value: Any = True, times: int = 1) -> None:
        with self._lock:
            self._told.append((name, value, times))

    def take(self, name: str) -> Any:
        """The next lie of that name, None where there is none left."""
        with self._lock:
            for index, (known, value, times) in enumerate(self._told):
                if known == name:
                    self._told[index : index + 1] = [(known, value, times - 1)] if times > 1 else []
                    return value
        return None
