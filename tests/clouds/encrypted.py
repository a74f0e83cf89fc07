"""What AWS asks before a bucket opens, in front of a server that asks neither: for a KMS key, and for its owner's word.

Requests go through as they are signed. A session's own policy is read from its token, as SeaweedFS writes it.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

NS = "http://s3.amazonaws.com/doc/2006-03-01/"


@dataclass
class Gate:
    """behind: the real server's URL. kms: what the bucket is encrypted with, empty for nothing. may_use: the access
    keys whose own IAM policy lets them use it. owner: the account that the bucket is of. lets_in: the access keys that
    its policy lets in, None for all. region: where the bucket lies. endpoint: where this answers.
    """

    behind: str
    kms: str = ""
    may_use: set[str] = field(default_factory=set)
    owner: str = ""
    lets_in: set[str] | None = None
    region: str = ""
    endpoint: str = ""

    def refusal(self, method: str, path: str, query: Mapping[str, list[str]], headers: Mapping[str, str]) -> str:
        """Why this is refused; empty where it is not."""
        scope = query.get("X-Amz-Credential") or re.findall(r"Credential=([^,]+)", headers.get("authorization", ""))
        key = scope[0].split("/")[0] if scope else ""
        token = headers.get("x-amz-security-token") or (query.get("X-Amz-Security-Token") or [""])[0]
        of_bucket = path.strip("/").count("/") == 0
        if path == "/":
            return ""
        expected = headers.get("x-amz-expected-bucket-owner")
        if (expected and self.owner and expected != self.owner) or (
            self.lets_in is not None and key not in self.lets_in
        ):
            return "Access Denied"
        if not self.kms or of_bucket or method not in ("PUT", "POST", "GET"):
            return ""
        action = "kms:Decrypt" if method == "GET" else "kms:GenerateDataKey"
        if self._allows(token, action) if token else key in self.may_use:
            return ""
        return (
            f"User: {key} is not authorized to perform: {action} on resource: {self.kms} because no identity-based "
            f"policy allows the {action} action"
        )

    def _allows(self, token: str, action: str) -> bool:
        body = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        policy = json.loads(claims.get("spol") or "{}")
        return any(
            action in statement["Action"] and any(one in (self.kms, "*") for one in statement["Resource"])
            for statement in policy.get("Statement", ())
        )


@contextmanager
def before(behind: str, **told: Any) -> Iterator[Gate]:
    """A gate before that server, on a port of its own."""
    gate = Gate(behind, **told)
    where = urlsplit(behind)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1

        def log_message(self, *args: Any) -> None:
            pass

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = urlsplit(self.path)
            headers = {name.lower(): value for name, value in self.headers.items()}
            query = parse_qs(parts.query, keep_blank_values=True)
            if why := gate.refusal(self.command, parts.path, query, headers):
                text = f"<Error><Code>AccessDenied</Code><Message>{why}</Message></Error>"
                self.send(403, {"Content-Type": "application/xml"}, b"" if self.command == "HEAD" else text.encode())
            elif self.command == "GET" and "encryption" in query and gate.kms:
                told = f"<SSEAlgorithm>aws:kms</SSEAlgorithm><KMSMasterKeyID>{gate.kms}</KMSMasterKeyID>"
                rule = f"<Rule><ApplyServerSideEncryptionByDefault>{told}</ApplyServerSideEncryptionByDefault></Rule>"
                name = "ServerSideEncryptionConfiguration"
                text = f'<{name} xmlns="{NS}">{rule}</{name}>'
                self.send(200, {"Content-Type": "application/xml"}, text.encode())
            else:
                self.passed_on(body)

        def passed_on(self, body: bytes) -> None:
            connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=60)
            try:
                connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    connection.putheader(name, value)
                connection.endheaders(body)
                found = connection.getresponse()
                content = found.read()
                kept = {k: v for k, v in found.getheaders() if k.lower() not in ("transfer-encoding", "connection")}
                self.send(
                    found.status, {**kept, **({"x-amz-bucket-region": gate.region} if gate.region else {})}, content
                )
            finally:
                connection.close()

        def send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                if name.lower() != "content-length":
                    self.send_header(name, value)
            size = headers.get("Content-Length") or headers.get("content-length") if self.command == "HEAD" else None
            self.send_header("Content-Length", size or str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            self.wfile.flush()

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    gate.endpoint = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield gate
    finally:
        server.shutdown()
        server.server_close()
