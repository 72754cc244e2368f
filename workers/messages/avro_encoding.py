"""Avro's binary encoding of JSON values, with the field's name for each value that does not fit.

A union takes the plain value of its first branch that fits, or {"branch": value} as Avro's own JSON does.  Bytes are
texts of the characters U+0000 to U+00FF.  Times and decimals of logical types may be texts, such as
2026-01-31T12:00:00Z.  A field that is missing gets its default, or null where its type has null.
"""
import json
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime
from datetime import time as time_of_day
from decimal import Decimal, InvalidOperation
from typing import Any

from avro.schema import Field, RecordSchema, Schema, UnionSchema

from geminga.storage.runtime.similar_names import likest
from geminga.workers.messages.outgoing import Wrong

_RANGES = {"int": 1 << 31, "long": 1 << 63}
_FORMS = {"float": struct.Struct("<f"), "double": struct.Struct("<d")}
_NOT_FINITE = "NaN", "Infinity", "-Infinity"
_SHOWN_MAX = 60
_EPOCH_DAY = date(1970, 1, 1).toordinal()


def encode(schema: Schema, value: Any, path: str = "") -> bytes:
    """Return a JSON value in Avro's binary form.  path: the field's name, "" for a whole message.  Raises Wrong."""
    out = bytearray()
    try:
        _put(schema, value, path, out)
    except RecursionError:
        raise _wrong(path, "it is nested too deeply") from None
    return bytes(out)


def _wrong(path: str, text: str) -> Wrong:
    return Wrong(f"{path or 'the value'}: {text}")


def _unlike(path: str, expected: str, value: Any) -> Wrong:
    shown = json.dumps(value, ensure_ascii=False)
    return _wrong(path, f"{shown if len(shown) <= _SHOWN_MAX else shown[:_SHOWN_MAX] + '...'} is not {expected}")


def _put(schema: Schema, value: Any, path: str, out: bytearray) -> None:
    """Append the bytes of a value of this schema to `out`.  Raises Wrong, which names the field.

    path: of the value's field from the message down, as in "order.lines[0]"; "" for the message itself.
    """
    _PUT[schema.type](schema, value, path, out)


def _put_null(schema: Any, value: Any, path: str, out: bytearray) -> None:
    if value is not None:
        raise _unlike(path, "null", value)


def _put_boolean(schema: Any, value: Any, path: str, out: bytearray) -> None:
    if not isinstance(value, bool):
        raise _unlike(path, "true or false", value)
    out.append(value)


def _put_integer(schema: Any, value: Any, path: str, out: bytearray) -> None:
    number, logical = value, schema.props.get("logicalType", "")
    if isinstance(value, str) and logical in _TIMES:
        try:
            number = _TIMES[logical](value)
        except (ValueError, OverflowError):
            raise _unlike(path, f"a {logical}, as a number or in ISO 8601", value) from None
    limit = _RANGES[schema.type]
    if type(number) is not int or not -limit <= number < limit:
        raise _unlike(path, f"a whole number of the type {schema.type}", value)
    _put_long(number, out)


def _put_long(number: int, out: bytearray) -> None:
    number = number << 1 if number >= 0 else (-number << 1) - 1
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)


def _put_real(schema: Any, value: Any, path: str, out: bytearray) -> None:
    number = float(value) if value in _NOT_FINITE else value
    try:
        if isinstance(number, bool):
            raise TypeError
        out += _FORMS[schema.type].pack(number)
    except (struct.error, TypeError, OverflowError):
        raise _unlike(path, f"a number of the type {schema.type}", value) from None


def _put_string(schema: Any, value: Any, path: str, out: bytearray) -> None:
    if not isinstance(value, str):
        raise _unlike(path, "a text", value)
    try:
        data = value.encode()
    except UnicodeEncodeError:
        raise _wrong(path, "it has half of a character, which UTF-8 cannot say") from None
    _put_long(len(data), out)
    out += data


def _put_bytes(schema: Any, value: Any, path: str, out: bytearray) -> None:
    data = _data(schema, value, path)
    _put_long(len(data), out)
    out += data


def _put_fixed(schema: Any, value: Any, path: str, out: bytearray) -> None:
    data = _data(schema, value, path)
    if schema.props.get("logicalType") == "decimal" and len(data) < schema.size:
        data = (b"\xff" if data[0] & 128 else b"\0") * (schema.size - len(data)) + data
    if len(data) != schema.size:
        raise _wrong(path, f"it has {len(data)} bytes, and the type {schema.name} has {schema.size}")
    out += data


def _data(schema: Any, value: Any, path: str) -> bytes:
    if schema.props.get("logicalType") == "decimal":
        try:
            return _decimal(schema, value)
        except (InvalidOperation, ValueError, TypeError):
            scale, precision = schema.props.get("scale", 0), schema.props.get("precision")
            raise _unlike(path, f"a decimal of {precision} digits, {scale} of them behind the point", value) from None
    if not isinstance(value, str) or any(ord(char) > 255 for char in value):
        raise _unlike(path, r"a text of bytes as \u0000 to \u00ff", value)
    return value.encode("latin-1")


