"""The verbs that run a task: run and resume."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.cli import completing
from broker.cli.asking import AwakeOption, ContainerOption, YesOption, awake, consent
from broker.cli.offers import EnvOption, InfraOption, PriceOption, SpotOption
from broker.cli.screen import OutputLost, Screen, Usage
from broker.cli.still import tell_still

if TYPE_CHECKING:
    from broker.cli.follow import Follower, Interrupts
    from broker.config import Config
    from broker.job import Job
    from broker.planning import Plan
    from broker.task import Task

HANDED_OVER = 130
LEAVE = "SIGINT or SIGTERM hands it to a broker in the background"


def run_verb(
    screen: Screen,
    task: Annotated[
        list[str],
        typer.Argument(
            metavar="TASK",
            help="A task file, a bundled task's name, or -- and a command.",
            autocompletion=completing.tasks,
        ),
    ],
    yes: YesOption = False,
    detach: Annotated[
        bool, typer.Option("-d", "--detach", help="Return at once; a background broker goes on.")
    ] = False,
    env: EnvOption = None,
    spot: SpotOption = None,
    max_price: PriceOption = None,
    infra: InfraOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and stop there.")] = False,
    gpu: Annotated[str | None, typer.Option("--gpu", metavar="GPU[:N]", help="Of a command: its GPUs.")] = None,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", metavar="FOLDER", help="Of a command: the folder that it saves to.")
    ] = None,
    cpus: Annotated[float | None, typer.Option("--cpus", metavar="N", help="Of a command: at least.")] = None,
    memory: Annotated[float | None, typer.Option("--memory", metavar="GIB", help="Of a command: at least.")] = None,
    disk: Annotated[float | None, typer.Option("--disk", metavar="GIB", help="Of a command: its disk.")] = None,
    image: Annotated[str | None, typer.Option("--image", metavar="IMAGE", help="Of a command: its container.")] = None,
    setup: Annotated[str | None, typer.Option("--setup", metavar="SCRIPT", help="Of a command: run before it.")] = None,
    outputs: Annotated[
        list[str] | None, typer.Option("--outputs", metavar="GLOB", help="Of a command: files to keep. Repeatable.")
    ] = None,
    container: ContainerOption = False,
    stay_awake: AwakeOption = False,
) -> int:
    """Run a task to its end, over all moves.

    Shows the plan, asks for consent, launches, follows and reports. Without a task file: broker run --gpu L4
    --checkpoint ckpt -- python train.py runs a command in a copy of this folder.
    """
    from broker.cli.homes import offered_home
    from broker.cli.offers import make_plan, nothing, show_plan
    from broker.cli.trusting import wants_cheaper
    from broker.config import load

    config = load()
    given = {
        "gpu": gpu, "checkpoint": checkpoint, "cpus": cpus, "memory": memory, "disk": disk, "image": image,
        "setup": setup, "outputs": outputs,
    }  # fmt: skip
    if container:
        infra = _in_container(infra)
    wanted = _task_or_command(task, {name: value for name, value in given.items() if value is not None}, spot, env)
    plan = make_plan(screen, wanted, config, spot=spot, max_price=max_price, infra=infra, env=env)
    if container and not any(wish.image for wish in plan.task.resources):
        raise Usage(f"{plan.task.name} names no container image", fix="name one as resources.image_id, or --image")
    if dry_run or not (screen.quiet or screen.json):
        show_plan(screen, plan, talk=not dry_run)
    if not (dry_run or yes or screen.quiet or screen.json) and wants_cheaper(screen, plan, config):
        plan = make_plan(screen, wanted, config, spot=spot, max_price=max_price, infra=infra, env=env)
        show_plan(screen, plan, talk=True)
    if plan.decision.offer is None:
        raise nothing(plan.task.queries, plan.failures, plan.decision)
    if dry_run:
        return 0
    if not consent(screen, plan, yes=yes):
        screen.say("nothing was rented")
        return 1
    if offered_home(screen, plan, config, ask=not yes):
        config = load()
    return _submitted(screen, plan, config, detach=detach, stay_awake=stay_awake)


def _submitted(screen: Screen, plan: Plan, config: Config, *, detach: bool, stay_awake: bool) -> int:
    """Write the job down and drive it, or leave it to a broker in the background; the command's exit code."""
    from broker.job import submit
    from broker.store import open_store

    with screen.waiting("the workdir to be packed and written to the home"):
        store = open_store(config.state, config.database)
        job = submit(plan.task, config=config, store=store, decision=plan.decision)
    with left_in_hands(screen, job, config), awake(screen, asked=stay_awake and not detach):
        if detach:
            return _detached(screen, job, config)
        if screen.quiet:
            screen.line(job.id)
        else:
            leave = "Ctrl-C asks what to do with it" if screen.interactive else LEAVE
            screen.say(f"{job.id} submitted; {leave}")
        return drive(screen, job, config)


