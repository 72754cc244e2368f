"""Tables of Apache Iceberg have each message once, whatever is killed when, and follow the schema."""
import copy
import datetime
import re
import subprocess
import sys
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from geminga.storage.jobs.shapes import DURATION
from geminga.storage.tables import columns, iceberg_types, writing

LISTED = pa.list_(pa.struct([("a", pa.map_(pa.string(), pa.decimal128(12, 3)))]))


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What a run under kills, in a process of its own, has said of broken promises and missing readers."""
    pytest.importorskip("pyspark")
    done = subprocess.run(
        [sys.executable, "-m", "tests.storage.tables.iceberg_tables", str(tmp_path_factory.mktemp("iceberg"))],
        cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=900)
    if done.stdout == "no package\n":
        pytest.skip("Iceberg's package cannot be had here")
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.mark.spark
def test_a_table_of_iceberg_has_each_message_once_over_kills_and_each_column_one_type(said):
    assert [line for line in said if not line.startswith("not asked: ")] == []


@pytest.mark.spark
@pytest.mark.parametrize(("reader", "why"), [
    ("Spark", "Iceberg's package is for an older Spark: it writes with this one, and cannot read"),
    ("DuckDB", "DuckDB has no extension for Iceberg here")])
def test_each_reader_was_asked_for_each_step_of_a_schema(said, reader, why):
    if f"not asked: {reader}" in said:
        pytest.skip(why)


@pytest.mark.parametrize("kind", [*iceberg_types.TYPES, pa.decimal128(38, 0), DURATION, LISTED], ids=str)
def test_a_type_of_iceberg_is_that_of_the_column_it_was_made_for(kind):
    assert iceberg_types.arrow_of(iceberg_types.type_of(kind, count(1).__next__)) == kind


def test_columns_of_other_programs_are_left_alone():
    """They have types that no column of a topic has, at any depth."""
    struct = {"type": "struct", "fields": [{"name": "a", "type": "uuid"}]}
    for kind in ("uuid", "fixed[16]", struct, {"type": "list", "element": struct},
                 {"type": "map", "key": "string", "value": "uuid"}):
        assert iceberg_types.arrow_of(kind) is None


@pytest.mark.parametrize(("kind", "wide", "is_widened"), [
    (pa.int32(), pa.int64(), True), (pa.float32(), pa.float64(), True), (pa.string(), pa.string(), True),
    (pa.decimal128(5, 2), pa.decimal128(9, 2), True), (pa.decimal128(5, 2), pa.decimal128(9, 3), False),
    (pa.int32(), pa.float64(), False), (pa.int64(), pa.int32(), False), (pa.string(), pa.binary(), False),
    (pa.time64("us"), pa.string(), False), (pa.int64(), pa.list_(pa.int64()), False),
    (pa.list_(pa.int32()), pa.list_(pa.int64()), True), (pa.list_(pa.int32()), pa.list_(pa.float64()), False),
    (pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int64()), ("b", pa.string())]), True),
    (pa.struct([("a", pa.int32())]), pa.struct([("a", pa.string())]), False),
    (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64()), True),
    (pa.map_(pa.string(), pa.int32()), pa.map_(pa.binary(), pa.int32()), False)], ids=str)
def test_only_what_iceberg_cannot_widen_is_replaced(kind, wide, is_widened):
    assert iceberg_types.is_widened(kind, wide) == is_widened


NESTED = pa.schema([("a", pa.int32()), ("b", LISTED)])
STRUCT = iceberg_types.struct_of(zip(NESTED.names, NESTED.types, strict=True), count(1).__next__)


def test_a_file_has_the_ids_of_iceberg_at_any_depth(tmp_path):
    marked = iceberg_types.with_ids(NESTED, STRUCT)
    assert marked == NESTED
    assert dict(iceberg_types._ids(marked)) == {
        ("a",): 1, ("b",): 2, ("b", "element"): 3, ("b", "element", "a"): 4, ("b", "element", "a", "key"): 5,
        ("b", "element", "a", "value"): 6}
    pq.write_table(marked.empty_table(), tmp_path / "a.parquet")
    assert re.findall(r"field_id=(\d+) (\w+)", str(pq.ParquetFile(tmp_path / "a.parquet").schema)) == [
        ("1", "a"), ("2", "b"), ("3", "element"), ("4", "a"), ("5", "key"), ("6", "value")]


def test_no_id_of_another_file_is_left_in_a_schema():
    """A file with some ids would be read by these alone: types of columns keep those of the file that they come from.
    """
    marked = columns.all_of([iceberg_types.with_ids(NESTED, STRUCT), NESTED])
    assert any(dict(iceberg_types._ids(marked)).values())
    other = {"type": "struct", "fields": [{"id": 9, "name": "a", "type": "int"}]}
    assert {path: number for path, number in iceberg_types._ids(iceberg_types.with_ids(marked, other)) if number} == {
        ("a",): 9}


@pytest.mark.parametrize(("change", "is_alike"), [
    ({}, True), ({"name": "c"}, False), ({"id": 9}, False), (None, True)],
    ids=["the same", "renamed", "replaced", "dropped"])
@pytest.mark.parametrize("depth", [0, 1])
def test_columns_that_other_programs_have_renamed_are_not_taken_by_name(change, is_alike, depth):
    file = iceberg_types.with_ids(NESTED, STRUCT)
    changed = copy.deepcopy(STRUCT)
    part = changed if depth == 0 else changed["fields"][1]["type"]["element"]
    if change is None:
        part["fields"].pop(0)
    else:
        part["fields"][0] |= change
    assert iceberg_types.is_named_alike(file, changed) == is_alike
    assert iceberg_types.is_named_alike(NESTED, changed)      # a file without ids


def test_an_existing_column_of_times_of_day_becomes_one_of_text(tmp_path):
    """Earlier versions made such columns, which Spark cannot read."""
    times = pa.table({"x": pa.array([datetime.time(10, 15, 30, 5000), None], pa.time64("us"))})
    pq.write_table(times, tmp_path / "old.parquet")
    types = columns.all_of([times.schema, pa.schema([("x", pa.string())])])
    assert writing.recast(tmp_path / "old.parquet", tmp_path / "new.parquet", types) == 2
    assert pq.read_table(tmp_path / "new.parquet")["x"].to_pylist() == ["10:15:30.005", None]
