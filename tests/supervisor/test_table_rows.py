"""Rows of a table become messages: values by type, keys and others from columns, or a reason that names the column."""
import base64
import datetime as dt
import json
from decimal import Decimal

import fastavro
import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given

from geminga.storage.schemas.registry import Definition, T
from geminga.supervisor.tables import payloads, roles
from geminga.supervisor.tables.files import BadTable, Table
from geminga.supervisor.tables.rows import Messages
from geminga.workers.messages.outgoing import Outgoing, Wrong

UTC = dt.UTC
MOMENT = dt.datetime(2026, 11, 27, 12, 30, 15, 123456, UTC)
# Arrow type: a value, the value as JSON, the value as fastavro reads it.
KINDS = {
    pa.int8(): (-7, -7, -7), pa.uint16(): (65_535, 65_535, 65_535), pa.int64(): (-1 << 63, -1 << 63, -1 << 63),
    pa.uint64(): (1 << 62, 1 << 62, 1 << 62), pa.float16(): (1.5, 1.5, 1.5), pa.float32(): (0.25, 0.25, 0.25),
    pa.float64(): (0.1, 0.1, 0.1), pa.bool_(): (True, True, True), pa.string(): ('a"\\\n\x01é', 'a"\\\n\x01é',
                                                                                'a"\\\n\x01é'),
    pa.large_string(): ("x", "x", "x"), pa.binary(): (b"\0\xff", "AP8=", b"\0\xff"),
    pa.binary(2): (b"\0\xff", "AP8=", b"\0\xff"), pa.date32(): (dt.date(2026, 11, 27), 20784, dt.date(2026, 11, 27)),
    pa.date64(): (dt.date(2026, 11, 27), 20784, dt.date(2026, 11, 27)),
    pa.time32("ms"): (dt.time(1, 2, 3), 3_723_000_000, dt.time(1, 2, 3)),
    pa.time64("ns"): (dt.time(1, 2, 3, 4), 3_723_000_004, dt.time(1, 2, 3, 4)),
    pa.timestamp("s", "UTC"): (MOMENT.replace(microsecond=0), 1795782615000, MOMENT.replace(microsecond=0)),
    pa.timestamp("us", "UTC"): (MOMENT, 1795782615123456, MOMENT),
    pa.timestamp("ns", "Europe/Berlin"): (MOMENT, 1795782615123456, MOMENT),
    pa.timestamp("us"): (MOMENT.replace(tzinfo=None), 1795782615123456, MOMENT.replace(tzinfo=None)),
    pa.decimal128(9, 2): (Decimal("-12.30"), "-12.30", Decimal("-12.30")),
    pa.decimal256(50, 0): (Decimal(10**45), str(10**45), Decimal(10**45)),
    pa.null(): (None, None, None),
    pa.list_(pa.int32()): ([1, None, 2], [1, None, 2], [1, None, 2]),
    pa.list_(pa.timestamp("us"), 1): ([MOMENT.replace(tzinfo=None)], [1795782615123456],
                                      [MOMENT.replace(tzinfo=None)]),
    pa.map_(pa.string(), pa.date32()): ([("k", dt.date(1970, 1, 3))], {"k": 2}, {"k": dt.date(1970, 1, 3)}),
    pa.struct([("a", pa.int32()), ("b", pa.list_(pa.binary()))]): (
        {"a": 1, "b": [b"\x80"]}, {"a": 1, "b": ["gA=="]}, {"a": 1, "b": [b"\x80"]}),
}


def payloads_of(array, definition=None, kind=T.Json, nullable=True):
    """Return the payloads of a column named x, or reasons, by a schema or the derived one."""
    field = pa.field("x", array.type, nullable)
    encoder = payloads.for_schema(definition or payloads.derived([field], kind), [field])
    messages = Messages(_roles(value=("x",)), encoder)
    made = messages.of(pa.RecordBatch.from_arrays([array], ["x"]))
    return [str(one) if isinstance(one, Wrong) else one.payload for one in made]


