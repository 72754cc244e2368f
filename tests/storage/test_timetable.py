"""The planned times of schedules: cron expressions at both changes of clocks, every so often, and what was missed.

docs/schedules.md has the table of changes, which these tests hold row by row.
"""
import zoneinfo
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminga.storage.recurring import timetable
from geminga.storage.recurring.timetable import COUNTED_MAX, LATE_MS, Timetable, WrongTiming, read

BERLIN = "Europe/Berlin"
SPRING, AUTUMN = "2026-03-29T01:00", "2026-10-25T01:00"      # an hour before the gap; the hour from 2 to 3 comes twice
MINUTE = 60_000


def ms(text, zone=BERLIN):
    when = datetime.fromisoformat(text)
    return int((when if when.tzinfo else when.replace(tzinfo=ZoneInfo(zone))).timestamp()) * 1_000


def shown(cron, after, count, zone=BERLIN):
    """List planned times behind a moment as clocks show them, with their offset from UTC."""
    table = read({"cron": cron, "time_zone": zone})
    return [timetable.in_zone(time_ms, table)[8:].replace(":00.000", "").removesuffix(":00")
            for time_ms in timetable.first_times(table, ms(after, zone), count)]


@pytest.mark.parametrize(("cron", "in_spring", "in_autumn"), [
    # fixed minute and hour: once a day, at the end of the gap, at the first coming
    ("30 2 * * *", ["29T03:00+02", "30T02:30+02"], ["25T02:30+02", "26T02:30+01"]),
    ("0,30 2 * * *", ["29T03:00+02", "30T02:00+02"], ["25T02:00+02", "25T02:30+02", "26T02:00+01"]),
    ("0 2,3 * * *", ["29T03:00+02", "30T02:00+02"], ["25T02:00+02", "25T03:00+01", "26T02:00+01"]),
    ("30 1-3 * * *", ["29T01:30+01", "29T03:00+02", "29T03:30+02"], ["25T01:30+02", "25T02:30+02", "25T03:30+01"]),
    # every hour, every minutes: real time
    ("15 * * * *", ["29T01:15+01", "29T03:15+02", "29T04:15+02"],
     ["25T01:15+02", "25T02:15+02", "25T02:15+01", "25T03:15+01"]),
    ("*/30 * * * *", ["29T01:30+01", "29T03:00+02", "29T03:30+02"],
     ["25T01:30+02", "25T02:00+02", "25T02:30+02", "25T02:00+01", "25T02:30+01", "25T03:00+01"]),
    ("*/30 2 * * *", ["30T02:00+02", "30T02:30+02"], ["25T02:00+02", "25T02:30+02", "25T02:00+01", "25T02:30+01"]),
    # every so many hours: whenever the clock shows such an hour
    ("0 */2 * * *", ["29T04:00+02", "29T06:00+02"], ["25T02:00+02", "25T02:00+01", "25T04:00+01"]),
])
def test_a_change_of_clocks_neither_drops_nor_repeats_a_time_of_day(cron, in_spring, in_autumn):
    assert shown(cron, SPRING, len(in_spring)) == in_spring
    assert shown(cron, AUTUMN, len(in_autumn)) == in_autumn


@pytest.mark.parametrize("zone", ["America/New_York", "Australia/Lord_Howe", "Africa/Cairo", "America/Santiago"])
@pytest.mark.parametrize("cron", ["30 0 * * *", "15 2 * * *", "0,45 1,2,3 * * *"])
def test_each_day_has_each_time_once_in_every_zone(zone, cron):
    """Gaps at midnight, of half an hour, in the south: the days of a year have their times, in order, none twice."""
    table = read({"cron": cron, "time_zone": zone})
    times = []
    for time_ms in table.times(ms("2026-01-01T00:00", zone) - 1):
        if time_ms >= ms("2027-01-01T00:00", zone):
            break
        times.append(time_ms)
    assert all(earlier < later for earlier, later in pairwise(times))
    days = [datetime.fromtimestamp(time_ms / 1_000, ZoneInfo(zone)).date() for time_ms in times]
    assert len(set(days)) == 365
    a_day = 1
    for field in cron.split()[:2]:
        a_day *= len(field.split(","))
    assert 365 * a_day - 3 <= len(times) <= 365 * a_day      # in a gap several times are one moment


def test_a_schedule_that_is_read_in_a_repeated_hour_names_nothing_that_is_over():
    second = ms("2026-10-25T01:10+00:00")      # 02:10 for the second time
    table = read({"cron": "30 2 * * *", "time_zone": BERLIN})
    assert timetable.in_zone(table.next_ms(second), table) == "2026-10-26T02:30:00.000+01:00"


def test_every_so_often_goes_on_in_real_time_over_changes():
    table = read({"every": 90 * MINUTE})
    times = timetable.first_times(table, ms(AUTUMN), 4)
    assert [later - earlier for earlier, later in pairwise(times)] == [90 * MINUTE] * 3
    assert times[0] % (90 * MINUTE) == 0


@given(st.sampled_from(["*/7 * * * *", "30 2 * * *", "5 */3 * * *", "0 0 1 * *", "15 10 * * MON-FRI"]),
       st.integers(0, 400 * 24 * 60), st.integers(1, 60 * 24 * 60), st.integers(1, 40))
