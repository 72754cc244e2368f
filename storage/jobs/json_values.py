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
from collections.abc import Callable, Iterable
from dataclasses import replace
from decimal import Decimal
from typing import Any, NoReturn

import pyarrow as pa

from geminga.storage.jobs.shapes import Shape, dumped, inside
from geminga.storage.schemas.plain_values import Unfit

_BOUNDS = {pa.int32(): 1 << 31, pa.int64(): 1 << 63}
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "+Infinity": math.inf, "-Infinity": -math.inf}
_FLOAT_MAX = 3.4028235677973366e38       # from here on a number is infinite as a float of 32 bits
_SECONDS = re.compile(r"-?[0-9]+\.[0-9]{9}|0\.0|0E-9")      # as Java's clients write moments
_PER_SECOND = {"millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}
_SHOWN_MAX = 40      # characters of a value that a reason shows
_BYTES = "[B"        # Java's name of byte[]
_EPOCH = datetime.datetime(1970, 1, 1)

Fit = Callable[[Any], Any]            # a parsed value that is not null -> the column's.  Raises Unfit


def reader(shape: Shape, *, is_of_java: bool = False) -> Callable[[bytes], Any]:
    """Return the function that reads payloads as values of a shape.  It raises Unfit.

    is_of_java: whether bytes are base64, whatever their class is.
    """
    fit = _fitting(_with_base64(shape) if is_of_java else shape)

    def read(payload: bytes) -> Any:
        value = parsed(payload)
        if shape.type == "record" and not isinstance(value, dict | None):
            raise Unfit("it is no JSON object")
        return None if value is None else fit(value)
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


def _fitting(shape: Shape) -> Fit:
    """Return the function that makes parsed values those of a shape's type."""
    kind = shape.kind
    if shape.type == "text":
        return dumped
    if shape.type == "any":
        return lambda value: value if isinstance(value, str) else dumped(value)
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


def _unfit(value: Any, wanted: str) -> NoReturn:
    shown = dumped(value)
    raise Unfit(f"{shown[:_SHOWN_MAX]}{'...' * (len(shown) > _SHOWN_MAX)} is no {wanted}")


def _record(shape: Shape) -> Fit:
    fits = [(name, _fitting(inner)) for name, inner in shape.fields.items()]

    def record(value: Any) -> Any:
        if not isinstance(value, dict):
            _unfit(value, "object")
        read = {}
        for name, fit in fits:
            item = value.get(name)
            try:
                read[name] = None if item is None else fit(item)
            except Unfit as error:
                raise inside(name, error) from None
        return read
    return record


def _array(shape: Shape, item: Shape) -> Fit:
    fit, is_pairs = _fitting(item), list(item.fields) == ["key", "value"]
    key = item.fields["key"] if is_pairs else None

    def array(value: Any) -> Any:
        if isinstance(value, str) and item.java_class == "java.lang.Character":
            value = list(value)
        if isinstance(value, dict) and key is not None:
            value = [{"key": _key(name, key), "value": inner} for name, inner in value.items()]
        if shape.takes_one and not isinstance(value, list):
            value = [value]
        if not isinstance(value, list):
            _unfit(value, "array")
        return [fitted for _, fitted in _each(fit, enumerate(value))]
    return array


def _each(fit: Fit, items: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Return (key, fitted value) of items (key, value)."""
    pairs = []
    for key, item in items:
        try:
            pairs.append((key, None if item is None else fit(item)))
        except Unfit as error:
            raise inside(f"[{key}]", error) from None
    return pairs


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
    fit = _fitting(item)

    def pairs(value: Any) -> Any:
        if not isinstance(value, dict):
            _unfit(value, "object")
        return _each(fit, value.items())
    return pairs


def _boolean(value: Any) -> Any:
    return value if isinstance(value, bool) else _unfit(value, "true or false")


def _integer(shape: Shape) -> Fit:
    end, logical = _BOUNDS[shape.kind], shape.logical
    is_character = shape.java_class == "java.lang.Character"

    def integer(value: Any) -> Any:
        if type(value) is int and -end <= value < end:
            return value
        if isinstance(value, list) and logical:
            value = _parts(value, logical)
        elif isinstance(value, Decimal) and "timestamp" in logical and _SECONDS.fullmatch(str(value)):
            value = math.floor(value * _PER_SECOND[logical.rpartition("-")[2]])
        elif isinstance(value, str) and is_character and len(value) == 1:
            value = ord(value)
        elif isinstance(value, str) and logical:
            value = _from_text(value, logical)
        elif isinstance(value, Decimal) and value.adjusted() < 20 and value == value.to_integral_value():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            _unfit(value, "whole number")
        if not -end <= value < end:
            _unfit(value, f"number of {shape.kind}")
        return value
    return integer


def _from_text(value: str, logical: str) -> int:
    """Return a date, a time or both, given as text, as the number that Avro has."""
    try:
        if logical == "date":
            return datetime.date.fromisoformat(value).toordinal() - _EPOCH.toordinal()
        if logical.startswith("time-"):
            moment = datetime.datetime.combine(_EPOCH, datetime.time.fromisoformat(value))
        else:
            moment = datetime.datetime.fromisoformat(value)
        if (moment.tzinfo is None) != logical.startswith(("local-", "time-")):
            raise ValueError
    except ValueError:
        _unfit(value, "date or time")
    since = moment - (_EPOCH if moment.tzinfo is None else _EPOCH.replace(tzinfo=datetime.UTC))
    digits = re.search(r"\.[0-9]{6}([0-9]{1,3})", value)
    nanoseconds = since // datetime.timedelta(microseconds=1) * 1_000 + (int(digits[1].ljust(3, "0")) if digits else 0)
    return nanoseconds * _PER_SECOND[logical.rpartition("-")[2]] // 10 ** 9


def _parts(value: list[Any], logical: str) -> int:
    """Return a date, a time or both, given as a list of their parts, as the number that Avro has."""
    parts = [item for item in value if isinstance(item, int) and not isinstance(item, bool)]
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
        _unfit(value, "date or time")
    total = ((days * 24 + hour) * 60 + minute) * 60 + second
    return (total * 10 ** 9 + nanosecond) * _PER_SECOND[logical.rpartition("-")[2]] // 10 ** 9


def _float(value: Any) -> Any:
    if type(value) is Decimal and -300 < value.adjusted() < 300:
        return float(value)
    if isinstance(value, str) and value in _SPECIAL:
        return _SPECIAL[value]
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        _unfit(value, "number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isinf(number) and not isinstance(value, float):
        _unfit(value, "number of double")
    return number


def _narrow(value: Any) -> Any:
    number = _float(value)
    if math.isfinite(number) and abs(number) >= _FLOAT_MAX:
        _unfit(value, "number of float")
    return number


def _text(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        _unfit(value, "text")
    return str(value)


def _decimal(value: Any) -> Any:
    if isinstance(value, str):
        try:
            value = Decimal(value)
        except ArithmeticError:
            _unfit(value, "decimal number")
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        _unfit(value, "decimal number")
    return Decimal(value)


def _bytes(value: Any) -> Any:
    try:
        return base64.b64decode(value, validate=True) if isinstance(value, str) else _unfit(value, "base64")
    except (ValueError, binascii.Error):
        _unfit(value, "base64")


def _text_bytes(value: Any) -> Any:
    return _text(value).encode() if isinstance(value, str) else _unfit(value, "text")
