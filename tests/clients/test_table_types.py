"""Values of each type of each client's language, on their way through the broker into tables: docs/tables.md has them.
"""
import contextlib
import enum
import math
import subprocess
from pathlib import Path

import _pulsar
import pulsar
import pyarrow.parquet as pq
import pytest
from pulsar.schema import (
    Array,
    AvroSchema,
    Boolean,
    Bytes,
    CustomEnum,
    Double,
    Float,
    Integer,
    JsonSchema,
    Long,
    Map,
    Record,
    Schema,
    String,
)

from geminga.proto import names
from geminga.storage.jobs.compacting.engines import LocalEngine
from geminga.storage.tables import exports
from geminga.storage.tables.commits import MESSAGES, ParquetTable
from geminga.storage.tables.table_folders import LocalFolder

from ..harness import HANG_SECONDS, unique_topic
from ..supervisor.test_compaction import partition_id
from .java import JavaTools, fetch_jars
from .test_go_client import build

SOURCES = Path(__file__).parent / "java_sources"
OWN = len(exports.columns.OWN)


@pytest.fixture
def row_of(own, tmp_path):
    """row_of(topic): the payload's columns of a topic's only row, as Arrow reads its table."""
    def row_of(topic):
        name = names.parse(topic)
        wanted = exports.Wanted(name, MESSAGES, ((partition_id(own, topic), name),))
        [planned] = exports.plan(own.data_dir, [wanted], lambda its, content: ParquetTable(
            LocalFolder(tmp_path / "tables"), its, content, "us"))
        exports.run(own.data_dir, [planned], tmp_path / "scratch", LocalEngine(), lambda *told: None,
                    lambda *told: None)
        assert not planned.error and not planned.told
        folder = tmp_path / "tables" / topic.removeprefix("persistent://")
        [path] = folder.glob("messages/day=*/*.parquet")
        [row] = pq.read_table(path, partitioning=None).to_pylist()
        return dict(list(row.items())[OWN:])
    return row_of


def plain(row):
    """Return a row whose dates, times and NaN are text."""
    return {name: str(one) if hasattr(one, "isoformat") else "NaN" if one != one else one for name, one in row.items()}


OF_JAVA = {
    "truth": True, "tiny": -6, "small": 5, "number": 7, "large": 1 << 60, "nothing": None, "single": math.inf,
    "real": "NaN", "letter": ord("c"), "boxed": ord("x"), "text": "tä", "place": "http://a/b", "price": "12.50",
    "count": "123456789012345678901234567890", "color": "GREEN", "bytes": b"\1\2\xff", "buffer": b"\1\2",
    "pieces": [b"\t"], "letters": [ord("a"), ord("b")], "list": [1, 2], "named": [("a", 1)],
    "numbered": [{"key": 1, "value": "one"}], "colored": [{"key": "RED", "value": {"a": 1, "b": "x"}}],
    "inner": {"a": 1, "b": "x"}, "id": "00000000-0000-0001-0000-000000000002"}
OF_JAVA_JSON = OF_JAVA | {
    "date": 19_753, "time": 36_930_005, "local": 1_706_696_130_123, "instant": 1_700_000_000_123_456, "epoch": 0}
OF_JAVA_AVRO = OF_JAVA | {
    "date": "2024-01-31", "time": "10:15:30.005", "local": "2024-01-31 10:15:30.123000",
    "instant": "2023-11-14 22:13:20.123456+00:00", "epoch": "1970-01-01 00:00:00+00:00"}


@pytest.mark.java
def test_types_of_java(own, row_of, tmp_path):
    java = JavaTools(fetch_jars(), tmp_path, own.service_url, own.http_url)
    topics = [unique_topic(f"java-{name}") for name in ("json", "avro", "opaque")]
    java.program(SOURCES / "Types.java", *topics)
    of_json, of_avro, opaque = map(row_of, topics)
    assert plain(of_json) == OF_JAVA_JSON and plain(of_avro) == OF_JAVA_AVRO
    assert opaque == {"date": "1700000000123", "zoned": "1706692530.000000000"}


@pytest.mark.go
def test_types_of_go(own, row_of):
    topic = unique_topic("go")
    done = subprocess.run([build(), "-url", own.service_url, "-topic", topic, "-types"], capture_output=True, text=True,
                          timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stderr
    assert row_of(topic) == {
        "Truth": True, "Number": 7, "Large": 1 << 60, "Real": 0.5, "Text": "tä", "Unsigned": str((1 << 64) - 1),
        "Price": "12.50", "Count": str(1 << 100), "Bytes": b"\1\2\xff", "Encoded": b"AQL/",
        "Moment": 1_706_696_130_123_456, "Written": "2024-01-31T10:15:30.123456Z", "Numbered": [("1", "one")],
        "List": [1, 2], "Inner": {"A": 1}, "Nothing": None}


class Color(enum.Enum):
    RED = 1
    GREEN = 2


class Inner(Record):
    a = Integer()


class Everything(Record):
    truth = Boolean()
    number = Integer()
    large = Long()
    single = Float()
    real = Double()
    text = String()
    data = Bytes()
    items = Array(Integer())
    named = Map(Integer())
    color = CustomEnum(Color)
    inner = Inner()
    nothing = Integer()


@pytest.mark.parametrize(("schema", "color"), [(JsonSchema, "2"), (AvroSchema, "GREEN")])
def test_types_of_python(own, row_of, schema, color):
    topic = unique_topic("python")
    with contextlib.closing(pulsar.Client(own.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
                            ) as client:
        client.create_producer(topic, schema=schema(Everything)).send(Everything(
            truth=True, number=7, large=1 << 60, single=0.5, real=math.nan, text="tä", data=b"abcd", items=[1, 2],
            named={"a": 1}, color=Color.GREEN, inner=Inner(a=1)))
    assert plain(row_of(topic)) == {
        "truth": True, "number": 7, "large": 1 << 60, "single": 0.5, "real": "NaN", "text": "tä", "data": b"abcd",
        "items": [1, 2], "named": [("a", 1)], "color": color, "inner": {"a": 1}, "nothing": None}


class Written(Schema):
    """Payloads and a definition that are bytes of the program, as with the C++ client, which is below Python's."""

    def __init__(self, definition):
        super().__init__(bytes, _pulsar.SchemaType.JSON, definition, "R")

    def encode(self, obj):
        return obj

    def decode(self, data):
        return data


def test_payloads_that_programs_write_themselves(own, row_of):
    topic = unique_topic("written")
    definition = {"type": "record", "name": "R", "fields": [
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "int", "logicalType": "time-millis"}}]}
    with contextlib.closing(pulsar.Client(own.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
                            ) as client:
        client.create_producer(topic, schema=Written(definition)).send(b'{"price": 12.5, "at": "10:15:30"}')
    assert {name: str(one) for name, one in row_of(topic).items()} == {"price": "12.50", "at": "36930000"}
