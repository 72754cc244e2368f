"""Payloads of schemas without fields, as Pulsar's clients encode them: one value each, and pairs of two payloads."""
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from geminga.proto import pulsar_api_pb2 as api

S = api.Schema
Read = Callable[[bytes], Any]         # payload -> value.  Raises Unfit, UnicodeDecodeError, OverflowError
_EPOCH = datetime.fromtimestamp(0, UTC)
_DAY_NS = 86_400 * 10 ** 9


class Unfit(ValueError):
    """Error: a payload is no value of its schema.  The text says which field, and why; reports and tables show it."""


def halves(data: bytes) -> tuple[bytes | None, bytes | None]:
    """Split [size][first][size][second] into both; a size of -1 stands for null.  Raises Unfit."""
    parts: list[bytes | None] = []
    offset = 0
    for _ in range(2):
        size = int.from_bytes(data[offset:offset + 4], "big", signed=True)
        offset += 4
        if offset + max(0, size) > len(data) or size < -1:
            raise Unfit("a pair is cut")
        parts.append(None if size < 0 else data[offset:offset + size])
        offset += max(0, size)
    return parts[0], parts[1]


def _unpacked(layout: str) -> Read:
    one = struct.Struct(layout)
    return lambda payload: one.unpack(_sized(payload, one.size))[0]


def _moment(payload: bytes) -> datetime:
    """Return a moment of 8 bytes of milliseconds."""
    return _EPOCH + timedelta(milliseconds=int.from_bytes(_sized(payload, 8), signed=True))


def _instant(payload: bytes) -> datetime:
    """Return a moment of 8 bytes of seconds and 4 of nanoseconds."""
    seconds, nanoseconds = struct.unpack(">qi", _sized(payload, 12))
    return _EPOCH + timedelta(seconds=seconds, microseconds=nanoseconds // 1_000)


def _day(payload: bytes) -> date:
    return date(1970, 1, 1) + timedelta(int.from_bytes(_sized(payload, 8), signed=True))


def _time_of_day(payload: bytes) -> time:
    return (_EPOCH + timedelta(microseconds=nanoseconds_of_day(payload) // 1_000)).time()


def nanoseconds_of_day(payload: bytes) -> int:
    """Return a LOCAL_TIME.  Raises Unfit."""
    number = int.from_bytes(_sized(payload, 8))
    if number >= _DAY_NS:
        raise Unfit("its time is not within a day")
    return number


def milliseconds_of_day(payload: bytes) -> int:
    """Return the time of day of a TIME, which is a moment.  Raises Unfit."""
    return int.from_bytes(_sized(payload, 8), signed=True) % 86_400_000


def _local_moment(payload: bytes) -> datetime:
    """Return a date of 8 bytes of days and a time of 8 bytes of nanoseconds."""
    _sized(payload, 16)
    return datetime.combine(_day(payload[:8]), _time_of_day(payload[8:]))


def _sized(payload: bytes, size: int) -> bytes:
    if len(payload) != size:
        raise Unfit(f"{len(payload)} bytes instead of {size}")
    return payload


# Type of a schema: the function that reads its payloads.
READERS: dict[int, Read] = {
    S.String: bytes.decode, S.Bool: _unpacked(">?"), S.Int8: _unpacked(">b"), S.Int16: _unpacked(">h"),
    S.Int32: _unpacked(">i"), S.Int64: _unpacked(">q"), S.Float: _unpacked(">f"), S.Double: _unpacked(">d"),
    S.Date: _moment, S.Time: lambda payload: _moment(payload).time(), S.Timestamp: _moment, S.Instant: _instant,
    S.LocalDate: _day, S.LocalTime: _time_of_day,
    S.LocalDateTime: _local_moment}
