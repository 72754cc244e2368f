"""Definitions of Avro as types of columns, and the type that holds the values of several of them.

A definition becomes a `Shape`: the Arrow type of its column, and what its values need on their way there.  Its logical
types count as far as Avro's specification has them; others, and those with impossible parameters, are left out, as the
specification demands.

    date, timestamp-millis, timestamp-micros, local-timestamp-...   date and times
    timestamp-nanos, local-timestamp-nanos       the number of nanoseconds: most readers lack such times
    time-millis, time-micros                     text such as 10:15:30.000001: Spark reads no file that has times of day
    decimal                                      a decimal; text if it has more than 38 digits
    uuid                                         text
    duration                                     months, days and milliseconds

JSON text is what has no type of a column: unions of several types, records inside themselves, and those without fields.
"""
import base64
import datetime
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa

from geminga.storage.schemas.plain_values import Unfit

FIELDS_MAX = 10_000      # of a table, nested ones at each place: names that use others twice would double without end
DIGITS_MAX = 38          # of a decimal that all readers have

PRIMITIVES = {"boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
              "double": pa.float64(), "bytes": pa.binary(), "string": pa.string()}
DURATION = pa.struct([(name, pa.int64()) for name in ("months", "days", "milliseconds")])
_PATH_MAX = 80           # characters of a field's path that a reason shows
_DAY_US = 86_400_000_000
_DAYS = tuple((datetime.date(*day) - datetime.date(1970, 1, 1)).days for day in ((1, 1, 1), (9999, 12, 31)))
_MOMENT, _LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")
# Logical type: (underlying type, Arrow type).
_LOGICAL = {
    "date": ("int", pa.date32()), "time-millis": ("int", pa.string()), "time-micros": ("long", pa.string()),
    "timestamp-millis": ("long", _MOMENT), "timestamp-micros": ("long", _MOMENT),
    "local-timestamp-millis": ("long", _LOCAL), "local-timestamp-micros": ("long", _LOCAL),
    "timestamp-nanos": ("long", pa.int64()), "local-timestamp-nanos": ("long", pa.int64())}
_INTEGERS = {pa.bool_(): 1, pa.int32(): 10, pa.int64(): 19}      # digits
_FLOATS = pa.float32(), pa.float64()

Fit = Callable[[Any], Any]


class NoSchema(ValueError):
    """Error: values cannot be typed by the topic's schema."""


@dataclass(slots=True)
class Shape:
    """The type of a definition's column, and what its values need on their way there."""

    kind: pa.DataType
    type: str                        # of Avro, without unions with null; "text": JSON text; "any": text, or JSON text
    logical: str = ""                # a logical type that counts
    scale: int = 0                   # of a decimal
    java_class: str = ""             # of Java's reflection
    fields: "dict[str, Shape]" = field(default_factory=dict)      # of a record
    item: "Shape | None" = None      # of an array, and of a map's values
    takes_one: bool = False          # whether a value may be an item alone, as older versions of the schema have it


def shape_of(definition: Any, *, is_avro: bool) -> Shape:
    """Return the shape of a definition that fastavro takes.  Raises NoSchema.

    is_avro: whether columns have the types of logical types; values of JSON are the numbers below them.
    """
    return _Shapes(is_avro).of(definition, ())


