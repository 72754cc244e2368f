"""Tables are read by programs of others: each gets every row that a question asks for, and no other one."""
import json
import math
from decimal import Decimal

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from google.protobuf import descriptor_pb2

from ..jobs.topics import Message
from . import readers
from .lake import Lake, S
from .test_values import avro, protobuf_schema

pytestmark = pytest.mark.slow

NAN = math.nan
FLOATS = {"type": "record", "name": "R", "fields": [
    {"name": "id", "type": "int"}, {"name": "value", "type": "double"}, {"name": "narrow", "type": "float"},
    {"name": "many", "type": {"type": "array", "items": "double"}},
    {"name": "inner", "type": {"type": "record", "name": "I", "fields": [{"name": "x", "type": "double"}]}},
    {"name": "named", "type": {"type": "map", "values": "float"}}]}


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path)


def with_floats(lake, values):
    [topic] = lake.topic()
    version = lake.schema(FLOATS, S.Avro)
    for at, value in enumerate(values):
        topic.publish(Message("k", avro(FLOATS, {
            "id": at, "value": value, "narrow": value, "many": [value], "inner": {"x": value}, "named": {"a": value}})),
            schema_version=version)
    lake.export()


# (values, what is asked of `value` as SQL, as Arrow's expression and as pandas' filter, ids of the answer)
NAN_QUESTIONS = [
    ([0.0, NAN], "value = 0", pc.field("value") == 0, [("value", "==", 0)], [0]),
    ([NAN, 0.0], "value = 0", pc.field("value") == 0, [("value", "==", 0)], [1]),
    ([1.0, NAN, 2.0], "value < 5", pc.field("value") < 5, [("value", "<", 5)], [0, 2]),
    ([NAN, NAN], "value = 0", pc.field("value") == 0, [("value", "==", 0)], []),
    ([1.0, NAN], "isnan(value)", pc.is_nan(pc.field("value")), None, [1])]


@pytest.mark.parametrize(("values", "sql", "arrow", "filters", "ids"), NAN_QUESTIONS)
def test_rows_with_nan_are_neither_lost_nor_found_too_often(lake, values, sql, arrow, filters, ids):
    with_floats(lake, values)
    answers = [readers.by_duckdb(lake, sql), readers.by_arrow(lake, arrow)]
    answers += [readers.by_pandas(lake, filters)] if filters is not None else []
    assert [[row["id"] for row in rows] for rows in answers] == [ids] * len(answers)


def test_a_row_with_nan_is_found_where_it_is_the_only_answer(lake):
    """Readers whose order has NaN above all numbers must not pass over its row group."""
    with_floats(lake, [1.0, NAN])
    assert [row["id"] for row in readers.by_duckdb(lake, "value > 1")] == [1]
    assert [row["id"] for row in readers.by_duckdb(lake, "narrow = 'nan'::FLOAT")] == [1]
    assert [row["id"] for row in readers.by_arrow(lake, pc.field("value") != 1)] == [1]
    assert [row["id"] for row in readers.by_pandas(lake, [("value", "!=", 1)])] == [1]


def test_floats_have_no_statistics_wherever_they_are(lake):
    with_floats(lake, [1.0, NAN])
    [path] = lake.target.rglob("day=*/*.parquet")
    group = pq.read_metadata(path).row_group(0)
    columns = [group.column(at) for at in range(group.num_columns)]
    without = {one.path_in_schema for one in columns if one.statistics is None}
    assert without == {"value", "narrow", "many.list.element", "inner.x", "named.key_value.value"}


@pytest.mark.spark
@pytest.mark.parametrize(("values", "sql", "ids"), [
    ([0.0, NAN], "value = 0", [0]), ([1.0, NAN], "value > 1", [1]), ([1.0, NAN], "value = double('NaN')", [1]),
    ([1.0, NAN], "narrow > 1", [1]), ([1.0, NAN], "value <> 1", [1]), ([NAN, NAN], "isnan(inner.x)", [0, 1])])
def test_spark_finds_rows_with_nan(lake, spark, values, sql, ids):
    with_floats(lake, values)
    assert sorted(row["id"] for row in readers.by_spark(spark, lake, sql)) == ids


# -- columns that become wider

F = descriptor_pb2.FieldDescriptorProto


def of_avro(*types):
    return [{"type": "record", "name": "R", "fields": [{"name": "x", "type": one}]} for one in types]


def protobuf(kind, value, *, is_repeated=False):
    """Return (schema, payload) of a message with a field of a type and its value."""
    text, message = protobuf_schema(x=kind, is_repeated=is_repeated)
    return text, message(x=value).SerializeToString()


