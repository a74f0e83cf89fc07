"""What finishing is expected to cost from here on an offer, in USD, part by part.

A machine is lost at a constant hazard `h`. Each loss costs the work since the last snapshot, and a restart: the time
from a launch to the first step. With a snapshot every `t` hours, of which half is lost on average, and restarts of `r`
hours that may be lost themselves, `w` hours of work take

    w / t * (exp(h t) - 1) / h * exp(h r)      hours,

after the first start (J. T. Daly, "A higher order estimate of the optimum checkpoint interval", 2006, without the time
that a save takes). It is exact for a constant hazard and stays finite where `1 + h * lost` would be too kind.

Money is USD, time hours, data GiB. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil, expm1
from typing import Any, NamedTuple

from broker.allowance import CENT
from broker.offer import Offer
from broker.policy.egress import elsewhere
from broker.policy.hazard import model

PARTS = 11
"""Fields of `Cost`, its first, that add up to the total."""
_STEEPEST = 50.0
"""The largest exponent: nothing that it stands for is ever worth doing, and the number stays one."""
_SMALL = 1e-9
_MANY = 1e6
"""Ends of hosts that do not last for one snapshot: the work is never done."""
LOST = 0.25
"""Hours of work lost with a machine where the task does not say how often it saves."""
RESTART = 5 / 60
"""Hours from a launch to the first step on a rented machine, until measured."""


class Cost(NamedTuple):
    """The expected cost of finishing, in its parts, which add up to `total`.

    machine, disk and address: of the work itself. rework: work done again. restarts: from each launch to its first
    step, the first one included. egress: what the home charges for checkpoints that are restored. cache: the same for
    the task's cache folders, or the time to fetch that anew where it is cheaper. download and upload: what the
    machine's host or cloud charges, most of all for saves. minimum: billed though not used. later: the work after this
    host has ended, elsewhere. hours: until done. moves: losses expected on the way, a host's end included.
    ends: whether the host ends before.
    per_hour_of_progress: the total by the hours of work, as they count on a card of speed 1.
    season: what an hour costs on average over the run, in times of the price now; seen: that is what past weeks showed.
    """

    machine: float
    disk: float
    address: float
    rework: float
    restarts: float
    egress: float
    cache: float
    download: float
    upload: float
    minimum: float
    later: float
    total: float
    per_hour_of_progress: float
    hours: float
    moves: float
    hazard: float
    ends: bool = False
    season: float = 1.0
    seen: bool = False

    @property
    def parts(self) -> dict[str, float]:
        """By name, those that cost anything."""
        return {name: usd for name, usd in zip(self._fields[:PARTS], self[:PARTS], strict=True) if usd}

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


class _Course(NamedTuple):
    """How a stretch of work goes: hours of work, of work done again, of starting, of that the first; losses."""

    work: float
    lost: float
    starting: float
    losses: float
    first: float

    @property
    def hours(self) -> float:
        return self.work + self.lost + self.starting


@lru_cache(maxsize=4096)
def _course(work: float, hazard: float, lost: float, restart: float, start: float) -> _Course:
    if hazard < _SMALL or work <= 0:
        return _Course(work, 0.0, start, 0.0, start)
    interval = min(2 * lost, work)
    broken = work * hazard if interval < _SMALL else work / interval * expm1(min(hazard * interval, _STEEPEST))
    again = expm1(min(hazard * restart, _STEEPEST)) / hazard
    first = expm1(min(hazard * start, _STEEPEST)) / hazard
    rework = max(0.0, broken / hazard - work)
    starting = first + broken * again
    return _Course(work, rework, starting, hazard * (work + rework + starting), first)


def expected(
    offer: Offer,
    work_hours: float,
    *,
    hazard: float,
    lost_hours: float,
    restart_hours: float,
    start_hours: float | None = None,
    checkpoint_gib: float = 0.0,
    egress_per_gib: float = 0.0,
    cache_usd: float = 0.0,
    download_gib: float = 0.0,
    download_per_gib: float = 0.0,
    saves: float = 0.0,
    upload_gib: float = 0.0,
    upload_per_gib: float = 0.0,
    save_per_gib: float | None = None,
    minimum_hours: float = 0.0,
    speed: float = 1.0,
    resumed: bool = False,
    now: float | None = None,
    after: float | None = None,
    season: float = 1.0,
    seen: bool = False,
) -> Cost:
    """What `work_hours` of work are expected to cost on this offer.

    hazard: losses per hour. lost_hours: work lost with a machine, on average. restart_hours: from a launch to its first
    step; start_hours: the same for the first launch where it differs. checkpoint_gib is read from the home for
    `egress_per_gib` at every restart, and at the first start where the job is `resumed`; download_gib comes to every
    machine, upload_gib leaves once, the checkpoint `saves` times, for save_per_gib where that differs.
    minimum_hours: least that one launch is billed for. speed: how fast the card is, where the work's hours are
    those of a card of speed 1. season: times the machine's price now that it costs on average over the run
    (`broker.policy.past`), its disk not; seen: as in `Cost`.

    now: seconds since the epoch; with it a host's end inside the job counts as a loss. What is left then goes on at
    `after` USD per hour of work, or, where None, on hosts like this one.
    """
    course = _course(
        work_hours / speed, hazard, lost_hours, restart_hours, restart_hours if start_hours is None else start_hours
    )
    ends = left = 0.0
    if now is not None and offer.ends_at is not None:
        life = max(0.0, offer.ends_at - now) / 3600
        if life < course.hours - _SMALL:
            course, ends, left = _ended(course, life, lost_hours, restart_hours, elsewhere=after is not None)
    price = offer.price * season
    hourly = price + offer.disk_price + offer.address_price
    moves = course.losses + ends
    minimum = max(0.0, minimum_hours * (moves + 1) - course.hours) * hourly if minimum_hours else 0.0
    parts = (
        course.work * price,
        course.work * offer.disk_price,
        course.work * offer.address_price,
        course.lost * hourly,
        course.starting * hourly,
        (moves + resumed) * checkpoint_gib * egress_per_gib,
        (moves + 1) * cache_usd,
        ((moves + 1) * download_gib + (moves + resumed) * checkpoint_gib) * download_per_gib,
        upload_gib * upload_per_gib
        + saves * checkpoint_gib * (upload_per_gib if save_per_gib is None else save_per_gib),
        minimum,
        (left * speed + restart_hours) * after if left and after is not None else 0.0,
    )
    total = sum(parts)
    progress = total / work_hours if work_hours > 0 else 0.0
    return Cost(*parts, total, progress, course.hours + left, moves, hazard, ends > 0, season, seen)


def _ended(
    course: _Course, life: float, lost: float, restart: float, *, elsewhere: bool
) -> tuple[_Course, float, float]:
    """The course on a host that lasts `life` hours, the ends of hosts in it, and the work left for elsewhere.

    Where nothing is known of elsewhere, every next host lasts as long, and nothing is left.
    """
    if not elsewhere:
        each = lost + restart
        ends = min(float(ceil((course.hours - life) / (life - each))), _MANY) if life > each else _MANY
        longer = _Course(
            course.work, course.lost + ends * lost, course.starting + ends * restart, course.losses, course.first
        )
        return longer, ends, 0.0
    started = min(course.first, life)
    share = (life - started) / max(course.hours - course.first, _SMALL)
    lost = min(lost, course.work * share)
    here = _Course(
        course.work * share - lost,
        course.lost * share + lost,
        started + (course.starting - course.first) * share,
        course.losses * share,
        started,
    )
    return here, 1.0, course.work - here.work


_NONE: dict[str, Any] = {}


class Terms(NamedTuple):
    """What an offer adds to the work but for its price, its hazard and its end.

    restart: hours from a launch to the first step. speed: of its card. egress, download, upload, save: USD per GiB of
    what the home sends, what comes to the machine, what goes elsewhere and what goes to the home. minimum: hours billed
    at least.
    """

    restart: float
    speed: float
    egress: float
    download: float
    upload: float
    save: float
    minimum: float


@dataclass(frozen=True, slots=True)
class Prospect:
    """The work that a job has before it, and what it takes besides. hours: None where the task does not say.

    lost: hours of work lost with a machine. restarts: measured hours from a launch to the first step, by provider.
    speed: by card or model, where `hours` are those of a card of speed 1; egress: USD per GiB that the home charges,
    by the provider, or `provider/region`, of the machine that reads; leaving: what the machine's cloud charges for what
    it sends to the home, by the same. sent: what saves send there in an hour, None until measured; upload: what goes
    elsewhere. image: what pulling the container image takes, on every machine. cache: what the task's cache folders
    hold, and spared: hours that restoring them spares a start, None until measured. Data in GiB. What a host charges
    for data or bills at least is in its `Offer.extra`: `download_per_gib` and `upload_per_gib` in USD, `minimum_hours`.
    """

    hours: float | None = None
    lost: float = LOST
    restarts: Mapping[str, float] = field(default_factory=dict)
    speed: Mapping[str, float] = field(default_factory=dict)
    checkpoint: float = 0.0
    egress: Mapping[str, float] = field(default_factory=dict)
    leaving: Mapping[str, float] = field(default_factory=dict)
    download: float = 0.0
    image: float = 0.0
    upload: float = 0.0
    sent: float | None = None
    resumed: bool = False
    cache: float = 0.0
    spared: float | None = None

    def cost(
        self,
        offer: Offer,
        hazard: float,
        now: float | None,
        after: float | None = None,
        season: tuple[float, bool] = (1.0, False),
    ) -> Cost:
        """See `expected`. Only where `hours` is known."""
        assert self.hours is not None
        terms = self.terms(offer)
        return expected(
            offer,
            self.hours,
            hazard=hazard,
            lost_hours=self.lost,
            restart_hours=terms.restart,
            checkpoint_gib=self.checkpoint,
            egress_per_gib=terms.egress,
            cache_usd=self.cached(terms.egress, offer.hourly),
            download_gib=self.download + self.image,
            download_per_gib=terms.download,
            saves=self.saves,
            upload_gib=self.upload,
            upload_per_gib=terms.upload,
            save_per_gib=terms.save,
            minimum_hours=terms.minimum,
            speed=terms.speed,
            resumed=self.resumed,
            now=now,
            after=after,
            season=season[0],
            seen=season[1],
        )

    def cached(self, egress: float, hourly: float) -> float:
        """USD that having the cache on a machine of that price costs, however the machine does it: it reads it where
        that is cheaper than the time that it spares (`broker.allowance.to_restore`)."""
        read = self.cache * egress
        if self.spared is None:
            return read if read <= CENT else 0.0
        return min(read, self.spared * hourly)

    def terms(self, offer: Offer) -> Terms:
        extra = offer.extra or _NONE
        return Terms(
            self.restart(offer),
            self.speed_of(offer),
            self.egress_of(offer) or 0.0,
            extra.get("download_per_gib", 0.0),
            extra.get("upload_per_gib", elsewhere(offer.provider, offer.region)),
            self.leaving_of(offer) or 0.0,
            extra.get("minimum_hours", 0.0),
        )

    @property
    def saves(self) -> float:
        """How many whole checkpoints are sent until the work is done. Only where `hours` is known."""
        assert self.hours is not None
        if self.sent is not None and self.checkpoint:
            return self.sent * self.hours / self.checkpoint
        return self.hours / (2 * self.lost) if self.lost else 0.0

    def length(self, offer: Offer) -> float:
        """Hours that the work takes on the offer's card, without a loss. Only where `hours` is known."""
        assert self.hours is not None
        return self.hours / self.speed_of(offer) if self.speed else self.hours

    def egress_of(self, offer: Offer) -> float | None:
        """USD per GiB that the home charges for what the machine reads; None where that is not known."""
        return self.egress.get(f"{offer.provider}/{offer.region}", self.egress.get(offer.provider))

    def leaving_of(self, offer: Offer) -> float | None:
        """USD per GiB that is charged for what the machine sends to the home; None where that is not known."""
        if offer.extra and "upload_per_gib" in offer.extra:
            return float(offer.extra["upload_per_gib"])
        return self.leaving.get(f"{offer.provider}/{offer.region}", self.leaving.get(offer.provider))

    def restart(self, offer: Offer) -> float:
        """Hours from a launch to the first step."""
        found = self.restarts.get(offer.provider)
        return found if found is not None else 0.0 if offer.simulated else RESTART

    def speed_of(self, offer: Offer) -> float:
        """How fast the offer's card is, where the work's hours are those of a card of speed 1."""
        return speed_of(offer.gpu or "", self.speed)


def speed_of(card: str, speed: Mapping[str, float]) -> float:
    """What is said of the card, or else of its model; 1 where nothing is."""
    if not speed or not card:
        return 1.0
    found = speed.get(card)
    return found if found is not None else speed.get(model(card), 1.0)
