"""`RunPod`: a stand-in that speaks RunPod's GraphQL and REST v2 over HTTP, and lies on request.

GraphQL has no published schema, so its fields are those that clients select. REST v2 is held to RunPod's own OpenAPI
file both ways: a body that breaks it is refused with 422, and `faults_of_ours` collects answers that would break it.
"""

from __future__ import annotations

import json
import shlex
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from clouds.machine import IMAGE, Gpus, Machines
from clouds.openapi import API, Judge
from clouds.runpod.graph import Graph
from clouds.runpod.pods import Pod
from clouds.runpod.rest import Rest
from clouds.wire import Answer, Call, Dropped, Faults, Wire

JUDGE = Judge(API / "runpod" / "rest_v2_openapi.json")
CENTRES = {"US-KS-2": "HIGH", "EU-RO-1": "LOW", "EUR-NO-1": "NONE"}
QUOTA = 60  # REST calls a minute


def card(
    gpu_id: str,
    memory: int,
    *,
    secure: tuple[float | None, float | None] | None = None,
    community: tuple[float | None, float | None] | None = None,
    most: int = 8,
) -> dict[str, Any]:
    """A row of gpuTypes; secure, community: (on demand, spot) in USD per hour and card, None where it is not sold."""
    return {
        "id": gpu_id,
        "displayName": gpu_id.removeprefix("NVIDIA ").removeprefix("GeForce "),
        "memoryInGb": memory,
        "secureCloud": secure is not None,
        "communityCloud": community is not None,
        "securePrice": secure[0] if secure else 0,
        "secureSpotPrice": secure[1] if secure else None,
        "communityPrice": community[0] if community else 0.5,
        "communitySpotPrice": community[1] if community else None,
        "maxGpuCount": most,
    }


CARDS = [
    card("NVIDIA GeForce RTX 4090", 24, secure=(0.69, 0.35), community=(0.34, 0.2)),
    card("NVIDIA A40", 48, secure=(0.44, 0.28), most=10),
]


