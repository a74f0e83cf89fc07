"""EC2's quotas of running vCPUs, which one an instance type counts to.

Names and codes as Service Quotas lists them for the service `ec2`; each is regional and counts vCPUs.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass

from broker.offer import Market


@dataclass(frozen=True, slots=True)
class Quota:
    """types: those that count to it, as a pattern with `*` and `[…]`."""

    code: str
    name: str
    types: str


P_ON_DEMAND = Quota("L-417A185B", "Running On-Demand P instances", "p*")
STANDARD = {
    Market.SPOT: Quota("L-34B43A08", "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests", "[acdhimrtz]*"),
    Market.ON_DEMAND: Quota(
        "L-1216C47A", "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances", "[acdhimrtz]*"
    ),
}
FAMILIES: tuple[dict[Market, Quota], ...] = (
    {
        Market.SPOT: Quota("L-C4BD4855", "All P5 Spot Instance Requests", "p[5-9]*"),
        Market.ON_DEMAND: P_ON_DEMAND,
    },
    {
        Market.SPOT: Quota("L-7212CCBC", "All P4, P3 and P2 Spot Instance Requests", "p[2-4]*"),
        Market.ON_DEMAND: P_ON_DEMAND,
    },
    {
        Market.SPOT: Quota("L-3819A6DF", "All G and VT Spot Instance Requests", "[gv]*"),
        Market.ON_DEMAND: Quota("L-DB2E81BA", "Running On-Demand G and VT instances", "[gv]*"),
    },
)


def of(instance_type: str, market: Market) -> Quota:
    for quotas in FAMILIES:
        if fnmatch.fnmatchcase(instance_type, quotas[market].types):
            return quotas[market]
    return STANDARD[market]


def all_of(market: Market) -> tuple[Quota, ...]:
    """Every quota of that market, without repeats."""
    return tuple(dict.fromkeys(quotas[market] for quotas in (*FAMILIES, STANDARD)))


def page(region: str, code: str) -> str:
    """Where a person asks for more."""
    return f"https://{region}.console.aws.amazon.com/servicequotas/home/services/ec2/quotas/{code}"
