"""When a task runs again and again: its cron line in its own time zone, and what of it is due. Pure.

Cron's rules, with what clocks do to them: a local time that a day does not have comes once, when the clock has jumped;
one that a day has twice comes once, the first time; what comes every so many minutes goes on by the real clock. Where
both day fields are set, either will do, as in cron.

Moments are seconds since the epoch.
"""

from __future__ import annotations

import difflib
import math
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice
from typing import Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from broker import quantity
from broker.document import Problem
from broker.policy.season import level, offset, weekly

Missed = Literal["join", "skip"]
Overlap = Literal["skip", "queue"]
Start = Literal["cheapest", "first"]
MISSED: tuple[Missed, ...] = ("join", "skip")
OVERLAP: tuple[Overlap, ...] = ("skip", "queue")
STARTS: tuple[Start, ...] = ("cheapest", "first")
CLOCK = re.compile(r"([01]?\d|2[0-3]):[0-5]\d", re.ASCII)
NICKNAMES: Mapping[str, str] = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
FIELDS = ("minute", "hour", "day of month", "month", "day of week")
STEPS = ((60, "every hour"), (24, "every day"), (31, "every month"), (12, "every year"), (7, "every week"))
"""The longest step of each field, and what a longer one comes to."""
DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT", "L")
LATE = 600.0
"""Seconds after its time within which a run is not missed yet: brokers look again and again, and computers are busy."""
AROUND = 26 * 3600.0
"""Seconds before a moment from which runs are counted, so that a clock that was set back is seen whole."""
LONGEST = 400 * 86400.0
PER_MONTH = 400
"""Runs of each month that are looked at for the minutes at which they come."""
WORTH_WAITING = 0.03
"""The least part of the price that must be saved for a run to wait."""
SAME = 1e-9
"""The part by which two prices may differ and be the same."""
SLACK = 1.25
"""How much longer than its work a run is taken to need: booting, moves and saves."""


@dataclass(frozen=True, slots=True)
class Window:
    """Between which times of the day a run may start, in the schedule's zone. start: `cheapest` waits for the hours
    that past prices favour, `first` does not.
    """

    begin: str
    end: str
    start: Start = "cheapest"

    def problems(self) -> Iterator[Problem]:
        for name, text in (("from", self.begin), ("to", self.end)):
            if not CLOCK.fullmatch(text):
                yield Problem(f"schedule.window.{name}", f"must be a clock time such as 22:00, not {text!r}")
        if self.start not in STARTS:
            yield Problem("schedule.window.start", f"must be cheapest or first, not {self.start!r}")
        if self.begin == self.end:
            yield Problem("schedule.window.to", "is the same as `from`: the window is empty")

    def around(self, slot: float, zone: tzinfo) -> tuple[float, float]:
        """The window that a run of this slot may start in: the one that it lies in, else the next."""
        end = moment(self.end, slot, zone)
        begin = later = moment(self.begin, end - 2 * 86400.0, zone)
        while later <= end:  # days have 23 to 25 hours
            begin, later = later, moment(self.begin, later, zone)
        return max(begin, slot), end


@dataclass(frozen=True, slots=True)
class Schedule:
    """cron: five fields, or `@daily` and the like. tz: an IANA time zone.

    deadline: of each run, as a task's, in that zone. max_price: USD per hour, over the task's own. missed: runs whose
    time passed while nothing was awake are joined into one, or skipped. overlap: a run whose predecessor still runs is
    skipped, or queued behind it, one at most. window: when a run may start, where not at once.
    """

    cron: str
    tz: str = "UTC"
    deadline: str = ""
    max_price: float | None = None
    missed: Missed = "join"
    overlap: Overlap = "skip"
    window: Window | None = None

    @classmethod
    def of(cls, line: str, **more: object) -> Schedule:
        """From a cron line that may end with a time zone: `30 2 * * 1-5 Europe/Paris`."""
        words = line.split()
        count = 1 if words and words[0].startswith("@") else 5
        if len(words) == count + 1 and "tz" not in more and _may_be_zone(words[count]):
            words, more = words[:count], {**more, "tz": words[count]}
        return cls(" ".join(words), **more)  # type: ignore[arg-type]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Schedule:
        """What `dataclasses.asdict` gave."""
        return cls(**{**data, "window": Window(**data["window"]) if data.get("window") else None})

    @property
    def zone(self) -> ZoneInfo:
        return ZoneInfo(self.tz)

    def problems(self) -> Iterator[Problem]:
        if (wrong := zone_problem(self.tz)) is not None:
            yield Problem("schedule.tz", *wrong)
        if (message := _cron_problem(self.cron)) is not None:
            yield Problem("schedule.cron", message, "for instance `0 22 * * 1-5` or @daily")
        if self.missed not in MISSED:
            yield Problem("schedule.missed", f"must be join or skip, not {self.missed!r}")
        if self.overlap not in OVERLAP:
            yield Problem("schedule.overlap", f"must be skip or queue, not {self.overlap!r}")
        if self.max_price is not None and not 0 < self.max_price < math.inf:
            yield Problem("schedule.max_price", f"must be above zero USD per hour, not {self.max_price}")
        try:
            if self.deadline:
                quantity.deadline(self.deadline)
        except ValueError as error:
            yield Problem("schedule.deadline", str(error))
        if self.window is not None:
            yield from self.window.problems()


