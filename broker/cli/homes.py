"""The verbs of the home: setup."""

from __future__ import annotations

import dataclasses
import sys
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.cli.screen import Screen, Usage

if TYPE_CHECKING:
    from broker.config import Config
    from broker.founding import Founded, Ground
    from broker.planning import Plan
    from broker.provider import Finding
    from broker.stores import Kind

KEPT = ("api_endpoint", "api_token", "account_id")
PROFILE, LOGIN = "--instance-profile", "--profile"
SAMPLE_GB = 100.0
"""What the monthly price is shown for."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What the command line says; empty for what is to be asked. profile: of EC2's instances; login: AWS's own."""

    store: str = ""
    bucket: str = ""
    region: str = ""
    account: str = ""
    endpoint: str = ""
    key_stdin: bool = False
    profile: str = ""
    login: str = ""
    role: str = ""


def setup_verb(
    screen: Screen,
    store: Annotated[str, typer.Option("--store", metavar="STORE", help="r2, b2, s3, runpod, or a server's URL.")] = "",
    bucket: Annotated[str, typer.Option("--bucket", metavar="NAME[/PREFIX]", help="Made where it is not there.")] = "",
    region: Annotated[str, typer.Option("--region", metavar="REGION", help="Of b2, s3 and runpod.")] = "",
    account: Annotated[str, typer.Option("--account", metavar="ID", help="The Cloudflare account, for r2.")] = "",
    endpoint: Annotated[str, typer.Option("--endpoint", metavar="URL", help="In the place of the usual one.")] = "",
    key_stdin: Annotated[
        bool, typer.Option("--key-stdin", help="Read the key's id and its secret from stdin, a line each.")
    ] = False,
    profile: Annotated[
        str, typer.Option(PROFILE, metavar="NAME", help="By it EC2 machines need no key for s3; made where it is not.")
    ] = "",
    login: Annotated[
        str, typer.Option(LOGIN, metavar="NAME", help="For s3: sign by this AWS profile, such as of SSO, not by a key.")
    ] = "",
    role: Annotated[
        str, typer.Option("--role-arn", metavar="ARN", help="For s3: a role by which each machine gets its own key.")
    ] = "",
    replace: Annotated[bool, typer.Option("--replace", help="In the place of another home.")] = False,
) -> int:
    """Make the object store where jobs keep what must outlive machines.

    Asks for what it is not told, makes the bucket, proves that it does what a home must, and writes the configuration.
    """
    from broker.config import load

    config = load()
    answers = Answers(store, bucket, region, account, endpoint, key_stdin, profile, login, role)
    if config.home and not replace and not bucket:
        raise _another(config)
    founded = set_up(screen, config, answers, replace=replace)
    if screen.json:
        screen.data(_as_json(founded))
    elif screen.quiet:
        screen.line(founded.url)
    return 0


def set_up(screen: Screen, config: Config, answers: Answers, *, replace: bool) -> Founded:
    """Ask, make, prove, write. Raises what keeps it from being a home; then the configuration is as it was."""
    from broker import configfile
    from broker.founding import found, identified

    ground = _ground(screen, answers)
    anew = bool(config.home) and config.home != ground.url
    if anew and not replace:
        raise _another(config)
    if anew:
        _refuse_while_in_use(config)

    # What the user has set by hand of the store's own API is good for the same home, and for the first one.
    kept = {} if anew else {name: value for name, value in config.home_config.items() if name in KEPT}
    ground = dataclasses.replace(ground, settings={**kept, **ground.settings})

    def tell(finding: Finding) -> None:
        screen.say(f"{'✓' if finding.ok else '–'} {finding.what}: {finding.found}")
        if not finding.ok and finding.fix:
            screen.say(f"  try: {finding.fix}", style="dim")

    with screen.waiting(f"{ground.kind.title} to answer"):
        founded = found(ground, config, tell)
    if not anew and not replace:
        _refuse_wider(config, founded)
    # A profile that is set stays with its home; without a way to narrow keys a person is asked for one.
    own = "" if anew else config.home_config.get("instance_profile", "")
    if profile := answers.profile or own or _profile_wanted(screen, ground, founded):
        with screen.waiting("IAM to answer"):
            founded = identified(founded, config, profile, tell)
    configfile.change(
        config.file,
        lambda document: configfile.with_home(document, founded.url, founded.settings, anew=anew or not config.home),
    )
    if ground.kind.price is not None:
        screen.say(f"  price: {ground.kind.price.of(SAMPLE_GB)}")
    screen.say(f"{founded.url} is the home of every job from now on, says {config.file}")
    return founded


