"""Vast's API: its paths, its limits and its words for what went wrong. Every fact is from Vast's API reference unless
this folder's README names another source.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from broker.errors import (
    AuthFailed,
    InvalidRequest,
    NoCapacity,
    NotFound,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    RateLimited,
)
from broker.keys import Key
from broker.rest import RETRY_AFTER, Budget, Rest, number, whole

NAME = "vast"
HOW_TO_KEY = "broker check vast takes a key; keys are made at https://cloud.vast.ai/manage-keys/"
ADD_CREDIT = "add credit at https://cloud.vast.ai/billing/"
PAGE = 25  # rows of a list: the most that the API gives
# Seconds between two calls, per endpoint and key (x-rate-limit of each endpoint). What has no documented limit is kept
# to one call a second.
INTERVALS = {"create": 4.5, "bid": 5.5, "destroy": 3.0, "show": 2.0, "list": 1.0, "account": 1.0}
QUOTAS = {"search": (10, 60.0)}
LIMIT = 10_000  # rows of a search; the API's own limit is not documented
BAD = frozenset({"invalid_args", "invalid_request", "no_ssh_key_for_vm", "label_too_long"})
OFTEN = frozenset({"rate_limit_exceeded", "search_quota_exceeded"})
NO_KEY = ("auth_error", "invalid user key", "session expired")
# Somebody else was quicker, in whatever words.
TAKEN = re.compile(
    r"(not|no longer) (available|rentable)|already (rented|taken)|unavailable|sold out|out of stock|"
    r"(no|insufficient|out of) capacity",
    re.IGNORECASE,
)
# The same, and what a host has no more of what it offered, also where it is called a wrong argument.
SHORT = re.compile(
    r"\bbid\b.{0,40}(too low|below|insufficient|at least|minimum|not win|outbid)|"
    r"\b(machine|host|offer|ask|gpus?)\b.{0,40}(offline|unavailable|not available|no longer|already rented)|"
    r"\bdisk\b.{0,60}(exceed|not enough|insufficient|unavailable|not available|(larger|greater|more) than)|"
    r"not enough (disk|space)",
    re.IGNORECASE,
)
OFFER = re.compile(r"\b(gone|asks?|offers?|machines?|instance type)\b", re.IGNORECASE)
MARGIN = 0.2  # seconds above a threshold: calls do not arrive as evenly as they are sent
# What is read of a contract; columns that nobody knows come back as null.
COLUMNS = (
    "id", "label", "is_bid", "dph_total", "dph_base", "storage_total_cost", "actual_status", "intended_status",
    "cur_state", "next_state", "status_msg", "machine_id", "host_id", "gpu_name", "num_gpus", "gpu_ram", "geolocation",
    "start_date", "end_date",
)  # fmt: skip


class Stillborn(NoCapacity):
    """A contract that was made and does not run, since its bid was too low or its machine was taken. It is billed."""

    def __init__(self, message: str, contract: str, *, code: str) -> None:
        super().__init__(message, provider=NAME, code=code)
        self.contract = contract


class Vast:
    """One account, or none: a search needs no key."""

    def __init__(self, address: str, key: Key | None, state: Path, *, pace: float = 1.0) -> None:
        """pace: multiplies the documented times between two calls."""
        budget = Budget(
            state,
            NAME,
            key,
            {lane: (seconds + MARGIN) * pace for lane, seconds in INTERVALS.items()},
            quotas={lane: (calls, seconds * pace) for lane, (calls, seconds) in QUOTAS.items()},
        )
        self.rest = Rest(NAME, address, key=key, budget=budget, explain=explain, how_to_key=HOW_TO_KEY)

    def search(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """POST /bundles/: the offers that fit. May raise AuthFailed, RateLimited, ProviderUnavailable."""
        found = self._call("POST", "/api/v0/bundles/", body=dict(body), keyless=True, lane="search").get("offers")
        return _rows(found, "offers")

    def gpu_names(self) -> list[str]:
        """GET /gpu_names/unique/: the cards as Vast spells them, with spaces."""
        found = self._call("GET", "/api/v0/gpu_names/unique/", keyless=True, lane="account").get("gpu_names")
        return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []

    def create(self, ask: int, body: Mapping[str, Any]) -> str:
        """PUT /asks/{id}/: rent an offer; the contract's id. Raises Ambiguous without one, Stillborn for a dead one."""
        path = f"/api/v0/asks/{ask}/"
        try:
            said = self._call("PUT", path, body=dict(body), creating=True, lane="create")
        except NotFound as error:
            if error.code == "410" or OFFER.search(error.message):
                raise NoCapacity(error.message, provider=NAME, code=error.code) from error
            raise
        contract = whole(said.get("new_contract"))
        if contract is None:
            raise self.rest.silent(f"the answer to PUT {path} names no contract", "no new_contract", creating=True)
        return str(contract)

    def show(self, contract: str) -> dict[str, Any] | None:
        """GET /instances/{id}/: one contract; None for one that nobody knows, as the API answers with null."""
        found = self._call("GET", f"/api/v0/instances/{contract}/", params={"owner": "me"}, lane="show")
        row = found.get("instances")
        if row is not None and not isinstance(row, dict):
            raise self.rest.silent(f"contract {contract} came as {type(row).__name__}", "not an object")
        return row

    def contracts(self) -> list[dict[str, Any]]:
        """GET /api/v1/instances/: every contract of the account, all pages. Raises rather than leave a part out."""
        rows: dict[Any, dict[str, Any]] = {}
        tokens: set[Any] = set()
        params: dict[str, Any] = {
            "limit": PAGE,
            "order_by": json.dumps([{"col": "id", "dir": "asc"}]),
            "select_cols": json.dumps(COLUMNS),
        }
        while True:
            said = self._call("GET", "/api/v1/instances/", params=params, lane="list")
            page = _rows(said.get("instances"), "instances")
            rows |= {whole(row.get("id")): row for row in page}
            token, total = said.get("next_token"), said.get("total_instances")
            if not token:
                break
            if not page or token in tokens:
                raise self.rest.silent("the list's pages do not end", "pages")
            tokens.add(token)
            params["after_token"] = token
        if None in rows:
            raise self.rest.silent("a contract came without its number", "no id")
        if isinstance(total, int) and len(rows) < total:
            raise self.rest.silent(f"{len(rows)} of {total} contracts came", "pages")
        return list(rows.values())

    def destroy(self, contract: str) -> None:
        """DELETE /instances/{id}/: end a contract and its disk. One that nobody knows is success."""
        try:
            self._call("DELETE", f"/api/v0/instances/{contract}/", lane="destroy")
        except NotFound:
            return

    def change_bid(self, contract: str, price: float) -> None:
        """PUT /instances/bid_price/{id}/: USD per hour of the whole machine. Raises NotFound."""
        body = {"client_id": "me", "price": price}
        self._call("PUT", f"/api/v0/instances/bid_price/{contract}/", body=body, lane="bid")

    def account(self) -> dict[str, Any]:
        """GET /users/current/: whose key it is, and `credit` in USD."""
        return self._call("GET", "/api/v0/users/current/", lane="account")

    def credit(self) -> float:
        """USD left. Raises ProviderUnavailable where the answer does not say."""
        found = number(self.account().get("credit"))
        if found is None:
            raise self.rest.silent("the account's answer names no credit", "no credit")
        return found

    def _call(self, method: str, path: str, **how: Any) -> dict[str, Any]:
        """One call; its answer as an object. A refusal may come as 200 with `success: false`."""
        said = self.rest.call(method, path, **how)
        if said is None:
            return {}
        if not isinstance(said, dict):
            raise self.rest.silent(
                f"{path} came as {type(said).__name__}", "not an object", creating=how.get("creating", False)
            )
        if said.get("success") is False:
            raise explain(400, said) or ProviderError(f"refused: {said}", provider=NAME, code="success: false")
        return said


