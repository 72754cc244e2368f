"""Values as payloads: the bytes of Pulsar's clients, Avro's binary form, and errors that name the field."""
import io
import json
import struct

import fastavro
import pytest
from hypothesis import given, strategies

from geminga.storage.jobs import one_by_one
from geminga.storage.schemas import avro_rules, registry
from geminga.storage.schemas.registry import Definition
from geminga.workers.messages import avro_encoding, outgoing
from geminga.workers.messages.decoding import Decoder
from geminga.workers.messages.entries import CODECS, About, Batch, Making, Outgoing
from geminga.workers.messages.schema_encoding import NotEncodable, SchemaEncoder
from geminga.workers.pulsar_client.client import Entry

LEAF = {"type": "enum", "name": "Leaf", "symbols": ["A", "B"]}
TREE = {"type": "record", "name": "Tree", "namespace": "of", "fields": [
    {"name": "number", "type": "int"}, {"name": "long", "type": ["null", "long"], "default": None},
    {"name": "real", "type": "double", "default": 1.5}, {"name": "single", "type": ["float", "string"], "default": 0.5},
    {"name": "flag", "type": "boolean", "default": False}, {"name": "text", "type": ["null", "string"]},
    {"name": "raw", "type": "bytes", "default": "\u00ff"},
    {"name": "leaf", "type": LEAF, "default": "B"}, {"name": "sum", "type": {"type": "fixed", "name": "Sum", "size": 2},
                                                     "default": "\u0000\u0001"},
    {"name": "list", "type": {"type": "array", "items": "Tree"}, "default": []},
    {"name": "map", "type": {"type": "map", "values": ["null", "Leaf"]}, "default": {}},
    {"name": "when", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}], "default": None},
    {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}], "default": None},
    {"name": "price", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}],
     "default": None},
]}
SCHEMA = avro_rules.parse(json.dumps(TREE))
FULL = {"number": -(1 << 31), "long": 1 << 62, "real": -0.0, "single": 2.5, "flag": True, "text": "ü",
        "raw": "\0\u00fe", "leaf": "A", "sum": "ab", "list": [{"number": 1}, {"number": 64, "list": [{"number": 2}]}],
        "map": {"x": "B", "": None}, "when": 1_769_860_800_123, "day": -1, "price": "-12.30"}


def read(payload):
    """Read a payload as another library does, without logical types."""
    plain = json.loads(json.dumps(TREE).replace("logicalType", "was"))
    return fastavro.schemaless_reader(io.BytesIO(payload), plain, None)


def test_avro_is_read_by_another_library_as_the_values_that_were_given():
    value = read(avro_encoding.encode(SCHEMA, FULL))
    inner = {"long": None, "real": 1.5, "single": 0.5, "flag": False, "text": None, "raw": b"\xff", "leaf": "B",
             "sum": b"\0\1", "list": [], "map": {}, "when": None, "day": None, "price": None}
    assert value == FULL | {"raw": b"\0\xfe", "sum": b"ab", "price": (-1230).to_bytes(2, signed=True), "list": [
        inner | {"number": 1}, inner | {"number": 64, "list": [inner | {"number": 2}]}]}


@pytest.mark.parametrize(("field", "value", "stored"), [
    ("when", "2026-01-31T12:00:00.123Z", 1_769_860_800_123), ("when", "2026-01-31 13:00:00+01:00", 1_769_860_800_000),
    ("day", "1970-01-03", 2), ("day", "1969-12-31", -1), ("price", 5, b"\1\xf4"), ("price", "1e2", b"\x27\x10"),
    ("price", 0, b"\0"), ("price", "-1.28", b"\x80"), ("long", {"long": 5}, 5), ("text", {"string": "x"}, "x"),
    ("single", "x", "x"), ("real", 3, 3.0), ("real", "Infinity", float("inf")),
])
def test_avro_takes_texts_of_times_and_decimals_and_branches_by_name(field, value, stored):
    assert read(avro_encoding.encode(SCHEMA, {"number": 0, field: value}))[field] == stored


