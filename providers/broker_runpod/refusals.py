"""What RunPod's refusals mean. Its words vary, so they are matched loosely; what nobody knows stays as it came.

GraphQL tells errors with HTTP 200 and null data (runpod-python #21), or with 400 where the document is not valid
(runpodctl #156). REST v2 tells them as RFC 9457 problems; its reference gives 400 two meanings, "no capacity" and "a
rule was broken", which only the text tells apart (POST /v2/pods).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from broker.errors import (
    Ambiguous,
    AuthFailed,
    InvalidRequest,
    NoCapacity,
    NotFound,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    RateLimited,
)
from broker.refusal import FAULT
from broker.rest import RETRY_AFTER

NAME = "runpod"
HOW_TO_KEY = "broker check runpod takes a key; keys are made at https://console.runpod.io/user/settings"
NEW_KEY = "broker check runpod --new-key takes another one; keys are made at https://console.runpod.io/user/settings"
RIGHTS = "the key needs read and write access to pods and to api.runpod.io/graphql"
CREDIT = "add credit at https://console.runpod.io/user/billing"
# runpod-python #21, #168, #297; dstack #1740; runpodctl #267.
CAPACITY = re.compile(
    r"no longer any instances|no instances|not enough free gpus|no capacity|out of capacity|insufficient capacity|"
    r"no machines? available|could not be placed|out of stock",
    re.IGNORECASE,
)
# "You need at least $3.59 (current: $3.01, deficit: $0.58)": seen in the field; the rule is an hour's credit.
BALANCE = re.compile(r"you need at least \$|insufficient (balance|credits?|funds)|balance is too low", re.IGNORECASE)
OFTEN = re.compile(r"rate[ _-]?limit|too[ _]many[ _]requests|throttl", re.IGNORECASE)
DENIED = re.compile(r"unauthori[sz]ed|unauthenticated|forbidden|access[ _]denied|invalid api key", re.IGNORECASE)
SPEND = re.compile(r"spend(ing)? (limit|cap)", re.IGNORECASE)
GONE = re.compile(r"pod[ _]not[ _]found", re.IGNORECASE)
# The mutation or its input's type is unknown; not: a field within that input is.
NO_SPOT = re.compile(
    r"(cannot query field|unknown (type|field|mutation)|no (such )?(field|mutation|type))\W+podRentInterruptable|"
    r"podRentInterruptable\w*\W.{0,40}(removed|no longer|deprecated|not (supported|available)|does not exist|unknown)",
    re.IGNORECASE,
)
INVALID = ("GRAPHQL_VALIDATION_FAILED", "GRAPHQL_PARSE_FAILED", "BAD_USER_INPUT")


class Withdrawn(NoCapacity):
    """The API does not know the spot mutation, or does not answer GraphQL at all any more."""


def rest(status: int, data: Any) -> ProviderError | None:
    """An answer with an error status, of either API; None where `broker.rest` knows as much."""
    problem = data if isinstance(data, Mapping) else {}
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return None
    if errors := graph_errors(problem):
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return _denied(_words(errors[0]), str(status))
        known = graph(errors)
        unknown = status >= HTTPStatus.INTERNAL_SERVER_ERROR and type(known) in (ProviderError, ProviderUnavailable)
        return None if unknown else known
    text = str(problem.get("detail") or problem.get("message") or problem.get("error") or "")
    told = {"provider": NAME, "code": _code(status, problem)}
    if status == HTTPStatus.UNAUTHORIZED:
        return AuthFailed(f"RunPod does not take this key: {text or data}", **told, fix=NEW_KEY)
    if status == HTTPStatus.FORBIDDEN:
        return AuthFailed(text or str(data), provider=NAME, code="403", fix=RIGHTS)
    if status == HTTPStatus.PAYMENT_REQUIRED or BALANCE.search(text):
        return AuthFailed(text or "the balance does not suffice", **told, fix=CREDIT)
    if SPEND.search(text):
        return QuotaExceeded(text, scope=NAME, **told)
    if status in (HTTPStatus.BAD_REQUEST, HTTPStatus.CONFLICT):
        return (NoCapacity if CAPACITY.search(text) else ProviderError)(text or str(data), **told)
    return None


def graph_errors(answer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """GraphQL's errors in an answer; REST's problems have `errors` too, as plain strings."""
    errors = answer.get("errors")
    return [e for e in errors if isinstance(e, Mapping)] if isinstance(errors, list) else []


def graph(errors: Sequence[Mapping[str, Any]], *, creating: bool = False) -> ProviderError:
    """What the first of GraphQL's errors means; `creating` where a pod may have come of the call all the same."""
    text = _words(errors[0])
    extensions = errors[0].get("extensions")
    code = str(extensions.get("code") or "") if isinstance(extensions, Mapping) else ""
    told = {"provider": NAME, "code": code or text}
    if NO_SPOT.search(text):
        return Withdrawn(f"RunPod's API rents out no spot pods any more: {text}", **told)
    if CAPACITY.search(text):
        return NoCapacity(text, **told)
    if BALANCE.search(text):
        return AuthFailed(text, **told, fix=CREDIT)
    if SPEND.search(text):
        return QuotaExceeded(text, scope=NAME, **told)
    if GONE.search(text) or GONE.search(code):
        return NotFound(text, **told)
    if OFTEN.search(text) or OFTEN.search(code):
        return RateLimited(text, retry_after=RETRY_AFTER, **told)
    if code == "INTERNAL_SERVER_ERROR" or FAULT.search(text):
        return Ambiguous(text, **told) if creating else ProviderUnavailable(text, **told)
    if DENIED.search(code) or DENIED.match(text):
        return _denied(text, told["code"])
    return InvalidRequest(text, **told) if code in INVALID else ProviderError(text, **told)


def _denied(text: str, code: str) -> AuthFailed:
    return AuthFailed(f"RunPod does not take this key: {text}", provider=NAME, code=code, fix=f"{RIGHTS}; {NEW_KEY}")


def _words(error: Mapping[str, Any]) -> str:
    return str(error.get("message") or error)


def _code(status: int, problem: Mapping[str, Any]) -> str:
    """The problem's own title where it says more than its number does."""
    title = str(problem.get("title") or "")
    try:
        usual = HTTPStatus(status).phrase
    except ValueError:
        usual = ""
    return title if title and title.lower() != usual.lower() else str(status)