def resume_verb(
    screen: Screen,
    name: Annotated[
        str,
        typer.Argument(
            metavar="JOB", help="A job that was stopped, has failed or met a limit.", autocompletion=completing.jobs
        ),
    ],
    yes: YesOption = False,
    detach: Annotated[
        bool, typer.Option("-d", "--detach", help="Return at once; a background broker goes on.")
    ] = False,
    env: EnvOption = None,
    budget: Annotated[
        float | None, typer.Option("--budget", metavar="USD", help="In the task's place; what was spent counts.")
    ] = None,
    deadline: Annotated[
        str, typer.Option("--deadline", metavar="TIME", help="In the task's place: 6h from now, or 07:30.")
    ] = "",
) -> int:
    """Take an ended job up again, from its newest snapshot.

    It is the same job, with the task and the workdir that it was submitted with. Its secrets were forgotten at its end:
    they are taken from --env, the environment or the task's file.
    """
    from broker.cli.offers import pairs
    from broker.config import load
    from broker.job import get

    config = load()
    job = get(name, config=config)
    if job.done and job.status != "succeeded" and not yes and not _again(screen, job):
        screen.say("nothing was rented")
        return 1
    job.resume(pairs(env), budget=budget, deadline=deadline)
    with left_in_hands(screen, job, config):
        if detach:
            return _detached(screen, job, config)
        screen.say(f"{job.id} taken up again")
        return drive(screen, job, config)


def _again(screen: Screen, job: Job) -> bool:
    """Ask before an ended job rents again."""
    from broker.cli.tables import market, price

    with screen.waiting("the providers' answers"):
        offer = job.destination().offer
    what = "wait for an offer: nothing fits now"
    if offer is not None:
        simulated = ", simulated" if offer.simulated else ""
        what = f"rent {offer.where} {market(offer.market)} at {price(offer.hourly)} USD/h{simulated}"
    return screen.ask(f"Take up {job.id} again and {what}?", instead="-y")


def _in_container(infra: list[str] | None) -> list[str]:
    """The place for --container: this computer and no other, where a task that names an image runs in it."""
    if infra and any(place.split("/")[0] != "local" for place in infra):
        raise Usage("--container is for this computer", fix="leave out --infra, or --container")
    return infra or ["local"]


def _task_or_command(
    words: Sequence[str], given: Mapping[str, Any], spot: str | None, env: Sequence[str] | None
) -> str | Task:
    """One word is a task, several or any option of a command are a command."""
    from broker.cli.offers import pairs
    from broker.command import task_of

    if len(words) == 1 and not given:
        return words[0]
    if len(words) == 1 and Path(words[0]).suffix in (".yaml", ".yml"):
        raise Usage(
            f"--{next(iter(given))} is for a command: {words[0]} says itself what it needs",
            fix=f"write it into {words[0]}, or give a command after --",
        )
    return task_of(words, **given, spot=spot, envs=pairs(env))


def _detached(screen: Screen, job: Job, config: Config) -> int:
    from broker import brokers

    with screen.waiting("a background broker to start"):
        brokers.ensure_background(config)
    tell_still(screen, config)
    if screen.json:
        screen.data({"id": job.id, "status": job.status, "home": job.row.home})
    else:
        screen.line(job.id)
        screen.say(f"running in the background; follow it with: broker logs -f {job.id}")
    return 0


