"""What works for the user's account at one provider, found out without renting anything: for `broker check`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from broker import identity, registry
from broker.config import Config
from broker.contract import Contract
from broker.errors import AuthFailed, BrokerError, ConfigError
from broker.house import home_findings
from broker.meter import ledger_of
from broker.offer import Offer, OfferQuery
from broker.provider import NO_KEY, Checks, Finding, PartialOffers, Prepaid, TakesKey

QUERIES = (OfferQuery(), OfferQuery(gpu="8GB+", gpu_count=1))
"""A plain machine, then the commonest kind with a card; the first that has offers is enough to see that they come."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """One provider's findings. keyless: it would work with a key, and there is none; how_to_key: where to get one.
    absent: a package that it needs is not installed.

    refused: the findings that failed did so for the user's credentials or settings. simulated: it rents nothing real.
    """

    provider: str
    findings: tuple[Finding, ...]
    keyless: bool = False
    absent: bool = False
    how_to_key: str = ""
    refused: bool = False
    simulated: bool = False

    @property
    def ok(self) -> bool:
        return all(finding.ok for finding in self.findings)


def inspect(name: str, config: Config, *, alone: bool = False) -> Inspection:
    """Look a provider over. Never raises for what is wrong with it: that is a finding.

    alone: nobody looks at the house beside it, so a home in a store of the provider's own is looked at here.
    """
    try:
        contract = registry.get(name, config)
    except ConfigError as error:
        absent = isinstance(error.__cause__, ModuleNotFoundError)
        what = "package" if absent else "settings"
        return Inspection(name, (Finding(what, False, error.message, error.fix),), absent=absent, refused=True)
    how = how_to_key(contract)
    try:
        listed = contract.instances()
    except AuthFailed as error:
        if error.code == NO_KEY:
            what, said = ("key", "no key yet") if how else ("credentials", "none yet")
            told = Finding(what, False, said, how or error.fix or f"broker check {name}")
            return Inspection(name, (told, *_public(contract)), keyless=True, how_to_key=how)
        anew = f"broker check {name} --new-key takes another one"
        fix = f"{anew}; {how.split('; ')[-1]}" if how else error.fix
        refusal = Finding("key" if how else "credentials", False, error.message, fix)
        return Inspection(name, (refusal,), how_to_key=how, refused=True)
    except BrokerError as error:
        if isinstance(error.__cause__, ModuleNotFoundError):
            need = registry.missing(name, error.__cause__)
            found = (Finding("package", False, need.message, need.fix),)
            return Inspection(name, found, absent=True, refused=True)
        return Inspection(name, (Finding("instances", False, error.message, error.fix),), how_to_key=how)
    alive = sum(instance.alive for instance in listed)
    findings = [Finding("instances", True, f"{alive} of ours running" if alive else "none of ours running")]
    if ledger_of(name, config).open_jobs():
        fix = f"broker verify {name} --clean"
        findings.append(Finding("verify", False, "a run of broker verify was cut off and may have left machines", fix))
    findings += _own(contract) if isinstance(contract.adapter, Checks) else _public(contract)
    if "balance" not in {finding.what for finding in findings}:
        findings += _balance(contract)
    if name == identity.GIVER:
        if alone and config.home.startswith("s3:"):
            findings += home_findings(config, rents=True)
        if (profile := identity.finding(config, config.home)) is not None:
            findings.append(profile)
    return Inspection(name, tuple(findings), how_to_key=how, simulated=contract.traits.simulated)


def how_to_key(contract: Contract) -> str:
    """Where the user makes a key for it; empty for a provider that takes none here."""
    return contract.adapter.how_to_key if isinstance(contract.adapter, TakesKey) else ""


def _own(contract: Contract) -> Iterator[Finding]:
    """What the adapter looks at itself."""
    assert isinstance(contract.adapter, Checks)
    try:
        yield from contract.adapter.check()
    except BrokerError as error:
        yield Finding("check", False, error.message, error.fix)
    except Exception as error:  # noqa: BLE001 - an adapter's bug must not hide what the others have to say
        yield Finding("check", False, f"{type(error).__name__}: {error}", "a bug of this provider's adapter: report it")


def _public(contract: Contract) -> Iterator[Finding]:
    """Do offers come? A read that costs nothing, and needs no key where prices are public."""
    offers: list[Offer] = []
    failures: dict[str, str] = {}
    for query in QUERIES:
        try:
            offers += contract.offers(query)
        except PartialOffers as partial:
            offers += partial.offers
            failures |= {where: str(error) for where, error in partial.failures.items()}
        except AuthFailed:
            if not offers:
                return
        except BrokerError as error:
            yield Finding("offers", False, error.message, error.fix)
            return
        if offers:
            break
    for where, text in failures.items():
        yield Finding(f"offers in {where}", False, text)
    least = min((offer.hourly for offer in offers), default=None)
    several = f"{len(offers)} offer{'s' * (len(offers) != 1)}"
    yield Finding("offers", True, f"{several}, from {least:.4f} USD/h" if least is not None else "none now")


def _balance(contract: Contract) -> Iterator[Finding]:
    if not isinstance(contract.adapter, Prepaid):
        return
    try:
        usd = contract.adapter.balance()
    except BrokerError as error:
        yield Finding("balance", False, error.message, error.fix)
        return
    fix = "" if usd > 0 else f"add some in {contract.name}'s console: nothing can be rented without"
    yield Finding("balance", usd > 0, f"${usd:.2f} prepaid", fix)
