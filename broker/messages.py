"""Sends a job's news to whom its task names, each once, from whichever live broker sees it first.

What is needed for sending is kept sealed under the installation's key until the job has ended and all is sent. A
message that could not be sent is told as a warning of the job, and never holds anything up.
"""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import socket
import string
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

import sqlalchemy as sa

from broker.config import Config
from broker.errors import BrokerError, JobNotFound
from broker.guest.mask import Mask, sensitive
from broker.notify import News, Notify, leads_to, news
from broker.store import Store, insert_into, made, metadata
from broker.vault import seal, unseal

if TYPE_CHECKING:
    from broker.job import Job

PATIENCE = 30.0
"""Seconds for one message."""
TRIES, PAUSE = 3, 2.0
BUSY = (429, 502, 503, 504)
"""What a server answers that has not looked at the message yet."""
MOST = 1900
"""Letters that Discord takes of a message are 2,000."""
URL = re.compile(r"https?://[^\s'\"]+")

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
    """The message as plain data. text and content are the same, for Slack's and Discord's webhooks, which take less."""
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
        "content": text[:MOST],
        "spent": job.spent,
    }


def run(command: str, message: Mapping[str, Any]) -> None:
    """Run a shell command with the text on stdin and SPOTBROKER_EVENT, _JOB, _STATUS and _SUBJECT set. Raises NotSent.

    What it leaves running in the background goes on.
    """
    names = ("event", "job", "status", "subject")
    told = {f"SPOTBROKER_{name.upper()}": str(message[name]).replace("\0", "") for name in names}
    with tempfile.TemporaryFile() as text, tempfile.TemporaryFile() as words:
        text.write(f"{message['text']}\n".encode("utf-8", "replace"))
        text.seek(0)
        process = subprocess.Popen(
            ["sh", "-c", command], env={**os.environ, **told}, start_new_session=True,
            stdin=text, stdout=subprocess.DEVNULL, stderr=words,
        )  # fmt: skip
        try:
            code = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            # All that it has started: a shell that is killed alone leaves what it waits for.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise NotSent(f"it did not end within {PATIENCE:.0f} s") from None
        if code:
            words.seek(0)
            last = _shown(words.read())
            raise NotSent(f"exit {code}" + (f": {last}" if last else ""))


def _shown(words: bytes) -> str:
    """The last line of what a command has said, without what it may have said of keys."""
    lines = words.decode("utf-8", "replace").strip().splitlines() or [""]
    secrets = [value for name, value in os.environ.items() if sensitive(name, value)]
    text = "".join(letter for letter in Mask(secrets).text(lines[-1]) if letter.isprintable())
    return URL.sub(lambda found: leads_to(found[0]), text)[:200]


def post(url: str, message: Mapping[str, Any]) -> None:
    """POST the message as JSON. A server that is busy, or is not there, is asked TRIES times. Raises NotSent."""
    parts = urlsplit(url)
    headers = {"Content-Type": "application/json", "User-Agent": "spotbroker"}
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        headers["Authorization"] = f"Basic {base64.b64encode(login).decode()}"
    # An address may be written in any letters; those of a host are urllib's own matter.
    plain = {name: quote(getattr(parts, name), safe=string.punctuation) for name in ("path", "query")}
    url = parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="", **plain).geturl()
    for left in reversed(range(TRIES)):
        request = urllib.request.Request(url, json.dumps(message).encode(), headers)  # noqa: S310 - http or https, checked with the task
        try:
            with urllib.request.build_opener(_Again).open(request, timeout=PATIENCE):
                return
        except urllib.error.HTTPError as error:
            if not left or error.code not in BUSY:
                raise NotSent(f"{parts.hostname} answered {error.code}") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or type(error).__name__
            # Whoever took it and said nothing may have it.
            if not left or not isinstance(reason, ConnectionRefusedError | socket.gaierror):
                raise NotSent(f"{parts.hostname} did not answer: {reason}") from None
        time.sleep(PAUSE)


class _Again(urllib.request.HTTPRedirectHandler):
    """A message goes on to where a server sends it: urllib alone would go there with none, and take it for told."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        if code in (301, 307, 308) or (code == 302 and new.path.rstrip("/") == old.path.rstrip("/")):
            own = ["content-type", "user-agent", *(["authorization"] if new.hostname == old.hostname else [])]
            headers = {name: value for name, value in req.header_items() if name.lower() in own}
            return urllib.request.Request(newurl, req.data, headers)  # noqa: S310 - the opener knows http and https
        # 303, and 302 to another page: the message was taken, and there is something to read about it.
        return super().redirect_request(req, fp, code, msg, headers, newurl)


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
