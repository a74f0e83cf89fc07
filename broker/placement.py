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

from broker import identity, images, mounts, renewals
from broker.access import own
from broker.artefacts import Artefacts
from broker.boot import Boot, boot_script, guest_zipapp, user_data
from broker.config import Config
from broker.errors import ConfigError, HomeError
from broker.home import Access, Home, JobKeys
from broker.inheritance import inherit
from broker.offer import Offer, Trust
from broker.policy.cost import Prospect
from broker.policy.egress import by_place, leaving
from broker.provider import TAG_GENERATION, TAG_INSTALLATION, TAG_JOB, Kind, LaunchRequest, Provider, Traits
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
    with its upload took so far, None until measured. any_of: offers any of which may win, the one asked for first.
    """

    ends: tuple[tuple[float, str], ...] = ()
    bid: float | None = None
    hazard: float = 0.0
    save: float | None = None
    any_of: tuple[Offer, ...] = ()


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

    Mints the guest's access, puts the one-time boot object into the home and signs the one URL that reads it. image:
    what the task names, None for the default. Raises HomeError, and ConfigError where the secrets cannot be unsealed,
    the image does not go with the offer, or the home's key must not go to its host.
    """
    inherit(row, task, offer, world)
    now = world.clock()
    provider = world.provider(offer.provider)
    traits = provider.traits
    limits = world.limits(simulated=traits.simulated)
    keys, home = JobKeys(row.id), _home_for(row, provider, world)
    placed = _placed(traits, image, offer)
    until, _ = end_of(task, offer, None, now)
    access, itself = identity.entry(world.config, row.home, row.id, generation, until, provider, offer)
    _fit_to_give(access, offer, home)
    lasts = renewals.renewable(world.config, access)
    access_end = None if lasts else access.expires_at
    latest, _ = end_of(task, offer, access_end, now)
    end_by, end_why = end_of(task, offer, access_end, now, terms.ends)
    dearest = max(terms.bid or 0.0, *(one.hourly for one in (offer, *terms.any_of)))
    prepared: Mapping[str, Any] = row.prepared or {}
    fetch_until = traits.boot_limit + BOOT_MARGIN
    workdir = prepared.get("workdir")
    read, sent = _data_prices(row.home, offer, world) if task.cache else (0.0, 0.0)
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
        egress=read,
        leaving=sent,
        access_url=renewals.address(home, row.id, generation) if lasts else "",
        kind=str(traits.kind),
        container=placed.container if traits.kind is not Kind.CONTAINER else None,
        runtime=_runtime(row.id, offer, traits, placed, home, fetch_until, world),
        keep=task.keep_on_failure.lasts(dearest) if task.keep_on_failure is not None else 0.0,
    )
    home.put(keys.boot(generation), boot_script(boot))
    tags = {**task.labels, TAG_INSTALLATION: world.installation, TAG_JOB: row.id, TAG_GENERATION: str(generation)}
    return LaunchRequest(
        job=row.id,
        generation=generation,
        offer=offer,
        token=token_of(world.installation, row.id, generation, offer, terms.bid),
        tags=tags,
        user_data=_user_data(home.sign_get(keys.boot(generation), fetch_until), end_by, now, offer, traits),
        disk=disk,
        end_by=end_by,
        end_why=end_why,
        frozen_at=now,
        image=placed.machine,
        container=placed.container,
        bid=terms.bid,
        latest=latest,
        any_of=terms.any_of,
        identity=itself,
    )


def _home_for(row: JobRow, provider: Provider, world: World) -> Home:
    """The job's home, which a machine of that provider can reach and start from. Raises ConfigError, HomeError."""
    home, spec = world.home(row.home), JobKeys(row.id).spec
    if home.is_local and not provider.traits.simulated:
        raise ConfigError(
            f"the home {row.home} is a folder on this machine, which {provider.name} cannot reach",
            fix="set `home` to an object store, such as s3://BUCKET/PREFIX",
        )
    if home.find(spec) is None:
        # Its machine would find nothing to run, and the snapshots are gone with it.
        raise HomeError(
            f"the home {row.home} has lost {spec}: the job cannot be started from it",
            fix="put the home's objects back, or submit the task again",
        )
    return home


def _placed(traits: Traits, image: str | None, offer: Offer) -> images.Placed:
    try:
        return images.placed(traits.kind, image, _architecture(offer, traits))
    except ValueError as error:
        raise ConfigError(
            f"{offer.where} cannot run this task: {error}", fix="name a container image, or other places in infra"
        ) from error


def _data_prices(home: str, offer: Offer, world: World) -> tuple[float, float]:
    """USD per GiB for what this machine reads from its home, and for what it sends there; 0 where that is not known."""
    settings = world.config.home_config
    prices = Prospect(egress=by_place(home, settings), leaving=leaving(home, settings))
    return prices.egress_of(offer) or 0.0, prices.leaving_of(offer) or 0.0


def _fit_to_give(access: Access, offer: Offer, home: Home) -> None:
    """A host that anybody may own is never given a key that reaches more than its own job."""
    if not access.scoped and not home.is_local and offer.trust is not Trust.CLOUD:
        raise ConfigError(
            f"{offer.where} is a {offer.trust} host, and the home's key reaches more than this job",
            fix="let the broker mint keys for one job: set `mint` in [home_config], or run `broker home setup`",
        )


def _architecture(offer: Offer, traits: Traits) -> str:
    """The machine's processor, `x86_64` unless the offer's `extra["architecture"]` says otherwise."""
    import platform

    here = {"arm64": "aarch64"}.get(platform.machine(), platform.machine())
    return str(offer.extra.get("architecture") or (here if traits.kind is Kind.BARE else "x86_64"))


def _runtime(
    job: str, offer: Offer, traits: Traits, placed: images.Placed, home: Home, seconds: float, world: World
) -> dict[str, Any] | None:
    """What the guest is told of its own runtime, put into the home first; None where it uses the broker's."""
    alone = traits.kind is not Kind.BARE
    if not alone and placed.container is None:
        return None
    keys, architecture = JobKeys(job), _architecture(offer, traits)
    given = Artefacts().provide(home, keys, architecture, wheel=alone)
    if given.missing and alone:
        text = f"machines whose image has no Python from 3.11 on cannot run this job: {given.missing}"
        world.store.event(job, "warning", text, once="python")

    def told(sha256: str | None) -> dict[str, str] | None:
        if sha256 is None:
            return None
        key = keys.artefact(sha256)
        return {"url": home.sign_get(key, seconds), "sha256": sha256, "key": key}

    return {"architecture": architecture, "obstore": told(given.obstore), "python": told(given.python)}


def _user_data(boot_url: str, end_by: float, now: float, offer: Offer, traits: Traits) -> str:
    limit, kind = traits.user_data_limit, traits.kind
    try:
        return user_data(boot_url, end_by, frozen_at=now, provider=offer.provider, kind=kind, limit=limit)
    except ValueError as error:
        raise ConfigError(
            f"the machine cannot be told where to start: {error}",
            fix="use keys without a session token, whose signed addresses are short, or a shorter prefix for the home",
        ) from error


def _python(traits: Traits) -> str:
    """The interpreter on the machine: a simulated one runs on this computer, with the broker's own."""
    import sys

    return sys.executable if traits.simulated else "python3"
