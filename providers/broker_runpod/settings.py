"""`[providers.runpod]`: what a user may set."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from broker.errors import ConfigError

API = "https://api.runpod.io"
VARIABLE = "RUNPOD_API_BASE_URL"  # by which the vendor's own client is pointed elsewhere, too
CLOUDS = ("secure", "community")
COMMON = {"key", "patience", "min_interval"}  # read by `broker.keys` and `broker.contract`


@dataclass(frozen=True, slots=True)
class Settings:
    """api: where RunPod's two APIs are; by default what `RUNPOD_API_BASE_URL` says. network_volume: the id of a volume
    that every pod mounts at volume_path; it binds the pods to its data centre. registry: the id of a stored credential
    for private images. clouds: those asked. min_cuda: the least CUDA version of the host's driver, empty for any.
    """

    api: str = API
    network_volume: str = ""
    volume_path: str = "/workspace"
    registry: str = ""
    clouds: tuple[str, ...] = CLOUDS
    min_cuda: str = "12.0"


def read(table: Mapping[str, Any]) -> Settings:
    """The settings of a table. Raises ConfigError that names the key."""
    known = Settings.__dataclass_fields__.keys() | COMMON
    for key in table:
        if key not in known:
            raise ConfigError(f"providers.runpod: unknown key {key!r}", fix=f"known are: {', '.join(sorted(known))}")
    given: dict[str, Any] = {key: value for key, value in table.items() if key not in COMMON}
    for key in ("api", "network_volume", "volume_path", "registry"):
        if not isinstance(given.get(key, ""), str):
            raise ConfigError(f"providers.runpod.{key} must be a string, not {given[key]!r}")
    clouds = given.get("clouds", CLOUDS)
    if isinstance(clouds, str) or not clouds or not set(clouds) <= set(CLOUDS):
        raise ConfigError(
            f"providers.runpod.clouds = {clouds!r}", fix='clouds = ["secure", "community"], or one of them'
        )
    if isinstance(given.get("min_cuda"), float):
        given["min_cuda"] = str(given["min_cuda"])
    if not re.fullmatch(r"(\d+\.\d+)?", str(given.get("min_cuda", ""))) or not isinstance(
        given.get("min_cuda", ""), str
    ):
        raise ConfigError(
            f"providers.runpod.min_cuda = {given['min_cuda']!r}", fix='min_cuda = "12.6"; an empty text takes any host'
        )
    given.setdefault("api", os.environ.get(VARIABLE) or API)
    parts = urlsplit(given["api"])
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise ConfigError(f"providers.runpod.api is no address: {given['api']!r}", fix=f'api = "{API}"')
    return Settings(**{**given, "clouds": tuple(clouds)})
