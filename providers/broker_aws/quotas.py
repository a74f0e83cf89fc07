"""EC2's quotas of running vCPUs, which one an instance type counts to.

Names and codes as Service Quotas lists them for the service `ec2`; each is regional and counts vCPUs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from broker.offer import Market


@dataclass(frozen=True, slots=True)
class Quota:
    code: str
    name: str


STANDARD = {
    Market.SPOT: Quota("L-34B43A08", "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests"),
    Market.ON_DEMAND: Quota("L-1216C47A", "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances"),
}
# The pattern fits an instance type's beginning; the first that fits counts.
FAMILIES: tuple[tuple[str, dict[Market, Quota]], ...] = (
    (
        r"p([5-9]|\d\d)",
        {
            Market.SPOT: Quota("L-C4BD4855", "All P5 Spot Instance Requests"),
            Market.ON_DEMAND: Quota("L-417A185B", "Running On-Demand P instances"),
        },
    ),
    (
        r"p\d",
        {
            Market.SPOT: Quota("L-7212CCBC", "All P4, P3 and P2 Spot Instance Requests"),
            Market.ON_DEMAND: Quota("L-417A185B", "Running On-Demand P instances"),
        },
    ),
    (
        r"(gr?|vt)\d",
        {
            Market.SPOT: Quota("L-3819A6DF", "All G and VT Spot Instance Requests"),
            Market.ON_DEMAND: Quota("L-DB2E81BA", "Running On-Demand G and VT instances"),
        },
    ),
)


def of(instance_type: str, market: Market) -> Quota:
    for pattern, quotas in FAMILIES:
        if re.match(pattern, instance_type):
            return quotas[market]
    return STANDARD[market]


def all_of(market: Market) -> tuple[Quota, ...]:
    """Every quota of that market, without repeats."""
    return tuple(dict.fromkeys(quotas[market] for quotas in (*(found for _, found in FAMILIES), STANDARD)))


def page(region: str, code: str) -> str:
    """Where a person asks for more."""
    return f"https://{region}.console.aws.amazon.com/servicequotas/home/services/ec2/quotas/{code}"
