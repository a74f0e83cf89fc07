"""How AWS's APIs look on the wire: what a signed request says, and answers in EC2's XML and in JSON 1.1."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"
REASONS = {200: "OK", 400: "Bad Request", 403: "Forbidden", 404: "Not Found", 500: "Internal Server Error"}


@dataclass(frozen=True, slots=True)
class Request:
    """service, region, key: from the signature. form: a query API's parameters. data: a JSON API's. body: as sent."""

    method: str
    path: str
    service: str
    region: str
    key: str
    action: str
    headers: Mapping[str, str]
    form: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    body: bytes = b""
    environ: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def items(self, name: str) -> list[str]:
        """A list's values: `InstanceId.1`, `InstanceId.2` …"""
        found = [
            (int(key.split(".")[1]), value) for key, value in self.form.items() if re.fullmatch(rf"{name}\.\d+", key)
        ]
        return [value for _, value in sorted(found)]

    def filters(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for key, value in self.form.items():
            if match := re.fullmatch(r"Filter\.(\d+)\.Name", key):
                found[value] = self.items(rf"Filter\.{match[1]}\.Value") or [
                    v for k, v in self.form.items() if k.startswith(f"Filter.{match[1]}.Value.")
                ]
        return found


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    kind: str = "text/xml;charset=UTF-8"
    headers: Mapping[str, str] = field(default_factory=dict)


def read(environ: Mapping[str, Any]) -> Request:
    """The request; the body can be read again by whoever comes next."""
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    headers = {key[5:].replace("_", "-").lower(): value for key, value in environ.items() if key.startswith("HTTP_")}
    scope = re.search(r"Credential=([^/]+)/\d{8}/([^/]+)/([^/]+)/", headers.get("authorization", ""))
    key, region, service = scope.groups() if scope else ("", "", "")
    target = headers.get("x-amz-target", "")
    form: dict[str, str] = {}
    data: dict[str, Any] = {}
    if target:
        data = json.loads(body or b"{}")
    elif environ.get("CONTENT_TYPE", "").startswith("application/x-www-form-urlencoded"):
        form = dict(parse_qsl(body.decode(), keep_blank_values=True))
    return Request(
        method=environ["REQUEST_METHOD"],
        path=environ["PATH_INFO"],
        service=service,
        region=region,
        key=key,
        action=target.rpartition(".")[2] or form.get("Action", ""),
        headers=headers,
        form=form,
        data=data,
        body=body,
        environ=environ,
    )


def passed_on(app: Callable[..., Iterable[bytes]], request: Request, form: Mapping[str, str] | None = None) -> Answer:
    """What another WSGI application answers to the request, its form replaced where one is given."""
    from urllib.parse import urlencode

    body = request.body if form is None else urlencode(form).encode()
    environ = {**request.environ, "wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
    told: list[Any] = []
    chunks = app(environ, lambda status, headers, *_: told.extend((status, headers)))
    content = b"".join(chunks)
    status, headers = told
    kept = {k: v for k, v in headers if k.lower() not in ("content-length", "content-type", "date", "connection")}
    kind = next((v for k, v in headers if k.lower() == "content-type"), "text/xml")
    return Answer(int(status.split()[0]), content, kind, kept)


def ec2(action: str, inner: str) -> Answer:
    """EC2's envelope around an answer."""
    text = f'<{action}Response xmlns="{NAMESPACE}"><requestId>r-1</requestId>{inner}</{action}Response>'
    return Answer(200, f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode())


def ec2_error(code: str, message: str, status: int = 400) -> Answer:
    told = f"<Code>{escape(code)}</Code><Message>{escape(message)}</Message>"
    text = f"<Response><Errors><Error>{told}</Error></Errors><RequestID>r-1</RequestID></Response>"
    return Answer(status, f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode())


def element(name: str, value: Any) -> str:
    """XML of a value: dicts are children, lists are `item`s, None is left out."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        inner = "".join(element(key, one) for key, one in value.items())
    elif isinstance(value, list | tuple):
        inner = "".join(element("item", one) for one in value)
    elif isinstance(value, bool):
        inner = "true" if value else "false"
    else:
        inner = escape(str(value))
    return f"<{name}>{inner}</{name}>"


def as_json(data: Any, status: int = 200) -> Answer:
    return Answer(status, json.dumps(data).encode(), "application/x-amz-json-1.1")


def json_error(code: str, message: str, status: int = 400) -> Answer:
    body = json.dumps({"__type": code, "message": message}).encode()
    return Answer(status, body, "application/x-amz-json-1.1", {"x-amzn-errortype": code})


def query_error(code: str, message: str, status: int = 400) -> Answer:
    """The error of STS and its like."""
    told = f"<Type>Sender</Type><Code>{escape(code)}</Code><Message>{escape(message)}</Message>"
    return Answer(status, f"<ErrorResponse><Error>{told}</Error><RequestId>r-1</RequestId></ErrorResponse>".encode())
