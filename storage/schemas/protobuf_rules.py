"""Whether messages of one Protobuf descriptor can be read with another one, without loss of data that both know.

The wire has numbers, not names. A number that the reader does not know is skipped, as usual. A number that the reader
knows must mean the same to it. Fields, and messages and enums inside, may be renamed; the root message may not.
"""
import base64
import graphlib
import json

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

# fields of one comparison; arbitrary: comparing thousands of messages, each with each, would take minutes
STEPS_MAX = 100_000
F = descriptor_pb2.FieldDescriptorProto
# Type of the writer's field -> other types that read each of its values unchanged.
_READ_BY: dict[int, tuple[int, ...]] = {
    F.TYPE_BOOL: (F.TYPE_INT32, F.TYPE_UINT32, F.TYPE_INT64, F.TYPE_UINT64),
    F.TYPE_INT32: (F.TYPE_INT64,),
    F.TYPE_UINT32: (F.TYPE_UINT64, F.TYPE_INT64),
    F.TYPE_ENUM: (F.TYPE_INT32, F.TYPE_INT64),
    F.TYPE_SINT32: (F.TYPE_SINT64,),
    F.TYPE_STRING: (F.TYPE_BYTES,),
}
_TYPE_NAMES: dict[int, str] = {number: name for name, number in F.Type.items()}


def parse(text: bytes) -> Descriptor:
    """Return the root message's descriptor from a Protobuf schema definition.

    The definition must have every file that it depends on.  Raises ValueError.
    """
    try:
        descriptor = json.loads(text)
        data = base64.b64decode(descriptor["fileDescriptorSet"], validate=True)
        files = descriptor_pb2.FileDescriptorSet.FromString(data).file
        pool, by_name = descriptor_pool.DescriptorPool(), {one.name: one for one in files}
        for name in graphlib.TopologicalSorter({one.name: one.dependency for one in files}).static_order():
            pool.AddSerializedFile(by_name[name].SerializeToString())
        root = pool.FindMessageTypeByName(descriptor["rootMessageTypeName"])
        if root.file.name != descriptor["rootFileDescriptorName"]:
            raise ValueError(f"{root.full_name} is in {root.file.name}")
        return root
    except Exception as error:      # the library raises whatever its code runs into
        raise ValueError(str(error)[:200]) from None


def obstacle(reader: Descriptor, writer: Descriptor) -> str:
    """Return why the reader's Protobuf descriptor cannot read the writer's messages, "" if it can."""
    todo, seen, steps = [(reader, writer, reader.name)], {(reader.full_name, writer.full_name)}, 0
    while todo:
        mine, theirs, at = todo.pop()
        steps += len(mine.fields)
        if steps > STEPS_MAX:
            return "too large to be compared"
        if text := _of_message(mine, theirs, at):
            return text
        for field in mine.fields:
            other = theirs.fields_by_number.get(field.number)
            if field.message_type is not None and other is not None and other.message_type is not None:
                pair = field.message_type.full_name, other.message_type.full_name
                if pair not in seen:
                    seen.add(pair)
                    todo.append((field.message_type, other.message_type, f"{at}.{field.name}"))
    return ""


def _of_message(reader: Descriptor, writer: Descriptor, at: str) -> str:
    for field in reader.fields:
        other, namesake = writer.fields_by_number.get(field.number), writer.fields_by_name.get(field.name)
        if namesake is not None and namesake.number != field.number:
            return f"field {at}.{field.name} was number {namesake.number}, and is {field.number}"
        if field.is_required and (other is None or not other.is_required):
            return f"field {at}.{field.name} is required, and messages may be without it"
        if other is not None and (text := _of_field(field, other)):
            return f"field {at}.{field.name} {text}"
    for group in reader.oneofs:
        others = [other for field in group.fields if (other := writer.fields_by_number.get(field.number)) is not None]
        if len(others) > 1 and not _are_alternatives(others):
            names = ", ".join(f"{at}.{field.name}" for field in group.fields)
            return f"fields {names} are alternatives, and messages may have several"
    return ""


def _are_alternatives(fields: list[FieldDescriptor]) -> bool:
    groups = {field.containing_oneof and field.containing_oneof.name for field in fields}
    return len(groups) == 1 and None not in groups


def _of_field(reader: FieldDescriptor, writer: FieldDescriptor) -> str:
    if _is_map(reader) != _is_map(writer):
        return f"{'was' if _is_map(writer) else 'was not'} a map"
    if writer.is_repeated and not reader.is_repeated:
        return "was repeated"
    if writer.type != reader.type and reader.type not in _READ_BY.get(writer.type, ()):
        return f"was of type {_type(writer)}, and is of type {_type(reader)}"
    mine, theirs = reader.enum_type, writer.enum_type
    if mine is not None and theirs is not None and mine.is_closed and (missing := _missing(mine, theirs)):
        return f"knows no {missing} any more"
    return ""


def _missing(reader: EnumDescriptor, writer: EnumDescriptor) -> str:
    return ", ".join(value.name for value in writer.values if value.number not in reader.values_by_number)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _type(field: FieldDescriptor) -> str:
    return _TYPE_NAMES[field.type].removeprefix("TYPE_").lower()