class RunPod(Wire):
    """One account. keys: its keys; user: whose they are; pods: all there ever were; balance: prepaid USD, less what was
    charged.

    boot: seconds from creation to RUNNING. Switches: spot_removed (the mutation is unknown), graphql_retired (404),
    pod_key_may (what a pod's own key may do), outbid_as (EXITED or TERMINATED), retry_after (a 429 names it), enforce
    (REST's minute quota), unknown_inputs (fields that GraphQL's creates do not know), cuda (of every host's driver),
    throttle_rest (that quota is used up), hide_spot_from_rest,
    judged (by the OpenAPI file, which takes longer than the calls). machines: pods really run in them.
    """

    def __init__(
        self,
        *,
        cards: list[dict[str, Any]] | None = None,
        machines: Machines | None = None,
        boot: float = 0.05,
        gpus: Gpus | None = None,
    ) -> None:
        super().__init__("0.0.0.0" if machines else "127.0.0.1")
        self.cards = CARDS if cards is None else cards
        self.machines, self.boot, self.gpus = machines, boot, gpus
        self.keys, self.user = {"rpa_TESTKEY"}, "user_0example"
        self.pods: dict[str, Pod] = {}
        self.balance, self.spend_limit = 100.0, 80.0
        self.faults = Faults()
        self.hidden_for = 0.0
        self.spot_removed = self.graphql_retired = False
        self.unknown_inputs: set[str] = set()
        self.cuda = "12.8"
        self.retry_after = True
        self.enforce = True
        self.throttle_rest = self.hide_spot_from_rest = False
        self.pod_key_may = {"terminate", "stop"}
        self.outbid_as = "EXITED"
        self.stock: dict[tuple[str, str], str | None] = {}
        self.centres = dict(CENTRES)
        self.volumes = {"vol0example": {"size": 100, "dataCenter": "EU-RO-1"}}
        self.faults_of_ours: list[str] = []
        self.judged = True
        self._minute: deque[float] = deque()
        self._graph, self._rest = Graph(self), Rest(self)

    # What tests do to it

    def outbid(self, pod_id: str, *, as_: str = "") -> None:
        """Somebody bids more, or rents the host on demand."""
        desired = as_ or self.outbid_as
        pod = self.pods[pod_id]
        pod.take_back(desired, then=pod.cut)

    def stop_by_hand(self, pod_id: str) -> None:
        """Its user presses Stop in the console."""
        self.pods[pod_id].end("EXITED", "Exited by user")
        self.pods[pod_id].cut()

    def charged(self) -> float:
        """USD for all pods so far."""
        return sum(pod.charged() for pod in self.pods.values())

    def credit(self) -> float:
        return self.balance - self.charged()

    def bankrupt(self) -> None:
        """Nothing is left: pods without a network volume are terminated, others stopped (RunPod: billing)."""
        self.balance = self.charged()
        for pod in self.live():
            pod.end("EXITED" if pod.volume else "TERMINATED", "Exited by Runpod")
            pod.cut()

    def live(self) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.desired == "RUNNING"]

    def visible(self) -> list[Pod]:
        """What lists show: nothing too young while they are told to be late."""
        now = time.time()
        return [pod for pod in self.pods.values() if now - pod.created >= self.hidden_for]

    # What it does for both of its APIs

    def answer(self, call: Call) -> Answer:
        """One call. Lies that concern no API in particular are told here."""
        if (plain := self.faults.take("throttle")) is not None:
            return self._throttled(plain)
        name = self._name_of(call)
        if (status := self.faults.take(name) or self.faults.take(call.path)) is not None:
            if status == "drop":
                raise Dropped
            if isinstance(status, Answer):
                return status
            return Answer(int(status), "<html>upstream fault</html>", kind="text/html")
        if call.path == "/graphql":
            return Answer(404, "gone", kind="text/plain") if self.graphql_retired else self._graph.answer(call)
        return self._rest.answer(call)

    @staticmethod
    def _name_of(call: Call) -> str:
        """`instances`, `offers` or `launch`, as tests name calls."""
        text = call.path + json.dumps(call.body or "")
        if call.method == "POST" and ("podRent" in text or "podFindAndDeploy" in text or call.path == "/v2/pods"):
            return "launch"
        if "myself" in text or (call.method == "GET" and call.path == "/v2/pods"):
            return "instances"
        return "offers" if "gpuTypes" in text or "/catalog/" in text else "other"

    def _throttled(self, plain: Any) -> Answer:
        headers = {"Retry-After": "1"} if self.retry_after else {}
        if plain == "plain":
            return Answer(429, "Too many requests", headers=headers, kind="text/plain")
        body = {"title": "Too Many Requests", "status": 429, "detail": "rate limit exceeded for the minute window"}
        return Answer(429, body, headers=headers, kind="application/problem+json")

    def minute(self) -> int:
        """Take one of the minute's calls; how many are left, below zero where none was."""
        now = time.time()
        with self.lock:
            while self._minute and self._minute[0] < now - 60:
                self._minute.popleft()
            self._minute.append(now)
            return -1 if self.throttle_rest else QUOTA - len(self._minute)

    def owner(self, key: str) -> str | None:
        """`account`, the id of the pod whose own key this is, or None."""
        if key in self.keys:
            return "account"
        return next((pod.id for pod in self.pods.values() if pod.key == key), None)

    def row(self, gpu_id: str) -> dict[str, Any] | None:
        return next((row for row in self.cards if row["id"] == gpu_id), None)

    def too_old(self, wanted: Mapping[str, Any]) -> bool:
        """Is the CUDA version of the hosts' drivers below the least that is asked for?"""
        least, has = str(wanted.get("minCudaVersion") or "0.0"), self.cuda
        return [int(part) for part in has.split(".")] < [int(part) for part in least.split(".")]

    def in_stock(self, row: Mapping[str, Any], cloud: str) -> str | None:
        """`High`, `Low` …, None where the cloud does not sell the card or has none."""
        sold = row["secureCloud" if cloud == "SECURE" else "communityCloud"]
        return self.stock.get((row["id"], cloud), "High") if sold else None

    def place(self, cloud: str, wanted: str, volume: str) -> str:
        """The data centre of a new pod."""
        if volume:
            return str(self.volumes[volume]["dataCenter"])
        return wanted or ("US-KS-2" if cloud == "SECURE" else "")

    def keep(self, pod: Pod) -> Pod:
        """The pod exists, and costs; with machines it also runs, as RunPod runs a start command."""
        with self.lock:
            self.pods[pod.id] = pod
        if self.machines is not None:
            self.run(pod)
        return pod

    def run(self, pod: Pod) -> None:
        assert self.machines is not None
        address = f"http://{self.machines.address}:{self.port}"
        given = {"RUNPOD_POD_ID": pod.id, "RUNPOD_API_KEY": pod.key, "RUNPOD_GPU_COUNT": str(pod.gpu_count)}
        pod.machine = self.machines.container(
            f"rp-{pod.id[:8]}",
            command=command_of(pod.command),
            env={**pod.env, **given, "RUNPOD_DC_ID": pod.centre},
            image=IMAGE,
            gpus=self.gpus,
        )
        assert pod.env.get("SPOTBROKER_RUNPOD_API", address) == address, "the pod would call RunPod itself"

    def check_answer(self, schema: str, value: Any) -> Any:
        """An answer of REST v2, held to the vendor's own file."""
        if self.judged:
            self.faults_of_ours += [f"{schema}: {line}" for line in JUDGE.wrong(schema, value)]
        return value


def command_of(args: str) -> list[str]:
    """What RunPod makes of a start command: `{"cmd", "entrypoint"}` whole, anything else split as a shell does."""
    try:
        parsed = json.loads(args)
    except ValueError:
        parsed = None
    if isinstance(parsed, dict):
        return [*parsed.get("entrypoint", []), *parsed.get("cmd", [])]
    return shlex.split(args)
