"""Sends a job's news to whom its task names, each once, from whichever live broker sees it first.

What is needed for sending is kept sealed under the installation's key until the job has ended and all is sent. A
message that could not be sent is told as a warning of the job, and never holds anything up.
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import sqlalchemy as sa

from broker.config import Config
from broker.errors import BrokerError, JobNotFound
from broker.notify import News, Notify, news
from broker.store import Store, insert_into, made, metadata
from broker.vault import seal, unseal

if TYPE_CHECKING:
    from broker.job import Job

PATIENCE = 30.0
"""Seconds for one message."""

waiting = sa.Table(
    "spotbroker_messages",
    metadata,
    sa.Column("job", sa.String, primary_key=True),
    sa.Column("sealed", sa.LargeBinary, nullable=False),
    sa.Column("seq", sa.Integer, nullable=False),
)


class Messages:
    """The news of an installation's jobs that are still to be told."""

    def __init__(self, config: Config, store: Store) -> None:
        self.config, self.store = config, store
        made(store.engine, (waiting,))

    def expect(self, job: str, notify: Notify, after: int = 0) -> None:
        """Tell of a job's events after one; a job that is told of already stays as it is."""
        sealed = seal(self.config.state, {"notify": json.dumps(asdict(notify))})
        insert = insert_into(self.store.engine, waiting).values(job=job, sealed=sealed, seq=after)
        with self.store.engine.begin() as db:
            db.execute(insert.on_conflict_do_nothing())

    def send(self) -> list[News]:
        """Send what is new; what was sent here."""
        with self.store.engine.connect() as db:
            rows = db.execute(sa.select(waiting)).all()
        sent: list[News] = []
        for row in rows:
            sent += self._of(row.job, row.sealed, row.seq)
        return sent

    def _of(self, name: str, sealed: bytes, seq: int) -> list[News]:
        from broker.job import Job

        try:
            job = Job(self.store.job(name), self.config, self.store)
        except JobNotFound:
            self._forget(name, seq)
            return []
        # The status is written after the last event: a job that is done has no more of them, and one that is about to
        # be is not told of until it is.
        done, early = job.done, set() if job.done else {"ended"} if job.row.kept else {"ended", "kept"}
        events = [event for event in job.events() if event.kind not in early]
        found = list(news(events, seq, job.status))
        last = max([seq, *(item.seq for item in found)])
        if last > seq and not self._mine(name, seq, last):
            return []
        if found:
            data = json.loads(unseal(self.config.state, sealed)["notify"])
            notify = Notify(**{**data, "on": tuple(data["on"]), "apprise": tuple(data["apprise"])})
            for item in found:
                if item.what in notify.on:
                    self._tell(notify, item, job)
        if done:
            self._forget(name, last)
        return found

    def _mine(self, job: str, seq: int, last: int) -> bool:
        """Take these news; False where another broker was first."""
        query = sa.update(waiting).where(waiting.c.job == job, waiting.c.seq == seq).values(seq=last)
        with self.store.engine.begin() as db:
            return db.execute(query).rowcount == 1

    def _forget(self, job: str, seq: int) -> None:
        with self.store.engine.begin() as db:
            db.execute(sa.delete(waiting).where(waiting.c.job == job, waiting.c.seq == seq))

    def _tell(self, notify: Notify, item: News, job: Job) -> None:
        """Send one message every way that there is; a way that fails is told of, without the URL."""
        message = message_of(item, job)
        ways: dict[str, Callable[[], None]] = {}
        if notify.command:
            ways["command"] = partial(run, notify.command, message)
        if notify.webhook:
            ways["webhook"] = partial(post, notify.webhook, message)
        if notify.apprise:
            ways["apprise"] = partial(apprise, notify.apprise, message)
        for way, send in ways.items():
            try:
                send()
            except Exception as error:  # noqa: BLE001 - whatever a message met, the job goes on
                why = str(error) if isinstance(error, NotSent) else type(error).__name__
                text = f"notify: the {way} was not told that the job has {item.what}: {why}"
                self.store.event(job.id, "warning", text, once=text[:200])


class NotSent(BrokerError):  # noqa: N818 - what has happened
    """A message did not get through; its text names no URL."""


def message_of(item: News, job: Job) -> dict[str, Any]:
    """The message as plain data. text and content are the same, for Slack's and Discord's webhooks."""
    from broker.morning import summary

    ended = item.what in ("finished", "failed", "budget") or job.done
    text = summary(job) if ended else f"{job.id} {item.what}: {item.text}"
    return {
        "event": item.what,
        "job": job.id,
        "name": job.name,
        "status": job.status,
        "subject": text.split("\n", 1)[0],
        "text": text,
        "content": text,
        "spent": job.spent,
    }


def run(command: str, message: Mapping[str, Any]) -> None:
    """Run a shell command with the text on stdin and SPOTBROKER_EVENT, _JOB, _STATUS and _SUBJECT set."""
    told = {f"SPOTBROKER_{name.upper()}": str(message[name]) for name in ("event", "job", "status", "subject")}
    try:
        done = subprocess.run(
            ["sh", "-c", command],
            input=str(message["text"]) + "\n",
            env={**os.environ, **told},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotSent(f"it did not end within {PATIENCE:.0f} s") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [""])[-1][:200]
        raise NotSent(f"exit {done.returncode}" + (f": {last}" if last else ""))


def post(url: str, message: Mapping[str, Any]) -> None:
    """POST the message as JSON. Raises NotSent."""
    body = json.dumps(message).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", "User-Agent": "spotbroker"})  # noqa: S310 - http or https, checked with the task
    host = urlsplit(url).hostname
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE):  # noqa: S310
            return
    except urllib.error.HTTPError as error:
        raise NotSent(f"{host} answered {error.code}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or type(error).__name__
        raise NotSent(f"{host} did not answer: {reason}") from None


def apprise(urls: tuple[str, ...], message: Mapping[str, Any]) -> None:
    """Hand the message to Apprise. Raises NotSent where it is not installed, or did not deliver."""
    try:
        import apprise as package  # type: ignore[import-not-found, unused-ignore]
    except ModuleNotFoundError:
        raise NotSent("the package apprise is not installed: pip install 'spotbroker[notify]'") from None
    sender = package.Apprise()
    if not all(sender.add(url) for url in urls):
        raise NotSent("one of its URLs is none that apprise knows")
    if not sender.notify(title=str(message["subject"]), body=str(message["text"])):
        raise NotSent("it was not delivered")
