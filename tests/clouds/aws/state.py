"""`Ec2`: the stand-in's other side. What EC2 has and charges, and the ways in which it can be told to lie."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

ACCOUNT = "123456789012"
# The regions that need no opting in, and some that do (AWS Account Management, "Regions").
OPEN = [
    "ap-northeast-1",
    "ap-northeast-2",
    "ap-northeast-3",
    "ap-south-1",
    "ap-southeast-1",
    "ap-southeast-2",
    "ca-central-1",
    "eu-central-1",
    "eu-north-1",
    "eu-west-1",
    "eu-west-2",
    "eu-west-3",
    "sa-east-1",
    "us-east-1",
    "us-east-2",
    "us-west-1",
    "us-west-2",
]
CLOSED = ("ap-southeast-3", "me-south-1", "cn-north-1")
SPOT_SHARE = 0.3
DISK_MONTH = {"us-east-1": 0.08, "us-west-2": 0.08, "sa-east-1": 0.152}
USUAL_DISK_MONTH = 0.088
ADDRESS = 0.005  # USD per hour of a public IPv4 address
# USD per card and hour, about as AWS lists them.
CARD_PRICE = {"T4": 0.35, "T4g": 0.3, "A10G": 0.7, "L4": 0.6, "L40S": 1.5, "A100": 3.0, "H100": 6.5, "H200": 7.5}

# Service Quotas of EC2, in vCPUs: code, name, lifecycle, the instance types that count.
QUOTAS = (
    ("L-34B43A08", "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests", "spot", r"[acdhimrtz]\d"),
    ("L-1216C47A", "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances", "", r"[acdhimrtz]\d"),
    ("L-3819A6DF", "All G and VT Spot Instance Requests", "spot", r"(g|gr|vt)\d"),
    ("L-DB2E81BA", "Running On-Demand G and VT instances", "", r"(g|gr|vt)\d"),
    ("L-7212CCBC", "All P4, P3 and P2 Spot Instance Requests", "spot", r"p[234]"),
    ("L-C4BD4855", "All P5 Spot Instance Requests", "spot", r"p[56]"),
    ("L-417A185B", "Running On-Demand P instances", "", r"p\d"),
)
USUAL_QUOTA = 4000.0


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the spot price history. zone: its name."""

    zone: str
    type: str
    price: str
    at: float
    product: str = "Linux/UNIX"


@dataclass(frozen=True, slots=True)
class ZoneRow:
    name: str
    id: str
    kind: str = "availability-zone"
    group: str = ""
    status: str = "opt-in-not-required"
    state: str = "available"


@dataclass(frozen=True, slots=True)
class Ami:
    root: str
    size: int
    arch: str
    billed: str = "Linux/UNIX"


@dataclass(slots=True)
class SpotRequest:
    id: str
    instance: str
    region: str
    code: str = "fulfilled"
    at: float = 0.0


@dataclass(slots=True)
class Fault:
    """Answers the next `times` calls of an action; region and service None for any."""

    action: str
    code: str
    status: int = 400
    times: float = 1
    message: str = "told to"
    region: str | None = None
    service: str | None = None


@dataclass(slots=True)
class Charge:
    """What is billed for a machine: USD per hour with its disk and its address, and from when to when."""

    hourly: float
    begin: float
    end: float | None = None

    def total(self, now: float) -> float:
        return self.hourly * ((self.end or now) - self.begin) / 3600


