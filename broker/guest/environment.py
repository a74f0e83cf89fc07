"""The environment of setup and run: the machine's own, cleaned, and the task's values byte for byte."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from broker.guest.bootfile import Boot
from broker.guest.mask import sensitive
from broker.guest.spec import Spec
from broker.interval import interval

OURS = re.compile(r"^(SPOTBROKER_(?!MACHINE$)|BROKER_|AWS_|AZURE_|GOOGLE_|GCLOUD_|CLOUDSDK_|VAST_|RUNPOD_)")
SHELLS = {"_", "SHLVL", "PWD", "OLDPWD", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV"}


def mark(job: str, generation: int) -> str:
    """What tells this placement's processes from all others, in their environment."""
    return f"{job}/{generation}"


def base(machine: Mapping[str, str]) -> dict[str, str]:
    """What a job may see of the machine's own environment: an image's settings, not its provider's credentials."""
    return {k: v for k, v in machine.items() if k not in SHELLS and not OURS.match(k) and not sensitive(k)}


def program(
    machine: Mapping[str, str], boot: Boot, spec: Spec, *, lib: Path, checkpoint: Path, progress: Path, resumed: bool
) -> dict[bytes, bytes]:
    """The whole environment of setup and run, as bytes so that no locale changes a value."""
    # Weights & Biases draws one curve for a run of one id, so a job is one run over all its machines.
    curve = {"WANDB_RUN_ID": boot.job, "WANDB_RESUME": "allow"}
    env = {"PYTHONUNBUFFERED": "1", **curve, **base(machine), **spec.envs, **boot.secrets}
    paths = [p for p in (env.get("PYTHONPATH"), str(lib)) if p]
    env |= {
        "BROKER_CHECKPOINT_DIR": str(checkpoint),
        "BROKER_JOB": boot.job,
        "BROKER_GENERATION": str(boot.generation),
        "BROKER_RESUMED": "1" if resumed else "0",
        "BROKER_NUM_GPUS": str((boot.offer or {}).get("gpu_count") or 0),
        "BROKER_PROGRESS": str(progress),
        "BROKER_CHECKPOINT_EVERY": str(every(boot, spec)),
        "BROKER_CHECKPOINT_EVERY_FILE": str(every_file(progress)),
        "BROKER_PLACEMENT": mark(boot.job, boot.generation),
        "PYTHONPATH": ":".join(paths),
    }
    return {k.encode("utf-8", "surrogateescape"): v.encode("utf-8", "surrogateescape") for k, v in env.items()}


def every(boot: Boot, spec: Spec, save: float | None = None) -> int:
    """Seconds between two saves. save: what one took here, None until there was one."""
    return max(1, round(interval(boot.hazard, boot.save if save is None else save, every=spec.every or None)))


def every_file(progress: Path) -> Path:
    """The file that says how often to save, in seconds, as it stands now; a program may read it again."""
    return progress.with_name("checkpoint-every")


def say_every(progress: Path, boot: Boot, spec: Spec, save: float | None) -> None:
    """Write that file. save: seconds that a save with its upload took here; None until there was one.

    A full disk only costs the program the news.
    """
    file = every_file(progress)
    with suppress(OSError):
        new = file.with_name(file.name + ".new")
        new.write_text(f"{every(boot, spec, save)}\n")
        new.chmod(0o644)
        new.rename(file)


def masked_values(boot: Boot, spec: Spec) -> list[str]:
    """The values that no log may show: secrets always, envs that count as such."""
    return [*boot.secrets.values(), *(v for k, v in spec.envs.items() if sensitive(k, v))]
