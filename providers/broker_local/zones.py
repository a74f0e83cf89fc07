"""What `local` offers: its zones with their simulated prices, and the settings that change them."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker.errors import ConfigError
from broker.offer import Market, Offer, OfferQuery

NAME = "local"
HOURS_PER_MONTH = 730.0
DISK_PRICE = 0.08  # USD per GiB and month, about what a cloud's general purpose disk costs
NOTICE_SECONDS: Mapping[str, float | None] = {"aws": 120.0, "gcp": 30.0, "azure": 30.0, "runpod": 5.0, "vast": None}
COMMON = {"min_interval", "patience"}  # settings of the wrapper that every provider gets
KNOWN = {"root", "zones", "pass_env", "keep_disks", "container", "container_options", "container_run"} | COMMON
ENGINES = ("podman", "docker")
# What an engine of the broker's own user needs to be found and to find its images; its machines have another HOME.
ENGINE_ENVIRONMENT = (
    "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "XDG_RUNTIME_DIR", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF",
    "CONTAINERS_REGISTRIES_CONF", "CONTAINER_HOST",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Zone:
    """One zone. Prices in USD per hour of the whole machine; notice: whose way of taking machines back."""

    name: str
    spot: float | None
    on_demand: float | None
    interruption: float | None = None
    notice: str = "aws"


ZONES = (
    Zone("north", 0.010, 0.030, 0.05, "aws"),
    Zone("south", 0.012, 0.032, 0.10, "gcp"),
    Zone("east", 0.014, 0.031, 0.03, "azure"),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """`[providers.local]`. root: where machines lie. pass_env: names of the broker's variables that machines get.

    engine: what starts a task's container, None where there is none: its command with its options, and those of `run`.
    """

    root: Path
    zones: tuple[Zone, ...] = ZONES
    pass_env: tuple[str, ...] = ()
    keep_disks: bool = False
    engine: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    cpus: int = field(default_factory=lambda: os.cpu_count() or 1)
    memory: float = field(default_factory=lambda: _memory())  # noqa: PLW0108 - defined below

    @property
    def instance_type(self) -> str:
        return f"cpu-{self.cpus}"


def read(settings: Mapping[str, Any], state: Path) -> Settings:
    """Check the settings. Raises ConfigError that names the key."""
    for key in settings:
        if key not in KNOWN:
            raise ConfigError(f"providers.local: unknown key {key!r}", fix=f"known are: {', '.join(sorted(KNOWN))}")
    root = settings.get("root", str(state / NAME))
    if not isinstance(root, str | Path):
        raise ConfigError("providers.local.root must be a path")
    names = settings.get("pass_env", [])
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ConfigError("providers.local.pass_env must be a list of names of variables")
    keep = settings.get("keep_disks", False)
    if not isinstance(keep, bool):
        raise ConfigError("providers.local.keep_disks must be true or false")
    zones = settings.get("zones")
    return Settings(
        root=Path(root).expanduser().absolute(),
        zones=ZONES if zones is None else _zones(zones),
        pass_env=tuple(names),
        keep_disks=keep,
        engine=_engine(settings),
    )


def offers(settings: Settings, query: OfferQuery) -> list[Offer]:
    """Every zone and market that fits. Never a GPU; an image only where the query's `infra` asks for this computer.

    A job that needs a machine of its own fits into a container only: bare, it would share this computer.
    """
    if query.gpu or query.gpu_count or (query.alone and not query.image):
        return []
    if query.image and (settings.engine is None or not any(place.split("/")[0] == NAME for place in query.infra)):
        return []
    boxed = {"engine": told(settings.engine)} if query.image and settings.engine else {}
    if query.cpus > settings.cpus or query.memory > settings.memory:
        return []
    now = time.time()
    return [
        Offer(
            provider=NAME,
            region=zone.name,
            zone=f"{zone.name}-1",
            instance_type=settings.instance_type,
            market=market,
            price=price,
            disk_price=query.disk * DISK_PRICE / HOURS_PER_MONTH,
            cpus=float(settings.cpus),
            memory=settings.memory,
            disk=query.disk,
            interruption=zone.interruption if market is Market.SPOT else 0.0,
            notice=NOTICE_SECONDS[zone.notice] if market is Market.SPOT else None,
            fetched_at=now,
            simulated=True,
            extra={**({"notice": zone.notice} if market is Market.SPOT else {}), **boxed},
        )
        for zone in settings.zones
        for market, price in ((Market.SPOT, zone.spot), (Market.ON_DEMAND, zone.on_demand))
        if price is not None and market in query.markets
    ]


def told(engine: tuple[tuple[str, ...], tuple[str, ...]]) -> dict[str, Any]:
    """The engine as a guest is told of it."""
    environ = {name: os.environ[name] for name in ENGINE_ENVIRONMENT if name in os.environ}
    return {"argv": list(engine[0]), "run": list(engine[1]), "environ": environ}


def _engine(settings: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The engine that is configured, else the first that is found; None where `container` is empty or nothing is."""
    name = settings.get("container")
    if name is not None and name != "" and name not in ENGINES:
        raise ConfigError(
            f"providers.local.container must be one of {', '.join(ENGINES)}, or empty for none, not {name!r}"
        )
    options = []
    for key in ("container_options", "container_run"):
        value = settings.get(key, [])
        if not isinstance(value, list | tuple) or not all(isinstance(word, str) for word in value):
            raise ConfigError(f"providers.local.{key} must be a list of the engine's options")
        options.append(tuple(value))
    found = [shutil.which(each) for each in ([name] if name else ENGINES)] if name != "" else []
    program = next((path for path in found if path), None)
    if name and program is None:
        raise ConfigError(f"providers.local.container: there is no {name} on this computer", fix=f"install {name}")
    return ((program, *options[0]), options[1]) if program else None


