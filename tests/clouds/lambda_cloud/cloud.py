"""`Lambda`: a stand-in that speaks Lambda Cloud's API over HTTP as its OpenAPI file says, and lies on request."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from clouds.machine import Gpus, Machine, Machines
from clouds.openapi import API, Judge
from clouds.wire import Answer, Call, Dropped, Faults, Wire

JUDGE = Judge(API / "lambda" / "openapi.json")
ROOT = "/api/v1"
LAUNCH = f"{ROOT}/instance-operations/launch"
TERMINATE = f"{ROOT}/instance-operations/terminate"
MESSAGES = {
    "instance-operations/launch/insufficient-capacity": (400, "Not enough capacity to fulfill launch request."),
    "global/quota-exceeded": (400, "Quota exceeded."),
    "global/invalid-parameters": (400, "Invalid request data."),
    "global/object-does-not-exist": (404, "Specified instance does not exist."),
    "global/invalid-api-key": (401, "API key was invalid, expired, or deleted."),
    "global/account-inactive": (403, "Your account is inactive."),
    "global/internal-error": (500, "An internal server error occurred."),
    "provider/internal-unavailable": (503, "Provider unavailable"),
    "global/duplicate": (400, "It is there already."),
}
SUGGEST = {"global/quota-exceeded": "Contact Support to increase your quota."}
FREE = {"available": True}


def kind(name: str, gpu: str, cents: int, gpus: int, *, vcpus: int = 30, memory: int = 200, disk: int = 1400) -> Any:
    """An InstanceType."""
    return {
        "name": name,
        "description": f"{gpus}x {gpu}" if gpus else gpu,
        "gpu_description": gpu if gpus else "N/A",
        "price_cents_per_hour": cents,
        "specs": {"vcpus": vcpus, "memory_gib": memory, "storage_gib": disk, "gpus": gpus},
    }


KINDS = [
    (kind("gpu_1x_a10", "A10 (24 GB PCIe)", 75, 1), ["us-east-1", "us-west-1"]),
    (kind("gpu_1x_rtx6000", "RTX 6000 (24 GB)", 50, 1, vcpus=14, memory=46, disk=512), ["us-south-1"]),
    (kind("gpu_8x_h100_sxm5", "H100 (80 GB SXM5)", 2392, 8, vcpus=208, memory=1800, disk=24780), ["us-east-1"]),
    (kind("gpu_1x_gh200", "GH200 (96 GB)", 149, 1, vcpus=64, memory=432, disk=4096), ["us-east-3"]),
    (kind("gpu_8x_a100", "A100 (40 GB SXM4)", 1032, 8, vcpus=124, memory=1800, disk=6144), []),
    (kind("cpu_4x_general", "CPU General", 8, 0, vcpus=4, memory=16, disk=128), ["us-east-1"]),
]


class Refused(Exception):  # noqa: N818 - an error answer
    def __init__(self, code: str, message: str = "", status: int = 0) -> None:
        super().__init__(code)
        known, text = MESSAGES.get(code, (400, "something new"))
        self.status = status or known
        self.body = {"error": {"code": code, "message": message or text}}
        if code in SUGGEST:
            self.body["error"]["suggestion"] = SUGGEST[code]


@dataclass
class Rented:
    """One instance. boot: seconds until it is active, and has an address."""

    kind: dict[str, Any]
    region: str
    body: dict[str, Any]
    boot: float
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    created: float = field(default_factory=time.time)
    ended: float | None = None
    word: str = ""
    machine: Machine | None = None

    @property
    def status(self) -> str:
        if self.word:
            return self.word
        return "active" if time.time() - self.created >= self.boot else "booting"

    def charged(self) -> float:
        """USD so far, from launch to termination, whatever its system does meanwhile."""
        return ((self.ended or time.time()) - self.created) * self.kind["price_cents_per_hour"] / 100 / 3600

    def shown(self) -> dict[str, Any]:
        """As the API shows it: no address before it is active."""
        status = self.status
        gone = {"available": False, "reason_code": "vm-is-terminating", "reason_description": "it is ending"}
        actions = dict.fromkeys(
            ("migrate", "rebuild", "restart", "cold_reboot", "terminate"), FREE if status == "active" else gone
        )
        made: dict[str, Any] = {
            "id": self.id,
            "status": status,
            "ssh_key_names": self.body["ssh_key_names"],
            "file_system_names": self.body.get("file_system_names", []),
            "region": {"name": self.region, "description": self.region},
            "instance_type": self.kind,
            "actions": actions,
        }
        if status == "active":
            made["ip"] = "198.51.100.2"
        return made | {key: self.body[key] for key in ("name", "tags") if key in self.body}


class Lambda(Wire):
    """One account. again_is_error: terminating twice is a 400 (skypilot #3410). machines: instances really run."""

    def __init__(
        self,
        *,
        machines: Machines | None = None,
        boot: float = 0.05,
        gpus: Gpus | None = None,
        ending: float = 0.02,
    ) -> None:
        super().__init__("0.0.0.0" if machines else "127.0.0.1")
        self.machines, self.boot, self.gpus, self.ending = machines, boot, gpus, ending
        self.kinds = list(KINDS)
        self.keys = {"secret_TESTKEY"}
        self.ssh_keys: list[dict[str, str]] = []
        self.rented: dict[str, Rented] = {}
        self.faults = Faults()
        self.hidden_for = 0.0
        self.again_is_error = True
        self.faults_of_ours: list[str] = []
        self.judged = True  # by the OpenAPI file, which takes longer than the calls

    @property
    def api(self) -> str:
        return f"{self.url}{ROOT}"

    # What tests do to it

    def charged(self) -> float:
        return sum(one.charged() for one in self.rented.values())

    def live(self) -> list[Rented]:
        return [one for one in self.rented.values() if one.ended is None]

    def take_back(self, instance_id: str) -> None:
        """The status that is in the enumeration and documented nowhere."""
        one = self.rented[instance_id]
        one.word = "preempted"
        if one.machine is not None:
            one.machine.kill()

    def terminate(self, instance_id: str) -> None:
        """Terminating for a moment, then terminated."""
        one = self.rented[instance_id]
        one.word, one.ended = "terminating", one.ended or time.time()

        def going() -> None:
            if one.machine is not None:
                one.machine.remove()
            one.word = "terminated"

        timer = threading.Timer(self.ending, going)
        timer.daemon = True
        timer.start()

    # The API

    def answer(self, call: Call) -> Answer:
        if (plain := self.faults.take("throttle")) is not None:
            return Answer(429, plain if isinstance(plain, str) else {"error": {"code": "x", "message": "slow down"}})
        name = {LAUNCH: "launch", f"{ROOT}/instances": "instances", f"{ROOT}/instance-types": "offers"}.get(call.path)
        if (status := self.faults.take(name or call.path)) is not None:
            if status == "drop":
                raise Dropped
            if isinstance(status, Answer):
                return status
            return Answer(int(status), "<html>upstream fault</html>", kind="text/html")
        try:
            if call.key not in self.keys:
                raise Refused("global/invalid-api-key")
            return Answer(200, self._judged(call, self._do(call)))
        except Refused as refused:
            return Answer(refused.status, refused.body)

    def _judged(self, call: Call, data: Any) -> Any:
        """An answer, held to the vendor's own file."""
        path = call.path
        if path.startswith(f"{ROOT}/instances/"):
            path = f"{ROOT}/instances/{{id}}"
        pointer = f"#/paths/{path.replace('~', '~0').replace('/', '~1')}/{call.method.lower()}/responses/200/content/"
        pointer += "application~1json/schema"
        if self.judged:
            self.faults_of_ours += [f"{call.method} {path}: {line}" for line in JUDGE.wrong_at(pointer, {"data": data})]
        return {"data": data}

    def _do(self, call: Call) -> Any:
        match call.method, call.path.removeprefix(ROOT).strip("/").split("/"):
            case "GET", ["instance-types"]:
                return {
                    item["name"]: {
                        "instance_type": item,
                        "regions_with_capacity_available": [{"name": r, "description": r} for r in regions],
                    }
                    for item, regions in self.kinds
                }
            case "GET", ["instances"]:
                now = time.time()
                return [one.shown() for one in self.rented.values() if now - one.created >= self.hidden_for]
            case "GET", ["instances", instance_id]:
                return self._one(instance_id).shown()
            case "GET", ["ssh-keys"]:
                return self.ssh_keys
            case "POST", ["ssh-keys"]:
                return self._add_key(call.body)
            case "POST", ["instance-operations", "launch"]:
                return self._launch(call.body)
            case "POST", ["instance-operations", "terminate"]:
                return self._terminate(call.body)
        raise Refused("global/not-found", "The requested resource was not found.", 404)

    def _one(self, instance_id: str) -> Rented:
        if instance_id not in self.rented:
            raise Refused("global/object-does-not-exist")
        return self.rented[instance_id]

    def _add_key(self, body: Mapping[str, Any]) -> Any:
        if any(key["name"] == body["name"] for key in self.ssh_keys):
            raise Refused("global/duplicate")
        made = {"id": secrets.token_hex(16), "name": body["name"], "public_key": body["public_key"]}
        self.ssh_keys.append(made)
        return made

    def _launch(self, body: Any) -> Any:
        path = LAUNCH.replace("/", "~1")
        if wrong := JUDGE.wrong_at(f"#/paths/{path}/post/requestBody/content/application~1json/schema", body):
            raise Refused("global/invalid-parameters", "; ".join(wrong))
        if (told := self.faults.take("refuse")) is not None:
            raise told if isinstance(told, Refused) else Refused(str(told))
        if len(body["ssh_key_names"]) != 1 or "quantity" in body:
            raise Refused("global/invalid-parameters", "Currently, exactly one SSH key must be specified.")
        if body["ssh_key_names"][0] not in {key["name"] for key in self.ssh_keys}:
            raise Refused("global/object-does-not-exist", "SSH key not found", 400)
        found = next((entry for entry in self.kinds if entry[0]["name"] == body["instance_type_name"]), None)
        if found is None:
            raise Refused("global/object-does-not-exist", "Instance type does not exist", 400)
        if body["region_name"] not in found[1]:
            raise Refused("instance-operations/launch/insufficient-capacity")
        one = Rented(found[0], body["region_name"], dict(body), self.boot)
        with self.lock:
            self.rented[one.id] = one
        if self.machines is not None:
            one.machine = self.machines.vm(
                f"la-{one.id[:8]}", user_data=str(body.get("user_data", "")).encode(), gpus=self.gpus
            )
        if self.faults.take("lose answer"):
            raise Refused("global/internal-error")
        return {"instance_ids": [one.id]}

    def _terminate(self, body: Mapping[str, Any]) -> Any:
        ended = []
        for instance_id in body["instance_ids"]:
            one = self._one(instance_id)
            if one.word in ("terminating", "terminated") and self.again_is_error:
                raise Refused("global/unknown", "An unknown error occurred.", 400)
            self.terminate(instance_id)
            ended.append(one.shown())
        return {"terminated_instances": ended}
