"""Payloads become columns by the versions of their schema; what does not fit is told, and disturbs no other row."""
import base64
import json
import math
import struct

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st

from geminga.storage.jobs.typed import NoSchema
from geminga.storage.schemas.registry import TYPES, Definition
from geminga.storage.tables import columns, forms
from geminga.storage.tables.values import RAW, Values

from .lake import ORDER, S

FIRST, SECOND = (number.to_bytes(8, "big") for number in range(2))


def values_of(kind, *definitions, **properties):
    made = [Definition(kind, one if isinstance(one, bytes) else json.dumps(one).encode(), properties)
            for one in definitions]
    return Values(made[-1], {number.to_bytes(8, "big"): one for number, one in enumerate(made)})


def read(values, payloads, versions=None, skipped=None):
    """Return ([{column: value}] of the payloads, reasons)."""
    versions = [FIRST] * len(payloads) if versions is None else versions
    skipped = np.zeros(len(payloads), bool) if skipped is None else np.array(skipped)
    found, reasons = values.read(pa.array(payloads, pa.binary()), pa.array(versions, pa.binary()), skipped)
    return pa.Table.from_arrays(found, schema=values.schema).to_pylist(), reasons


def order(**fields):
    return json.dumps(fields).encode()


def test_json_fields_are_columns():
    payloads = [order(id=1, name="a", price=2.5), order(id=2), order(id=3, name=None, more=[1, {"x": 2}]),
                b' {\n "id": 4,\r\n "name": "li\\nne"}']
    assert read(values_of(S.Json, ORDER), payloads) == ([
        {"id": 1, "name": "a", "price": 2.5}, {"id": 2, "name": None, "price": None},
        {"id": 3, "name": None, "price": None}, {"id": 4, "name": "li\nne", "price": None}], {})


# Payloads that could end their row, be none, or be several, if they were only put on lines.
HOSTILE = [b"", b"{", b'{"id":1}{"id":2}', b'{"id":1}} {"v":{"id":2}', b'{"id":1}}\n{"v":{"id":2}', b"[]", b"5", b'"x"',
           b'{"id":"x"}', b"\xff", b'{"id":1,"name":"a\nb"}', b'{"id":1.5}', b'{"id":1}\n\n', b"null",
           b'{"id":99999999999999999999}']
UNFIT = {b"", b"{", b"[]", b"5", b"\xff", *(one for one in HOSTILE if one.count(b"{") > 1)}


@pytest.mark.slow
@given(st.lists(st.one_of(
    st.sampled_from(HOSTILE),
    st.builds(lambda number, name: order(id=number, name=name), st.integers(-9, 9), st.text(max_size=4))), max_size=12))
def test_a_payload_of_json_never_changes_another_row(payloads):
    """Parsed together or one by one, each row is that of its own payload."""
    together, reasons = read(values_of(S.Json, ORDER), payloads)
    alone = [read(values_of(S.Json, ORDER), [payload]) for payload in payloads]
    assert together == [row for [row], _ in alone]
    assert sorted(reasons) == [at for at, (_, reason) in enumerate(alone) if reason]
    assert {at for at, payload in enumerate(payloads) if payload in UNFIT} <= reasons.keys()


def test_a_json_schema_with_types_that_arrow_does_not_parse_is_read_one_by_one():
    schema = {"type": "record", "name": "R", "fields": [
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "either", "type": ["null", "int", "string"]}]}
    found = read(values_of(S.Json, schema), [b'{"counts": {"a": 1}, "either": 5}', b'{"counts": {}, "either": "x"}'])
    assert found == ([{"counts": [("a", 1)], "either": "5"}, {"counts": [], "either": '"x"'}], {})


def avro(definition, value):
    import io

    import fastavro
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(definition), value)
    return stream.getvalue()


def test_avro_messages_are_read_with_their_own_version():
    """A field that the newest version has lost keeps its column, behind the others; a new one is null in older rows."""
    newer = ORDER | {"fields": [{"name": "id", "type": "long"}, {"name": "city", "type": "string", "default": "?"}]}
    values = values_of(S.Avro, ORDER, newer)
    payloads = [avro(ORDER, {"id": 1, "name": "a", "price": None}), avro(newer, {"id": 2, "city": "Bonn"})]
    assert read(values, payloads, [FIRST, SECOND]) == ([
        {"id": 1, "city": None, "name": "a", "price": None},
        {"id": 2, "city": "Bonn", "name": None, "price": None}], {})
    assert values.schema.names == ["id", "city", "name", "price"]
    rows, reasons = read(values, [payloads[0], payloads[0] + b"!", b"\x02", payloads[1]], [None, FIRST, FIRST, None])
    assert sorted(reasons) == [0, 1, 2]      # a message that names no version is read with the newest
    assert rows[3]["city"] == "Bonn"


def test_a_message_of_another_schema_type_is_told():
    values = values_of(S.Int32, b"")
    values.versions[SECOND] = Definition(S.String, b"", {})
    found, reasons = read(values, [struct.pack(">i", 7), b"abcd", b"\0", struct.pack(">i", 8)],
                          [FIRST, SECOND, FIRST, None])
    assert [row["value"] for row in found] == [7, None, None, 8] and sorted(reasons) == [1, 2]


