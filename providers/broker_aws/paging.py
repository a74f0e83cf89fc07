"""All pages of an answer, also where the pages are odd: empty ones with a token, a token that comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from broker.errors import ProviderUnavailable


def pages(ask: Callable[..., Any], part: str, **wish: Any) -> Iterator[Any]:
    """The items of `part` over all pages.

    An empty page with a token is not the last one. Raises ProviderUnavailable where a token comes back, after the
    items so far: asking on would never end.
    """
    seen: set[str] = set()
    token = ""
    while True:
        answer = ask(**wish, **({"NextToken": token} if token else {}))
        yield from answer.get(part) or ()
        token = answer.get("NextToken") or ""
        if not token:
            return
        if token in seen:
            raise ProviderUnavailable(
                f"AWS gives the same page of {part} again and again; what came before is used",
                provider="aws",
                code="repeated token",
            )
        seen.add(token)
