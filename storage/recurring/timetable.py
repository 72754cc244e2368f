"""The planned times of a schedule, in ms since 1970.

    {"cron": "30 7 * * MON-FRI", "time_zone": "Europe/Berlin"}      five fields, as in Debian's cron
    {"every": 90000}                                                ms, counted from 1970

When clocks change, a cron expression with a fixed minute and hour names times of day.  One that does not exist is taken
at the first moment behind the gap, one that comes twice at its first coming.  An expression whose minute or hour begins
with a star goes on in real time, as `every` does.  docs/schedules.md has the table.

Missed times are those that are not published when they are over:

    last     the last of them is published, the others are dropped
    all      the last `at_most` of them are published
    none     one is published that is at most LATE_MS late
"""
import functools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

EVERY_MIN_MS, EVERY_MAX_MS = 1_000, 366 * 86_400_000
AT_MOST, AT_MOST_MAX = 100, 1_000      # missed times that are published, with `all`: unless it says so, and if it does
LATE_MS = 60_000                       # a time that is later is missed, with `none`
COUNTED_MAX = AT_MOST_MAX             # missed times that are counted; finding them takes some 20 ms
LAST, ALL, NONE = MISSED = "last", "all", "none"
_CRON_FIELDS = "minute", "hour", "day of the month", "month", "day of the week"
_CRON_MAX = 500                        # characters of an expression
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2}")
# Names in a host's tables that say nothing of a place, or mean another thing on each host.
_NO_ZONES = {"localtime", "posixrules", "Factory", "posix", "right"}
# A search for the last times before now looks at a short stretch first, as reading years of minutes takes seconds.
_STRETCHES_MS = tuple(hours * 3_600_000 for hours in (1, 6, 36, 240, 2_400, 24_000))
_LAST_MS = 253_402_300_799_000         # end of the year 9999


class WrongTiming(ValueError):
    """An error: a schedule's timing cannot be used.  The text begins with the field that is wrong."""


class Due(NamedTuple):
    """Planned times that are over and were not published."""

    times_ms: list[int]       # that are to be published, ascending
    dropped: int              # others, as far as COUNTED_MAX


