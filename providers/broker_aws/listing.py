"""Machines as EC2 lists them: state, cause and notice of each that carries our tag, in every enabled region."""

from __future__ import annotations

import datetime as dt
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from broker.errors import AuthFailed, InvalidRequest, NotFound, ProviderUnavailable
from broker.offer import Market
from broker.provider import TAG_INSTALLATION, Cause, Instance, Notice, State
from broker_aws.account import Account
from broker_aws.launching import ENDED, foreign_tags, hourly_of
from broker_aws.offers import NOTICE
from broker_aws.paging import pages
from broker_aws.refusals import DENIED, NAME, translated

STATES = {
    "pending": State.PENDING,
    "running": State.RUNNING,
    "shutting-down": State.STOPPING,
    "stopping": State.STOPPING,
    "stopped": State.STOPPED,
    "terminated": State.TERMINATED,
}
# Codes of StateReason, EC2 API reference. What the account's own side ended is told apart by our tag.
PREEMPTED = ("Server.SpotInstanceTermination", "Server.SpotInstanceShutdown")
BY_USER = ("Client.UserInitiatedShutdown", "Client.UserInitiatedHibernate")
BY_ITSELF = "Client.InstanceInitiatedShutdown"
# EC2 User Guide, "Instance terminates immediately": Client.InternalError.
DISK_KEY = "mostly this account may not use the KMS key that its EBS encryption by default names"
MARKED = {"marked-for-termination": "terminate", "marked-for-stop": "stop", "marked-for-hibernation": "hibernate"}
REASON_TIME = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")


def listed(account: Account, region: str) -> list[Instance]:
    """One region's machines: one call and its pages, and one more for notices where a spot machine runs.

    No id is asked for, so that a machine which EC2 does not know yet is only missing; should EC2 speak of one
    nevertheless, or refuse a token of its own, the list is unknown, and not empty.
    """
    try:
        return _listed(account, region)
    except (NotFound, InvalidRequest) as error:
        raise ProviderUnavailable(error.message, provider=NAME, code=error.code) from error


def _listed(account: Account, region: str) -> list[Instance]:
    with translated(region=region):
        client = account.client("ec2", region)
        wish = {"Filters": [{"Name": "tag-key", "Values": [TAG_INSTALLATION]}], "MaxResults": 1000}
        found = [
            read(raw, region)
            for reservation in pages(client.describe_instances, "Reservations", **wish)
            for raw in reservation["Instances"]
        ]
    if any(one.market is Market.SPOT and one.alive for one in found):
        notices = _notices(client, region)
        found = [replace(one, notice=notices.get(one.id)) if one.alive else one for one in found]
    return found


def _notices(client: Any, region: str) -> dict[str, Notice]:
    """None where this account may not ask: the machines stand all the same, and their guests see the notices."""
    try:
        with translated(region=region):
            return noticed(client, [{"Name": "status-code", "Values": list(MARKED)}])
    except AuthFailed as error:
        if error.code not in DENIED:
            raise
        return {}


def noticed(client: Any, filters: Iterable[Mapping[str, Any]]) -> dict[str, Notice]:
    """Instance id → the notice on it, from the status of its spot request."""
    found: dict[str, Notice] = {}
    wish = {"Filters": list(filters), "MaxResults": 1000}
    for request in pages(client.describe_spot_instance_requests, "SpotInstanceRequests", **wish):
        status = request.get("Status", {})
        kind = MARKED.get(status.get("Code", ""))
        if kind is not None and request.get("InstanceId"):
            at = status["UpdateTime"].timestamp() if status.get("UpdateTime") else time.time()
            found[request["InstanceId"]] = Notice(at=at, ends_at=at + NOTICE, kind=kind)
    return found


def read(raw: Any, region: str) -> Instance:
    """One entry of DescribeInstances, or of RunInstances' answer."""
    tagged = {tag["Key"]: tag["Value"] for tag in raw.get("Tags") or ()}
    zone = raw.get("Placement", {}).get("AvailabilityZone", "")
    state = STATES.get(raw.get("State", {}).get("Name", ""), State.PENDING)
    launched = raw["LaunchTime"].timestamp() if raw.get("LaunchTime") else None
    cause = None if state in (State.PENDING, State.RUNNING) else _cause(raw, tagged)
    return Instance(
        provider=NAME,
        id=raw["InstanceId"],
        state=state,
        market=Market.SPOT if raw.get("InstanceLifecycle") == "spot" else Market.ON_DEMAND,
        hourly=hourly_of(tagged, raw.get("InstanceType", ""), zone),
        tags=foreign_tags(tagged),
        region=region,
        zone=zone,
        instance_type=raw.get("InstanceType", ""),
        cause=cause,
        launched_at=launched,
        ended_at=_ended(raw, launched) if state is State.TERMINATED else None,
        word=_word(raw) if cause is Cause.FAILED else "",
    )


def _cause(raw: Any, tagged: Mapping[str, str]) -> Cause | None:
    code = raw.get("StateReason", {}).get("Code", "")
    if code in PREEMPTED:
        return Cause.PREEMPTED
    if code in BY_USER:
        return Cause.BROKER if ENDED in tagged else Cause.USER
    if code == BY_ITSELF:
        return Cause.SELF
    return Cause.FAILED if code else None


def _word(raw: Any) -> str:
    """EC2's own words for a machine that failed, and what they mean where they say too little."""
    told = raw.get("StateReason", {})
    text = str(told.get("Message") or told.get("Code") or "")
    return f"{text}; {DISK_KEY}" if told.get("Code") == "Client.InternalError" else text


def _ended(raw: Any, launched: float | None) -> float | None:
    """The moment that the reason of the last change names; it has whole seconds only. None where it names none."""
    named = REASON_TIME.search(raw.get("StateTransitionReason") or "")
    if named is None:
        return None
    at = dt.datetime.strptime(named[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=dt.UTC).timestamp()
    return max(at, launched or at)
