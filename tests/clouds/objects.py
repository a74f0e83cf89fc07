"""An S3 server in memory whose keys are rules: what B2's and R2's own ways of making keys are tried against.

It speaks what obstore and boto3 send: objects, listings, uploads in parts, bucket rules, signed URLs; every request's
signature (AWS Signature Version 4) is computed again, so a wrong secret or token is refused as a real one is. How the
stores differ is `Habits`. SeaweedFS stands in for S3 itself; it has no such keys.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from xml.sax.saxutils import escape

ALL = frozenset({"read", "write", "list", "delete", "buckets", "manage"})


@dataclass(frozen=True, slots=True)
class Grant:
    """What one key may do. prefixes: of object names, each ended as it is meant; empty for everything in its bucket."""

    secret: str
    bucket: str | None = None
    prefixes: tuple[str, ...] = ()
    rights: frozenset[str] = ALL
    expires_at: float | None = None


@dataclass(frozen=True, slots=True)
class Habits:
    """Where a store is not as S3 is."""

    conditional_put: bool = True
    bulk_delete: bool = True
    signed_urls: bool = True
    rules: bool = True
    makes_buckets: bool = True
    lists_anything: bool = False
    keeps_deleted: bool = False


@dataclass(slots=True)
class Stored:
    data: bytes
    e_tag: str
    at: float


class Refused(Exception):  # noqa: N818 - an answer
    def __init__(self, status: int, code: str, text: str = "") -> None:
        super().__init__(code)
        self.status, self.code, self.text = status, code, text


Resolve = Callable[[str, str], Grant | None]


@dataclass
class Objects:
    """The store. resolve: (access key id, session token) -> its grant, None for unknown. asked: every request seen."""

    resolve: Resolve
    habits: Habits = field(default_factory=Habits)
    buckets: dict[str, dict[str, Stored]] = field(default_factory=dict)
    rules: dict[str, str] = field(default_factory=dict)
    versions: dict[str, list[tuple[str, Stored]]] = field(default_factory=dict)
    uploads: dict[str, tuple[str, str, dict[int, bytes]]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    endpoint: str = ""

    def __post_init__(self) -> None:
        self.lock = threading.Lock()


Answer = tuple[int, Mapping[str, Any]]


@contextmanager
def api(answer: Callable[[str, str, Mapping[str, str], Any], Answer]) -> Iterator[str]:
    """A vendor's own API beside its store. answer: method, path, headers, JSON -> status, JSON. Gives its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            pass

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, data = answer(self.command, self.path, dict(self.headers.items()), json.loads(raw or b"{}"))
            body = json.dumps(data).encode()
            self.send_response_only(status)
            self.send_header("Date", formatdate(usegmt=True))
            self.send_header("Content-Type", "application/json;charset=UTF-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def serving(objects: Objects) -> Iterator[Objects]:
    """Answer on a port of its own, which `endpoint` then names."""

    class Handler(_Handler):
        store = objects

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    objects.endpoint = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield objects
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: Objects

    def log_message(self, *args: Any) -> None:
        pass

    def answer(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        self.send_response_only(status)
        self.send_header("Date", formatdate(usegmt=True))
        self.send_header("x-amz-request-id", uuid.uuid4().hex)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if "Content-Length" not in (headers or {}):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def handle_one(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        with self.store.lock:
            self.store.asked.append(f"{self.command} {self.path}")
            try:
                grant = _known(self, parts.path, parts.query, query, body)
                _Call(self, grant, bucket, key, query, body).run()
            except Refused as refused:
                text = f"<Error><Code>{refused.code}</Code><Message>{escape(refused.text)}</Message></Error>"
                self.answer(refused.status, text.encode(), {"Content-Type": "application/xml"})

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = handle_one  # noqa: N815 - http.server's names


class _Call:
    """One request, once it is known whose it is. With the store's lock held."""

    def __init__(
        self, http: _Handler, grant: Grant, bucket: str, key: str, query: Mapping[str, str], body: bytes
    ) -> None:
        self.http, self.grant, self.bucket, self.key, self.query, self.body = http, grant, bucket, key, query, body
        self.store = http.store

    def run(self) -> None:
        if not self.bucket:
            self.may("buckets")
            names = "".join(f"<Bucket><Name>{name}</Name></Bucket>" for name in sorted(self.store.buckets))
            return self.xml(f"<ListAllMyBucketsResult><Buckets>{names}</Buckets></ListAllMyBucketsResult>")
        if self.grant.bucket not in (None, self.bucket):
            raise Refused(403, "AccessDenied", "not entitled")
        if not self.key:
            return self.on_bucket()
        if self.bucket not in self.store.buckets:
            raise Refused(404, "NoSuchBucket")
        return getattr(self, f"on_{self.http.command.lower()}")()

    def on_bucket(self) -> None:
        command = self.http.command
        if command == "PUT" and "lifecycle" in self.query:
            self.may("manage")
            if not self.store.habits.rules:
                raise Refused(501, "NotImplemented", "lifecycle")
            self.there()
            self.store.rules[self.bucket] = self.body.decode()
            return self.http.answer(200)
        if command == "GET" and "lifecycle" in self.query:
            self.there()
            if (rules := self.store.rules.get(self.bucket)) is None:
                raise Refused(404, "NoSuchLifecycleConfiguration")
            return self.xml(rules)
        if command == "PUT":
            self.may("manage")
            if not self.store.habits.makes_buckets:
                raise Refused(403, "AccessDenied", "volumes are made elsewhere")
            if self.bucket in self.store.buckets:
                raise Refused(409, "BucketAlreadyOwnedByYou")
            self.store.buckets[self.bucket] = {}
            return self.http.answer(200)
        if command == "HEAD":
            self.there()
            return self.http.answer(200)
        if command == "POST" and "delete" in self.query:
            return self.delete_many()
        if command == "GET":
            self.there()
            return self.list()
        raise Refused(405, "MethodNotAllowed")

    def on_put(self) -> None:
        if "partNumber" in self.query:
            self.may("write", self.key)
            _, _, parts = self.upload()
            parts[int(self.query["partNumber"])] = self.body
            return self.http.answer(200, headers={"ETag": _tag(self.body)})
        self.may("write", self.key)
        objects, condition = self.there(), self.http.headers.get("If-None-Match")
        if condition or self.http.headers.get("If-Match"):
            if not self.store.habits.conditional_put:
                raise Refused(501, "NotImplemented", "a header implies what is not implemented")
            if condition and self.key in objects:
                raise Refused(412, "PreconditionFailed")
        if (source := self.http.headers.get("x-amz-copy-source")) is not None:
            return self.copy(unquote(source).lstrip("/"))
        self.keep(self.body, _tag(self.body))
        return self.http.answer(200, headers={"ETag": _tag(self.body)})

    def copy(self, source: str) -> None:
        bucket, _, key = source.partition("/")
        if self.grant.bucket not in (None, bucket):
            raise Refused(403, "AccessDenied")
        self.may("read", key)
        found = self.store.buckets.get(bucket, {}).get(key)
        if found is None:
            raise Refused(404, "NoSuchKey")
        self.keep(found.data, found.e_tag)
        self.xml(f"<CopyObjectResult><ETag>{escape(found.e_tag)}</ETag></CopyObjectResult>")

    def on_get(self) -> None:
        self.may("read", self.key)
        found = self.there().get(self.key)
        if found is None:
            raise Refused(404, "NoSuchKey")
        headers = {"ETag": found.e_tag, "Last-Modified": formatdate(found.at, usegmt=True), "Accept-Ranges": "bytes"}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.http.headers.get("Range", ""))
        if wanted is None:
            body, status = found.data, 200
        else:
            start, last = int(wanted[1]), min(int(wanted[2] or len(found.data)), len(found.data) - 1)
            body, status = found.data[start : last + 1], 206
            headers["Content-Range"] = f"bytes {start}-{last}/{len(found.data)}"
        self.http.answer(status, body, {**headers, "Content-Length": str(len(body))})

    on_head = on_get

    def on_delete(self) -> None:
        if "uploadId" in self.query:
            self.may("write", self.key)
            self.upload()
            del self.store.uploads[self.query["uploadId"]]
        else:
            self.may("delete", self.key)
            self.gone(self.key)
        self.http.answer(204)

    def on_post(self) -> None:
        self.may("write", self.key)
        if "uploads" in self.query:
            number = uuid.uuid4().hex
            self.store.uploads[number] = (self.bucket, self.key, {})
            return self.xml(
                f"<InitiateMultipartUploadResult><Bucket>{self.bucket}</Bucket><Key>{escape(self.key)}</Key>"
                f"<UploadId>{number}</UploadId></InitiateMultipartUploadResult>"
            )
        _, _, parts = self.upload()
        digests = b"".join(hashlib.md5(parts[n]).digest() for n in sorted(parts))
        tag = f'"{hashlib.md5(digests).hexdigest()}-{len(parts)}"'
        self.keep(b"".join(parts[n] for n in sorted(parts)), tag)
        del self.store.uploads[self.query["uploadId"]]
        return self.xml(
            f"<CompleteMultipartUploadResult><Bucket>{self.bucket}</Bucket><Key>{escape(self.key)}</Key>"
            f"<ETag>{escape(tag)}</ETag></CompleteMultipartUploadResult>"
        )

    def list(self) -> None:
        """Version 2. A prefix outside the key's own is refused, and so is none at all."""
        prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter", "")
        self.may("list", prefix)
        if "uploads" in self.query:
            return self.xml("<ListMultipartUploadsResult></ListMultipartUploadsResult>")
        after = self.query.get("continuation-token") or self.query.get("start-after", "")
        most = int(self.query.get("max-keys", "1000"))
        contents, folders, last, more = "", "", "", False
        count, seen = 0, set[str]()
        for key in sorted(k for k in self.there() if k.startswith(prefix) and k > after):
            folder = prefix + key[len(prefix) :].partition(delimiter)[0] + delimiter if delimiter else ""
            grouped = bool(delimiter) and delimiter in key[len(prefix) :]
            if grouped and folder in seen:
                continue
            if count == most:
                more = True
                break
            count, last = count + 1, key
            if grouped:
                seen.add(folder)
                folders += f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>"
                continue
            o = self.store.buckets[self.bucket][key]
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(o.at))
            contents += (
                f"<Contents><Key>{escape(key)}</Key><LastModified>{stamp}</LastModified>"
                f"<ETag>{escape(o.e_tag)}</ETag><Size>{len(o.data)}</Size></Contents>"
            )
        token = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if more else ""
        return self.xml(
            f"<ListBucketResult><Name>{self.bucket}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{count}</KeyCount>"
            f"<MaxKeys>{most}</MaxKeys><IsTruncated>{str(more).lower()}</IsTruncated>{token}{contents}{folders}"
            "</ListBucketResult>"
        )

    def delete_many(self) -> None:
        if not self.store.habits.bulk_delete:
            raise Refused(501, "NotImplemented", "DeleteObjects")
        done = ""
        for key in re.findall(r"<Key>(.*?)</Key>", self.body.decode()):
            self.may("delete", key)
            self.gone(key)
            done += f"<Deleted><Key>{key}</Key></Deleted>"
        self.xml(f"<DeleteResult>{done}</DeleteResult>")

    def may(self, right: str, name: str | None = None) -> None:
        """Refuse what the key does not allow. name: of an object, or the prefix of a listing."""
        loose = right == "list" and self.store.habits.lists_anything
        inside = loose or not self.grant.prefixes or (name is not None and name.startswith(self.grant.prefixes))
        if right not in self.grant.rights or not inside:
            raise Refused(403, "AccessDenied", "not entitled")

    def there(self) -> dict[str, Stored]:
        if self.bucket not in self.store.buckets:
            raise Refused(404, "NoSuchBucket")
        return self.store.buckets[self.bucket]

    def upload(self) -> tuple[str, str, dict[int, bytes]]:
        found = self.store.uploads.get(self.query.get("uploadId", ""))
        if found is None or found[:2] != (self.bucket, self.key):
            raise Refused(404, "NoSuchUpload")
        return found

    def gone(self, key: str) -> None:
        """Delete, or hide where the store keeps what was deleted."""
        found = self.there().pop(key, None)
        if found is not None and self.store.habits.keeps_deleted:
            self.store.versions.setdefault(self.bucket, []).append((key, found))

    def keep(self, data: bytes, tag: str) -> None:
        self.gone(self.key)
        self.store.buckets[self.bucket][self.key] = Stored(data, tag, time.time())

    def xml(self, text: str) -> None:
        body = text if text.startswith("<?xml") else f'<?xml version="1.0" encoding="UTF-8"?>{text}'
        self.http.answer(200, body.encode(), {"Content-Type": "application/xml"})


def _tag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


def _known(http: _Handler, path: str, raw_query: str, query: Mapping[str, str], body: bytes) -> Grant:
    """Whose request it is. Raises Refused where its signature is not what its secret makes of it."""
    if "X-Amz-Signature" in query:
        if not http.store.habits.signed_urls:
            raise Refused(403, "AccessDenied", "signed URLs are not supported")
        credential, signed, signature = (query[f"X-Amz-{n}"] for n in ("Credential", "SignedHeaders", "Signature"))
        stamp, token = query["X-Amz-Date"], query.get("X-Amz-Security-Token", "")
        began = time.mktime(time.strptime(stamp, "%Y%m%dT%H%M%SZ")) - time.timezone
        if time.time() > began + int(query["X-Amz-Expires"]):
            raise Refused(403, "AccessDenied", "Request has expired")
        raw_query = "&".join(part for part in raw_query.split("&") if not part.startswith("X-Amz-Signature="))
        hashed = "UNSIGNED-PAYLOAD"
    else:
        found = re.fullmatch(
            r"AWS4-HMAC-SHA256 Credential=([^,]+), ?SignedHeaders=([^,]+), ?Signature=([0-9a-f]+)",
            http.headers.get("Authorization", ""),
        )
        if found is None:
            raise Refused(403, "AccessDenied", "anonymous")
        credential, signed, signature = found.groups()
        stamp, token = http.headers["x-amz-date"], http.headers.get("x-amz-security-token", "")
        hashed = http.headers["x-amz-content-sha256"]
        if re.fullmatch("[0-9a-f]{64}", hashed) and hashlib.sha256(body).hexdigest() != hashed:
            raise Refused(400, "XAmzContentSHA256Mismatch")
    key, date, region, service, _ = credential.split("/")
    grant = http.store.resolve(key, token)
    if grant is None:
        raise Refused(403, "InvalidAccessKeyId")
    headers = "".join(f"{n}:{' '.join((http.headers.get(n) or '').split())}\n" for n in signed.split(";"))
    ordered = "&".join(sorted(p if "=" in p else f"{p}=" for p in raw_query.split("&"))) if raw_query else ""
    canonical = "\n".join((http.command, quote(unquote(path), safe="/-_.~"), ordered, headers, signed, hashed))
    scope = f"{date}/{region}/{service}/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    secret = f"AWS4{grant.secret}".encode()
    for part in (date, region, service, "aws4_request"):
        secret = hmac.digest(secret, part.encode(), "sha256")
    if not hmac.compare_digest(hmac.digest(secret, text.encode(), "sha256").hex(), signature):
        raise Refused(403, "SignatureDoesNotMatch")
    if grant.expires_at is not None and time.time() >= grant.expires_at:
        raise Refused(403 if not token else 400, "ExpiredToken", "The provided token has expired")
    return grant