PRIMITIVES = {
    "BOOLEAN": (b"\1", True), "INT8": (b"\xff", -1), "INT16": (b"\0\5", 5), "INT64": (b"\0" * 7 + b"\7", 7),
    "FLOAT": (struct.pack(">f", 1.5), 1.5), "DOUBLE": (struct.pack(">d", 2.5), 2.5), "STRING": ("ä".encode(), "ä"),
    "DATE": (struct.pack(">q", 1000), "1970-01-01T00:00:01+00:00"), "TIME": (struct.pack(">q", 1000), "00:00:01"),
    "TIMESTAMP": (struct.pack(">q", 1500), "1970-01-01T00:00:01.500000+00:00"),
    "INSTANT": (struct.pack(">qi", 1, 5000), "1970-01-01T00:00:01.000005+00:00"),
    "LOCAL_DATE": (struct.pack(">q", 2), "1970-01-03"), "LOCAL_TIME": (struct.pack(">q", 10 ** 9), "00:00:01"),
    "LOCAL_DATE_TIME": (struct.pack(">qq", 1, 10 ** 9), "1970-01-02T00:00:01")}


@pytest.mark.parametrize("kind", PRIMITIVES)
def test_primitive_schemas_are_one_column(kind):
    payload, expected = PRIMITIVES[kind]
    [row], reasons = read(values_of(TYPES.index(kind), b""), [payload])
    found = row["value"]
    assert (found.isoformat() if hasattr(found, "isoformat") else found) == expected and not reasons
    if kind != "STRING":
        assert list(read(values_of(TYPES.index(kind), b""), [payload + b"!"])[1]) == [0]


def test_text_that_is_not_utf8_is_told():
    assert read(values_of(S.String, b""), [b"a", b"\xff", b"b"]) == (
        [{"value": "a"}, {"value": None}, {"value": "b"}],
        {1: "its text is not UTF-8 at byte 0"})


def test_payloads_without_a_schema_stay_as_they_are():
    assert read(Values(), [b"\xff\0", b""], [None, FIRST]) == ([{RAW: b"\xff\0"}, {RAW: b""}], {})


def pair_schema(key, value):
    return b"".join(struct.pack(">i", len(one)) + one for one in (key, value))


def test_pairs_are_two_columns():
    definition = pair_schema(b"", json.dumps(ORDER).encode())
    of = {"key.schema.type": "STRING", "value.schema.type": "JSON"}
    whole = values_of(S.KeyValue, definition, **of, **{"kv.encoding.type": "INLINE"})
    assert read(whole, [pair_schema(b"k", order(id=1)), struct.pack(">ii", -1, -1), b"\0"]) == ([
        {"key": "k", "value": {"id": 1, "name": None, "price": None}}, {"key": None, "value": None},
        {"key": None, "value": None}], {2: "a pair is cut"})
    apart = values_of(S.KeyValue, definition, **of, **{"kv.encoding.type": "SEPARATED"})
    assert read(apart, [order(id=1)]) == ([{"value": {"id": 1, "name": None, "price": None}}], {})


def protobuf_schema(*, is_repeated=False, **fields):
    """Return the schema of a message with an int64 field `id` and these fields, and its class."""
    from google.protobuf import message_factory

    from geminga.storage.schemas import protobuf_rules
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    F = descriptor_pb2.FieldDescriptorProto
    root = file.message_type.add(name="Order")
    root.field.add(name="id", number=1, type=F.TYPE_INT64, label=F.LABEL_OPTIONAL)
    root.field.add(name="tags", number=2, type=F.TYPE_STRING, label=F.LABEL_REPEATED)
    root.field.add(name="parent", number=3, type=F.TYPE_MESSAGE, type_name=".shop.Order", label=F.LABEL_OPTIONAL)
    for number, (name, kind) in enumerate(fields.items(), 10):
        label = F.LABEL_REPEATED if is_repeated else F.LABEL_OPTIONAL
        root.field.add(name=name, number=number, type=kind, label=label)
    data = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    text = json.dumps({"fileDescriptorSet": base64.b64encode(data).decode(), "rootMessageTypeName": "shop.Order",
                       "rootFileDescriptorName": "order.proto"}).encode()
    return text, message_factory.GetMessageClass(protobuf_rules.parse(text))


def test_protobuf_fields_are_columns():
    F = descriptor_pb2.FieldDescriptorProto
    old, old_class = protobuf_schema(gone=F.TYPE_UINT64)
    new, new_class = protobuf_schema(city=F.TYPE_STRING)
    values = values_of(S.ProtobufNative, old, new)
    message = new_class(id=5, tags=["a"], city="Bonn", parent=new_class(id=4, parent=new_class(id=3)))
    found, reasons = read(values, [old_class(id=1, gone=1 << 63).SerializeToString(), message.SerializeToString(),
                                   b"\xff"], [FIRST, SECOND, FIRST])
    assert list(reasons) == [2]
    assert found[0] | {"gone": int(found[0]["gone"])} == {
        "id": 1, "tags": [], "parent": None, "city": None, "gone": 1 << 63}
    assert found[1]["city"] == "Bonn" and found[1]["parent"]["id"] == 4
    assert new_class.FromString(found[1]["parent"]["parent"]).id == 3      # a message inside itself stays bytes


