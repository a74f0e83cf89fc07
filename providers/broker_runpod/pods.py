"""Pods and what we write on them: RunPod has no tags, only a name and an environment, and says causes in prose.

The name says installation, job and generation, so that a pod is ours whatever else is lost. The environment says the
rest: all tags, and the offer with what it costs beside the pod's own price.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from broker.errors import InvalidRequest
from broker.offer import Market
from broker.provider import TAG_GENERATION, TAG_INSTALLATION, TAG_JOB, Cause, Instance, LaunchRequest, State
from broker.rest import number
from broker_runpod.refusals import NAME

NAMED = re.compile(r"sb-(?P<installation>[^-]+)-(?P<job>.+)-(?P<generation>\d+)")
NAME_LENGTH = 191  # REST v1, PodCreateInput.name; v2 says no maximum
TAGS, OFFER, BOOT, API_ENV = "SPOTBROKER_TAGS", "SPOTBROKER_OFFER", "SPOTBROKER_BOOT", "SPOTBROKER_RUNPOD_API"
# RunPod runs a start command by splitting it as a shell would, and `{"cmd", "entrypoint"}` as a whole; the script
# itself travels in the environment, where nothing is split. `exec`: the script is PID 1 and gets SIGTERM.
START = f'umask 077; printf %s "${BOOT}" | base64 -d >/tmp/spotbroker-boot && exec /bin/sh /tmp/spotbroker-boot'

REST_STATES = {
    "PROVISIONING": State.PENDING,
    "STARTING": State.PENDING,
    "RUNNING": State.RUNNING,
    "EXITED": State.STOPPED,
    "ERROR": State.STOPPED,
    "TERMINATED": State.TERMINATED,
}
# `desiredStatus` is what was asked for, so a pod that still pulls its image says RUNNING already.
GRAPH_STATES = {
    "CREATED": State.PENDING,
    "RUNNING": State.RUNNING,
    "RESTARTING": State.RUNNING,
    "EXITED": State.STOPPED,
    "PAUSED": State.STOPPED,
    "DEAD": State.STOPPED,
    "TERMINATED": State.TERMINATED,
}
OVER = (State.STOPPED, State.TERMINATED)
TAKEN = re.compile(r"preempt|interrupt|reclaim|evict")  # never seen yet; whatever says so in other words than "Outbid"
DATE = re.compile(
    r"(?P<month>[A-Z][a-z]{2}) (?P<day>\d{1,2}) (?P<year>\d{4}) (?P<time>\d\d:\d\d:\d\d) GMT(?P<zone>[+-]\d{4})"
)
MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"  # `%b` would read those of the user's own language


def name_of(request: LaunchRequest) -> str:
    """The pod's name. Raises InvalidRequest where it would be longer than RunPod takes."""
    tags = request.tags
    name = f"sb-{tags.get(TAG_INSTALLATION, '')}-{request.job}-{request.generation}"
    if len(name) > NAME_LENGTH or not NAMED.fullmatch(name):
        raise InvalidRequest(f"{name!r} cannot be a pod's name", provider=NAME, code="name")
    return name


def env_of(request: LaunchRequest, api: str) -> dict[str, str]:
    """The pod's environment: the boot script and what `instances` reads back. api: empty for RunPod's own address."""
    offer = {"key": request.offer.key, "price": request.offer.price, "disk": request.offer.disk_price}
    env = {
        BOOT: base64.b64encode(request.user_data.encode()).decode("ascii"),
        TAGS: json.dumps(dict(request.tags), separators=(",", ":"), sort_keys=True),
        OFFER: json.dumps(offer, separators=(",", ":")),
    }
    return env | ({API_ENV: api} if api else {})


def docker_args() -> str:
    """GraphQL's dockerArgs, in the form that replaces the image's entrypoint too (dstack, runpod/compute.py)."""
    return json.dumps({"cmd": [START], "entrypoint": ["/bin/sh", "-c"]})


def rest_args() -> str:
    """REST v2's args: they follow the image's entrypoint, which must run what it is given, as NVIDIA's does."""
    return f"/bin/sh -c '{START}'"


@dataclass(frozen=True, slots=True)
class Ours:
    """What a pod's name and environment say. key: the offer's; hourly: USD per hour beside the pod's own cost."""

    tags: Mapping[str, str]
    key: tuple[str, str, str, str, str] = (NAME, "", "", "", "")
    price: float = 0.0
    disk: float = 0.0

    @property
    def market(self) -> Market:
        return Market.SPOT if self.key[4] == Market.SPOT else Market.ON_DEMAND


