"""`MachineType`: one EC2 instance type in this project's words, from DescribeInstanceTypes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from broker import gpus
from broker.offer import OfferQuery
from broker_aws.account import Account
from broker_aws.kept import DAY, Kept
from broker_aws.paging import pages
from broker_aws.refusals import translated

GPU_NAMES = ("g*", "p*")  # every family with a GPU is called so; others of these letters are sorted out by their cards
CPU_NAMES = ("c*", "m*", "r*", "t3*")
SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192)
CPU_STEPS = 3  # sizes from the smallest that will do; a larger one costs more and does no better
# For types whose card EC2 calls by its maker only, or by a name that nobody knows.
CARDS = {
    "p2": "K80",
    "p3": "V100",
    "p3dn": "V100-32GB",
    "p4d": "A100",
    "p4de": "A100-80GB",
    "p5": "H100",
    "p5e": "H200",
    "p5en": "H200",
    "p6-b200": "B200",
    "p6-b300": "B300",
    "g3": "M60",
    "g3s": "M60",
    "g4ad": "V520",
    "g4dn": "T4",
    "g5": "A10G",
    "g5g": "T4g",
    "g6": "L4",
    "g6e": "L40S",
    "g6f": "L4",
    "g7": "RTXPRO4500",
    "g7e": "RTXPRO6000-Server",
    "gr6": "L4",
    "gr6f": "L4",
}
ARM_ONLY = {"T4g", "GH200", "GB200", "GB300"}  # cards whose machines run no x86 image
ARM = "arm64"


@dataclass(frozen=True, slots=True)
class MachineType:
    """gpu: the canonical card; gpu_memory and memory in GiB, the former of one card, less than the card's for a share
    of one. markets: `spot`, `on-demand`. old_driver: its card is older than what NVIDIA's open driver knows."""

    name: str
    cpus: float
    memory: float
    arch: str
    markets: tuple[str, ...]
    gpu: str | None = None
    gpu_count: int = 0
    gpu_memory: float = 0.0
    metal: bool = False

    @property
    def old_driver(self) -> bool:
        return self.gpu is not None and family_of(self.gpu) in ("V100", "V100-32GB", "P100", "K80", "M60")

    @property
    def vendor(self) -> str:
        """The card's maker; NVIDIA where nobody knows the card."""
        try:
            return gpus.card(self.gpu or "").vendor
        except ValueError:
            return "NVIDIA"

    def fits(self, query: OfferQuery) -> bool:
        """The sizes and the card that were asked for; another processor only where the card comes with no other, and
        another maker's card, on which nothing of NVIDIA's runs, only where that is asked for."""
        if self.cpus < query.cpus or self.memory < query.memory or self.gpu_count != query.gpu_count:
            return False
        if query.gpu is None:
            return self.gpu is None and self.arch != ARM
        card = self.gpu or ""
        named = family_of(query.gpu) == family_of(card)
        if self.vendor != "NVIDIA" and not named and not query.gpu.lower().startswith(f"{self.vendor.lower()}:"):
            return False
        return gpus.matches(query.gpu, card, self.gpu_memory) and (self.arch != ARM or (named and card in ARM_ONLY))


def family_of(name: str) -> str:
    """A card's family; a name that nobody knows is its own."""
    try:
        return gpus.card(name).family
    except ValueError:
        return name


def read(raw: Any) -> MachineType:
    """One entry of DescribeInstanceTypes."""
    name = raw["InstanceType"]
    gpu, count, memory = _cards(name, raw.get("GpuInfo", {}).get("Gpus") or ())
    archs = raw.get("ProcessorInfo", {}).get("SupportedArchitectures") or ["x86_64"]
    return MachineType(
        name=name,
        cpus=float(raw["VCpuInfo"]["DefaultVCpus"]),
        memory=raw["MemoryInfo"]["SizeInMiB"] / 1024,
        arch="x86_64" if "x86_64" in archs else str(archs[0]),
        markets=tuple(raw.get("SupportedUsageClasses") or ()),
        gpu=gpu,
        gpu_count=count,
        gpu_memory=memory,
        metal=bool(raw.get("BareMetal")),
    )


