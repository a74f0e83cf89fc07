"""The way into a job's machine for a person: `way_in`. It reads what is written down and asks the provider once."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from broker.errors import ConfigError, JobUnfinished, NotFound
from broker.guest.shell import ENTER
from broker.provider import Instance, Reachable, Shell, State

if TYPE_CHECKING:
    from broker.job import Job

INSTEAD = "broker logs {0} shows its output, broker pull --checkpoint {0} its newest snapshot"
NOT_YET = "spotbroker: the program has not been started on this machine yet"


@dataclass(frozen=True, slots=True)
class WayIn:
    """argv: what a person runs, whole. needs: what must hold for it and is not seen from here. then: what they type
    there first, where it cannot be said from here; both empty for nothing."""

    argv: tuple[str, ...]
    needs: str = ""
    then: str = ""


def way_in(job: Job, command: Sequence[str] = (), *, identity: Path | None = None) -> WayIn:
    """How to open a shell where the job's program runs or has failed, or to run one command there.

    command: one word is a line for the shell there, several are a program with its arguments. identity: the private
    key for OpenSSH. Raises ConfigError for a job that has ended and where there is no way, JobUnfinished where there is
    no machine yet.
    """
    from broker import registry

    instance = _machine(job)
    provider = registry.get(instance.provider, job.config)
    if not isinstance(provider, Reachable):
        why = provider.traits.no_shell or f"{provider.name} opens no shell on its machines"
        raise ConfigError(why, fix=INSTEAD.format(job.id))
    try:
        shell = provider.shell(instance)
    except NotFound as error:
        raise JobUnfinished(f"{provider.name}: {error.message}", job=job.id, fix=f"broker show {job.id}") from error
    if shutil.which(shell.argv[0]) is None:
        raise ConfigError(f"there is no program {shell.argv[0]!r} here", fix=f"install {shell.argv[0]}")
    if command and not shell.commands:
        raise ConfigError(
            f"{provider.name} opens a terminal only, and takes no command: {shell.needs}".rstrip(": "),
            fix=f"broker ssh {job.id}, and type it there",
        )
    line = command[0] if len(command) == 1 else shlex.join(command)
    return way_of(shell, line, job.config.state, identity)


def _machine(job: Job) -> Instance:
    """The machine that the job has, the newest where it has several."""
    held = [row for row in job.placements() if row.launched_at is not None and row.ended_at is None]
    if job.refresh().done:
        fix = f"{INSTEAD.format(job.id)}; `keep_on_failure: 30m` in a task keeps the machine of a program that fails"
        raise ConfigError(f"{job.id} has ended ({job.status}): its machine is gone", fix=fix)
    if not held:
        raise JobUnfinished(
            f"{job.id} has no machine at present: {job.status}", job=job.id, fix=f"broker show {job.id}"
        )
    row, offer = held[-1], held[-1].request["offer"]
    return Instance(
        provider=offer["provider"],
        id=row.instance or "",
        state=State.RUNNING,
        market=offer["market"],
        hourly=row.hourly or 0.0,
        tags={},
        region=offer["region"],
        zone=offer["zone"],
        instance_type=offer["instance_type"],
    )


def way_of(shell: Shell, line: str, state: Path, identity: Path | None) -> WayIn:
    """The whole command line: host keys are kept in a file of ours, each machine's from its first sight."""
    program, *rest = shell.argv
    if program == "ssh":
        known = state / "known_hosts"
        options = ["-o", "StrictHostKeyChecking=accept-new", "-o", f"UserKnownHostsFile={shlex.quote(str(known))}"]
        rest = [*options, *(["-i", str(identity)] if identity else []), *([] if line else ["-t"]), *rest]
    enter = f"{shell.folder}/{ENTER}"
    if not shell.commands:
        return WayIn((program, *rest), shell.needs, shlex.join([*shell.become, "sh", enter]))
    inner = f"[ -e {shlex.quote(enter)} ] || {{ echo {shlex.quote(NOT_YET)} >&2; exit 101; }}; "
    inner += f'exec sh {shlex.quote(enter)} "$@"'
    there = shlex.join([*shell.become, "sh", "-c", inner, "sh", *([line] if line else [])])
    return WayIn((program, *rest, there), shell.needs)
