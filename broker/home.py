"""A job's home: its prefix in the user's object store, and the objects that broker and guest exchange there.

`Home` is the store with this project's errors; `JobKeys` names every object of one job; `Control` is the one object by
which a broker directs its guests; `lineage` walks the chain of parents that restores may read. Runs on both sides,
so nothing here but the standard library and obstore.

Layout, below the home's URL::

    beats/J/N                counter, state, progress: guest N, every beat
    jobs/J/control           the broker's word: who is live, who retires, until when
    jobs/J/clock             written by the broker to read the store's time off it
    jobs/J/spec              the task as frozen at submission
    jobs/J/artefacts/SHA     guest zipapp, packed workdir
    jobs/J/gen/N/boot        one-time boot script of placement N, deleted once read
    jobs/J/gen/N/parent      the (generation, seq) that N started from
    jobs/J/gen/N/manifest/S  snapshot S of N
    jobs/J/gen/N/closed      N's program has ended and its last manifest is out
    jobs/J/gen/N/result      how the program ended
    jobs/J/gen/N/log/S       output of N, part S
    jobs/J/access/N          fresh credentials for N, where they are renewed
    jobs/J/blobs/SHA         file contents, shared by all generations
    jobs/J/cache/manifest/N  the task's cache folders as N saved them last
    jobs/J/cache/blobs/SHA   what is in them
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from broker.errors import ConfigError, HomeAccessDenied, HomeAccessExpired, HomeError, HomeUnavailable

EXPIRED = re.compile(r"ExpiredToken|RequestTimeTooSkewed|InvalidToken|token (has |is )?expired", re.IGNORECASE)
KEYS = "check the keys, in [home_config] or the environment, and that they may read and write there"
NO_SESSION = re.compile(r"the profile (\S+) gives no keys: [^\n]*")
KMS = re.compile(r"kms:\w+|\bKMS\.\w+")
KMS_KEY = re.compile(r"arn:[\w-]+:kms:[\w-]+:\d+:key/[\w-]+")
DENIED = re.compile(r"\b403\b|AccessDenied|SignatureDoesNotMatch|InvalidAccessKeyId", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach a home: its URL and the store's own settings, keys included.

    expires_at: seconds since the epoch, None where it does not end. scoped: the key reaches this job's prefix only, or
    nothing but the broker's data. one_prefix: the store's keys name one prefix each, so that a job's beats must lie
    among its other objects.
    """

    url: str
    config: Mapping[str, str] = field(default_factory=dict, repr=False)
    expires_at: float | None = None
    scoped: bool = False
    one_prefix: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "url": self.url,
            "config": dict(self.config),
            "expires_at": self.expires_at,
            "scoped": self.scoped,
            "one_prefix": self.one_prefix,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Access:
        return cls(**data)


@dataclass(frozen=True, slots=True)
class Entry:
    """One object in a listing. modified: the store's time, seconds since the epoch."""

    key: str
    size: int
    modified: float
    e_tag: str

    @property
    def number(self) -> int:
        """What it is called, where that is a number as of a part or a snapshot; -1 for whatever else lies there."""
        name = self.key.rpartition("/")[2]
        return int(name) if name.isascii() and name.isdecimal() else -1


