"""Metadata services: 169.254.169.254:80 inside one machine's own network, and nowhere else."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Mapping
from typing import Protocol

from clouds.network import METADATA_ADDRESS, Link

Answer = tuple[int, Mapping[str, str], bytes]


class Metadata(Protocol):
    """What a cloud answers to one machine. Called from several threads at once."""

    def handle(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """One request -> status, headers, body.

        path: as sent, with its query. headers: looked up in any case. Content-Length is added. What it raises becomes
        a 500 and a traceback on the runner's stderr.
        """
        ...


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            status, headers, content = self.server.metadata.handle(self.command, self.path, self.headers, body)  # type: ignore[arg-type]
        except Exception:
            self.send_error(500)
            raise
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_PATCH = _answer  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing: a test's output is for tests."""


class Server(http.server.ThreadingHTTPServer):
    """One machine's metadata service, from its making until `close`."""

    def __init__(self, link: Link, metadata: Metadata) -> None:
        self.metadata = metadata
        super().__init__((METADATA_ADDRESS, 80), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = link.inside(lambda: socket.create_server((METADATA_ADDRESS, 80), backlog=64))
        threading.Thread(target=self.serve_forever, args=(0.05,), name="metadata", daemon=True).start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()
