"""No payload and no schema ends, hangs or fills a night: what cannot be read is told, and everything else is exported.
"""
import io
import json
import os
import random
import resource
import signal
import struct
import time

import fastavro
import pyarrow as pa
import pytest
from fastavro.utils import generate_one
from hypothesis import given, settings
from hypothesis import strategies as st

from geminga.storage.jobs import apart, shapes, typed
from geminga.storage.jobs.apart import Ended, Mark
from geminga.storage.jobs.avro_values import Walk, without_logical_types
from geminga.storage.jobs.compacting.engines import Spark
from geminga.storage.jobs.shapes import NoSchema
from geminga.storage.schemas import registry
from geminga.storage.schemas.registry import Definition
from geminga.storage.tables import columns, writing

from ..jobs.topics import Message
from .lake import ORDER, Lake, S
from .test_values import FIRST, avro, read, values_of


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path)


@pytest.fixture
def fresh():
    """Give a test a process beside this one with its own bounds."""
    apart.close()
    yield
    apart.close()


def record(*fields):
    return {"type": "record", "name": "R", "fields": [{"name": f"f{at}", "type": one} for at, one in enumerate(fields)]}


def varint(number):
    number = (number << 1) ^ (number >> 63)
    found = b""
    while number > 0x7F:
        found, number = found + bytes([number & 0x7F | 0x80]), number >> 7
    return found + bytes([number])


EMPTY = {"type": "record", "name": "E", "fields": []}
LINKED = {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}
# (definition, payload, reason): few bytes that stand for much.
COSTLY = [
    *((record({"type": "array", "items": items}), payload, "field f0: it has more items than its bytes can hold")
      for items, payload in (
          ("null", varint(1 << 50)), ("null", varint(-(1 << 50)) + varint(0)), (EMPTY, varint(1 << 40)),
          ({"type": "fixed", "name": "F", "size": 0}, varint(1 << 40)),
          ({"type": "array", "items": "null"}, varint(9) + varint(1 << 40)))),
    (record({"type": "map", "values": "null"}), varint(1 << 40), "field f0: its bytes end before its value does"),
    (record({"type": "array", "items": "int"}), varint(1 << 40), "field f0: its bytes end before its value does"),
    (record("string"), varint(1 << 60), "field f0: its bytes end before its value does"),
    (record("bytes"), varint(-5), "field f0: its size is -5"),
    (record("long"), b"\xff" * 100_000, "field f0: its number has more than ten bytes"),
    (LINKED, b"\x02" * 2_000_000, "is nested deeper than 200 levels"),
]


@pytest.mark.parametrize(("definition", "payload", "reason"), COSTLY)
def test_few_bytes_that_stand_for_much_are_refused(definition, payload, reason):
    began = time.process_time()
    rows, reasons = read(values_of(S.Avro, definition), [payload])
    assert reason in reasons[0] and set(rows[0].values()) == {None}
    assert time.process_time() - began < 10


def test_values_inside_themselves_are_read_up_to_a_depth():
    value = None
    for _ in range(50):
        value = {"next": value}
    [row], reasons = read(values_of(S.Avro, LINKED), [avro(LINKED, value)])
    assert not reasons and json.loads(row["next"]) == value["next"]


@pytest.mark.slow
def test_one_topic_of_costly_payloads_disturbs_no_other(lake):
    [good], [bad] = lake.topic("good"), lake.topic("bad")
    definition, costly, reason = COSTLY[0]
    good.publish(Message("k", b"1"))
    version = lake.schema(definition, S.Avro, "bad")
    for payload in (costly, avro(definition, {"f0": [None, None]})):
        bad.publish(Message("k", payload), schema_version=version)
    reports = {report["topic"].rpartition("/")[2]: report for report in lake.export()}
    assert [(one["outcome"], one["rows"], one["rejected"]) for one in (reports["good"], reports["bad"])] == [
        ("exported", 1, 0), ("exported", 1, 1)]
    assert lake.rejected("bad")[0]["_reason"] == reason and reason in reports["bad"]["rejected_messages"][0]


