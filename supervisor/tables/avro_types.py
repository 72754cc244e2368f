"""Avro definitions of tables, for schemas AVRO and JSON.

    int8, int16, int32, uint8, uint16     int
    int64, uint32, uint64                 long
    half, float / double                  float / double
    bool / string                         boolean / string
    binary                                bytes; in JSON a text in base64
    date                                  int, date
    time                                  long, time-micros
    timestamp                             long, timestamp-millis or -micros; local-... without a time zone
    decimal                               bytes, decimal; in JSON a text
    list, map, struct, null               array, map, record, null

A column that may be null is a union of null and its type.
"""
import re
from typing import Any

import pyarrow as pa

from geminga.supervisor.tables.files import BadTable

_NAME = re.compile(r"[^\W\d]\w*")
_T = pa.types


def definition(fields: list[pa.Field], *, is_json: bool) -> dict[str, Any]:
    """Return the definition of rows with these columns.  Raises BadTable."""
    return _record("Row", fields, "", is_json)


def check(kind: Any, at: str) -> None:
    """Raise BadTable if a column's type is none that can be published.  at: the column's name."""
    _type(kind, at, "Any", False, names_matter=False)


def _record(name: str, fields: list[pa.Field], at: str, is_json: bool) -> dict[str, Any]:
    made = []
    for field in fields:
        inside = f"{at}.{field.name}" if at else field.name
        if not _NAME.fullmatch(field.name):
            raise BadTable(f"column {inside}: Avro has no such name: choose others with --columns, or publish JSON "
                           "with --schema-type none")
        kind = _type(field.type, inside, f"{name}_{field.name}", is_json)
        made.append({"name": field.name, "type": ["null", kind], "default": None}
                    if field.nullable and kind != "null" else {"name": field.name, "type": kind})
    return {"type": "record", "name": name, "fields": made}


def _type(kind: Any, at: str, name: str, is_json: bool, *, names_matter: bool = True) -> Any:
    """Return a type's definition.  name: of a record.  Raises BadTable."""
    for test, made in _SIMPLE:
        if test(kind):
            return made
    if _T.is_timestamp(kind):
        unit = "millis" if kind.unit in ("s", "ms") else "micros"
        return {"type": "long", "logicalType": f"{'' if kind.tz else 'local-'}timestamp-{unit}"}
    if _T.is_decimal(kind):
        if kind.scale < 0:
            raise BadTable(f"column {at}: a decimal with the scale {kind.scale} has no type in Avro")
        return "string" if is_json else {
            "type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if is_list(kind):
        return {"type": "array", "items": _inner(kind.value_field, f"{at}[]", name, is_json, names_matter)}
    if _T.is_map(kind):
        if not is_text(kind.key_type):
            raise BadTable(f"column {at}: keys of a map must be text, and are {kind.key_type}")
        return {"type": "map", "values": _inner(kind.item_field, f"{at}[]", name, is_json, names_matter)}
    if _T.is_struct(kind):
        if names_matter:
            return _record(name, list(kind), at, is_json)
        for field in kind:
            check(field.type, f"{at}.{field.name}")
        return "record"
    raise BadTable(f"column {at}: values of the type {kind} cannot be published; choose other columns with --columns")


def _inner(field: pa.Field, at: str, name: str, is_json: bool, names_matter: bool) -> Any:
    kind = _type(field.type, at, name, is_json, names_matter=names_matter)
    return ["null", kind] if field.nullable and kind != "null" else kind


def is_list(kind: Any) -> bool:
    """Tell whether a type is a list of whatever length."""
    return bool(_T.is_list(kind) or _T.is_large_list(kind) or _T.is_fixed_size_list(kind))


def is_text(kind: Any) -> bool:
    """Tell whether a type is one of texts."""
    return bool(_T.is_string(kind) or _T.is_large_string(kind) or _T.is_string_view(kind))


def is_binary(kind: Any) -> bool:
    """Tell whether a type is one of bytes."""
    return bool(_T.is_binary(kind) or _T.is_large_binary(kind) or _T.is_binary_view(kind)
                or _T.is_fixed_size_binary(kind))


_INTS = (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16())
_SIMPLE: tuple[tuple[Any, Any], ...] = (
    (_T.is_null, "null"), (_T.is_boolean, "boolean"), (lambda kind: kind in _INTS, "int"), (_T.is_integer, "long"),
    (lambda kind: _T.is_float16(kind) or _T.is_float32(kind), "float"), (_T.is_float64, "double"),
    (is_text, "string"), (is_binary, "bytes"), (_T.is_date, {"type": "int", "logicalType": "date"}),
    (_T.is_time, {"type": "long", "logicalType": "time-micros"}))
