"""The verb that tries a provider's adapter on the user's own account: verify."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.cli.asking import YesOption
from broker.cli.screen import Screen, Usage
from broker.cli.unanswered import tell_unanswered

if TYPE_CHECKING:
    from broker.config import Config
    from broker.meter import Meter
    from broker.verification import Trial, Verdict, Verification

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INTERRUPTED = 130


def verify_verb(
    screen: Screen,
    provider: Annotated[str, typer.Argument(metavar="PROVIDER", help="Such as vast, runpod, lambda or aws.")],
    max_usd: Annotated[
        float, typer.Option("--max-usd", metavar="USD", min=0, help="What it may cost at the very most.")
    ] = 1.0,
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Where the report goes.")] = Path(),
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="NUMBER", help="This sentence only, such as L1. Repeatable.")
    ] = None,
    clean: Annotated[bool, typer.Option("--clean", help="Only end what earlier runs may have left.")] = False,
    yes: YesOption = False,
) -> int:
    """Try a provider on your own account.

    Does it do what its adapter relies on?

    Rents the cheapest machine a few times, ends each, and writes a report without keys, accounts or addresses.
    """
    from broker import registry
    from broker.config import load
    from broker.verification import choose, meter_of

    config = load()
    if provider not in registry.names():
        raise Usage(f"there is no provider {provider!r}", fix=f"installed are: {', '.join(registry.names())}")
    meter = meter_of(provider, config, max_usd)
    if clean:
        return _clean(screen, meter, everything=True)
    if meter.tab.ledger.open_jobs():
        screen.say("an earlier run may have left something: ending it first")
        if code := _clean(screen, meter, everything=False):
            return code
    with screen.waiting(f"{provider}'s offers"):
        trial = choose(meter)
    tell_unanswered(screen, meter.tab.unanswered)
    if not _agreed(screen, meter, trial, yes=yes):
        screen.say("nothing was rented")
        return 1
    return _verified(screen, meter, trial, config, to, only or ())


def _agreed(screen: Screen, meter: Meter, trial: Trial, *, yes: bool) -> bool:
    """Say what is about to be rented, and ask."""
    from broker.cli.tables import market, price

    offer = trial.offer
    simulated = ", simulated" if offer.simulated else ""
    what = f"{offer.where} {offer.instance_type} {market(offer.market)} at {price(offer.hourly)} USD/h{simulated}"
    screen.say(f"rents {what}, about ten times for some minutes, never for more than ${meter.tab.max_usd:.2f} in all")
    return yes or screen.ask("Go on?", instead="-y")


def _verified(screen: Screen, meter: Meter, trial: Trial, config: Config, to: Path, only: Collection[str]) -> int:
    from broker.verification import finished, verify, write

    verdicts: list[Verdict] = []

    def tell(verdict: Verdict) -> None:
        verdicts.append(verdict)
        sign = {"kept": "✓", "differs": "✗"}.get(verdict.result, "–")
        screen.say(f"{sign} {verdict.number} {verdict.sentence}")
        for line in verdict.detail:
            screen.say(f"     {line}", style="dim")

    code = 0
    try:
        with _interruptible():
            verify(meter, trial, config, tell, only=only)
    except KeyboardInterrupt:
        screen.say("interrupted: ending what was rented; please wait")
        code = INTERRUPTED
    finally:
        with _undisturbed():
            left = meter.end_all(tell=screen.say)
    names = tuple(f"machine {number} of {len(left)}" for number, _ in enumerate(left, 1))
    report = finished(meter, trial, verdicts, config, names)
    pages = write(report, to)
    for instance in left:
        screen.warn(f"{instance.id} did not end and may still be billed: end it in {meter.name}'s console")
    _told(screen, report, pages)
    return code or (0 if report.ok else 1)


def _told(screen: Screen, report: Verification, pages: tuple[Path, Path]) -> None:
    from broker.verification import plain

    if screen.json:
        screen.data({**plain(report), "report": str(pages[0])})
    elif screen.quiet:
        screen.line(str(pages[0]))
    else:
        bad = [verdict.number for verdict in report.verdicts if verdict.result == "differs"]
        said = f"differs: {', '.join(bad)}" if bad else "all that was tried is as the adapter expects"
        not_tried = [verdict.number for verdict in report.verdicts if verdict.result == "not tried"]
        said += f"; not tried: {', '.join(not_tried)}" if not_tried else ""
        screen.line(f"{said}; about ${report.spent:.4f} for {report.launches} launches")
        screen.say(f"the report is {pages[0]}; please read it before you pass it on")


def _clean(screen: Screen, meter: Meter, *, everything: bool) -> int:
    """End what was left; `everything` also what another computer's run has rented."""
    with screen.waiting(f"{meter.name} to confirm that nothing is left"), _undisturbed():
        left = meter.end_all(everything=everything, tell=screen.say)
    for instance in left:
        screen.warn(f"{instance.id} did not end and may still be billed: end it in {meter.name}'s console")
    if not left:
        screen.say(f"nothing is left at {meter.name}")
    return 1 if left else 0


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as Ctrl-C does, so that what was rented is ended."""

    def stop(_number: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in ENDINGS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Nothing but SIGKILL keeps the block from its end: it ends what is billed. Four Ctrl-C within a second do."""
    presses: list[float] = []

    def hold(_number: int, _frame: Any) -> None:
        presses.append(time.monotonic())
        if len(presses) >= 4 and presses[-1] - presses[-4] < 1.0:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, hold) for number in ENDINGS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
