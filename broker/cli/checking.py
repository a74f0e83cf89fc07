"""The verb that says what works here and what does not: check."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.cli.screen import Screen, Usage

if TYPE_CHECKING:
    from broker.config import Config
    from broker.inspection import Inspection
    from broker.provider import Finding

HOUSE = "house"
CONFIGURATION = 78
NewKeyOption = Annotated[bool, typer.Option("--new-key", help="Ask for another key, in the place of the kept one.")]
StdinOption = Annotated[bool, typer.Option("--key-stdin", help="Read the key from stdin, for scripts.")]


def check_verb(
    screen: Screen,
    providers: Annotated[
        list[str] | None, typer.Argument(metavar="[PROVIDER…]", help="All of them, and the house, by default.")
    ] = None,
    new_key: NewKeyOption = False,
    key_stdin: StdinOption = False,
) -> int:
    """Say what works here, and how to mend what does not.

    Rents nothing. A provider that has no key yet is asked for it, at a terminal, without showing it.
    """
    from broker import registry
    from broker.config import load

    config = load()
    names = list(dict.fromkeys(providers or ()))
    for name in names:
        if name not in registry.names():
            raise Usage(f"there is no provider {name!r}", fix=f"installed are: {', '.join(registry.names())}")
    if (new_key or key_stdin) and len(names) != 1:
        raise Usage("a key is for one provider", fix="broker check PROVIDER --key-stdin")
    if key_stdin:
        if not (key := sys.stdin.readline()).strip():
            raise Usage("stdin holds no key", fix=f"broker check {names[0]} --key-stdin < FILE")
        _keep(names[0], key, config)
    inspections = _inspected(screen, names or list(registry.names()), config, alone=bool(names))
    if names and not key_stdin:
        inspections = [_with_key(screen, found, config, anew=new_key) for found in inspections]
    return _told(screen, inspections, config, whole=not names)


def _inspected(screen: Screen, names: Sequence[str], config: Config, *, alone: bool) -> list[Inspection]:
    """All of them side by side: each waits for somebody else's computer."""
    from concurrent.futures import ThreadPoolExecutor

    from broker.inspection import inspect

    with screen.waiting("the providers' answers"), ThreadPoolExecutor(max_workers=max(1, len(names))) as pool:
        return list(pool.map(lambda name: inspect(name, config, alone=alone), names))


def _with_key(screen: Screen, found: Inspection, config: Config, *, anew: bool) -> Inspection:
    """Ask for a key where there is none, or for another one, and look again."""
    if anew and not found.how_to_key:
        raise Usage(f"{found.provider} takes no key here", fix=f"broker check {found.provider} says what it goes by")
    wanted = anew or (found.keyless and found.how_to_key)
    if not wanted or not screen.interactive or screen.quiet:
        if anew:
            raise Usage("without a terminal nobody can be asked for a key", fix="give it on stdin: --key-stdin")
        if wanted:
            screen.say(f"without a terminal a key is given on stdin: broker check {found.provider} --key-stdin")
        return found
    import getpass

    if found.how_to_key:
        screen.say(found.how_to_key)
    question = f"Key for {found.provider} (not shown; Enter for none): "
    if not (key := getpass.getpass(question, stream=sys.stderr).strip()):
        return found
    _keep(found.provider, key, config)
    return _inspected(screen, [found.provider], config, alone=True)[0]


def _keep(name: str, key: str, config: Config) -> None:
    """Put the key away for every later command. Raises ConfigError, or Usage where it would not be read."""
    from broker import keys, registry
    from broker.inspection import how_to_key

    if not how_to_key(registry.get(name, config)):
        raise Usage(f"{name} takes no key here", fix=f"broker check {name} says what it goes by")
    if "key" in config.provider(name):
        raise Usage(
            f"[providers.{name}] key in {config.file} comes before any other", fix="change it there, or take it out"
        )
    keys.keep(name, key, config.state)
    registry.forget(name)


def _told(screen: Screen, inspections: Sequence[Inspection], config: Config, *, whole: bool) -> int:
    """Show everything that was found; the exit code."""
    from broker.house import house

    rows: list[tuple[str, Finding, str]] = []
    if whole:
        usable = [found for found in inspections if not found.simulated and not found.keyless and found.ok]
        with screen.waiting("the home's answers"):
            rows += [(HOUSE, finding, _sign(finding)) for finding in house(config, rents=bool(usable))]
    for found in inspections:
        open_ = whole and (found.keyless or found.absent)
        rows += [(found.provider, finding, _sign(finding, open_=open_)) for finding in found.findings]
    if screen.json:
        screen.data([_row(who, finding, sign) for who, finding, sign in rows])
    elif screen.quiet:
        for who in dict.fromkeys(who for who, _, sign in rows if sign == "✗"):
            screen.line(who)
    else:
        screen.show(_table(rows))
        _advise(screen, rows, inspections, whole=whole)
    refused = [found for found in inspections if not found.ok and (found.refused or (found.keyless and not whole))]
    failed = [who for who, _, sign in rows if sign == "✗"]
    if any(who in (HOUSE, *(found.provider for found in refused)) for who in failed):
        return CONFIGURATION
    return 1 if failed else 0


def _sign(finding: Finding, *, open_: bool = False) -> str:
    """✓ works, ✗ does not, – is simply not set up."""
    return "✓" if finding.ok else "–" if open_ else "✗"


def _row(who: str, finding: Finding, sign: str) -> dict[str, Any]:
    state = {"✓": "ok", "✗": "failed", "–": "not set up"}[sign]
    return {"who": who, "what": finding.what, "state": state, "found": finding.found, "fix": finding.fix}


def _table(rows: Sequence[tuple[str, Finding, str]]) -> Any:
    from broker.cli.tables import table

    made = table("", "WHO", "WHAT", "FOUND", fold=("FOUND",))
    last = ""
    for who, finding, sign in rows:
        style = {"✗": "red", "–": "dim"}.get(sign)
        made.add_row(sign, who if who != last else "", finding.what, finding.found, style=style)
        if finding.fix and not finding.ok:
            made.add_row("", "", "", f"try: {finding.fix}", style="dim" if sign == "–" else None)
        last = who
    return made


def _advise(
    screen: Screen, rows: Sequence[tuple[str, Finding, str]], inspections: Sequence[Inspection], *, whole: bool
) -> None:
    keyless = [found.provider for found in inspections if found.keyless and found.how_to_key]
    if keyless and whole:
        screen.say(f"no key yet for {', '.join(keyless)}: broker check {keyless[0]} takes one")
    failed = sum(sign == "✗" for _, _, sign in rows)
    screen.say(f"{failed} thing{'s' * (failed != 1)} to mend" if failed else "all that is set up works")