class _Shapes:
    """The shapes of one definition's parts."""

    def __init__(self, is_avro: bool):
        self._is_avro, self._named = is_avro, dict[str, Any]()
        self._left = FIELDS_MAX

    def of(self, definition: Any, inside: tuple[str, ...], space: str = "") -> Shape:
        """Return a part's shape.  inside: names of the enclosing records.  space: the enclosing namespace."""
        self._left -= 1
        if self._left < 0:
            raise NoSchema(f"its schema has more than {FIELDS_MAX:,} fields")
        if isinstance(definition, list):
            rest = [branch for branch in definition if branch not in ("null", {"type": "null"})]
            return self.of(rest[0], inside, space) if len(rest) == 1 else Shape(pa.string(), "text")
        if isinstance(definition, str):
            if definition in PRIMITIVES:
                return Shape(PRIMITIVES[definition], definition)
            name = next((one for one in (f"{space}.{definition}", definition) if one in self._named), "")
            if not name or name in inside:
                return Shape(pa.string(), "text")
            return self.of(self._named[name], inside, space)
        kind, name = definition["type"], ""
        if "name" in definition and kind in ("record", "error", "enum", "fixed"):
            name = full_name(definition, space)
            space = name.rpartition(".")[0]
            self._named[name] = definition | {"name": name}
        if isinstance(kind, list | dict):
            return self.of(kind, inside, space)
        if (logical := self._logical(definition)) is not None:
            return logical
        java = definition.get("java-class")
        match kind:
            case "record" | "error" if definition["fields"]:
                fields = {part["name"]: self.of(part["type"], (*inside, name), space) for part in definition["fields"]}
                return Shape(_struct(fields), "record", fields=fields)
            case "array":
                item = self.of(definition["items"], inside, space)
                return Shape(pa.list_(item.kind), kind, item=item, java_class=str(java or ""))
            case "map":
                item = self.of(definition["values"], inside, space)
                return Shape(pa.map_(pa.string(), item.kind), kind, item=item)
            case "enum":
                return Shape(pa.string(), kind)
            case "fixed":
                return Shape(pa.binary(), kind)
            case _ if kind in PRIMITIVES:
                return Shape(PRIMITIVES[kind], kind, java_class=str(java or ""))
            case "record" | "error" | "null":      # Parquet has no struct without fields
                return Shape(pa.string(), "text")
        return self.of(kind, inside, space)

    def _logical(self, definition: dict[str, Any]) -> Shape | None:
        """Return the shape of a logical type, None if there is none that counts."""
        logical, kind = definition.get("logicalType"), definition["type"]
        if logical == "decimal" and kind in ("bytes", "fixed"):
            return _decimal(definition)
        if logical == "uuid" and (kind == "string" or (kind == "fixed" and definition["size"] == 16)):
            return Shape(pa.string(), kind, "uuid" if kind == "fixed" else "")
        if logical == "duration" and kind == "fixed" and definition["size"] == 12 and self._is_avro:
            return Shape(DURATION, kind, logical)
        if isinstance(logical, str) and logical in _LOGICAL and _LOGICAL[logical][0] == kind:
            return Shape(_LOGICAL[logical][1] if self._is_avro else PRIMITIVES[kind], kind, logical)
        return None


def full_name(definition: dict[str, Any], space: str) -> str:
    """Return the name of a named type with its namespace."""
    name, given = str(definition["name"]), definition.get("namespace", space)
    return name if "." in name or not given else f"{given}.{name}"


def _decimal(definition: dict[str, Any]) -> Shape | None:
    precision, scale = definition.get("precision"), definition.get("scale", 0)
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision or precision < 1:
        return None
    kind = pa.decimal128(precision, scale) if precision <= DIGITS_MAX else pa.string()
    return Shape(kind, definition["type"], "decimal", min(scale, 1_000))


def _struct(fields: dict[str, Shape]) -> pa.StructType:
    return pa.struct([(name, shape.kind) for name, shape in fields.items()])


# -- one type for several

