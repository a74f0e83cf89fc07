"""`Resources`: one alternative of what a machine must have."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from broker import gpus, typed
from broker.document import Problem
from broker.errors import ConfigError
from broker.offer import Market, OfferQuery


@dataclass(frozen=True, slots=True)
class Resources:
    """What a machine must have; sizes are at least.

    gpu: a card's canonical name, a family's (`H100` is any of its forms), or a wish for memory such as `24GB+`;
    gpu_count of them. memory and disk: GiB. infra: patterns `provider[/region[/zone]]` with `*`, any of which will do.
    image: a container image. instance_type: the provider's own name of the machine. on_demand: not on spot, though
    other alternatives may be. alone: the machine must be the job's alone; a Task sets it where it has absolute paths.
    """

    gpu: str | None = None
    gpu_count: int = 0
    cpus: float = 0.0
    memory: float = 0.0
    disk: float = 20.0
    infra: tuple[str, ...] = ()
    image: str | None = None
    instance_type: str | None = None
    on_demand: bool = False
    alone: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.infra, str | list):
            object.__setattr__(self, "infra", (self.infra,) if isinstance(self.infra, str) else tuple(self.infra))

    def query(self, markets: Sequence[Market] = (Market.SPOT, Market.ON_DEMAND)) -> OfferQuery:
        """The same wish, as providers are asked it."""
        return OfferQuery(
            gpu=self.gpu,
            gpu_count=self.gpu_count,
            cpus=self.cpus,
            memory=self.memory,
            disk=self.disk,
            infra=self._places(),
            image=self.image,
            markets=(Market.ON_DEMAND,) if self.on_demand else tuple(markets),
            alone=self.alone,
        )

    def _places(self) -> tuple[str, ...]:
        """The patterns, lengthened by the instance type where one is named; see `broker.policy.infra`."""
        if self.instance_type is None:
            return self.infra
        padded = [[*pattern.split("/"), "*", "*"][:3] for pattern in self.infra or ("*",)]
        return tuple("/".join((*parts, self.instance_type)) for parts in padded)

    def named(self) -> Resources:
        """The same with the card's canonical name, one card where none were counted. Raises ValueError."""
        if self.gpu is None:
            return self
        return replace(self, gpu=gpus.wanted(self.gpu), gpu_count=self.gpu_count or 1)

    def problems(self) -> Iterator[Problem]:
        if self.gpu is None and self.gpu_count:
            yield Problem("resources.accelerators", f"{self.gpu_count} GPUs of no name")
        if self.gpu_count < 0:
            yield Problem("resources.accelerators", "the number of GPUs must be above zero")
        for name, value in (("cpus", self.cpus), ("memory", self.memory)):
            if not 0 <= value < math.inf:
                yield Problem(f"resources.{name}", f"must be zero (any) or above, not {value}")
        if not 0 < self.disk < math.inf:
            yield Problem("resources.disk_size", f"must be above zero, not {self.disk}")
        for pattern in self.infra:
            parts = pattern.split("/")
            if not 1 <= len(parts) <= 3 or not all(part and part == part.strip() for part in parts):
                yield Problem("resources.infra", f"must be provider[/region[/zone]] with * for any, not {pattern!r}")
        if self.instance_type is not None and not (self.instance_type.strip() and "/" not in self.instance_type):
            yield Problem("resources.instance_type", f"must be one name without /, not {self.instance_type!r}")


def asked(
    gpu: str | None,
    *,
    cpus: float,
    memory: float,
    disk: float,
    infra: Sequence[str] | str,
    spot: bool | None,
) -> OfferQuery:
    """What is asked of providers in words: `A100:8` for a gpu; spot: only this market. Raises ConfigError."""
    try:
        card, count = gpus.counted(gpu) if gpu else (None, 0)
    except ValueError as error:
        raise ConfigError(str(error), fix="such as A100:8 or 24GB+") from error
    places = (infra,) if isinstance(infra, str) else tuple(infra)
    made = Resources(card, count, cpus, memory, disk, places)
    wrong = [*typed.problems(made)] or [*made.problems()]
    if wrong:
        raise ConfigError(wrong[0].text.removeprefix("resources."))
    return made.query({None: tuple(Market), True: (Market.SPOT,), False: (Market.ON_DEMAND,)}[spot])
