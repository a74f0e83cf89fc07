"""A stand-in for Cloudflare R2: temporary credentials, made by its API or signed by the user, and the store behind.

From developers.cloudflare.com/r2/api/s3/temporary-credentials: a JWT signed with the parent's secret, whose SHA-256 is
the secret and whose text is the session token; the parent's key id stays; revoking the parent ends all at once.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from clouds.objects import ALL, Answer, Grant, Objects, api, serving

LONGEST = 604_800
SCOPES = {
    "object-read-write": ALL - {"buckets", "manage"}, "object-read-only": frozenset({"read", "list"}),
    "admin-read-write": ALL, "admin-read-only": frozenset({"read", "list", "buckets"}),
}  # fmt: skip


@dataclass
class R2:
    """An account with one parent key and one API token. down: HTTP status that every call of the API answers with."""

    account: str = "0123456789abcdef0123456789abcdef"
    token: str = "cloudflare-token-EXAMPLE"
    parents: dict[str, str] = field(default_factory=lambda: {"parent": "parent-secret"})
    down: int | None = None
    calls: int = 0
    url: str = ""

    def __post_init__(self) -> None:
        self.objects = Objects(self.resolve)

    def bucket(self, name: str) -> None:
        self.objects.buckets[name] = {}

    def settings(self, *, by_api: bool = False) -> dict[str, str]:
        """A whole `[home_config]` that mints, by the API or without a call."""
        return {
            "endpoint": self.objects.endpoint, "region": "auto", "access_key_id": "parent",
            "secret_access_key": "parent-secret", "mint": "r2", "account_id": self.account,
            **({"api_endpoint": self.url, "api_token": self.token} if by_api else {}),
        }  # fmt: skip

    def resolve(self, key: str, token: str) -> Grant | None:
        secret = self.parents.get(key)
        if secret is None or not token:
            return Grant(secret) if secret is not None else None
        try:
            jwt = base64.b64decode(token, validate=True).decode().removeprefix("jwt/")
            text, _, signature = jwt.rpartition(".")
            claims = json.loads(_unpacked(text.partition(".")[2]))
            good = hmac.compare_digest(hmac.digest(secret.encode(), text.encode(), "sha256"), _unpacked(signature))
        except ValueError:
            return None
        host = urlsplit(self.objects.endpoint).netloc
        if not good or (claims["iss"], claims["sub"], claims["aud"]) != (key, self.account, host):
            return None
        if not 0 < claims["exp"] - claims["iat"] <= LONGEST:
            return None
        return Grant(
            hashlib.sha256(jwt.encode()).hexdigest(), claims["bucket"],
            (*claims["paths"]["prefixPaths"], *claims["paths"]["objectPaths"]), SCOPES[claims["scope"]], claims["exp"],
        )  # fmt: skip

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: Any) -> Answer:
        self.calls += 1
        if self.down is not None:
            return self.down, _failed(10001, "Internal error")
        if headers.get("Authorization") != f"Bearer {self.token}":
            return 403, _failed(10000, "Authentication error")
        if path != f"/accounts/{self.account}/r2/temp-access-credentials":
            return 404, _failed(7003, "Could not route")
        seconds = body.get("ttlSeconds", 900)
        if body["parentAccessKeyId"] not in self.parents or body["permission"] not in SCOPES:
            return 400, _failed(10005, "bad parent or permission")
        if not 0 < seconds <= LONGEST:
            return 400, _failed(10005, "ttlSeconds")
        now = int(time.time())
        claims = {
            "bucket": body["bucket"], "scope": body["permission"], "sub": self.account,
            "paths": {"prefixPaths": body.get("prefixes", []), "objectPaths": body.get("objects", [])},
            "iss": body["parentAccessKeyId"], "aud": urlsplit(self.objects.endpoint).netloc,
            "iat": now, "exp": now + seconds,
        }  # fmt: skip
        text = f"{_packed(json.dumps({'alg': 'HS256'}).encode())}.{_packed(json.dumps(claims).encode())}"
        secret = self.parents[body["parentAccessKeyId"]]
        jwt = f"{text}.{_packed(hmac.digest(secret.encode(), text.encode(), 'sha256'))}"
        made = {
            "accessKeyId": body["parentAccessKeyId"],
            "secretAccessKey": hashlib.sha256(jwt.encode()).hexdigest(),
            "sessionToken": base64.b64encode(f"jwt/{jwt}".encode()).decode(),
        }
        return 200, {"success": True, "errors": [], "messages": [], "result": made}


@contextmanager
def running() -> Iterator[R2]:
    account = R2()
    with serving(account.objects), api(account.answer) as url:
        account.url = url
        yield account


def _failed(code: int, message: str) -> dict[str, Any]:
    return {"success": False, "errors": [{"code": code, "message": message}], "messages": [], "result": None}


def _packed(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _unpacked(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