def joined(kind: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the type that holds the values of both; text, if there is no other."""
    if kind == other:
        return kind
    if kind in _INTEGERS and other in _INTEGERS:
        return max(kind, other, key=_INTEGERS.__getitem__)
    if (kind in _FLOATS or other in _FLOATS) and {kind, other} <= {*_INTEGERS, *_FLOATS}:
        return pa.float64()
    for decimal, plain in ((kind, other), (other, kind)):
        if pa.types.is_decimal(decimal) and (plain in _INTEGERS or pa.types.is_decimal(plain)):
            return _joined_decimals(decimal, plain)
    if {kind, other} == {pa.string(), pa.binary()}:
        return pa.binary()
    if pa.types.is_struct(kind) and pa.types.is_struct(other):
        fields = {own.name: own.type for own in kind}
        for own in other:
            fields[own.name] = joined(fields[own.name], own.type) if own.name in fields else own.type
        return pa.struct(list(fields.items()))
    if pa.types.is_map(kind) and pa.types.is_map(other):
        return pa.map_(joined(kind.key_type, other.key_type), joined(kind.item_type, other.item_type))
    if pa.types.is_list(kind) and pa.types.is_list(other):
        return pa.list_(joined(kind.value_type, other.value_type))
    for many, alone in ((kind, other), (other, kind)):      # Protobuf's fields may become repeated ones
        if pa.types.is_list(many) and not pa.types.is_list(alone):
            item = joined(many.value_type, alone)
            if item != pa.string() or many.value_type == alone:
                return pa.list_(item)
    return pa.string()


def _joined_decimals(decimal: pa.DataType, other: pa.DataType) -> pa.DataType:
    whole, scale = ((other.precision - other.scale, other.scale) if pa.types.is_decimal(other)
                    else (_INTEGERS[other], 0))
    scale, whole = max(scale, decimal.scale), max(whole, decimal.precision - decimal.scale)
    return pa.decimal128(whole + scale, scale) if whole + scale <= DIGITS_MAX else pa.string()


def joined_shapes(shapes: Iterable[Shape]) -> Shape:
    """Return the shape that holds the values of all, in the order of their fields."""
    first, *others = shapes
    for other in others:
        first = _joined_shape(first, other)
    return first


def _joined_shape(shape: Shape, other: Shape) -> Shape:
    if shape.type == other.type == "record":
        fields = dict(shape.fields)
        for name, inner in other.fields.items():
            fields[name] = _joined_shape(fields[name], inner) if name in fields else inner
        return Shape(_struct(fields), "record", fields=fields)
    if shape.item is not None and other.item is not None and shape.type == other.type:
        item = _joined_shape(shape.item, other.item)
        kind = pa.list_(item.kind) if shape.type == "array" else pa.map_(pa.string(), item.kind)
        return Shape(kind, shape.type, item=item, java_class=shape.java_class or other.java_class,
                     takes_one=shape.takes_one or other.takes_one)
    for many, alone in ((shape, other), (other, shape)):
        if many.type == "array" and many.item is not None and alone.type != "array":
            item = _joined_shape(many.item, alone)
            if item.kind != pa.string() or many.item.kind == alone.kind:
                return Shape(pa.list_(item.kind), "array", item=item, takes_one=True)
    kind = joined(shape.kind, other.kind)
    if kind == pa.string() and (shape.kind != other.kind or (shape.type == "text") != (other.type == "text")):
        return Shape(kind, "any")
    alike = next((candidate for candidate in (shape, other) if candidate.kind == kind), None)
    if alike is None:
        return Shape(kind, next((name for name, primitive in PRIMITIVES.items() if primitive == kind), "decimal"))
    logical = shape.logical if shape.logical == other.logical else ""
    return Shape(kind, alike.type, logical, alike.scale, alike.java_class, alike.fields, alike.item)


def widening(kind: pa.DataType, wide: pa.DataType) -> Fit | None:
    """Return the function that makes values of a type those of `joined` with it; None if they are already."""
    if kind == wide:
        return None
    if pa.types.is_struct(kind) and pa.types.is_struct(wide):
        return _wider_struct(kind, wide)
    if pa.types.is_map(kind) and pa.types.is_map(wide):
        key, item = (_or_same(widening(*both)) for both in ((kind.key_type, wide.key_type),
                                                            (kind.item_type, wide.item_type)))
        return _unless_null(lambda pairs: [(key(one), item(other)) for one, other in pairs])
    if pa.types.is_list(wide):
        inner = kind.value_type if pa.types.is_list(kind) else kind
        wider = _or_same(widening(inner, wide.value_type))
        if pa.types.is_list(kind):
            return _unless_null(lambda values: [wider(item) for item in values])
        return _unless_null(lambda value: [wider(value)])
    if wide == pa.string():
        return lambda value: text_of(value, kind)
    if wide == pa.binary():
        return _unless_null(lambda value: value.encode() if isinstance(value, str) else value)
    if pa.types.is_decimal(wide):
        return _unless_null(Decimal)
    return _unless_null(float if wide in _FLOATS else int)


def _wider_struct(kind: pa.StructType, wide: pa.StructType) -> Fit | None:
    wider = {part.name: more for part in kind if (more := widening(part.type, wide.field(part.name).type)) is not None}
    if not wider:
        return None      # fields that it lacks are null
    return _unless_null(lambda value: {name: wider[name](part) if name in wider else part
                                       for name, part in value.items()})


def _unless_null(fit: Fit) -> Fit:
    return lambda value: None if value is None else fit(value)


def _or_same(fit: Fit | None) -> Fit:
    return fit or same


def same(value: Any) -> Any:
    return value


def text_of(value: Any, kind: pa.DataType) -> str | None:
    """Return a value of a type as text: text as it is, others as JSON, without quotes around dates and times."""
    if value is None or pa.types.is_string(kind):
        return value      # type: ignore[no-any-return]
    read = pa.scalar(value, kind).as_py(maps_as_pydicts="lossy")
    if isinstance(read, datetime.time):
        return time_text(((read.hour * 60 + read.minute) * 60 + read.second) * 1_000_000 + read.microsecond)
    text = dumped(read)
    return text[1:-1] if isinstance(read, datetime.date) else text


def dumped(value: Any) -> str:
    """Return a value as JSON.  Numbers keep their digits, bytes are base64, and NaN is "NaN" as from Java's clients."""
    match value:
        case None | bool() | str():
            return json.dumps(value)
        case dict():
            pairs = (f"{json.dumps(str(key))}: {dumped(item)}" for key, item in value.items())
            return "{" + ", ".join(pairs) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(dumped, value)) + "]"
        case bytes():
            return json.dumps(base64.b64encode(value).decode())
        case int():
            return str(value)
        case Decimal():
            return str(value) if value.is_finite() else json.dumps(str(value))
        case float():
            text = repr(value)
            return text if text[-1].isdigit() else json.dumps({"nan": "NaN", "inf": "Infinity"}.get(text, "-Infinity"))
        case datetime.date() | datetime.time():
            return json.dumps(value.isoformat())
    raise Unfit(f"a value of {type(value).__name__} is no JSON")


