"""`check`: what works for this account and what does not, each with its next step. Nothing is rented."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator, Sequence
from typing import Any

from broker.errors import BrokerError
from broker.offer import Market
from broker.provider import Finding
from broker_aws import quotas
from broker_aws.account import Account
from broker_aws.offers import Catalogue
from broker_aws.paging import pages
from broker_aws.refusals import translated
from broker_aws.rights import rights
from broker_aws.settings import Settings

SKEW = 120.0  # seconds that this computer's clock may be off; AWS refuses signatures from 300 on
SHOWN = 4  # regions that one line names


def check(account: Account, catalogue: Catalogue, settings: Settings) -> list[Finding]:
    """Never raises for what it is there to find out."""
    who = _identity(account)
    if not who[0].ok:
        return who
    found = who
    try:
        regions = catalogue.zones.enabled()
    except BrokerError as error:
        return [*found, Finding("regions", False, error.message, error.fix)]
    wanted = [region for region in regions if not settings.regions or region in settings.regions]
    lost = sorted(set(settings.regions) - set(regions))
    fix = f"enable them, or take them out of providers.aws.regions: {', '.join(lost)}" if lost else ""
    found.append(
        Finding("regions", bool(wanted) and not lost, f"{len(wanted)} of {len(regions)} enabled are used", fix)
    )
    for region in wanted[:1]:
        found += rights(account, account.home_region if account.home_region in wanted else region)
    found += _quotas(account, wanted)
    found += _prices(account, catalogue)
    found += _networks(account, catalogue, settings, wanted)
    return found


def _identity(account: Account) -> list[Finding]:
    try:
        with translated():
            before = time.time()
            answer = account.client("sts", account.home_region).get_caller_identity()
            now = (before + time.time()) / 2
    except BrokerError as error:
        return [Finding("identity", False, error.message, error.fix)]
    found = [Finding("identity", True, answer["Arn"])]
    date = answer["ResponseMetadata"]["HTTPHeaders"].get("date", "")
    if skew := _skew(date, now):
        ok = abs(skew) < SKEW
        word = "ahead of" if skew > 0 else "behind"
        text = f"{abs(skew):.0f} s {word} AWS's"
        found.append(
            Finding("clock", ok, text, "" if ok else "set this computer's clock: AWS refuses calls 5 minutes off")
        )
    else:
        found.append(Finding("clock", True, "AWS's time"))
    return found


def _skew(date: str, now: float) -> float:
    """Seconds by which this clock is ahead; less than two cannot be told, as the date has whole seconds."""
    from email.utils import parsedate_to_datetime

    try:
        theirs = parsedate_to_datetime(date).astimezone(dt.UTC).timestamp() + 0.5
    except (TypeError, ValueError):
        return 0.0
    return now - theirs if abs(now - theirs) >= 2 else 0.0


def _quotas(account: Account, regions: Sequence[str]) -> Iterator[Finding]:
    """One line per quota: how many vCPUs where. A quota of nothing anywhere is what stops most new accounts."""
    known = {quota.code: quota for market in Market for quota in quotas.all_of(market)}

    def ask(region: str) -> dict[str, float]:
        with translated(region=region):
            client = account.client("service-quotas", region)
            every = pages(client.list_service_quotas, "Quotas", ServiceCode="ec2", MaxResults=100)
            return {one["QuotaCode"]: float(one["Value"]) for one in every if one["QuotaCode"] in known}

    answers, failures = account.each(regions, ask)
    for region, error in list(failures.items())[:1]:
        fix = error.fix if isinstance(error, BrokerError) else ""
        yield Finding("quotas", False, f"{len(failures)} regions do not say, such as {region}: {error}", fix)
    for code, quota in known.items():
        allowed = {region: values.get(code, 0.0) for region, values in answers.items() if values.get(code, 0.0) > 0}
        if not answers:
            return
        first = sorted(allowed, key=lambda region: (-allowed[region], region))
        text = ", ".join(f"{region} {allowed[region]:g}" for region in first[:SHOWN])
        more = f" and {len(first) - SHOWN} more" if len(first) > SHOWN else ""
        where = regions[0]
        fix = "" if allowed else f"ask for vCPUs: {quotas.page(where, code)}"
        yield Finding(
            f"quota: {quota.name}", bool(allowed), f"vCPUs: {text}{more}" if text else "0 vCPUs anywhere", fix
        )


def _prices(account: Account, catalogue: Catalogue) -> Iterator[Finding]:
    region = account.home_region
    try:
        price = catalogue.prices.disk(region)
        yield Finding("price list", True, f"a GiB of gp3 in {region} costs {price * 730:.3f} USD a month")
    except BrokerError as error:
        yield Finding("price list", False, f"no on-demand prices: {error.message}", error.fix)


def _networks(account: Account, catalogue: Catalogue, settings: Settings, regions: Sequence[str]) -> Iterator[Finding]:
    """Whether machines have a network to go to."""

    def ask(region: str) -> Any:
        if region in settings.subnets:
            return list(catalogue.zones.of(region))
        with translated(region=region):
            wish = [{"Name": "is-default", "Values": ["true"]}]
            return account.client("ec2", region).describe_vpcs(Filters=wish)["Vpcs"]

    answers, failures = account.each(regions, ask)
    without = sorted(region for region, found in answers.items() if not found)
    for region, error in list(failures.items())[:1]:
        fix = error.fix if isinstance(error, BrokerError) else ""
        yield Finding("networks", False, f"{len(failures)} regions do not say, such as {region}: {error}", fix)
    if without:
        fix = f"aws ec2 create-default-vpc --region {without[0]}, or name subnets in [providers.aws]"
        yield Finding("networks", False, f"no default VPC in {', '.join(without)}", fix)
    elif answers and not failures:
        yield Finding("networks", True, f"a network in {len(answers)} regions")
