"""Schema definitions: which are valid, which are equal, and which can read data of which.

For Avro, the expected results are the answers of Apache Pulsar 4.0, case by case. There is one deliberate difference: a
definition whose default value does not fit its type cannot read.
"""
import base64
import json

import pytest
from google.protobuf import descriptor_pb2

from geminga.proto.errors import Refusal
from geminga.proto.names import parse
from geminga.storage.catalogue.catalogue import open_catalogue
from geminga.storage.catalogue.policies import Policies
from geminga.storage.runtime.counters import make_counters
from geminga.storage.schemas import avro_rules, registry
from geminga.storage.schemas.registry import SIZE_MAX, TYPES, Definition, InvalidSchema, T

# BACKWARD: the new one reads the old one
BOTH, BACKWARD, FORWARD, NEITHER, SAME = "both", "backward", "forward", "neither", "same"


def record(*fields, name="R", **more):
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name, kind, *default, **more):
    return {"name": name, "type": kind, **({"default": default[0]} if default else {}), **more}


def of(kind):
    return record(field("a", kind))


def enum(*symbols, name="E", **more):
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


def fixed(size, name="X"):
    return {"type": "fixed", "name": name, "size": size}


def array(kind):
    return {"type": "array", "items": kind}


def mapping(kind):
    return {"type": "map", "values": kind}