@pytest.mark.slow
def test_a_message_that_needs_too_much_memory_is_rejected(lake, fresh, monkeypatch):
    """A name of a megabyte, which each of a hundred thousand bytes stands for."""
    monkeypatch.setattr(apart, "MEMORY_BYTES", 250 << 20)
    definition = record({"type": "array", "items": {"type": "enum", "name": "N", "symbols": ["x" * (1 << 20)]}})
    [topic] = lake.topic()
    version = lake.schema(definition, S.Avro)
    topic.publish(Message("k", varint(100_000) + bytes(100_000) + b"\0"), schema_version=version)
    topic.publish(Message("k", avro(definition, {"f0": []})), schema_version=version)
    [report] = lake.export()
    assert (report["outcome"], report["rows"], report["rejected"], report["error"]) == ("exported", 1, 1, "")
    assert lake.rejected()[0]["_reason"] == "its value needs too much memory"


# -- the process beside

MARKED = "from geminga.storage.jobs import apart; apart.mark(apart.Mark(7, 1, 5), 0.2)\n"


@pytest.mark.slow
@pytest.mark.parametrize(("end", "why"), [
    ("import os; os.kill(os.getpid(), 11)", "its process ended with signal SIGSEGV"),
    ("import os; os._exit(3)", "its process ended with status 3"), ("while True: pass", "it took more than 0 s")])
def test_a_process_that_crashes_or_hangs_is_told_with_what_it_was_at(end, why):
    with pytest.raises(Ended, match=why) as ended:
        apart.run(exec, MARKED + end)
    assert ended.value.mark == Mark(7, 1, 5)
    assert apart.run(pow, 2, 3) == 8      # the next one is another


@pytest.mark.slow
def test_errors_come_back_from_the_process_beside():
    with pytest.raises(ZeroDivisionError):
        apart.run(divmod, 1, 0)
    assert apart.run(os.getpid) == apart.run(os.getpid) != os.getpid()


@pytest.mark.slow
def test_a_process_that_was_killed_between_two_works_is_started_again():
    before = apart.run(os.getpid)
    os.kill(before, signal.SIGKILL)
    apart._running._popen.wait()
    assert apart.run(os.getpid) != before


class Dead(BaseException):
    """The end of a process, which no handler in it sees."""


@pytest.fixture
def deadly(monkeypatch):
    """Have payloads `boom` end the process that reads them."""
    marks, rows_of = [], columns.rows_of

    def read_rows(batch, number, values, schema, refused=""):
        if b"boom" in batch["payload"].to_pylist() and not refused:
            raise Dead
        return rows_of(batch, number, values, schema, refused)

    def run(function, *arguments):
        try:
            return function(*arguments)
        except Dead:
            raise Ended("its process ended with signal SIGSEGV", marks[-1]) from None
    monkeypatch.setattr(columns, "rows_of", read_rows)
    monkeypatch.setattr(apart, "mark", lambda what, seconds: marks.append(what))
    monkeypatch.setattr(apart, "run", run)


def test_messages_that_end_their_process_are_found_and_rejected(lake, deadly):
    """Single ones, and some in batches, among others that are rows."""
    [topic] = lake.topic()
    for number in range(6):
        topic.publish(Message("k", b"boom" if number == 3 else b"%d" % number))
    topic.publish_batch([Message("k", b"a"), Message("k", b"boom"), Message("k", b"b")], 0)
    [report] = lake.export()
    assert (report["outcome"], report["rows"], report["rejected"]) == ("exported", 7, 2)
    assert {row["_reason"] for row in lake.rejected()} == {"its process ended with signal SIGSEGV"}
    assert [(row["_payload"], row["_entry_id"], row["_batch_index"]) for row in lake.rejected()] == [
        (b"boom", 3, None), (b"boom", 6, 1)]


