"""Payloads of JSON -> values of a column, with all digits, or not at all.

Pulsar's clients have the registered definition made from their classes, and write JSON with a library that knows
nothing of it.  Some of Java's classes are other JSON than their definition says; both are known, so that values arrive
as Avro would have them:

    BigDecimal, BigInteger      string         12.50                           the text of the number
    LocalDate                   date           [2024,1,31]                     days since 1970
    LocalTime                   time-millis    [10,15,30,5000]                 milliseconds of the day
    LocalDateTime               local-timestamp-millis    [2024,1,31,10,15]    milliseconds since 1970
    Instant                     timestamp-micros          1700000000.123456789 microseconds since 1970
    char, char[]                int            "c"                             the number of the character
    byte[], ByteBuffer          bytes          "AQL/"                          the bytes
    float, double               double         "NaN"                           NaN, and infinity
    Map with keys that are no text             {"1":"one"}                     pairs of key and value

Dates and times as text of ISO 8601, as Go has them, become the numbers of their logical types too.
"""
import base64
import binascii
import datetime
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any, NoReturn

import pyarrow as pa

from geminga.storage.jobs.shapes import Shape, at_field, dumped
from geminga.storage.schemas.plain_values import Unfit

_BOUNDS = {pa.int32(): 1 << 31, pa.int64(): 1 << 63}
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "+Infinity": math.inf, "-Infinity": -math.inf}
_FLOAT_MAX = 3.4028235677973366e38       # from here on a number is infinite as a float of 32 bits
_SECONDS = re.compile(r"-?[0-9]+\.[0-9]{9}|0\.0|0E-9")      # as Java's clients write moments
_PER_SECOND = {"millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}
_SHOWN_MAX = 40      # characters of a value that a reason shows
_BYTES = "[B"        # Java's name of byte[]
_EPOCH = datetime.datetime(1970, 1, 1)

Fit = Callable[[Any, str], Any]       # (a parsed value, the path of its field) -> the column's.  Raises Unfit


def reader(shape: Shape, *, is_of_java: bool = False) -> Callable[[bytes], Any]:
    """Return the function that reads payloads as values of a shape.  It raises Unfit.

    is_of_java: whether bytes are base64, whatever their class is.
    """
    fit = _fit_of(_with_base64(shape) if is_of_java else shape)

    def read(payload: bytes) -> Any:
        value = parsed(payload)
        if shape.type == "record" and not isinstance(value, dict | None):
            raise Unfit("it is no JSON object")
        return fit(value, "")
    return read


def _with_base64(shape: Shape) -> Shape:
    """Return a shape in which all bytes are Java's arrays."""
    return replace(shape, java_class=_BYTES if shape.type == "bytes" else shape.java_class,
                   fields={name: _with_base64(inner) for name, inner in shape.fields.items()},
                   item=None if shape.item is None else _with_base64(shape.item))


def parsed(payload: bytes) -> Any:
    """Return the value of JSON, whose numbers with a point or an exponent are decimals.  Raises Unfit."""
    try:
        return json.loads(payload, parse_float=Decimal, parse_constant=_SPECIAL.__getitem__)
    except RecursionError:
        raise Unfit("it is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise Unfit(f"its text is not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise Unfit(f"it is no JSON: {error}") from None
    except (ValueError, ArithmeticError):
        raise Unfit("it has a number of too many digits") from None


def _fit_of(shape: Shape) -> Fit:
    """Return the function that makes parsed values those of a shape's type."""
    fit = _fitting(shape)
    return lambda value, path: None if value is None else fit(value, path)


def _fitting(shape: Shape) -> Fit:
    kind = shape.kind
    if shape.type == "text":
        return lambda value, path: dumped(value)
    if shape.type == "any":
        return lambda value, path: _text(value, path) if isinstance(value, str) else dumped(value)
    if shape.type == "record":
        return _record(shape)
    if shape.item is not None:
        return _map(shape.item) if shape.type == "map" else _array(shape, shape.item)
    if kind == pa.bool_():
        return _boolean
    if kind in _BOUNDS:
        return _integer(shape)
    if kind in (pa.float32(), pa.float64()):
        return _narrow if kind == pa.float32() else _float
    if kind == pa.string():
        return _text
    if pa.types.is_decimal(kind):
        return _decimal
    return _bytes if shape.java_class == _BYTES else _text_bytes


def _unfit(path: str, value: Any, wanted: str) -> NoReturn:
    shown = dumped(value)
    raise Unfit(f"{at_field(path)}{shown[:_SHOWN_MAX]}{'...' * (len(shown) > _SHOWN_MAX)} is no {wanted}")


def _record(shape: Shape) -> Fit:
    fits = {name: _fit_of(inner) for name, inner in shape.fields.items()}

    def record(value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            _unfit(path, value, "object")
        before = f"{path}." if path else ""
        return {name: fit(value.get(name), before + name) for name, fit in fits.items()}
    return record


def _array(shape: Shape, item: Shape) -> Fit:
    fit, is_pairs = _fit_of(item), list(item.fields) == ["key", "value"]
    key = item.fields["key"] if is_pairs else None

    def array(value: Any, path: str) -> Any:
        if isinstance(value, str) and item.java_class == "java.lang.Character":
            value = list(value)
        if isinstance(value, dict) and key is not None:
            value = [{"key": _key(name, key), "value": one} for name, one in value.items()]
        if shape.takes_one and not isinstance(value, list):
            value = [value]
        if not isinstance(value, list):
            _unfit(path, value, "array")
        return [fit(one, f"{path}[{at}]") for at, one in enumerate(value)]
    return array


def _key(name: str, shape: Shape) -> Any:
    """Return a key of a JSON object as the value that was made text."""
    if shape.kind == pa.bool_() and name in ("true", "false"):
        return name == "true"
    if shape.kind in (*_BOUNDS, pa.float32(), pa.float64()) and shape.java_class != "java.lang.Character":
        try:
            return parsed(name.encode())
        except (Unfit, UnicodeEncodeError):
            return name
    return name


def _map(item: Shape) -> Fit:
    fit = _fit_of(item)

    def pairs(value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            _unfit(path, value, "object")
        return [(key, fit(one, f"{path}[{key}]")) for key, one in value.items()]
    return pairs


def _boolean(value: Any, path: str) -> Any:
    return value if isinstance(value, bool) else _unfit(path, value, "true or false")


def _integer(shape: Shape) -> Fit:
    end, logical = _BOUNDS[shape.kind], shape.logical
    is_character = shape.java_class == "java.lang.Character"

    def integer(value: Any, path: str) -> Any:
        if isinstance(value, list) and logical:
            value = _parts(value, logical, path)
        elif isinstance(value, Decimal) and "timestamp" in logical and _SECONDS.fullmatch(str(value)):
            value = math.floor(value * _PER_SECOND[logical.rpartition("-")[2]])
        elif isinstance(value, str) and is_character and len(value) == 1:
            value = ord(value)
        elif isinstance(value, str) and logical:
            value = _from_text(value, logical, path)
        elif isinstance(value, Decimal) and value.adjusted() < 20 and value == value.to_integral_value():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            _unfit(path, value, "whole number")
        if not -end <= value < end:
            _unfit(path, value, f"number of {shape.kind}")
        return value
    return integer


def _from_text(value: str, logical: str, path: str) -> int:
    """Return a date, a time or both, given as text, as the number that Avro has."""
    try:
        if logical == "date":
            return datetime.date.fromisoformat(value).toordinal() - _EPOCH.toordinal()
        if logical.startswith("time-"):
            found = datetime.datetime.combine(_EPOCH, datetime.time.fromisoformat(value))
        else:
            found = datetime.datetime.fromisoformat(value)
        if (found.tzinfo is None) != logical.startswith(("local-", "time-")):
            raise ValueError
    except ValueError:
        _unfit(path, value, "date or time")
    since = found - (_EPOCH if found.tzinfo is None else _EPOCH.replace(tzinfo=datetime.UTC))
    digits = re.search(r"\.[0-9]{6}([0-9]{1,3})", value)
    nanoseconds = since // datetime.timedelta(microseconds=1) * 1_000 + (int(digits[1].ljust(3, "0")) if digits else 0)
    return nanoseconds * _PER_SECOND[logical.rpartition("-")[2]] // 10 ** 9


def _parts(value: list[Any], logical: str, path: str) -> int:
    """Return a date, a time or both, given as a list of their parts, as the number that Avro has."""
    parts = [one for one in value if isinstance(one, int) and not isinstance(one, bool)]
    try:
        if len(parts) != len(value):
            raise ValueError
        if logical == "date":
            year, month, day = parts
            return datetime.date(year, month, day).toordinal() - _EPOCH.toordinal()
        before = [] if logical.startswith("time-") else parts[:3]
        hour, minute, second, nanosecond = (*parts[len(before):], 0, 0)[:4]
        days = datetime.date(*before).toordinal() - _EPOCH.toordinal() if before else 0
        datetime.time(hour, minute, second)
        if not 0 <= nanosecond < 10 ** 9 or len(parts) > len(before) + 4:
            raise ValueError
    except (ValueError, TypeError, OverflowError):
        _unfit(path, value, "date or time")
    total = ((days * 24 + hour) * 60 + minute) * 60 + second
    return (total * 10 ** 9 + nanosecond) * _PER_SECOND[logical.rpartition("-")[2]] // 10 ** 9


def _float(value: Any, path: str) -> Any:
    if isinstance(value, str) and value in _SPECIAL:
        return _SPECIAL[value]
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        _unfit(path, value, "number")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if math.isinf(found) and not isinstance(value, float):
        _unfit(path, value, "number of double")
    return found


def _narrow(value: Any, path: str) -> Any:
    found = _float(value, path)
    if math.isfinite(found) and abs(found) >= _FLOAT_MAX:
        _unfit(path, value, "number of float")
    return found


def _text(value: Any, path: str) -> Any:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            _unfit(path, value, "text of Unicode")
        return value
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        _unfit(path, value, "text")
    return str(value)


def _decimal(value: Any, path: str) -> Any:
    if isinstance(value, str):
        try:
            value = Decimal(value)
        except ArithmeticError:
            _unfit(path, value, "decimal number")
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        _unfit(path, value, "decimal number")
    return Decimal(value)


def _bytes(value: Any, path: str) -> Any:
    try:
        return base64.b64decode(value, validate=True) if isinstance(value, str) else _unfit(path, value, "base64")
    except (ValueError, binascii.Error):
        _unfit(path, value, "base64")


def _text_bytes(value: Any, path: str) -> Any:
    return _text(value, path).encode() if isinstance(value, str) else _unfit(path, value, "text")
