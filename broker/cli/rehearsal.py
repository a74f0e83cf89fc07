"""The verb rehearse: what happens as it happens, the report, and the verdict as the last line."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from broker.cli.asking import ContainerOption, YesOption, big_copies
from broker.cli.follow import Follower, Interrupts
from broker.cli.lines import wrapped
from broker.cli.offers import EnvOption, TaskArgument
from broker.cli.screen import Screen, Usage

if TYPE_CHECKING:
    from rich.text import Text

    from broker.job import Job
    from broker.rehearse import Hand, Rehearsal, Result
    from broker.rehearse.mover import Mover

INTERRUPTED = 130
KEEP = 7 * 86400.0
"""Seconds that a rehearsal's folder is kept for its user to look at."""

TAIL = 12
"""Lines of a failed program's output that are shown."""


class InterruptedRehearsal(Exception):  # noqa: N818 - not an error: its user has ended it
    """The rehearsal was interrupted."""


def rehearse_verb(
    screen: Screen,
    task: TaskArgument,
    preempt: Annotated[
        int | None, typer.Option("--preempt", metavar="N", min=1, help="How often it is taken back; 2 by default.")
    ] = None,
    notice: Annotated[
        list[str] | None,
        typer.Option(
            "--notice",
            metavar="PROVIDER",
            help="Whose notice: aws (120 s), gcp (30), azure (30), runpod (5), vast (none). Repeatable; taken in turn.",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="S", help="Of the moments; a new one by default.")
    ] = None,
    on: Annotated[
        list[str] | None,
        typer.Option(
            "--on",
            metavar="PLACE",
            help="Rent two machines there and move it from one to the other: provider[/region[/zone]]. Repeatable.",
        ),
    ] = None,
    max_usd: Annotated[
        float | None, typer.Option("--max-usd", metavar="USD", help="With --on: what it may cost in all, at most.")
    ] = None,
    env: EnvOption = None,
    container: ContainerOption = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the rehearsal's folder, or with --on its home.")] = False,
    yes: YesOption = False,
) -> int:
    """Try on this computer whether a task survives preemption.

    Its machine is taken back by force, several times; it must go on from its snapshots, and gets a verdict. With --on
    it is tried once on machines that are really rented.
    """
    from broker.cli.offers import pairs, refuse_shared
    from broker.config import load
    from broker.rehearse import NOTICES, Rehearsal
    from broker.task import load as load_task

    for word in notice or ():
        if word not in NOTICES:
            raise Usage(f"no notice is called {word!r}", fix=f"--notice takes one of: {', '.join(NOTICES)}")
    _fitting(on, max_usd, preempt=preempt, seed=seed, notice=notice)
    if on and container:
        raise Usage("--container is for this computer: rented machines use the task's image anyway", fix="leave it out")
    loaded = load_task(task, envs=pairs(env))
    for text in loaded.warnings:
        if on or "workdir" in text:  # what is emulated or ignored matters where something is rented
            screen.warn(text)
    if on and max_usd is not None:
        from broker.cli.rented import show_rented

        return show_rented(screen, loaded, on, max_usd, notice=(notice or [""])[0], keep=keep, yes=yes)
    refuse_shared(loaded)
    notices = tuple(notice or ("aws", "vast"))
    rehearsal = Rehearsal.of(loaded, load(), preemptions=preempt or 2, notices=notices, seed=seed, container=container)
    return show(screen, rehearsal, keep=keep, yes=yes)


def _fitting(
    on: list[str] | None, max_usd: float | None, *, preempt: int | None, seed: int | None, notice: list[str] | None
) -> None:
    """Refuse options that do not go together. Raises Usage."""
    if on and max_usd is None:
        raise Usage("--on rents machines, so it needs a limit", fix="add --max-usd 0.30, or what it may cost at most")
    if not on and max_usd is not None:
        raise Usage("--max-usd is for --on: without it nothing is rented", fix="add --on PROVIDER")
    if max_usd is not None and not 0 < max_usd < float("inf"):
        raise Usage(f"--max-usd must be above zero, not {max_usd:g}", fix="--max-usd 0.30")
    if on and (seed is not None or (preempt or 1) > 1 or len(notice or ()) > 1):
        raise Usage(
            "with --on it is moved once, after its second save",
            fix="leave out --seed, --preempt and all but one --notice",
        )


