"""The safe part of the conformance suite on a user's own account: run, measured, and told without what is private.

Nobody who wrote an adapter could ask its vendor; what an account answers settles what documents left open. The suite's
tests need pytest.
"""

from __future__ import annotations

import linecache
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from broker import registry
from broker.config import Config
from broker.errors import BrokerError, ConfigError, NoCapacity, QuotaExceeded
from broker.meter import Meter, NoMoneyLeft, Tab, ledger_of, metered
from broker.offer import Offer, OfferQuery
from broker.provider import Instance, LaunchesAny, Provider
from broker.redaction import Redactor, private_values

QUERIES = (OfferQuery(disk=10.0), OfferQuery(gpu="4GB+", gpu_count=1, disk=10.0))
"""A plain machine where there is one, else the commonest kind with a card."""
KEPT, DIFFERS, NOT_TRIED = "kept", "differs", "not tried"
SHOWN = 600  # characters of a value


@dataclass(frozen=True, slots=True)
class Verdict:
    """One sentence of the contract. result: kept, differs or not tried. detail: what was seen instead, or why not."""

    number: str
    sentence: str
    result: str
    seconds: float
    detail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Trial:
    """What is to be rented. worst: USD that one machine of it may cost."""

    query: OfferQuery
    offer: Offer
    worst: float


@dataclass(frozen=True, slots=True)
class Verification:
    """What came of it. measured: seconds, by what. left: machines that may still be billed. unanswered: parts of the
    market that did not answer, with what was said."""

    provider: str
    at: float
    offer: Mapping[str, Any]
    verdicts: tuple[Verdict, ...]
    measured: Mapping[str, Mapping[str, float]]
    spent: float
    launches: int
    left: tuple[str, ...] = ()
    unanswered: Mapping[str, str] = field(default_factory=dict)
    software: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.left and not any(verdict.result == DIFFERS for verdict in self.verdicts)


class Account:
    """The other side of a real account: it can be waited for and asked anew; nothing else is done to it."""

    def __init__(self, meter: Meter, reopen: Callable[[], Provider]) -> None:
        self.meter, self.reopen = meter, reopen

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        tab = self.meter.tab
        deadline = tab.clock() + seconds
        while not condition():
            if tab.clock() >= deadline:
                return False
            self.meter.look()  # else a wait for what is surely listed would be all that is measured of the list's lag
            tab.sleep(max(0.0, min(self.meter.pause, deadline - tab.clock())))
        return True

    def reconnect(self) -> Provider:
        return self.reopen()

    def __getattr__(self, name: str) -> Any:
        def cannot(*_: Any, **__: Any) -> Any:
            raise NotImplementedError("nobody does that to a real account")

        return cannot


def meter_of(name: str, config: Config, max_usd: float) -> Meter:
    return metered(registry.get(name, config), Tab(ledger_of(name, config), max_usd))


def choose(meter: Meter) -> Trial:
    """The cheapest thing to rent whose first hour is within the money. Raises ConfigError where there is none."""
    refused: list[Offer] = []
    for query in QUERIES:
        offers = list(meter.offers(query))
        usable = sorted((offer for offer in offers if not offer.blocked), key=lambda offer: offer.hourly)
        if offers and not usable:
            raise ConfigError(f"{meter.name} cannot rent yet: {offers[0].blocked}", fix=f"broker check {meter.name}")
        for offer in usable:
            if max(offer.hourly, meter.worst(offer)) <= meter.tab.max_usd:
                return Trial(query, offer, meter.worst(offer))
        refused += usable[:1]
    if not refused:
        raise ConfigError(f"{meter.name} offers nothing now that could be tried", fix="try again later")
    near = min(refused, key=lambda offer: offer.hourly)
    need = max(near.hourly, meter.worst(near))
    raise ConfigError(
        f"the cheapest offer of {meter.name}, {near.key}, may cost {need:.2f} USD", fix=f"--max-usd {need:.2f}"
    )


