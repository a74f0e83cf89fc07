"""Keys for one placement from stores that have a way of their own to make them: Backblaze B2 and Cloudflare R2.

Each gives keys for one prefix or several of one bucket that end by themselves. B2: `b2_create_key` by a key with the
right `writeKeys`, for at most 1,000 days and one prefix (backblaze.com/apidocs/b2-create-key). R2: temporary
credentials for at most seven days, from Cloudflare's API with a token, or signed here without any call
(developers.cloudflare.com/r2/api/s3/temporary-credentials). Runs on the broker's side only.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from broker.errors import ConfigError, HomeAccessDenied, HomeError, HomeUnavailable

TIMEOUT = (5.0, 30.0)  # seconds to connect, and between two bytes of the answer
DAY = 86_400
B2_LONGEST = 1_000 * DAY - 1  # "must be less than 1000 days"
R2_LONGEST = 7 * DAY
SHORTEST = 900  # seconds; R2's default, and long enough to boot
B2_API, R2_API = "https://api.backblazeb2.com", "https://api.cloudflare.com/client/v4"
B2_RIGHTS = ("listFiles", "readFiles", "writeFiles", "deleteFiles")
B2_FIX = "the key in [home_config] needs the right writeKeys, or set mint = 'none' and dedicated = true"
R2_HOST = re.compile(r"(?P<account>[0-9a-f]{32})\.(?:[a-z]+\.)?r2\.cloudflarestorage\.com")


@dataclass(frozen=True, slots=True)
class Minted:
    """A key of a placement's own, as obstore names its parts. expires_at: seconds since the epoch."""

    keys: Mapping[str, str] = field(repr=False)
    expires_at: float


def b2(settings: Mapping[str, str], name: str, bucket: str, prefix: str, seconds: float) -> Minted:
    """A key for one prefix of a B2 bucket. name: shown in the account, letters, digits and `-`.

    settings: `access_key_id` and `secret_access_key` of a key that may make keys; `api_endpoint` where it is not
    Backblaze's own. Raises HomeAccessDenied, HomeUnavailable, HomeError.
    """
    call, bucket_id = _b2_account(settings, bucket)
    life = int(min(max(seconds, SHORTEST), B2_LONGEST))
    made = call(
        "b2_create_key",
        {
            "capabilities": list(B2_RIGHTS),
            "keyName": re.sub(r"[^A-Za-z0-9-]", "-", f"spotbroker-{name}")[:100],
            "validDurationInSeconds": life,
            "bucketIds": [bucket_id],
            "namePrefix": prefix,
        },
    )
    keys = {"access_key_id": made["applicationKeyId"], "secret_access_key": made["applicationKey"]}
    return Minted(keys, made["expirationTimestamp"] / 1000)


def b2_erase(settings: Mapping[str, str], bucket: str, names: Sequence[str]) -> None:
    """Delete every version of these objects: B2 only hides what is deleted through its S3 side.

    Raises HomeAccessDenied, HomeUnavailable, HomeError.
    """
    call, bucket_id = _b2_account(settings, bucket)
    for name in names:
        seen = call("b2_list_file_versions", {"bucketId": bucket_id, "prefix": name, "maxFileCount": 100})["files"]
        for version in seen:
            if version["fileName"] == name:
                call("b2_delete_file_version", {"fileName": name, "fileId": version["fileId"]})


def _b2_account(settings: Mapping[str, str], bucket: str) -> tuple[Callable[[str, Mapping[str, Any]], Any], str]:
    """How to call the account's API, and the bucket's id."""
    key, secret = _pair(settings)
    base = settings.get("api_endpoint", B2_API).rstrip("/")
    account = _b2_call(f"{base}/b2api/v4/b2_authorize_account", {}, basic=(key, secret))
    storage = account["apiInfo"]["storageApi"]

    def call(verb: str, body: Mapping[str, Any]) -> Any:
        whole = {"accountId": account["accountId"], **body}
        return _b2_call(f"{storage['apiUrl']}/b2api/v4/{verb}", whole, token=account["authorizationToken"])

    shown = (storage.get("allowed") or {}).get("buckets") or call("b2_list_buckets", {"bucketName": bucket})["buckets"]
    found = [b.get("id") or b.get("bucketId") for b in shown if (b.get("name") or b.get("bucketName")) == bucket]
    if not found:
        raise HomeAccessDenied(f"B2 shows this key no bucket {bucket}", fix="check `home`, and what the key is for")
    return call, str(found[0])


