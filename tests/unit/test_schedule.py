"""When runs are due, over every change of clocks. Case 39's table holds exactly."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

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


def test_what_never_comes_is_refused() -> None:
    (problem,) = Schedule("0 0 30 2 *").problems()
    assert (problem.field, problem.text) == (
        "schedule.cron", "schedule.cron: never comes: no month of '2' has a day 30"
    )  # fmt: skip
    assert list(Schedule("0 0 29 2 *").problems()) == []


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
