"""`broker ssh`: a shell on a job's machine."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from broker.cli.jobs import JobArgument
from broker.cli.screen import Screen


def ssh_verb(
    screen: Screen,
    name: JobArgument,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND]", help="Run only this there; its exit code is ours.")
    ] = None,
    identity: Annotated[
        Path | None, typer.Option("-i", "--identity", metavar="FILE", help="The private key for ssh.")
    ] = None,
    only_print: Annotated[bool, typer.Option("--print", help="Print the command line and run nothing.")] = False,
) -> None:
    """Open a shell on a job's machine.

    It is where the program runs, or has failed and keep_on_failure keeps the machine: in its folder, with its
    environment, in its container. Where the provider gives a way in; nothing else depends on it.
    """
    from broker.job import get
    from broker.shell import way_in

    job = get(name)
    way = way_in(job, command or (), identity=identity)
    if screen.json:
        screen.data({"argv": list(way.argv), "needs": way.needs, "then": way.then})
        return
    if way.needs:
        screen.say(way.needs)
    if way.then:
        screen.say(f"there, this leads to where the program runs: {way.then}")
    if only_print:
        screen.line(shlex.join(way.argv))
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvp(way.argv[0], way.argv)  # noqa: S606 - as the user asked; its end and its code are this command's
