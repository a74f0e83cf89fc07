"""GraphQL of the stand-in. Errors come with HTTP 200 and null data; documents that are not valid with 400."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from clouds.graphql import GraphQLError, Parser, Selected, resolved, shown
from clouds.runpod.pods import Pod
from clouds.wire import Answer, Call

if TYPE_CHECKING:
    from clouds.runpod.cloud import RunPod

NO_SPOT = "There are no longer any instances available with the request specifications. Please try again later."
NO_HOST = "There are not enough free GPUs on the host machine to start this pod."
# PodRentInterruptableInput and PodFindAndDeployOnDemandInput, as clients send them (SkyPilot, dstack).
INPUT = frozenset(
    """name imageName gpuTypeId cloudType gpuCount containerDiskInGb volumeInGb volumeMountPath networkVolumeId
    dataCenterId countryCode minVcpuCount minMemoryInGb minDisk minDownload minUpload ports dockerArgs env templateId
    containerRegistryAuthId allowedCudaVersions cudaVersion minCudaVersion supportPublicIp startSsh startJupyter
    stopAfter terminateAfter volumeKey port bidPerGpu""".split()  # noqa: SIM905 - as a list it is a page
)


class Refused(Exception):  # noqa: N818 - an error in an answer of status 200
    def __init__(self, message: str, code: str = "RUNPOD") -> None:
        super().__init__(message)
        self.message, self.code = message, code


class Graph:
    def __init__(self, cloud: RunPod) -> None:
        self.cloud = cloud
        self.queries = {
            "gpuTypes": self._gpu_types,
            "dataCenters": self._centres,
            "myself": self._myself,
            "pod": self._one,
        }
        self.mutations = {
            "podFindAndDeployOnDemand": self._on_demand,
            "podRentInterruptable": self._spot,
            "podTerminate": self._terminate,
            "podStop": self._stop,
            "podResume": self._resume,
            "podBidResume": self._bid_resume,
        }

    def answer(self, call: Call) -> Answer:
        """One request. A key that nobody knows is 401; without one only prices are shown."""
        key = call.key or call.query.get("api_key", "")
        owner = self.cloud.owner(key) if key else ""
        if owner is None:
            return Answer(401, {"errors": [{"message": "invalid api key", "extensions": {"code": "UNAUTHENTICATED"}}]})
        body = call.body if isinstance(call.body, dict) else {}
        variables = body.get("variables") or {}
        try:
            kind, declared, selection = Parser(str(body.get("query", ""))).operation()
            self._validate(kind, declared, selection, variables)
        except GraphQLError as error:
            return Answer(400, {"errors": [_error(error.message, error.code)]})
        data: dict[str, Any] = {}
        errors = []
        for one in selection:
            known = self.mutations if kind == "mutation" else self.queries
            try:
                found = known[one.name](resolved(one.arguments, variables), owner)
                data[one.alias] = shown(found, one.selection, one.name, variables)
            except Refused as refused:
                data[one.alias] = None
                errors.append({**_error(refused.message, refused.code), "path": [one.alias]})
            except GraphQLError as error:
                return Answer(400, {"errors": [_error(error.message, error.code)]})
            except LostAnswer as lost:
                return lost.answer
        if (deep := self.cloud.faults.take("deep error")) is not None:
            errors.append({**_error("lookup failed", "INTERNAL_SERVER_ERROR"), "path": deep})
            self._nulled(data, deep)
        return Answer(200, {"data": data} | ({"errors": errors} if errors else {}))

    @staticmethod
    def _nulled(data: Any, path: list[Any]) -> None:
        """Null at that place, as GraphQL has it for a field whose lookup failed."""
        for step in path[:-1]:
            data = data[step]
        data[path[-1]] = None

    def _validate(
        self, kind: str, declared: Mapping[str, str], selection: list[Selected], variables: Mapping[str, Any]
    ) -> None:
        """What GraphQL refuses before it does anything: unknown fields and unknown or missing parts of inputs."""
        known: dict[str, Any] = dict(self.mutations if kind == "mutation" else self.queries)
        if self.cloud.spot_removed:
            known.pop("podRentInterruptable", None)
            if any("Interruptable" in name for name in declared.values()):
                raise GraphQLError('Unknown type "PodRentInterruptableInput".')
        for one in selection:
            if one.name not in known:
                raise GraphQLError(f'Cannot query field "{one.name}" on type "{kind.capitalize()}".')
            given = resolved(one.arguments, variables).get("input")
            if one.name in ("podRentInterruptable", "podFindAndDeployOnDemand"):
                for name in (given or {}).keys() - (INPUT - self.cloud.unknown_inputs):
                    raise GraphQLError(f'Field "{name}" is not defined by type "{one.name}Input".')
            if one.name == "podBidResume" and not {"podId", "bidPerGpu", "gpuCount"} <= (given or {}).keys():
                raise GraphQLError('Field "gpuCount" of required type "Int!" was not provided.')
            if one.name == "podTerminate" and one.selection is not None:
                raise GraphQLError('Field "podTerminate" must not have a selection since type "Void" has no subfields.')

    # Queries

    def _gpu_types(self, args: Mapping[str, Any], owner: str) -> Any:
        wanted = (args.get("input") or {}).get("id")
        return [self._row(row) for row in self.cloud.cards if wanted in (None, row["id"])]

    def _row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        usual = dict.fromkeys(("manufacturer", "cudaCores", "oneWeekPrice", "oneMonthPrice", "threeMonthPrice"))
        most = row.get("maxGpuCount", 8)
        return {
            **usual,
            "sixMonthPrice": None,
            "clusterPrice": None,
            "minPodGpuCount": 1,
            "nodeGroupDatacenters": [],
            "maxGpuCountSecureCloud": most,
            "maxGpuCountCommunityCloud": most,
            "maxGpuCount": most,
            "lowestPrice": lambda args: self._lowest(row, args.get("input") or {}),
            **row,
        }

    def _lowest(self, row: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
        secure, count = wanted.get("secureCloud", True), wanted.get("gpuCount", 1)
        cloud = "SECURE" if secure else "COMMUNITY"
        stock = self.cloud.in_stock(row, cloud)
        if wanted.get("minVcpuCount", 0) > 8 * count or wanted.get("minMemoryInGb", 0) > 50 * count:
            stock = None
        side = cloud.lower()
        return {
            "minimumBidPrice": row[f"{side}SpotPrice"] if stock else None,
            "uninterruptablePrice": row[f"{side}Price"] if stock else None,
            "minVcpu": 8 * count if stock else None,
            "minMemory": 50 * count if stock else None,
            "stockStatus": stock,
            "compliance": None,
            "countryCode": None,
            "availableGpuCounts": list(range(1, row.get("maxGpuCount", 8) + 1)) if stock else [],
            "maxUnreservedGpuCount": 0,
        }

    def _centres(self, args: Mapping[str, Any], owner: str) -> Any:
        return [{"id": name, "name": name, "listed": True} for name in self.cloud.centres]

    def _myself(self, args: Mapping[str, Any], owner: str) -> Any:
        if owner != "account":
            return None
        return {
            "id": self.cloud.user,
            "email": "somebody@example.com",
            "pubKey": "",
            "clientBalance": round(self.cloud.credit(), 6),
            "currentSpendPerHr": sum(pod.hourly for pod in self.cloud.live()),
            "spendLimit": self.cloud.spend_limit,
            "pods": [pod.graph() for pod in self.cloud.visible() if self._shown(pod)],
            "networkVolumes": [],
        }

    def _shown(self, pod: Pod) -> bool:
        """Terminated pods vanish; an outbid one that was terminated is still shown for a while."""
        return pod.desired != "TERMINATED" or "Outbid" in pod.word

    def _one(self, args: Mapping[str, Any], owner: str) -> Any:
        pod = self.cloud.pods.get((args.get("input") or {}).get("podId", ""))
        return pod.graph() if pod is not None and pod.desired != "TERMINATED" else None

    # Mutations

    def _on_demand(self, args: Mapping[str, Any], owner: str) -> Any:
        return self._rent(args["input"], owner, None)

    def _spot(self, args: Mapping[str, Any], owner: str) -> Any:
        if self.cloud.faults.take("null spot"):
            return None
        return self._rent(args["input"], owner, float(args["input"]["bidPerGpu"]))

    def _rent(self, wanted: Mapping[str, Any], owner: str, bid: float | None) -> Any:
        if owner != "account":
            raise Refused("not allowed", "FORBIDDEN")
        if (told := self.cloud.faults.take("refuse")) is not None:
            raise self._refusal(told)
        row = self.cloud.row(wanted["gpuTypeId"])
        if row is None:
            raise Refused(f"unknown gpu {wanted['gpuTypeId']!r}", "BAD_USER_INPUT")
        clouds = ["SECURE", "COMMUNITY"] if wanted.get("cloudType", "ALL") == "ALL" else [wanted["cloudType"]]
        for cloud in clouds:
            price, floor = row[f"{cloud.lower()}Price"], row[f"{cloud.lower()}SpotPrice"]
            if (
                self.cloud.in_stock(row, cloud)
                and not self.cloud.too_old(wanted)
                and (bid is None or (floor and bid >= floor - 1e-9))
            ):
                break
        else:
            raise Refused(NO_SPOT if bid is not None else NO_SPOT.replace("request spec", "requested spec"))
        count, each = int(wanted.get("gpuCount") or 1), bid if bid is not None else price
        if self.cloud.credit() < each * count:
            need, has = each * count, self.cloud.credit()
            raise Refused(f"You need at least ${need:.2f} (current: ${has:.2f}, deficit: ${need - has:.2f}).")
        volume = wanted.get("networkVolumeId") or ""
        pod = self.cloud.keep(
            Pod(
                name=wanted.get("name") or "my pod",
                image=wanted["imageName"],
                gpu_id=row["id"],
                gpu_count=count,
                cloud=cloud,
                centre=self.cloud.place(cloud, wanted.get("dataCenterId") or "", volume),
                env={str(pair["key"]): str(pair["value"]) for pair in wanted.get("env") or []},
                disk=int(wanted.get("containerDiskInGb") or 10),
                command=wanted.get("dockerArgs") or "",
                price=each,
                boot=self.cloud.boot,
                bid=bid,
                volume=volume,
                volume_path=wanted.get("volumeMountPath") or "",
                terminate_after=wanted.get("terminateAfter") or "",
            )
        )
        if (told := self.cloud.faults.take("lose answer")) is not None:
            raise LostAnswer(told if isinstance(told, Answer) else Answer(500, "<html>500</html>", kind="text/html"))
        return pod.graph()

    def _refusal(self, what: Any) -> Refused:
        known = {
            "NoCapacity": Refused(NO_SPOT),
            "QuotaExceeded": Refused("You have reached your account's spend limit of $80 per hour."),
        }
        return what if isinstance(what, Refused) else known.get(what) or Refused("something new", what)

    def _mine(self, args: Mapping[str, Any], owner: str, action: str) -> Pod:
        pod_id = (args.get("input") or {}).get("podId", "")
        if owner not in ("account", pod_id) or (owner != "account" and action not in self.cloud.pod_key_may):
            raise Refused("not allowed", "FORBIDDEN")
        pod = self.cloud.pods.get(pod_id)
        if pod is None or pod.desired == "TERMINATED":
            raise Refused(f"pod not found to {action}", "POD_NOT_FOUND")
        return pod

    def _terminate(self, args: Mapping[str, Any], owner: str) -> None:
        pod = self._mine(args, owner, "terminate")
        pod.end("TERMINATED", "Terminated by user")
        pod.cut()

    def _stop(self, args: Mapping[str, Any], owner: str) -> Any:
        pod = self._mine(args, owner, "stop")
        pod.end("EXITED", "Exited by user")
        pod.cut()
        return pod.graph()

    def _resume(self, args: Mapping[str, Any], owner: str) -> Any:
        pod = self._mine(args, owner, "resume")
        if pod.spot:
            raise Refused("Cannot resume a spot pod as an on demand pod.")
        return self._start(pod)

    def _bid_resume(self, args: Mapping[str, Any], owner: str) -> Any:
        pod = self._mine(args, owner, "resume")
        pod.bid = pod.price = float(args["input"]["bidPerGpu"])
        return self._start(pod)

    def _start(self, pod: Pod) -> Any:
        if self.cloud.faults.take("host full"):  # a stopped pod stays on its host
            raise Refused(NO_HOST)
        pod.again()
        if self.cloud.machines is not None:
            self.cloud.run(pod)
        return pod.graph()


class LostAnswer(Exception):  # noqa: N818
    """The pod was made; the answer is a fault."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer


def _error(message: str, code: str) -> dict[str, Any]:
    return {"message": message, "extensions": {"code": code}}