def test_too_many_of_them_fail_only_their_table(lake, deadly, monkeypatch):
    monkeypatch.setattr(writing, "_ENDINGS_MAX", 3)
    [topic], [other] = lake.topic("bad"), lake.topic("good")
    for _ in range(5):
        topic.publish(Message("k", b"boom"))
    other.publish(Message("k", b"1"))
    reports = {report["topic"].rpartition("/")[2]: report for report in lake.export()}
    assert "its messages cannot be read" in reports["bad"]["error"] and reports["good"]["rows"] == 1


# -- schemas

@pytest.mark.slow
def test_names_that_use_others_twice_do_not_double_without_end(lake):
    """Thirty records, each with two of the one before, would be a thousand million columns."""
    definition = "long"
    for number in range(30):
        inner = definition if number == 0 else f"R{number - 1}"
        definition = {"type": "record", "name": f"R{number}", "fields": [
            {"name": "a", "type": definition}, {"name": "b", "type": inner}]}
    [good], [bad] = lake.topic("good"), lake.topic("bad")
    lake.schema(definition, S.Avro, "bad")
    good.publish(Message("k", b"1"))
    bad.publish(Message("k", b"1"))
    reports = {report["topic"].rpartition("/")[2]: report for report in lake.export()}
    assert reports["good"]["rows"] == 1 and "more than 10,000 fields" in reports["bad"]["error"]


def test_an_error_that_nobody_foresaw_fails_only_its_topic(lake, monkeypatch, capsys):
    schema_of = columns.schema_of

    def failing(values):
        if values.newest.kind == S.Json:
            raise KeyError("of a library")
        return schema_of(values)
    monkeypatch.setattr(columns, "schema_of", failing)
    [good], [bad] = lake.topic("good"), lake.topic("bad")
    lake.schema(ORDER, name="bad")
    for topic in (good, bad):
        topic.publish(Message("k", b"1"))
    reports = {report["topic"].rpartition("/")[2]: report for report in lake.export()}
    assert reports["good"]["outcome"] == "exported" and reports["bad"]["error"] == "KeyError: 'of a library'"
    assert "Traceback" in capsys.readouterr().err


DECIMAL = {"type": "bytes", "logicalType": "decimal"}
FIXED = {"type": "fixed", "name": "F", "size": 12}
LOGICAL = [      # (definition, value for fastavro without logical types, column's value)
    (DECIMAL | {"precision": 5, "scale": 2}, b"\x04\xd2", "12.34"), (DECIMAL | {"precision": 5}, b"\x04\xd2", "1234"),
    (DECIMAL | {"precision": 0}, b"\x04\xd2", b"\x04\xd2"), (DECIMAL, b"\x04\xd2", b"\x04\xd2"),
    (DECIMAL | {"precision": 2, "scale": 3}, b"\x04", b"\x04"), (DECIMAL | {"precision": "5"}, b"\x04", b"\x04"),
    (DECIMAL | {"precision": 50, "scale": 2}, b"\x04\xd2", "12.34"),
    ({"type": "string", "logicalType": "uuid"}, "any text", "any text"),
    ({"type": "long", "logicalType": "timestamp-nanos"}, 1_700_000_000_123_456_789, 1_700_000_000_123_456_789),
    ({"type": "long", "logicalType": "local-timestamp-nanos"}, -1, -1),
    ({"type": "int", "logicalType": "date"}, 19_000, "2022-01-08"),
    ({"type": "int", "logicalType": "time-millis"}, 36_930_005, "10:15:30.005"),
    ({"type": "long", "logicalType": "time-micros"}, 36_930_000_005, "10:15:30.000005"),
    ({"type": "long", "logicalType": "timestamp-millis"}, 1_500, "1970-01-01 00:00:01.500000+00:00"),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, 5, "1970-01-01 00:00:00.000005"),
    (FIXED | {"logicalType": "duration"}, struct.pack("<III", 1, 2, 3), {"months": 1, "days": 2, "milliseconds": 3}),
    (FIXED | {"size": 16, "logicalType": "uuid"}, bytes(15) + b"\1", "00000000-0000-0000-0000-000000000001"),
    ({"type": "string", "logicalType": "date"}, "x", "x"), ({"type": "long", "logicalType": "unheard-of"}, 5, 5),
    ({"type": "long", "logicalType": ["a"]}, 5, 5)]