def _ground(screen: Screen, answers: Answers) -> Ground:
    """Everything that is needed to know the store, from the command line or from the person."""
    from broker.founding import Ground
    from broker.stores import REGIONS, named, split

    kind, url = named(answers.store or _chosen(screen))
    if answers.profile and not kind.identities:
        raise Usage(f"no instance profile of EC2 reaches {kind.title}", fix=f"{PROFILE} goes with --store s3 only")
    for given, option in ((answers.login, LOGIN), (answers.role, "--role-arn")):
        if given and not kind.identities:
            raise Usage(f"{kind.title} knows nothing of AWS's accounts", fix=f"{option} goes with --store s3 only")
    if answers.login and answers.key_stdin:
        raise Usage("a home is signed for by a profile or by a key", fix=f"leave out {LOGIN} or --key-stdin")
    account = answers.account
    if "account" in kind.asks and not answers.endpoint and not account:
        account = _answer(screen, "Cloudflare account id", "--account")
    region = answers.region or kind.region
    if "region" in kind.asks and not region:
        region = _answer(screen, "Region", "--region", REGIONS.get(kind.name, ""))
    proposed = "" if kind.made_by_hand else f"spotbroker-{uuid.uuid4().hex[:8]}"
    bucket, prefix = split(answers.bucket or _answer(screen, "Bucket", "--bucket", proposed))
    settings = {"endpoint": answers.endpoint or url or kind.at(account=account, region=region), "region": region}
    settings |= {"account_id": account} if account and answers.endpoint else {}
    settings |= {"profile": answers.login, "role_arn": answers.role, **kind.settings}
    if not answers.login:
        key, secret = _key(screen, kind, from_stdin=answers.key_stdin)
        settings |= {"access_key_id": key, "secret_access_key": secret}
    return Ground(kind, bucket, prefix, {name: value for name, value in settings.items() if value})


def _profile_wanted(screen: Screen, ground: Ground, founded: Founded) -> str:
    """The name of an instance profile to make, where machines would otherwise get this very key; empty for none."""
    if not screen.interactive or not ground.kind.identities or _is_narrow(founded):
        return ""
    name = f"spotbroker-{ground.bucket}"[:64]
    screen.say("Machines on EC2 can reach the home without a key, by an instance profile that all of them share.")
    return name if screen.ask(f"Make the instance profile {name}?", instead=f"{PROFILE} {name}") else ""


def _is_narrow(founded: Founded) -> bool:
    from broker.access import narrow

    return narrow(founded.url, {key: str(value) for key, value in founded.settings.items()})


def _chosen(screen: Screen) -> str:
    from broker.cli.tables import table
    from broker.stores import KINDS

    if screen.interactive:
        made = table("", "STORE", "USD/GB-month", "READING", right=("USD/GB-month",))
        for kind in KINDS.values():
            reading = ("free" if not kind.price.reading else f"{kind.price.reading}/GB") if kind.price else ""
            made.add_row(kind.name, kind.title, f"{kind.price.month}" if kind.price else "", reading)
        made.add_row("URL", "any other S3-compatible store", "", "")
        screen.say("Where shall jobs keep what must outlive machines?")
        screen.say(made)
    return _answer(screen, "Store", "--store", "r2")