def r2(settings: Mapping[str, str], bucket: str, prefixes: Sequence[str], seconds: float) -> Minted:
    """Temporary credentials for some prefixes of an R2 bucket.

    settings: `access_key_id` and `secret_access_key` of the parent key, `endpoint` or `account_id`, and `api_token`
    where Cloudflare's API is to make them; without it they are signed here. Raises ConfigError, HomeAccessDenied,
    HomeUnavailable, HomeError.
    """
    parent, secret = _pair(settings)
    account = _account(settings)
    life = int(min(max(seconds, SHORTEST), R2_LONGEST))
    if settings.get("api_token"):
        return _r2_asked(settings, account, parent, bucket, prefixes, life)
    now = int(time.time())
    claims = {
        "bucket": bucket,
        "scope": "object-read-write",
        "paths": {"prefixPaths": list(prefixes), "objectPaths": []},
        "sub": account,
        "iss": parent,
        "aud": urlsplit(settings.get("endpoint", "")).netloc,
        "iat": now,
        "exp": now + life,
    }
    token = _signed(claims, secret)
    keys = {
        "access_key_id": parent,
        "secret_access_key": hashlib.sha256(token.encode()).hexdigest(),
        "session_token": base64.b64encode(f"jwt/{token}".encode()).decode(),
    }
    return Minted(keys, float(now + life))


def _r2_asked(
    settings: Mapping[str, str], account: str, parent: str, bucket: str, prefixes: Sequence[str], life: int
) -> Minted:
    base = settings.get("api_endpoint", R2_API).rstrip("/")
    body = {
        "bucket": bucket,
        "parentAccessKeyId": parent,
        "permission": "object-read-write",
        "ttlSeconds": life,
        "prefixes": list(prefixes),
    }
    asked = time.time()
    status, data = _post(
        f"{base}/accounts/{account}/r2/temp-access-credentials",
        body,
        headers={"Authorization": f"Bearer {settings['api_token']}"},
        who="Cloudflare",
    )
    if status != 200 or not isinstance(data, dict) or not data.get("success"):
        errors = data.get("errors") if isinstance(data, dict) else None
        text = f"Cloudflare refuses temporary credentials: {status}: {errors or data}"
        raise _refusal(status, text, "check api_token in [home_config]: it needs R2's edit permission")
    made = data["result"]
    keys = {
        "access_key_id": made["accessKeyId"],
        "secret_access_key": made["secretAccessKey"],
        "session_token": made["sessionToken"],
    }
    return Minted(keys, asked + life)


def _signed(claims: Mapping[str, Any], secret: str) -> str:
    """A JWT with HS256 (RFC 7519)."""

    def packed(raw: bytes) -> str:
        return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()

    head = packed(json.dumps({"alg": "HS256", "typ": "JWT"}, separators=(",", ":")).encode())
    text = f"{head}.{packed(json.dumps(claims, separators=(',', ':')).encode())}"
    return f"{text}.{packed(hmac.digest(secret.encode(), text.encode(), 'sha256'))}"


def _account(settings: Mapping[str, str]) -> str:
    host = urlsplit(settings.get("endpoint", "")).hostname or ""
    found = R2_HOST.fullmatch(host)
    account = settings.get("account_id") or (found["account"] if found else "")
    if not account:
        raise ConfigError(
            "[home_config] names no Cloudflare account",
            fix="set account_id, or endpoint = 'https://ACCOUNT.r2.cloudflarestorage.com'",
        )
    return account


def _pair(settings: Mapping[str, str]) -> tuple[str, str]:
    key = settings.get("access_key_id") or settings.get("aws_access_key_id") or ""
    secret = settings.get("secret_access_key") or settings.get("aws_secret_access_key") or ""
    if not key or not secret:
        raise ConfigError("no key to mint with", fix="set access_key_id and secret_access_key in [home_config]")
    return key, secret


def _b2_call(
    url: str, body: Mapping[str, Any], *, basic: tuple[str, str] | None = None, token: str = ""
) -> Mapping[str, Any]:
    headers = {"Authorization": token}
    if basic is not None:
        headers["Authorization"] = f"Basic {base64.b64encode(':'.join(basic).encode()).decode()}"
    status, data = _post(url, body, headers=headers, who="B2")
    if status == 200 and isinstance(data, dict):
        return data
    code, message = (data.get("code"), data.get("message")) if isinstance(data, dict) else ("", str(data)[:200])
    raise _refusal(status, f"B2 refuses {url.rpartition('/')[2]}: {status} {code}: {message}", B2_FIX)


def _post(url: str, body: Mapping[str, Any], *, headers: Mapping[str, str], who: str) -> tuple[int, Any]:
    try:
        import requests
    except ImportError as error:
        raise ConfigError(f"keys from {who} need the package requests", fix="pip install 'spotbroker[home]'") from error
    try:
        answer = requests.post(
            url,
            json=body,
            headers={"User-Agent": "spotbroker", **headers},
            timeout=TIMEOUT,
            allow_redirects=False,
            auth=_untouched,
        )
    except requests.exceptions.RequestException as error:
        raise HomeUnavailable(f"{who} did not answer: {error}", fix="try again later") from error
    try:
        return answer.status_code, answer.json()
    except ValueError:
        return answer.status_code, answer.text


def _untouched(request: Any) -> Any:
    """Keeps `requests` from putting a netrc entry in the place of our Authorization header."""
    return request


def _refusal(status: int, text: str, fix: str) -> HomeError:
    if status in (408, 429) or status >= 500:
        return HomeUnavailable(text, fix="try again later")
    return HomeAccessDenied(text, fix=fix)
