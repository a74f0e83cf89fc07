"""Lambda Cloud's API: its paths, its limits, and what its error codes mean (Lambda Cloud API, OpenAPI 1.10.0)."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
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
)
from broker.keys import Key
from broker.rest import Budget, Rest

NAME = "lambda"
HOW_TO_KEY = "broker check lambda takes a key; keys are made at https://cloud.lambda.ai/api-keys"
NEW_KEY = "broker check lambda --new-key takes another one; keys are made at https://cloud.lambda.ai/api-keys"
# "Generally limited to one request per second", launches to one in 12 seconds. More than that: what counts is when
# a call arrives, and a launch may have to wait for its turn among the requests after it has had its own.
REQUEST, LAUNCH = 1.1, 16.0
UPSTREAM = "provider/"  # a fault of whoever provides to Lambda, whatever its status
ACCOUNT = {"global/invalid-api-key", "global/account-inactive", "global/invalid-address", "global/forbidden"}
BAD = {
    "global/invalid-parameters",
    "instance-operations/launch/file-system-in-wrong-region",
    "global/duplicate",
    "global/conflict",
}


class Api:
    """One account."""

    def __init__(self, base: str, key: Key | None, state: Path, *, pace: float = 1.0) -> None:
        """pace: multiplies the least times between two calls."""
        self.budget = Budget(state, NAME, key, {"request": REQUEST * pace, "launch": LAUNCH * pace})
        self._rest = Rest(NAME, base, key=key, budget=self.budget, explain=explain, how_to_key=HOW_TO_KEY)

    def get(self, path: str) -> Any:
        """What `data` holds."""
        return self._data(self._rest.call("GET", path, lane="request"))

    def instances(self) -> list[Mapping[str, Any]]:
        """GET /instances: every machine of the account."""
        return self._listed("/instances")

    def ssh_keys(self) -> list[str]:
        """GET /ssh-keys: their names."""
        return [str(key.get("name")) for key in self._listed("/ssh-keys")]

    def ssh_key_id(self, name: str) -> str:
        """The id of the SSH key of that name. Raises NotFound."""
        found = next((row.get("id") for row in self._listed("/ssh-keys") if row.get("name") == name), None)
        if not found:
            raise NotFound(f"the account has no SSH key named {name!r}", provider=NAME, code="no ssh key")
        return str(found)

    def types(self) -> Mapping[str, Any]:
        """GET /instance-types: by name."""
        found = self.get("/instance-types")
        if not isinstance(found, Mapping):
            raise self._rest.silent(f"the types came as {type(found).__name__}", "no types")
        return found

    def _listed(self, path: str) -> list[Mapping[str, Any]]:
        """An answer without a list is no answer, or it would read as nothing there."""
        found = self.get(path)
        if not isinstance(found, list) or not all(isinstance(row, Mapping) for row in found):
            raise self._rest.silent(f"{path} came as {str(found)[:200]}", "no list")
        return found

    def post(self, path: str, body: Mapping[str, Any], *, creating: bool = False) -> Any:
        return self._data(self._rest.call("POST", path, body=dict(body), creating=creating, lane="request"), creating)

    def launch(self, body: Mapping[str, Any]) -> str:
        """Launch one machine; its id. Raises Ambiguous where one may exist all the same."""
        if self._rest.key is not None:
            self.budget.wait("launch")
        try:
            made = self.post("/instance-operations/launch", body, creating=True)
        except ProviderUnavailable as error:
            if error.code.startswith(UPSTREAM):
                raise Ambiguous(error.message, provider=NAME, code=error.code) from error
            raise
        except NotFound as error:  # the type, region, image or key that was named
            raise InvalidRequest(error.message, provider=NAME, code=error.code) from error
        ids = made.get("instance_ids") if isinstance(made, Mapping) else None
        if not isinstance(ids, list) or not ids or not ids[0]:
            raise Ambiguous(f"Lambda named no machine: {made!r}", provider=NAME, code="no instance_ids")
        return str(ids[0])

    def _data(self, answer: Any, creating: bool = False) -> Any:
        if not isinstance(answer, Mapping) or "data" not in answer:
            raise self._rest.silent(f"Lambda answered {str(answer)[:300]}", "no data", creating=creating)
        return answer["data"]


def explain(status: int, answer: Any) -> ProviderError | None:
    """What `error.code` means; its texts may change at any time. None for what no code comes with."""
    error = answer.get("error") if isinstance(answer, Mapping) else None
    if not isinstance(error, Mapping) or not error.get("code"):
        return None
    code, text = str(error["code"]), str(error.get("message") or error["code"])
    told = {"provider": NAME, "code": code, "fix": str(error.get("suggestion") or "")}
    if code.endswith("capacity"):
        return NoCapacity(text, **told)
    if code.endswith("quota-exceeded"):
        return QuotaExceeded(text, scope=NAME, **told)
    if code in ACCOUNT:
        return AuthFailed(text, **{**told, "fix": NEW_KEY if code == "global/invalid-api-key" else told["fix"]})
    if code in ("global/object-does-not-exist", "global/not-found"):
        return NotFound(text, **told)
    if code in BAD:
        return InvalidRequest(text, **told)
    if code.startswith(UPSTREAM):
        return ProviderUnavailable(f"lambda did not answer: {text}", **told)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
        return None  # what came of the call is not known
    return ProviderError(text, **told)
