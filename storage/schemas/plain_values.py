"""Payloads of schemas without fields, as Pulsar's clients encode them: one value each, and pairs of two payloads."""
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from geminga.proto import pulsar_api_pb2 as api

S = api.Schema
Read = Callable[[bytes], Any]         # payload -> value.  Raises ValueError, OverflowError, struct.error
_EPOCH = datetime.fromtimestamp(0, UTC)


def halves(data: bytes) -> tuple[bytes | None, bytes | None]:
    """Split [size][first][size][second] into both; a size of -1 stands for null.  Raises ValueError."""
    found: list[bytes | None] = []
    at = 0
    for _ in range(2):
        size = int.from_bytes(data[at:at + 4], "big", signed=True)
        at += 4
        if at + max(0, size) > len(data) or size < -1:
            raise ValueError("a pair is cut")
        found.append(None if size < 0 else data[at:at + size])
        at += max(0, size)
    return found[0], found[1]


def _unpacked(layout: str) -> Read:
    read = struct.Struct(layout).unpack
    return lambda payload: read(payload)[0]


def _moment(payload: bytes) -> datetime:
    """Return a moment of 8 bytes of milliseconds."""
    return _EPOCH + timedelta(milliseconds=int.from_bytes(_eight(payload), signed=True))


def _instant(payload: bytes) -> datetime:
    """Return a moment of 8 bytes of seconds and 4 of nanoseconds."""
    seconds, nanoseconds = struct.unpack(">qi", payload)
    return _EPOCH + timedelta(seconds=seconds, microseconds=nanoseconds // 1_000)


def _day(payload: bytes) -> date:
    return date(1970, 1, 1) + timedelta(int.from_bytes(_eight(payload), signed=True))


def _time_of_day(payload: bytes) -> time:
    return (_EPOCH + timedelta(microseconds=int.from_bytes(_eight(payload)) // 1_000)).time()


def _eight(payload: bytes) -> bytes:
    if len(payload) != 8:
        raise ValueError(f"{len(payload)} bytes instead of 8")
    return payload


# Type of a schema: the function that reads its payloads.
READERS: dict[int, Read] = {
    S.String: bytes.decode, S.Bool: _unpacked(">?"), S.Int8: _unpacked(">b"), S.Int16: _unpacked(">h"),
    S.Int32: _unpacked(">i"), S.Int64: _unpacked(">q"), S.Float: _unpacked(">f"), S.Double: _unpacked(">d"),
    S.Date: _moment, S.Time: lambda payload: _moment(payload).time(), S.Timestamp: _moment, S.Instant: _instant,
    S.LocalDate: _day, S.LocalTime: _time_of_day,
    S.LocalDateTime: lambda payload: datetime.combine(_day(payload[:8]), _time_of_day(payload[8:]))}