def _cards(instance_type: str, cards: Sequence[Any]) -> tuple[str | None, int, float]:
    """Card, number and GiB of one. A share of a card counts none in `Count` and one in `LogicalGpuCount`."""
    if not cards:
        return None, 0, 0.0
    first = cards[0]
    count = sum(int(one.get("LogicalGpuCount") or one.get("Count") or 0) for one in cards)
    mib = float(first.get("MemoryInfo", {}).get("SizeInMiB") or 0)
    family = instance_type.partition(".")[0]
    told = str(first.get("Name") or "")
    whole = mib / float(first.get("GpuPartitionSize") or 1.0)
    # EC2 names no form; in its P family the cards that exist in forms are SXM ones.
    forms = ("-SXM", "") if family.startswith("p") else ("",)
    for name in (f"{known}{form}" for known in (told, CARDS.get(family, "")) if known for form in forms):
        try:
            card = gpus.card(name, whole).name
        except ValueError:
            continue
        return card, count, gpus.nominal(mib, card)
    return told or None, count, mib / 1024


class Types:
    """The machine types of each region, kept on disk for a day."""

    def __init__(self, account: Account, kept: Kept) -> None:
        self.account, self.kept = account, kept

    def pool(self, region: str, query: OfferQuery) -> list[MachineType]:
        """The region's types of the kind that is asked for, more than fit: what is learnt of them serves other queries.

        None is bare metal; each is rented as a whole.
        """
        named = named_types(query.infra)
        return [
            machine
            for machine in self._all(region, _filters(query, named), "-".join(named))
            if not machine.metal and (machine.gpu is None) == (query.gpu is None and not query.gpu_count)
        ]

    def _all(self, region: str, filters: list[dict[str, Any]], named: str) -> Iterator[MachineType]:
        def fetch() -> list[dict[str, Any]]:
            with translated(region=region):
                ask = self.account.client("ec2", region).describe_instance_types
                return [asdict(read(raw)) for raw in pages(ask, "InstanceTypes", Filters=filters, MaxResults=100)]

        sizes = "-".join(value for entry in filters[1:] for value in entry["Values"])
        kind = named or ("gpu" if filters[0]["Values"] == list(GPU_NAMES) else f"cpu-{sizes}")
        for data in self.kept.get(f"types-{region}-{kind}", DAY, fetch):
            yield MachineType(**{**data, "markets": tuple(data["markets"])})


def named_types(infra: Sequence[str]) -> tuple[str, ...]:
    """The instance types that every pattern of a query names; none where one leaves them open."""
    ends = [pattern.strip("/").split("/") for pattern in infra]
    if not ends or any(len(parts) < 4 or parts[3] == "*" for parts in ends):
        return ()
    return tuple(sorted({parts[3] for parts in ends}))


def _filters(query: OfferQuery, named: Sequence[str]) -> list[dict[str, Any]]:
    """What DescribeInstanceTypes is asked for. Without a card the types are many, so only the next sizes."""
    if named:
        return [{"Name": "instance-type", "Values": list(named)}]
    if query.gpu is not None or query.gpu_count:
        return [{"Name": "instance-type", "Values": list(GPU_NAMES)}]
    least = max(1, math.ceil(query.cpus))
    sizes = [size for size in SIZES if size >= least][:CPU_STEPS] or [SIZES[-1]]
    return [
        {"Name": "instance-type", "Values": list(CPU_NAMES)},
        {"Name": "vcpu-info.default-vcpus", "Values": [str(size) for size in sizes]},
        {"Name": "current-generation", "Values": ["true"]},
        {"Name": "processor-info.supported-architecture", "Values": ["x86_64"]},
        {"Name": "bare-metal", "Values": ["false"]},
    ]
