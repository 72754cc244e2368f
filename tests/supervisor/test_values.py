"""Payloads become values of their schema, whatever their producer wrote."""
import asyncio
import io
import json
import struct
from datetime import UTC, date, datetime
from decimal import Decimal

import fastavro
import pytest

from geminga.proto import pulsar_api_pb2 as api
from geminga.workers.messages import values
from geminga.workers.messages.message import Message
from geminga.workers.messages.values import Values

S = api.Schema
DEFINITION = {"type": "record", "name": "Outer", "namespace": "a.b", "fields": [
    {"name": "text", "type": "string"}, {"name": "maybe", "type": ["null", "long"]},
    {"name": "raw", "type": "bytes"}, {"name": "flag", "type": "boolean"},
    {"name": "real", "type": "double"}, {"name": "small", "type": "float"},
    {"name": "some", "type": {"type": "array", "items": "int"}},
    {"name": "named", "type": {"type": "map", "values": {"type": "enum", "name": "E", "symbols": ["A", "B"]}}},
    {"name": "fixed", "type": {"type": "fixed", "name": "F", "size": 2}},
    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "next", "type": ["null", "Outer"]}]}
RECORD = {"text": "gr\u00fcn", "maybe": -(1 << 40), "raw": b"\xff", "flag": True, "real": 1.5, "small": 0.5,
          "some": [1, -2, 3], "named": {"x": "B"}, "fixed": b"ab", "price": Decimal("-12.34"),
          "day": date(2026, 1, 31), "at": datetime(2026, 1, 31, 12, tzinfo=UTC), "next": None}
SHOWN = RECORD | {"raw": "/w==", "fixed": "ab", "price": "-12.34", "day": "2026-01-31", "at": "2026-01-31T12:00:00Z"}


def written(record, definition=DEFINITION):
    data = io.BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(definition), record)
    return data.getvalue()


def message(payload, version=b"\0" * 8, key=None, **fields):
    return Message("persistent://public/default/t", 1, 2, -1, 0, -1, payload, key, None, {}, 1, 0, 0, "p", 0, version,
                   0, False, **fields)


def value(payload, kind, definition=b"", properties=None, **fields):
    schema = S(name="s", type=kind, schema_data=definition,
               properties=[api.KeyValue(key=name, value=text) for name, text in (properties or {}).items()])
    return values.reader(schema)(message(payload, **fields))


def avro(payload, definition=DEFINITION):
    return value(payload, S.Avro, json.dumps(definition).encode())


def test_avro_is_read_as_a_library_wrote_it():
    nested = RECORD | {"next": RECORD | {"maybe": None}}
    assert avro(written(nested)) == SHOWN | {"next": SHOWN | {"maybe": None}}


def long(number):
    return written(number, "long")


NESTED = {"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"]}]}
NULLS = {"type": "array", "items": "null"}
WRONG = [(b"", DEFINITION, "cut"), (written(RECORD)[:-1], DEFINITION, "cut"), (b"\x80" * 20, "long", "too long"),
         (long(3), ["null", "int"], "3 is none of 2"), (long(-5) + b"x", "bytes", "cut"),
         (long(100_000) + long(0), NULLS, "more items than"),
         ((long(-900) + long(0)) * 5 + long(0), NULLS, "more items than"),
         (long(1) * 100_000, NESTED, "too deep")]


@pytest.mark.parametrize(("payload", "definition", "says"), WRONG)
def test_avro_that_lies_about_its_size_is_refused_at_once(payload, definition, says):
    with pytest.raises(ValueError, match=says):
        avro(payload, definition)


SIMPLE = [(S.String, b"gr\xc3\xbcn", "gr\u00fcn"), (S.Json, b'{"a": [1]}', {"a": [1]}), (S.Bool, b"\1", True),
          (S.Int8, b"\xff", -1), (S.Int16, b"\1\0", 256), (S.Int32, b"\xff" * 4, -1), (S.Int64, b"\0" * 7 + b"\5", 5),
          (S.Float, struct.pack(">f", 0.5), 0.5), (S.Double, struct.pack(">d", 1.25), 1.25),
          (S.Date, struct.pack(">q", 1_000), "1970-01-01T00:00:01Z"),
          (S.Timestamp, struct.pack(">q", 1), "1970-01-01T00:00:00.001000Z"),
          (S.Time, struct.pack(">q", 61_000), "00:01:01"),
          (S.Instant, struct.pack(">qi", 1, 0), "1970-01-01T00:00:01Z"),
          (S.LocalDate, struct.pack(">q", 20_484), "2026-01-31"),
          (S.LocalTime, struct.pack(">q", 3_600 * 10**9), "01:00:00"),
          (S.LocalDateTime, struct.pack(">qq", 1, 10**9), "1970-01-02T00:00:01")]


@pytest.mark.parametrize(("kind", "payload", "shown"), SIMPLE, ids=[S.Type.Name(kind) for kind, *_ in SIMPLE])
def test_primitive_payloads_are_values_and_those_of_another_size_are_refused(kind, payload, shown):
    assert value(payload, kind) == shown
    with pytest.raises((ValueError, struct.error)):
        value(payload + b"\xff", kind)


def half(data):
    return struct.pack(">i", -1 if data is None else len(data)) + (data or b"")


def test_pairs_have_both_halves_wherever_these_are():
    types = {"key.schema.type": "STRING", "value.schema.type": "AVRO"}
    definition = half(b"") + half(b'"int"')
    inline = types | {"kv.encoding.type": "INLINE"}
    assert value(half(b"k") + half(long(7)), S.KeyValue, definition, inline) == {"key": "k", "value": 7}
    assert value(half(None) + half(long(7)), S.KeyValue, definition, inline) == {"key": None, "value": 7}
    separated = types | {"kv.encoding.type": "SEPARATED"}
    assert value(long(7), S.KeyValue, definition, separated, key="aw==", is_key_base64=True) == {"key": "k", "value": 7}
    with pytest.raises(ValueError, match="cut"):
        value(half(b"k") + b"\0\0\1\0", S.KeyValue, definition, inline)


def test_a_version_is_asked_for_once_and_told_once_if_it_does_not_fit():
    asked = []

    async def ask(topic, version):
        asked.append((topic, version))
        return None if version == b"2" else S(name="s", type=S.Avro, schema_data=b"?" if version == b"3" else b'"int"')

    messages = [message(payload, version) for version in (b"1", b"2", b"3", None)
                for payload in (long(5), b"\x80", b"\x80")]
    decoded = Values(ask)
    asyncio.run(decoded.decode(messages))
    topic = "persistent://public/default/t"
    assert asked == [(topic, version) for version in (b"1", b"2", b"3", b"")]      # the newest, where none is named
    assert [one.value for one in messages if one.has_value] == [5, 5]
    assert len(decoded.complaints) == 2
    assert decoded.complaints[0] == "1:2 does not fit version 49 of its schema: it is cut"
    assert "version 51 of the schema" in decoded.complaints[1] and "cannot be used" in decoded.complaints[1]