a, b = field("a", "int"), field("b", "string")
CASES = [  # (case, old definition, new definition, which of them reads the other)
    ("same", record(a), record(a), SAME),
    ("field more", record(a), record(a, b), FORWARD),
    ("field more with default", record(a), record(a, field("b", "string", "x")), BOTH),
    ("field more nullable no default", record(a), record(a, field("b", ["null", "string"])), FORWARD),
    ("field more nullable default null", record(a), record(a, field("b", ["null", "string"], None)), BOTH),
    ("field renamed", record(a), record(field("c", "int")), NEITHER),
    ("field renamed with alias", record(a), record(field("c", "int", aliases=["a"])), BACKWARD),
    ("record renamed", record(a), record(a, name="S"), BOTH),
    ("record renamed with alias", record(a), record(a, name="S", aliases=["R"]), BOTH),
    ("namespace changed", record(a, namespace="x"), record(a, namespace="y"), BOTH),
    ("inner record renamed", of(record(a, name="S")), of(record(a, name="T")), BOTH),
    ("fields reordered", record(a, b), record(b, a), BOTH),
    ("doc", record(a), record(a, doc="x"), SAME),
    ("bad default of wrong type", record(a), record(a, field("b", "int", "x")), FORWARD),
    ("int to long in union", of(["null", "int"]), of(["null", "long"]), BACKWARD),
    ("union wider", of(["null", "int"]), of(["null", "int", "string"]), BACKWARD),
    ("union reordered", of(["null", "int"]), of(["int", "null"]), BOTH),
    ("int to union", record(a), of(["null", "int"]), BACKWARD),
    ("int to union with long", record(a), of(["null", "long"]), BACKWARD),
    ("int to union without", record(a), of(["null", "string"]), NEITHER),
    ("union of one", record(a), of(["int"]), BOTH),
    ("empty union", record(a), of([]), FORWARD),
    ("empty unions", of([]), of([]), SAME),
    ("enum symbol more", of(enum("A", "B")), of(enum("A", "B", "C")), BOTH),
    ("enum symbol more default", of(enum("A", "B", default="A")), of(enum("A", "B", "C", default="A")), BOTH),
    ("enum disjoint", of(enum("A", "B")), of(enum("C", "D")), BOTH),
    ("enum renamed", of(enum("A")), of(enum("A", name="G")), NEITHER),
    ("enum namespace", of(enum("A", namespace="x")), of(enum("A", namespace="y")), BOTH),
    ("enum alias", of(enum("A")), of(enum("A", name="G", aliases=["E"])), BACKWARD),
    ("enum reordered", of(enum("A", "B")), of(enum("B", "A")), BOTH),
    ("fixed size", of(fixed(3)), of(fixed(4)), NEITHER),
    ("fixed renamed", of(fixed(3)), of(fixed(3, "Y")), NEITHER),
    ("fixed same", of(fixed(3)), of(fixed(3)), SAME),
    ("array items", of(array("int")), of(array("long")), BACKWARD),
    ("array items bad", of(array("int")), of(array("string")), NEITHER),
    ("map values", of(mapping("int")), of(mapping("long")), BACKWARD),
    ("map values bad", of(mapping("int")), of(mapping("boolean")), NEITHER),
    ("array to map", of(array("int")), of(mapping("int")), NEITHER),
    ("record to map", of(record(b, name="S")), of(mapping("string")), NEITHER),
    ("nested field more", of(record(b, name="S")), of(record(b, field("c", "int"), name="S")), FORWARD),
    ("nested field default", of(record(b, name="S")), of(record(b, field("c", "int", 1), name="S")), BOTH),
    ("recursive", record(field("n", ["null", "R"])), record(field("n", ["null", "R"])), SAME),
    (
        "recursive more",
        record(field("n", ["null", "R"])),
        record(field("n", ["null", "R"]), field("a", "int", 1)),
        BOTH,
    ),
    ("recursive bad", record(field("n", ["null", "R"])), record(field("n", ["null", "R"]), a), FORWARD),
    (
        "union of records same name",
        of(["null", record(b, name="S")]),
        of(["null", record(b, field("c", "int"), name="S")]),
        FORWARD,
    ),
    (
        "union of records default",
        of(["null", record(b, name="S")]),
        of(["null", record(b, field("c", "int", 1), name="S")]),
        BOTH,
    ),
    ("union of records renamed", of(["null", record(b, name="S")]), of(["null", record(b, name="T")]), BOTH),
    (
        "union of records other namespace",
        of(["null", record(b, name="S", namespace="p")]),
        of(["null", record(b, name="S", namespace="q")]),
        BOTH,
    ),
    (
        "union of records structural",
        of(["null", record(b, name="S")]),
        of(["null", record(field("z", "int"), name="Z"), record(b, name="T")]),
        BACKWARD,
    ),
    ("union of enum more", of(["null", enum("A", "B")]), of(["null", enum("A", "B", "C")]), BOTH),
    ("union of enum renamed", of(["null", enum("A", "B")]), of(["null", enum("A", "B", name="G")]), NEITHER),
    ("union of fixed size", of(["null", fixed(3)]), of(["null", fixed(4)]), NEITHER),
    ("union of fixed to bytes", of(["null", fixed(3)]), of(["null", "bytes"]), NEITHER),
    ("union arrays", of(["null", array("int")]), of(["null", array("string")]), NEITHER),
    ("union arrays wider", of(["null", array("int")]), of(["null", array("long")]), BACKWARD),
    ("union maps", of(["null", mapping("int")]), of(["null", mapping("string")]), NEITHER),
    ("writer union one fits", of(["int", "string"]), record(a), FORWARD),
    ("writer union all fit", of(["int", "long"]), of("double"), BACKWARD),
    ("record in union default", record(a), record(a, field("b", ["null", record(b, name="S")], None)), BOTH),
    ("two-branch int string to string bytes", of(["int", "string"]), of(["long", "bytes"]), BACKWARD),
    ("logical type", of({"type": "int", "logicalType": "date"}), record(a), BOTH),
    (
        "logical type other",
        of({"type": "long", "logicalType": "timestamp-millis"}),
        of({"type": "long", "logicalType": "timestamp-micros"}),
        BOTH,
    ),
    (
        "decimal precision",
        of({"type": "bytes", "logicalType": "decimal", "precision": 4}),
        of({"type": "bytes", "logicalType": "decimal", "precision": 8}),
        BOTH,
    ),
    ("java string", of({"type": "string", "avro.java.string": "String"}), of("string"), BOTH),
    ("removed", record(a, b), record(a), BACKWARD),
    ("removed with default", record(a, field("b", "string", "x")), record(a), BOTH),
    ("removed all", record(a), record(), BACKWARD),
    ("error vs record", {"type": "error", "name": "R", "fields": [a]}, record(a), SAME),
    (
        "alias swap",
        record(a, b),
        record(field("x", "int", aliases=["a"]), field("y", "string", aliases=["b"])),
        BACKWARD,
    ),
    (
        "alias nested record",
        of(record(b, name="S")),
        of(record(field("c", "string", aliases=["b"]), name="T", aliases=["S"])),
        BACKWARD,
    ),
    (
        "alias fullname",
        record(a, namespace="p"),
        record(field("c", "int", aliases=["a"]), name="S", namespace="q", aliases=["p.R"]),
        BACKWARD,
    ),
    (
        "record used twice",
        record(field("a", record(b, name="S")), field("c", "S")),
        record(field("a", record(b, name="S")), field("c", "S")),
        SAME,
    ),
    (
        "mutual recursion",
        of(["null", record(field("r", ["null", "R"]), name="S")]),
        of(["null", record(field("r", ["null", "R"]), field("q", "int", 0), name="S")]),
        BOTH,
    ),
    (
        "recursive array",
        record(field("kids", array("R"))),
        record(field("kids", array("R")), field("x", "int", 0)),
        BOTH,
    ),
    ("nested union default wrong", record(a), record(a, field("b", ["null", "int"], 5)), FORWARD),
]
PRIMITIVE = ["null", "boolean", "int", "long", "float", "double", "string", "bytes"]
PROMOTED = {
    "int": ["long", "float", "double"],
    "long": ["float", "double"],
    "float": ["double"],
    "string": ["bytes"],
    "bytes": ["string"],
}