def explain(status: int, data: Any) -> ProviderError | None:
    """What an answer that is no success means; None where the status says it all."""
    slug, text = _words(data)
    told = f"{status}: {slug}: {text}" if slug else f"{status}: {text}"
    contract = whole(data.get("new_contract")) if isinstance(data, dict) else None
    if contract is not None:
        return Stillborn(told, str(contract), code=slug or str(status))
    if status >= 500 or status < 400 or status == 408:
        return None
    if status == 429 or slug in OFTEN or "too frequent" in text:
        return _too_often(status, slug, text, told)
    if "no_such_ask" in f"{slug} {text}":
        return NoCapacity(told, provider=NAME, code="no_such_ask")
    if slug == "insufficient_credit":
        return AuthFailed(told, provider=NAME, code=slug, fix=ADD_CREDIT)
    if slug == "spend_rate_limit":
        return QuotaExceeded(
            told, scope=NAME, provider=NAME, code=slug, fix="new accounts may spend more after a while"
        )
    taken = status in (400, 409) and (SHORT.search(text) or (slug not in BAD and TAKEN.search(text)))
    # A price of ours is within the documented limits, so that it is the market's least bid that rose.
    if taken or slug == "invalid_price":
        return NoCapacity(told, provider=NAME, code=slug or str(status))
    if status == 401 or any(word in f"{slug} {text}".lower() for word in NO_KEY):  # a search answers 404 to a wrong key
        return AuthFailed(told, provider=NAME, code=slug or str(status), fix=HOW_TO_KEY)
    if status == 403:
        fix = "the key needs the permissions misc, user_read, instance_read and instance_write"
        return AuthFailed(told, provider=NAME, code=slug or "403", fix=fix)
    if status in (404, 410) or slug in ("no_such_instance", "not_found"):
        return NotFound(told, provider=NAME, code=slug or str(status))
    if slug in BAD:
        return InvalidRequest(told, provider=NAME, code=slug or str(status))
    return ProviderError(told, provider=NAME, code=slug or str(status))


def _words(data: Any) -> tuple[str, str]:
    """The error's slug and its text: `error` and `msg`, of which either may be missing, `message`, `detail`, text."""
    if not isinstance(data, dict):
        return "", str(data or "").strip()
    text = next((str(data[name]) for name in ("msg", "message", "detail") if data.get(name)), "")
    return str(data.get("error") or ""), text or str(data)


def _too_often(status: int, slug: str, text: str, told: str) -> ProviderError | None:
    """A 429, or a refusal with its words; None where only the status, or a header, says when to ask again.

    Only some name their threshold; the daily quota of searches comes back at midnight UTC.
    """
    if slug == "search_quota_exceeded":
        left = 86_400.0 - time.time() % 86_400.0
        return RateLimited(told, retry_after=left, provider=NAME, code=slug)
    named = re.search(r"threshold\s*=\s*(\d+(?:\.\d+)?)", text)
    if named is None and status == 429:
        return None
    wait = float(named[1]) + MARGIN if named is not None else RETRY_AFTER
    return RateLimited(told, retry_after=wait, provider=NAME, code=slug or "429")


def _rows(found: Any, what: str) -> list[dict[str, Any]]:
    """The rows of an answer. One without a list is no answer, or it would read as nothing there."""
    if not isinstance(found, Sequence) or isinstance(found, str) or not all(isinstance(row, dict) for row in found):
        raise ProviderUnavailable(f"vast answered without a list of {what}", provider=NAME, code=f"no {what}")
    return list(found)
