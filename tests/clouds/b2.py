"""A stand-in for Backblaze B2: its native API's keys, and its S3 side that goes by them.

From Backblaze's API pages (b2_authorize_account, b2_create_key, b2_delete_key, b2_list_buckets) and from what was seen
in the field: conditional puts are 501, a restricted key lists only inside its prefix, the master key is unknown to the
S3 side, and there are no session tokens.
"""

from __future__ import annotations

import base64
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from clouds.objects import Answer, Grant, Habits, Objects, api, serving

RIGHTS = {
    "readFiles": "read", "writeFiles": "write", "deleteFiles": "delete", "listFiles": "list",
    "listAllBucketNames": "buckets", "writeBuckets": "manage",
}  # fmt: skip
KNOWN = {*RIGHTS, "writeKeys", "listKeys", "deleteKeys", "listBuckets", "readBuckets", "deleteBuckets", "shareFiles"}
LONGEST = 1000 * 86_400


@dataclass(slots=True)
class Key:
    id: str
    secret: str
    capabilities: tuple[str, ...]
    name: str = ""
    buckets: tuple[str, ...] = ()
    prefix: str = ""
    expires_at: float | None = None


class Denied(Exception):  # noqa: N818 - an answer
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(code)
        self.status, self.code, self.message = status, code, message


