"""Roles of columns: key, event time, properties, payload, value.

Columns whose names begin with _ are no part of the value.  Some of them have a role by their names, which are those of
exported tables: _key, _key_is_base64, _ordering_key, _event_time, _properties, _null_value, _payload.
"""
from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa

from geminga.storage.runtime.similar_names import likest
from geminga.supervisor.tables import avro_types
from geminga.supervisor.tables.files import BadTable, Table

_T = pa.types
_Fits = Callable[[Any], bool]      # whether a type fits a role
_OWN = "_"
# Columns that only an exported table has: its folders are those of publish days, which are no part of values.
_EXPORTED = "_publish_time"


class Choice(NamedTuple):
    """Columns that the options of a command name."""

    key: str | None = None
    event_time: str | None = None
    properties: tuple[str, ...] = ()
    payload: str | None = None
    columns: tuple[str, ...] | None = None      # of the value; None: all others


class Roles(NamedTuple):
    """The columns of a table by their roles; None: no column has the role."""

    key: str | None
    key_is_base64: str | None
    ordering_key: str | None
    event_time: str | None
    properties: tuple[str, ...]       # a property each
    more_properties: str | None       # a map of properties
    is_null: str | None
    payload: str | None               # instead of a value
    value: tuple[str, ...]

    @property
    def columns(self) -> list[str]:
        """All columns that have a role, each once."""
        single = (self.key, self.key_is_base64, self.ordering_key, self.event_time, self.more_properties, self.is_null,
                  self.payload)
        named = [name for name in (*single, *self.properties, *self.value) if name is not None]
        return list(dict.fromkeys(named))


def of(table: Table, choice: Choice, fields: set[str]) -> Roles:
    """Return the roles of a table's columns.  fields: those of the topic's schema.  Raises BadTable.

    A column that has another role is part of the value if the schema has a field of its name.
    """
    schema = table.schema
    wanted = (choice.key, choice.event_time, choice.payload, *choice.properties, *(choice.columns or ()))
    for name in wanted:
        if name is not None and name not in schema.names:
            close = likest(name, schema.names)
            raise BadTable(f"{table.path}: there is no column {name}.{f' Did you mean {close[0]}?' if close else ''}")
    has_key = choice.key is not None
    roles = Roles(
        choice.key if has_key else _own(schema, "_key", _is_plain),
        None if has_key else _own(schema, "_key_is_base64", _T.is_boolean),
        _own(schema, "_ordering_key", avro_types.is_binary),
        choice.event_time or _own(schema, "_event_time", _is_moment), choice.properties,
        _own(schema, "_properties", _is_properties), _own(schema, "_null_value", _T.is_boolean), choice.payload, ())
    _check(schema, roles)
    value = choice.columns
    if value is None:
        left_out = (set(table.folder_columns) if _EXPORTED in schema.names else set()) | set(roles.columns) - fields
        value = tuple(name for name in schema.names if not name.startswith(_OWN) and name not in left_out)
    if roles.payload is not None:
        return roles
    if not value and choice.columns is None and (payload := _own(schema, "_payload", _is_bytes)):
        return roles._replace(payload=payload)
    if not value:
        raise BadTable(f"{table.path}: no column is left for the value: choose some with --columns")
    for name in value:
        avro_types.check(schema.field(name).type, name)
    return roles._replace(value=value)


def _own(schema: pa.Schema, name: str, fits: _Fits) -> str | None:
    """Return the name of a column if the table has it, of a type that fits its role."""
    return name if name in schema.names and fits(schema.field(name).type) else None


def _check(schema: pa.Schema, roles: Roles) -> None:
    """Raise BadTable if the type of a column does not fit the role that an option gives it."""
    def check(name: str | None, fits: _Fits, what: str) -> None:
        if name is not None and not fits(schema.field(name).type):
            raise BadTable(f"column {name}: values of the type {schema.field(name).type} cannot be {what}")

    check(roles.key, _is_plain, "keys")
    check(roles.event_time, _is_moment, "event times: these are timestamps, dates, or milliseconds as whole numbers")
    for name in roles.properties:
        check(name, lambda kind: _is_plain(kind) and not avro_types.is_binary(kind), "properties")
    check(roles.payload, _is_bytes, "payloads: these are bytes or text")


def _is_plain(kind: pa.DataType) -> bool:
    return avro_types.is_text(kind) or avro_types.is_binary(kind) or any(
        test(kind) for test in (_T.is_integer, _T.is_floating, _T.is_boolean, _T.is_decimal, _T.is_date, _T.is_time,
                                _T.is_timestamp, _T.is_null))


def _is_moment(kind: pa.DataType) -> bool:
    return any(test(kind) for test in (_T.is_timestamp, _T.is_date, _T.is_integer, _T.is_null))


def _is_bytes(kind: pa.DataType) -> bool:
    return avro_types.is_text(kind) or avro_types.is_binary(kind)


def _is_properties(kind: pa.DataType) -> bool:
    return _T.is_map(kind) and avro_types.is_text(kind.key_type) and avro_types.is_text(kind.item_type)
