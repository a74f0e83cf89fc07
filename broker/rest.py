"""HTTP with JSON, for the providers that have no SDK worth using: one session, one key, one budget of calls.

The key travels in the Authorization header only. Nothing is retried here: `broker.contract` does that. Every failure
becomes one of `broker.errors`; what a vendor's own codes mean is the adapter's to say, by `explain`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.errors import (
    Ambiguous,
    AuthFailed,
    InvalidRequest,
    NotFound,
    ProviderError,
    ProviderUnavailable,
    RateLimited,
)
from broker.keys import Key

if TYPE_CHECKING:
    import requests

TIMEOUT = (5.0, 30.0)  # seconds to connect, and between two bytes of the answer
KEYLESS_TIMEOUT = (3.0, 8.0)  # the same without a key: who rents elsewhere does not wait for prices to look at
RETRY_AFTER = 5.0  # seconds, where a 429 names none
EPOCH, DAY = 1e9, 86_400.0  # what is larger than the first is a moment, in seconds since 1970
SHOWN = 500  # characters of an answer that an error shows
Explain = Callable[[int, Any], ProviderError | None]


class Budget:
    """So many calls of one lane in so many seconds, kept by all processes that use the same key and state folder."""

    def __init__(
        self,
        state: Path,
        name: str,
        key: Key | None,
        intervals: Mapping[str, float],
        *,
        quotas: Mapping[str, tuple[int, float]] | None = None,
    ) -> None:
        """intervals: lane -> least seconds between two calls. quotas: lane -> (calls, seconds), for limits that allow
        a burst. A lane that neither names is free.
        """
        owner = hashlib.sha256((key.value if key else "").encode()).hexdigest()[:12]
        self.folder = state / "rates" / f"{name}-{owner}"
        self.quotas = {lane: (1, seconds) for lane, seconds in intervals.items()} | dict(quotas or {})

    def wait(self, lane: str) -> None:
        """Take the lane's next free moment, and sleep until then."""
        calls, seconds = self.quotas.get(lane, (1, 0.0))
        if seconds <= 0:
            return
        with self._next(lane) as file:
            now = time.time()
            # A clock that was set back must not stop the lane for as long as it went.
            taken = [at for at in _moments(file) if now - seconds < at < now + 60 * seconds][-calls:]
            slot = max(now, taken[0] + seconds, taken[-1]) if len(taken) == calls else max([now, *taken[-1:]])
            os.ftruncate(file, 0)
            os.pwrite(file, " ".join(map(repr, [*taken, slot][-calls:])).encode("ascii"), 0)
        time.sleep(max(0.0, slot - now))

    @contextlib.contextmanager
    def _next(self, lane: str) -> Iterator[int]:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(self.folder / lane, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)


def _moments(file: int) -> list[float]:
    """The calls of a lane that were written down, the oldest first; none where that cannot be read."""
    try:
        return [float(word) for word in os.pread(file, 65_536, 0).decode("ascii").split()]
    except ValueError:
        return []


