"""Columns as JSON values, in the forms that the fields of a topic's schema take.

Times become numbers where a field has a logical type of Avro, and else text in ISO 8601.  Decimals become text.  Bytes
are text: of the characters U+0000 to U+00FF for Avro, in base64 otherwise.
"""
import base64
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
from avro.schema import Schema, UnionSchema

from geminga.supervisor.tables.avro_types import is_binary, is_list
from geminga.workers.messages.outgoing import Wrong

_T = pa.types
_EPOCH, _EPOCH_DAY = datetime(1970, 1, 1, tzinfo=UTC), date(1970, 1, 1).toordinal()
_LOSES = "it has parts of a {}, which {} cannot hold"
Convert = Callable[[Any], Any]


def values(array: pa.Array, name: str, schema: Schema | None, *, is_avro: bool) -> list[Any]:
    """Return the values of a column (n,).  Raises Wrong, which names the column.

    schema: Avro's for the field, None without one.  is_avro: whether bytes become text as Avro's.
    """
    convert = _converter(array.type, schema, is_avro)
    try:
        return [None if value is None else convert(value) for value in numbers(array, name).to_pylist()]
    except (ValueError, OverflowError) as error:      # of a date, or of text that is not UTF-8
        raise Wrong(f"{name}: {str(error).removeprefix(f'{name}: ')}") from None


def numbers(array: pa.Array, name: str) -> pa.Array:
    """Return a column with numbers instead of times: days of dates, else microseconds.  Raises Wrong."""
    try:
        micros = _replaced(array.type, _in_micros)
        if micros != array.type:
            array = array.cast(micros)
        plain = _replaced(micros, _as_number)
        return array if plain == micros else array.cast(plain)
    except pa.ArrowInvalid as error:
        raise Wrong(f"{name}: {_LOSES.format('microsecond', 'a message')}" if "lose data" in str(error)
                    else f"{name}: {error}") from None


def _replaced(kind: Any, replace: Callable[[Any], Any]) -> Any:
    """Return a type with the types inside of it replaced."""
    if _T.is_struct(kind):
        return pa.struct([field.with_type(_replaced(field.type, replace)) for field in kind])
    if _T.is_map(kind):
        return pa.map_(kind.key_type, kind.item_field.with_type(_replaced(kind.item_type, replace)))
    if is_list(kind):
        inner = kind.value_field.with_type(_replaced(kind.value_type, replace))
        if _T.is_fixed_size_list(kind):
            return pa.list_(inner, kind.list_size)
        return pa.large_list(inner) if _T.is_large_list(kind) else pa.list_(inner)
    return replace(kind)


def _in_micros(kind: Any) -> Any:
    if _T.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if _T.is_time(kind):
        return pa.time64("us")
    return pa.date32() if _T.is_date(kind) else kind


def _as_number(kind: Any) -> Any:
    if _T.is_timestamp(kind) or _T.is_time(kind):
        return pa.int64()
    return pa.int32() if _T.is_date(kind) else kind


def _converter(kind: Any, schema: Schema | None, is_avro: bool) -> Convert:
    """Return a function from values of `numbers` to JSON values.  The function raises ValueError, OverflowError."""
    schema = branch(schema)
    logical = logical_type(schema)
    if is_list(kind):
        one = _or_null(_converter(kind.value_type, getattr(schema, "items", None), is_avro))
        return lambda values: [one(value) for value in values]
    if _T.is_map(kind):
        item = _or_null(_converter(kind.item_type, getattr(schema, "values", None), is_avro))
        return lambda pairs: {key: item(value) for key, value in pairs}
    if _T.is_struct(kind):
        types = {field.name: field.type for field in getattr(schema, "fields", ())}
        fields = {field.name: _or_null(_converter(field.type, types.get(field.name), is_avro)) for field in kind}
        return lambda value: {name: convert(value[name]) for name, convert in fields.items()}
    if is_binary(kind):
        if schema is not None and schema.type == "string":
            return lambda value: value.decode()
        return (lambda value: value.decode("latin-1")) if is_avro else (lambda value: base64.b64encode(value).decode())
    if _T.is_timestamp(kind):
        return _times(logical, "timestamp") or (lambda micros: _moment(micros, has_zone=kind.tz is not None))
    if _T.is_time(kind):
        return _times(logical, "time") or _clock
    if _T.is_date(kind):
        return _same if logical == "date" else (lambda days: date.fromordinal(days + _EPOCH_DAY).isoformat())
    return str if _T.is_decimal(kind) else _same


def branch(schema: Schema | None) -> Schema | None:
    """Return what a union has beside null; None if that are several types."""
    if not isinstance(schema, UnionSchema):
        return schema
    branches = [branch for branch in schema.schemas if branch.type != "null"]
    return branches[0] if len(branches) == 1 else None


def logical_type(schema: Schema | None) -> str:
    """Return the name of a schema's logical type, "" without one."""
    return "" if schema is None else str(schema.props.get("logicalType", ""))


def _or_null(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _same(value: Any) -> Any:
    return value


def _times(logical: str, kind: str) -> Convert | None:
    """Return the conversion of microseconds for a logical type, None if it is text."""
    logical = logical.removeprefix("local-")
    if logical == f"{kind}-micros":
        return _same
    return _millis if logical == f"{kind}-millis" else None


def _millis(micros: int) -> int:
    if micros % 1_000:
        raise ValueError(_LOSES.format("millisecond", "the schema's field"))
    return micros // 1_000


def _moment(micros: int, *, has_zone: bool) -> str:
    text = (_EPOCH + timedelta(microseconds=micros)).replace(tzinfo=None).isoformat()
    return f"{text}Z" if has_zone else text


def _clock(micros: int) -> str:
    return (datetime.min + timedelta(microseconds=micros)).time().isoformat()