def show(screen: Screen, rehearsal: Rehearsal, *, keep: bool, yes: bool) -> int:
    """Perform a rehearsal, showing it; returns the verdict's exit code."""
    if not big_copies(screen, rehearsal.task.workdir, yes=yes):
        return 1
    _clear_old(screen, rehearsal.folder.parent)
    _announce(screen, rehearsal)
    with Interrupts() as interrupts:
        try:
            result = rehearsal.perform(lambda phase, job, hand: follow(screen, interrupts, phase, job, hand))
        except InterruptedRehearsal:
            with screen.waiting("the rehearsal's machines to end"):
                rehearsal.end_machines()
            rehearsal.remove()
            screen.say("interrupted: every machine of the rehearsal was ended, nothing was proven")
            return INTERRUPTED
        except BaseException:
            screen.say(f"the rehearsal's folder is kept: {rehearsal.folder}")
            raise
    tell(screen, result)
    if result.verdict.code == 0 and not keep:
        with screen.waiting("the machines' folders to be removed"):
            rehearsal.remove()
    elif rehearsal.folder.exists():
        _kept(screen, rehearsal.folder, result)
    if screen.json:
        screen.data(as_json(result))
    else:
        screen.line(wrapped(result.verdict.text, sys.stdout))
    return result.verdict.code


def _kept(screen: Screen, folder: Path, result: Result) -> None:
    """Where a rehearsal's remains are, how to read them, and how they go."""
    where = shlex.quote(str(folder))
    lines = [("kept", f"{folder}, each machine's disk in local/machines/; a later rehearsal removes it after a week")]
    if (report := result.report or result.baseline) is not None:
        lines.append(("its output", f"SPOTBROKER_STATE={where} broker logs {report.job}"))
    lines.append(("remove it", f"rm -r {where}"))
    for label, text in lines:
        screen.say(f"{label:<10}  {text}")


def _clear_old(screen: Screen, folder: Path) -> None:
    """Remove what rehearsals of long ago have left."""
    old = [path for path in folder.glob("*") if path.is_dir() and time.time() - _touched(path) > KEEP]
    if old:
        with screen.waiting("old rehearsals to be removed"):
            for path in old:
                shutil.rmtree(path, ignore_errors=True)
        screen.say(f"removed {len(old)} kept rehearsal{'s' * (len(old) != 1)} older than a week from {folder}")


def _touched(folder: Path) -> float:
    """When something last changed in a rehearsal's folder, seconds since the epoch; one that runs writes to its own."""
    found = [folder.stat().st_mtime]
    for path in folder.glob("*"):
        with contextlib.suppress(OSError):
            found.append(path.stat().st_mtime)
    return max(found)


def _announce(screen: Screen, rehearsal: Rehearsal) -> None:
    from broker.cli.tables import labelled

    count, wish = rehearsal.preemptions, rehearsal.task.rehearse
    order = [rehearsal.notices[n % len(rehearsal.notices)] for n in range(count)]
    notices = ", ".join(f"{name} {seconds_left(name)}" for name in order)
    lines = [
        ("rehearsing", f"{rehearsal.task.name} on this computer; nothing is rented, money is simulated"),
        ("taken back", f"{count} time{'s' * (count != 1)}, with the notice of: {notices}; seed {rehearsal.seed}"),
    ]
    if rehearsal.compares and wish is not None:
        lines.append(("compared", f"{', '.join(wish.compare)}, with a run without interruption, which comes first"))
    lines += [("note", note) for note in rehearsal.notes]
    screen.say(labelled(lines))


