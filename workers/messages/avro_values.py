"""Avro's binary encoding -> values as JSON has them.

Payloads come from any producer.  A payload may claim more items than it has bytes, or nest without end: both are
refused before they cost anything.
"""
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from avro.schema import ArraySchema, EnumSchema, FixedSchema, MapSchema, RecordSchema, Schema, UnionSchema

from geminga.storage.schemas import avro_rules
from geminga.workers.messages.message import text_or_base64

_FREE_ITEMS = 1_000      # items without bytes, such as nulls, that a payload may have beside one for each of its bytes
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Bytes:
    """A payload, and how far it is read."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self._items_left = len(data) + _FREE_ITEMS

    def __repr__(self) -> str:
        return f"<_Bytes {self.at} of {len(self.data)}>"

    def take(self, size: int) -> bytes:
        begin, self.at = self.at, self.at + size
        if size < 0 or self.at > len(self.data):
            raise ValueError("it is cut")
        return self.data[begin:self.at]

    def long(self) -> int:
        number = shift = 0
        while True:
            byte, = self.take(1)
            number |= (byte & 127) << shift
            if byte < 128:
                return number >> 1 ^ -(number & 1)
            shift += 7
            if shift > 63:
                raise ValueError("a number is too long")

    def counts(self) -> Any:
        """Iterate over the numbers of items in the blocks of an array or map."""
        while count := self.long():
            if count < 0:
                count, _size = -count, self.long()
            self._items_left -= count
            if self._items_left < 0:
                raise ValueError("it claims more items than it has bytes")
            yield count


_Read = Callable[[_Bytes], Any]


def reader(definition: bytes) -> Callable[[bytes], Any]:
    """Return a function payload -> value for an Avro definition.

    Raises ValueError for a definition that is wrong; the function raises ValueError for a payload that does not fit.
    """
    read = _reader(avro_rules.parse(definition.decode()), {})

    def value(payload: bytes) -> Any:
        left = _Bytes(payload)
        try:
            return read(left)
        except (RecursionError, IndexError, ArithmeticError, struct.error) as error:
            raise ValueError("it is nested too deep" if isinstance(error, RecursionError) else str(error)) from None
    return value


def _reader(schema: Schema, named: dict[str, _Read]) -> _Read:
    """Return the function that reads a value of a schema.  named: functions of records by name, for recursive ones."""
    match schema:
        case RecordSchema():
            if schema.fullname in named:
                return lambda data: named[schema.fullname](data)
            named[schema.fullname] = lambda data: read_record(data)
            fields = [(field.name, _reader(field.type, named)) for field in schema.fields]

            def read_record(data: _Bytes) -> Any:
                return {name: read(data) for name, read in fields}
            return read_record
        case UnionSchema():
            options = [_reader(one, named) for one in schema.schemas]
            return lambda data: options[_index(data, len(options))](data)
        case ArraySchema():
            item = _reader(schema.items, named)
            return lambda data: [item(data) for count in data.counts() for _ in range(count)]
        case MapSchema():
            entry = _reader(schema.values, named)
            return lambda data: {_text(data): entry(data) for count in data.counts() for _ in range(count)}
        case EnumSchema():
            symbols = list(schema.symbols)
            return lambda data: symbols[_index(data, len(symbols))]
        case FixedSchema():
            return _logical(schema, lambda data: data.take(schema.size))
    return _logical(schema, _PRIMITIVES[schema.type])


def _index(data: _Bytes, count: int) -> int:
    number = data.long()
    if not 0 <= number < count:
        raise ValueError(f"{number} is none of {count} choices")
    return number


def _raw(data: _Bytes) -> bytes:
    return data.take(data.long())


def _text(data: _Bytes) -> str:
    return _raw(data).decode(errors="replace")


_PRIMITIVES: dict[str, _Read] = {
    "null": lambda data: None, "boolean": lambda data: data.take(1) != b"\0", "int": _Bytes.long, "long": _Bytes.long,
    "float": lambda data: _FLOAT.unpack(data.take(4))[0], "double": lambda data: _DOUBLE.unpack(data.take(8))[0],
    "bytes": _raw, "string": _text}


def _logical(schema: Schema, read: _Read) -> _Read:
    """Return a function that reads a value of a logical type as people write it; bytes become text."""
    kind = schema.props.get("logicalType")
    if kind == "decimal":
        scale = int(str(schema.props.get("scale") or 0))
        return lambda data: str(Decimal(int.from_bytes(read(data), signed=True)).scaleb(-scale))
    if schema.type in ("bytes", "fixed"):
        return lambda data: text_or_base64(read(data))
    if kind in _TIMES:
        convert = _TIMES[kind]
        return lambda data: convert(read(data))
    return read


def _moment(microseconds: int, *, is_local: bool = False) -> str:
    text = (_EPOCH + timedelta(microseconds=microseconds)).isoformat()
    return text.replace("+00:00", "" if is_local else "Z")


_TIMES: dict[str, Callable[[int], str]] = {
    "date": lambda days: (date(1970, 1, 1) + timedelta(days)).isoformat(),
    "time-millis": lambda ms: (_EPOCH + timedelta(milliseconds=ms)).time().isoformat(),
    "time-micros": lambda us: (_EPOCH + timedelta(microseconds=us)).time().isoformat(),
    "timestamp-millis": lambda ms: _moment(ms * 1_000), "timestamp-micros": _moment,
    "local-timestamp-millis": lambda ms: _moment(ms * 1_000, is_local=True),
    "local-timestamp-micros": lambda us: _moment(us, is_local=True)}