@dataclass(frozen=True, slots=True)
class Timetable:
    """The timing of a schedule."""

    cron: str = ""            # "": every so often
    time_zone: str = "UTC"    # of cron
    every_ms: int = 0
    missed: str = LAST        # one of MISSED
    at_most: int = AT_MOST    # with ALL

    def as_json(self) -> dict[str, Any]:
        """Return the timing as `read` takes it."""
        when: dict[str, Any] = {"cron": self.cron, "time_zone": self.time_zone} if self.cron else \
            {"every": self.every_ms}
        return when | {"missed": self.missed} | ({"at_most": self.at_most} if self.missed == ALL else {})

    def next_ms(self, after_ms: int) -> int | None:
        """Return the first planned time behind `after_ms`; None if there is none within 50 years."""
        return next(self.times(after_ms), None)

    def times(self, after_ms: int) -> Iterator[int]:
        """Yield all planned times behind `after_ms`, ascending."""
        if not self.cron:
            first = (after_ms // self.every_ms + 1) * self.every_ms
            yield from range(first, _LAST_MS, self.every_ms)
            return
        # The library names the end of a gap once for each time in it.  From a moment in the second coming of an hour it
        # goes on as from the first, and names times that are over.  Both would be published twice.
        last_ms, begin = after_ms, datetime.fromtimestamp(after_ms // 1_000, UTC)
        try:
            for found in CronSim(self.cron, begin.astimezone(_zone(self.time_zone))):
                time_ms = round(found.timestamp()) * 1_000
                if time_ms > last_ms:
                    yield time_ms
                    last_ms = time_ms
        except (OverflowError, ValueError):      # beyond the year 9999
            return

    def due(self, after_ms: int, now_ms: int) -> Due:
        """Return what is to be published of the planned times behind `after_ms`, up to `now_ms`, and what is not."""
        times = self._last_times(after_ms, now_ms, COUNTED_MAX)
        if not times:
            return Due([], 0)
        if self.missed == ALL:
            kept = times[-self.at_most:]
        elif self.missed == LAST or now_ms - times[-1] <= LATE_MS:
            kept = times[-1:]
        else:
            kept = []
        return Due(kept, len(times) - len(kept))

    def _last_times(self, after_ms: int, now_ms: int, at_most: int) -> list[int]:
        """Return the last planned times behind `after_ms`, up to `now_ms`; there may be more before them."""
        if not self.cron:
            first = max(after_ms // self.every_ms + 1, now_ms // self.every_ms + 1 - at_most)
            return [number * self.every_ms for number in range(first, now_ms // self.every_ms + 1)]
        for stretch_ms in (*_STRETCHES_MS, now_ms - after_ms):
            begin_ms = max(after_ms, now_ms - stretch_ms)
            times: list[int] = []
            for time_ms in self.times(begin_ms):
                if time_ms > now_ms:
                    break
                times.append(time_ms)
            if begin_ms == after_ms or len(times) >= at_most:
                return times[-at_most:]
        raise AssertionError(self)      # the last stretch begins at after_ms


def read(fields: dict[str, Any]) -> Timetable:
    """Return the timing that these fields of a JSON object say; others are ignored.  Raises WrongTiming."""
    cron, every = fields.get("cron"), fields.get("every")
    if (cron is None) == (every is None):
        raise WrongTiming("cron, every: expected one of them")
    missed, at_most = fields.get("missed", LAST), fields.get("at_most", AT_MOST)
    if missed not in MISSED:
        raise WrongTiming(f"missed: expected one of {', '.join(MISSED)}")
    if type(at_most) is not int or not 1 <= at_most <= AT_MOST_MAX:
        raise WrongTiming(f"at_most: expected a number from 1 to {AT_MOST_MAX}")
    if every is not None:
        if "time_zone" in fields:
            raise WrongTiming("time_zone: it goes with cron; every so often needs none")
        if type(every) is not int or not EVERY_MIN_MS <= every <= EVERY_MAX_MS:
            raise WrongTiming("every: expected a time from 1s to 366d")
        return Timetable(every_ms=every, missed=missed, at_most=at_most)
    table = Timetable(_cron(cron), _zone_name(fields.get("time_zone", "UTC")), missed=missed, at_most=at_most)
    if table.next_ms(0) is None:
        raise WrongTiming("cron: no day is like that")
    return table


@functools.lru_cache(maxsize=4_096)
def of_text(timing: str) -> Timetable:
    """Return the timing that the catalogue has as JSON."""
    return read(json.loads(timing))


def _cron(text: Any) -> str:
    if not isinstance(text, str) or len(text) > _CRON_MAX or not text.isascii():
        raise WrongTiming(f"cron: expected five fields: {', '.join(_CRON_FIELDS)}")
    fields = text.upper().split()
    if len(fields) != 5:
        raise WrongTiming(f"cron: expected five fields: {', '.join(_CRON_FIELDS)}; found {len(fields)}. For seconds "
                          "there is every")
    try:
        CronSim(" ".join(fields), datetime(2026, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        raise WrongTiming(f"cron: {_reason(fields, str(error))}") from None
    return " ".join(fields)


def _reason(fields: list[str], error: str) -> str:
    """Return the library's error, which names a field such as "Bad day-of-month", with that field's text."""
    name = error.removeprefix("Bad ").replace("-of-", " of the ")
    if name not in _CRON_FIELDS:
        return error
    return f"{fields[_CRON_FIELDS.index(name)]} cannot be the {name}"


def _zone_name(name: Any) -> str:
    is_name = isinstance(name, str) and len(name) < 100 and _ZONE.fullmatch(name) is not None
    if not is_name or name.split("/")[0] in _NO_ZONES:
        raise WrongTiming("time_zone: expected a name of the tz database, such as Europe/Berlin")
    try:
        _zone(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise WrongTiming(f"time_zone: {name} is not in the tz database") from None
    return str(name)


@functools.lru_cache(maxsize=1_024)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def in_zone(time_ms: int, table: Timetable) -> str:
    """Return a planned time in RFC 3339, as clocks show it in the schedule's time zone."""
    zone = _zone(table.time_zone) if table.cron else UTC
    text = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)).astimezone(zone)
    return text.isoformat(timespec="milliseconds")


def first_times(table: Timetable, after_ms: int, count: int) -> list[int]:
    """Return the first planned times behind `after_ms`, `count` at most."""
    return list(islice(table.times(after_ms), count))