@dataclass
class Ec2:
    """notice_seconds: between a notice and the end; EC2 takes 120. page: rows of a page at most.

    profile_keys: gives a machine with a profile its keys, as its metadata service tells them, for its role's policy.
    profile_lag: launches until EC2 has heard of a fresh profile.
    fleet_made: what happens, once, between a fleet's machine and its answer.
    refused: instance type → code and message of its launches. unlisted: regions that the list of them leaves out.
    sso: the keys of whoever has logged in, as `role_keys` gives them; None once the session is over.
    template_lag: calls for which a fresh launch template is not known yet.
    clock: seconds by which EC2's is ahead of this computer's. loose_history: the price history heeds neither times
    nor products.
    """

    enabled: list[str] = field(default_factory=lambda: ["us-east-1", "us-west-2"])
    notice_seconds: float = 1.0
    page: int = 1000
    spot_rows: dict[str, list[Row]] = field(default_factory=dict)
    no_spot: set[tuple[str, str]] = field(default_factory=set)
    listed: dict[tuple[str, str], float] = field(default_factory=dict)
    zones: dict[str, list[ZoneRow]] = field(default_factory=dict)
    offered: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    quotas: dict[tuple[str, str], float] = field(default_factory=dict)
    scores: dict[str, int] = field(default_factory=dict)
    advisor: dict[str, Any] = field(default_factory=dict)
    no_capacity: set[str] = field(default_factory=set)
    full_subnets: set[str] = field(default_factory=set)
    refused: dict[str, tuple[str, str]] = field(default_factory=dict)
    unlisted: set[str] = field(default_factory=set)
    sso: Callable[[], Mapping[str, str]] | None = None
    template_lag: int = 0
    no_images: set[str] = field(default_factory=set)
    faults: list[Fault] = field(default_factory=list)
    empty_page_first: bool = False
    repeat_token: bool = False
    loose_history: bool = False
    lose_answers: int = 0
    fleet_made: list[Callable[[], object]] = field(default_factory=list)
    break_connections: int = 0
    hidden: float = 0.0
    clock: float = 0.0
    profile_keys: Callable[[Mapping[str, Any]], Mapping[str, str]] | None = None
    profile_lag: int = 0
    token_life: float = 86_400.0
    calls: list[tuple[str, str, str, Mapping[str, Any]]] = field(default_factory=list)
    requests: dict[str, SpotRequest] = field(default_factory=dict)
    charges: dict[str, Charge] = field(default_factory=dict)
    tokens: dict[tuple[str, str], tuple[dict[str, str], bytes, str, float]] = field(default_factory=dict)
    fleets: dict[tuple[str, str], tuple[dict[str, str], Any]] = field(default_factory=dict)
    templates: dict[str, dict[str, str]] = field(default_factory=dict)
    amis: dict[str, dict[str, Ami]] = field(default_factory=dict)
    machines: Callable[[str, bytes, Any], Any] | None = None
    running: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    # What there is.

    def zone_rows(self, region: str) -> list[ZoneRow]:
        if region not in self.zones:
            from moto.ec2.models.availability_zones_and_regions import RegionsAndZonesBackend

            known = RegionsAndZonesBackend.zones.get(region, [])
            self.zones[region] = [ZoneRow(zone.name, zone.zone_id) for zone in known]
        return self.zones[region]

    def zone_name(self, zone_id: str) -> tuple[str, str]:
        """Region and name of a zone id."""
        for region in (*OPEN, *CLOSED):
            for zone in self.zone_rows(region):
                if zone.id == zone_id:
                    return region, zone.name
        raise KeyError(zone_id)

    def on_demand(self, type_: str, place: str) -> float | None:
        """USD per hour; None where the price list has nothing."""
        if (type_, place) in self.listed or (type_, "") in self.listed:
            return self.listed.get((type_, place), self.listed.get((type_, "")))
        from moto.ec2.models.instance_types import INSTANCE_TYPES

        raw = INSTANCE_TYPES.get(type_)
        if raw is None or place.count("-") > 2:
            return None
        price = 0.045 * raw["VCpuInfo"]["DefaultVCpus"]
        for card in raw.get("GpuInfo", {}).get("Gpus", ()):
            price += CARD_PRICE.get(card["Name"], 2.0) * max(card["Count"], 0.25)
        return round(price * (1.0 if place.startswith("us-") else 1.15), 4)

    def spot_now(self, region: str, zone: str, type_: str, at: float | None = None) -> float | None:
        """USD per hour of a Linux machine at a moment."""
        at = time.time() if at is None else at
        rows = [row for row in self.history(region, [type_]) if row.zone == zone and row.product == "Linux/UNIX"]
        rows = [row for row in rows if row.at <= at]
        return float(max(rows, key=lambda row: row.at).price) if rows else None

    def history(self, region: str, types: Iterable[str]) -> list[Row]:
        """All rows of these types: what a test has set, else two prices per zone, the older one higher."""
        if region in self.spot_rows:
            return [row for row in self.spot_rows[region] if row.type in set(types)]
        made = []
        for type_ in types:
            listed = self.on_demand(type_, region)
            for number, zone in enumerate(self.zone_rows(region)):
                if listed is None or zone.kind != "availability-zone" or (zone.name, type_) in self.no_spot:
                    continue
                price = listed * (SPOT_SHARE + number / 100)
                made += [
                    Row(zone.name, type_, f"{price:.6f}", 1_700_000_000.0),
                    Row(zone.name, type_, f"{price * 2:.6f}", 1_600_000_000.0),
                    Row(zone.name, type_, f"{price * 1.5:.6f}", 1_700_000_000.0, "Windows"),
                ]
        return made

    def disk(self, region: str) -> float:
        """USD per GiB and month."""
        return DISK_MONTH.get(region, USUAL_DISK_MONTH)

    # What a test does.

    def fail(self, action: str, code: str, status: int = 400, **more: Any) -> None:
        """The next call of the action, or the next `times`, is answered with an error."""
        with self.lock:
            self.faults.append(Fault(action, code, status, **more))

    def counted(self) -> Counter[str]:
        """Calls by `service:Action`."""
        with self.lock:
            return Counter(f"{service}:{action}" for service, _, action, _ in self.calls)

    def sent(self, action: str) -> list[Mapping[str, Any]]:
        """The parameters of each call of that action."""
        with self.lock:
            return [what for _, _, name, what in self.calls if name == action]

    def take_back(self, instance_id: str, *, notice: bool) -> None:
        """Interrupt a spot machine, after its notice or at once."""
        request = next(one for one in self.requests.values() if one.instance == instance_id)
        if not notice:
            self._interrupted(request)
            return
        with self.lock:
            request.code, request.at = "marked-for-termination", time.time()
            if (service := self.metadata.get(instance_id)) is not None:
                service.interrupt(request.at + self.notice_seconds)
        timer = threading.Timer(self.notice_seconds, self._interrupted, [request])
        timer.daemon = True
        timer.start()

    def _interrupted(self, request: SpotRequest) -> None:
        if self.end(request.instance, "Server.SpotInstanceTermination", "Spot instance termination"):
            with self.lock:
                request.code, request.at = "instance-terminated-no-capacity", time.time()

    def end(self, instance_id: str, code: str, message: str) -> bool:
        """End a machine for a reason of EC2's; whether it was there to be ended."""
        from moto.ec2.models import ec2_backends

        for backend in ec2_backends[ACCOUNT].values():
            instance = next((one for one in backend.all_instances() if one.id == instance_id), None)
            if instance is None:
                continue
            if instance.state == "terminated":
                return False
            backend.terminate_instances([instance_id])
            stamp = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S GMT")
            instance.state_reason.code, instance.state_reason.message = code, f"{code}: {message}"
            instance._reason = f"{code.partition('.')[0]} initiated ({stamp})"
            self.settle(instance_id)
            return True
        return False

    def settle(self, instance_id: str) -> None:
        """A machine has ended: its bill is closed and what ran of it is cut off."""
        with self.lock:
            charge = self.charges.get(instance_id)
            if charge is not None and charge.end is None:
                charge.end = time.time()
            machine = self.running.pop(instance_id, None)
        if machine is not None:
            machine.remove()

    def reset(self) -> None:
        """An empty account that tells the truth again."""
        from moto.core.base_backend import BackendDict

        with self.lock:
            for instance_id in list(self.running):
                self.settle(instance_id)
            for backends in list(BackendDict._instances):
                backends.reset()
            fresh = Ec2()
            for name in Ec2.__dataclass_fields__:
                if name not in ("lock", "amis"):
                    setattr(self, name, getattr(fresh, name))
