"""REST v2 of the stand-in (RunPod's OpenAPI file, api-reference-v2), with its problems and its RateLimit headers."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from clouds.runpod.pods import ACTIONS, Pod
from clouds.wire import Answer, Call

if TYPE_CHECKING:
    from clouds.runpod.cloud import RunPod

POLICY = '"minute";q=60;w=60, "hour";q=3000;w=3600, "day";q=50000;w=86400'
# REST has no word of its own for "no capacity": the upstream's text comes through (POST /v2/pods).
NO_CAPACITY = (
    "There are no longer any instances available with the requested specifications. Please refresh and try again."
)
LEVELS = {"High": "HIGH", "Medium": "MEDIUM", "Low": "LOW", "None": "NONE", None: "NONE"}


class Problem(Exception):  # noqa: N818 - RFC 9457's word
    def __init__(self, status: int, detail: str, *, title: str = "", errors: list[str] | None = None) -> None:
        super().__init__(detail)
        self.body: dict[str, Any] = {
            "title": title or HTTPStatus(status).phrase,
            "status": status,
            "detail": detail,
        } | ({"errors": errors} if errors else {})
        self.status = status


class Rest:
    def __init__(self, cloud: RunPod) -> None:
        self.cloud = cloud

    def answer(self, call: Call) -> Answer:
        """One call. Headers as on every answer to somebody who is known."""
        owner = self.cloud.owner(call.key)
        headers: dict[str, str] = {}
        try:
            if owner is None:
                raise Problem(401, "invalid or missing API key")
            left = self.cloud.minute()
            headers = {
                "RateLimit": f'"minute";r={max(0, left)};t=12, "hour";r=2990;t=1812, "day";r=49990;t=45012',
                "RateLimit-Policy": POLICY,
            }
            if left < 0 and self.cloud.enforce:
                if self.cloud.retry_after:
                    headers["Retry-After"] = "12"
                raise Problem(429, "rate limit exceeded for the minute window")
            status, body = self._do(call, owner)
            return Answer(status, body, headers)
        except Problem as problem:
            self.cloud.check_answer("ErrorResponse", problem.body)
            return Answer(problem.status, problem.body, headers, "application/problem+json")

    def _do(self, call: Call, owner: str) -> tuple[int, Any]:
        parts = call.path.strip("/").split("/")[1:]
        match call.method, parts:
            case "POST", ["pods", pod_id, "action"]:
                return self._action(pod_id, call.body, owner)
            case _ if owner != "account":
                raise Problem(403, "this key is for one pod")
            case "GET", ["pods"]:
                hidden = self.cloud.hide_spot_from_rest
                pods = [pod for pod in self.cloud.visible() if pod.desired != "TERMINATED"]
                shown = [pod.rest() for pod in pods if not (pod.spot and hidden)]
                return 200, self.cloud.check_answer("ListPodsResponse", {"pods": shown})
            case "POST", ["pods"]:
                return self._create(call.body)
            case "GET", ["pods", pod_id]:
                return 200, self.cloud.check_answer("Pod", self._pod(pod_id).rest())
            case "DELETE", ["pods", pod_id]:
                self._terminate(self._pod(pod_id))
                return 204, None
            case "GET", ["catalog", "gpus"]:
                return 200, self._gpus(call.query)
            case "GET", ["network-volumes", volume_id]:
                return 200, self._volume(volume_id)
        raise Problem(404, f"no such path: {call.method} {call.path}")

    def _pod(self, pod_id: str) -> Pod:
        pod = self.cloud.pods.get(pod_id)
        if pod is None or pod.desired == "TERMINATED" or (pod.spot and self.cloud.hide_spot_from_rest):
            raise Problem(404, "pod not found")
        return pod

    def _terminate(self, pod: Pod) -> None:
        pod.end("TERMINATED", "Terminated by user")
        pod.cut()

    def _action(self, pod_id: str, body: Any, owner: str) -> tuple[int, Any]:
        from clouds.runpod.cloud import JUDGE

        if wrong := JUDGE.wrong("PodActionRequest", body):
            raise Problem(422, "the body does not match the contract", errors=wrong)
        pod, action = self._pod(pod_id), body["action"]
        if owner != "account" and (owner != pod_id or action not in self.cloud.pod_key_may):
            raise Problem(403, "this key may not do that")
        if action not in ACTIONS.get(pod.status, []):
            raise Problem(409, f"{action} is not allowed while {pod.status}")
        if action == "terminate":
            self._terminate(pod)
            return 204, None
        if action == "stop":
            pod.end("EXITED", "Exited by user")
            pod.cut()
        else:
            pod.again()
        return 200, self.cloud.check_answer("Pod", pod.rest())

    def _create(self, body: Any) -> tuple[int, Any]:
        from clouds.runpod.cloud import JUDGE

        if wrong := JUDGE.wrong("CreatePodRequest", body):
            raise Problem(422, "the body does not match the contract", errors=wrong)
        if (told := self.cloud.faults.take("refuse")) is not None:
            raise told if isinstance(told, Problem) else self._refusal(str(told))
        gpu, cloud = body["gpu"], body.get("cloud", "SECURE")
        row = self.cloud.row(gpu["id"])
        if row is None:
            raise Problem(400, f"unknown GPU type {gpu['id']!r}")
        price = row["securePrice" if cloud == "SECURE" else "communityPrice"]
        wanted = (body.get("dataCenterIds") or [""])[0]
        if self.cloud.too_old(gpu):
            raise Problem(400, NO_CAPACITY)
        if self.cloud.in_stock(row, cloud) in (None, "None") or self.cloud.centres.get(wanted, "HIGH") == "NONE":
            raise Problem(400, NO_CAPACITY)
        count = gpu.get("count", 1)
        if self.cloud.credit() < price * count:
            need, has = price * count, self.cloud.credit()
            text = f"You need at least ${need:.2f} (current: ${has:.2f}, deficit: ${need - has:.2f})."
            raise Problem(402, text)
        network = (body.get("mounts", {}).get("network") or [{}])[0]
        pod = Pod(
            name=body["name"],
            image=body["image"],
            gpu_id=gpu["id"],
            gpu_count=count,
            cloud=cloud,
            centre=self.cloud.place(cloud, wanted, network.get("volumeId", "")),
            env=dict(body.get("env", {})),
            disk=body.get("disk", 50),
            command=body.get("args", ""),
            price=price,
            boot=self.cloud.boot,
            volume=network.get("volumeId", ""),
            volume_path=network.get("path", ""),
        )
        self.cloud.keep(pod)
        if self.cloud.faults.take("lose answer"):
            raise Problem(500, "upstream did not answer")
        return 201, self.cloud.check_answer("Pod", pod.rest())

    def _refusal(self, what: str) -> Problem:
        known = {
            "NoCapacity": Problem(400, NO_CAPACITY),
            "QuotaExceeded": Problem(400, "You have reached your account's spend limit of $80 per hour."),
            "pool": Problem(403, "Your account cannot access the requested pool."),
        }
        return known.get(what) or Problem(400, "something new", title=what)

    def _gpus(self, query: dict[str, str]) -> Any:
        if query.get("include") == "AVAILABILITY" and "product" not in query:
            raise Problem(400, "product is required with include=AVAILABILITY")
        cloud = query.get("cloud", "SECURE")
        made = []
        for row in self.cloud.cards:
            stock = LEVELS[self.cloud.in_stock(row, cloud)]
            most = row.get("maxGpuCount", 8)
            one: dict[str, Any] = {
                "id": row["id"],
                "name": row["displayName"],
                "pool": None,
                "manufacturer": "AMD" if row["id"].startswith("AMD") else "NVIDIA",
                "memory": row["memoryInGb"],
                "secure": row["secureCloud"],
                "community": row["communityCloud"],
                "price": {"secure": row["securePrice"] or 0.0, "community": row["communityPrice"] or 0.0},
                "maxCount": {"secure": most, "community": most},
                "availability": stock,
            }
            if stock != "NONE" and cloud == "SECURE":
                one["dataCenters"] = [
                    {"id": name, "name": name, "availability": level} for name, level in self.cloud.centres.items()
                ]
            made.append(one)
        return self.cloud.check_answer("ListGpuTypesResponse", {"gpus": made})

    def _volume(self, volume_id: str) -> Any:
        found = self.cloud.volumes.get(volume_id)
        if found is None:
            raise Problem(404, "network volume not found")
        return self.cloud.check_answer("NetworkVolume", {"id": volume_id, "name": "data", "type": "STANDARD", **found})
