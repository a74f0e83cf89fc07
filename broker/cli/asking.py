"""What a person is asked before money is spent or much is sent."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from broker.cli.screen import Screen

if TYPE_CHECKING:
    from pathlib import Path

    from broker.planning import Plan

BIG_WORKDIR = 500_000_000
ContainerOption = Annotated[
    bool,
    typer.Option("--container", help="On this computer, in a container of the task's image, by docker or podman."),
]
AwakeOption = Annotated[
    bool, typer.Option("--stay-awake", help="Hold off this computer's sleep meanwhile: a sleeping broker moves no job.")
]
YesOption = Annotated[bool, typer.Option("-y", "--yes", help="Ask nothing.")]


@contextlib.contextmanager
def awake(screen: Screen, *, asked: bool) -> Iterator[None]:
    """Hold off sleep where that was asked for, and say where it cannot be done."""
    from broker.awake import held

    if not asked:
        yield
        return
    with held("a broker drives jobs") as granted:
        if not granted:
            screen.warn("this system does not let its sleep be held off; a job's first move waits until it wakes")
        yield


def consent(screen: Screen, plan: Plan, *, yes: bool) -> bool:
    """Ask before money is spent, and before a big workdir is sent."""
    from broker.cli.tables import market, price, size

    offer = plan.decision.offer
    assert offer is not None
    if plan.size is not None and plan.size > BIG_WORKDIR:
        big = f"the workdir {plan.task.workdir} has {size(plan.size)} to be packed and uploaded"
        if yes:
            screen.warn(f"{big}; .brokerignore can leave things out")
        elif not screen.ask(f"{big[0].upper()}{big[1:]}; .brokerignore can leave things out. Go on?", instead="-y"):
            return False
    if yes:
        return True
    simulated = ", simulated" if offer.simulated else ""
    return screen.ask(
        f"Rent {offer.where} {market(offer.market)} at {price(offer.hourly)} USD/h{simulated}?", instead="-y"
    )


def big_copies(screen: Screen, workdir: Path | None, *, yes: bool) -> bool:
    """Ask before every machine of a rehearsal gets its copy of a big workdir."""
    from broker.cli.tables import size
    from broker.workdir import size as size_of

    big = size_of(workdir) if workdir is not None else 0
    if big <= BIG_WORKDIR or yes:
        return True
    return screen.ask(
        f"The workdir {workdir} has {size(big)}, which every machine gets a copy of. Go on?", instead="-y"
    )
