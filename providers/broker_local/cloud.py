"""The provider's own hand: takes machines back, and lies on request. For rehearsals and tests.

Everything is a file in the provider's root, so it works on machines that another process launched::

    faults/refuse/…       launches of offers that fit a pattern are refused
    faults/calls/…        the next calls fail
    faults/ambiguous/…    the next launches make a machine and then fail to say so
    faults/hide.json      new machines are listed late
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import shutil
import time
import uuid
from pathlib import Path
from typing import Any

from broker import errors
from broker.errors import NotFound, ProviderError
from broker.offer import Offer
from broker.provider import Notice
from broker_local.machine import Machine, find
from broker_local.zones import NAME, NOTICE_SECONDS

KINDS = {"aws": "terminate", "gcp": "preempted", "azure": "Preempt"}  # each provider's own word


def take_back(root: Path, machine_id: str, notice: str = "aws", *, seconds: float | None = None) -> Notice | None:
    """Take a machine back as `notice` does it, and return the notice that its owner can see.

    aws, gcp, azure: a notice 120, 30, 30 s before the end, for the machine to read. runpod: SIGTERM to the machine's
    first process, KILL to everything 5 s later. vast: KILL at once. `seconds` shortens the time. The machine's
    supervisor carries it out; a second call changes nothing. Raises NotFound.
    """
    if notice not in NOTICE_SECONDS:
        raise ValueError(f"no way of taking back is called {notice!r}; known are {', '.join(NOTICE_SECONDS)}")
    machine = _machine(root, machine_id)
    at = time.time()
    ends_at = at + (NOTICE_SECONDS[notice] or 0.0 if seconds is None else seconds)
    order = {"at": at, "ends_at": ends_at, "kind": KINDS.get(notice), "sigterm": notice == "runpod"}
    machine.write_once("reclaim.json", order)
    seen = seen_notice(machine)
    if seen is not None:
        machine.write_once("metadata/notice.json", {"at": seen.at, "ends_at": seen.ends_at, "kind": seen.kind})
    machine.wake()
    return seen


def seen_notice(machine: Machine) -> Notice | None:
    """The notice of a machine that its owner can see; None without one, or where it comes by signal only."""
    order = machine.read("reclaim.json")
    if not order or not order.get("kind"):
        return None
    return Notice(at=order["at"], ends_at=order["ends_at"], kind=order["kind"])


def delete_by_hand(root: Path, machine_id: str) -> None:
    """End a machine as its user would in a console; its cause is `user`. Raises NotFound."""
    machine = _machine(root, machine_id)
    machine.write_once("terminate.json", {"at": time.time(), "cause": "user"})
    machine.wake()


def refuse(root: Path, offer_key: str, code: str = "NoCapacity", *, times: int | None = None) -> None:
    """Refuse launches of offers whose key fits the pattern (`*` allowed), `times` times or until `clear`.

    code: a class of `broker.errors`, or any word: then it is a ProviderError with that code.
    """
    name = hashlib.sha256(offer_key.encode()).hexdigest()[:16]
    folder = root / "faults" / "refuse" / name
    _set_times(folder, times)
    (folder / "what.json").write_text(json.dumps({"key": offer_key, "code": code}), encoding="utf-8")


def fail_calls(root: Path, call: str, code: str = "ProviderUnavailable", *, times: int = 1) -> None:
    """The next `times` calls of `offers`, `instances`, `terminate` or `launch` (before it does anything) fail."""
    folder = root / "faults" / "calls" / call
    _set_times(folder, times)
    (folder / "what.json").write_text(json.dumps({"code": code}), encoding="utf-8")


def fail_after_create(root: Path, n: int = 1) -> None:
    """The next `n` launches make their machine and then answer with a fault, as `Ambiguous`."""
    _set_times(root / "faults" / "ambiguous", n)


def hide_for(root: Path, seconds: float) -> None:
    """Leave machines out of `instances()` until they are `seconds` old."""
    folder = root / "faults"
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".{uuid.uuid4().hex}"
    draft.write_text(json.dumps({"seconds": seconds}), encoding="utf-8")
    draft.rename(folder / "hide.json")


def clear(root: Path) -> None:
    """No more faults."""
    shutil.rmtree(root / "faults", ignore_errors=True)


class Faults:
    """The provider's side of the faults above: asks whether a call is to fail now, and raises."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "faults"

    def call(self, name: str) -> None:
        """Raise what the next call of that name is to raise, if anything."""
        folder = self.folder / "calls" / name
        if (what := _read(folder / "what.json")) and _spend(folder):
            raise error(what["code"], f"{name}: fault set for a test")

    def launch(self, offer: Offer) -> None:
        """Raise what the launch of this offer is to raise, if anything."""
        for folder in sorted((self.folder / "refuse").glob("*")):
            what = _read(folder / "what.json")
            if what and fnmatch.fnmatchcase(offer.key, what["key"]) and _spend(folder):
                raise error(what["code"], f"{offer.key} refused", scope=f"{NAME}/{offer.region}")

    def after_create(self) -> None:
        """Raise Ambiguous where this launch is to fail though it made a machine."""
        if _spend(self.folder / "ambiguous"):
            raise errors.Ambiguous("500 Internal Server Error", provider=NAME, code="InternalError")

    def hidden(self, launched_at: float, now: float) -> bool:
        """Whether a machine of that age is not to be listed yet."""
        hide = _read(self.folder / "hide.json")
        return bool(hide) and now - launched_at < hide["seconds"]


def error(code: str, message: str, *, scope: str = NAME) -> ProviderError:
    """The exception of that name, or a ProviderError with the unknown code word for word."""
    kind = getattr(errors, code, None)
    if code == "QuotaExceeded":
        return errors.QuotaExceeded(message, scope=scope, provider=NAME, code=code)
    if code == "RateLimited":
        return errors.RateLimited(message, retry_after=0.1, provider=NAME, code=code)
    if isinstance(kind, type) and issubclass(kind, ProviderError):
        return kind(message, provider=NAME, code=code)
    return ProviderError(message, provider=NAME, code=code)


def _machine(root: Path, machine_id: str) -> Machine:
    machine = find(root, machine_id)
    if machine is None:
        raise NotFound(f"no machine {machine_id} in {root}", provider=NAME)
    return machine


def _set_times(folder: Path, times: int | None) -> None:
    """A fault that fires so many times is so many files: taking one away is atomic between processes."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if times is None:
        (folder / "always").touch()
    for n in range(times or 0):
        (folder / f"{n}.once").touch()


def _spend(folder: Path) -> bool:
    if (folder / "always").exists():
        return True
    for ticket in folder.glob("*.once"):
        try:
            ticket.unlink()
        except FileNotFoundError:
            continue
        return True
    return False


def _read(path: Path) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return data