@pytest.mark.parametrize(("value", "why"), [
    ({}, "number: it is missing, and the schema has no default"), (5, "the value: 5 is not an object with the fields"),
    ({"number": 1 << 31}, "number: 2147483648 is not a whole number of the type int"),
    ({"number": True}, "number: true is not a whole"), ({"number": 1.0}, "number: 1.0 is not a whole"),
    ({"number": 0, "long": "x"}, 'long: "x" is not a whole number of the type long'),
    ({"number": 0, "single": None}, "single: null is not one of float, string"),
    ({"number": 0, "single": 1e300}, "single: 1e+300 is not one of float, string"),
    ({"number": 0, "flag": 0}, "flag: 0 is not true or false"), ({"number": 0, "raw": "\u0100"}, "raw: "),
    ({"number": 0, "leaf": "C"}, 'leaf: "C" is not one of A, B'), ({"number": 0, "leaf": []}, "leaf: [] is not one of"),
    ({"number": 0, "sum": "abc"}, "sum: it has 3 bytes, and the type Sum has 2"),
    ({"number": 0, "list": [{"number": 0}, {"number": 0, "list": [{}]}]}, "list[1].list[0].number: it is missing"),
    ({"number": 0, "map": {"x": "C"}}, 'map["x"]: "C" is not one of A, B'),
    ({"number": 0, "list": {}}, "list: {} is not"),
    ({"number": 0, "when": "noon"}, 'when: "noon" is not a timestamp-millis'),
    ({"number": 0, "price": "1.234"}, 'price: "1.234" is not a decimal of 6 digits, 2 of them behind the point'),
    ({"number": 0, "price": 12345.67}, "price: 12345.67 is not"),
    ({"number": 0, "price": "NaN"}, 'price: "NaN" is not'),
    ({"number": 0, "price": "1e999999999"}, "price: "), ({"number": 0, "price": "1e-999999999"}, "price: "),
    ({"number": 0, "text": "\ud800"}, "text: it has half of a character"),
    ({"number": 0, "nmuber": 1}, "nmuber: the schema has no such field. Did you mean number?"),
])
def test_avro_names_the_field_that_does_not_fit(value, why):
    with pytest.raises(outgoing.Wrong) as raised:
        avro_encoding.encode(SCHEMA, value)
    assert str(raised.value).startswith(why)


def test_a_value_that_is_nested_without_end_is_refused():
    value = {"number": 0}
    for _ in range(5_000):
        value = {"number": 0, "list": [value]}
    with pytest.raises(outgoing.Wrong, match="nested too deeply"):
        avro_encoding.encode(SCHEMA, value)


# -- types of Pulsar

DAY = 86_400_000
PRIMITIVES = [
    ("STRING", b"a \xc3\xbc", b"a \xc3\xbc"), ("BYTES", b"\xff", b"\xff"), ("BOOLEAN", b"true", b"\1"),
    ("INT8", b"-1", b"\xff"), ("INT16", b"258", b"\1\2"), ("INT32", b" 7 ", b"\0\0\0\7"),
    ("INT64", b"-2", b"\xff" * 7 + b"\xfe"), ("FLOAT", b"1.5", b"\x3f\xc0\0\0"),
    ("DOUBLE", b"-1", b"\xbf\xf0" + bytes(6)), ("TIMESTAMP", b"1970-01-01T00:00:01.5Z", (1_500).to_bytes(8)),
    ("DATE", b"1500", (1_500).to_bytes(8)), ("TIME", b"00:00:01.5", (1_500).to_bytes(8)),
    ("INSTANT", b'"1970-01-01T00:00:01.5Z"', struct.pack(">qi", 1, 500_000_000)),
    ("INSTANT", b"-1", struct.pack(">qi", -1, 999_000_000)),
    ("LOCAL_DATE", b"1970-01-03", (2).to_bytes(8)), ("LOCAL_TIME", b"00:00:01", (10**9).to_bytes(8)),
    ("LOCAL_DATE_TIME", b"1970-01-03T00:00:01", struct.pack(">qq", 2, 10**9)),
]