def _zones(table: Any) -> tuple[Zone, ...]:
    if not isinstance(table, Mapping) or not table:
        raise ConfigError(
            "providers.local.zones must be a table of zones",
            fix="for example: north = {spot = 0.01, on_demand = 0.03, interruption = 0.05, notice = 'aws'}",
        )
    return tuple(_zone(name, entry) for name, entry in table.items())


def _zone(name: str, entry: Any) -> Zone:
    where = f"providers.local.zones.{name}"
    if not isinstance(name, str) or not name.replace("-", "").isalnum():
        raise ConfigError(f"{where}: a zone's name is made of letters, digits and -")
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{where} must be a table")
    for key in entry:
        if key not in ("spot", "on_demand", "interruption", "notice"):
            raise ConfigError(f"{where}.{key}: unknown key", fix="known are: spot, on_demand, interruption, notice")
    notice = entry.get("notice", "aws")
    if notice not in NOTICE_SECONDS:
        raise ConfigError(f"{where}.notice must be one of {', '.join(NOTICE_SECONDS)}, not {notice!r}")
    zone = Zone(
        name,
        spot=_number(entry, "spot", where),
        on_demand=_number(entry, "on_demand", where),
        interruption=_number(entry, "interruption", where, least=0.0),
        notice=notice,
    )
    if zone.spot is None and zone.on_demand is None:
        raise ConfigError(f"{where} needs a price: spot, on_demand or both (USD per hour)")
    return zone


def _number(entry: Mapping[str, Any], key: str, where: str, *, least: float | None = None) -> float | None:
    value = entry.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{where}.{key} must be a number, not {value!r}")
    enough = value > 0 if least is None else value >= least
    if not enough or value == float("inf"):
        raise ConfigError(f"{where}.{key} must be {'above zero' if least is None else 'zero or more'}, not {value!r}")
    return float(value)


def _memory() -> float:
    """GiB of this computer."""
    try:
        return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
    except (ValueError, OSError):
        return 0.0