@pytest.mark.parametrize(("definition", "value", "reason"), [
    ({"type": "int", "logicalType": "date"}, 1 << 30, "field f0: its date is not in the years 1 to 9999"),
    ({"type": "long", "logicalType": "timestamp-millis"}, 1 << 62, "field f0: its date is not in the years 1 to 9999"),
    ({"type": "long", "logicalType": "time-micros"}, -1, "field f0: its time is not within a day"),
    (DECIMAL | {"precision": 2}, b"\x04\xd2", "field f0: its value is none of decimal128(2, 0)")])
def test_values_that_readers_lack_are_rejected_by_the_name_of_their_field(definition, value, reason):
    bare = {name: one for name, one in definition.items() if name != "logicalType"}
    assert read(values_of(S.Avro, record(definition)), [avro(record(bare), {"f0": value})])[1] == {0: reason}


@pytest.mark.parametrize(("definition", "value", "expected"), LOGICAL)
def test_logical_types_that_count_are_types_and_others_are_left_out(definition, value, expected):
    whole = {"type": "record", "name": "R", "fields": [{"name": "f", "type": definition}]}
    bare = {name: one for name, one in definition.items() if name != "logicalType"}
    [row], reasons = read(values_of(S.Avro, whole), [avro({**whole, "fields": [{"name": "f", "type": bare}]},
                                                          {"f": value})])
    found = row["f"]
    assert not reasons and (found if type(found) is type(expected) else str(found)) == expected


NAMES = st.sampled_from(["A", "B", "C", "x.D"])


def definitions(children):
    fields = st.lists(children, max_size=3).map(
        lambda types: [{"name": f"f{at}", "type": one} for at, one in enumerate(types)])
    return st.one_of(
        st.builds(lambda name, own: {"type": "record", "name": name, "fields": own}, NAMES, fields),
        st.builds(lambda items: {"type": "array", "items": items}, children),
        st.builds(lambda values: {"type": "map", "values": values}, children),
        st.lists(children, min_size=1, max_size=3),
        st.builds(lambda inner, logical, more: inner | {"logicalType": logical} | more,
                  st.sampled_from([*({"type": name} for name in ("int", "long", "bytes", "string")),
                                   *({"type": "fixed", "name": f"F{size}", "size": size} for size in (0, 12))]),
                  st.sampled_from(["decimal", "uuid", "duration", "date", "time-millis", "time-micros", "unknown",
                                   "timestamp-millis", "timestamp-nanos", "local-timestamp-micros"]),
                  st.dictionaries(st.sampled_from(["precision", "scale"]), st.sampled_from(
                      [0, -1, 2, 5, 38, 39, "x"]))),
        st.builds(lambda name, symbols: {"type": "enum", "name": name, "symbols": symbols}, NAMES,
                  st.lists(st.sampled_from(["P", "Q"]), min_size=1, max_size=2, unique=True)))


DEFINITION = st.recursive(
    st.sampled_from(["null", "boolean", "int", "long", "float", "double", "bytes", "string", "A", "B"]), definitions,
    max_leaves=8)
ROOT = st.lists(DEFINITION, max_size=4).map(lambda types: {
    "type": "record", "name": "A", "fields": [{"name": f"f{at}", "type": one} for at, one in enumerate(types)]})


