"""Types of columns as Iceberg's JSON has them, and the ids by which Iceberg's readers find columns in Parquet files.

Arrow writes the id of a field that has one in its metadata: of columns, of fields of structs, of a list's elements and
of a map's keys and values.  A file with any id has to have all: readers then take no column by its name.
"""
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

_ID = b"PARQUET:field_id"            # Arrow's name of a field's id in its metadata
_ELEMENT, _KEY, _VALUE = "element", "key", "value"
TYPES = {pa.bool_(): "boolean", pa.int32(): "int", pa.int64(): "long", pa.float32(): "float", pa.float64(): "double",
         pa.string(): "string", pa.binary(): "binary", pa.date32(): "date", pa.time64("us"): "time",
         pa.timestamp("us"): "timestamp", pa.timestamp("us", "UTC"): "timestamptz"}


def struct_of(fields: Iterable[tuple[str, pa.DataType]], new_id: Callable[[], int]) -> dict[str, Any]:
    """Return fields as a struct of Iceberg's JSON.  Raises KeyError for a type that no column has."""
    return {"type": "struct", "fields": [
        {"id": new_id(), "name": name, "required": False, "type": type_of(kind, new_id)} for name, kind in fields]}


def type_of(kind: pa.DataType, new_id: Callable[[], int]) -> Any:
    """Return a type of Arrow as Iceberg's JSON has it.  Raises KeyError for one that no column has."""
    if pa.types.is_struct(kind):
        return struct_of(((part.name, part.type) for part in kind), new_id)
    if pa.types.is_list(kind):
        return {"type": "list", "element-id": new_id(), "element": type_of(kind.value_type, new_id),
                "element-required": False}
    if pa.types.is_map(kind):
        return {"type": "map", "key-id": new_id(), "key": type_of(kind.key_type, new_id), "value-id": new_id(),
                "value": type_of(kind.item_type, new_id), "value-required": False}
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    return TYPES[kind]


_DECIMAL = re.compile(r"decimal\((\d+), *(\d+)\)")
_ARROW = {name: kind for kind, name in TYPES.items()}


def arrow_of(kind: Any) -> pa.DataType | None:
    """Return a type of Iceberg's JSON as `type_of` has made it, None for one that it does not make."""
    if isinstance(kind, str):
        if decimal := _DECIMAL.fullmatch(kind):
            return pa.decimal128(*map(int, decimal.groups()))
        return _ARROW.get(kind)
    match kind["type"]:
        case "struct":
            parts = {part["name"]: arrow_of(part["type"]) for part in kind["fields"]}
            return None if None in parts.values() else pa.struct(list(parts.items()))
        case "list":
            item = arrow_of(kind["element"])
            return None if item is None else pa.list_(item)
        case "map":
            key, item = arrow_of(kind["key"]), arrow_of(kind["value"])
            return None if key is None or item is None else pa.map_(key, item)
    return None


def is_widened(kind: pa.DataType, wide: pa.DataType) -> bool:
    """Whether Iceberg lets a column of one type become another one, or whether both are the same."""
    if kind == wide or (kind, wide) in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64())):
        return True
    if pa.types.is_decimal(kind) and pa.types.is_decimal(wide):
        return bool(kind.scale == wide.scale and kind.precision <= wide.precision)
    if pa.types.is_struct(kind) and pa.types.is_struct(wide):
        return all(is_widened(part.type, wide.field(part.name).type) for part in kind)
    if pa.types.is_list(kind) and pa.types.is_list(wide):
        return is_widened(kind.value_type, wide.value_type)
    if pa.types.is_map(kind) and pa.types.is_map(wide):
        return bool(kind.key_type == wide.key_type) and is_widened(kind.item_type, wide.item_type)
    return False


# -- ids

def with_ids(schema: pa.Schema, struct: Any) -> pa.Schema:
    """Return a schema with the ids that a struct of Iceberg's JSON has for fields of the same names, at any depth.

    Fields that the struct lacks have none, whatever they had before.
    """
    return pa.schema(_parts(schema, struct))


def _parts(fields: Iterable[pa.Field], struct: Any) -> list[pa.Field]:
    named = {part["name"]: part for part in _dict(struct).get("fields", ())}
    return [_field(field, _dict(named.get(field.name)), "id", "type") for field in fields]


def _field(field: pa.Field, of: dict[str, Any], number: str, kind: str) -> pa.Field:
    """Return a field with the id and the type that are under these keys of Iceberg's JSON."""
    plain = field.remove_metadata().with_type(_kind(field.type, _dict(of.get(kind))))
    return plain.with_metadata({_ID: str(of[number])}) if number in of else plain


def _kind(kind: pa.DataType, of: dict[str, Any]) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct(_parts(kind, of))
    if pa.types.is_list(kind):
        return pa.list_(_field(kind.value_field, of, "element-id", _ELEMENT))
    if pa.types.is_map(kind):
        return pa.map_(_field(kind.key_field, of, "key-id", _KEY), _field(kind.item_field, of, "value-id", _VALUE))
    return kind


def _dict(part: Any) -> dict[str, Any]:
    return part if isinstance(part, dict) else {}


def is_named_alike(file: pa.Schema, struct: Any) -> bool:
    """Whether the columns of a file are the table's columns of the same names, or such as the table has no more.

    struct: the table's columns in Iceberg's JSON.  Files without any id are read by names.
    """
    own, ours, numbers = dict(_ids(file)), dict(_ids(with_ids(file, struct))), set(_numbers(struct))
    return not any(own.values()) or all(
        own[path] == ours[path] or (ours[path] is None and own[path] not in numbers) for path in own)


def _numbers(part: Any) -> Iterator[int]:
    """Yield all ids of fields in a part of Iceberg's JSON."""
    for name, value in part.items():
        if name in ("id", "element-id", "key-id", "value-id"):
            yield value
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, dict):
                yield from _numbers(inner)


def _ids(fields: Iterable[pa.Field], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int | None]]:
    """Yield (path, id) of fields at any depth; None: the field has no id."""
    for field in fields:
        yield from _ids_below((*above, field.name), field)


def _ids_below(path: tuple[str, ...], field: pa.Field) -> Iterator[tuple[tuple[str, ...], int | None]]:
    yield path, int(field.metadata[_ID]) if _ID in (field.metadata or {}) else None
    kind = field.type
    if pa.types.is_struct(kind):
        yield from _ids(kind, path)
    elif pa.types.is_list(kind):
        yield from _ids_below((*path, _ELEMENT), kind.value_field)
    elif pa.types.is_map(kind):
        yield from _ids_below((*path, _KEY), kind.key_field)
        yield from _ids_below((*path, _VALUE), kind.item_field)
