"""Pods of the stand-in: what they are, how they look in each of RunPod's APIs, and what they cost."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from clouds.machine import Machine

GRACE = 5.0  # seconds from SIGTERM to SIGKILL of an outbid pod (RunPod: pods, pricing, before May 2026)
MONTH = 730.0
CONTAINER_DISK = 0.10 / MONTH
ACTIONS = {
    "RUNNING": ["stop", "restart", "terminate"],
    "EXITED": ["start", "terminate"],
    "ERROR": ["start", "terminate"],
    "PROVISIONING": ["stop", "terminate"],
    "STARTING": ["stop", "terminate"],
}


@dataclass
class Pod:
    """boot: seconds until it runs. bid: USD per hour and card, None on demand. ended: when it stopped to cost."""

    name: str
    image: str
    gpu_id: str
    gpu_count: int
    cloud: str
    centre: str
    env: dict[str, str]
    disk: int
    command: str
    price: float
    boot: float
    bid: float | None = None
    volume: str = ""
    volume_path: str = ""
    terminate_after: str = ""
    id: str = field(default_factory=lambda: secrets.token_hex(7))
    key: str = field(default_factory=lambda: f"rpa_{secrets.token_hex(20)}")
    host: str = field(default_factory=lambda: secrets.token_hex(6))
    created: float = field(default_factory=time.time)
    started: float = field(default_factory=time.time)
    desired: str = "RUNNING"
    word: str = ""
    ended: float | None = None
    spent: float = 0.0
    failed: bool = False
    machine: Machine | None = None
    lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self.word = self.word or f"Rented by User: {js_date(self.created)}"

    @property
    def spot(self) -> bool:
        return self.bid is not None

    @property
    def hourly(self) -> float:
        """What the pod's own price is, USD per hour; the container disk comes on top."""
        return self.gpu_count * self.price

    @property
    def status(self) -> str:
        """REST v2's word."""
        if self.desired == "TERMINATED":
            return "TERMINATED"
        if self.desired == "EXITED":
            return "ERROR" if self.failed else "EXITED"
        age = time.time() - self.started
        return "RUNNING" if age >= self.boot else "STARTING" if age >= self.boot / 2 else "PROVISIONING"

    def charged(self, now: float | None = None) -> float:
        """USD so far: compute and container disk, per second while it runs; nothing while it is stopped."""
        with self.lock:
            running = 0.0 if self.ended is not None else (now or time.time()) - self.started
            return self.spent + running * (self.hourly + self.disk * CONTAINER_DISK) / 3600

    def end(self, desired: str, word: str) -> None:
        """It stops to run and to cost."""
        with self.lock:
            if self.ended is None:
                self.spent, self.ended = self.charged(), time.time()
            self.desired, self.word = desired, f"{word}: {js_date()}"

    def again(self) -> None:
        """It runs again, its container disk erased."""
        with self.lock:
            self.started, self.ended, self.desired = time.time(), None, "RUNNING"
            self.word = f"Rented by User: {js_date()}"

    def take_back(self, desired: str = "EXITED", *, then: Callable[[], None] = lambda: None) -> None:
        """Outbid: SIGTERM to its first process, SIGKILL 5 s later; then it says so. Returns at once."""

        def going() -> None:
            if self.machine is not None:
                self.machine.stop(GRACE)
                until = time.monotonic() + GRACE + 5.0
                while self.machine.alive() and time.monotonic() < until:
                    threading.Event().wait(0.02)
            self.end(desired, "Outbid")
            then()

        if self.machine is None:
            going()
        else:
            threading.Thread(target=going, daemon=True).start()

    def cut(self) -> None:
        """Its container is gone at once, and its disk with it."""
        if self.machine is not None:
            self.machine.remove()

    # As the APIs show it

    @property
    def proxy(self) -> dict[str, Any] | None:
        """REST v2's PodSshEndpoint, there once the pod has a machine."""
        if self.status not in ("STARTING", "RUNNING"):
            return None
        user = f"{self.id}-{self.host[:8]}"
        return {"host": "ssh.runpod.io", "port": 22, "username": user, "command": f"ssh {user}@ssh.runpod.io"}

    def rest(self) -> dict[str, Any]:
        """REST v2's Pod."""
        status = self.status
        made: dict[str, Any] = {
            "id": self.id,
            "name": self.name,
            "image": self.image,
            "args": self.command,
            "disk": self.disk,
            "ports": [],
            "env": dict(self.env),
            "registry": None,
            "status": status,
            "actions": ACTIONS.get(status, []),
            "mounts": {"network": [{"volumeId": self.volume, "path": self.volume_path}]} if self.volume else {},
            "gpu": {"id": self.gpu_id, "count": self.gpu_count},
            "cloud": self.cloud,
            "dataCenterId": self.centre or None,
            "cudaVersion": "12.8",
            "ssh": {"proxy": self.proxy, "direct": None},
            "template": None,
            "cost": self.hourly if status in ("PROVISIONING", "STARTING", "RUNNING") else 0.0,
            "locked": False,
            "globalNetworking": {"enabled": False},
            "runtime": {"uptime": int(time.time() - self.started), "ports": []} if status == "RUNNING" else None,
            "createdAt": iso(self.created),
            "startedAt": iso(self.started),
        }
        return made

    def graph(self) -> dict[str, Any]:
        """GraphQL's Pod: `desiredStatus` says RUNNING while the image is still pulled, `runtime` is null then."""
        running = self.status == "RUNNING"
        ports = [{"ip": "203.0.113.7", "isIpPublic": True, "privatePort": 22, "publicPort": 10022, "type": "tcp"}]
        return {
            "id": self.id,
            "name": self.name,
            "desiredStatus": self.desired,
            "lastStatusChange": self.word,
            "lastStartedAt": iso(self.started),
            "costPerHr": self.hourly,
            "gpuCount": self.gpu_count,
            "imageName": self.image,
            "env": [f"{key}={value}" for key, value in self.env.items()],
            "machineId": self.host,
            "memoryInGb": 50 * self.gpu_count,
            "vcpuCount": 8 * self.gpu_count,
            "podType": "INTERRUPTABLE" if self.spot else "RESERVED",
            "ports": "",
            "port": None,
            "dockerArgs": self.command,
            "dockerId": None,
            "uptimeSeconds": int(time.time() - self.started) if running else 0,
            "containerDiskInGb": self.disk,
            "volumeInGb": 0,
            "volumeMountPath": self.volume_path,
            "containerRegistryAuthId": None,
            "templateId": None,
            "clusterIp": None,
            "networkVolumeId": self.volume or None,
            "machine": {"gpuDisplayName": self.gpu_id, "podHostId": f"{self.id}-{self.host[:8]}", "location": "RO"},
            "runtime": {
                "uptimeInSeconds": int(time.time() - self.started),
                "ports": ports,
                "gpus": [{"id": "GPU-0", "gpuUtilPercent": 0, "memoryUtilPercent": 0}],
                "container": {"cpuPercent": 0, "memoryPercent": 0},
            }
            if running
            else None,
        }


def iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def js_date(at: float | None = None) -> str:
    """As JavaScript's Date.toString() writes it, in a zone west of Greenwich."""
    moment = time.gmtime((at or time.time()) - 4 * 3600)
    return time.strftime("%a %b %d %Y %H:%M:%S", moment) + " GMT-0400 (Eastern Daylight Time)"