@pytest.mark.parametrize("definition", [b"not json", b'{"type": "record"}', b'{"type": "unknown"}'])
@pytest.mark.parametrize("kind", [S.Json, S.Avro, S.ProtobufNative])
def test_a_schema_that_cannot_be_a_table_is_refused(kind, definition):
    with pytest.raises(NoSchema):
        columns.schema_of(values_of(kind, definition))


def test_fields_with_names_of_other_columns_are_renamed():
    schema = {"type": "record", "name": "R", "fields": [
        {"name": "_key", "type": "int"}, {"name": "day", "type": "int"}, {"name": "A", "type": "int"},
        {"name": "a", "type": "int"}, {"name": "b", "type": "int"}, {"name": "B", "type": "int"}]}
    found = columns.schema_of(values_of(S.Json, schema))
    assert found.names[len(columns.OWN):] == ["_key_", "day_", "A", "a_", "b", "B_"]


def test_values_can_be_sent_to_another_process():
    import pickle
    values = values_of(S.Json, ORDER)
    assert read(values, [order(id=1)]) == read(pickle.loads(pickle.dumps(values)), [order(id=1)])


def test_large_numbers_of_messages_are_parsed_together(monkeypatch):
    """No message is read one by one while all of them fit."""
    monkeypatch.setattr(forms.OneByOne, "read", None)
    found, _ = read(values_of(S.Json, ORDER), [order(id=number) for number in range(50_000)])
    assert [row["id"] for row in found] == list(range(50_000))




def test_protobuf_of_defaults_and_empty_text_are_values():
    """A message whose fields all have their defaults has no bytes, as an empty text has none."""
    text, _ = protobuf_schema()
    values = values_of(S.ProtobufNative, text)
    assert values.takes_empty and read(values, [b""]) == ([{"id": 0, "tags": [], "parent": None}], {})
    assert values_of(S.String, b"").takes_empty and read(values_of(S.String, b""), [b""]) == ([{"value": ""}], {})
    assert not values_of(S.Json, ORDER).takes_empty


@pytest.mark.parametrize("kind", [S.Json, S.Avro])
def test_json_text_is_json(kind):
    """Also unions of text, and bytes, which are base64 there."""
    schema = {"type": "record", "name": "R", "fields": [
        {"name": "either", "type": ["null", "int", "string", "bytes"]},
        {"name": "nothing", "type": {"type": "record", "name": "N", "fields": []}}]}
    found = []
    for either in (5, "x", '"', None):
        value = {"either": either, "nothing": {}}
        [row], reasons = read(values_of(kind, schema), [avro(schema, value) if kind == S.Avro else order(**value)])
        assert not reasons
        found.append((row["either"] and json.loads(row["either"]), json.loads(row["nothing"])))
    assert found == [(5, {}), ("x", {}), ('"', {}), (None, {})]
    if kind == S.Avro:
        [row], _ = read(values_of(kind, schema), [avro(schema, {"either": b"\xff", "nothing": {}})])
        assert row["either"] == '"/w=="'


# (definition of the field, JSON of its value, the column's value): numbers keep their digits, or are rejected.
NUMBERS = [
    ("long", "1", 1), ("long", "1.0", 1), ("long", "1e3", 1000), ("long", "1.5", None), ("long", "1e400", None),
    ("int", "2147483648", None), ("long", "true", None), ("long", '"1"', None), ("boolean", "1", None),
    ("double", "1", 1.0), ("double", '"Infinity"', math.inf), ("double", "1e999", None), ("double", '"x"', None),
    ("float", "1e39", None), ("float", "0.5", 0.5), ("string", "12.50", "12.50"), ("string", "{}", None),
    ("string", "123456789012345678901234567890", "123456789012345678901234567890"), ("string", "true", None)]


@pytest.mark.parametrize(("kind", "text", "expected"), NUMBERS)
def test_json_numbers_keep_their_digits_or_are_rejected(kind, text, expected):
    """Alone, and beside a payload with which Arrow's parser would take them all."""
    schema = {"type": "record", "name": "R", "fields": [
        {"name": "inner", "type": {"type": "record", "name": "I", "fields": [{"name": "x", "type": kind}]}}]}
    for others in ([], [b'{"inner": {"x": null}}']):
        rows, reasons = read(values_of(S.Json, schema), [b'{"inner": {"x": %s}}' % text.encode(), *others])
        assert (rows[0]["inner"] and rows[0]["inner"]["x"]) == expected
        if expected is None:
            assert reasons[0].startswith("field inner.x: ") and " is no " in reasons[0]
