"""A registry of container images, as docker and podman pull from it: one repository for all, one that wants a login.

It speaks the pull half of the OCI distribution specification, and keeps what `podman push` writes as a folder.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from clouds.engine import Podman

__all__ = ["Registry", "registry"]

MANIFEST = "application/vnd.oci.image.manifest.v1+json"


class Registry:
    """place: `host:port`, as image names begin with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifests: dict[str, tuple[str, bytes]] = {}
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                code, kind, data = registry.answer(self.path)
                self.send_response(code)
                if code == 401:
                    self.send_header("WWW-Authenticate", 'Basic realm="registry"')
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(data)

            do_HEAD = do_GET  # noqa: N815 - the handler's own way of naming

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.place = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def push(self, podman: Podman, image: str, name: str) -> None:
        """Keep an image of the engine's under `repository:tag`."""
        podman("push", "--quiet", "--format", "oci", image, f"dir:{self.folder}")
        data = (self.folder / "manifest.json").read_bytes()
        self.manifests[name] = (json.loads(data).get("mediaType", MANIFEST), data)

    def answer(self, path: str) -> tuple[int, str, bytes]:
        _, _, rest = path.partition("/v2/")
        if not rest:
            return 200, "application/json", b"{}"
        name, kind, what = rest.rpartition("/manifests/") if "/manifests/" in rest else rest.rpartition("/blobs/")
        if name.startswith("private/"):
            return 401, "application/json", _error("UNAUTHORIZED", "authentication required")
        if "blobs" in kind:
            file = self.folder / what.removeprefix("sha256:")
            return (200, "application/octet-stream", file.read_bytes()) if file.is_file() else _unknown("BLOB_UNKNOWN")
        for known, (media, data) in self.manifests.items():
            digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
            if known == f"{name}:{what}" or (known.startswith(f"{name}:") and what == digest):
                return 200, media, data
        return _unknown("MANIFEST_UNKNOWN")


def _error(code: str, message: str) -> bytes:
    return json.dumps({"errors": [{"code": code, "message": message}]}).encode()


def _unknown(code: str) -> tuple[int, str, bytes]:
    return 404, "application/json", _error(code, code.lower().replace("_", " "))


@pytest.fixture
def registry() -> Iterator[Registry]:
    with tempfile.TemporaryDirectory() as folder:
        made = Registry(Path(folder))
        yield made
        made.server.shutdown()
        made.server.server_close()