def seconds_left(notice: str) -> str:
    from broker.rehearse import SECONDS

    return f"{SECONDS[notice]} s" if SECONDS[notice] else "none"


@dataclasses.dataclass
class _Watcher(Follower):
    """Shows take-backs between the events, and not the program's output."""

    hand: Hand | Mover | None = None
    told: int = 0

    def look(self) -> bool:
        self._tell_taken()
        return super().look()

    def _tell_taken(self) -> None:
        from broker.cli.follow import event_row
        from broker.cli.tables import clock

        for take in (self.hand.taken if self.hand else [])[self.told :]:
            self.told += 1
            where = f" at step {take.step}" if take.step is not None else ""
            saved = f", newest snapshot step {take.newest_step}" if take.newest_step is not None else ""
            text = f"number {take.number}{where}{saved}; notice as {take.notice}: {seconds_left(take.notice)}"
            self.screen.say(event_row(clock(take.at), take.generation, "TAKE BACK", text, "bold red"))


def follow(screen: Screen, interrupts: Interrupts, phase: str, job: Job, hand: Hand | Mover | None) -> None:
    from broker.cli.follow import LOCAL_POLL

    started = time.monotonic()
    watcher = _Watcher(screen, job, output=False, hand=hand)
    watcher.note = lambda: _note(phase, hand)
    screen.say("")
    screen.say(f"{phase}: {job.id}", style="bold")
    with watcher.live():
        while not watcher.look():
            if interrupts.wait(LOCAL_POLL) is not None:
                raise InterruptedRehearsal
    screen.say(f"{phase}: {job.status} after {time.monotonic() - started:.0f} s", style="bold")
    if job.status == "failed":
        show_tail(screen, job)


def _note(phase: str, hand: Hand | Mover | None) -> str:
    return phase if hand is None else f"taken back {len(hand.taken)}/{hand.count}"


def show_tail(screen: Screen, job: Job) -> None:
    """The last lines of a failed program."""
    from broker.errors import HomeError
    from broker.output import Output, shown

    try:
        lines = Output(job).last(job.placements(), TAIL, final=True)
    except HomeError:
        return
    for _, line in lines:
        screen.say(f"  │ {shown(line)}")


def tell(screen: Screen, result: Result) -> None:
    """The report on stdout, above the verdict."""
    from broker.cli.timeline import render

    if screen.json or screen.quiet:
        return
    screen.show("")
    if result.report is not None:
        for part in render(result.report, screen.width):
            screen.show(part)
        screen.show("")
    for check in result.verdict.checks:
        if check.text != result.verdict.why:  # that is the last line
            screen.show(_check(check.good, check.text))
    for note in result.notes:
        screen.show(f"  note: {note}")
    if result.verdict.advice:
        screen.show("\nwhat to change:")
    for line in result.verdict.advice:
        screen.show(f"→ {line}")
    if result.verdict.checks and result.limit is None:
        screen.show(f"seed {result.seed}: the same moments again with --seed {result.seed}")
        screen.show("")


def _check(good: bool, text: str) -> Text:
    from rich.text import Text

    line = Text("✓ " if good else "✗ ", style="green" if good else "red")
    line.append(text, style="default")
    return line


def as_json(result: Result) -> dict[str, object]:
    verdict = result.verdict
    return {
        "verdict": verdict.text,
        "exit_code": verdict.code,
        "seed": result.seed,
        "checks": [{"good": c.good, "text": c.text} for c in verdict.checks],
        "advice": list(verdict.advice),
        "notes": list(result.notes),
        "max_usd": result.limit,
        "spent": result.spent,
        "taken": [dataclasses.asdict(t) for t in result.taken],
        "differences": [dataclasses.asdict(d) for d in result.differences],
        "report": result.report.to_json() if result.report else None,
        "baseline": result.baseline.to_json() if result.baseline else None,
    }
