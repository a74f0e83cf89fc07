"""What is frozen before anything is paid: a job's artefacts in its home, and each placement's request.

`prepare` runs once per job, before it is written down; `freeze` once per placement, before its launch call. Both only
write to the home and can be repeated.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker import mounts
from broker.access import mint, own
from broker.boot import Boot, boot_script, guest_zipapp, user_data
from broker.config import Config
from broker.errors import ConfigError, HomeError
from broker.home import Home, JobKeys
from broker.offer import Offer
from broker.provider import TAG_GENERATION, TAG_INSTALLATION, TAG_JOB, LaunchRequest, Traits
from broker.store import JobRow
from broker.task import Task
from broker.vault import unseal
from broker.world import World

BOOT_MARGIN = 600.0


def prepare(job: str, task: Task, home_url: str, config: Config) -> dict[str, Any]:
    """Prove the home and put the job's spec, workdir, mounts and guest into it; returns their hashes and sizes.

    Raises HomeError where the home cannot be written and read, ConfigError where the workdir cannot be packed,
    TaskError where a mount cannot be had.
    """
    from broker.workdir import pack

    home, keys = Home(own(config, home_url)), JobKeys(job)
    home.probe()
    spec = json.dumps(task.to_json(), sort_keys=True).encode()
    home.put(keys.spec, spec)
    guest, guest_sha256 = guest_zipapp()
    home.put(keys.artefact(guest_sha256), guest)
    prepared: dict[str, Any] = {
        "spec_sha256": hashlib.sha256(spec).hexdigest(),
        "guest_sha256": guest_sha256,
        "workdir": None,
    }
    if task.workdir is not None:
        packed = pack(task.workdir, left_out(task, config))
        try:
            home.put_file(keys.artefact(packed.sha256), packed.path)
        finally:
            packed.path.unlink(missing_ok=True)
        prepared["workdir"] = {
            "key": keys.artefact(packed.sha256),
            "sha256": packed.sha256,
            "size": packed.size,
        }
    prepared["mounts"] = mounts.pack(task.file_mounts, config, home, keys.artefact)
    return prepared


def left_out(task: Task, config: Config) -> tuple[str | Path, ...]:
    """What never travels with the workdir: checkpoints of an earlier run on this computer, and our own state."""
    checkpoints = (task.checkpoint.path,) if task.checkpoint else ()
    return (*checkpoints, config.state)


def token_of(installation: str, job: str, generation: int, offer: Offer, bid: float | None) -> str:
    """The idempotency token: the same for every replay of one placement, new for every other (case 25)."""
    text = "|".join((installation, job, str(generation), offer.key, repr(bid)))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Terms:
    """What the policy adds to a request. ends: moments at which the machine must have ended, with their reasons.

    bid: USD per hour of the whole machine. hazard: losses per hour that are expected of it. save: seconds that a save
    with its upload took so far, None until measured.
    """

    ends: tuple[tuple[float, str], ...] = ()
    bid: float | None = None
    hazard: float = 0.0
    save: float | None = None


def end_of(
    task: Task, offer: Offer, access_end: float | None, now: float, ends: Sequence[tuple[float, str]] = ()
) -> tuple[float, str]:
    """When the machine ends by itself whatever happens, seconds since the epoch, and why then."""
    ends = [(now + task.max_hours * 3600, "max_hours"), *ends]
    if offer.ends_at is not None:
        ends.append((offer.ends_at, "the host's end"))
    if access_end is not None:
        ends.append((access_end, "the end of its access to the home"))
    return min(ends)


def freeze(
    row: JobRow,
    task: Task,
    offer: Offer,
    generation: int,
    restarts: int,
    image: str | None,
    disk: float,
    world: World,
    terms: Terms = Terms(),
) -> LaunchRequest:
    """Everything that the launch of this generation will send, fixed from here on.

    Mints the guest's access, puts the one-time boot object into the home and signs the one URL that reads it. Raises
    HomeError, and ConfigError where the secrets cannot be unsealed.
    """
    now = world.clock()
    traits = world.provider(offer.provider).traits
    limits = world.limits(simulated=traits.simulated)
    keys, home = JobKeys(row.id), world.home(row.home)
    if home.is_local and not traits.simulated:
        raise ConfigError(
            f"the home {row.home} is a folder on this machine, which {offer.provider} cannot reach",
            fix="set `home` to an object store, such as s3://BUCKET/PREFIX",
        )
    if home.find(keys.spec) is None:
        # Its machine would find nothing to run, and the snapshots are gone with it.
        raise HomeError(
            f"the home {row.home} has lost {keys.spec}: the job cannot be started from it",
            fix="put the home's objects back, or submit the task again",
        )
    until, _ = end_of(task, offer, None, now)
    access = mint(world.config, row.home, row.id, generation, until)
    latest, _ = end_of(task, offer, access.expires_at, now)
    end_by, end_why = end_of(task, offer, access.expires_at, now, terms.ends)
    prepared: Mapping[str, Any] = row.prepared or {}
    fetch_until = traits.boot_limit + BOOT_MARGIN
    workdir = prepared.get("workdir")
    boot = Boot(
        job=row.id,
        generation=generation,
        installation=world.installation,
        provider=offer.provider,
        home=access,
        spec_sha256=prepared["spec_sha256"],
        end_by=end_by,
        end_why=end_why,
        restarts_left=max(0, task.max_restarts_on_errors - restarts),
        secrets=unseal(world.config.state, row.secrets),
        notice=offer.notice,
        offer=offer,
        guest_url=home.sign_get(keys.artefact(prepared["guest_sha256"]), fetch_until),
        guest_sha256=prepared["guest_sha256"],
        workdir={"key": workdir["key"], "sha256": workdir["sha256"]} if workdir else None,
        mounts=prepared.get("mounts", ()),
        beat=limits.beat,
        scan=limits.scan,
        quiet=limits.quiet,
        grace=limits.grace,
        python=_python(traits),
        hazard=terms.hazard,
        save=terms.save,
    )
    home.put(keys.boot(generation), boot_script(boot))
    tags = {**task.labels, TAG_INSTALLATION: world.installation, TAG_JOB: row.id, TAG_GENERATION: str(generation)}
    return LaunchRequest(
        job=row.id,
        generation=generation,
        offer=offer,
        token=token_of(world.installation, row.id, generation, offer, terms.bid),
        tags=tags,
        user_data=user_data(
            home.sign_get(keys.boot(generation), fetch_until), end_by, frozen_at=now, provider=offer.provider
        ),
        disk=disk,
        end_by=end_by,
        end_why=end_why,
        frozen_at=now,
        image=image,
        bid=terms.bid,
        latest=latest,
    )


def _python(traits: Traits) -> str:
    """The interpreter on the machine: a simulated one runs on this computer, with the broker's own."""
    import sys

    return sys.executable if traits.simulated else "python3"
