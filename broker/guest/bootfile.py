"""`Boot`: everything that one placement's guest is told before it can ask. Written by the broker, read by the guest."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from broker.home import Access

VERSION = 1


@dataclass(frozen=True, slots=True)
class Boot:
    """The content of `boot.json`. Seconds throughout; moments are seconds since the epoch, the store's time.

    provider_guest: the module with `notice()` and `end_machine(why)`, by default `broker_PROVIDER.guest`. guest_url:
    where the guest is fetched from before the home can be opened. workdir: `key` and `sha256` of the packed workdir.
    mounts: of each file_mount the `target`, `key` and `sha256` of its archive, and whether it is a `single` file.
    offer: an `Offer`, or its JSON. end_by, frozen_at: the machine's last moment and when that was fixed; their
    difference counts from boot while the store's time is unknown. secrets: name -> value.
    notice: the provider's usual warning, None without one. grace: given to the program after SIGTERM where no notice
    limits it. patience: how long an unreadable control is asked for at start, and how long a stopped job's last words
    are tried on a dead store. hazard: losses per hour expected of this machine; save: seconds that a save with its
    upload took on earlier ones, None until measured; both for how often to save. access_url: where fresh access can be
    read without a key, empty if nowhere. kind: vm | container | bare, see `broker.provider.Kind`. container: the image
    that the guest starts the program in; None where the machine itself is it, or none is wanted. runtime:
    `architecture`, and of `obstore` and `python` the `url`, `sha256` and `key`, each None where it is not sent; None
    for a machine that has the broker's own. keep: seconds for which the machine of a program that failed for good is
    kept, 0 for not at all. egress, leaving: USD per GiB that the home charges for what this machine
    reads, and its cloud for what it sends there.
    """

    job: str
    generation: int
    installation: str
    provider: str
    home: Access
    spec_sha256: str
    end_by: float
    end_why: str
    guest_url: str
    guest_sha256: str
    frozen_at: float = field(default_factory=time.time)
    provider_guest: str = ""
    workdir: Mapping[str, str] | None = None
    mounts: Sequence[Mapping[str, Any]] = ()
    offer: Any = None
    notice: float | None = None
    restarts_left: int = 0
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    beat: float = 30.0
    scan: float = 2.0
    quiet: float = 5.0
    grace: float = 60.0
    patience: float = 600.0
    python: str = "python3"
    hazard: float = 0.0
    save: float | None = None
    access_url: str = field(default="", repr=False)
    kind: str = "bare"
    container: str | None = None
    runtime: Mapping[str, Any] | None = None
    keep: float = 0.0
    egress: float = 0.0
    leaving: float = 0.0

    def to_json(self) -> dict[str, Any]:
        data = {name: getattr(self, name) for name in self.__slots__}
        guest = {"url": data.pop("guest_url"), "sha256": data.pop("guest_sha256")}
        del data["workdir"], data["mounts"]
        saving = {"hazard": data.pop("hazard"), "save": data.pop("save")}
        saving |= {name: price for name in ("egress", "leaving") if (price := data.pop(name))}
        runtime = data.pop("runtime")
        machine = {"kind": str(data.pop("kind")), "container": data.pop("container")}
        keep = data.pop("keep")
        machine |= {"keep": keep} if keep else {}
        return {
            **data,
            "v": VERSION,
            "provider_guest": self.provider_guest or f"broker_{self.provider}.guest",
            "home": self.home.to_json(),
            "offer": self.offer.to_json() if hasattr(self.offer, "to_json") else self.offer,
            "secrets": dict(self.secrets),
            "artefacts": {
                "guest": guest,
                "workdir": dict(self.workdir) if self.workdir else None,
                "mounts": [dict(mount) for mount in self.mounts],
                # Beside the artefacts, since the guest of a job that an older broker prepared knows no other key.
                "saving": saving,
                "machine": {**machine, "runtime": dict(runtime) if runtime else None},
            },
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Boot:
        """Raises ValueError for a version this guest does not know."""
        rest = dict(data)
        if rest.pop("v") != VERSION:
            raise ValueError(f"boot.json has version {data['v']!r}; this guest reads {VERSION}")
        artefacts = rest.pop("artefacts")
        guest = artefacts["guest"]
        rest |= {"guest_url": guest["url"], "guest_sha256": guest["sha256"], "workdir": artefacts["workdir"]}
        rest["mounts"] = artefacts.get("mounts", [])
        rest |= artefacts.get("saving", {}) | artefacts.get("machine", {})
        return cls(**{**rest, "home": Access.from_json(rest["home"])})

    def to_bytes(self) -> bytes:
        """One line of ASCII."""
        return json.dumps(self.to_json(), sort_keys=True).encode("ascii")

    @classmethod
    def from_bytes(cls, raw: bytes) -> Boot:
        return cls.from_json(json.loads(raw))
