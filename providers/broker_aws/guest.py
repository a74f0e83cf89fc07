"""What a program on an EC2 machine can learn and do: read its notice, end its machine. Standard library only.

The instance metadata service answers at a link-local address, with a token since version 2. 404 is "no notice"; 401 is
a token that has lapsed; no answer is unknown, never "no notice". A rebalance recommendation alone is no notice: EC2
gives it early and often without taking the machine. Sources: EC2 User Guide, "Spot Instance interruption notices",
"EC2 instance rebalance recommendations", "Use the Instance Metadata Service".
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

ENDPOINT = "http://169.254.169.254"  # AWS_EC2_METADATA_SERVICE_ENDPOINT is the SDKs' own variable for another one
TOKEN_SECONDS = 21_600  # the longest that the service grants
TIMEOUT = 2.0
HINT_EVERY = 30.0
# The machine was launched so that its shutdown terminates it.
END_COMMAND = "shutdown -h now || poweroff || systemctl poweroff"


def notice() -> dict[str, Any] | None:
    """Word that this machine will be taken back: `at`, `ends_at` (seconds since the epoch, None
    where it is not told), `kind`; None without.

    Raises OSError where the service does not answer as it should, ValueError where it answers nonsense: unknown is not
    none.
    """
    answer = _service.get("/latest/meta-data/spot/instance-action")
    if answer is None:
        _service.look_for_hint()
        return None
    data = json.loads(answer)
    if not isinstance(data, dict):
        raise ValueError(f"a notice that is none: {answer[:100]}")  # noqa: TRY004 - see above
    return {"at": time.time(), "ends_at": _moment(data.get("time")), "kind": str(data.get("action") or "terminate")}


def _moment(text: Any) -> float | None:
    """Seconds since the epoch, by UTC; None where that cannot be read: a notice without a time is one all the same."""
    try:
        found = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def end_machine(why: str) -> None:
    """End this machine: a shutdown terminates it. Returns on acceptance; safe to repeat. Raises OSError."""
    sys.stderr.write(f"spotbroker: this machine ends: {why}\n")
    done = subprocess.run(["sh", "-c", END_COMMAND], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise OSError(f"the shutdown was refused: {done.stderr.strip() or done.returncode}")


class Service:
    """The metadata service, with the token that it gave; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._token = ""
        self._next_hint = 0.0  # monotonic

    def get(self, path: str) -> str | None:
        """A page; None where there is none. A token that is refused is renewed once. Raises OSError."""
        status = 0
        for _ in range(2):
            token = self._some_token()
            status, text = _ask("GET", path, {"X-aws-ec2-metadata-token": token})
            if status == 200:
                return text
            if status == 404:
                return None
            if status != 401:
                break
            with self._lock:
                if self._token == token:
                    self._token = ""
        raise OSError(f"the metadata service answered {status} to {path}")

    def look_for_hint(self) -> None:
        """Put EC2's recommendation to rebalance into the machine's own log, once; nothing moves for it."""
        if time.monotonic() < self._next_hint:
            return
        self._next_hint = time.monotonic() + HINT_EVERY
        try:
            hint = self.get("/latest/meta-data/events/recommendations/rebalance")
        except OSError:
            return
        if hint is not None:
            self._next_hint = float("inf")
            sys.stderr.write(f"spotbroker: EC2 recommends to rebalance; nothing moves yet: {hint.strip()}\n")

    def _some_token(self) -> str:
        with self._lock:
            if not self._token:
                wish = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)}
                status, text = _ask("PUT", "/latest/api/token", wish)
                if status != 200 or not text:
                    raise OSError(f"the metadata service gave no token: {status}")
                self._token = text
            return self._token


def _ask(method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
    where = urlsplit(os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or ENDPOINT)
    connection = http.client.HTTPConnection(where.hostname or "", where.port or 80, timeout=TIMEOUT)
    try:
        connection.request(method, where.path.rstrip("/") + path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode("utf-8", "replace")
    except http.client.HTTPException as error:
        raise OSError(f"the metadata service answered nonsense: {error}") from error
    finally:
        connection.close()


_service = Service()
