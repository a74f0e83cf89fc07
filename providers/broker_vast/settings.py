"""What a user can set in `[providers.vast]`, checked by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import urlsplit

from broker.errors import ConfigError

TABLE = "[providers.vast]"
API = "https://console.vast.ai"
COMMON = ("key", "patience", "min_interval")  # read by `broker.keys` and `broker.contract`


@dataclass(frozen=True, slots=True)
class Settings:
    """api: where the API is, without its path. verified: only hosts that Vast verified. reliability: the least, 0-1.

    bid_margin: how much above the least bid is bid, as a share of it. min_cuda: the least CUDA version of the host's
    driver, 0 for any. pace: multiplies the least times between two calls; above 1 where other programs use the same
    key or address.
    """

    api: str = API
    verified: bool = True
    reliability: float = 0.95
    bid_margin: float = 0.05
    min_cuda: float = 12.0
    pace: float = 1.0


def read(table: Mapping[str, Any]) -> Settings:
    """The settings in a provider's table. Raises ConfigError that names the key."""
    known = [entry.name for entry in fields(Settings)]
    for key in table:
        if key not in known and key not in COMMON:
            raise ConfigError(
                f"{TABLE} {key}: there is no such setting", fix=f"known are: {', '.join(sorted([*known, *COMMON]))}"
            )
    given = {key: CHECKS[key](key, table[key]) for key in known if key in table}
    return Settings(**given)


def _address(key: str, value: Any) -> str:
    parts = urlsplit(value) if isinstance(value, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
        raise ConfigError(f"{TABLE} {key} must be an address such as {API}, not {value!r}")
    return str(value).rstrip("/")


def _truth(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{TABLE} {key} must be true or false, not {value!r}")
    return value


def _number(least: float, most: float) -> Callable[[str, Any], float]:
    def check(key: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise ConfigError(f"{TABLE} {key} must be a number from {least:g} to {most:g}, not {value!r}")
        return float(value)

    return check


CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "api": _address,
    "verified": _truth,
    "reliability": _number(0.0, 1.0),
    "bid_margin": _number(0.0, 10.0),
    "min_cuda": _number(0.0, 100.0),
    "pace": _number(0.001, 1000.0),
}
