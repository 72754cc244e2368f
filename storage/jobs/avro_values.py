"""Payloads of Avro -> values of a column, with no more time and memory than their bytes are worth.

fastavro decodes.  Two kinds of definitions let few bytes stand for very much: arrays of items without bytes, such as
null, and types inside themselves.  Payloads of these are walked through before, and refused beyond the bounds below.
A payload that cannot be decoded is walked through as well, to name the field.

Logical types are taken out of definitions, as fastavro refuses some that Avro's specification ignores.
"""
import io
import struct
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa

from geminga.storage.jobs.shapes import (
    PRIMITIVES,
    Fit,
    NoSchema,
    Shape,
    at_field,
    day_number,
    dumped,
    full_name,
    inside,
    moment,
    shape_of,
    time_text,
    widening,
)
from geminga.storage.schemas.plain_values import Unfit

NESTED_MAX = 200         # levels of a value; arbitrary, far more than people write, far less than a stack has
_SPARE_ITEMS = 1_000     # items without bytes that a payload may have besides one for each of its bytes
_OWN_TYPES = {*PRIMITIVES, "null", "record", "error", "enum", "fixed", "array", "map"}
_DURATION = struct.Struct("<III")

Read = Callable[[bytes], Any]         # payload -> value.  Raises Unfit


def reader(definition: Any, kind: pa.DataType, names: dict[str, str] | None = None) -> Read:
    """Return the function that reads payloads of a definition as values of a type, `joined` with its own.

    names: of the record's fields that are called otherwise in the table.  Raises NoSchema.
    """
    shape = shape_of(definition, is_avro=True)
    plain, walk, fit = without_logical_types(definition), Walk(definition), fit_of(shape)
    if names and shape.type == "record":
        fit = _renamed(fit, names)
        own = pa.struct([(names.get(part.name, part.name), part.type) for part in shape.kind])
    else:
        own = shape.kind
    wider = widening(own, kind)

    def read(payload: bytes) -> Any:
        value = walk.decoded(payload, plain)
        if fit is not None:
            value = fit(value)
        return wider(value) if wider is not None else value
    return read


def _renamed(fit: Fit | None, names: dict[str, str]) -> Fit:
    def renamed(value: Any) -> Any:
        value = fit(value) if fit is not None else value
        return {names.get(name, name): item for name, item in value.items()}
    return renamed


def without_logical_types(definition: Any) -> Any:
    """Return a definition as fastavro parses it, without logical types.  Raises NoSchema."""
    try:
        return fastavro.parse_schema(_plain(definition))
    except Exception as error:      # the library raises whatever its code runs into
        raise NoSchema(f"its schema is not Avro's: {str(error)[:200]}") from None


def _plain(definition: Any) -> Any:
    if isinstance(definition, list):
        return [_plain(branch) for branch in definition]
    if not isinstance(definition, dict):
        return definition
    kept = {name: value for name, value in definition.items() if name != "logicalType"}
    for name in ("type", "items", "values"):
        if name in kept:
            kept[name] = _plain(kept[name])
    if isinstance(kept.get("fields"), list):
        kept["fields"] = [_plain(part) for part in kept["fields"]]
    return kept


# -- bounds