@dataclass(frozen=True, slots=True)
class Due:
    """slot: the run's own moment. missed: how many before it had passed. launch: False where it is missed, too."""

    slot: float
    missed: int = 0
    launch: bool = True


def runs(schedule: Schedule, after: float) -> Iterator[float]:
    """Every run after a moment, in order."""
    last = after
    for slot in _slots(schedule, after - AROUND):
        if slot > last:
            last = slot
            yield slot


def _slots(schedule: Schedule, after: float) -> Iterator[float]:
    """Runs in order; one may come twice.

    cronsim gives the times on the clock, without a zone: with one it goes by whole hours, over the minutes that a
    change of clocks by half an hour, or at a quarter to three, leaves of an hour.
    """
    from cronsim import CronSim

    zone, line = schedule.zone, _fields(schedule.cron)
    often = any(field.startswith("*") for field in line.split()[:2])
    again: deque[float] = deque()
    for local in CronSim(line, datetime.fromtimestamp(after, zone).replace(tzinfo=None)):
        first, second = (local.replace(tzinfo=zone, fold=fold).timestamp() for fold in (0, 1))
        if first > second:  # the clock jumps over it
            if often:
                continue
            first = _jumped(local, zone)
        while again and again[0] < first:
            yield again.popleft()
        yield first
        if often and second > first:
            again.append(second)


def _jumped(local: datetime, zone: tzinfo) -> float:
    """The moment at which the clock has jumped over a local time."""
    while True:
        local += timedelta(minutes=1)
        first, second = (local.replace(tzinfo=zone, fold=fold).timestamp() for fold in (0, 1))
        if first <= second:
            return first


def due(schedule: Schedule, since: float, now: float) -> Due | None:
    """What is to be done now about the runs after `since`, the last one that was seen to; None for nothing.

    However many have passed, there is one at most: the newest. A clock that was set back makes none due again.
    """
    newest, count = None, 0
    for slot in runs(schedule, max(since, now - LONGEST)):
        if slot > now:
            break
        newest, count = slot, count + 1
    if newest is None:
        return None
    if schedule.missed == "skip" and now - newest > LATE:
        return Due(newest, count, launch=False)
    return Due(newest, count - 1)


def upcoming(schedule: Schedule, after: float, count: int = 3) -> list[float]:
    """The next runs."""
    return list(islice(runs(schedule, after), count))


def moment(text: str, start: float, zone: tzinfo | None = None) -> float:
    """The deadline of something that starts at `start`: `6h` after it, the next `07:00` in the zone, or a date.

    zone: None for this computer's. A clock time that the day does not have is taken by the clock before its jump, one
    that it has twice by its first. Raises ValueError for what is no deadline (`broker.quantity.deadline`).
    """
    bare = quantity.deadline(text)
    try:
        hour, minute = (int(part) for part in bare.split(":"))
    except ValueError:
        try:
            given = datetime.fromisoformat(bare.replace(" ", "T", 1))
        except ValueError:
            return start + quantity.duration(bare)
        return (given if given.tzinfo else given.replace(tzinfo=zone)).timestamp()
    day = datetime.fromtimestamp(start, zone)
    for days in range(3):
        local = datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone) + timedelta(days=days)
        if local.timestamp() > start:
            return local.timestamp()
    raise AssertionError(f"no {text} within three days")


@dataclass(frozen=True, slots=True)
class Chosen:
    """When a run starts, and why then."""

    at: float
    why: str = ""


