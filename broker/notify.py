"""Whom a job tells what: the `notify` of a task, and what of a job's events is news. Pure.

Webhooks and Apprise's URLs hold keys, so a task that is written down anywhere shows only where they lead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from broker.document import Problem
from broker.errors import ConfigError

if TYPE_CHECKING:
    from broker.store import Event

NEWS = ("finished", "failed", "moved", "stuck", "budget", "nothing")
USUAL = ("finished", "failed", "stuck", "budget", "nothing")
_ENDS = {"succeeded": "finished", "failed": "failed", "error": "failed", "limit": "budget", "unavailable": "nothing"}
CUT = "…"
"""What a URL ends in that is written down."""
_FROM_ENVIRONMENT = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Notify:
    """on: which of NEWS. command: a shell command, run where the broker is, with the text on its stdin. webhook: a URL
    that gets it by POST as JSON. apprise: URLs for the package of that name. `env:NAME` stands for a URL from the
    environment.
    """

    on: tuple[str, ...] = USUAL
    command: str = ""
    webhook: str = field(default="", repr=False)
    apprise: tuple[str, ...] = field(default=(), repr=False)

    def problems(self) -> Iterator[Problem]:
        """Never quotes a URL: it may hold a key."""
        if not (self.command.strip() or self.webhook or self.apprise):
            yield Problem("notify", "tells nobody", "add a command, a webhook or apprise")
        for word in self.on:
            if word not in NEWS:
                yield Problem("notify.on", f"must be of {', '.join(NEWS)}, not {word!r}")
        if self.webhook and not _FROM_ENVIRONMENT.fullmatch(self.webhook):
            parts = urlsplit(self.webhook)
            if parts.scheme not in ("http", "https") or not parts.netloc:
                yield Problem("notify.webhook", "must be an http:// or https:// URL, or env:NAME")

    def filled(self, environ: Mapping[str, str]) -> Notify:
        """The same with every `env:NAME` replaced. Raises ConfigError for one that is not set."""

        def value(text: str) -> str:
            found = _FROM_ENVIRONMENT.fullmatch(text)
            if found is None:
                return text
            if not environ.get(found[1]):
                raise ConfigError(f"notify: the environment has no {found[1]}", fix=f"export {found[1]} before")
            return environ[found[1]]

        return replace(self, webhook=value(self.webhook), apprise=tuple(map(value, self.apprise)))

    @property
    def whole(self) -> Notify:
        """Without the URLs of which only where they lead is known."""
        return replace(
            self,
            webhook="" if self.webhook.endswith(CUT) else self.webhook,
            apprise=tuple(url for url in self.apprise if not url.endswith(CUT)),
        )

    @property
    def variables(self) -> tuple[str, ...]:
        """The names that `filled` looks for."""
        found = (_FROM_ENVIRONMENT.fullmatch(text) for text in (self.webhook, *self.apprise))
        return tuple(match[1] for match in found if match is not None)

    def shown(self) -> dict[str, object]:
        """As plain data that may be seen: of each URL only where it leads."""
        return {
            "on": list(self.on),
            "command": self.command,
            "webhook": leads_to(self.webhook),
            "apprise": [leads_to(url) for url in self.apprise],
        }


def leads_to(url: str) -> str:
    """`https://hooks.example.com/…` of a whole URL; env:NAME as it is."""
    if not url or _FROM_ENVIRONMENT.fullmatch(url):
        return url
    parts = urlsplit(url)
    host = parts.hostname or ""
    # Only of http is the host surely no key: Apprise's own schemes put tokens there.
    where = f"{parts.scheme}://{host}/" if parts.scheme in ("http", "https") else f"{parts.scheme or 'apprise'}://"
    return where + CUT


@dataclass(frozen=True, slots=True)
class News:
    """One thing worth telling. what: of NEWS. seq: of the event that it comes from."""

    what: str
    seq: int
    text: str


def news(events: Sequence[Event], after: int, status: str) -> Iterator[News]:
    """What of a job's events after `after` is news. events: all of them. status: the job's, as it stands."""
    launched = waited = kept = False
    for event in events:
        what = ""
        if event.kind == "launched":
            what, launched = ("moved" if launched else ""), True
        elif event.kind == "nothing":
            what, waited = ("nothing" if launched and not waited else ""), True
        elif event.kind == "stuck":
            what = "stuck"
        elif event.kind == "kept":
            what, kept = "failed", True
        elif event.kind == "ended":
            # That it has failed was told when its machine began to be kept.
            what, kept = ("" if kept else _ENDS.get(event.text.partition(":")[0], _ENDS.get(status, ""))), False
        if what and event.seq > after:
            yield News(what, event.seq, event.text)