def drive(screen: Screen, job: Job, config: Config) -> int:
    """Drive the job from this process, show it, and report; hands it over to the background when interrupted."""
    from broker import brokers
    from broker.cli.follow import Follower, Interrupts

    follower = Follower(screen, job)
    with Interrupts() as interrupts:
        with contextlib.ExitStack() as leaving, brokers.running_to_the_end(config) as live:
            live.drive(job.id)
            with follower.live():
                ended = follow(follower, interrupts, lambda: _asked(screen, job, interrupts))
            leaving.enter_context(screen.waiting("what is under way to finish"))
        if not ended:
            return hand_over(screen, job, config)
    finish(screen, job)
    return 0


@contextlib.contextmanager
def left_in_hands(screen: Screen, job: Job, config: Config) -> Iterator[None]:
    """Whatever ends the block, an active job has a broker: without one its machine goes on billing, unwatched.

    Where the output is what was lost, the exit code is that of a job handed over, or of one that has ended its own.
    """
    from broker import brokers
    from broker.cli.follow import Interrupts

    try:
        yield
    except BaseException as error:
        with Interrupts():
            if not _ended(job):
                brokers.ensure_background(config)
                told = f"{_why(error)}{job.id} goes on in the background; stop it: broker stop {job.id}"
                with contextlib.suppress(OSError):
                    if not job.row.kept:  # its own words say so
                        screen.say(told)
        if isinstance(error, OutputLost):
            raise typer.Exit(job.exit_code if job.row.decided else HANDED_OVER) from error
        raise


def _ended(job: Job) -> bool:
    """Has it? No where even that cannot be read."""
    try:
        return job.refresh().done
    except Exception:  # noqa: BLE001 - another error is on its way already
        return False


def _why(error: BaseException) -> str:
    return f"the output cannot be written ({error.strerror}): " if isinstance(error, OutputLost) else ""


def follow(follower: Follower, interrupts: Interrupts, on_interrupt: Callable[[], bool]) -> bool:
    """Look until the job has ended: True. False when an interrupt asks to leave it."""
    from broker.cli.follow import LOCAL_POLL

    stopping = False
    while not follower.look():
        number = interrupts.wait(LOCAL_POLL)
        if number is None:
            continue
        if number != signal.SIGINT or stopping or not follower.screen.interactive:
            return False
        with follower.paused():
            if not on_interrupt():
                return False
        stopping = follower.job.refresh().row.stopping
    return True


def _asked(screen: Screen, job: Job, interrupts: Interrupts) -> bool:
    """After Ctrl-C: stop the job, leave it, or go on. False leaves it to the background."""
    with interrupts.asking():
        try:
            answer = screen.choose("\nStop the job (s), leave it running in the background (b), or go on (Enter)? ")
        except KeyboardInterrupt:
            screen.say("")
            answer = "b"
    if answer.startswith("s"):
        job.stop()
        screen.say("stopping: the program is asked to save; its machine ends after the last snapshot")
    return not answer.startswith("b")


def hand_over(screen: Screen, job: Job, config: Config) -> int:
    """Leave the job to a broker in the background, and say so."""
    from broker import brokers

    if job.refresh().row.decided:
        finish(screen, job)
        return 0
    with screen.waiting("a background broker to take it over"):
        brokers.ensure_background(config)
    screen.say(f"{job.id} goes on in the background")
    screen.say(f"  follow it: broker logs -f {job.id}     stop it: broker stop {job.id}")
    return HANDED_OVER


def finish(screen: Screen, job: Job) -> None:
    """Report an ended job; raises what its end calls for, which sets the exit code."""
    from broker.cli.timeline import render
    from broker.errors import BrokerError
    from broker.report import shown

    report = shown(job)
    if screen.json:
        screen.data(report.to_json())
    elif not screen.quiet:
        screen.show("")
        for part in render(report, screen.width):
            screen.show(part)
        if job.row.exit_code == 0:
            if kept := job.outputs():
                screen.show(f"outputs  {len(kept)} file{'s' * (len(kept) != 1)}: broker pull {job.id}")
            screen.line(report.outcome)
    try:
        job.check()
    except BrokerError as error:
        error.fix = error.fix or f"broker logs {job.id}"
        raise