def ours(name: str, env: Mapping[str, str]) -> Ours | None:
    """None for a pod that is not ours, whoever's it may be."""
    named = NAMED.fullmatch(name)
    tags: dict[str, str] = {}
    with contextlib.suppress(ValueError, KeyError):
        found = json.loads(env[TAGS])
        tags = {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}
    if named is None and TAG_JOB not in tags:
        return None
    if named is not None:
        # The environment stays as it was written; a name can be cut, or changed in the console.
        tags = {
            TAG_INSTALLATION: named["installation"], TAG_JOB: named["job"], TAG_GENERATION: named["generation"], **tags
        }  # fmt: skip
    with contextlib.suppress(ValueError, KeyError, TypeError):
        offer = json.loads(env[OFFER])
        provider, region, zone, kind, market = str(offer["key"]).split("/")
        return Ours(tags, (provider, region, zone, kind, market), float(offer["price"]), float(offer["disk"]))
    return Ours(tags)


def env_read(env: Any) -> dict[str, str]:
    """GraphQL lists `["K=V"]`, REST an object."""
    if isinstance(env, Mapping):
        return {str(k): str(v) for k, v in env.items()}
    pairs = (str(entry).partition("=") for entry in (env if isinstance(env, list) else ()))
    return {key: value for key, _, value in pairs}


def merged(rest: Iterable[Mapping[str, Any]], graph: Iterable[Mapping[str, Any]]) -> list[Instance]:
    """Our pods, from both lists: what either shows exists. REST knows the state best, only GraphQL knows why."""
    by_id: dict[str, list[Mapping[str, Any]]] = {}
    for pod in rest:
        by_id.setdefault(str(pod["id"]), [{}, {}])[0] = pod
    for pod in graph:
        by_id.setdefault(str(pod["id"]), [{}, {}])[1] = pod
    found = (_instance(pod_id, mine, theirs) for pod_id, (mine, theirs) in by_id.items())
    return [instance for instance in found if instance is not None]


def _instance(pod_id: str, rest: Mapping[str, Any], graph: Mapping[str, Any]) -> Instance | None:
    own = ours(str(rest.get("name") or graph.get("name") or ""), env_read(graph.get("env")) | env_read(rest.get("env")))
    if own is None:
        return None
    state = state_of(rest, graph)
    word = str(graph.get("lastStatusChange") or "")
    cause = cause_of(word) if state in OVER else None
    if state is State.STOPPED and cause is None and rest.get("status") == "ERROR":
        cause = Cause.FAILED
    if state is State.TERMINATED and cause is Cause.USER:
        return None  # by hand or by us: the account's own key does both. Terminated pods are listed by nobody else
    region, zone = own.key[1], own.key[2]
    centre = str(rest.get("dataCenterId") or "")
    return Instance(
        provider=NAME,
        id=pod_id,
        state=state,
        market=own.market,
        hourly=hourly_of(own, rest, graph),
        tags=own.tags,
        region=region or centre,
        zone=zone,
        instance_type=own.key[3],
        cause=cause,
        launched_at=_iso(rest.get("createdAt")),
        ended_at=_date(word) if state in OVER else None,
        word=word or str(rest.get("status")) if cause is Cause.FAILED else "",
    )


def state_of(rest: Mapping[str, Any], graph: Mapping[str, Any]) -> State:
    """An end that either tells counts. A word that nobody knows is a pod that may cost money, so it runs."""
    one = REST_STATES.get(str(rest.get("status")), State.RUNNING) if rest else None
    two = GRAPH_STATES.get(str(graph.get("desiredStatus")), State.RUNNING) if graph else None
    if two in OVER and one not in OVER:
        return two  # REST's status follows its own clock; only the desired one is set by whoever ended the pod
    return one or two or State.RUNNING


def cause_of(word: str) -> Cause | None:
    """`lastStatusChange`, the only record of a cause (runpodctl, podstate.go); compared in small letters."""
    text = word.lower()
    if "outbid" in text:
        return Cause.PREEMPTED
    if "by user" in text and "rented" not in text:
        return Cause.USER
    if TAKEN.search(text):
        return Cause.PREEMPTED
    return Cause.FAILED if "by runpod" in text else None


def hourly_of(own: Ours, rest: Mapping[str, Any], graph: Mapping[str, Any]) -> float:
    """USD per hour: the pod's own price, 0 while stopped, and its disk beside it.

    Whether RunPod's price holds the container disk is not documented; it is added, so that nothing is missed.
    """
    told = (number(graph.get("costPerHr")), number(rest.get("cost")))
    return next((usd for usd in told if usd is not None and usd > 0), own.price) + own.disk


def _iso(text: Any) -> float | None:
    with contextlib.suppress(ValueError, TypeError):
        at = datetime.fromisoformat(str(text))
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    return None


def _date(word: str) -> float | None:
    """The moment in `Outbid: Fri Jul 12 2024 15:14:40 GMT-0400 (Eastern Daylight Time)`, seconds since the epoch."""
    found = DATE.search(word)
    if found is None:
        return None
    month = MONTHS.find(found["month"]) // 3 + 1
    return _iso(f"{found['year']}-{month:02}-{int(found['day']):02}T{found['time']}{found['zone']}")
