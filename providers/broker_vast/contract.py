"""A contract as Vast lists it, read as an instance: its state, and why it stopped.

A contract has three words of its state: `intended_status` is what its user wants, `cur_state` where the contract is,
`next_state` where it goes; `actual_status` is the container's. An interruptible one that was outbid says `stopped` in
all of the first three, exactly as one that its user stopped: no field tells these apart. What does is that we never
stop a contract and write down which we destroy, that the account has credit, and that the host's end has not come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from broker.offer import Market
from broker.provider import Cause, Instance, State
from broker.rest import number
from broker_vast.api import NAME
from broker_vast.label import decode
from broker_vast.offers import card_name, region_of, type_of, zone_of

MESSAGE = 300  # characters of a message that are told on
BROKEN = ("oci runtime create failed", "error response from daemon")  # in status_msg: it will never start


def instance_of(
    row: Mapping[str, Any], *, now: float, destroyed_at: float | None, paid: Callable[[], bool | None]
) -> Instance | None:
    """None for a contract that is not ours by its label.

    destroyed_at: when we asked for its end, None where we did not. paid: has the account credit left, None where that
    cannot be known; asked only where it decides.
    """
    tags = decode(row.get("label"))
    if tags is None:
        return None
    state, cause = _state(row, now, destroyed_at, paid)
    return Instance(
        provider=NAME,
        id=str(row["id"]),
        state=state,
        market=Market.SPOT if row.get("is_bid") else Market.ON_DEMAND,
        hourly=hourly(row),
        tags=tags,
        region=region_of(row.get("geolocation")),
        zone=zone_of(row.get("host_id")),
        instance_type=type_of(
            row.get("machine_id"), row.get("num_gpus"), card_name(str(row.get("gpu_name")), _number(row, "gpu_ram"))
        ),
        cause=cause,
        launched_at=_number(row, "start_date") or None,
        ended_at=_ended(row, destroyed_at, now) if state is State.TERMINATED else None,
        word=_word(row) if cause is Cause.FAILED else "",
    )


def hourly(row: Mapping[str, Any]) -> float:
    """USD per hour while it runs, disk included; 0 where the row does not say."""
    total, cards = _number(row, "dph_total"), _number(row, "dph_base")
    if total > 0:
        return total
    return cards + max(0.0, _number(row, "storage_total_cost")) if cards > 0 else 0.0


def at_rest(row: Mapping[str, Any]) -> bool:
    """Is it stopped, and meant to stay so? An outbid contract looks the same, until its bid wins again."""
    return all(row.get(name) == "stopped" for name in ("cur_state", "intended_status", "next_state"))


def _state(
    row: Mapping[str, Any], now: float, destroyed_at: float | None, paid: Callable[[], bool | None]
) -> tuple[State, Cause | None]:
    actual, current = row.get("actual_status"), row.get("cur_state")
    if current == "unloaded":
        return State.TERMINATED, Cause.BROKER if destroyed_at is not None else None
    if destroyed_at is not None:
        return State.STOPPING, Cause.BROKER
    waits = current == "stopped" and actual in ("stopped", "exited")  # for its turn on the cards
    if at_rest(row) or (waits and row.get("is_bid")):
        return State.STOPPED, _why(row, now, paid)
    if actual == "exited":
        return State.STOPPED, Cause.FAILED
    if actual in (None, "created", "loading"):
        message = str(row.get("status_msg") or "").lower()
        return (State.STOPPED, Cause.FAILED) if any(word in message for word in BROKEN) else (State.PENDING, None)
    if actual == "stopped":
        return State.STOPPED, None
    # `unknown` and `offline` say that Vast does not hear the host. That is no end: our own beats tell whether it lives.
    return State.RUNNING, None


def _why(row: Mapping[str, Any], now: float, paid: Callable[[], bool | None]) -> Cause | None:
    """Why a contract rests that we did not end."""
    end = _number(row, "end_date")
    if end and end <= now:
        return Cause.PREEMPTED  # the host's end is no failure of the job, which goes on elsewhere
    credit = paid()
    if credit is None:
        return None
    if not credit:
        return Cause.FAILED
    return Cause.PREEMPTED if row.get("is_bid") else Cause.USER


def _word(row: Mapping[str, Any]) -> str:
    """Why a contract failed: Vast's own message, such as of an image that cannot be had."""
    if at_rest(row):
        return "the account has no credit left"
    return str(row.get("status_msg") or "its container has ended").strip()[:MESSAGE]


def _ended(row: Mapping[str, Any], destroyed_at: float | None, now: float) -> float | None:
    """When we asked for its end, else the end of its host's offer where that has come; None where nobody says."""
    started = _number(row, "start_date")
    at = destroyed_at if destroyed_at is not None else _number(row, "end_date")
    return max(at, started) if 0 < at <= now else None


def _number(row: Mapping[str, Any], name: str) -> float:
    return number(row.get(name)) or 0.0
