"""The verbs before anything is rented: init, offers, plan."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.cli import completing
from broker.cli.screen import Screen, Usage
from broker.cli.unanswered import tell_unanswered, unanswered

if TYPE_CHECKING:
    from broker.config import Config
    from broker.offer import OfferQuery
    from broker.planning import Plan
    from broker.policy.decision import Decision
    from broker.task import Task

SpotOption = Annotated[str | None, typer.Option("--spot", metavar="auto|only|never", help="Overrides the task's.")]
PriceOption = Annotated[
    float | None,
    typer.Option("--max-price", metavar="USD", help="Per hour for the whole machine, disk included."),
]
InfraOption = Annotated[
    list[str] | None,
    typer.Option("--infra", metavar="PLACE", help="provider[/region[/zone]], * for any. Repeatable."),
]
EnvOption = Annotated[
    list[str] | None, typer.Option("--env", metavar="KEY=VALUE", help="Set over the task's envs. Repeatable.")
]
TaskArgument = Annotated[
    str,
    typer.Argument(metavar="TASK", help="A task file, or a bundled task's name.", autocompletion=completing.tasks),
]


def init_verb(
    screen: Screen,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A bundled task; none lists them.")] = None,
    to: Annotated[Path | None, typer.Option("--to", metavar="DIR", help="Where to; ./NAME by default.")] = None,
) -> None:
    """Copy a ready-made task into a folder of your own.

    Without NAME, list them.
    """
    from broker import bundled
    from broker.schema import attach

    if name is None:
        if screen.json:
            return screen.data(list(bundled.names()))
        for known in bundled.names():
            screen.line(known)
        return screen.say("copy one with: broker init NAME")
    target = bundled.copy_out(name, to or Path(name))
    attach(target / "task.yaml")
    shown = Path(os.path.relpath(target))
    shown = target if ".." in shown.parts else shown
    if screen.json:
        return screen.data({"name": name, "folder": str(target)})
    screen.line(str(shown))
    screen.say(f"try it without renting anything: broker rehearse {shown}")
    return None


def schema_verb(screen: Screen) -> None:
    """Print the JSON Schema of a task file.

    Editors complete and check a task file by it; `init` puts it beside the task that it copies.
    """
    from broker.schema import FILE

    screen.line(FILE.read_text(encoding="utf-8").rstrip("\n"))


def offers_verb(
    screen: Screen,
    gpu: Annotated[
        str | None,
        typer.Argument(
            metavar="GPU", show_default=False, help="Such as H100, A100:8 or 24GB+; none for machines without."
        ),
    ] = None,
    cpus: Annotated[
        float, typer.Option("--cpus", metavar="N", show_default=False, help="At least so many CPUs.")
    ] = 0.0,
    memory: Annotated[
        float, typer.Option("--memory", metavar="GIB", show_default=False, help="At least so much memory.")
    ] = 0.0,
    disk: Annotated[float, typer.Option("--disk", metavar="GIB", help="The disk that prices include.")] = 20.0,
    infra: InfraOption = None,
    spot: Annotated[bool | None, typer.Option("--spot/--on-demand", help="Only this market.")] = None,
) -> None:
    """Show what can be rented now, the cheapest first."""
    from broker.config import load
    from broker.market import Marketplace
    from broker.policy.shape import fits

    config = load()
    query = asked(gpu, cpus=cpus, memory=memory, disk=disk, infra=infra or (), spot=spot)
    must_be_installed(screen, [query.infra])
    must_have_provider([query])
    with screen.waiting("the providers' answers"):
        book = Marketplace(config).offers([query])
    found = [offer for offer in sorted(book.offers, key=lambda o: (o.hourly, o.key)) if fits(offer, query)]
    for told in book.left_out_words:
        screen.say(told, style="dim")
    if not found:
        raise nothing([query], book.failures)
    tell_unanswered(screen, book.failures)
    if screen.json:
        return screen.data([{**offer.to_json(), "key": offer.key, "hourly": offer.hourly} for offer in found])
    if screen.quiet:
        for offer in found:
            screen.line(offer.key)
        return None
    from broker.cli.tables import offers_table

    screen.show(offers_table(found, screen.width))
    for told in dict.fromkeys(f"{offer.provider}: {offer.blocked}" for offer in found if offer.blocked):
        screen.say(told, style="yellow")
    if any(offer.simulated for offer in found):
        screen.say("local is this computer: its money is simulated", style="dim")
    return None


def plan_verb(
    screen: Screen,
    task: TaskArgument,
    spot: SpotOption = None,
    max_price: PriceOption = None,
    infra: InfraOption = None,
    env: EnvOption = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Show every offer, not the first few.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Show the parts of what finishing costs.")] = False,
) -> None:
    """Show what would be rented for a task, and why.

    Costs nothing and leaves nothing behind.
    """
    from broker.config import load

    planned = make_plan(screen, task, load(), spot=spot, max_price=max_price, infra=infra, env=env)
    show_plan(screen, planned, everything=everything, explain=explain)
    if planned.decision.offer is None:
        raise nothing(planned.task.queries, planned.failures, planned.decision)


def make_plan(
    screen: Screen,
    name: str | Task,
    config: Config,
    *,
    spot: str | None = None,
    max_price: float | None = None,
    infra: Sequence[str] | None = None,
    env: Sequence[str] | None = None,
) -> Plan:
    """Read the task with what the command line sets over it, and ask the market."""
    from broker.planning import plan
    from broker.policy.infra import may_name
    from broker.task import load as load_task

    if spot not in (None, "auto", "only", "never"):
        raise Usage(f"--spot must be auto, only or never, not {spot!r}", fix="--spot auto takes whichever is cheaper")
    task = load_task(name, envs=pairs(env))
    for text in task.warnings:
        screen.warn(text)
    named = [infra] if infra else [wish.infra for wish in task.resources]
    must_be_installed(screen, named)
    must_have_provider(task.queries)
    boxed = all(wish.image for wish in task.resources)
    if not boxed:
        refuse_shared(task, named)
    with screen.waiting("the providers' answers"):
        planned = plan(task, spot=spot, max_price=max_price, infra=tuple(infra or ()), config=config)
    here = any(not query.gpu and may_name(query.infra, "local") for query in planned.task.queries)
    if here and planned.decision.offer is None and not planned.decision.rejected and not boxed:
        tell_unanswered(screen, planned.failures)
        refuse_shared(task)
    return planned


def show_plan(
    screen: Screen, plan: Plan, *, everything: bool = False, talk: bool = False, explain: bool = False
) -> None:
    """The plan: the table and the lines below it, on stdout; talk: on stderr, where it is not what was asked for.

    explain: with the parts of what finishing costs.
    """
    if plan.decision.offer is not None:  # else the error that follows names them
        tell_unanswered(screen, plan.failures)
    if screen.json:
        return screen.data(plan_json(plan))
    if screen.quiet:
        return screen.line(plan.decision.offer.key) if plan.decision.offer else None
    from broker.cli.tables import labelled, plan_table

    put = screen.say if talk else screen.show
    table = bool(plan.decision.ranked or plan.decision.rejected)
    if table:
        put(plan_table(plan, screen.width, everything=everything))
    ranked = plan.decision.ranked
    if explain and ranked and ranked[0].finish is not None:
        from broker.cli.tables import RANKED, parts_table

        put("")
        put(parts_table(ranked if everything else ranked[:RANKED]))
    if any(report.how != "honoured" for report in plan.fields):
        from broker.cli.tables import fields_table

        put("")
        put(fields_table(plan.fields))
    if table:
        put("")
    put(labelled(plan_lines(plan)))
    return None


def plan_json(plan: Plan) -> dict[str, Any]:
    from broker.cli.trusting import cost_of_refusing

    return {
        "task": plan.task.name,
        "home": plan.home,
        "access": plan.identity,
        "workdir_bytes": plan.size,
        "failures": dict(plan.failures),
        "balance": plan.balance,
        "trust": cost_of_refusing(plan.decision, plan.task),
        "left_out": list(plan.left_out),
        "mounts": [
            {"target": m.mount.target, "source": m.mount.source, "bytes": m.bytes, "files": m.files}
            for m in plan.mounts
        ],
        "fields": [asdict(report) for report in plan.fields],
        "work": asdict(plan.left) if plan.left is not None and plan.left.hours is not None else None,
        "deadline": plan.deadline,
        "egress_of_saves": dict(zip(("gib", "usd_per_gib"), plan.upload, strict=True)) if plan.upload else None,
        "egress_per_move": dict(zip(("gib", "usd_per_gib"), plan.egress, strict=True)) if plan.egress else None,
        **plan.decision.to_json(limit=1000),
    }


def plan_lines(plan: Plan) -> list[tuple[str, str]]:
    """What the table does not say: the home, the workdir, who moves the job."""
    from broker.cli.homes import unreachable
    from broker.cli.limits import limit_lines
    from broker.cli.tables import size
    from broker.cli.trusting import cost_of_refusing
    from broker.guest.mask import too_short

    ranked = [reason.removeprefix("ranked ") for reason in plan.decision.reasons if reason.startswith("ranked ")]
    lines = [("ranked", text) for text in ranked] + limit_lines(plan)
    far = unreachable(plan)
    told = f"{far}; broker home setup makes one" if far else f"{plan.home} keeps snapshots, logs and results"
    lines.append(("home", told))
    if plan.identity:
        lines.append(("access", plan.identity))
    if plan.task.workdir is not None:
        lines.append(("workdir", f"{plan.task.workdir}, {size(plan.size or 0)} before packing"))
    else:
        lines.append(("workdir", "none: no file of yours goes along"))
    if parts := [f"{m.mount.target} ({size(m.bytes)})" for m in plan.mounts if m.mount.source]:
        lines.append(("mounts", f"{', '.join(parts)} sent once, and to every machine of the job"))
    checkpoint = plan.task.checkpoint
    if checkpoint is not None:
        lines.append(("saves", f"{checkpoint.path}, the newest {checkpoint.keep} kept"))
    chosen = plan.decision.offer
    if chosen is not None and chosen.market == "spot" and chosen.notice is None:
        lines.append(("notice", f"{chosen.provider} gives none: what was not saved when the machine goes is lost"))
    kept = f"{', '.join(plan.task.outputs)}: kept for broker pull" if plan.task.outputs else "none are kept"
    lines.append(("outputs", kept))
    if short := too_short(plan.task.with_hidden_sealed().secrets):
        text = f"{', '.join(short)}: too short, or with a line too short, to be masked where the program prints it"
        lines.append(("secrets", text))
    if image := image_line(plan):
        lines.append(("image", image))
    if hidden := cost_of_refusing(plan.decision, plan.task):
        lines.append(("trust", hidden))
    if plan.balance:
        lines.append(("balance", plan.balance))
    lines += [("left out", text) for text in plan.left_out]
    offer = plan.decision.offer
    if offer is not None and offer.simulated:
        lines.append(("moves", "made while a broker runs here; local is this computer, its money is simulated"))
    elif offer is not None:
        text = (
            "made by a running broker: if this computer sleeps, the job goes on but waits with its next move; "
            "`broker up` on a small always-on machine remedies that"
        )
        lines.append(("moves", text))
    return lines


def image_line(plan: Plan) -> str:
    """What the task runs in, what bringing it takes, and how long a start with it took before; empty for no image."""
    from broker import images
    from broker.cli.tables import duration

    offer = plan.decision.offer
    asked = plan.task.resources[plan.decision.alternative].image
    if offer is None or (offer.simulated and not asked):
        return ""
    found = images.parse(asked)
    if found is not None and found.machine:
        return f"{found.name} boots, and the task runs bare on it"
    name = found.name if found else None
    text = images.shown(name) if found else f"{images.shown(name)}, the default"
    if (pull := images.size_gb(name)) is not None:
        text += f", about {pull:g} GB to pull where a host does not have it"
    hours = (plan.prospect.restarts if plan.prospect else {}).get(offer.provider)
    if hours:
        text += f"; from launch to first step it took {duration(hours * 3600)} at {offer.provider} before"
    return text


def pairs(env: Sequence[str] | None) -> dict[str, str]:
    """KEY=VALUE as given by --env; KEY alone takes its value from here."""
    from broker.task import NAME

    values: dict[str, str] = {}
    for entry in env or ():
        key, found, value = entry.partition("=")
        if not found and key in os.environ:
            value, found = os.environ[key], "="
        if not NAME.fullmatch(key):  # not shown: it may be a value that lost its name
            raise Usage("--env must be KEY=VALUE, KEY of letters, digits and _", fix="--env KEY=VALUE")
        if not found:
            raise Usage(f"--env {key} has no value, here or in the environment", fix=f"--env {key}=VALUE")
        values[key] = value
    return values


def must_be_installed(screen: Screen, named: Sequence[Sequence[str]]) -> None:
    """Say which providers a task's alternatives name in vain. Raises ConfigError where no other is left."""
    from difflib import get_close_matches

    from broker import registry
    from broker.errors import ConfigError
    from broker.policy.infra import may_name

    known = registry.names()
    absent: dict[str, None] = {}
    usable = False
    for places in named:
        found = [place for place in places if any(may_name([place], name) for name in known)]
        usable = usable or bool(found) or not places
        absent |= {place.strip("/ ").split("/")[0]: None for place in places if place not in found}
    if not absent:
        return
    near = [match for name in absent for match in get_close_matches(name.lower(), known, n=1)]
    what = f"no provider named {' or '.join(absent)} is installed"
    what += f"; did you mean {' or '.join(near)}?" if near else ""
    if usable:
        screen.warn(what)
    else:
        raise ConfigError(what, fix=f"installed is: {', '.join(known)}; `broker rehearse TASK` tries a task here")


