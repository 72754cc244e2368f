"""Compatibility rules for Protobuf schemas: the protobuf library can read what the rules accept."""
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from hypothesis import assume, given
from hypothesis import strategies as st

from geminga.storage.schemas.protobuf_rules import STEPS_MAX, obstacle

F = descriptor_pb2.FieldDescriptorProto
ONE, REQUIRED, MANY = F.LABEL_OPTIONAL, F.LABEL_REQUIRED, F.LABEL_REPEATED
NAMED = {F.TYPE_ENUM: ".p.Colour", F.TYPE_MESSAGE: ".p.Inner"}


def made(fields, *, syntax="proto2", inner=(("x", 1, F.TYPE_INT32),), colours=(0, 1), oneof=()):
    """Return the descriptor of a message p.M with these fields (name, number, type[, label]). An ENUM field has type
    p.Colour, a MESSAGE field p.Inner.
    """
    file = descriptor_pb2.FileDescriptorProto(name="f.proto", package="p", syntax=syntax)
    enum = file.enum_type.add(name="Colour")
    for number in colours:
        enum.value.add(name=f"C{number}", number=number)
    for name, some in (("M", fields), ("Inner", inner)):
        message = file.message_type.add(name=name)
        if name == "M" and oneof:
            message.oneof_decl.add(name="either")
        for field, number, kind, *label in some:
            one = message.field.add(name=field, number=number, type=kind, label=label[0] if label else ONE)
            if kind in NAMED:
                one.type_name = NAMED[kind]
            if name == "M" and field in oneof:
                one.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool.FindMessageTypeByName("p.M")


A = ("a", 1, F.TYPE_INT32)
M = ("m", 2, F.TYPE_MESSAGE)


@pytest.mark.parametrize(("before", "after"), [
    (made([A, M]), made([A, M])), (made([A, M]), made([M])), (made([M]), made([A, M])), (made([A]), made([("renamed",
    1, F.TYPE_INT32)])),
    (made([A]), made([("a", 1, F.TYPE_INT64)])), (made([A]), made([(*A, MANY)])), (made([(*A, REQUIRED)]), made([A])),
    (made([("a", 1, F.TYPE_STRING)]), made([("a", 1, F.TYPE_BYTES)])),
    (made([("a", 1, F.TYPE_ENUM)]), made([("a", 1, F.TYPE_ENUM)], colours=(0, 1, 2))),
    (made([("a", 1, F.TYPE_ENUM)], colours=(0, 1, 2), syntax="proto3"), made([("a", 1, F.TYPE_ENUM)], syntax="proto3")),
    (made([A, ("b", 2, F.TYPE_INT32)], oneof=("a", "b")), made([A, ("b", 2, F.TYPE_INT32)])),
    (made([A, ("b", 2, F.TYPE_INT32)], oneof=("a", "b")), made([A, ("b", 2, F.TYPE_INT32)], oneof=("a", "b"))),
], ids=range(12))
def test_what_can_be_read(before, after):
    assert obstacle(after, before) == ""


@pytest.mark.parametrize(("before", "after", "text"), [
    (made([A]), made([("a", 1, F.TYPE_STRING)]), "field M.a was of type int32, and is of type string"),
    (made([("a", 1, F.TYPE_INT64)]), made([A]), "field M.a was of type int64, and is of type int32"),
    (made([A]), made([("a", 1, F.TYPE_SINT32)]), "field M.a was of type int32, and is of type sint32"),
    (made([A]), made([("a", 3, F.TYPE_INT32)]), "field M.a was number 1, and is 3"),
    (made([]), made([(*A, REQUIRED)]), "field M.a is required, and messages may be without it"),
    (made([A]), made([(*A, REQUIRED)]), "field M.a is required, and messages may be without it"),
    (made([(*A, MANY)]), made([A]), "field M.a was repeated"),
    (made([M]), made([M], inner=[("x", 1, F.TYPE_STRING)]), "field M.m.x was of type int32, and is of type string"),
    (made([("a", 1, F.TYPE_ENUM)], colours=(0, 1, 2)), made([("a", 1, F.TYPE_ENUM)]), "field M.a knows no C2 any more"),
    (made([A, ("b", 2, F.TYPE_INT32)]), made([A, ("b", 2, F.TYPE_INT32)], oneof=("a", "b")),
     "fields M.a, M.b are alternatives, and messages may have several"),
], ids=range(10))
def test_what_cannot_be_read_is_named(before, after, text):
    assert obstacle(after, before) == text