def verify(
    meter: Meter, trial: Trial, config: Config, tell: Callable[[Verdict], None], *, only: Collection[str] = ()
) -> Verification:
    """Run every safe test, one after the other, and end what each has rented. tell: hears each verdict.

    only: numbers of sentences, such as L1; all by default. Whatever interrupts it, the caller ends the rest by
    `meter.end_all`. Raises ConfigError without pytest.
    """
    try:
        from broker.testing.conformance import safe_tests
    except ModuleNotFoundError as error:
        raise ConfigError("broker verify needs pytest", fix="pip install 'spotbroker[verify]'") from error
    account = Account(meter, lambda: _anew(meter, config))
    redact = _redactor(config, meter, trial)
    verdicts: list[Verdict] = []
    tests = safe_tests(many=isinstance(meter, LaunchesAny))
    if unknown := set(only) - {_sentence(test)[0] for test in tests}:
        safe = ", ".join(_sentence(test)[0] for test in tests)
        raise ConfigError(f"no safe sentence has the number {', '.join(sorted(unknown))}", fix=f"these are: {safe}")
    for test in tests:
        if only and _sentence(test)[0] not in only:
            continue
        verdict = _run(test, meter, account, trial, redact)
        verdicts.append(verdict)
        tell(verdict)
    return finished(meter, trial, verdicts, config)