def _decimal(schema: Any, value: Any) -> bytes:
    if isinstance(value, bool):
        raise TypeError
    sign, digits, exponent = Decimal(str(value)).as_tuple()
    shift = schema.props.get("scale", 0) + int(exponent)      # ValueError where it is no number
    number = int("".join(map(str, digits)))
    if shift < 0 and number % 10 ** min(-shift, len(digits)):
        raise ValueError
    if number and len(digits) + shift > schema.props.get("precision", 0):
        raise ValueError
    number = number * 10 ** shift if shift >= 0 else number // 10 ** min(-shift, len(digits))
    number = -number if sign else number
    return int.to_bytes(number, (~number if number < 0 else number).bit_length() // 8 + 1, signed=True)


def _put_enum(schema: Any, value: Any, path: str, out: bytearray) -> None:
    if value not in schema.symbols:
        raise _unlike(path, f"one of {', '.join(schema.symbols)}", value)
    _put_long(schema.symbols.index(value), out)


def _put_array(schema: Any, value: Any, path: str, out: bytearray) -> None:
    if not isinstance(value, list):
        raise _unlike(path, "a list", value)
    if value:
        _put_long(len(value), out)
        for number, item in enumerate(value):
            _put(schema.items, item, f"{path}[{number}]", out)
    out.append(0)


def _put_map(schema: Any, value: Any, path: str, out: bytearray) -> None:
    if not isinstance(value, dict):
        raise _unlike(path, "an object", value)
    if value:
        _put_long(len(value), out)
        for name, item in value.items():
            _put_string(None, name, f"{path}[{json.dumps(name)}]", out)
            _put(schema.values, item, f"{path}[{json.dumps(name)}]", out)
    out.append(0)


def _put_record(schema: RecordSchema, value: Any, path: str, out: bytearray) -> None:
    if not isinstance(value, dict):
        raise _unlike(path, f"an object with the fields of {schema.name}", value)
    names = [field.name for field in schema.fields]
    for name in value:
        if name not in names:
            close = likest(name, names)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise _wrong(_inside(path, name), f"the schema has no such field.{hint}")
    for field in schema.fields:
        inside = _inside(path, field.name)
        _put(field.type, value[field.name] if field.name in value else default(field, inside), inside, out)


def _inside(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def default(field: Field, path: str) -> Any:
    """Return the JSON value of a field that a message lacks.  path: its name in errors.  Raises Wrong."""
    if field.has_default:
        return field.default
    if isinstance(field.type, UnionSchema) and any(branch.type == "null" for branch in field.type.schemas):
        return None
    raise _wrong(path, "it is missing, and the schema has no default for it")


def _put_union(schema: UnionSchema, value: Any, path: str, out: bytearray) -> None:
    errors: list[Wrong] = []
    for number, branch in enumerate(schema.schemas):
        size = len(out)
        try:
            _put_long(number, out)
            return _put(branch, value, path, out)
        except Wrong as error:
            del out[size:]
            if branch.type != "null":
                errors.append(error)
    if isinstance(value, dict) and len(value) == 1:
        [name] = value
        for number, branch in enumerate(schema.schemas):
            if name in (branch.type, getattr(branch, "fullname", None), getattr(branch, "name", None)):
                _put_long(number, out)
                return _put(branch, value[name], path, out)
    if len(errors) == 1:
        raise errors[0]
    names = [getattr(branch, "fullname", branch.type) for branch in schema.schemas]
    raise _unlike(path, f"one of {', '.join(names)}", value)


# -- texts of logical types

def _timestamp(text: str, per_second: int) -> int:
    when = datetime.fromisoformat(text)
    passed = (when if when.tzinfo else when.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return (passed.days * 86_400 + passed.seconds) * per_second + passed.microseconds * per_second // 1_000_000


def _clock(text: str, per_second: int) -> int:
    when = time_of_day.fromisoformat(text)
    seconds = (when.hour * 60 + when.minute) * 60 + when.second
    return seconds * per_second + when.microsecond * per_second // 1_000_000


_TIMES: dict[str, Callable[[str], int]] = {
    "date": lambda text: date.fromisoformat(text).toordinal() - _EPOCH_DAY,
    "time-millis": lambda text: _clock(text, 1_000), "time-micros": lambda text: _clock(text, 1_000_000),
}
_TIMES |= {f"{kind}-{unit}": (lambda text, per_second=per_second: _timestamp(text, per_second))      # type: ignore[misc]
           for kind in ("timestamp", "local-timestamp")
           for unit, per_second in (("millis", 1_000), ("micros", 1_000_000))}

_PUT: dict[str, Callable[[Any, Any, str, bytearray], None]] = {
    "null": _put_null, "boolean": _put_boolean, "int": _put_integer, "long": _put_integer, "float": _put_real,
    "double": _put_real, "bytes": _put_bytes, "string": _put_string, "fixed": _put_fixed, "enum": _put_enum,
    "array": _put_array, "map": _put_map, "record": _put_record, "error": _put_record, "union": _put_union,
    "error_union": _put_union,
}