def parsed(definition):
    return avro_rules.parse(json.dumps(definition))


def reads(reader, writer):
    return not avro_rules.obstacle(parsed(reader), parsed(writer))


@pytest.mark.parametrize("old, new, expected", [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_who_reads_whom(old, new, expected):
    is_same = avro_rules.meaning(parsed(old)) == avro_rules.meaning(parsed(new))
    assert is_same == (expected == SAME)
    assert reads(new, old) == (expected in (BOTH, BACKWARD, SAME))
    assert reads(old, new) == (expected in (BOTH, FORWARD, SAME))


@pytest.mark.parametrize("writer", PRIMITIVE)
def test_numbers_are_read_as_wider_ones_and_texts_as_bytes(writer):
    assert [reader for reader in PRIMITIVE if reads(of(reader), of(writer))] == \
        [reader for reader in PRIMITIVE if reader == writer or reader in PROMOTED.get(writer, ())]


@pytest.mark.parametrize("new, is_same", [
    (record(a, doc="x"), True), (record(a, aliases=["Q"]), True), (record({**a, "doc": "y"}), True),
    (record({**a, "aliases": ["y"]}), True),
    (record({**a, "order": "ascending"}), True), (of({"type": "int"}), True), (record(a, namespace=""), True),
    (record(a, extra=1), False), (record({**a, "extra": "y"}), False), (record({**a, "order": "descending"}), False),
    (of({"type": "int", "logicalType": "date"}), False), (record({**a, "default": 1}), False),
], ids=json.dumps)
def test_what_makes_another_version(new, is_same):
    assert (avro_rules.meaning(parsed(record(a))) == avro_rules.meaning(parsed(new))) == is_same


# -- which are some

VALID = [
    '"string"',
    '"int"',
    '{"type":"int"}',
    '{"type":"array","items":"int"}',
    '{"type":"map","values":"int"}',
    '{"type":"enum","name":"E","symbols":["A"]}',
    '{"type":"fixed","name":"F","size":3}',
    '{"type":"record","name":"R","fields":[]}',
    '{"type":"record","name":"R","namespace":"a.b$","fields":[]}',
    '{"type":"record","name":"a.b$.R","fields":[]}',
    '{"type":"record","name":"R","namespace":"1 2","fields":[]}',
    '{"type":"record","name":"Ré","fields":[]}',
    '{"type":"record","name":"R","fields":[{"name":"a","type":"R"}]}',
    '{"type":"record","name":"R","fields":[{"name":"a","type":"int","default":"x"}]}',
    '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"enum","name":"E","symbols":[]}}]}',
    '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"int","logicalType":"date"}}]}',
    '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"string","logicalType":"date"}}]}',
    '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"bytes","logicalType":"decimal"}}]}',
    '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"bytes","logicalType":"decimal","precision":-1}}]}',
    '{"type":"error","name":"R","fields":[]}',
    '{"type":"record","name":"R","fields":[{"name":"a","type":["null","int"],"default":5}]}',
    '{"type":"record","name":"R","doc":5,"fields":[]}',
    '{"type":"record","name":"R","fields":[],"fields":[{"name":"a","type":"int"}]}',
]
INVALID = [
    "",
    "{}",
    "[]",
    "null",
    '["null","string"]',
    '{"type":"record","name":"R"}',
    '{"type":"record","fields":[]}',
    '{"type":"record","name":"1R","fields":[]}',
    '{"type":"record","name":"R$X","fields":[]}',
    '{"type":"record","name":"R","fields":[{"name":"a","type":"nope"}]}',
    '{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"a","type":"int"}]}',
    '{"type":"record","name":"R","fields":[{"name":"a"}]}',
    '{"type":"record","name":"R","fields":[{"type":"int"}]}',
    '{"type":"record","name":"R","fields":[{"name":"1a","type":"int"}]}',
    '{"type":"record","name":"R","fields":5}',
    '{"type":"record","name":"R","fields":[5]}',
    '{"type":"record","name":"R","fields":[]} trailing',
    '{"type":"record","name":"R","fields":[{"name":"a","type":["int","int"]}]}',
    '{"type":"record","name":"R","fields":[{"name":"a","type":["null",["int"]]}]}',
    '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"enum","name":"E","symbols":["A","A"]}}]}',
    '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"enum","name":"E","symbols":["A-B"]}}]}',
    '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"fixed","name":"F","size":-1}}]}',
    '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"fixed","name":"F"}}]}',
    '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"array"}}]}',
    '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"fixed","name":"F","size":3}},{"name":"b",'
    '"type":{"type":"fixed","name":"F","size":3}}]}',
    '{"type":"record","name":"R","fields":[{"name":"a","type":"int","order":"sideways"}]}',
    '{"type":"record","name":"R","aliases":"x","fields":[]}',
    '{"type":"record","name":"int","fields":[]}',
    '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":{"type":"int"}}}]}',
    '{"type":{"type":"record","name":"R","fields":[]}}',
    '{"type":"record","name":"R","fields":[{"name":"a","type":"S"},{"name":"b","type":{"type":"record","name":"S","fields":[]}}]}',
    '{"type":"record","name":"","fields":[]}',
    '{"type":"record","name":5,"fields":[]}',
    '{"type":"record","name":"R","fields":[{"name":"a","type":"int","default":NaN}]}',
    "[" * 100_000,
    '{"type": "array", "items": ' * 150 + '"int"' + "}" * 150,
]


@pytest.mark.parametrize("text", VALID)
def test_a_definition_of_avro(text):
    registry.validate(Definition(T.Avro, text.encode(), {}))


@pytest.mark.parametrize("text", INVALID, ids=lambda text: text[:60])
def test_no_definition_of_avro(text):
    with pytest.raises(InvalidSchema, match="AVRO schema|UNION"):
        registry.validate(Definition(T.Avro, text.encode(), {}))


def test_bytes_that_are_no_text_are_no_definition():
    with pytest.raises(InvalidSchema):
        registry.validate(Definition(T.Avro, b"\xff\xfe", {}))


@pytest.mark.parametrize("kind", [name for name in TYPES if name not in ("JSON", "PROTOBUF", "AVRO", "KEY_VALUE",
    "PROTOBUF_NATIVE")])
def test_types_that_need_no_definition(kind):
    number = registry.kind_of(kind)
    if number >= T.AutoConsume:
        with pytest.raises(InvalidSchema, match="client-side"):
            registry.validate(Definition(number, b"", {}))
        return
    registry.validate(Definition(number, b"", {}))
    if kind == "STRING":
        registry.validate(Definition(number, b"null", {}))       # as the Python client sends it
    if kind != "NONE":
        with pytest.raises(InvalidSchema, match="Invalid schema definition data for"):
            registry.validate(Definition(number, b"abc", {}))


def test_every_type_of_the_protocol_has_a_name():
    assert len(TYPES) == len(T.keys()) and [registry.kind_of(name) for name in TYPES] == sorted(T.values())
    assert registry.kind_of("BYTES") == 0
    with pytest.raises(InvalidSchema, match="No schema type"):
        registry.kind_of("int8")


def test_json_schemas_of_old_clients_are_definitions_of_json():
    old = {"type": "object", "id": "urn:jsonschema:x:Foo", "properties": {"a": {"type": "integer"}}}
    registry.validate(Definition(T.Json, json.dumps(old).encode(), {}))
    for text in ("", "{}", "null", "5", "nonsense", '{"type": "zzz"}', '{"type": ["object"]}'):
        with pytest.raises(InvalidSchema, match="Invalid schema definition data for JSON schema"):
            registry.validate(Definition(T.Json, text.encode(), {}))


# -- protobuf

def native(fields=(("a", 1, 5), ("b", 2, 9)), root="M", package="p", **more):
    file = descriptor_pb2.FileDescriptorProto(name="f.proto", package=package, syntax="proto3")
    message = file.message_type.add(name=root)
    for name, number, kind in fields:
        message.field.add(name=name, number=number, type=kind, label=1, type_name=".p.Gone" if kind == 11 else None)
    found = {
        "fileDescriptorSet": base64.b64encode(
            descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
        ).decode(),
        "rootMessageTypeName": f"{package}.{root}",
        "rootFileDescriptorName": "f.proto",
    } | more
    return Definition(
        T.ProtobufNative, json.dumps({name: value for name, value in found.items() if value is not None}).encode(), {}
    )


def test_a_protobuf_message_goes_by_its_name_and_by_its_fields():
    registry.validate(native())
    for other in (native([("a", 1, 5)]), native([]), native(more=1)):
        registry.validate(other)
        assert registry.obstacle(other, native(), registry.FULL) == ""
    assert (
        registry.obstacle(native([("a", 1, 9)]), native(), registry.FULL)
        == "field M.a was of type int32, and is of type string"
    )
    wider = native([("a", 1, 3)])
    assert (
        registry.obstacle(wider, native(), registry.BACKWARD)
        == registry.obstacle(native(), wider, registry.FORWARD)
        == ""
    )
    assert (
        registry.obstacle(wider, native(), registry.FULL)
        == "the other way: field M.a was of type int64, and is of type int32"
    )
    for other, name in ((native(root="N"), "p.N"), (native(package="q"), "q.M")):
        assert registry.obstacle(other, native(), registry.FULL) == f"the root message was p.M, and is {name}"


@pytest.mark.parametrize("found", [
    native(rootMessageTypeName="p.X"), native(rootFileDescriptorName="x.proto"), native(fileDescriptorSet="!!"),
    native(fileDescriptorSet=base64.b64encode(b"\xff" * 9).decode()), native(rootMessageTypeName=None),
    native(rootFileDescriptorName=None),
    native(rootMessageTypeName=5), native([("a", 1, 11)]),
    *(Definition(T.ProtobufNative, text, {}) for text in (b"", b"x", b"[]", b"\xff"))],
    ids=range(12))
def test_what_does_not_describe_a_message_is_refused(found):
    with pytest.raises(InvalidSchema, match="deserialize ProtobufNative Schema failed"):
        registry.validate(found)


# -- key and value

def pair(key, value, **properties):
    kinds = {"key.schema.type": "AVRO", "value.schema.type": "AVRO"} | properties
    return Definition(T.KeyValue, registry.joined(json.dumps(key).encode(), json.dumps(value).encode()), kinds)


def test_keys_and_values_are_compared_each():
    old = pair(record(a), record(b))
    registry.validate(old)
    assert registry.obstacle(pair(record(a, field("c", "int", 1)), record(b)), old, registry.FULL) == ""
    assert registry.obstacle(pair(record(a), record(a)), old, registry.FULL).startswith("value: field a of R")
    assert registry.obstacle(pair(record(b), record(b)), old, registry.FULL).startswith("key: field b of R")
    other = pair(record(a), record(b), **{"key.schema.type": "JSON"})
    assert registry.obstacle(other, old, registry.FULL) == "exists key schema type AVRO, new key schema type JSON"


@pytest.mark.parametrize("data, properties", [
    (b"", {}), (b"xyz", {}), (b"\0\0\0\x09abc", {}), (b"\0\0\0\0", {}), (b"\x7f\xff\xff\xff\0\0\0\0", {}),
    (registry.joined(b"x", b""), {"key.schema.type": "AVRO"}), (registry.joined(b"", b"x"),
    {"value.schema.type": "STRING"}),
    (registry.joined(b"", b""), {"key.schema.type": "NOPE"}), (registry.joined(b"", b""),
    {"key.schema.type": "AUTO_CONSUME"}),
    (registry.joined(b"", b""), {"key.schema.type": "KEY_VALUE"})])
def test_no_definition_of_a_key_and_a_value(data, properties):
    with pytest.raises(InvalidSchema):
        registry.validate(Definition(T.KeyValue, data, properties))


# -- large ones

def test_a_definition_has_a_bound():
    registry.check_size(Definition(T.Json, bytes(SIZE_MAX), {}))
    for found in (Definition(T.Json, bytes(SIZE_MAX + 1), {}), Definition(T.Json, b"", {"a": "x" * SIZE_MAX})):
        with pytest.raises(InvalidSchema, match="more than 262144 bytes"):
            registry.validate(found)
    with pytest.raises(InvalidSchema, match="no text"):
        registry.validate(Definition(T.Json, b"", {"a": "\ud800"}))


def records(prefix, count, *fields):
    """Return a union of `count` record types."""
    return [record(*fields, name=f"{prefix}{number}") for number in range(count)]


@pytest.mark.slow
def test_types_of_a_union_are_found_by_name_and_by_shape():
    a_thousand = records("n", 1_000, a)
    assert reads(of(a_thousand), of(a_thousand))
    assert reads(of(records("o", 100, a)), of(records("n", 100, a)))
    assert not reads(of(records("o", 100, b)), of(records("n", 100, a)))


def test_what_would_take_minutes_to_compare_is_refused():
    """Two unions of thousands of records, each to be compared with each, are refused as too large."""
    some = parsed(of(records("o", 1_000, a)))
    assert avro_rules.obstacle(some, parsed(of(records("n", 1_000, a)))) == "too large to be compared"


def test_records_that_hold_each_other_under_other_names_are_compared_once():
    old = record(field("n", ["null", "R"]), name="R")
    new = record(field("n", ["null", "Q"]), name="Q")
    assert reads(new, old) and reads(old, new)


# -- keys and values

def test_a_key_or_a_value_is_no_pair_itself():
    inner = registry.joined(b"", b"")
    for part in ("key", "value"):
        with pytest.raises(InvalidSchema, match="KEY_VALUE is not possible"):
            registry.validate(
                Definition(T.KeyValue, registry.joined(inner, inner), {f"{part}.schema.type": "KEY_VALUE"})
            )


# -- defaults

@pytest.mark.parametrize("kind, least, most", [("int", -2**31, 2**31 - 1), ("long", -2**63, 2**63 - 1)])
def test_a_default_has_to_fit_into_its_type(kind, least, most):
    def obstacle(default):
        new, old = (avro_rules.parse(json.dumps(one)) for one in (record(a, field("b", kind, default)), record(a)))
        return avro_rules.obstacle(new, old)

    assert (obstacle(least), obstacle(most)) == ("", "")
    for wrong in (least - 1, most + 1):
        try:
            assert "default is not of its type" in obstacle(wrong)
        except ValueError as error:      # the library may refuse it first
            assert "default" in str(error).lower()


# -- what is deleted

def test_a_deleted_version_is_none(tmp_path):
    """A deleted schema version is neither found nor compared with, and its number is not given out again."""
    catalogue, topic = open_catalogue(tmp_path / "catalogue.sqlite"), parse("t")
    one, other = (Definition(T.Avro, json.dumps(of(kind)).encode(), {}) for kind in ("int", "string"))
    counters = make_counters(1)[0]
    try:
        assert registry.register(catalogue, topic, one, Policies(), counters) == 0
        catalogue.schemas.delete(topic)
        assert registry.versions(catalogue, topic) == [] and registry.find(catalogue, topic) is None
        registry.check_missing(catalogue, topic, Policies(schema_enforced=True))
        registry.check(catalogue, topic, other, registry.FULL, counters)
        assert registry.register(catalogue, topic, other, Policies(), counters) == 2
        assert registry.versions(catalogue, topic) == [2]
        with pytest.raises(Refusal, match="Incompatible"):
            registry.register(catalogue, topic, one, Policies(), counters)
    finally:
        catalogue.close()
