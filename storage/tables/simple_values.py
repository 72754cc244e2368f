"""Values of schemas of one primitive type, as Pulsar's clients encode them."""
import datetime
import struct

import pyarrow as pa

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.tables.forms import Read

S = api.Schema
_EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)


def _unpacked(layout: str) -> Read:
    read = struct.Struct(layout).unpack
    return lambda payload: read(payload)[0]


def _moment(payload: bytes) -> datetime.datetime:
    return _EPOCH + datetime.timedelta(milliseconds=_long(payload))


_long = _unpacked(">q")


def _instant(payload: bytes) -> datetime.datetime:
    seconds, nanoseconds = struct.unpack(">qi", payload)
    return _EPOCH + datetime.timedelta(seconds=seconds, microseconds=nanoseconds // 1_000)


def _day(payload: bytes) -> datetime.date:
    return datetime.date(1970, 1, 1) + datetime.timedelta(_long(payload))


def _time_of_day(payload: bytes) -> datetime.time:
    return (_EPOCH + datetime.timedelta(microseconds=_long(payload) // 1_000)).time()


def _day_and_time(payload: bytes) -> datetime.datetime:
    day, nanoseconds = struct.unpack(">qq", payload)
    return datetime.datetime(1970, 1, 1) + datetime.timedelta(day, microseconds=nanoseconds // 1_000)


# Type of a schema: (Arrow type, reader).
SIMPLE: dict[int, tuple[pa.DataType, Read]] = {
    S.Bool: (pa.bool_(), _unpacked(">?")), S.Int8: (pa.int32(), _unpacked(">b")),
    S.Int16: (pa.int32(), _unpacked(">h")), S.Int32: (pa.int32(), _unpacked(">i")),
    S.Int64: (pa.int64(), _long), S.Float: (pa.float32(), _unpacked(">f")), S.Double: (pa.float64(), _unpacked(">d")),
    S.Date: (pa.timestamp("us", "UTC"), _moment), S.Timestamp: (pa.timestamp("us", "UTC"), _moment),
    S.Time: (pa.time64("us"), lambda payload: _moment(payload).time()),
    S.Instant: (pa.timestamp("us", "UTC"), _instant), S.LocalDate: (pa.date32(), _day),
    S.LocalTime: (pa.time64("us"), _time_of_day), S.LocalDateTime: (pa.timestamp("us"), _day_and_time)}
