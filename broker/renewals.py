"""Fresh access for machines whose first one ends before they do.

A placement whose key ends holds a signed URL of `access/N` too, made with the broker's own lasting keys and good for
seven days; a live broker puts a fresh key there when half of the old one's life is over. The guest asks there from
two fifths of it on, and after its end as well, so a broker that wakes late is still in time. With keys of a session
(SSO, a role) there is no such second way: the end of access is then a term of the machine's own end.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker import signing
from broker.access import longest, mint
from broker.config import Config
from broker.errors import BrokerError
from broker.home import Access, Home, JobKeys

if TYPE_CHECKING:
    from broker.world import World

URL_LIFE = 7 * 86400.0  # seconds; the most that S3's signatures allow
ASK_AGAIN = 60.0  # seconds between two tries of a renewal that failed


def renewable(config: Config, access: Access) -> bool:
    """Can a live broker renew this placement's access, so that its end need not be the machine's?"""
    return access.expires_at is not None and access.scoped and lasting(config.home_config, os.environ)


def lasting(settings: Mapping[str, str], environ: Mapping[str, str]) -> bool:
    """Are the broker's own keys ones that do not end by themselves, so that what they sign stays good?"""

    def setting(name: str) -> str:
        return settings.get(name) or settings.get(f"aws_{name}") or ""

    if profile := settings.get(signing.SETTING, ""):
        return signing.lasting(profile)
    if setting("access_key_id"):
        return not (setting("session_token") or setting("token"))
    return bool(environ.get("AWS_ACCESS_KEY_ID")) and not environ.get("AWS_SESSION_TOKEN")


def unattended(config: Config, home_url: str, hours: float, now: float, environ: Mapping[str, str] = os.environ) -> str:
    """Until when a machine launched now goes on while no broker lives, for people; empty where the task ends sooner."""
    own_last = lasting(config.home_config, environ)
    life = longest(config.home_config, home_url, lasting=own_last)
    if life is None or life >= hours * 3600:
        return ""
    until = time.strftime("%H:%M" if life < 86_400 else "%d %b %H:%M", time.localtime(now + life))
    if own_last:
        return f"until {until}: a machine's key for the home lasts {life / 3600:g} h, and a live broker renews it"
    return (
        f"until {until}: a machine's key for the home lasts {life / 3600:g} h, and keys of a session (SSO, a role) "
        "cannot renew it; the machine ends then, and a live broker goes on with the next"
    )


def address(home: Home, job: str, generation: int) -> str:
    """Where the guest reads fresh access without a key."""
    return home.sign_get(JobKeys(job).access(generation), URL_LIFE)


def renew(config: Config, home: Home, job: str, generation: int, until: float) -> Access:
    """Mint fresh access for a placement and put it where its guest looks. Raises ConfigError, HomeError."""
    access = mint(config, home.url, job, generation, until)
    home.put(JobKeys(job).access(generation), json.dumps(access.to_json()).encode())
    return access


@dataclass(slots=True)
class _Known:
    """expires: the newest access's end; life: its seconds; tried: when a renewal was tried last, monotonic."""

    expires: float
    life: float
    tried: float = float("-inf")


@dataclass(slots=True)
class Renewals:
    """What a live broker knows of its machines' access; `serve` renews what is half over. Safe between threads."""

    world: World
    _known: dict[tuple[str, int], _Known] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def serve(self, job: str, generation: int, home_url: str, told: float | None) -> bool:
        """Renew one placement's access if it is due; was it? told: when it ends by the guest's beat, None for never.

        A failure is written down as a warning and tried again.
        """
        if told is None:
            return False
        now, key = self.world.clock(), (job, generation)
        with self._lock:
            known = self._known.get(key)
            if known is not None and known.expires >= told and not self._due(known, now):
                return False
        request = dict(self.world.store.placement(job, generation).request)
        with self._lock:
            known = self._known.setdefault(key, _Known(told, max(1.0, told - float(request["frozen_at"]))))
            known.expires = max(known.expires, told)
            if not self._due(known, now):
                return False
            known.tried = time.monotonic()
        if not renewable(self.world.config, Access(home_url, expires_at=told, scoped=True)):
            return False
        try:
            fresh = renew(self.world.config, self.world.home(home_url), job, generation, float(request["end_by"]))
        except BrokerError as error:
            text = f"fresh access for machine {generation} could not be had: {error}"
            self.world.store.event(job, "warning", text, generation=generation, once=f"access {type(error).__name__}")
            return False
        with self._lock:
            known.expires = fresh.expires_at or known.expires
            known.life = max(1.0, known.expires - now)
        return True

    def forget(self, following: Collection[tuple[str, int]]) -> None:
        """Drop what is known of placements that nobody follows any more."""
        with self._lock:
            for key in self._known.keys() - set(following):
                del self._known[key]

    @staticmethod
    def _due(known: _Known, now: float) -> bool:
        return known.expires - now < known.life / 2 and time.monotonic() - known.tried > ASK_AGAIN