@pytest.mark.slow
@given(ROOT, st.sampled_from([S.Avro, S.Json]), st.lists(st.binary(max_size=40), max_size=4))
@settings(max_examples=150)
def test_random_schemas_that_the_broker_takes_are_tables(definition, kind, noise):
    """Or are told to be none; and each payload is a row or has a reason, in the words of people."""
    data = json.dumps(definition).encode()
    try:
        registry.validate(Definition(kind, data, {}))
    except registry.InvalidSchema:
        return
    values = values_of(kind, data)
    try:
        schema = columns.schema_of(values)
    except NoSchema as error:
        assert str(error).startswith("its schema")
        return
    payloads = [*noise, *made(definition, kind)]
    rows, reasons = read(values, payloads)
    assert len(rows) == len(payloads) and pa.schema(schema)
    assert not [reason for reason in reasons.values() if "Error" in reason or "object at" in reason or "<" in reason]
    of_made = [reason for at, reason in reasons.items() if at >= len(noise)]
    assert not [reason for reason in of_made if "its time" not in reason and "its date" not in reason
                and "none of decimal" not in reason]


def made(definition, kind):
    """Return a payload that is a value of a definition, if fastavro can make one up without logical types."""
    if kind == S.Json:
        return []
    try:
        value = generate_one(without_logical_types(definition))
        return [avro(without_logical_types(definition), value)]
    except (RecursionError, KeyError, TypeError, ValueError):
        return []


def test_payloads_of_random_bytes_are_read_as_the_library_reads_them():
    """The walk refuses what fastavro refuses, and nothing else."""
    chance = random.Random(7)
    definition = record("int", ["null", "string"], {"type": "array", "items": "double"},
                        {"type": "map", "values": "long"})
    plain, agreed = fastavro.parse_schema(definition), 0
    for _ in range(2_000):
        payload = bytes(chance.choice([0, 2, 4, chance.randrange(256)]) for _ in range(chance.randrange(12)))
        stream = io.BytesIO(payload)
        try:
            fastavro.schemaless_reader(stream, plain, None)
            is_well = not stream.read(1)
        except Exception:
            is_well = False
        try:
            Walk(definition).check(payload)
            agreed += is_well
        except shapes.Unfit:
            agreed += not is_well
    assert agreed == 2_000


# -- Spark

@pytest.mark.parametrize(("definition", "payload", "reason"), COSTLY)
def test_typed_values_of_spark_are_bounded_too(definition, payload, reason):
    """A value that is refused is null, and told."""
    told = []
    values = typed.Values(S.Avro, definition, {"orders": {FIRST: definition}})
    batch = pa.record_batch({
        "payload": pa.array([payload], pa.binary()), "schema_version": pa.array([FIRST], pa.binary()),
        "is_encrypted": pa.array([False]), "null_value": pa.array([False])})
    assert values.of(batch, "orders", told.append).to_pylist() == [None]
    assert len(told) == 1 and reason in told[0]


@pytest.mark.spark
def test_a_costly_message_ends_no_job_of_spark(lake, spark, tmp_path):
    """Each worker has a process beside it, too."""
    definition, costly, reason = COSTLY[0]
    [good], [bad] = lake.topic("good"), lake.topic("bad")
    version = lake.schema(definition, S.Avro, "bad")
    good.publish(Message("k", b"1"))
    bad.publish(Message("k", costly), schema_version=version)
    reports = lake.export(engine=Spark(tmp_path / "scratch", context=spark.sparkContext))
    assert [(one["rows"], one["rejected"], one["error"]) for one in reports] == [(1, 0, ""), (0, 1, "")]
    assert lake.rejected("bad")[0]["_reason"] == reason


def test_a_process_with_many_open_files_may_have_one_beside_it():
    """Numbers of descriptors above 1023, which a night over many topics may have, are waited for like others."""
    apart.close()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    kept = [os.open("/dev/null", os.O_RDONLY) for _ in range(1_030)]
    try:
        assert apart.run(abs, -7) == 7
    finally:
        apart.close()
        for fd in kept:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
