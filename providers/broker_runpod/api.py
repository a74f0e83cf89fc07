"""RunPod's two APIs behind one session: GraphQL for prices, spot and causes; REST v2 for the rest.

The key goes into the Authorization header for both. GraphQL would take it in the address too, where proxies log it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from broker.errors import AuthFailed, ProviderError
from broker.keys import Key
from broker.rest import Budget, Rest
from broker_runpod import refusals
from broker_runpod.refusals import HOW_TO_KEY, NAME, NEW_KEY, Withdrawn

# REST v2's limits are 60 calls a minute, 3,000 an hour and 50,000 a day; this keeps the first two, and the third unless
# they are used up all day. GraphQL publishes none.
REST_QUOTA, GRAPH_QUOTA = (50, 60.0), (60, 60.0)
CLOUD_FIELDS = "minimumBidPrice uninterruptablePrice minVcpu minMemory stockStatus availableGpuCounts"
PRICES = f"""query Prices($secure: GpuLowestPriceInput!, $community: GpuLowestPriceInput!) {{
  gpuTypes {{
    id memoryInGb secureCloud communityCloud securePrice communityPrice secureSpotPrice communitySpotPrice
    maxGpuCount maxGpuCountSecureCloud maxGpuCountCommunityCloud
    secureStock: lowestPrice(input: $secure) {{ {CLOUD_FIELDS} }}
    communityStock: lowestPrice(input: $community) {{ {CLOUD_FIELDS} }}
  }}
}}"""
# No more than is read: a field that RunPod drops makes the whole question invalid.
PODS = "query Pods { myself { pods { id name desiredStatus lastStatusChange costPerHr env } } }"
ACCOUNT = "query Account { myself { id clientBalance currentSpendPerHr } }"
RENT_SPOT = """mutation RentSpot($input: PodRentInterruptableInput!) {
  podRentInterruptable(input: $input) { id desiredStatus costPerHr }
}"""
TERMINATE = "mutation Terminate($input: PodTerminateInput!) { podTerminate(input: $input) }"


class Api:
    """Both APIs. One per provider; its session is made at the first call."""

    def __init__(self, base: str, key: Key | None, state: Path) -> None:
        self.key = key
        self._rest = Rest(
            NAME,
            base,
            key=key,
            budget=Budget(state, NAME, key, {}, quotas={"rest": REST_QUOTA, "graphql": GRAPH_QUOTA}),
            explain=refusals.rest,
            how_to_key=HOW_TO_KEY,
        )

    def rest(self, method: str, path: str, **more: Any) -> Any:
        """One call below /v2. Raises what `Rest.call` does, and RunPod's own refusals as `refusals.rest` reads them."""
        return self._rest.call(method, f"/v2{path}", lane="rest", **more)

    def pods(self) -> list[Mapping[str, Any]]:
        """GET /pods. An answer without a list is no answer, or it would read as nothing there."""
        answer = self.rest("GET", "/pods")
        found = answer.get("pods") if isinstance(answer, Mapping) else None
        if not isinstance(found, list):
            raise self.silent("a list without pods came", "no pods")
        return found

    def told(self) -> list[Mapping[str, Any]]:
        """GraphQL's list of pods, as `pods` has REST's."""
        found = self.myself(PODS).get("pods")
        if not isinstance(found, list):
            raise self.silent("GraphQL listed no pods", "no pods")
        return found

    def silent(self, text: str, code: str, *, creating: bool = False) -> ProviderError:
        """As `Rest.silent`."""
        return self._rest.silent(text, code, creating=creating)

    def graph(
        self, query: str, variables: Mapping[str, Any] | None = None, *, creating: bool = False, keyless: bool = False
    ) -> dict[str, Any]:
        """GraphQL's `data`. Raises for an error in the answer, also with HTTP 200.

        Not for an error deep inside, such as one card's stock, where all rows are there; and not where what was to be
        created was.
        An endpoint that is there no more raises Withdrawn: RunPod retires GraphQL early in 2027.
        """
        body = {"query": query, "variables": dict(variables or {})}
        with _retired():
            answer = self._rest.call("POST", "/graphql", body=body, creating=creating, keyless=keyless, lane="graphql")
        if not isinstance(answer, dict):
            raise self.silent(f"GraphQL answered {answer!r}", "no object", creating=creating)
        data = answer.get("data")
        errors = refusals.graph_errors(answer)
        if errors and not (_made(data) if creating else _whole(data)):
            raise refusals.graph(errors, creating=creating)
        if not isinstance(data, dict):
            raise self.silent(f"GraphQL answered {str(answer)[:300]}", "no data", creating=creating)
        return data

    def myself(self, query: str) -> dict[str, Any]:
        """`myself` of a query. Raises AuthFailed where it is null: so GraphQL answers without a valid key (#46)."""
        if self.key is None:
            raise AuthFailed("there is no key for runpod", provider=NAME, code="no key", fix=HOW_TO_KEY)
        found = self.graph(query).get("myself", "")
        if found is not None and not isinstance(found, dict):
            raise self.silent(f"GraphQL's myself came as {found!r}", "no myself")
        if found is None:
            raise AuthFailed("RunPod does not take this key", provider=NAME, code="myself is null", fix=NEW_KEY)
        return found


def _made(data: Any) -> bool:
    """Has something come of a mutation?"""
    return isinstance(data, dict) and any(isinstance(value, dict) and value.get("id") for value in data.values())


def _whole(data: Any) -> bool:
    """Are all top-level fields there, and all rows of lists among them and right below? Errors then concern details."""
    if not isinstance(data, dict) or not data:
        return False
    found = [*data.values()]
    found += [value for field in data.values() if isinstance(field, dict) for value in field.values()]
    return all(None not in value if isinstance(value, list) else value is not None for value in found)


@contextlib.contextmanager
def _retired() -> Iterator[None]:
    try:
        yield
    except ProviderError as error:
        if error.code in ("404", "410"):
            raise Withdrawn("RunPod's GraphQL API is there no more", provider=NAME, code=error.code) from error
        raise
