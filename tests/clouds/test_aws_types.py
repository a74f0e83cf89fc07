"""Instance types as DescribeInstanceTypes tells them, those included that EC2 has since, or has in few regions."""

from __future__ import annotations

from typing import Any

import pytest

from broker.offer import OfferQuery
from broker_aws.images import parameters
from broker_aws.machines import MachineType, read
from broker_aws.offers import USAGE

WISHES = (
    "8GB+",
    "amd:8GB+",
    "L4",
    "H100",
    "H100-SXM",
    "A100-80GB",
    "V100",
    "V520",
    "T4g",
    "GB200",
    "RTXPRO6000-Server",
)
USUAL = ("on-demand", "spot")


def machine(name: str, *cards: dict[str, Any], arch: str = "x86_64", usage: tuple[str, ...] = USUAL) -> MachineType:
    return read(
        {
            "InstanceType": name,
            "VCpuInfo": {"DefaultVCpus": 8},
            "MemoryInfo": {"SizeInMiB": 65_536},
            "ProcessorInfo": {"SupportedArchitectures": [arch]},
            "SupportedUsageClasses": list(usage),
            "GpuInfo": {"Gpus": list(cards)},
        }
    )


def card(name: str | None, mib: int, count: int = 1, *, share: float = 1.0) -> dict[str, Any]:
    whole = {"Count": count} if share == 1.0 else {"Count": 0, "LogicalGpuCount": count, "GpuPartitionSize": share}
    return {**({"Name": name} if name else {}), **whole, "MemoryInfo": {"SizeInMiB": mib}}


@pytest.mark.parametrize(
    ("made", "gpu", "count", "fits"),
    [
        (machine("p5.48xlarge", card("NVIDIA", 81_920, 8)), "H100-SXM", 8, {"8GB+", "H100", "H100-SXM"}),
        (machine("p5.48xlarge", card(None, 81_920, 8)), "H100-SXM", 8, {"8GB+", "H100", "H100-SXM"}),
        (machine("p4de.24xlarge", card("NVIDIA", 81_920, 8)), "A100-80GB-SXM", 8, {"8GB+", "A100-80GB"}),
        (machine("p3.2xlarge", card("NVIDIA", 16_384)), "V100-SXM", 1, {"8GB+", "V100"}),
        (machine("g6.12xlarge", card("L4", 22_888, 4)), "L4", 4, {"8GB+", "L4"}),
        (machine("g6.12xlarge", *[card("L4", 22_888)] * 4), "L4", 4, {"8GB+", "L4"}),
        # Shares of a card, told by its name or by its maker only.
        (machine("g6f.large", card("L4", 2_861, share=0.125)), "L4", 1, set()),
        (machine("g6f.4xlarge", card("NVIDIA", 11_444, share=0.5)), "L4", 1, set()),
        (machine("g7f.large", card("RTX PRO Server 6000", 12_288, share=0.125)), "RTXPRO6000-Server", 1, set()),
        (machine("p7.large", card("H100", 40_960, 2, share=0.5)), "H100-SXM", 2, set()),
        # Another maker's, and another processor.
        (machine("g4ad.xlarge", card("Radeon Pro V520", 8_192)), "V520", 1, {"V520", "amd:8GB+"}),
        (machine("g5g.xlarge", card("T4g", 16_384), arch="arm64"), "T4g", 1, {"T4g"}),
        (machine("p6e-gb200.36xlarge", card("GB200", 189_471, 4), arch="arm64"), "GB200", 4, {"GB200"}),
        # What nobody knows is offered for nothing but its name.
        (machine("g9.xlarge", card("Rubin R300", 294_912)), "Rubin R300", 1, set()),
        (machine("p9.xlarge", card(None, 0)), None, 1, set()),
    ],
    ids=lambda value: value.name if isinstance(value, MachineType) else "",
)
def test_what_a_type_is_and_what_it_does_for(made: MachineType, gpu: str | None, count: int, fits: set[str]) -> None:
    assert (made.gpu, made.gpu_count) == (gpu, count)
    assert {wish for wish in WISHES if made.fits(OfferQuery(gpu=wish, gpu_count=count))} == fits


def test_no_image_of_nvidias_boots_another_makers_card() -> None:
    assert parameters(machine("g4ad.xlarge", card("Radeon Pro V520", 8_192))) == ()
    assert "arm64" in parameters(machine("g5g.xlarge", card("T4g", 16_384), arch="arm64"))[0]
    assert "proprietary" in parameters(machine("p3.2xlarge", card("NVIDIA", 16_384)))[0]


def test_what_is_rented_in_blocks_only_is_in_no_market() -> None:
    block = machine("p6e-gb200.36xlarge", card("GB200", 189_471, 4), arch="arm64", usage=("capacity-block",))
    assert not set(USAGE.values()) & set(block.markets)