def test_a_map_is_one():
    file = descriptor_pb2.FileDescriptorProto(name="f.proto", package="p")
    message = file.message_type.add(name="M")
    entry = message.nested_type.add(name="MEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=F.TYPE_STRING, label=ONE)
    entry.field.add(name="value", number=2, type=F.TYPE_INT32, label=ONE)
    message.field.add(name="m", number=2, type=F.TYPE_MESSAGE, label=MANY, type_name=".p.M.MEntry")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindMessageTypeByName("p.M")
    assert obstacle(found, found) == ""
    assert (
        obstacle(made([(*M, MANY)]), found) == "field M.m was a map"
        and obstacle(found, made([(*M, MANY)])) == "field M.m was not a map"
    )


@pytest.mark.slow
def test_messages_within_themselves_and_very_large_ones_come_to_an_end():
    """Recursive messages are compared once, and schemas with too many pairs of messages to compare are refused."""
    def web(of, power):
        file = descriptor_pb2.FileDescriptorProto(name="f.proto", package="p")
        for number in range(of):
            message = file.message_type.add(name=f"M{number or ''}")
            for other in range(of):
                message.field.add(name=f"f{other}", number=other + 1, type=F.TYPE_MESSAGE, label=ONE,
                                  type_name=f".p.M{(other ** power + number) % of or ''}")
        pool = descriptor_pool.DescriptorPool()
        pool.Add(file)
        return pool.FindMessageTypeByName("p.M")

    assert obstacle(web(5, 1), web(5, 1)) == ""
    of = 61
    assert of ** 3 > STEPS_MAX
    assert obstacle(web(of, 1), web(of, 2)) == "too large to be compared"


VALUES = {
    F.TYPE_BOOL: st.booleans(),
    F.TYPE_INT32: st.integers(-1 << 31, (1 << 31) - 1),
    F.TYPE_INT64: st.integers(-1 << 63, (1 << 63) - 1),
    F.TYPE_UINT32: st.integers(0, (1 << 32) - 1),
    F.TYPE_UINT64: st.integers(0, (1 << 64) - 1),
    F.TYPE_SINT32: st.integers(-1 << 31, (1 << 31) - 1),
    F.TYPE_SINT64: st.integers(-1 << 63, (1 << 63) - 1),
    F.TYPE_STRING: st.text(max_size=5),
    F.TYPE_BYTES: st.binary(max_size=5),
    F.TYPE_ENUM: st.sampled_from((0, 1)),
    F.TYPE_FIXED32: st.integers(0, (1 << 32) - 1),
    F.TYPE_DOUBLE: st.floats(allow_nan=False),
}
LABELS = st.sampled_from((ONE, ONE, REQUIRED, MANY))
FIELDS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 3), st.sampled_from(list(VALUES)), LABELS),
    max_size=3,
    unique_by=(lambda field: field[0], lambda field: field[1]),
)


@pytest.mark.slow
@given(FIELDS, FIELDS, st.booleans(), st.booleans(), st.data())
def test_what_the_rules_let_pass_the_library_reads_as_it_was(before, after, was_oneof, is_oneof, data):
    def optional(fields):
        return [name for name, _, _, label in fields if label == ONE]

    writer = made(before, oneof=optional(before) if was_oneof else ())
    reader = made(after, oneof=optional(after) if is_oneof else ())
    assume(obstacle(reader, writer) == "")
    message = message_factory.GetMessageClass(writer)()
    for name, _, kind, label in before:
        if label == MANY:
            getattr(message, name).extend(data.draw(st.lists(VALUES[kind], max_size=3)))
        elif label == REQUIRED or data.draw(st.booleans()):
            setattr(message, name, data.draw(VALUES[kind]))
    try:
        found = message_factory.GetMessageClass(reader).FromString(message.SerializeToString())
    except DecodeError as error:
        raise AssertionError("it is not read") from error
    for field in reader.fields:
        other = writer.fields_by_number.get(field.number)
        if other is None:
            continue
        read, wrote = getattr(found, field.name), getattr(message, other.name)
        if field.is_repeated and not other.is_repeated:
            assert list(read) == ([_as(field, wrote)] if message.HasField(other.name) else [])
        elif field.is_repeated:
            assert list(read) == [_as(field, one) for one in wrote]
        else:
            assert found.HasField(field.name) == message.HasField(other.name) and read == _as(field, wrote)


def _as(field, value):
    return value.encode() if field.type == F.TYPE_BYTES and isinstance(value, str) else value