@pytest.mark.parametrize(("kind", "text", "payload"), PRIMITIVES)
def test_primitive_values_have_the_bytes_of_the_java_client(kind, text, payload):
    assert encoder(kind).of_text(text) == (payload, None)


def encoder(kind, data=b"", **properties):
    return SchemaEncoder(Definition(registry.kind_of(kind), data, properties))


@pytest.mark.parametrize(("kind", "text", "why"), [
    ("INT8", b"128", "128 is not a whole number of 8 bits"), ("INT32", b"x", '"x" is not a whole'),
    ("INT64", b"1.5", "1.5 is not"),
    ("BOOLEAN", b"1", "1 is not true or false"), ("FLOAT", b"1e300", "1e+300 is not a number of this size"),
    ("DOUBLE", b"true", "true is not a number"), ("STRING", b"\xff", "it is no text in UTF-8"),
    ("TIMESTAMP", b"noon", '"noon" is not a time'), ("DATE", b"99999999999999999999999", "is not a time"),
    ("LOCAL_DATE", b"today", '"today" is not a date'), ("TIME", b"5", "5 is not a time of day"),
])
def test_primitive_values_that_do_not_fit_are_refused(kind, text, why):
    with pytest.raises(outgoing.Wrong, match=why.replace("+", r"\+")):
        encoder(kind).of_text(text)


@pytest.mark.parametrize("encoding", [None, "INLINE", "SEPARATED"])
def test_keys_of_key_values_stand_in_the_payload_or_beside_it(encoding):
    properties = {"key.schema.type": "INT32", "value.schema.type": "STRING"}
    made = encoder("KEY_VALUE", registry.joined(b"", b""), **properties,
                   **({"kv.encoding.type": encoding} if encoding else {}))
    wanted = (b"v", "AAAABw==") if encoding == "SEPARATED" else (b"\0\0\0\4\0\0\0\7\0\0\0\1v", None)
    assert made.of_text(b'{"key": 7, "value": "v"}') == wanted
    message = outgoing.of_payload(b'{"key": 7, "value": "v"}', About(key="given"), made)
    assert (message.about.key, message.about.key_is_base64) == (("AAAABw==", True) if wanted[1] else ("given", False))
    nothing = made.of_value({"key": 7, "value": None})
    assert nothing.payload == (b"" if wanted[1] else b"\0\0\0\4\0\0\0\7\xff\xff\xff\xff")
    for wrong, why in (('{"key": "x", "value": "v"}', 'key: "x" is not a whole'), ('{"key": 7}', "the value: ")):
        with pytest.raises(outgoing.Wrong, match=why):
            made.of_text(wrong.encode())


def test_json_is_compared_with_its_definition_but_not_with_a_json_schema():
    order = {"type": "record", "name": "O", "fields": [{"name": "a", "type": "int"}]}
    made = encoder("JSON", json.dumps(order).encode())
    assert made.of_text(b' {"a": 1} ').payload == b'{"a":1}'
    with pytest.raises(outgoing.Wrong, match="a: 1.5 is not"):
        made.of_value({"a": 1.5})
    old = encoder("JSON", b'{"type": "object", "id": "urn:jsonschema:O"}')
    assert old.of_value({"b": "\u00fc"}).payload == '{"b":"ü"}'.encode()
    with pytest.raises(outgoing.Wrong):
        old.of_value(float("inf"))


@pytest.mark.parametrize("kind", ["PROTOBUF", "AUTO_CONSUME", "EXTERNAL"])
def test_types_that_cannot_be_encoded_are_refused(kind):
    with pytest.raises(NotEncodable, match=kind):
        encoder(kind)


