"""What a program inside a pod can learn and do: take SIGTERM for a notice, end its pod.

Standard library only; it is packed alone into the guest. RunPod gives every pod `RUNPOD_POD_ID` and `RUNPOD_API_KEY`, a
key for this pod (RunPod: pods, environment variables). Whether that key may terminate is not documented, so stopping is
tried where terminating is refused: a stopped pod without a volume costs nothing. A pod has no metadata service.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from typing import Any

SIGTERM_SECONDS = 5.0  # from SIGTERM to SIGKILL when a spot pod is outbid (RunPod: pods, pricing, before May 2026)
API = "https://api.runpod.io"
TIMEOUT = 30.0
# Only POST, which the wget of busybox can do too. The answer of GraphQL says by `errors` that it did not do it.
END_COMMAND = r"""a=${SPOTBROKER_RUNPOD_API:-https://api.runpod.io} p=$RUNPOD_POD_ID
t() { curl -fsS -m 30 -H "$H" -H "$J" -d "$2" "$a$1" || wget -qO- -T 30 --header "$H" --header "$J" --post-data "$2" \
"$a$1" || python3 -c 'import sys,urllib.request as u
h=dict(x.split(": ") for x in sys.argv[3:])
print(u.urlopen(u.Request(sys.argv[1],sys.argv[2].encode(),h),timeout=30).read().decode())' "$a$1" "$2" "$H" "$J"; }
g() { case $(t /graphql "{\"query\":\"mutation{$1(input:{podId:\\\"$p\\\"})$2}\"}") in
*\"errors\"*) false ;; *\"data\"*) ;; *) false ;; esac; }
H="Authorization: Bearer $RUNPOD_API_KEY" J="Content-Type: application/json"
{ t "/v2/pods/$p/action" '{"action":"terminate"}' || g podTerminate || t "/v2/pods/$p/action" '{"action":"stop"}' ||
g podStop "{id}"; } >/dev/null 2>&1"""


def notice() -> dict[str, Any] | None:
    """RunPod has nothing to ask inside a pod: SIGTERM is the only word."""
    return None


def sigterm_is_notice() -> float | None:
    """Seconds left when the pod's first process gets SIGTERM."""
    return SIGTERM_SECONDS


def end_machine(why: str) -> None:
    """Terminate this pod, or stop it where that is refused. Returns on acceptance; safe to repeat.

    Raises OSError with the refusals. A shell does the same by END_COMMAND.
    """
    del why  # the API has no place for a reason
    pod, key = os.environ.get("RUNPOD_POD_ID", ""), os.environ.get("RUNPOD_API_KEY", "")
    if not pod or not key:
        raise OSError("RUNPOD_POD_ID and RUNPOD_API_KEY are not both set: this is no pod that can end itself")
    quoted = json.dumps(pod)
    refusals = []
    for path, body in (
        (f"/v2/pods/{pod}/action", {"action": "terminate"}),
        ("/graphql", {"query": f"mutation{{podTerminate(input:{{podId:{quoted}}})}}"}),
        (f"/v2/pods/{pod}/action", {"action": "stop"}),
        ("/graphql", {"query": f"mutation{{podStop(input:{{podId:{quoted}}}){{id}}}}"}),
    ):
        try:
            _post(path, body, key)
        except (OSError, ValueError) as error:
            refusals.append(f"{path}: {error}")
        else:
            return
    raise OSError("; ".join(refusals))


def _post(path: str, body: dict[str, Any], key: str) -> None:
    """Send one order. Raises OSError where it was not accepted, ValueError for an answer that cannot be read."""
    request = urllib.request.Request(  # noqa: S310 - the address is the API's
        os.environ.get("SPOTBROKER_RUNPOD_API", API) + path,
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {key}", "Content-Type": "application/json", "User-Agent": "spotbroker"},
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:  # noqa: S310
        told = answer.read()
    if path == "/graphql" and "errors" in json.loads(told):
        raise OSError(told.decode("utf-8", "replace")[:300])
