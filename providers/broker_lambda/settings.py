"""`[providers.lambda]`: what a user may set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from broker.errors import ConfigError

API = "https://cloud.lambda.ai/api/v1"
COMMON = {"key", "patience", "min_interval"}  # read by `broker.keys` and `broker.contract`


@dataclass(frozen=True, slots=True)
class Settings:
    """api: where Lambda's API is, with its version. ssh_key: the name of the account's SSH key that machines take;
    empty for one that nobody has the private half of. pace: multiplies the least times between two calls; above 1 where
    other programs use the same key.
    """

    api: str = API
    ssh_key: str = ""
    pace: float = 1.0


def read(table: Mapping[str, Any]) -> Settings:
    """The settings of a table. Raises ConfigError that names the key."""
    known = Settings.__dataclass_fields__.keys() | COMMON
    for key in table:
        if key not in known:
            raise ConfigError(f"providers.lambda: unknown key {key!r}", fix=f"known are: {', '.join(sorted(known))}")
    given: dict[str, Any] = {key: value for key, value in table.items() if key not in COMMON}
    for key in ("api", "ssh_key"):
        if not isinstance(given.get(key, ""), str):
            raise ConfigError(f"providers.lambda.{key} must be a string, not {given[key]!r}")
    pace = given.get("pace", 1.0)
    if isinstance(pace, bool) or not isinstance(pace, int | float) or not 0 <= pace <= 100:
        raise ConfigError(f"providers.lambda.pace must be a number from 0 to 100, not {pace!r}")
    parts = urlsplit(given.get("api", API))
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise ConfigError(f"providers.lambda.api is no address: {given['api']!r}", fix=f'api = "{API}"')
    return Settings(**{**given, "pace": float(pace)})