# -- entries

@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_holds_what_was_put_into_it(codec):
    abouts = [About(), About(properties=(("a", "b"),), event_time=7), About(is_null=True)]
    messages = [Outgoing(b"x" * (number // 3), abouts[number % 3]) for number in range(300)]
    batch = Batch(Making("p", b"\0\1", CODECS[codec]), 1_000, 50)
    for message in messages:
        assert batch.takes(message)
        batch.add(message)
    entry = batch.entry()
    assert (entry.sequence_id, entry.messages, entry.payload_bytes, len(batch)) == (50, 300, 3 * sum(range(100)), 0)
    metadata, stored = one_by_one.split(entry.data)
    assert (metadata.highest_sequence_id, metadata.schema_version, metadata.producer_name) == (349, b"\0\1", "p")
    for number, message in enumerate(one_by_one.messages(metadata, stored)):
        about = abouts[number % 3]
        assert message["payload"] == messages[number].payload and message["sequence_id"] == 50 + number
        assert message["properties"] == [(key.encode(), value.encode()) for key, value in about.properties]
        assert (message["event_time"], message["null_value"]) == (about.event_time, about.is_null)


@pytest.mark.parametrize(("one", "other"), [
    (About("a"), About("b")), (About("a"), About()), (About(ordering_key=b"a"), About(ordering_key=b"b")),
    (About(), About(deliver_at=5)), (About(deliver_at=5), About(deliver_at=6))])
def test_messages_of_two_keys_or_times_are_no_batch(one, other):
    batch = Batch(Making("p"), 1_000, 0)
    batch.add(Outgoing(b"x", one))
    assert not batch.takes(Outgoing(b"y", other)) and batch.takes(Outgoing(b"y", one._replace(event_time=1)))
    for _ in range(2):
        metadata, _ = one_by_one.split(batch.entry().data)
        key = metadata.partition_key if metadata.HasField("partition_key") else None
        assert (key, metadata.deliver_at_time) == (one.key, one.deliver_at)
        assert metadata.ordering_key == (one.ordering_key or b"")
        for _ in range(2):
            batch.add(Outgoing(b"x", one))


def test_a_batch_is_full_by_count_and_by_bytes():
    batch = Batch(Making("p"), 2, 0)
    for size in (1, 1):
        assert not batch.is_full
        batch.add(Outgoing(b"x" * size, About()))
    assert batch.is_full and batch.entry().messages == 2
    large = Outgoing(b"x" * (100 << 10), About())
    batch.add(large)
    assert not batch.takes(large)


TEXTS = strategies.text(strategies.characters(exclude_categories=["Cs"]), max_size=5)
ABOUTS = strategies.builds(
    About, strategies.none() | TEXTS, strategies.just(False), strategies.none() | strategies.binary(max_size=3),
    strategies.dictionaries(TEXTS, TEXTS, max_size=2).map(lambda pairs: tuple(pairs.items())),
    strategies.integers(0, (1 << 63) - 1), strategies.integers(0, (1 << 63) - 1), strategies.just(False),
    strategies.just(()))      # the copy goes to the clusters of its own topic


@pytest.mark.slow
@given(strategies.lists(strategies.builds(Outgoing, strategies.binary(max_size=9), ABOUTS), min_size=1, max_size=4))
def test_the_json_of_a_published_message_publishes_the_same_message(messages):
    """As in geminga consume -o jsonl | geminga produce --jsonl -."""
    messages.append(Outgoing(b"", About("AAE=", key_is_base64=True, is_null=True)))
    lines = [json.dumps(message.as_json()).encode() for one in messages for message in decoded(one)]
    assert [outgoing.of_json(line, About(), None) for line in lines] == messages


def decoded(message):
    batch = Batch(Making("p"), 2, 0)
    batch.add(message)
    data = batch.entry().data
    return Decoder().messages("persistent://a/b/c", Entry(1, 2, one_by_one.split(data)[0], data))
