"""What a program inside a Vast container can learn and do: it gets no notice, and it can destroy its own contract.

Standard library only; it is packed alone into the guest. Vast puts `CONTAINER_ID` and `CONTAINER_API_KEY` into the
container's environment; that key may only start, stop and destroy this very contract (Vast docs, docker execution
environment). A contract whose first process exits is not over and goes on costing: its end is always asked for.
"""

from __future__ import annotations

import json
import os
import urllib.request
from typing import Any

API = "https://console.vast.ai"
TIMEOUT = 60.0  # seconds
# How a shell ends the machine. `curl -H @-` and Python's environment keep the key out of the list of processes; with
# `-f` a refusal fails. Nothing here may leave the shell, which is the first process: the loop around it asks again.
END_COMMAND = (
    "u=${VAST_URL:-https://console.vast.ai}/api/v0/instances/$CONTAINER_ID/; "
    'k="Authorization: Bearer $CONTAINER_API_KEY"; '
    'echo "$k" | curl -fsSm60 -o /dev/null -X DELETE -H @- "$u" || '
    'wget -qT60 -O /dev/null --method=DELETE --header="$k" "$u" || '
    'python3 -c \'import os,sys,urllib.request as r;r.urlopen(r.Request(sys.argv[1],method="DELETE",'
    'headers={"Authorization":"Bearer "+os.environ["CONTAINER_API_KEY"]}),timeout=60)\' "$u"'
)


def notice() -> dict[str, Any] | None:
    """Always None: a Vast container is told nothing before it is stopped."""
    return None


def end_machine(why: str) -> None:  # noqa: ARG001 - Vast keeps no reason
    """Destroy this contract, disk and all. Returns on acceptance; safe to repeat. Raises OSError where refused.

    A shell does the same by END_COMMAND. KeyError would end the caller, so a missing variable is an OSError too.
    """
    contract, key = os.environ.get("CONTAINER_ID"), os.environ.get("CONTAINER_API_KEY")
    if not contract or not key:
        raise OSError("CONTAINER_ID or CONTAINER_API_KEY is not set: this is no Vast container")
    url = f"{os.environ.get('VAST_URL') or API}/api/v0/instances/{contract}/"
    headers = {"Authorization": f"Bearer {key}"}
    request = urllib.request.Request(url, method="DELETE", headers=headers)  # noqa: S310 - the adapter's own address
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:  # noqa: S310
        text = answer.read()
    try:
        said = json.loads(text or b"{}")
    except ValueError:
        return
    if isinstance(said, dict) and said.get("success") is False:
        raise OSError(f"Vast did not end the contract: {said.get('error')}: {said.get('msg')}")
