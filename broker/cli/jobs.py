"""The verbs about jobs that there are: ps, show, wait, pull, stop."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from broker.cli import completing
from broker.cli.screen import Screen, Usage
from broker.cli.still import tell_still, telling_still

if TYPE_CHECKING:
    from rich.table import Table

    from broker.config import Config
    from broker.job import Job
    from broker.provider import Instance

REFRESH = 2.0
GONE_LIMIT = 900.0
"""Seconds that `stop` waits for machines to be confirmed gone."""

JobArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="A job's id, or its name for the newest.", autocompletion=completing.jobs)
]
SeveralJobs = typer.Argument(metavar="JOB…", help="Ids, or names for the newest.", autocompletion=completing.jobs)


def ps_verb(
    screen: Screen,
    everything: Annotated[bool, typer.Option("-a", "--all", help="Ended jobs too.")] = False,
    watch: Annotated[bool, typer.Option("-w", "--watch", help="Keep the table fresh.")] = False,
    instances: Annotated[bool, typer.Option("--instances", help="What is rented now, as the providers say.")] = False,
) -> None:
    """List jobs: where, how far, at what cost."""
    from broker.config import load
    from broker.job import jobs

    config = load()
    if instances:
        return show_instances(screen, config)
    if watch and not screen.json:
        return _watch(screen, config, everything=everything)
    found = jobs(active=not everything, config=config)
    warn_without_broker(screen, found)
    tell_still(screen, config)
    if screen.quiet:
        for job in found:
            screen.line(job.id)
        return None
    from broker.cli.tables import job_row, jobs_table

    rows = [job_row(job, time.time()) for job in found]
    if screen.json:
        return screen.data(rows)
    if not rows:
        return screen.say("no jobs" if everything else "no job is active; broker ps -a lists ended ones")
    return screen.show(jobs_table(rows, screen.width))


def _watch(screen: Screen, config: Config, *, everything: bool) -> None:
    from rich.live import Live

    from broker.cli.tables import job_row, jobs_table
    from broker.job import jobs

    def fresh() -> Table:
        rows = [job_row(job, time.time()) for job in jobs(active=not everything, config=config)]
        return jobs_table(rows, screen.width)

    if not screen.out.is_terminal:
        raise Usage("ps -w needs a terminal", fix="broker wait JOB, or broker ps -o json")
    try:
        with Live(fresh(), console=screen.out, auto_refresh=False) as live:
            while True:
                live.update(fresh(), refresh=True)
                time.sleep(REFRESH)
    except KeyboardInterrupt:
        return


def show_instances(screen: Screen, config: Config) -> None:
    """Everything that the providers say is rented under our tag. Exit code 1 where one could not be asked."""
    from broker.cli.tables import duration, market, price, table

    with screen.waiting("the providers' lists"):
        found, failures = alive_instances(config)
    for name, problem in failures.items():
        screen.warn(f"{name} could not be asked, something may be rented there: {problem}")
    if screen.json:
        screen.data(
            [
                {
                    "provider": i.provider, "instance": i.id, "state": i.state, "job": i.job, "placement": i.generation,
                    "market": i.market, "hourly": i.hourly, "launched_at": i.launched_at,
                }
                for i in found
            ]
        )  # fmt: skip
    elif screen.quiet:
        for i in found:
            screen.line(i.id)
    elif not found:
        screen.say("nothing is rented" if not failures else "nothing is rented at the others")
    else:
        made = table("PROVIDER", "INSTANCE", "JOB", "#", "STATE", "MARKET", "USD/h", "FOR", right=("#", "USD/h", "FOR"))
        for i in found:
            age = duration(time.time() - i.launched_at) if i.launched_at else "–"
            made.add_row(
                i.provider, i.id, i.job or "–", str(i.generation), str(i.state), market(i.market), price(i.hourly), age
            )
        screen.show(made)
        total = sum(i.hourly for i in found)
        screen.say(f"{len(found)} rented, together {price(total)} USD/h", style="bold")
    if failures:
        raise typer.Exit(1)


def alive_instances(config: Config, *, jobs: Sequence[str] = ()) -> tuple[list[Instance], dict[str, str]]:
    """What is rented under our tag, and which providers could not be asked. jobs: only theirs, if given.

    A provider that was never rented from is no failure where it has no key or no package: nothing of ours is there.
    """
    from broker import registry
    from broker.errors import AuthFailed, BrokerError, ConfigError

    found: list[Instance] = []
    failures: dict[str, str] = {}
    used = _rented_from(config, jobs)
    for name in registry.names():
        if jobs and name not in used:
            continue
        try:
            listed = registry.get(name, config).instances()
        except BrokerError as error:
            if name in used or not isinstance(error, AuthFailed | ConfigError):
                failures[name] = error.message
            continue
        found += [i for i in listed if i.state != "terminated" and (not jobs or i.job in jobs)]
    return found, failures


def _rented_from(config: Config, jobs: Sequence[str]) -> set[str]:
    """The providers that the placements of these jobs name, of all jobs without any."""
    from broker.store import open_store

    store = open_store(config.state, config.database)
    ids = jobs or [row.id for row in store.jobs()]
    return {row.request["offer"]["provider"] for job in ids for row in store.placements(job)}


def show_verb(
    screen: Screen,
    name: JobArgument,
    timeline: Annotated[bool, typer.Option("--timeline", help="Only the timeline of its machines.")] = False,
) -> None:
    """Tell one job's whole story.

    Its machines and why each was chosen, a timeline, the steps lost at each move, and the money.
    """
    from broker.cli.follow import SILENT, event_line
    from broker.cli.timeline import lanes, render
    from broker.job import get
    from broker.report import shown

    job = get(name)
    report = shown(job)
    if screen.json:
        events = [
            {"seq": e.seq, "at": e.at, "placement": e.generation, "kind": e.kind, "text": e.text, "data": dict(e.data)}
            for e in job.events()
        ]
        return screen.data({**report.to_json(), "home": job.row.home, "task": job.row.task, "events": events})
    if screen.quiet:
        return screen.line(job.id)
    if timeline:
        parts = lanes(report, screen.width) if report.stays else ["nothing was rented yet"]
        for drawn in parts:
            screen.show(drawn)
        return None
    for part in render(report, screen.width):
        screen.show(part)
    screen.show("")
    for event in job.events():
        told = event.kind == "warning" and event.text in report.warnings[:5]  # stands above
        if event.kind not in SILENT and event.kind != "snapshot" and not told:
            screen.show(event_line(event))
    screen.show("")
    screen.show(f"home  {job.row.home}")
    if labels := job.row.task.get("labels"):
        screen.show(f"tags  {', '.join(f'{name}={value}' for name, value in labels.items())}")
    if job.row.fix:
        screen.show(f"try   {job.row.fix}")
    return screen.line(report.outcome or report.status)


def wait_verb(
    screen: Screen,
    names: Annotated[list[str], SeveralJobs],
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="TIME", help="Give up after 90 (seconds), 10m or 2h: exit code 101.")
    ] = "",
) -> int:
    """Wait for jobs to end; the exit code is their outcome.

    With several jobs, that of the first one that did not succeed.
    """
    from broker.errors import JobUnfinished
    from broker.job import get

    found = [get(name) for name in names]
    deadline = time.monotonic() + _patience(timeout) if timeout else None
    warn_without_broker(screen, found)
    codes: list[int] = []
    for job in found:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            waiting = screen.waiting(lambda job=job: f"{job.id}, {job.status}")  # type: ignore[misc]
            with telling_still(screen, job.config), waiting:
                job.wait(left)
        except JobUnfinished as error:
            if len(found) == 1:
                raise
            screen.say(error.message)
        codes.append(job.exit_code)
        if not screen.json:
            screen.line(f"{job.id} {job.status}" if not screen.quiet else job.id)
    if screen.json:
        screen.data([{"id": j.id, "status": j.status, "exit_code": j.exit_code, "message": j.message} for j in found])
    failed = [(job, code) for job, code in zip(found, codes, strict=True) if code]
    if failed and failed[0][0].row.decided:
        failed[0][0].check()
    return failed[0][1] if failed else 0


def _patience(text: str) -> float:
    """Seconds; 0 only looks. Raises Usage."""
    from broker import quantity

    try:
        return 0.0 if text.strip() == "0" else quantity.duration(text)
    except ValueError as error:
        raise Usage(f"--timeout {error}", fix="--timeout 90, or --timeout 2h") from error


def warn_without_broker(screen: Screen, jobs: Sequence[Job]) -> None:
    alone = [job for job in jobs if not job.done and not _driven(job)]
    left = [job.id for job in alone if not job.row.kept]
    if kept := [job.id for job in alone if job.row.kept]:
        screen.warn(f"no broker is running here that would see the kept machine of {', '.join(kept)} gone: broker tick")
    if left:
        screen.warn(f"no broker is running here that would move {', '.join(left)}; start one with: broker up")


def _driven(job: Job) -> bool:
    """Does a live broker here look after the job: one that takes all jobs, or the one that began with it?"""
    from broker.locks import gate_of, lock_of

    holder = job.row.claimed_by
    return not gate_of(job.config).free() or (holder is not None and not lock_of(job.config, holder).free())


def pull_verb(
    screen: Screen,
    name: JobArgument,
    to: Annotated[Path | None, typer.Option("--to", metavar="DIR", help="Where to; ./JOB by default.")] = None,
    checkpoint: Annotated[
        bool, typer.Option("--checkpoint", help="The files of its newest snapshot instead of its outputs.")
    ] = False,
) -> None:
    """Download what a job has made.

    That is the files that its task names as outputs. A folder made for them stays behind when a workdir around it is
    packed.
    """
    from broker.job import get
    from broker.workdir import mark_outputs

    job = get(name)
    target = to or Path(job.id)
    fresh, told = not target.exists(), max((event.seq for event in job.events()), default=0)
    with screen.waiting(f"the outputs of {job.id}"):
        paths = job.pull(target, checkpoint=checkpoint)
    for event in job.events(after=told):
        if event.kind == "warning":
            screen.say(event.text)
    if fresh:
        mark_outputs(target)
    if screen.json:
        return screen.data([str(path) for path in paths])
    for path in paths:
        screen.line(str(path))
    return None


def stop_verb(
    screen: Screen,
    names: Annotated[list[str] | None, SeveralJobs] = None,
    everything: Annotated[bool, typer.Option("-a", "--all", help="All active jobs.")] = False,
    now: Annotated[bool, typer.Option("--now", help="Do not let the program save first.")] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="With --all: ask nothing.")] = False,
) -> int:
    """Stop jobs, and verify that nothing of them is left.

    They save first, their machines end, and the provider is asked whether they have.
    """
    from broker import brokers
    from broker.config import load
    from broker.errors import JobUnfinished
    from broker.job import get, jobs

    config = load()
    if bool(names) == everything:
        raise Usage("name the jobs to stop, or all of them", fix="broker stop JOB, or broker stop -a")
    found = jobs(active=True, config=config) if everything else [get(name, config=config) for name in names or ()]
    active = [job for job in found if not job.done]
    if everything and active and not yes:
        listed = ", ".join(job.id for job in active)
        if not screen.ask(f"Stop {len(active)} jobs: {listed}?", instead="-y"):
            return 1
    if everything and not found:
        screen.say("no job is active")
    for job in found:
        if job.done:
            screen.say(f"{job.id} had already ended")
    for job in active:
        job.stop(now=now)
    if active:
        with screen.waiting("a background broker to start"):
            brokers.ensure_background(config)
    for job in active:
        what = "end" if now else "save and end"
        waiting = screen.waiting(lambda job=job, what=what: f"{job.id} to {what}, {job.status}")  # type: ignore[misc]
        try:
            with telling_still(screen, config), waiting:
                job.wait(GONE_LIMIT)
        except JobUnfinished as error:
            # The others, and what the providers list, are of interest all the more.
            screen.warn(error.message)
    return _verify_gone(screen, config, found)


def _verify_gone(screen: Screen, config: Config, found: Sequence[Job]) -> int:
    """Ask the providers themselves whether anything of these jobs is left."""
    ids = [job.id for job in found]
    left, failures = alive_instances(config, jobs=ids) if ids else ([], {})
    for instance in left:
        screen.warn(f"{instance.provider} still lists {instance.id} of {instance.job}: it may still be billing")
    for name, problem in failures.items():
        screen.warn(f"{name} could not be asked whether all is gone: {problem}")
    if screen.json:
        screen.data(
            [
                {"id": j.id, "status": j.status, "spent": j.spent, "left": [i.id for i in left if i.job == j.id]}
                for j in found
            ]
        )
    else:
        for job in found:
            screen.line(job.id if screen.quiet else f"{job.id} {job.status}")
        if found and not left and not failures and all(job.done for job in found):
            screen.say("verified with the provider: nothing of it is left")
    return 1 if left or failures or not all(job.done for job in found) else 0