# name: (kind of schema, [(definition, payload)], values of the column)
STEPS = {
    **{f"avro_{one}_{other}": (S.Avro, [
        (definition, avro(definition, {"x": value}))
        for definition, value in zip(of_avro(one, other), values, strict=True)], expected)
       for one, other, values, expected in [
           ("int", "long", (1, 1 << 40), [1, 1 << 40]), ("int", "float", (1, 0.5), [1.0, 0.5]),
           ("int", "double", (1, 0.5), [1.0, 0.5]), ("long", "float", (1, 0.5), [1.0, 0.5]),
           ("long", "double", (1, 0.5), [1.0, 0.5]), ("float", "double", (0.5, 0.1), [0.5, 0.1]),
           ("string", "bytes", ("a", b"\xff"), [b"a", b"\xff"]), ("bytes", "string", (b"\xff", "a"), [b"\xff", b"a"]),
           ("long", "int", (1 << 40, 1), [1 << 40, 1])]},
    "avro_nullable": (S.Avro, [(one, avro(one, {"x": value})) for one, value in zip(
        of_avro("int", ["null", "long"]), (1, None), strict=True)], [1, None]),
    "avro_items": (S.Avro, [(one, avro(one, {"x": [value]})) for one, value in zip(
        of_avro(*({"type": "array", "items": kind} for kind in ("int", "double"))), (1, 0.5), strict=True)],
        [[1.0], [0.5]]),
    **{f"json_{one}_{other}": (S.Json, [(definition, json.dumps({"x": value}).encode()) for definition, value in zip(
        of_avro(one, other), values, strict=True)], expected) for one, other, values, expected in [
            ("int", "long", (1, 1 << 40), [1, 1 << 40]), ("long", "double", (1, 0.5), [1.0, 0.5]),
            ("float", "double", (0.5, 0.1), [0.5, 0.1]), ("int", "string", (1, "a"), ["1", "a"])]},
    **{f"protobuf_{name}": (S.ProtobufNative, versions, expected) for name, versions, expected in [
        ("bool", [protobuf(F.TYPE_BOOL, True), protobuf(F.TYPE_INT64, 5)], [1, 5]),
        ("int", [protobuf(F.TYPE_INT32, -1), protobuf(F.TYPE_INT64, 1 << 40)], [-1, 1 << 40]),
        ("unsigned", [protobuf(F.TYPE_UINT32, 1), protobuf(F.TYPE_UINT64, 1 << 63)], [1, 1 << 63]),
        ("signed", [protobuf(F.TYPE_SINT32, -1), protobuf(F.TYPE_SINT64, 5)], [-1, 5]),
        ("text", [protobuf(F.TYPE_STRING, "a"), protobuf(F.TYPE_BYTES, b"\xff")], [b"a", b"\xff"]),
        ("many", [protobuf(F.TYPE_INT64, 1), protobuf(F.TYPE_INT64, [2, 3], is_repeated=True)], [[1], [2, 3]])]}}


def evolved(lake, steps):
    """Export a topic for each step, after each of its versions."""
    for name in steps:
        kind, versions, _ = STEPS[name]
        [topic] = lake.topic(name)
        for definition, payload in versions:
            topic.publish(Message("k", payload), schema_version=lake.schema(definition, kind, name))
            reports = lake.export()
            assert {(one["error"], one["rejected"]) for one in reports} == {("", 0)}


def column_of(rows):
    found = [row["x"] for row in sorted(rows, key=lambda row: row["_entry_id"])]
    return [int(one) if isinstance(one, Decimal) else bytes(one) if isinstance(one, bytearray) else one
            for one in found]


@pytest.mark.parametrize("name", STEPS)
def test_each_step_of_a_schema_is_read_as_one_column(lake, name):
    evolved(lake, [name])
    expected = STEPS[name][2]
    assert column_of(readers.by_duckdb(lake, "true", name)) == expected
    assert column_of(readers.by_arrow(lake, None, name)) == expected
    by_pandas = [one.tolist() if hasattr(one, "tolist") else one
                 for one in column_of(readers.by_pandas(lake, None, name))]
    assert [None if one != one else one for one in by_pandas] == expected      # NaN stands for null there


@pytest.mark.spark
def test_spark_reads_each_step_of_a_schema_as_one_column(lake, spark):
    evolved(lake, STEPS)
    assert {name: column_of(readers.by_spark(spark, lake, "true", name)) for name in STEPS} == {
        name: expected for name, (_, _, expected) in STEPS.items()}


# -- times of day

@pytest.mark.spark
def test_times_of_day_close_no_file(lake, spark):
    """They are text: a file with a column of times could not be read by Spark at all."""
    [topic], [local] = lake.topic("times"), lake.topic("local")
    topic.publish(Message("k", (36_930_005).to_bytes(8)), schema_version=lake.schema(b"", S.Time, "times"))
    local.publish(Message("k", (36_930_000_000_007).to_bytes(8)), schema_version=lake.schema(b"", S.LocalTime, "local"))
    lake.export()
    assert [[row["value"] for row in readers.by_spark(spark, lake, "value IS NOT NULL", name)]
            for name in ("times", "local")] == [["10:15:30.005"], ["10:15:30.000000007"]]