def refuse_shared(task: Task, named: Sequence[Sequence[str]] = (("local",),)) -> None:
    """Refuse absolute paths where only `local` can be taken: its machines share this computer. Raises TaskError."""
    from broker import registry
    from broker.errors import TaskError
    from broker.policy.infra import may_name
    from broker.taskfile import placing

    others = [name for name in registry.names() if name != "local"]
    if any(may_name(places, name) for places in named for name in others):
        return
    paths = [("checkpoint.path", task.checkpoint.path)] if task.checkpoint else []
    paths += [(f"file_mounts.{mount.target}", mount.target) for mount in task.file_mounts]
    for field, path in paths:
        if path.startswith("/"):
            what = f"{field}: is absolute, and `local` machines share this computer"
            with placing(task):
                raise TaskError(what, field=field, fix=f"use a path in the workdir or below ~/ instead of {path}")


def must_have_provider(queries: Sequence[OfferQuery]) -> None:
    """Refuse a task that only a GPU would do for where no provider could rent one. Raises ConfigError."""
    from broker import registry
    from broker.errors import ConfigError

    others = [name for name in registry.names() if name != "local"]
    if others or not all(query.gpu for query in queries):
        return
    wanted = " or ".join(dict.fromkeys(f"{query.gpu}:{max(query.gpu_count, 1)}" for query in queries))
    raise ConfigError(
        f"no provider is set up that rents out {wanted}: `local` is this computer and rents out no GPU",
        fix="this version rents on `local` only; `broker rehearse TASK` tries the task here, without renting",
    )


