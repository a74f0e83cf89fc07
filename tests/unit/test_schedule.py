"""When runs are due, over every change of clocks. Case 39's table holds exactly."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from broker.schedule import (
    LATE,
    Chosen,
    Due,
    Schedule,
    Window,
    chosen_start,
    due,
    minutes,
    moment,
    runs,
    told,
    upcoming,
    zone_problem,
)

HOUR, DAY = 3600.0, 86400.0


def utc(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%MZ")


@pytest.mark.parametrize(
    ("cron", "tz", "day", "want"),
    [
        ("30 2 * * *", "Europe/Paris", "2026-03-28", ["2026-03-28T01:30Z", "2026-03-29T01:00Z", "2026-03-30T00:30Z"]),
        ("30 2 * * *", "Europe/Paris", "2026-10-24", ["2026-10-24T00:30Z", "2026-10-25T00:30Z", "2026-10-26T01:30Z"]),
        (
            "30 1 * * *", "America/New_York", "2026-10-31",
            ["2026-10-31T05:30Z", "2026-11-01T05:30Z", "2026-11-02T06:30Z"],
        ),
    ],
)  # fmt: skip
def test_each_night_has_one_run_over_a_change_of_clocks(cron: str, tz: str, day: str, want: list[str]) -> None:
    start = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(tz)).timestamp()
    assert [iso(slot) for slot in upcoming(Schedule(cron, tz), start)] == want


@pytest.mark.parametrize(("day", "count"), [("2026-10-25", 50), ("2026-03-29", 46), ("2026-06-01", 48)])
def test_what_comes_every_half_hour_goes_by_the_real_clock(day: str, count: int) -> None:
    zone = ZoneInfo("Europe/Paris")
    start = datetime.fromisoformat(day).replace(tzinfo=zone)
    end = (start + timedelta(days=1)).timestamp()
    found = []
    for slot in runs(Schedule("*/30 * * * *", "Europe/Paris"), start.timestamp() - 1):
        if slot >= end:
            break
        found.append(slot)
    assert len(found) == count
    assert {b - a for a, b in pairwise(found)} == {1800.0}


def by_the_minute(cron: str, zone: ZoneInfo, begin: float, end: float) -> list[float]:
    """Every run from a moment to another, by a look at the clock in each minute."""
    fields, minutes_and_hours = CronSim(cron, datetime(2026, 1, 1, tzinfo=UTC)), cron.split()[:2]
    often = any(field.startswith("*") for field in minutes_and_hours)

    def comes(local: datetime) -> bool:
        on_time = local.hour in fields.hours and local.minute in fields.minutes
        return on_time and local.month in fields.months and fields.match_day(local.date())

    found, before = [], datetime.fromtimestamp(begin - 60, zone).replace(tzinfo=None)
    for at in range(int(begin), int(end), 60):
        now = datetime.fromtimestamp(at, zone)
        shown, jumped = now.replace(tzinfo=None), before + timedelta(minutes=1)
        over = [jumped + timedelta(minutes=n) for n in range(int((shown - jumped).total_seconds() // 60))]
        if (comes(shown) and (often or not now.fold)) or (not often and any(map(comes, over))):
            found.append(float(at))
        before = shown
    return found


@pytest.mark.parametrize(
    ("tz", "change"),
    [
        ("Australia/Lord_Howe", "2026-10-03T15:30"), ("Australia/Lord_Howe", "2027-04-03T15:00"),  # by half an hour
        ("Pacific/Chatham", "2026-09-26T14:00"), ("Pacific/Chatham", "2027-04-03T14:00"),  # at a quarter to three
        ("Africa/Casablanca", "2027-02-07T02:00"), ("Africa/Casablanca", "2027-03-14T02:00"),  # for Ramadan
        ("America/Havana", "2026-11-01T05:00"), ("America/Havana", "2027-03-14T05:00"),  # at midnight
        ("Antarctica/Troll", "2026-10-25T01:00"),  # by two hours
    ],
)  # fmt: skip
def test_every_change_of_clocks_is_cronsims_rules_by_the_minute(tz: str, change: str) -> None:
    zone, at = ZoneInfo(tz), utc(change)
    assert zone.utcoffset(datetime.fromtimestamp(at - 60, zone)) != zone.utcoffset(datetime.fromtimestamp(at, zone))
    begin, end = at - 8 * HOUR, at + 8 * HOUR
    for cron in (
        "30 2 * * *", "0 0 * * *", "30 0 * * *", "15,45 1-3 * * *", "0 1-4 * * *", "59 1 * * *",
        "*/30 * * * *", "*/15 3 * * *", "0 */2 * * *", "10 */3 * * *", "* 2 * * 0", "*/20 1-3 L,3-14 * SUN",
    ):  # fmt: skip
        found = list(takewhile(lambda slot: slot < end, runs(Schedule(cron, tz), begin - 1)))
        assert found == by_the_minute(cron, zone, begin, end), cron


@pytest.mark.parametrize(
    ("cron", "why"),
    [
        ("0 0 30 2 *", "never comes: no month of '2' has a day 30"),
        ("0 0 30-31 2 *", "never comes: no month of '2' has a day 30-31"),
        ("0 0 31 4,JUN *", "never comes: no month of '4,JUN' has a day 31"),
        ("*/90 * * * *", "its minute '*/90' has a step of more than 60: it would come anew every hour"),
        ("0 0,6/48 * * *", "its hour '0,6/48' has a step of more than 24: it would come anew every day"),
        ("0 0 ² * *", "its day of month '²' is none"),
        ("0 22 * * FRI-MON", "its day of week 'FRI-MON' is none"),
        ("0 22 15W * *", "its day of month '15W' is none"),
        ("0 0 22 * * *", "must be five fields (minute, hour, day of the month, month, day of the week), not 6"),
    ],
)
def test_what_never_comes_or_comes_otherwise_is_refused(cron: str, why: str) -> None:
    (problem,) = Schedule(cron).problems()
    assert (problem.field, problem.text) == ("schedule.cron", f"schedule.cron: {why}")


@pytest.mark.parametrize(
    ("cron", "first"),
    [
        ("0 0 29 2 *", "2028-02-29T00:00Z"),
        ("*/60 */24 * * *", "2026-12-02T00:00Z"),
        ("@daily", "2026-12-02T00:00Z"),
        ("0 22 L * *", "2026-12-31T22:00Z"),
        ("0 22 LW 1 *", "2027-01-29T22:00Z"),
        ("0 22 * * FRI#2", "2026-12-11T22:00Z"),
        ("0 22 * * 5L", "2026-12-25T22:00Z"),
        ("5/20 8-18/5 * JAN mon,wed", "2027-01-04T08:05Z"),
    ],
)
def test_what_cron_lines_may_say(cron: str, first: str) -> None:
    schedule = Schedule(cron)
    assert list(schedule.problems()) == []
    assert [iso(slot) for slot in upcoming(schedule, utc("2026-12-01T00:00"), 1)] == [first]


def test_either_day_field_will_do_and_seven_is_sunday() -> None:
    found = upcoming(Schedule("0 0 13 * 5"), utc("2026-11-30"), 4)
    assert [iso(slot)[:10] for slot in found] == ["2026-12-04", "2026-12-11", "2026-12-13", "2026-12-18"]
    sunday = utc("2026-12-01")
    assert upcoming(Schedule("0 9 * * 7"), sunday) == upcoming(Schedule("0 9 * * 0"), sunday)


def test_the_zone_is_utc_and_the_offset_is_told() -> None:
    assert Schedule.of("0 9 * * *").tz == "UTC"
    (slot,) = upcoming(Schedule("0 22 * * *", "Asia/Kolkata"), utc("2026-12-01"), 1)
    assert told(slot, ZoneInfo("Asia/Kolkata")) == "Tue 2026-12-01 22:00 +05:30"
    assert told(slot, UTC) == "Tue 2026-12-01 16:30 +00:00"
    assert told(slot, ZoneInfo("America/St_Johns")) == "Tue 2026-12-01 13:00 -03:30"


@pytest.mark.parametrize("name", ["Europe/Lissabon", "", "../../etc/passwd", "/etc/localtime", "Mars/Base", "+02:00"])
def test_unknown_zones_are_refused(name: str) -> None:
    assert zone_problem(name) is not None


@pytest.mark.parametrize(
    ("name", "meant"), [("utc", "UTC"), ("new york", "America/New_York"), ("Europe/Pariss", "Europe/Paris")]
)
def test_a_zone_written_wrongly_is_named(name: str, meant: str) -> None:
    assert zone_problem(name) == (f"there is no time zone {name!r}; did you mean {meant}?", f"write {meant}")


@pytest.mark.parametrize("name", ["CEST", "PST", "GMT+2", "UTC+1"])
def test_of_a_short_name_no_other_zone_is_suggested(name: str) -> None:
    """EST is not near CEST, and Etc/GMT+2 is two hours behind."""
    assert zone_problem(name) == (f"there is no time zone {name!r}", "for instance Europe/Lisbon or UTC")


@pytest.mark.parametrize("tz", ["Europe/Paris", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "UTC"])
@pytest.mark.parametrize("cron", ["30 2 * * *", "*/20 1-3 * * *", "0 0 * * 0", "15 */2 * * *"])
def test_runs_do_not_depend_on_when_they_are_asked_for(cron: str, tz: str) -> None:
    """A broker that starts at any moment, also between the two 02:30 of an autumn night, sees the same runs."""
    schedule, lots = Schedule(cron, tz), random.Random(f"{cron}{tz}")
    for start in (utc("2026-03-28T12:00"), utc("2026-10-24T12:00"), utc("2026-11-01T00:00"), utc("2026-04-04T00:00")):
        every = [slot for slot in upcoming(schedule, start, 400) if slot <= start + 2 * DAY]
        assert every == sorted(set(every))
        for _ in range(40):
            at = start + lots.random() * 2 * DAY
            expected = [slot for slot in every if slot > at][:1]
            if expected:
                assert upcoming(schedule, at, 1) == expected, (cron, tz, iso(at))


NIGHTLY = Schedule("0 22 * * *")
TEN = utc("2026-12-01T22:00")


def test_nothing_is_due_before_its_time_nor_twice() -> None:
    assert due(NIGHTLY, TEN - DAY, TEN - 1) is None
    assert due(NIGHTLY, TEN - DAY, TEN) == Due(TEN)
    assert due(NIGHTLY, TEN, TEN + 5) is None, "it was seen to"
    assert due(NIGHTLY, TEN, TEN - 4 * HOUR) is None, "the clock was set back"
    assert due(NIGHTLY, TEN, TEN - 4 * HOUR + DAY) is None, "and goes on from there"
    assert due(NIGHTLY, TEN, TEN + DAY) == Due(TEN + DAY)


def test_missed_runs_are_joined_into_one_or_skipped() -> None:
    late = TEN + 2 * DAY + HOUR
    assert due(NIGHTLY, TEN - DAY, late) == Due(TEN + 2 * DAY, missed=2)
    skips = Schedule("0 22 * * *", missed="skip")
    assert due(skips, TEN - DAY, late) == Due(TEN + 2 * DAY, missed=3, launch=False)
    assert due(skips, TEN - DAY, TEN + LATE) == Due(TEN), "a busy minute is no missed run"


def test_a_year_of_sleep_over_a_run_each_minute_is_soon_reckoned() -> None:
    found = due(Schedule("*/5 * * * *"), TEN - 3 * 365 * DAY, TEN)
    assert found is not None
    assert found.slot == TEN


def test_a_clock_times_deadline_is_the_next_one_in_the_zone() -> None:
    paris = ZoneInfo("Europe/Paris")
    assert iso(moment("07:00", utc("2026-12-01T21:00"), paris)) == "2026-12-02T06:00Z"
    assert iso(moment("07:00", utc("2026-12-02T05:59"), paris)) == "2026-12-02T06:00Z"
    assert iso(moment("07:00", utc("2026-12-02T06:00"), paris)) == "2026-12-03T06:00Z"
    # From 22:00 on the evening before, over both changes: the morning's own clock counts.
    assert iso(moment("07:00", utc("2026-03-28T21:00"), paris)) == "2026-03-29T05:00Z"
    assert iso(moment("07:00", utc("2026-10-24T20:00"), paris)) == "2026-10-25T06:00Z"
    # 02:30 is not on the one day, and twice on the other.
    assert iso(moment("02:30", utc("2026-03-28T22:00"), paris)) == "2026-03-29T01:30Z"
    assert iso(moment("02:30", utc("2026-10-24T22:00"), paris)) == "2026-10-25T00:30Z"
    assert iso(moment("2:30", utc("2026-10-25T00:45"), paris)) == "2026-10-26T01:30Z"


def test_other_deadlines_need_no_zone() -> None:
    paris, start = ZoneInfo("Europe/Paris"), utc("2026-12-01T21:00")
    assert moment("6h", start, paris) == start + 6 * HOUR
    assert iso(moment("2027-01-31 07:30", start, paris)) == "2027-01-31T06:30Z"
    assert iso(moment("2027-01-31T07:30+00:00", start, paris)) == "2027-01-31T07:30Z"


def test_the_minutes_at_which_to_look_are_this_computers() -> None:
    now = utc("2026-12-01")
    assert minutes(Schedule("30 22 * * *", "Europe/Paris"), UTC, now) == (30,)
    assert minutes(Schedule("0 22 * * *", "Asia/Kolkata"), UTC, now) == (30,)
    assert minutes(Schedule("*/20 * * * *"), ZoneInfo("Asia/Kathmandu"), now) == (5, 25, 45)
    assert minutes(Schedule("30 2 * * *", "Europe/Paris"), UTC, now) == (0, 30), "one night has no 02:30"
    assert len(minutes(Schedule("* * * * *"), UTC, now)) == 60
    assert minutes(Schedule("7 0 29 2 *"), UTC, now) == (7,)
    assert minutes(Schedule("0 22 * * *", "Australia/Lord_Howe"), UTC, now) == (0, 30), "it is off by half an hour"
    waits = Schedule("0 22 * * *", window=Window("23:45", "07:00"))
    assert minutes(waits, UTC, now) == (0, 45), "a run that waits for its window is launched when that begins"


def test_a_clock_time_without_a_zone_is_this_computers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Paris")
    time.tzset()
    try:
        assert iso(moment("07:00", utc("2026-03-28T21:00"))) == "2026-03-29T05:00Z"
        assert iso(moment("07:00", utc("2026-10-24T20:00"))) == "2026-10-25T06:00Z"
        assert iso(moment("2027-01-31 07:30", 0.0)) == "2027-01-31T06:30Z"
    finally:
        monkeypatch.undo()
        time.tzset()


PARIS = ZoneInfo("Europe/Paris")


@pytest.mark.parametrize(
    ("slot", "begin", "end"),
    [
        ("2026-12-01T21:00", "2026-12-01T21:00", "2026-12-02T06:00"),  # at its beginning, 22:00 in Paris
        ("2026-12-01T23:30", "2026-12-01T23:30", "2026-12-02T06:00"),
        ("2026-12-01T18:00", "2026-12-01T21:00", "2026-12-02T06:00"),  # before it
        ("2026-03-28T21:00", "2026-03-28T21:00", "2026-03-29T05:00"),
        ("2026-10-24T20:00", "2026-10-24T20:00", "2026-10-25T06:00"),
    ],
)
def test_the_window_of_a_run(slot: str, begin: str, end: str) -> None:
    assert Window("22:00", "07:00").around(utc(slot), PARIS) == (utc(begin), utc(end))


@pytest.mark.parametrize(
    ("begin", "end", "slot", "want"),
    [
        ("06:30", "07:00", "2026-03-28T19:00", ("2026-03-29T04:30", "2026-03-29T05:00")),  # a day of 23 hours
        ("06:30", "07:00", "2026-10-24T19:00", ("2026-10-25T05:30", "2026-10-25T06:00")),  # of 25
        ("07:30", "07:00", "2026-10-24T19:00", ("2026-10-24T19:00", "2026-10-25T06:00")),
        ("02:30", "03:30", "2026-03-28T19:00", ("2026-03-29T01:30", "2026-03-29T01:30")),  # it is jumped over
    ],
)
def test_a_window_is_no_longer_or_shorter_for_a_change_of_clocks(
    begin: str, end: str, slot: str, want: tuple[str, str]
) -> None:
    found = Window(begin, end).around(utc(slot), PARIS)
    assert found == (utc(want[0]), utc(want[1]))


def prices_of(cheap: range, days: int = 14) -> list[tuple[float, float]]:
    """A look each half hour: 1 USD per hour, 0.6 at the cheap hours of the day in Paris."""
    start = utc("2026-11-10T00:00")
    looks = [start + 1800.0 * n for n in range(48 * days)]
    return [(at, 0.6 if datetime.fromtimestamp(at, PARIS).hour in cheap else 1.0) for at in looks]


def test_it_waits_for_the_hours_that_were_cheap_and_starts_in_time() -> None:
    ten, seven = utc("2026-12-01T21:00"), utc("2026-12-02T06:00")
    found = chosen_start(ten, seven, 2.0, prices_of(range(2, 5)), PARIS)
    assert iso(found.at) == "2026-12-02T01:00Z", "at 02:00 in Paris, the first of two starts that cost the same"
    assert "40% lower than now's" in found.why
    early = chosen_start(ten, ten + 3 * HOUR, 2.0, prices_of(range(2, 5)), PARIS)
    assert iso(early.at) == "2026-12-02T00:00Z", "the deadline leaves time until 01:00: half of it is cheap"
    assert chosen_start(ten, ten + HOUR, 2.0, prices_of(range(2, 5)), PARIS).at == ten


def test_until_a_week_of_prices_is_known_nights_and_weekends_are_taken_to_be_cheaper() -> None:
    """A Tuesday evening, a Friday evening and a Saturday in Paris."""
    six, seven = utc("2026-12-01T17:00"), utc("2026-12-02T06:00")
    few = [(six - DAY, 2.0), (six - DAY + 6 * HOUR, 1.75)]  # by day and by night: the same level
    for points in ([], few):
        found = chosen_start(six, seven, 2.0, points, PARIS)
        assert iso(found.at) == "2026-12-01T21:00Z", "22:00 in Paris"
        assert found.why == "until a week of prices is known, prices then are taken to be 12% lower than now's"
    assert chosen_start(six, six + 2 * HOUR, 2.0, [], PARIS).at == six, "the night comes too late"
    assert chosen_start(utc("2026-12-01T22:00"), seven, 2.0, [], PARIS).why == "", "it is night already"
    friday, monday = utc("2026-12-04T16:00"), utc("2026-12-07T06:00")
    assert iso(chosen_start(friday, monday, 8.0, [], PARIS).at) == "2026-12-04T21:00Z", "the night before the weekend"
    saturday = utc("2026-12-05T11:00")
    assert chosen_start(saturday, saturday + DAY, 2.0, [], PARIS).at == saturday
    dear_nights = [
        (six - n * HOUR, 3.0 if datetime.fromtimestamp(six - n * HOUR, PARIS).hour < 7 else 2.0) for n in range(200)
    ]
    assert chosen_start(six, seven, 2.0, dear_nights, PARIS).at == six, "what was seen goes before what is guessed"


def test_without_a_gain_or_a_history_it_starts_at_once() -> None:
    ten, seven = utc("2026-12-01T21:00"), utc("2026-12-02T06:00")
    assert chosen_start(ten, seven, 2.0, prices_of(range(0)), PARIS) == Chosen(ten)
    nights = [
        (at, price) for at, price in prices_of(range(2, 5)) if datetime.fromtimestamp(at, PARIS).hour in (22, 23, 2)
    ]
    assert chosen_start(ten, seven, 2.0, nights, PARIS).at == ten, "an hour of which nothing is known is no reason"