def _key(screen: Screen, kind: Kind, *, from_stdin: bool) -> tuple[str, str]:
    """The key's id and its secret, never from the command line, where other users could read it."""
    if from_stdin:
        key, secret = sys.stdin.readline().strip(), sys.stdin.readline().strip()
    else:
        if not screen.interactive:
            other = f", or name a profile of the AWS configuration: {LOGIN}" if kind.identities else ""
            raise Usage("without a terminal nobody can be asked for a key", fix=f"give it on stdin: --key-stdin{other}")
        import getpass

        screen.say(f"A key is made at {kind.keys}.")
        if kind.identities:
            screen.say(f"Without one, such as after aws sso login: broker home setup --store s3 {LOGIN} NAME.")
        key = _answer(screen, "Access key id", "--key-stdin")
        secret = getpass.getpass("Secret access key (not shown): ", stream=sys.stderr).strip()
    if not key or not secret:
        raise Usage("a key has an id and a secret", fix="with --key-stdin each is a line of its own")
    return key, secret


def _answer(screen: Screen, what: str, option: str, proposed: str = "") -> str:
    """What the person types, as it is typed; Enter takes what is proposed."""
    if not screen.interactive:
        raise Usage(f"without a terminal nobody can be asked: {what}?", fix=f"give {option}")
    sys.stderr.write(f"{what}{f' [{proposed}]' if proposed else ''}: ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer:
        raise KeyboardInterrupt
    if not (answer.strip() or proposed):
        raise Usage(f"{what} is needed", fix=f"give {option}")
    return answer.strip() or proposed


def _another(config: Config) -> Usage:
    return Usage(
        f"{config.file} names a home already: {config.home}",
        fix="broker check says how it is; --replace puts another one in its place, and leaves what is in the old one",
    )


def _refuse_wider(config: Config, founded: Founded) -> None:
    """With a key that can make no narrow ones, market hosts could be rented no more: not without being told to."""
    from broker.access import NARROW

    before = config.home_config.get("mint")
    if before in NARROW and not _is_narrow(founded):
        raise Usage(
            f"machines get keys for their own job from {config.home} so far, by {before}; this key cannot make any",
            fix="give a key that can, or --replace to go on with this one, without market hosts",
        )


def _refuse_while_in_use(config: Config) -> None:
    """The settings of the old home would go, and with them every running job's memory."""
    from broker.job import jobs

    if not (config.state / "jobs.db").exists() and not config.database:
        return
    if active := [job.id for job in jobs(active=True, config=config)]:
        keep = f"{len(active)} jobs still keep" if len(active) > 1 else "1 job still keeps"
        raise Usage(
            f"{keep} its work in {config.home}: {', '.join(active[:3])}",
            fix=f"broker wait {' '.join(active[:3])}, or broker stop them first",
        )


def _as_json(founded: Founded) -> dict[str, Any]:
    return {
        "home": founded.url,
        "mint": founded.settings.get("mint", "none"),
        "dedicated": bool(founded.settings.get("dedicated")),
        "instance_profile": founded.settings.get("instance_profile"),
        "bytes_per_second": {"up": founded.speed.up, "down": founded.speed.down},
        "findings": [{"what": f.what, "ok": f.ok, "found": f.found, "fix": f.fix} for f in founded.findings],
    }


def offered_home(screen: Screen, plan: Plan, config: Config, *, ask: bool) -> bool:
    """See that the chosen machine can reach the job's home; a person is offered to make one, True where it was made.

    Raises ConfigError where there is none. Simulated machines are on this computer, and a folder will do.
    """
    from broker.errors import ConfigError

    if not (what := unreachable(plan)):
        return False
    if plan.task.home:
        raise ConfigError(what, fix="name an object store in the task's `home`, or leave it out: broker home setup")
    if not (ask and screen.interactive):
        raise ConfigError(what, fix="broker home setup makes a home in an object store")
    screen.say(f"{what}.")
    if not screen.ask("Make a home in an object store now?", instead="a home by broker home setup"):
        raise ConfigError("nothing was rented: there is no home for the job", fix="broker home setup")
    set_up(screen, config, Answers(), replace=False)
    return True


def unreachable(plan: Plan) -> str:
    """Why the chosen machine could not reach the job's home; empty where it can."""
    offer = plan.decision.offer
    if offer is None or offer.simulated or not plan.home.startswith("file:"):
        return ""
    return f"{plan.home} is a folder on this computer, which no machine of {offer.provider} can reach"