def nothing(queries: Sequence[OfferQuery], failures: Mapping[str, str], decision: Decision | None = None) -> Exception:
    """The error for an empty market: of configuration where no provider can be used, else one that passes."""
    from broker import registry
    from broker.errors import ConfigError, NothingAvailable
    from broker.policy.decision import Kind
    from broker.policy.explain import unasked

    reasons = decision.reasons if decision is not None else ()
    far = (Kind.INFRA, Kind.SHAPE, Kind.MARKET)
    near = [entry for entry in decision.rejected if entry.kind not in far] if decision else []
    if near and all(entry.kind is Kind.UNUSABLE for entry in near):
        what = "; ".join(dict.fromkeys(f"{entry.offer.provider}: {entry.reason}" for entry in near))
        several = f"{len(near)} offers fit" if len(near) > 1 else "1 offer fits"
        names = " ".join(dict.fromkeys(entry.offer.provider for entry in near))
        fix = (
            f"broker check {names}"
            if any("broker check" in entry.reason for entry in near)
            else "do what is said above"
        )
        return ConfigError(f"{several} and none can be rented from here: {what}", fix=fix)
    others = {name for name in registry.names() if name != "local"}
    if all(query.gpu for query in queries) and others and others <= set(failures):
        failing, absent = unanswered({name: failures[name] for name in sorted(others)})
        what = "; ".join([*failing, *([absent] if absent else [])])
        fix = "broker check says how to set them up"
        return ConfigError(f"no provider that rents out GPUs can be asked: {what}", fix=fix)
    if decision is not None and decision.short:
        where = "configuration" if decision.short.startswith("monthly") else "task"
        return NothingAvailable("; ".join(reasons), fix=f"raise {decision.short} in the {where}, or ask for less")
    silent = [unasked(name, text) for name, text in failures.items()]
    why = [text for text in reasons if text not in silent][:3] or ["no offer fits now"]
    what = "; ".join([*why, *silent])
    fix = "ask for less, widen infra, raise --max-price, or try again later"
    if near and all(entry.kind is Kind.TRUST for entry in near):
        fix = "do what is said above, or widen infra"
    elif failures and not (decision and decision.rejected):
        fix = "broker check says what did not answer; else ask for less, or try again later"
    return NothingAvailable(what, fix=fix)


def asked(
    gpu: str | None,
    *,
    cpus: float,
    memory: float,
    disk: float,
    infra: Sequence[str],
    spot: bool | None,
) -> OfferQuery:
    """What the options ask for; spot: only this market. Raises Usage."""
    from broker import resources
    from broker.errors import ConfigError

    try:
        return resources.asked(gpu, cpus=cpus, memory=memory, disk=disk, infra=infra, spot=spot)
    except ConfigError as error:
        raise Usage(error.message, fix="broker offers A100:8 --disk 20") from error