class Walk:
    """A way through the bytes of a definition's values, which makes no values."""

    def __init__(self, definition: Any):
        self._definition, self._named = definition, dict[str, tuple[Any, str]]()
        self._payload, self._spare, self._path = b"", 0, list[str]()
        self._note(definition, "")
        self.is_needed = self._is_unbounded(definition, "", (), {})

    def __repr__(self) -> str:
        return f"<Walk is_needed={self.is_needed}>"

    def decoded(self, payload: bytes, plain: Any, reader: Any = None) -> Any:
        """Return the value of a payload as fastavro has it.  Raises Unfit.

        plain: the definition without logical types.  reader: another one, with whose fields the value is read.
        """
        if self.is_needed:
            self.check(payload)
        stream = io.BytesIO(payload)
        try:
            value = fastavro.schemaless_reader(stream, plain, reader)
        except MemoryError:
            raise
        except Exception:      # a payload may make the library raise anything
            self.check(payload)
            raise Unfit("its bytes are no value of its schema") from None
        if stream.read(1):
            raise Unfit("there are bytes behind its value")
        return value

    def check(self, payload: bytes) -> None:
        """Raise Unfit if a payload is no value of the definition, or beyond the bounds."""
        self._payload, self._spare, self._path = payload, len(payload) + _SPARE_ITEMS, []
        try:
            end = self._walk(self._definition, "", 0, 0)
        except Unfit as error:
            raise Unfit(at_field(".".join(self._path)) + str(error)) from None
        if end != len(payload):
            raise Unfit("there are bytes behind its value")

    def _note(self, definition: Any, space: str) -> None:
        """Note the named types of a definition."""
        if isinstance(definition, list):
            for branch in definition:
                self._note(branch, space)
        elif isinstance(definition, dict):
            if "name" in definition and definition["type"] in ("record", "error", "enum", "fixed"):
                name = full_name(definition, space)
                space = name.rpartition(".")[0]
                self._named[name] = definition, space
            for part in definition.get("fields", ()) if isinstance(definition.get("fields"), list) else ():
                self._note(part["type"], space)
            for name in ("type", "items", "values"):
                if isinstance(definition.get(name), dict | list):
                    self._note(definition[name], space)

    def _meant(self, definition: Any, space: str) -> tuple[Any, str]:
        """Return a definition, or the one that a name stands for, with the namespace inside it."""
        while isinstance(definition, dict) and isinstance(definition["type"], dict | list):
            definition = definition["type"]
        if isinstance(definition, dict) and "name" in definition:
            space = full_name(definition, space).rpartition(".")[0] or space
        kind = definition["type"] if isinstance(definition, dict) else definition
        if isinstance(kind, str) and kind not in _OWN_TYPES:
            for name in (f"{space}.{kind}", kind):
                if name in self._named:
                    return self._named[name]
        return definition, space

    def _is_unbounded(self, definition: Any, space: str, inside: tuple[int, ...], seen: dict[int, bool]) -> bool:
        """Whether a definition's values are not bounded by their bytes: see above."""
        definition, space = self._meant(definition, space)
        if isinstance(definition, list):
            return any(self._is_unbounded(branch, space, inside, seen) for branch in definition)
        if not isinstance(definition, dict):
            return False
        if id(definition) in inside:
            return True
        if id(definition) in seen:
            return seen[id(definition)]
        within = (*inside, id(definition))
        match definition["type"]:
            case "record" | "error":
                is_unbounded = any(self._is_unbounded(part["type"], space, within, seen)
                                   for part in definition["fields"])
            case "array":
                is_unbounded = self._is_unbounded(definition["items"], space, within, seen) or self._may_be_empty(
                    definition["items"], space, ())
            case "map":
                is_unbounded = self._is_unbounded(definition["values"], space, within, seen)
            case _:
                is_unbounded = False
        seen[id(definition)] = is_unbounded
        return is_unbounded

    def _may_be_empty(self, definition: Any, space: str, inside: tuple[int, ...]) -> bool:
        """Whether values of a definition may have no bytes."""
        definition, space = self._meant(definition, space)
        if not isinstance(definition, dict):
            return bool(definition == "null")
        if definition["type"] in ("record", "error"):
            return id(definition) not in inside and all(
                self._may_be_empty(part["type"], space, (*inside, id(definition))) for part in definition["fields"])
        return bool(definition["type"] == "null" or (definition["type"] == "fixed" and not definition["size"]))

    def _number(self, offset: int) -> tuple[int, int]:
        """Return (a number, the place behind it)."""
        value = shift = 0
        while True:
            if offset >= len(self._payload):
                raise Unfit("its bytes end before its value does")
            byte = self._payload[offset]
            value |= (byte & 0x7F) << shift
            offset, shift = offset + 1, shift + 7
            if byte < 0x80:
                break
            if shift >= 70:
                raise Unfit("its number has more than ten bytes")
        return (value >> 1) ^ -(value & 1), offset

    def _sized(self, offset: int, size: int) -> int:
        if size < 0:
            raise Unfit(f"its size is {size}")
        if offset + size > len(self._payload):
            raise Unfit("its bytes end before its value does")
        return offset + size

    def _walk(self, definition: Any, space: str, offset: int, depth: int) -> int:
        """Return the place behind a value."""
        if depth > NESTED_MAX:
            raise Unfit(f"it is nested deeper than {NESTED_MAX} levels")
        definition, space = self._meant(definition, space)
        if isinstance(definition, list):
            number, offset = self._number(offset)
            if not 0 <= number < len(definition):
                raise Unfit(f"its type is number {number} of a union of {len(definition)}")
            return self._walk(definition[number], space, offset, depth + 1)
        kind = definition["type"] if isinstance(definition, dict) else definition
        match kind:
            case "null":
                return offset
            case "boolean":
                return self._sized(offset, 1)
            case "int" | "long":
                return self._number(offset)[1]
            case "float":
                return self._sized(offset, 4)
            case "double":
                return self._sized(offset, 8)
            case "bytes" | "string":
                size, offset = self._number(offset)
                end = self._sized(offset, size)
                if kind == "string":
                    _check_text(self._payload[offset:end])
                return end
            case "fixed":
                return self._sized(offset, definition["size"])
            case "enum":
                number, offset = self._number(offset)
                if not 0 <= number < len(definition["symbols"]):
                    raise Unfit(f"it is number {number} of {len(definition['symbols'])} names")
                return offset
            case "record" | "error":
                for part in definition["fields"]:
                    self._path.append(part["name"])
                    offset = self._walk(part["type"], space, offset, depth + 1)
                    self._path.pop()
                return offset
        return self._blocks(definition, kind, space, offset, depth)

    def _blocks(self, definition: Any, kind: str, space: str, offset: int, depth: int) -> int:
        """Return the place behind the blocks of an array or a map."""
        while True:
            count, offset = self._number(offset)
            if not count:
                return offset
            if count < 0:
                count, (_, offset) = -count, self._number(offset)
            for _ in range(count):
                begin = offset
                if kind == "map":
                    offset = self._walk("string", space, offset, depth + 1)
                offset = self._walk(definition["values" if kind == "map" else "items"], space, offset, depth + 1)
                self._spare -= offset == begin
                if self._spare < 0:
                    raise Unfit("it has more items than its bytes can hold")