def test_what_is_due_does_not_depend_on_how_far_back_one_looks(cron, first, minutes, at_most):
    """The last times before now are those that a walk from the beginning finds, and all are counted."""
    table = read({"cron": cron, "time_zone": BERLIN, "missed": "all", "at_most": at_most})
    after = ms("2026-01-01T00:00") + first * MINUTE
    now = after + minutes * MINUTE
    walked = []
    for time_ms in table.times(after):
        if time_ms > now:
            break
        walked.append(time_ms)
    due = table.due(after, now)
    assert due.times_ms == walked[-at_most:]
    assert due.dropped == min(len(walked), max(COUNTED_MAX, len(due.times_ms))) - len(due.times_ms)


def test_the_policy_says_what_is_published_of_missed_times():
    """Ten minutes passed, of a schedule that publishes each minute."""
    def due(missed, now=10 * MINUTE, **more):
        return read({"every": MINUTE, "missed": missed, **more}).due(0, now)
    assert due("last") == ([10 * MINUTE], 9)
    assert due("all") == ([minute * MINUTE for minute in range(1, 11)], 0)
    assert due("all", at_most=3) == ([8 * MINUTE, 9 * MINUTE, 10 * MINUTE], 7)
    assert due("none") == ([10 * MINUTE], 9)
    hourly = Timetable(every_ms=60 * MINUTE, missed="none")
    assert hourly.due(0, 60 * MINUTE + LATE_MS) == ([60 * MINUTE], 0)
    assert hourly.due(0, 60 * MINUTE + LATE_MS + 1) == ([], 1)


def test_years_without_the_broker_are_looked_at_in_no_time():
    """Only so many missed times are counted, and the search begins near the end."""
    table = read({"cron": "* * * * *"})
    now = ms("2026-06-01T00:00+00:00")
    due = table.due(0, now)
    assert due == ([now], COUNTED_MAX - 1)


@pytest.mark.parametrize(("fields", "field"), [
    ({}, "cron, every"),
    ({"cron": "* * * * *", "every": 1_000}, "cron, every"),
    ({"cron": "* * * *"}, "cron"), ({"cron": "0 * * * * *"}, "cron"), ({"cron": 5}, "cron"),
    ({"cron": "61 * * * *"}, "cron"), ({"cron": "0 0 31 4 *"}, "cron"), ({"cron": "* * */20 * 1L"}, "cron"),
    ({"cron": "@daily"}, "cron"), ({"cron": "* " * 300}, "cron"), ({"cron": "٣ * * * *"}, "cron"),
    ({"cron": "* * * * *", "time_zone": "Mars/Olympus"}, "time_zone"),
    ({"cron": "* * * * *", "time_zone": "../../etc/passwd"}, "time_zone"),
    ({"cron": "* * * * *", "time_zone": "localtime"}, "time_zone"),
    ({"cron": "* * * * *", "time_zone": "Europe"}, "time_zone"),
    ({"cron": "* * * * *", "time_zone": None}, "time_zone"),
    ({"every": 999}, "every"), ({"every": 367 * 86_400_000}, "every"), ({"every": "1s"}, "every"),
    ({"every": True}, "every"), ({"every": 1_000, "time_zone": "UTC"}, "time_zone"),
    ({"every": 1_000, "missed": "some"}, "missed"), ({"every": 1_000, "missed": "all", "at_most": 0}, "at_most"),
    ({"every": 1_000, "missed": "all", "at_most": 1_001}, "at_most"),
])
def test_a_timing_that_cannot_be_used_is_refused_by_its_field(fields, field):
    with pytest.raises(WrongTiming, match=f"^{field}: "):
        read(fields)


@pytest.mark.parametrize(("cron", "reason"), [
    ("0,61 * * * *", "0,61 cannot be the minute"), ("* * 32 * *", "32 cannot be the day of the month"),
    ("* * * FEV *", "FEV cannot be the month"), ("* * * * 8", "8 cannot be the day of the week"),
])
def test_a_wrong_field_of_a_cron_expression_is_named_with_its_text(cron, reason):
    with pytest.raises(WrongTiming, match=f"^cron: {reason}$"):
        read({"cron": cron})


def test_a_timing_is_kept_as_it_was_given():
    given_ = {"cron": "30 7 * * mon-fri", "time_zone": BERLIN, "missed": "all", "at_most": 5}
    kept = read(given_).as_json()
    assert kept == given_ | {"cron": "30 7 * * MON-FRI"}
    assert read(kept) == read(given_)
    assert read({"every": 1_000}).as_json() == {"every": 1_000, "missed": "last"}


def test_zones_are_known_on_a_host_without_tables():
    """The package tzdata has them, at the version that was tested."""
    try:
        zoneinfo.reset_tzpath(())
        zone = ZoneInfo.no_cache("Pacific/Auckland")
    finally:
        zoneinfo.reset_tzpath()
    assert datetime(2026, 1, 1, tzinfo=zone).utcoffset() == timedelta(hours=13)
    assert datetime(2026, 7, 1, tzinfo=UTC).astimezone(zone).hour == 12
