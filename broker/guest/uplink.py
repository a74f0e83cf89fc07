"""`Uplink`: the thread that talks with the home: beats and output out, control in, access renewed."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from broker.errors import HomeAccessDenied, HomeAccessExpired, HomeError, HomeUnavailable
from broker.guest.bootfile import Boot
from broker.guest.clock import Clock
from broker.guest.log import Log
from broker.guest.status import Status
from broker.home import Access, Control, Home, JobKeys, Order, translated

T = TypeVar("T")
WAITING = 1.0  # seconds between two looks at control while a predecessor is waited for
LOG_FIRST, LOG_LATER, LIVELY = 2.0, 10.0, 1800.0  # output goes out every 2 s for half an hour, then every 10 s
TIME_AGAIN = 300.0  # seconds between two looks at the store's clock
RENEW = 0.4  # of the access's life left when a fresh one is first asked for
RENEW_AGAIN = 60.0  # seconds between two questions for it, or a twentieth of its life where that is less


class Uplink(threading.Thread):
    """`control` is the last one read, or None. `flush` waits until all that is known now has gone out."""

    def __init__(self, home: Home, keys: JobKeys, boot: Boot, status: Status, log: Log, clock: Clock) -> None:
        super().__init__(name="uplink", daemon=True)
        self.home, self.keys, self.boot, self.status, self.log, self.clock = home, keys, boot, status, log, clock
        self.control: Control | None = None
        self.heard: Callable[[], None] = lambda: None
        self._wake = threading.Event()
        self._done = threading.Condition()
        self._asked = self._sent = 0
        self._log_seq: int | None = None
        self._time_at, self._renew_at = 0.0, -RENEW_AGAIN
        self._began = time.time()
        self._hopeless = False
        status.changed = self.ask
        status.set(access_expires=home.access.expires_at)

    @property
    def order(self) -> Order | None:
        """The broker's last word to this generation."""
        return self.control.generations.get(self.boot.generation) if self.control else None

    @property
    def stale(self) -> bool:
        """A control was read, and this generation does not stand in it."""
        return self.control is not None and not self.control.stands(self.boot.generation)

    def ask(self) -> None:
        """Send a beat now."""
        with self._done:
            self._asked += 1
        self._wake.set()

    def flush(self, seconds: float) -> bool:
        """Send a beat and all output; did it go out within `seconds`?"""
        self.ask()
        until = time.monotonic() + seconds
        with self._done:
            wanted = self._asked
            while self._sent < wanted or self.log.part():
                left = until - time.monotonic()
                if left <= 0:
                    return False
                self._wake.set()
                self._done.wait(min(left, 0.2))
        return True

    def run(self) -> None:
        next_beat = next_log = 0.0
        while not self.stale:  # a generation that has fallen writes nothing more
            now = time.monotonic()
            with self._done:
                asked = self._asked
            urgent = asked > self._sent
            good = True
            if urgent or now >= next_beat:
                good = self._guarded("a beat", self._beat) is not None
                if good:
                    with self._done:
                        self._sent = asked
                next_beat = time.monotonic() + self._interval()
            if urgent or now >= next_log:
                self._guarded("output", self._ship)
                next_log = time.monotonic() + min(self._log_interval(), self.boot.beat)
            with self._done:
                self._done.notify_all()
            self._wake.wait(max(0.0, min(next_beat, next_log) - time.monotonic()) if good else min(1.0, self.boot.beat))
            self._wake.clear()

    def guarded(self, what: str, call: Callable[[], T], *, until: float) -> T | None:
        """Call until it works; None once `until` (monotonic) has passed or the generation has fallen.

        What time does not heal, such as a missing right, is tried three times only.
        """
        pause, hopeless = 0.2, 0
        while True:
            result = None if self.stale else self._guarded(what, call)
            hopeless = hopeless + 1 if self._hopeless else 0
            if result is not None or self.stale or hopeless == 3 or time.monotonic() >= until:
                return result
            time.sleep(min(pause, max(0.0, until - time.monotonic())))
            pause = min(5.0, 2 * pause)

    def _interval(self) -> float:
        return min(self.boot.beat, WAITING) if self.status.state == "waiting" else self.boot.beat

    def _log_interval(self) -> float:
        return LOG_FIRST if time.monotonic() - self.clock.started < LIVELY else LOG_LATER

    def _guarded(self, what: str, call: Callable[[], T]) -> T | None:
        self._hopeless = False
        try:
            reachable(self.home.url)
            self._renew_in_time()
            return call()
        except HomeAccessExpired as error:
            self.status.warn(f"{what} did not reach the home: {error}")
            self.renew()
        except HomeAccessDenied as error:
            # Not every store says that a key has ended; one that has may yet be renewed.
            self._hopeless = not self.expired
            self.status.warn(f"{what} did not reach the home: {error}")
        except HomeUnavailable as error:
            self.status.warn(f"{what} did not reach the home: {error}")
        except Exception as error:  # noqa: BLE001 - a thread that dies here would be a machine gone silent
            self._hopeless = True
            self.status.warn(f"{what} did not reach the home: {error or type(error).__name__}")
        return None

    def _beat(self) -> bool:
        key = self.keys.beat(self.boot.generation)
        before = time.monotonic()
        self.home.put(key, self.status.beat())
        after = time.monotonic()
        if not self._time_at or after - self._time_at > TIME_AGAIN:
            with translated(key):
                self.clock.observe(
                    self.home.store.head(self.home.at(key))["last_modified"].timestamp(), (before + after) / 2
                )
            self._time_at = after
        self.read_control()
        return True

    def read_control(self) -> bool:
        """Raises HomeError where it cannot be read; an unreadable one changes nothing of what is known."""
        try:
            control = Control.from_bytes(self.home.get(self.keys.control))
        except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
            raise HomeUnavailable(f"control cannot be read: {error or type(error).__name__}") from error
        self.control = control
        if self.order is not None:
            self.clock.extend(self.order.end_by, self.order.end_why)
        self.heard()
        return True

    def _ship(self) -> bool:
        if self._log_seq is None:
            old = self.home.numbered(self.keys.logs(self.boot.generation))
            self._log_seq = max((entry.number for entry in old), default=0)
        while part := self.log.part():
            self.home.put(self.keys.log(self.boot.generation, self._log_seq + 1), part)
            self._log_seq += 1
            self.log.sent(len(part))
        return True

    @property
    def expired(self) -> bool:
        """Has the guest's access ended, by its own date?"""
        expires = self.home.access.expires_at
        return expires is not None and expires <= time.time()

    def _renew_in_time(self) -> None:
        expires = self.home.access.expires_at
        if expires is not None and expires - time.time() < RENEW * max(0.0, expires - self._began):
            self.renew()

    def renew(self) -> None:
        """Take fresh access where the broker has put some; the same `Home` then uses it.

        By the URL that outlives the old access where there is one, else with the old access while it lasts.
        """
        now, expires = time.monotonic(), self.home.access.expires_at
        life = RENEW_AGAIN * 20 if expires is None else max(0.0, expires - self._began)
        if now - self._renew_at < min(RENEW_AGAIN, max(1.0, life / 20)):
            return
        self._renew_at = now
        try:
            raw = self._fresh_access()
            if raw is None:
                return
            access = Access.from_json(json.loads(raw))
            if access.expires_at == self.home.access.expires_at:
                return
            fresh = Home(access, make=False)
        except (OSError, ValueError, TypeError, HomeError) as error:
            self.status.warn(f"fresh access to the home could not be had: {error}")
            return
        self.home.access, self.home.store = fresh.access, fresh.store
        self._began = time.time()
        self.status.set(access_expires=access.expires_at)

    def _fresh_access(self) -> bytes | None:
        """What the broker has put there; None where it has put nothing yet. Raises OSError, HomeError."""
        if self.boot.access_url:
            try:
                with urllib.request.urlopen(self.boot.access_url, timeout=20) as reply:  # noqa: S310 - the broker's own
                    return bytes(reply.read())
            except OSError as error:
                if getattr(error, "code", None) == 404:  # no broker has been awake since
                    return None
                if self.expired:
                    raise
        return self.home.find(self.keys.access(self.boot.generation))


def reachable(url: str) -> None:
    """A folder that is not there is unreachable: writing would make an empty one. Raises HomeUnavailable."""
    parts = urlsplit(url)
    if parts.scheme == "file" and not Path(unquote(parts.path)).is_dir():
        raise HomeUnavailable(f"the home {url} is not there")