def _check_text(data: bytes) -> None:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise Unfit(f"its text is not UTF-8 at byte {error.start}") from None


# -- values

def fit_of(shape: Shape) -> Fit | None:
    """Return the function that makes decoded values those of the shape's type; None if they are already."""
    if shape.type == "text":
        return lambda value: None if value is None else dumped(value)
    if shape.logical:
        return _or_null(_logical(shape))
    if shape.type == "record":
        fits = {name: fit for name, inner in shape.fields.items() if (fit := fit_of(inner)) is not None}
        if not fits:
            return None
        return _or_null(lambda value: {name: _inside(name, fits[name], item) if name in fits else item
                                       for name, item in value.items()})
    if shape.item is None:
        return None
    inner = fit_of(shape.item)
    if shape.type == "map":
        if inner is None:
            return _or_null(lambda value: list(value.items()))
        return _or_null(lambda value: [(key, inner(item)) for key, item in value.items()])
    return None if inner is None else _or_null(lambda value: [inner(item) for item in value])


def _inside(name: str, fit: Fit, value: Any) -> Any:
    """Return what a fit makes of a field's value.  Raises Unfit with the field's path."""
    try:
        return fit(value)
    except Unfit as error:
        raise inside(name, error) from None


def _or_null(fit: Fit) -> Fit:
    return lambda value: None if value is None else fit(value)


def _same(value: Any) -> Any:
    return value


def _logical(shape: Shape) -> Fit:
    match shape.logical:
        case "timestamp-millis" | "local-timestamp-millis":
            return lambda value: moment(value * 1_000)
        case "timestamp-micros" | "local-timestamp-micros":
            return moment
        case "date":
            return day_number
        case "time-millis":
            return lambda value: time_text(value * 1_000)
        case "time-micros":
            return time_text
        case "decimal":
            return lambda value: decimal_of(value, shape)
        case "uuid":
            return lambda value: str(uuid.UUID(bytes=value))
        case "duration":
            return lambda value: dict(zip(("months", "days", "milliseconds"), _DURATION.unpack(value), strict=True))
    return _same      # nanoseconds are the numbers that the column has


def decimal_of(data: bytes, shape: Shape) -> Decimal | str:
    """Return the decimal of a signed number in bytes: as a decimal, or as text where the column is text.  Raises Unfit.
    """
    number = int.from_bytes(data, signed=True)
    if len(data) > 1_000:
        raise Unfit(f"its decimal has {len(data):,} bytes")
    sign, digits = int(number < 0), tuple(map(int, str(abs(number))))
    value = Decimal((sign, digits, -shape.scale))
    return f"{value:f}" if shape.kind == PRIMITIVES["string"] else value