@dataclass
class B2:
    """An account. keys: by id; `master` is no key of the S3 side, `app` is one with every capability. down: HTTP status
    that every native call answers with."""

    account: str = "a1b2c3d4e5f6"
    keys: dict[str, Key] = field(default_factory=dict)
    tokens: dict[str, Key] = field(default_factory=dict)
    down: int | None = None
    url: str = ""

    def __post_init__(self) -> None:
        for name in ("master", "app"):
            self.keys[name] = Key(name, f"{name}-secret", tuple(sorted(KNOWN)), name)
        self.objects = Objects(self.resolve, Habits(conditional_put=False, keeps_deleted=True))

    def bucket(self, name: str) -> None:
        self.objects.buckets[name] = {}

    def settings(self, key: str = "app") -> dict[str, str]:
        """A whole `[home_config]` that mints."""
        return {
            "endpoint": self.objects.endpoint, "region": "us-west-004", "access_key_id": key,
            "secret_access_key": self.keys[key].secret, "conditional_put": "disabled", "mint": "b2",
            "api_endpoint": self.url,
        }  # fmt: skip

    def resolve(self, key_id: str, token: str) -> Grant | None:
        key = self.keys.get(key_id)
        if key is None or key_id == "master" or token:
            return None
        rights = frozenset(RIGHTS[c] for c in key.capabilities if c in RIGHTS)
        bucket = key.buckets[0] if key.buckets else None
        return Grant(key.secret, bucket, (key.prefix,) if key.prefix else (), rights, key.expires_at)

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: Any) -> Answer:
        verb = path.rpartition("/")[2]
        try:
            if self.down is not None:
                raise Denied(self.down, "service_unavailable", "c001_v0001: try again later")
            if not path.startswith("/b2api/v4/"):
                raise Denied(404, "not_found", path)
            if verb == "b2_authorize_account":
                return 200, self.authorize(headers.get("Authorization", ""))
            key = self.tokens.get(headers.get("Authorization", ""))
            if key is None:
                raise Denied(401, "bad_auth_token", "Invalid authorization token")
            if body.get("accountId", self.account) != self.account:
                raise Denied(400, "bad_request", "accountId does not match")
            return 200, getattr(self, verb.removeprefix("b2_"))(key, body)
        except Denied as denied:
            return denied.status, {"status": denied.status, "code": denied.code, "message": denied.message}

    def authorize(self, header: str) -> Mapping[str, Any]:
        key_id, _, secret = base64.b64decode(header.removeprefix("Basic ")).decode().partition(":")
        key = self.keys.get(key_id)
        if key is None or key.secret != secret or (key.expires_at is not None and key.expires_at <= time.time()):
            raise Denied(401, "unauthorized", "")
        token = f"4_{secrets.token_hex(12)}"
        self.tokens[token] = key
        allowed = {
            "buckets": [{"id": _id(name), "name": name} for name in key.buckets] or None,
            "capabilities": list(key.capabilities), "namePrefix": key.prefix or None,
        }  # fmt: skip
        storage = {
            "apiUrl": self.url, "downloadUrl": self.url, "s3ApiUrl": self.objects.endpoint,
            "absoluteMinimumPartSize": 5_000_000, "recommendedPartSize": 100_000_000, "allowed": allowed,
        }  # fmt: skip
        return {
            "accountId": self.account,
            "authorizationToken": token,
            "applicationKeyExpirationTimestamp": key.expires_at and int(key.expires_at * 1000),
            "apiInfo": {"storageApi": storage},
        }

    def list_buckets(self, key: Key, body: Any) -> Mapping[str, Any]:
        self.must(key, "listBuckets")
        wanted = body.get("bucketName")
        if key.buckets and wanted not in key.buckets:
            raise Denied(401, "unauthorized", "name the bucket that the key is for")
        names = [name for name in sorted(self.objects.buckets) if wanted in (None, name)]
        return {"buckets": [self.bucket_shown(name) for name in names]}

    def bucket_shown(self, name: str) -> dict[str, Any]:
        return {
            "accountId": self.account, "bucketId": _id(name), "bucketName": name, "bucketType": "allPrivate",
            "bucketInfo": {}, "corsRules": [], "lifecycleRules": [], "revision": 1, "options": ["s3"],
            "defaultServerSideEncryption": {"isClientAuthorizedToRead": False, "value": None},
            "fileLockConfiguration": {"isClientAuthorizedToRead": False, "value": None},
            "replicationConfiguration": {"isClientAuthorizedToRead": True, "value": None},
        }  # fmt: skip

    def create_key(self, key: Key, body: Any) -> Mapping[str, Any]:
        self.must(key, "writeKeys")
        seconds, prefix, ids = body.get("validDurationInSeconds"), body.get("namePrefix") or "", body.get("bucketIds")
        if not set(body["capabilities"]) <= KNOWN or not body["capabilities"]:
            raise Denied(400, "bad_request", "unknown capability")
        if not re.fullmatch("[A-Za-z0-9-]{1,100}", body["keyName"]):
            raise Denied(400, "bad_request", "keyName must be letters, digits and dashes")
        if seconds is not None and not (isinstance(seconds, int) and 1 <= seconds < LONGEST):
            raise Denied(400, "bad_request", "validDurationInSeconds must be less than 1000 days")
        if prefix and not ids:
            raise Denied(400, "bad_request", "namePrefix needs a bucket")
        names = {_id(name): name for name in self.objects.buckets}
        if any(bucket not in names for bucket in ids or ()):
            raise Denied(400, "bad_bucket_id", "no such bucket")
        made = Key(
            f"004{secrets.token_hex(11)}", f"K004{secrets.token_urlsafe(20)}", tuple(body["capabilities"]),
            body["keyName"], tuple(names[bucket] for bucket in ids or ()), prefix,
            time.time() + seconds if seconds is not None else None,
        )  # fmt: skip
        self.keys[made.id] = made
        return {**self.shown(made), "applicationKey": made.secret}

    def list_file_versions(self, key: Key, body: Any) -> Mapping[str, Any]:
        self.must(key, "listFiles")
        name = self.named(body["bucketId"])
        now = [(k, o) for k, o in self.objects.buckets[name].items() if k.startswith(body["prefix"])]
        old = [(k, o) for k, o in self.objects.versions.get(name, []) if k.startswith(body["prefix"])]
        files = [{"fileName": k, "fileId": f"4_z{id(o):x}", "action": "upload"} for k, o in (*now, *old)]
        return {"files": files[: body["maxFileCount"]], "nextFileName": None, "nextFileId": None}

    def delete_file_version(self, key: Key, body: Any) -> Mapping[str, Any]:
        self.must(key, "deleteFiles")
        for bucket, objects in self.objects.buckets.items():
            found = objects.get(body["fileName"])
            if found is not None and f"4_z{id(found):x}" == body["fileId"]:
                del objects[body["fileName"]]
            kept = self.objects.versions.get(bucket, [])
            self.objects.versions[bucket] = [(k, o) for k, o in kept if f"4_z{id(o):x}" != body["fileId"]]
        return {"fileName": body["fileName"], "fileId": body["fileId"]}

    def named(self, bucket_id: str) -> str:
        found = next((name for name in self.objects.buckets if _id(name) == bucket_id), None)
        if found is None:
            raise Denied(400, "bad_bucket_id", "no such bucket")
        return found

    def list_keys(self, key: Key, body: Any) -> Mapping[str, Any]:
        self.must(key, "listKeys")
        return {"keys": [self.shown(k) for k in self.keys.values() if k.id != "master"], "nextApplicationKeyId": None}

    def delete_key(self, key: Key, body: Any) -> Mapping[str, Any]:
        self.must(key, "deleteKeys")
        found = self.keys.pop(body["applicationKeyId"], None)
        if found is None:
            raise Denied(400, "bad_request", "no such key")
        return self.shown(found)

    def must(self, key: Key, capability: str) -> None:
        if capability not in key.capabilities:
            raise Denied(401, "unauthorized", f"the key lacks {capability}")

    def shown(self, key: Key) -> dict[str, Any]:
        return {
            "accountId": self.account, "applicationKeyId": key.id, "keyName": key.name,
            "capabilities": list(key.capabilities), "bucketIds": [_id(name) for name in key.buckets] or None,
            "namePrefix": key.prefix or None, "options": ["s3"],
            "expirationTimestamp": int(key.expires_at * 1000) if key.expires_at is not None else None,
        }  # fmt: skip


@contextmanager
def running() -> Iterator[B2]:
    account = B2()
    with serving(account.objects), api(account.answer) as url:
        account.url = url
        yield account


def _id(bucket: str) -> str:
    return bucket.encode().hex().ljust(24, "0")[:24]
