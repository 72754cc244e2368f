"""Values of Protobuf messages, by the descriptors in their schemas.

An unset field with presence is null. Enums are names. A message inside itself, and a message without fields, is bytes.
Numbers without a sign have a wider type, as most readers of tables have none without.
"""
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from geminga.storage.jobs.shapes import FIELDS_MAX, NoSchema, joined, same, widening
from geminga.storage.schemas import protobuf_rules
from geminga.storage.schemas.plain_values import Unfit
from geminga.storage.tables.forms import Read

_F = FieldDescriptor
_TYPES = {
    _F.CPPTYPE_INT32: pa.int32(), _F.CPPTYPE_INT64: pa.int64(), _F.CPPTYPE_UINT32: pa.int64(),
    _F.CPPTYPE_UINT64: pa.decimal128(20), _F.CPPTYPE_DOUBLE: pa.float64(), _F.CPPTYPE_FLOAT: pa.float32(),
    _F.CPPTYPE_BOOL: pa.bool_(), _F.CPPTYPE_ENUM: pa.string()}


def descriptor(data: bytes) -> Descriptor:
    """Return the root message of a schema.  Raises NoSchema."""
    try:
        return protobuf_rules.parse(data)
    except ValueError as error:
        raise NoSchema(f"its schema is no Protobuf descriptor: {error}") from None


def kind_of(roots: Iterable[Descriptor]) -> pa.StructType:
    """Return the Arrow type that holds the messages of all versions, in the order of their fields.  Raises NoSchema."""
    first, *others = [own_kind(root) for root in roots]
    for other in others:
        first = joined(first, other)
    return first


def own_kind(root: Descriptor) -> pa.StructType:
    """Return the Arrow type of a descriptor's messages.  Raises NoSchema."""
    left = [FIELDS_MAX]
    return pa.struct([(field.name, _type(field, (), left)) for field in root.fields])


def reader(root: Descriptor, kind: pa.DataType) -> Read:
    """Return the function that reads messages of a descriptor as values of a type, `joined` with its own."""
    message = message_factory.GetMessageClass(root)
    wider = widening(own_kind(root), kind) or same

    def read(payload: bytes) -> Any:
        try:
            parsed = message.FromString(payload)
        except DecodeError:
            raise Unfit(f"its bytes are no message {root.full_name}") from None
        return wider(_value(parsed, ()))
    return read


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _type(field: FieldDescriptor, inside: tuple[str, ...], left: list[int]) -> pa.DataType:
    """Return the Arrow type of a field.  Raises NoSchema.

    inside: the enclosing messages; a recursive one is bytes of the wire.  left: the number of fields that may follow.
    """
    left[0] -= 1
    if left[0] < 0:
        raise NoSchema(f"its schema has more than {FIELDS_MAX:,} fields")
    if field.message_type is not None and _is_map(field):
        key, value = (_type(field.message_type.fields_by_name[name], inside, left) for name in ("key", "value"))
        return pa.map_(key, value)
    if field.message_type is None:
        is_bytes = field.cpp_type == _F.CPPTYPE_STRING and field.type == _F.TYPE_BYTES
        kind = pa.binary() if is_bytes else _TYPES.get(field.cpp_type, pa.string())
    elif field.message_type.full_name in inside or not field.message_type.fields:
        kind = pa.binary()
    else:
        within = (*inside, field.message_type.full_name)
        kind = pa.struct([(other.name, _type(other, within, left)) for other in field.message_type.fields])
    return pa.list_(kind) if field.is_repeated else kind


def _value(message: Any, inside: tuple[str, ...]) -> dict[str, Any]:
    """Return a message's fields as `_type` has them; None for a field with presence that is not set."""
    values: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if _is_map(field):
            of_value = field.message_type.fields_by_name["value"]
            values[field.name] = [(key, _one(of_value, value[key], inside)) for key in value]
        elif field.is_repeated:
            values[field.name] = [_one(field, item, inside) for item in value]
        elif field.has_presence and not message.HasField(field.name):
            values[field.name] = None
        else:
            values[field.name] = _one(field, value, inside)
    return values


def _one(field: FieldDescriptor, value: Any, inside: tuple[str, ...]) -> Any:
    if field.enum_type is not None:
        name = field.enum_type.values_by_number.get(value)
        return name.name if name is not None else str(value)
    if field.message_type is None:
        return value
    if field.message_type.full_name in inside or not field.message_type.fields:
        return value.SerializeToString()
    return _value(value, (*inside, field.message_type.full_name))