class Rest:
    """One vendor's API below `base`. session: a `requests.Session`, by default one of its own."""

    def __init__(
        self,
        name: str,
        base: str,
        *,
        key: Key | None,
        budget: Budget | None = None,
        session: requests.Session | None = None,
        explain: Explain | None = None,
        how_to_key: str = "",
    ) -> None:
        """how_to_key: the fix of an AuthFailed, such as where keys are made."""
        self.name, self.base, self.key, self.budget = name, base.rstrip("/"), key, budget
        self.explain, self.how_to_key = explain, how_to_key
        self._session = session

    @property
    def session(self) -> requests.Session:
        if self._session is None:
            import requests

            self._session = requests.Session()
        return self._session

    def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        creating: bool = False,
        keyless: bool = False,
        lane: str = "",
    ) -> Any:
        """One request; the JSON of its answer, None where it has no body.

        creating: something that is paid may come of it, so that no answer is Ambiguous. keyless: needs no key; sent
        with the key where there is one. lane: the budget's lane, the method in small letters by default.
        """
        if self.key is None and not keyless:
            raise AuthFailed(f"there is no key for {self.name}", provider=self.name, code="no key", fix=self.how_to_key)
        import requests

        if self.budget is not None:
            self.budget.wait(lane or method.lower())
        headers = {"Accept": "application/json", "User-Agent": "spotbroker"}
        try:
            answer = self.session.request(
                method,
                f"{self.base}{path}",
                params=params,
                json=body,
                headers=headers,
                auth=self._signed,
                timeout=KEYLESS_TIMEOUT if self.key is None else TIMEOUT,
                allow_redirects=method == "GET",
            )
        except requests.exceptions.ConnectTimeout as error:  # nothing was sent
            raise self._unavailable(_reason(error), "ConnectTimeout") from error
        except requests.exceptions.RequestException as error:
            sent = creating and not _unsent(error)
            raise self.silent(_reason(error), type(error).__name__, creating=sent) from error
        return self._read(answer, creating)

    def _signed(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Put the key in. As `auth`, since requests else lets an entry of ~/.netrc for the host replace the header."""
        if self.key is not None:
            request.headers["Authorization"] = f"Bearer {self.key.value}"
        return request

    def _read(self, answer: requests.Response, creating: bool) -> Any:
        status = answer.status_code
        try:
            # Not `answer.json()`: which parser that is, and what it takes, depends on what else is installed.
            data = json.loads(answer.content) if answer.content.strip() else None
            whole = True
        except ValueError:
            data, whole = answer.text[:SHOWN], False
        if 200 <= status < 300:
            if not whole:
                raise self.silent(f"an answer that is no JSON: {data!r}", "not JSON", creating=creating)
            return data
        known = self.explain(status, data) if self.explain else None
        if isinstance(known, RateLimited) and "Retry-After" in answer.headers:
            known.retry_after = max(known.retry_after, _seconds(answer.headers))
        raise known or self._failed(status, data, answer.headers, creating)

    def _failed(self, status: int, data: Any, headers: Mapping[str, str], creating: bool) -> ProviderError:
        text, code = f"{status}: {str(data)[:SHOWN]}", str(status)
        if status in (401, 403):
            return AuthFailed(text, provider=self.name, code=code, fix=self.how_to_key)
        if status == 404:
            return NotFound(text, provider=self.name, code=code)
        if status == 429:
            return RateLimited(text, retry_after=_seconds(headers), provider=self.name, code=code)
        if status >= 500 or status in (301, 302, 303, 307, 308, 408):
            return self.silent(text, code, creating=creating)
        if status in (400, 422):
            return InvalidRequest(text, provider=self.name, code=code)
        return ProviderError(text, provider=self.name, code=code)

    def silent(self, text: str, code: str, *, creating: bool = False) -> ProviderError:
        """The error for an answer that says nothing: Ambiguous where something paid may have come of the call."""
        return Ambiguous(text, provider=self.name, code=code) if creating else self._unavailable(text, code)

    def _unavailable(self, text: str, code: str) -> ProviderUnavailable:
        return ProviderUnavailable(f"{self.name} did not answer: {text}", provider=self.name, code=code)


def _unsent(error: Exception) -> bool:
    """Did the request never leave, because there was no connection?"""
    from urllib3.exceptions import NewConnectionError

    return isinstance(_cause(error), NewConnectionError)


def _reason(error: Exception) -> str:
    """What was wrong with a connection, without the pools and connections around it."""
    cause = _cause(error)
    return str(cause).rpartition("): ")[2] if cause is not None else str(error)


def _cause(error: Exception) -> Any:
    """The error of urllib3's within one of requests'; None where there is none. A proxy's trouble is in another's."""
    reason = getattr(error.args[0] if error.args else None, "reason", None)
    return getattr(reason, "original_error", reason)


def _seconds(headers: Mapping[str, str]) -> float:
    """What Retry-After says, in seconds from now or as a moment; a default where it is missing or no time.

    No vendor's limit lasts longer than a day.
    """
    from email.utils import parsedate_to_datetime

    text = headers.get("Retry-After", "").strip()
    found = number(text)
    if found is None:
        with contextlib.suppress(ValueError, TypeError):
            found = parsedate_to_datetime(text).timestamp()
    if found is not None and found > EPOCH:
        found -= time.time()
    return RETRY_AFTER if found is None else min(max(0.0, found), DAY)


def whole(value: Any) -> int | None:
    """A number that counts or names something, also where it came as text; None for anything else."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def number(value: Any) -> float | None:
    """A finite number, also where it came as text: it may be a cost or a limit. None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None
