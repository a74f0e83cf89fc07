"""A schedule's line tried as cron will run it, without renting: what it would take, and what it lacks."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.cli.screen import Screen

if TYPE_CHECKING:
    from broker.config import Config
    from broker.planning import Plan
    from broker.timetable import Entry, Timetable

BARE = {"PATH": "/usr/bin:/bin", "SHELL": "/bin/sh"}
"""What cron gives a command besides HOME and LOGNAME (crontab(5))."""
LIMIT = 120.0
WAY = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "AWS_CA_BUNDLE")
"""What a shell may need to reach anything at all."""
HOME = "the home"


def planned(screen: Screen, timetable: Timetable, entry: Entry) -> int:
    """What a run would take now, and what could not be reached; as JSON for whoever compares."""
    from broker.cli.offers import nothing

    plan = _plan(timetable, entry)
    if screen.json:
        screen.data({"takes": _taken(plan), "unusable": unusable(plan, timetable.config)})
        return 0
    if plan.decision.offer is None:
        raise nothing(plan.task.queries, plan.failures, plan.decision)
    screen.line(_taken(plan))
    return 0


def try_bare(screen: Screen, timetable: Timetable, entry: Entry) -> None:
    """Say what the line will do where it has nothing of your shell, and what it will lack."""
    _say_kept(screen, entry)
    with screen.waiting("a trial in cron's environment"):
        here = _unusable_here(timetable, entry)
        try:
            done = _run_bare(entry, timetable.config)
        except subprocess.TimeoutExpired:
            screen.warn(f"tried as cron will run it: no answer within {LIMIT:.0f} s")
            return
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        lines = [line.strip() for line in done.stderr.strip().splitlines() if line.strip()]
        screen.warn(f"tried as cron will run it, it fails: {' '.join(lines[-2:])}")
        return
    for name, why in found["unusable"].items():
        if name not in here:
            screen.warn(f"{name} can be used from here and not from cron, which has nothing of your shell: {why}")
            screen.say(f"  try: {_fix(name, timetable.config)}; then add the schedule again")
        elif name == HOME:
            screen.warn(f"its runs will fail: {why}")
    screen.say(f"tried as cron will run it: {found['takes'] or 'nothing within price now'}")


def try_here(screen: Screen, timetable: Timetable, entry: Entry) -> None:
    """Say what a run would take now, or why it would fail, for `broker up`, which has what its own shell has."""
    from broker.errors import BrokerError

    _say_kept(screen, entry)
    try:
        with screen.waiting("the providers' answers"):
            plan = _plan(timetable, entry)
    except BrokerError as error:
        screen.warn(f"its runs will fail: {error.message}")
        if error.fix:
            screen.say(f"  try: {error.fix}")
        return
    screen.say(f"tried: {_taken(plan) or 'nothing within price now'}")


def _say_kept(screen: Screen, entry: Entry) -> None:
    """Which values cron does not have, and the schedule keeps."""
    names = sorted({name for given in entry.given.values() for name in given})
    if names:
        told = f"kept sealed for its runs, as they are now: {', '.join(names)}"
        screen.say(f"{told}; add the schedule again when they change")


def _run_bare(entry: Entry, config: Config) -> subprocess.CompletedProcess[str]:
    from broker import crontab

    kept = {name: os.environ[name] for name in ("HOME", "LOGNAME") if name in os.environ}
    return subprocess.run(
        [*crontab.command(entry.name, config), "--dry-run", "-o", "json"],
        env={**BARE, **kept}, cwd=Path.home(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=LIMIT, check=False,
    )  # fmt: skip


def _plan(timetable: Timetable, entry: Entry) -> Plan:
    from broker.planning import plan

    now = time.time()
    return plan(timetable.task(entry, now, now), config=timetable.config)


def _taken(plan: Plan) -> str:
    from broker.cli.tables import market, price

    offer = plan.decision.offer
    if offer is None:
        return ""
    return f"it would rent {offer.where} {market(offer.market)} at {price(offer.hourly)} USD/h now"


def unusable(plan: Plan, config: Config) -> dict[str, str]:
    """What cannot be reached or rented from here, each with the reason: providers, and the home."""
    from broker.cli.homes import unreachable
    from broker.policy.decision import Kind

    found = dict(plan.failures)
    usable = {candidate.offer.provider for candidate in plan.decision.ranked}
    for entry in plan.decision.rejected:
        if entry.kind is Kind.UNUSABLE and entry.offer.provider not in usable:
            found.setdefault(entry.offer.provider, entry.reason)
    if problem := unreachable(plan) or _home_problem(plan.home, config):
        found[HOME] = problem
    return found


def _unusable_here(timetable: Timetable, entry: Entry) -> dict[str, str]:
    from broker.errors import BrokerError

    try:
        return unusable(_plan(timetable, entry), timetable.config)
    except BrokerError:
        return {}


def _home_problem(url: str, config: Config) -> str:
    """Why the home of the runs cannot be read from here; empty where it can, or is a folder."""
    from broker.access import own
    from broker.errors import BrokerError
    from broker.home import Home, JobKeys

    if url.startswith("file:"):
        return ""
    try:
        Home(own(config, url), make=False).find(JobKeys("schedule").control)
    except BrokerError as error:
        return f"{url} cannot be read: {error}"
    return ""


def _fix(name: str, config: Config) -> str:
    """How something that the shell's environment opens is opened without it."""
    way = [variable for variable in WAY if variable in os.environ]
    also = f"; and cron has no {_listed(way)}: a line {way[0]}=… at the top of your crontab gives it" if way else ""
    return _opened(name, config) + also


def _opened(name: str, config: Config) -> str:
    prefix = "AWS_" if name == HOME else f"{name.upper().replace('-', '_')}_"
    seen = [variable for variable in sorted(os.environ) if variable.startswith(prefix)]
    told = f" (here {_listed(seen)} open{'s' * (len(seen) == 1)} it)" if seen else ""
    if name == HOME:
        return f"broker home setup writes the home's keys into {config.file}{told}"
    if name == "aws":
        profile = os.environ.get("AWS_PROFILE") or "NAME"
        return f'profile = "{profile}" below [providers.aws] in {config.file}, or aws configure{told}'
    return f"broker check {name} keeps its key where cron finds it{told}"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(names[:3])
