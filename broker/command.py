"""A Task from a command line, for those who have no task file: `broker run --gpu RTX4090 -- python train.py`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from broker import gpus
from broker.errors import TaskError
from broker.task import SPOT, Checkpoint, Resources, Task


def task_of(
    command: Sequence[str],
    *,
    gpu: str | None = None,
    cpus: float = 0.0,
    memory: float = 0.0,
    disk: float = 20.0,
    image: str | None = None,
    setup: str = "",
    checkpoint: str | None = None,
    outputs: Sequence[str] = (),
    spot: str | None = None,
    workdir: Path | None = None,
    envs: Mapping[str, str] | None = None,
) -> Task:
    """The command with every word as it was given: no shell reads it a second time.

    gpu: `A100`, `A100:8`, `24GB+`. cpus, memory and disk: at least, in GiB. workdir: the current folder by default.
    checkpoint: the folder that the command saves to. Without one it can only run on-demand, and that must be said by
    spot="never". Raises TaskError.
    """
    if not command:
        raise TaskError("no command to run", field="run", fix="broker run --gpu L4 -- python train.py")
    if len(command) == 1 and len(words := command[0].split()) > 1 and not Path(command[0]).exists():
        raise TaskError(
            f"no program is called {command[0]!r}: every word stands by itself, for no shell reads the command",
            field="run",
            fix=f"leave out the quotes, -- {' '.join(words)}, or have a shell read it, -- bash -c {command[0]!r}",
        )
    if checkpoint is None and spot != "never":
        raise TaskError(
            "a spot machine may be taken back at any time, and nothing says where the command saves its work",
            field="checkpoint.path",
            fix="--checkpoint FOLDER names the folder that it saves to and goes on from, --spot never takes on-demand",
        )
    if spot not in (None, *SPOT):
        raise TaskError(f"spot must be auto, only or never, not {spot!r}", field="spot")
    try:
        card, count = gpus.counted(gpu) if gpu else (None, 0)
    except ValueError as error:
        raise TaskError(str(error), field="resources.accelerators", fix="--gpu A100:1") from error
    return Task(
        name=name_of(command),
        run=shlex.join(command) + "\n",
        setup=setup,
        workdir=workdir or Path.cwd(),
        envs=envs or {},
        resources=(Resources(gpu=card, gpu_count=count, cpus=cpus, memory=memory, disk=disk, image=image),),
        checkpoint=Checkpoint(checkpoint) if checkpoint is not None else None,
        outputs=tuple(outputs),
        spot=spot or "auto",
    )


def name_of(command: Sequence[str]) -> str:
    """What to call it: the script that is run, else the program."""
    scripts = [word for word in command if PurePosixPath(word).suffix in (".py", ".sh", ".R", ".jl")]
    stem = PurePosixPath((scripts or list(command))[0]).stem
    return "".join(mark for mark in stem if mark.isprintable())[:100] or "command"