def chosen_start(
    now: float, latest: float, hours: float, points: Sequence[tuple[float, float]], zone: tzinfo
) -> Chosen:  # fmt: skip
    """The start for which past prices were lowest, now or a whole number of hours later, not after `latest`. Pure.

    hours: that the run takes. points: (moment, USD per hour) of what it could have rented, in any order. Until they
    span a week, nights and weekends are taken to be cheaper (`broker.policy.season`); after that hours of the day that
    nothing is known of are no reason to wait, and gains of less than WORTH_WAITING never are.
    """
    length = max(1, math.ceil(hours))
    season = weekly(points, zone) or level(points, zone)
    source = "past prices then were" if season.seen else "until a week of prices is known, prices then are taken to be"
    best, cost_now = Chosen(now), season.mean(now + offset(zone, now), length)
    if cost_now is None:
        return Chosen(now, "what it costs at this hour is not known")
    lowest = cost_now * (1 - WORTH_WAITING)
    for ahead in range(1, int((latest - now) // 3600) + 1):
        start = now + 3600.0 * ahead
        cost = season.mean(start + offset(zone, start), length)
        if cost is not None and cost < lowest * (1 - SAME):
            lowest = cost
            best = Chosen(start, f"{source} {100 * (1 - cost / cost_now):.0f}% lower than now's")
    return best


def minutes(schedule: Schedule, system: tzinfo | None, now: float) -> tuple[int, ...]:
    """The minutes of the hour at which a run may come, or its window begin, within the next year.

    system: the zone of the clock that they are told by; None for this computer's.
    """
    found: set[int] = set()
    for month in range(13):
        for slot in islice(runs(schedule, now + month * LONGEST / 13), PER_MONTH):
            if len(found) == 60 or (found and slot > now + LONGEST):
                break
            begin = schedule.window.around(slot, schedule.zone)[0] if schedule.window is not None else slot
            found |= {datetime.fromtimestamp(at, system).minute for at in (slot, begin)}
    return tuple(sorted(found))


def told(slot: float, zone: tzinfo) -> str:
    """A run for people: `Wed 2026-12-02 22:00 +01:00`."""
    local = datetime.fromtimestamp(slot, zone)
    offset = local.strftime("%z")
    return f"{local:%a %Y-%m-%d %H:%M} {offset[:3]}:{offset[3:5]}"


def iso(at: float, zone: tzinfo = UTC) -> str:
    """A moment as a task's `deadline` can hold it."""
    return datetime.fromtimestamp(at, zone).isoformat(timespec="seconds")


def zone_problem(name: str) -> tuple[str, str] | None:
    """What is wrong with a time zone's name, and what to write; None where it is one."""
    if _is_zone(name):
        return None
    # In Etc/GMT+2 the sign means the opposite of what people write.
    known = {zone for zone in available_timezones() if not zone.startswith("Etc/")} - {"localtime"}
    folded = name.lower().replace(" ", "_")
    near = [zone for zone in sorted(known) if folded in (zone.lower(), zone.lower().rpartition("/")[2])][:1]
    if not near and "/" in name:  # not of short names and offsets, whose neighbours are other zones altogether
        near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.7)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"there is no time zone {name!r}{hint}", f"write {near[0]}" if near else "for instance Europe/Lisbon or UTC"


def _is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return bool(name)


def _may_be_zone(word: str) -> bool:
    """Is it meant as a time zone, rightly written or not, rather than as a sixth field?"""
    return word[:1].isalpha() and word.upper() not in DAYS


def _fields(cron: str) -> str:
    return NICKNAMES.get(cron.strip().lower(), cron.strip())


def _cron_problem(cron: str) -> str | None:
    """Why a cron line is none, or never comes."""
    from cronsim import CronSim, CronSimError

    line = _fields(cron)
    if line.startswith("@"):
        return f"there is no {cron!r}: a schedule has a time; {', '.join(NICKNAMES)} are known"
    fields = line.split()
    if len(fields) != 5:
        return f"must be five fields (minute, hour, day of the month, month, day of the week), not {len(fields)}"
    try:
        found = next(CronSim(line, datetime(2027, 1, 1, tzinfo=UTC)), None)
    except CronSimError as error:
        return _said(str(error), fields)
    except StopIteration:
        found = None
    return _too_far(fields) if found is not None else f"never comes: {cron!r} names a day that there is not"


def _too_far(fields: Sequence[str]) -> str | None:
    """A step that is longer than its field: `*/90` among the minutes comes each hour, and not each 90 minutes."""
    for name, (longest, each), value in zip(FIELDS, STEPS, fields, strict=True):
        for term in value.split(","):
            _, slash, step = term.partition("/")
            if slash and int(step) > longest:
                return f"its {name} {value!r} has a step of more than {longest}: it would come anew {each}"
    return None


def _said(error: str, fields: list[str]) -> str:
    """What cronsim means by `Bad hour`."""
    from cronsim import CronSim, CronSimError

    which = error.removeprefix("Bad ").replace("-", " ")
    if which not in FIELDS:
        return f"is no cron line: {error}"
    value = fields[FIELDS.index(which)]
    if which == "day of month":
        try:
            CronSim(f"0 0 {value} * *", datetime(2027, 1, 1, tzinfo=UTC))
        except CronSimError:
            pass
        else:
            return f"never comes: no month of {fields[3]!r} has a day {value}"
    return f"its {which} {value!r} is none"