class Home:
    """One object store prefix. Every method raises a `HomeError` and nothing else of the store's.

    make: make the folder of a `file://` home. Without it, and from then on, a folder that is not there is
    HomeUnavailable: a home that has been moved away must not come back empty.
    """

    def __init__(self, access: Access, *, make: bool = True) -> None:
        self.access = access
        self.store, self.folder = _open(access, make=make)

    @property
    def is_local(self) -> bool:
        return self.folder is not None

    @contextmanager
    def _reached(self, key: str) -> Iterator[None]:
        if self.folder is not None and not self.folder.is_dir():
            raise _gone(self.url)
        with translated(key):
            yield

    @property
    def url(self) -> str:
        return self.access.url

    def at(self, key: str) -> str:
        """Where the object really lies: `beats/J/N` is `jobs/J/gen/N/beat` where a key may name one prefix only."""
        if not self.access.one_prefix or not key.startswith("beats/"):
            return key
        _, job, generation = key.split("/")
        return f"jobs/{job}/gen/{generation}/beat"

    def put(self, key: str, data: bytes) -> None:
        """Write one small object whole, over what was there."""
        with self._reached(key):
            self.store.put(self.at(key), data, use_multipart=False)

    def put_file(self, key: str, path: Path) -> None:
        """Write one file, in parts where it is large, over what was there."""
        with self._reached(key):
            self.store.put(key, path)

    def create(self, key: str, data: bytes) -> bool:
        """Write one small object unless it exists; False if it did.

        A store without conditional puts is asked first: two who write at once may then both be told that they did. The
        protocol bears it, since what counts is decided by the reader.
        """
        from obstore.exceptions import AlreadyExistsError

        with self._reached(key):
            try:
                self.store.put(key, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
            except NotImplementedError:
                if self.has(key):
                    return False
                self.store.put(key, data, use_multipart=False)
        return True

    def get(self, key: str) -> bytes:
        """Read one object whole; FileNotFoundError where there is none."""
        with self._reached(key):
            return bytes(self.store.get(self.at(key)).bytes())

    def find(self, key: str) -> bytes | None:
        """Read one object whole; None where there is none."""
        try:
            return self.get(key)
        except FileNotFoundError:
            return None

    def beats(self, wanted: Iterable[tuple[str, int]]) -> list[Entry]:
        """The beats of these placements (job, generation), and perhaps of others.

        One listing per thousand covers all jobs, except where keys name one prefix each: then it is a look per job.
        """
        if not self.access.one_prefix:
            return self.list("beats/")
        found: list[Entry] = []
        for job, generation in sorted(wanted):
            key = f"beats/{job}/{generation}"
            try:
                with self._reached(key):
                    m = self.store.head(self.at(key))
            except FileNotFoundError:
                continue
            found.append(Entry(key, m["size"], m["last_modified"].timestamp(), m["e_tag"] or ""))
        return found

    def numbered(self, prefix: str, *, after: str | None = None) -> list[Entry]:
        """As `list`, of those objects alone that are called by a number."""
        return [entry for entry in self.list(prefix, after=after) if entry.number >= 0]

    def list(self, prefix: str, *, after: str | None = None) -> list[Entry]:
        """Every object below `prefix`, sorted by key; `after` leaves out keys up to and including it."""
        found: list[Entry] = []
        with self._reached(prefix):
            for page in self.store.list(prefix, offset=after, chunk_size=1000):
                found.extend(
                    Entry(m["path"], m["size"], m["last_modified"].timestamp(), m["e_tag"] or "") for m in page
                )
        return sorted(found, key=lambda entry: entry.key)

    def has(self, key: str) -> bool:
        """Is there such an object?"""
        try:
            with self._reached(key):
                self.store.head(key)
        except FileNotFoundError:
            return False
        return True

    def copy(self, key: str, to: str) -> None:
        """Copy one object within the store; FileNotFoundError where there is none."""
        with self._reached(key):
            self.store.copy(key, to)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; those that are not there are no error."""
        for key in keys:
            with self._reached(key):
                try:
                    self.store.delete(self.at(key))
                except FileNotFoundError:
                    continue

    def sign_get(self, key: str, seconds: float) -> str:
        """A URL that reads this one object without a key, for at most 7 days. A folder's is a plain `file://`."""
        if self.is_local:
            return f"{self.url.rstrip('/')}/{key}"
        import obstore

        with self._reached(key):
            return str(obstore.sign(self.store, "GET", key, timedelta(seconds=min(seconds, 7 * 86400))))

    def probe(self) -> float:
        """Write, read back and delete a small object; return the store's time, seconds since the epoch.

        The object lies below `probe/`, so the caller's key must reach the whole home.
        """
        return self.time(f"probe/{uuid.uuid4().hex}", delete=True)

    def time(self, key: str, *, delete: bool = False) -> float:
        """The store's time, read from an object written at `key` for the purpose."""
        self.put(key, b"{}")
        with self._reached(key):
            if bytes(self.store.get(key).bytes()) != b"{}":
                raise HomeError(f"{self.url} does not read back what was written to it")
            at = float(self.store.head(key)["last_modified"].timestamp())
        if delete:
            self.delete([key])
        return at


def _gone(url: str) -> HomeUnavailable:
    return HomeUnavailable(f"the home {url} is not there", fix="put its folder back where it was, or mount its disk")


def _open(access: Access, *, make: bool) -> tuple[Any, Path | None]:
    """The store, and the folder of one that is a folder."""
    parts = urlsplit(access.url)
    if parts.scheme == "file":
        from obstore.store import LocalStore

        folder = Path(unquote(parts.path))
        if not make and not folder.is_dir():
            raise _gone(access.url)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise HomeUnavailable(
                f"the home {access.url} cannot be used: {error.strerror or error}",
                fix="set `home` to a folder that you may write to, or to s3://BUCKET/PREFIX",
            ) from error
        return LocalStore(folder, automatic_cleanup=False), folder
    from datetime import timedelta as seconds

    from obstore.store import from_url

    options: dict[str, Any] = {"timeout": seconds(seconds=120), "connect_timeout": seconds(seconds=5)}
    config: dict[str, Any] = dict(access.config)
    signed: dict[str, Any] = {}
    if profile := config.pop("profile", ""):
        from broker import signing

        signed = {"credential_provider": signing.provider(profile)}
    if str(config.get("endpoint", config.get("aws_endpoint", ""))).startswith("http://"):
        options["allow_http"] = True
    retry: Any = {"max_retries": 5, "retry_timeout": seconds(seconds=60)}
    try:
        open_url: Any = from_url
        return open_url(access.url, config=config, client_options=options, retry_config=retry, **signed), None
    except Exception as error:
        raise ConfigError(
            f"the home {access.url!r} cannot be opened: {error}",
            fix="a home is file:///FOLDER or s3://BUCKET/PREFIX",
        ) from error


@contextmanager
def translated(key: str) -> Iterator[None]:
    """Turn obstore's exceptions into ours; FileNotFoundError stays itself.

    obstore lists and deletes in bulk with GenericError even for 403, so the text is read too (obstore 0.12.1).
    """
    from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

    try:
        yield
    except FileNotFoundError:
        raise
    except (BaseError, OSError) as error:
        text = str(error)
        if session := NO_SESSION.search(text):
            raise HomeAccessExpired(f"no access to {key}: {session[0][:300]}", fix=log_in(session[1])) from error
        if KMS.search(text):
            raise HomeAccessDenied(f"no access to {key}: {first_line(text)}", fix=kms_fix(text)) from error
        if EXPIRED.search(text):
            raise HomeAccessExpired(f"the access to {key} has expired: {first_line(text)}", fix=KEYS) from error
        if isinstance(error, PermissionDeniedError | UnauthenticatedError) or DENIED.search(text):
            raise HomeAccessDenied(f"no access to {key}: {first_line(text)}", fix=KEYS) from error
        raise HomeUnavailable(
            f"the store did not serve {key}: {first_line(text)}",
            fix="check `home` and its endpoint in [home_config], and the network",
        ) from error


def log_in(profile: str) -> str:
    """What to do where a profile of the AWS configuration gives no keys."""
    return f"log in again: aws sso login --profile {profile}; or see that the profile has keys or a role"


def kms_fix(text: str) -> str:
    """What to do where a bucket is encrypted with a key of KMS's that whoever signs may not use."""
    key = found[0] if (found := KMS_KEY.search(text)) else "the key"
    return (
        f"the bucket is encrypted with a KMS key: allow kms:GenerateDataKey and kms:Decrypt on {key}, in the IAM "
        "policy of whoever signs and, where the key is another account's, in its own too; then broker home setup again"
    )


def first_line(text: str) -> str:
    """What people can read of a store's error: obstore puts the server's XML behind it."""
    return text.strip().split("\n", 1)[0].split("<?xml", 1)[0].rstrip(" :")[:300]


@dataclass(frozen=True, slots=True)
class JobKeys:
    """The name of every object of one job."""

    job: str

    @property
    def root(self) -> str:
        return f"jobs/{self.job}"

    @property
    def control(self) -> str:
        return f"{self.root}/control"

    @property
    def spec(self) -> str:
        return f"{self.root}/spec"

    @property
    def clock(self) -> str:
        """Written by the broker to read the store's time off it."""
        return f"{self.root}/clock"

    @property
    def beats(self) -> str:
        return f"beats/{self.job}"

    @property
    def generations(self) -> str:
        return f"{self.root}/gen"

    def artefact(self, sha256: str) -> str:
        return f"{self.root}/artefacts/{sha256}"

    def blob(self, sha256: str) -> str:
        return f"{self.root}/blobs/{sha256}"

    @property
    def caches(self) -> str:
        return f"{self.root}/cache/manifest"

    def cache(self, generation: int) -> str:
        return f"{self.caches}/{generation}"

    def cached(self, sha256: str) -> str:
        return f"{self.root}/cache/blobs/{sha256}"

    def access(self, generation: int) -> str:
        return f"{self.root}/access/{generation}"

    def beat(self, generation: int) -> str:
        return f"beats/{self.job}/{generation}"

    def boot(self, generation: int) -> str:
        return f"{self.root}/gen/{generation}/boot"

    def parent(self, generation: int) -> str:
        return f"{self.root}/gen/{generation}/parent"

    def closed(self, generation: int) -> str:
        return f"{self.root}/gen/{generation}/closed"

    def result(self, generation: int) -> str:
        return f"{self.root}/gen/{generation}/result"

    def manifests(self, generation: int) -> str:
        return f"{self.root}/gen/{generation}/manifest"

    def manifest(self, generation: int, seq: int) -> str:
        return f"{self.manifests(generation)}/{seq:08d}"

    def logs(self, generation: int) -> str:
        return f"{self.root}/gen/{generation}/log"

    def log(self, generation: int, seq: int) -> str:
        return f"{self.logs(generation)}/{seq:08d}"


@dataclass(frozen=True, slots=True)
class Order:
    """What the broker wants of one generation.

    end_by: seconds since the epoch (the store's time), with its reason. order: run | retire | end.
    why: the reason of a retire or end: notice, migrate, silence, stop, budget, deadline …
    after: the generation whose program must have ended first; not_before: start then at the latest; go: start now.
    """

    end_by: float
    end_why: str
    order: str = "run"
    why: str = ""
    after: int | None = None
    not_before: float | None = None
    go: bool = False


@dataclass(frozen=True, slots=True)
class Control:
    """The broker's word to the guests of one job; it alone writes it.

    parents: generation -> (generation, seq) it started from, or None where it started fresh; the broker's copy of
    each `parent` object, which wins over the object. seqs: generation -> the newest snapshot that it told of in its
    beats, for those that have left: at least so many manifests must be there.
    """

    owner: str
    epoch: int
    live: int | None
    retiring: tuple[int, ...]
    generations: Mapping[int, Order]
    parents: Mapping[int, tuple[int, int] | None] = field(default_factory=dict)
    seqs: Mapping[int, int] = field(default_factory=dict)

    def stands(self, generation: int) -> bool:
        """Is this generation one that may run at all?"""
        return generation == self.live or generation in self.retiring

    def to_bytes(self) -> bytes:
        return json.dumps(
            {
                "owner": self.owner,
                "epoch": self.epoch,
                "live": self.live,
                "retiring": list(self.retiring),
                "generations": {
                    str(n): {
                        "end_by": {"at": order.end_by, "why": order.end_why},
                        "order": order.order,
                        "why": order.why,
                        "after": order.after,
                        "not_before": order.not_before,
                        "go": order.go,
                    }
                    for n, order in sorted(self.generations.items())
                },
                "parents": {str(n): list(p) if p else None for n, p in sorted(self.parents.items())},
                "seqs": {str(n): seq for n, seq in sorted(self.seqs.items())},
            },
            sort_keys=True,
        ).encode()

    @classmethod
    def from_bytes(cls, raw: bytes) -> Control:
        data = json.loads(raw)
        return cls(
            owner=data["owner"],
            epoch=data["epoch"],
            live=data["live"],
            retiring=tuple(data["retiring"]),
            generations={
                int(n): Order(
                    end_by=order["end_by"]["at"],
                    end_why=order["end_by"]["why"],
                    order=order["order"],
                    why=order["why"],
                    after=order["after"],
                    not_before=order["not_before"],
                    go=order["go"],
                )
                for n, order in data["generations"].items()
            },
            parents={int(n): (p[0], p[1]) if p else None for n, p in data.get("parents", {}).items()},
            seqs={int(n): int(seq) for n, seq in data.get("seqs", {}).items()},
        )


def lineage(
    below: int,
    parent_of: Callable[[int], tuple[int, int] | None],
    started: Callable[[int], bool],
    manifests_of: Callable[[int], list[int]],
    closed_seq: Callable[[int], int | None],
) -> Iterator[tuple[int, int]]:
    """The snapshots that a generation may restore, newest first: pairs (generation, seq).

    below: the generation that wants to start. A generation counts only if it has written its `parent` (`started`);
    one without is skipped. From the newest started one the walk goes down its manifests, of which `closed.seq` is the
    last that counts, and on to the parent it started from; what is outside that chain is never given.
    """
    generation = next((n for n in range(below - 1, 0, -1) if started(n)), None)
    limit: int | None = None
    while generation is not None:
        last = closed_seq(generation)
        for seq in sorted(manifests_of(generation), reverse=True):
            if (limit is None or seq <= limit) and (last is None or seq <= last):
                yield generation, seq
        parent = parent_of(generation)
        generation, limit = parent if parent is not None else (None, None)


def folder_url(folder: str | os.PathLike[str]) -> str:
    """The `file://` URL of a folder."""
    return Path(folder).resolve().as_uri()
