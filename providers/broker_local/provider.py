"""`LocalProvider`: the provider contract over machine folders."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from broker.errors import InvalidRequest, NotFound
from broker.guest.engine import Engine, container_name
from broker.offer import Market, Offer, OfferQuery
from broker.provider import Cause, Instance, Kind, LaunchRequest, Notice, Shell, State, Traits
from broker_local import cloud, processes, zones
from broker_local.machine import MARK, Machine, create, find, start, sweep_drafts

USER_DATA_BYTES = 16384  # EC2's limit: what passes here should pass there
START_AFTER = 1.0  # seconds without a supervisor after which whoever lists machines starts it
START_WITHIN = 60.0  # seconds without a supervisor after which a machine has failed
NEVER = {"pid": 0, "start": "never"}  # bars a supervisor that comes late
LISTED = 3600.0  # seconds for which an ended machine is listed
LONGEST_TMPDIR = 60  # sockets below TMPDIR may have paths of 104 bytes on macOS and 108 on Linux
PASSED = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy")
PASSED_TOO = ("SSL_CERT_FILE",)


class LocalProvider:
    """Machines on this computer. Nothing is remembered in memory: the folder is the provider."""

    name = zones.NAME
    traits = Traits(token=True, list_lag=0.2, poll=1.0, boot_limit=120.0, notice=120.0, simulated=True, kind=Kind.BARE)

    def __init__(self, settings: Mapping[str, Any], state: Path) -> None:
        """settings: `[providers.local]`; state: the installation's folder. Raises ConfigError that names the key."""
        self.settings = zones.read(settings, state)
        self.root = self.settings.root
        self.faults = cloud.Faults(self.root)

    def offers(self, query: OfferQuery) -> Sequence[Offer]:
        """Every zone, spot and on-demand; nothing for a query with a GPU. With an image only where it was asked for."""
        self.faults.call("offers")
        return zones.offers(self.settings, query)

    def launch(self, request: LaunchRequest) -> Instance:
        """Make and start a machine. The same token gives the same machine, also after its end, then the dead one.

        A token used for another request is an InvalidRequest, as with EC2.
        """
        self.faults.call("launch")
        machine_id = self._id(request.token)
        fingerprint = _fingerprint(request)
        machine = find(self.root, machine_id)
        if machine is None:
            self._check(request)
            self.faults.launch(request.offer)
            made = create(
                self.root,
                machine_id,
                self._record(request, machine_id, fingerprint),
                self._env(machine_id),
                request.user_data,
            )
            machine = Machine(self.root / "machines" / machine_id)
            start(machine)
            if made:
                self.faults.after_create()
        elif machine.read("supervisor.json") is None:  # whoever launched it died before it started
            start(machine)
        record = machine.record()
        if record["fingerprint"] != fingerprint:
            raise InvalidRequest(
                f"token {request.token} was used for another request",
                provider=self.name,
                code="IdempotentParameterMismatch",
            )
        return self._view(machine, record, time.time())

    def instances(self) -> Sequence[Instance]:
        """Every machine here; ended ones for an hour. Also ends what a machine left whose supervisor was killed."""
        self.faults.call("instances")
        now = time.time()
        found = []
        sweep_drafts(self.root, now)
        with contextlib.suppress(FileNotFoundError), os.scandir(self.root / "machines") as entries:
            for name in sorted(entry.name for entry in entries if not entry.name.startswith(".")):
                machine = Machine(self.root / "machines" / name)
                with contextlib.suppress(FileNotFoundError):  # put away by another process meanwhile
                    record = machine.record()
                    if self.faults.hidden(record["launched_at"], now):
                        continue
                    instance = self._view(machine, record, now)
                    if instance.ended_at is not None and instance.ended_at < now - LISTED:
                        self._put_away(machine)
                    else:
                        found.append(instance)
        return found

    def terminate(self, instance: Instance) -> None:
        """End every process of the machine and remove its disk. Returns on acceptance; an unknown id is success."""
        self.faults.call("terminate")
        machine = find(self.root, instance.id)
        if machine is None:
            return
        machine.write_once("terminate.json", {"at": time.time(), "cause": Cause.BROKER.value})
        if machine.read("ended.json") is not None:
            machine.drop_disk()
        elif not machine.wake():
            self._bury(machine, time.time())
        self._remove_container(machine)

    def _remove_container(self, machine: Machine) -> None:
        """Its container's monitor was killed with it, so the engine still keeps what the container has left."""
        name = machine.record().get("container")
        if name and self.settings.engine is not None:
            Engine(self.settings.engine[0]).remove(name)

    def notice(self, instance: Instance) -> Notice | None:
        """The notice of one machine; None without one and for an unknown id."""
        machine = find(self.root, instance.id)
        return None if machine is None else cloud.seen_notice(machine)

    def shell(self, instance: Instance) -> Shell:
        """A shell of this computer's own, which ends with the machine. Nothing of the user's environment goes along."""
        machine = find(self.root, instance.id)
        if machine is None or machine.read("ended.json") is not None:
            raise NotFound(f"there is no machine {instance.id}", provider=self.name)
        passed = (f"TERM={os.environ.get('TERM', 'dumb')}", f"PATH={os.environ.get('PATH', os.defpath)}")
        return Shell(("env", "-i", *passed, "/bin/sh", "-c"), folder=str(machine.disk / "spotbroker"))

    def _id(self, token: str) -> str:
        """The machine of a token. The root is in it, so that marks on processes tell two roots' machines apart."""
        return "m-" + hashlib.sha256(f"{self.root.resolve()}\0{token}".encode()).hexdigest()[:12]

    def _check(self, request: LaunchRequest) -> None:
        offer, known = request.offer, {zone.name: zone for zone in self.settings.zones}
        problem = ""
        if offer.provider != self.name or offer.region not in known or offer.zone != f"{offer.region}-1":
            problem = f"there is no zone {offer.where}; zones are {', '.join(known)}"
        elif offer.instance_type != self.settings.instance_type:
            problem = f"there is no instance type {offer.instance_type!r}; there is {self.settings.instance_type}"
        elif request.image:
            problem = f"no machine image is booted here: {request.image}"
        elif request.container and self.settings.engine is None:
            problem = f"there is no docker or podman to start {request.container} with"
        elif len(request.user_data.encode()) > USER_DATA_BYTES:
            problem = f"user data is longer than {USER_DATA_BYTES} bytes"
        if problem:
            raise InvalidRequest(problem, provider=self.name, code="InvalidParameterValue")

    def _record(self, request: LaunchRequest, machine_id: str, fingerprint: str) -> dict[str, Any]:
        offer = request.offer
        return {
            "v": 1,
            "fingerprint": fingerprint,
            "launched_at": time.time(),
            "region": offer.region,
            "zone": offer.zone,
            "instance_type": offer.instance_type,
            "market": offer.market.value,
            "hourly": offer.hourly,
            "tags": dict(request.tags),
            "keep_disk": self.settings.keep_disks,
            "container": container_name(request.job, request.generation) if request.container else None,
            "tmp": str(self._tmp(machine_id)),
        }

    def _tmp(self, machine_id: str) -> Path:
        """Below the disk, or a short path elsewhere where sockets in it would not fit."""
        inside = self.root / "machines" / machine_id / "disk" / "tmp"
        if len(str(inside)) <= LONGEST_TMPDIR:
            return inside
        return Path(tempfile.gettempdir()) / f"{machine_id}-{os.getuid()}"

    def _env(self, machine_id: str) -> dict[str, str]:
        """The environment of a machine's first process: nothing of the broker's but what it cannot do without."""
        folder = self.root / "machines" / machine_id
        path = [str(Path(sys.executable).parent), *os.environ.get("PATH", "").split(":"), *os.defpath.split(":")]
        passed = (*PASSED, *PASSED_TOO, *self.settings.pass_env)
        return {
            **{name: os.environ[name] for name in passed if name in os.environ},
            "PATH": ":".join(dict.fromkeys(part for part in path if part)),
            "LANG": os.environ.get("LANG", "C.UTF-8"),
            "HOME": str(folder / "disk"),
            "TMPDIR": str(self._tmp(machine_id)),
            "SPOTBROKER_DIR": str(folder / "disk" / "spotbroker"),
            "SPOTBROKER_METADATA": str(folder / "metadata"),
            MARK: machine_id,
        }

    def _view(self, machine: Machine, record: Mapping[str, Any], now: float) -> Instance:
        """The machine as it is now. One that nobody watches over any more is ended first."""
        ended = machine.read("ended.json")
        state = State.TERMINATED
        if ended is None:
            state = self._state(machine, record, now)
            ended = machine.read("ended.json") or {}
        return Instance(
            provider=self.name,
            id=machine.id,
            state=state,
            market=Market(record["market"]),
            hourly=record["hourly"],
            tags=record["tags"],
            region=record["region"],
            zone=record["zone"],
            instance_type=record["instance_type"],
            cause=Cause(ended["cause"]) if ended else None,
            notice=cloud.seen_notice(machine),
            launched_at=record["launched_at"],
            ended_at=ended["at"] if ended else None,
        )

    def _state(self, machine: Machine, record: Mapping[str, Any], now: float) -> State:
        claim = machine.read("supervisor.json")
        ordered = machine.cause(now) is not None
        age = now - record["launched_at"]
        if claim is None and not ordered and age < START_WITHIN:
            if age > START_AFTER:  # who launched it died before it started
                start(machine)
            return State.PENDING
        if claim and processes.alive(claim["pid"], claim["start"]):
            return State.STOPPING if ordered else State.RUNNING
        return State.TERMINATED if self._bury(machine, now) else State.STOPPING

    def _bury(self, machine: Machine, now: float) -> bool:
        """End a machine without a living supervisor; False where it has one after all, which then does it."""
        if machine.read("supervisor.json") is None and not machine.write_once("supervisor.json", NEVER):
            return False
        return machine.bury(machine.cause(now) or Cause.FAILED.value, "its supervisor is gone")

    def _put_away(self, machine: Machine) -> None:
        """Keep the record of a machine that ended long ago, where listing does not read it."""
        machine.drop_disk()
        (self.root / "gone").mkdir(exist_ok=True)
        with contextlib.suppress(OSError):  # another process was quicker
            machine.folder.rename(self.root / "gone" / machine.id)


def _fingerprint(request: LaunchRequest) -> str:
    """Tells one request from another, whatever the offer's price was when it was fetched."""
    same = [request.offer.key, request.bid, request.disk, dict(request.tags), request.user_data, request.image]
    same += [request.container] if request.container else []
    return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()