def finished(
    meter: Meter, trial: Trial, verdicts: list[Verdict], config: Config, left: tuple[str, ...] = ()
) -> Verification:
    """The whole of it, as far as it went."""
    offer = trial.offer
    redact = _redactor(config, meter, trial)
    shown = {
        "key": offer.key, "hourly": offer.hourly, "disk": trial.query.disk, "gpu": offer.gpu, "cpus": offer.cpus,
        "memory": offer.memory, "trust": str(offer.trust), "worst": trial.worst,
    }  # fmt: skip
    measured = {
        what: {"calls": len(times), "median": sorted(times)[len(times) // 2], "most": max(times)}
        for what, times in sorted(meter.tab.measured.items())
    }
    tab = meter.tab
    return Verification(
        meter.name, time.time(), shown, tuple(verdicts), measured, tab.spent, tab.launches, left,
        {where: redact(said) for where, said in sorted(tab.unanswered.items())}, _software(),
    )  # fmt: skip


def _sentence(test: Callable[..., None]) -> tuple[str, str]:
    """Its number and its text."""
    number, _, sentence = " ".join((test.__doc__ or "").split()).partition(": ")
    return number, sentence


def _run(test: Callable[..., None], meter: Meter, account: Account, trial: Trial, redact: Redactor) -> Verdict:
    """One test, as pytest would call it, and its machines' end."""
    import pytest

    from broker.testing.conformance import ProviderConformance

    number, sentence = _sentence(test)
    known = {"provider": meter, "hand": account, "query": trial.query, "offer": trial.offer}
    wanted = test.__code__.co_varnames[1 : test.__code__.co_argcount]
    began = time.monotonic()

    def verdict(result: str, *detail: str) -> Verdict:
        return Verdict(number, sentence, result, time.monotonic() - began, tuple(redact(line) for line in detail))

    try:
        test(ProviderConformance(), **{name: known[name] for name in wanted})
    except pytest.skip.Exception as skipped:
        found = verdict(NOT_TRIED, str(skipped))
    except NoMoneyLeft as error:
        found = verdict(NOT_TRIED, f"the money does not reach: {error}")
    except (NoCapacity, QuotaExceeded) as error:
        found = verdict(NOT_TRIED, f"it could not be had: {error}")
    except (AssertionError, pytest.fail.Exception) as error:
        found = verdict(DIFFERS, *_seen(error, error.__traceback__))
    except BrokerError as error:
        code = f", code {getattr(error, 'code', '')!r}"
        found = verdict(DIFFERS, f"{type(error).__name__}{code}: {error}", *_seen(error, error.__traceback__))
    except Exception as error:  # noqa: BLE001 - an adapter's bug is a difference too
        found = verdict(DIFFERS, f"{type(error).__name__}: {error}", *_seen(error, error.__traceback__))
    else:
        found = verdict(KEPT)
    if left := meter.end_all():
        names = ", ".join(instance.id for instance in left)
        return Verdict(number, sentence, DIFFERS, found.seconds, (*found.detail, redact(f"did not end: {names}")))
    return found


def _seen(error: BaseException, trace: TracebackType | None) -> list[str]:
    """The line of the suite that did not hold, and what it was about."""
    from broker.testing import conformance

    frames = [frame for frame in traceback.walk_tb(trace) if frame[0].f_code.co_filename == conformance.__file__]
    if not frames:
        return [str(error)]
    frame, line = frames[-1]
    said = [str(error)] if str(error) else []
    lines = [*said, f"did not hold: {linecache.getline(conformance.__file__, line).strip()}"]
    for name, value in frame.f_locals.items():
        if name not in ("self", "provider", "hand", "query", "test") and not callable(value):
            lines.append(f"{name} = {_plain(value)[:SHOWN]}")
    return lines


def _plain(value: Any) -> str:
    if isinstance(value, Instance):
        return (
            f"{value.id} {value.state} {value.market} {value.hourly:.4f} USD/h in {value.region}/{value.zone} "
            f"{value.instance_type} cause={value.cause} launched_at={value.launched_at} ended_at={value.ended_at} "
            f"tags={dict(value.tags)}"
        )
    if isinstance(value, Offer):
        return f"{value.key} {value.hourly:.4f} USD/h"
    return repr(value)


def _anew(meter: Meter, config: Config) -> Provider:
    """The same account as a new process opens it, counted by the same meter."""
    registry.forget(meter.name)
    return metered(registry.get(meter.name, config), meter.tab)


def _redactor(config: Config, meter: Meter, trial: Trial) -> Redactor:
    places = {part for where in meter.tab.unanswered for part in (where, *where.split("/"))}
    return Redactor(private_values(config, meter.name), _public(trial.offer) | places)


def _public(offer: Offer) -> set[str]:
    words = {offer.region, offer.zone, offer.instance_type, offer.gpu or "", offer.key}
    return words | {part for word in words for part in word.replace("/", " ").split()}


def _software() -> dict[str, str]:
    import platform

    from broker import __version__

    return {"spotbroker": __version__, "python": platform.python_version(), "system": platform.system()}


def markdown(verification: Verification) -> str:
    """The report for people."""
    v = verification
    count = {result: sum(x.result == result for x in v.verdicts) for result in (KEPT, DIFFERS, NOT_TRIED)}
    day = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(v.at))
    counted = (
        f"{count[KEPT]} sentences kept, {count[DIFFERS]} differ, {count[NOT_TRIED]} not tried; "
        f"{v.launches} launches, about {v.spent:.4f} USD."
    )
    lines = [
        f"# {v.provider} against its contract",
        "",
        f"{day}, spotbroker {v.software.get('spotbroker')}, Python {v.software.get('python')}. {counted}",
        "",
        f"Rented: `{v.offer['key']}` at {v.offer['hourly']:.4f} USD/h. Keys, accounts, addresses and ids are left out.",
        "",
    ]
    if v.left:
        lines += [f"**May still be billed:** {', '.join(v.left)}", ""]
    lines += ["| sentence | | seconds | |", "|---|---|---|---|"]
    lines += [f"| {x.number} | {x.result} | {x.seconds:.1f} | {x.sentence} |" for x in v.verdicts]
    for x in v.verdicts:
        if x.detail:
            lines += ["", f"## {x.number} {x.result}", "", x.sentence, "", "```text", *x.detail, "```"]
    if v.unanswered:
        lines += ["", "## Not answered", "", *(f"- `{where}`: {said}" for where, said in v.unanswered.items())]
    lines += ["", "## Measured", "", "| | times | median | most |", "|---|---|---|---|"]
    for what, m in v.measured.items():
        lines.append(f"| {what} | {m['calls']:.0f} | {m['median']:.2f} s | {m['most']:.2f} s |")
    return "\n".join(lines) + "\n"


def plain(verification: Verification) -> dict[str, Any]:
    """The report for programs."""
    from dataclasses import asdict

    return {**asdict(verification), "ok": verification.ok}


def write(verification: Verification, folder: Path) -> tuple[Path, Path]:
    """Both reports, named by the provider and the day."""
    import json

    stem = f"verify-{verification.provider}-{time.strftime('%Y%m%d-%H%M', time.gmtime(verification.at))}"
    folder.mkdir(parents=True, exist_ok=True)
    pages = folder / f"{stem}.md", folder / f"{stem}.json"
    pages[0].write_text(markdown(verification), encoding="utf-8")
    pages[1].write_text(json.dumps(plain(verification), indent=1) + "\n", encoding="utf-8")
    return pages
