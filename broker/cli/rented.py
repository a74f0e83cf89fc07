"""`rehearse --on`: what it would cost, the question, and the rehearsal on rented machines for people."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from broker.cli.follow import Interrupts
from broker.cli.lines import wrapped
from broker.cli.rehearsal import INTERRUPTED, InterruptedRehearsal, as_json, follow, seconds_left, tell
from broker.cli.screen import Screen

if TYPE_CHECKING:
    from broker.rehearse.rented import Rented
    from broker.task import Task


def show_rented(
    screen: Screen, task: Task, on: Sequence[str], max_usd: float, *, notice: str, keep: bool, yes: bool
) -> int:
    """Perform a rehearsal on rented machines, showing it; returns the verdict's exit code."""
    from broker.cli.offers import must_be_installed, must_have_provider, refuse_shared
    from broker.config import load
    from broker.rehearse.rented import Rented, adapted

    must_be_installed(screen, [on])
    must_have_provider(adapted(task, on)[0].queries)
    refuse_shared(task, [on])
    config = load()
    with screen.waiting("the providers' answers"):
        rented = Rented.of(task, config, on=on, max_usd=max_usd, notice=notice)
    _announce(screen, rented)
    if not _agreed(screen, rented, yes=yes):
        screen.say("nothing was rented")
        return 1
    with Interrupts() as interrupts:
        try:
            result = rented.perform(lambda phase, job, mover: follow(screen, interrupts, phase, job, mover))
        except InterruptedRehearsal:
            screen.say("interrupted: nothing was proven")
            if rented.job is not None and rented.job.done:
                rented.remove()
            return _gone(screen, rented) or INTERRUPTED
        except BaseException:
            _gone(screen, rented)
            raise
    tell(screen, result)
    left = _gone(screen, rented)
    if result.verdict.code == 0 and not keep:
        rented.remove()
    elif rented.job is not None:
        screen.say(
            f"kept        {rented.job.row.home}/jobs/{rented.job.id}; broker logs {rented.job.id} reads its output"
        )
    if screen.json:
        screen.data(as_json(result))
    else:
        screen.line(wrapped(result.verdict.text, sys.stdout))
    return left or result.verdict.code


def _announce(screen: Screen, rented: Rented) -> None:
    from broker.cli.tables import duration, labelled, market, price

    offer, bounds = rented.plan.decision.offer, rented.bounds
    assert offer is not None
    simulated = ", simulated" if offer.simulated else ""
    shape = f"{offer.gpu}:{offer.gpu_count}, " if offer.gpu else ""
    where = f"{shape}{offer.where} {market(offer.market)} at {price(offer.hourly)} USD/h{simulated}"
    most = (
        f"{rented.max_usd:.2f} USD{simulated} at most: two machines, each of which ends itself after "
        f"{duration(bounds.seconds)}; most rehearsals need a small part of it"
    )
    lines = [
        ("rehearsing", f"{rented.task.name} on {where}"),
        ("moved", f"once, after its second save, with the notice of {rented.notice}: {seconds_left(rented.notice)}"),
        ("costs", most),
        ("home", rented.plan.home),
        *(("note", note) for note in rented.notes),
    ]
    screen.say(labelled(lines))


def _agreed(screen: Screen, rented: Rented, *, yes: bool) -> bool:
    offer = rented.plan.decision.offer
    assert offer is not None
    simulated = ", simulated" if offer.simulated else ""
    question = f"Rent {offer.where} for this, for {rented.max_usd:.2f} USD{simulated} at most?"
    return yes or screen.ask(question, instead="-y")


def _gone(screen: Screen, rented: Rented) -> int:
    """Say what it cost, and prove that nothing of it is left; exit code 1 where something may be."""
    from broker.cli.tables import money
    from broker.errors import BrokerError

    if rented.job is None:
        return 0
    offer = rented.plan.decision.offer
    simulated = offer is not None and offer.simulated
    cost = f"it cost {money(rented.spent(), simulated=simulated)}"
    try:
        left = rented.left()
    except BrokerError as error:
        screen.warn(f"{cost}; whether its machines are gone could not be asked: {error}; broker ps --instances does")
        return 1
    if left:
        names = ", ".join(f"{instance.provider} {instance.id}" for instance in left)
        screen.warn(f"{cost} so far; still there: {names}. A broker in the background goes on ending it")
        return 1
    screen.say(f"{cost}; its machines are gone, by their provider's own list")
    return 0