def time_text(microseconds: int, nanoseconds: int = 0) -> str:
    """Return a time of day as text, with as many digits behind the second as it needs, by threes.  Raises Unfit."""
    total = microseconds * 1_000 + nanoseconds
    seconds, rest = divmod(total, 10 ** 9)
    if not 0 <= seconds < 86_400:
        raise Unfit("its time is not within a day")
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    if rest:
        digits = f"{rest:09}"
        text += "." + digits[:3 if digits[3:] == "000000" else 6 if digits[6:] == "000" else 9]
    return text


def misfit(value: Any, kind: pa.DataType, path: str = "") -> str:
    """Return why a type cannot hold a value: the first field that it cannot hold; "" if it can."""
    try:
        pa.array([value], kind)
        return ""
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        pass
    if pa.types.is_struct(kind) and isinstance(value, dict):
        parts = [(f"{path}.{part.name}".lstrip("."), value.get(part.name), part.type) for part in kind]
    elif pa.types.is_list(kind) and isinstance(value, list):
        parts = [(f"{path}[{index}]", part, kind.value_type) for index, part in enumerate(value)]
    elif pa.types.is_map(kind) and isinstance(value, list):
        parts = [(f"{path}[{key}]", part, kind.item_type) for key, part in value]
    else:
        parts = []
    for inner, part, inner_kind in parts:
        if text := misfit(part, inner_kind, inner):
            return text
    return f"{at_field(path)}its value is none of {kind}"


def at_field(path: str) -> str:
    """Return the beginning of a reason: the field's path, or the end of a long one."""
    if len(path) > _PATH_MAX:
        path = f"...{path[-_PATH_MAX:]}"
    return f"field {path}: " if path else ""


def inside(name: str, error: Unfit) -> Unfit:
    """Return an error of a part with the name of the part in its path."""
    text = str(error)
    inner = text.removeprefix("field ")
    if inner == text:
        return Unfit(f"field {name}: {text}")
    return Unfit(f"field {name}{'' if inner.startswith('[') else '.'}{inner}")


def day_number(days: int) -> int:
    """Return days since 1970.  Raises Unfit for those of other years than readers in Python have."""
    if not _DAYS[0] <= days <= _DAYS[1]:
        raise Unfit("its date is not in the years 1 to 9999")
    return days


def moment(microseconds: int) -> int:
    """Return microseconds since 1970.  Raises Unfit, as `day_number`."""
    day_number(microseconds // _DAY_US)
    return microseconds