def _roles(**changes):
    return roles.Roles(None, None, None, None, (), None, None, None, ())._replace(**changes)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_value_of_each_type_is_json_and_avro_as_the_page_says(kind):
    value, as_json, as_avro = KINDS[kind]
    array = pa.array([value, None, value], kind)
    assert [json.loads(one) for one in payloads_of(array)] == [{"x": as_json}, {"x": None}, {"x": as_json}]
    definition = fastavro.parse_schema(json.loads(payloads.derived([pa.field("x", kind)], T.Avro).data))
    read = [fastavro.schemaless_reader(_file(one), definition, None) for one in payloads_of(array, kind=T.Avro)]
    assert read == [{"x": as_avro}, {"x": None}, {"x": as_avro}]


def _file(data):
    import io
    return io.BytesIO(data)


@pytest.mark.slow
@given(st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"]))), st.data())
def test_texts_and_numbers_are_read_from_json_as_they_were(texts, data):
    floats = [data.draw(st.none() | st.floats(allow_nan=False, allow_infinity=False)) for _ in texts]
    fields = [pa.field("t", pa.string()), pa.field("f", pa.float64())]
    batch = pa.RecordBatch.from_arrays([pa.array(texts, pa.string()), pa.array(floats, pa.float64())], schema=pa.schema(
        fields))
    made = payloads.Json(fields, None).of(batch)
    assert [json.loads(one) for one in made] == [{"t": t, "f": f} for t, f in zip(texts, floats, strict=True)]
    definition = payloads.derived(fields, T.Avro)
    by_column = payloads.for_schema(definition, fields).of(batch)
    one_by_one = payloads.Records(["t", "f"], definition).of(batch)
    assert by_column == one_by_one


@pytest.mark.parametrize("array, kind, reason", [
    (pa.array([1.0, float("nan"), 2.0]), T.Json, "x: JSON has no number"),
    (pa.array([1, 1 << 63, 2], pa.uint64()), T.Json, "x: a number is above"),
    (pa.array([1, 1 << 63, 2], pa.uint64()), T.Avro, "x: 9223372036854775808 is not"),
    (pa.array([1_000, 1, 2_000], pa.timestamp("ns")), T.Avro, "x: it has parts of a microsecond"),
    (pa.StringArray.from_buffers(3, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0"), pa.py_buffer(b"a\xffb")), T.Json,
     "x: Invalid UTF8"),
])
def test_only_the_row_that_does_not_fit_has_a_reason(array, kind, reason):
    made = payloads_of(array, kind=kind)
    assert isinstance(made[0], bytes) and isinstance(made[2], bytes) and made[1].startswith(reason), made


@pytest.mark.parametrize("kind", [pa.duration("s"), pa.month_day_nano_interval(), pa.map_(pa.int32(), pa.string()),
                                  pa.list_(pa.duration("s")), pa.struct([("y", pa.duration("s"))])], ids=str)
def test_a_type_that_no_message_has_is_refused_with_its_column(kind):
    with pytest.raises(BadTable, match=r"^column x"):
        payloads.derived([pa.field("x", kind)], T.Json)


def test_a_name_that_avro_lacks_is_refused_with_the_way_out():
    with pytest.raises(BadTable, match="column my name: Avro has no such name.*--schema-type none"):
        payloads.derived([pa.field("my name", pa.int32())], T.Json)


def avro(*fields, kind=T.Avro):
    made = [{"name": name, "type": of, **more} for name, of, *rest in fields for more in rest or [{}]]
    return Definition(kind, json.dumps({"type": "record", "name": "R", "fields": made}).encode(), {})


def test_fields_of_a_registered_schema_take_what_fits_them():
    text = pa.array([MOMENT], pa.timestamp("us", "UTC"))
    assert payloads_of(text, avro(("x", "string"), kind=T.Json)) == [b'{"x":"2026-11-27T12:30:15.123456Z"}']
    millis = {"type": "long", "logicalType": "timestamp-millis"}
    whole = pa.array([MOMENT.replace(microsecond=5_000)], text.type)
    assert payloads_of(whole, avro(("x", millis), kind=T.Json)) == [b'{"x":1795782615005}']
    assert "parts of a millisecond" in payloads_of(text, avro(("x", millis)))[0]
    assert "is not a whole number" in payloads_of(text, avro(("x", "long")))[0]
    assert payloads_of(pa.array([b"ab", b"\xff"]), avro(("x", "string")))[0] == b"\4ab"
    assert "can't decode" in payloads_of(pa.array([b"ab", b"\xff"]), avro(("x", "string")))[1]
    assert payloads_of(pa.array([None, 1]), avro(("x", "int")))[0] == "x: null is not a whole number of the type int"


def test_fields_that_no_column_has_get_their_default_or_are_named():
    schema = avro(("y", "int", {"default": 3}), ("x", "int"))
    assert payloads_of(pa.array([1]), schema) == [b"\6\2"]
    with pytest.raises(BadTable, match="column y: it is missing"):
        payloads_of(pa.array([1]), avro(("y", "int"), ("x", "int")))
    with pytest.raises(BadTable, match="column x: the topic's schema has no such field"):
        payloads_of(pa.array([1]), avro(("y", "int", {"default": 3})))


@pytest.mark.parametrize("kind, array, payload", [
    (T.String, pa.array(["é"]), "é".encode()), (T.Int32, pa.array([5], pa.int8()), b"\0\0\0\5"),
    (T.Double, pa.array([1.0]), b"\x3f\xf0" + bytes(6)), (T.Bool, pa.array([True]), b"\1"),
    (T.Timestamp, pa.array([MOMENT.replace(microsecond=0)]), (1795782615000).to_bytes(8)),
    (T.LocalDate, pa.array([dt.date(1970, 1, 3)]), (2).to_bytes(8)),
])
def test_a_primitive_schema_takes_one_column(kind, array, payload):
    assert payloads_of(array, Definition(kind, b"", {})) == [payload]


def test_a_primitive_schema_refuses_several_columns_and_values_of_another_type():
    fields = [pa.field("x", pa.int32()), pa.field("y", pa.int32())]
    with pytest.raises(BadTable, match="INT32, of single values: choose one column with --columns, of x, y"):
        payloads.for_schema(Definition(T.Int32, b"", {}), fields)
    assert payloads_of(pa.array(["a"]), Definition(T.Int32, b"", {})) == ['x: "a" is not a whole number of 32 bits']
    with pytest.raises(BadTable, match="KEY_VALUE"):
        payloads.for_schema(Definition(T.KeyValue, b"", {}), fields)


# -- roles

def table_of(tmp_path, **columns):
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    return Table(str(tmp_path / "t.parquet"))


def test_columns_of_an_exported_table_have_their_roles_by_name(tmp_path):
    properties = pa.array([[("a", "b")], None], pa.map_(pa.string(), pa.string()))
    table = table_of(tmp_path, _key=["k", None], _event_time=pa.array([MOMENT, None]), _properties=properties,
                     _publish_time=[1, 2], _entry_id=[1, 2], value=[1, 2], _null_value=[False, True])
    chosen = roles.of(table, roles.Choice(), set())
    assert (chosen.value, chosen.key) == (("value",), "_key")
    batch = next(table.batches(0, chosen.columns)).batch
    fields = [table.schema.field("value")]
    first, second = Messages(chosen, payloads.Json(fields, None)).of(batch)
    assert first == Outgoing(b'{"value":1}', first.about) and second.payload == b"" and second.about.is_null
    assert (first.about.key, first.about.properties, first.about.event_time) == ("k", (("a", "b"),), 1795782615123)
    assert (second.about.key, second.about.properties, second.about.event_time) == (None, (), 0)


def test_a_payload_column_is_taken_if_nothing_else_is_there(tmp_path):
    table = table_of(tmp_path, _payload=[b"\xff", None], _key=["a", "b"])
    chosen = roles.of(table, roles.Choice(), set())
    made = Messages(chosen, payloads.Raw(chosen.payload)).of(next(table.batches(0, chosen.columns)).batch)
    assert [(one.payload, one.about.is_null) for one in made] == [(b"\xff", False), (b"", True)]


def test_folders_of_an_exported_table_are_no_part_of_its_values(tmp_path):
    (tmp_path / "day=2026-11-27").mkdir()
    pq.write_table(pa.table({"_publish_time": [1], "x": [1]}), tmp_path / "day=2026-11-27" / "a.parquet")
    assert roles.of(Table(str(tmp_path)), roles.Choice(), set()).value == ("x",)


def test_columns_with_another_role_are_in_the_value_only_if_the_schema_has_them(tmp_path):
    table = table_of(tmp_path, id=[1], x=[2], at=[3])
    choice = roles.Choice(key="id", event_time="at")
    assert roles.of(table, choice, set()).value == ("x",)
    assert roles.of(table, choice, {"id", "x"}).value == ("id", "x")
    assert roles.of(table, choice._replace(columns=("at", "x")), set()).value == ("at", "x")


@pytest.mark.parametrize("choice, reason", [
    (roles.Choice(key="idd"), "there is no column idd. +Did you mean id?"),
    (roles.Choice(key="l"), "column l: values of the type list.* cannot be keys"),
    (roles.Choice(event_time="s"), "column s: values of the type string cannot be event times"),
    (roles.Choice(properties=("l",)), "column l: .* cannot be properties"),
    (roles.Choice(payload="id"), "column id: .* cannot be payloads"),
    (roles.Choice(columns=("d",)), "column d: values of the type duration"),
])
def test_a_column_that_does_not_fit_its_role_is_refused(tmp_path, choice, reason):
    table = table_of(tmp_path, id=[1], s=["a"], l=[[1]], d=pa.array([1], pa.int64()))
    table.schema = table.schema.set(3, pa.field("d", pa.duration("s")))      # which Parquet has only in Arrow's words
    with pytest.raises(BadTable, match=reason):
        roles.of(table, choice, set())


@pytest.mark.parametrize("array, keys", [
    (pa.array(["k", None, ""]), ["k", None, ""]), (pa.array([7, -1], pa.int16()), ["7", "-1"]),
    (pa.array([True]), ["true"]), (pa.array([dt.date(2026, 11, 27)]), ["2026-11-27"]),
    (pa.array([Decimal("1.50")]), ["1.50"]), (pa.array([b"\xff"]), [base64.b64encode(b"\xff").decode()]),
])
def test_keys_are_text_and_bytes_are_base64(array, keys):
    made = Messages(_roles(key="k", payload="p"), payloads.Raw("p")).of(
        pa.RecordBatch.from_arrays([array, pa.array([b""] * len(array))], ["k", "p"]))
    assert [one.about.key for one in made] == keys
    assert [one.about.key_is_base64 for one in made] == [pa.types.is_binary(array.type)] * len(array)


@pytest.mark.parametrize("array, ms", [
    (pa.array([1_500], pa.timestamp("us")), 1), (pa.array([2], pa.timestamp("s", "UTC")), 2_000),
    (pa.array([3], pa.date32()), 3 * 86_400_000), (pa.array([4], pa.int64()), 4),
])
def test_event_times_are_milliseconds(array, ms):
    batch = pa.RecordBatch.from_arrays([array, pa.array([b""])], ["t", "p"])
    [made] = Messages(_roles(event_time="t", payload="p"), payloads.Raw("p")).of(batch)
    assert made.about.event_time == ms


def test_an_event_time_before_1970_does_not_fit():
    batch = pa.RecordBatch.from_arrays([pa.array([-1, 1]), pa.array([b"", b""])], ["t", "p"])
    first, second = Messages(_roles(event_time="t", payload="p"), payloads.Raw("p")).of(batch)
    assert str(first).startswith("t: an event time before 1970") and isinstance(second, Outgoing)
