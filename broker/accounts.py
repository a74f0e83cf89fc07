"""By which account each machine was rented: the list of another account says nothing of it.

A key can change while machines run: another terminal's environment holds one, `broker check --new-key` puts one in its
place. A new key of the same account lists the same machines. One of another account lists none of them, and who took
that for their end would rent anew and leave them to be paid for, so here they stay listed, as they were last seen.

In the state folder, `STATE/PROVIDER/`: `rented/ID` is what is known of a machine and by which key; `accounts/DIGEST`
whose key that is, in the vendor's word.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

from broker.errors import AuthFailed, BrokerError
from broker.keys import Key
from broker.offer import Market
from broker.provider import Finding, Instance, State

LASTING = (State.PENDING, State.RUNNING, State.STOPPED)
ANOTHER = "was rented by another account than that of the key in use, and may go on being billed"
UNLISTED = 600.0  # seconds after which a machine that its own account does not list is forgotten


@dataclass(frozen=True, slots=True)
class Accounts:
    """folder: `STATE/PROVIDER`. owner: asks the vendor whose the key is; empty or a BrokerError where it does not say.

    noted: machines that are known to be written down as this account's. What cannot be written is not kept, and then a
    change of keys is not noticed: no launch fails for that.
    """

    folder: Path
    key: Key | None
    owner: Callable[[], str]
    noted: set[str] = field(default_factory=set)

    @property
    def digest(self) -> str:
        return hashlib.sha256((self.key.value if self.key else "").encode()).hexdigest()[:16]

    def rented(self, instance: Instance) -> Instance:
        """Write a machine down that was launched now, and, with the first one of a key, whose that is."""
        self._note(instance)
        self._owner()
        return instance

    def listed(self, found: Iterable[Instance]) -> list[Instance]:
        """What the key in use lists, and what other accounts have rented besides, as it was last seen."""
        shown = list(found)
        own = {self._place(instance.id).name for instance in shown}
        for instance in shown:
            if instance.state not in LASTING or instance.id in self.noted:
                continue
            if self._read(self._place(instance.id))[0] != self.digest:
                self._note(instance)
            self.noted.add(instance.id)
        return [*shown, *(stranger for stranger, _ in self._strangers(own))]

    def findings(self) -> list[Finding]:
        """For `broker check`: the machines of other accounts; none where there are none."""
        return [
            Finding(f"machine {one.id}", ok=False, found=f"{ANOTHER}, at {one.hourly:.4f} USD/h", fix=_back(path))
            for one, path in self._strangers(None)
        ]

    def reach(self, instance: Instance) -> None:
        """May the key in use end this machine? Raises AuthFailed where another account has rented it."""
        path = self._place(instance.id)
        digest, known = self._read(path)
        if known is not None and not self._mine(digest):
            raise AuthFailed(
                f"{instance.id} {ANOTHER}", provider=instance.provider, code="another account", fix=_back(path)
            )

    def ended(self, instance: Instance) -> None:
        """The vendor has accepted its end."""
        with contextlib.suppress(OSError):
            self._place(instance.id).unlink(missing_ok=True)
        self.noted.discard(instance.id)

    def _strangers(self, own: Collection[str] | None) -> Iterator[tuple[Instance, Path]]:
        """What other accounts have rented, and where that is written.

        own: the names of what the key in use lists; what it should list and does not is forgotten after a while. None
        where nothing was listed.
        """
        paths: list[Path] = []
        with contextlib.suppress(OSError):
            paths = sorted((self.folder / "rented").iterdir())
        for path in paths:
            digest, found = ("", None) if path.name in (own or ()) else self._read(path)
            if found is None:
                continue
            if not self._mine(digest):
                yield found, path
            elif own is not None:
                self._forget(path, found)

    def _forget(self, path: Path, unlisted: Instance) -> None:
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < time.time() - UNLISTED:
                path.unlink(missing_ok=True)
                self.noted.discard(unlisted.id)

    def _mine(self, digest: str) -> bool:
        """Is a key of that digest of the account whose key is in use? Without one nothing can be told apart."""
        if self.key is None or digest == self.digest:
            return True
        whose = _text(self.folder / "accounts" / digest)
        return bool(whose) and whose == self._owner()

    def _owner(self) -> str:
        """Whose the key in use is, asked once; empty where nobody says."""
        place = self.folder / "accounts" / self.digest
        if known := _text(place):
            return known
        with contextlib.suppress(BrokerError, OSError):
            if owner := self.owner():
                _write(place, owner)
                return owner
        return ""

    def _place(self, instance: str) -> Path:
        return self.folder / "rented" / quote(instance, safe="")

    def _note(self, instance: Instance) -> None:
        told = {"key": self.digest, "instance": asdict(replace(instance, notice=None))}
        with contextlib.suppress(OSError):
            _write(self._place(instance.id), json.dumps(told))

    def _read(self, path: Path) -> tuple[str, Instance | None]:
        """The key's digest and the machine, which runs as far as anybody knows; none where nothing is written."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            found = json.loads(path.read_text(encoding="utf-8"))
            told = found["instance"]
            known = {"state": State.RUNNING, "market": Market(told["market"]), "cause": None, "ended_at": None}
            return str(found["key"]), Instance(**{**told, **known})
        return "", None


def _back(path: Path) -> str:
    return f"use that account's key again; if the machine is gone there, delete {path}"


def _text(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        return path.read_text(encoding="utf-8")
    return ""


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
