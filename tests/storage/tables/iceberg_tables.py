"""Tables of Iceberg under kills, in a process of its own, because a running Java machine loads no packages.

    python -m tests.storage.tables.iceberg_tables FOLDER

Prints the promises that are broken, a line for each; "no package" where Maven's repository cannot be reached; "not
asked: READER" of a reader that cannot be asked here.
"""
import json
import math
import sys
from functools import partial
from itertools import count
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.table import StaticTable
from pyspark.sql import SparkSession

from geminga.storage.jobs.compacting.engines import LocalEngine, NoSpark, Spark
from geminga.storage.tables import exports, iceberg
from geminga.storage.tables.commits import COMPACTED

from ..jobs.topics import Message
from .lake import ORDER, Lake, S
from .test_readers import STEPS, column_of, evolved
from .test_values import avro

PACKAGE = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
WIDER = ORDER | {"fields": [*ORDER["fields"], {"name": "tags", "type": {"type": "array", "items": "string"},
                                               "default": []}, {"name": "note", "type": "int", "default": 0}]}
WIDEST = WIDER | {"fields": [*WIDER["fields"][:-1], {"name": "note", "type": "string", "default": ""}]}
_STEPS = "_at_schema", "_upload", "_java_file", "_change", "_commit_rejected", "recast", "_replace_columns", \
    "prepare", "prepare_beside"


class Killed(BaseException):
    """The end of a process, which no handler sees."""


def rows_by_duckdb(place: Path) -> list[dict] | None:
    """Return the rows as DuckDB reads them, None without its extension for Iceberg."""
    with duckdb.connect() as connection:
        try:
            connection.sql("LOAD iceberg")
        except duckdb.Error:
            return None
        connection.sql("SET unsafe_enable_version_guessing = true")
        return connection.sql(f"SELECT * FROM iceberg_scan('{place}')").to_arrow_table().to_pylist()


def newest_of(place: Path) -> StaticTable | None:
    """Return the table in a folder as Iceberg's own library for Python opens it, None without one."""
    found = list((place / "metadata").glob("v*.metadata.json"))
    if not found:
        return None
    return StaticTable.from_metadata(str(max(found, key=lambda path: int(path.name.split(".")[0][1:]))))


def rows_of(place: Path, where: str = "true") -> list[dict]:
    """Return rows of the table in a folder, as Iceberg's own library for Python reads them."""
    table = newest_of(place)
    return [] if table is None else table.scan(where).to_arrow().to_pylist()


def rows_by_spark(session, place: Path) -> list[dict] | None:
    """Return the rows as Spark reads them, None if Iceberg's package is for an older Spark: it can write, and not read.
    """
    try:
        rows = session.read.format("iceberg").load(str(place))
    except Py4JJavaError as error:
        if "IncompatibleClassChangeError" not in str(error):
            raise
        return None
    return [row.asDict(recursive=True) for row in rows.collect()]


def without_its_ids(place: Path) -> list[str]:
    """Return those data files of the table in a folder of which a column has not the table's id, at any depth."""
    table, bad = newest_of(place), []
    for task in table.scan().plan_files():
        path = task.file.file_path.removeprefix("file:")
        own = pyarrow_to_schema(pq.read_schema(path))      # raises if a column has no id
        known = {own.find_column_name(number) for number in own.field_ids}
        if {table.schema().find_column_name(number) for number in own.field_ids} - {None} != {
                name for name in known if name in table.schema().column_names}:
            bad.append(path)
    return bad


class Mortal(iceberg.IcebergTable):
    """A table whose process is killed at the n-th of its steps, before it or behind it."""

    left = 10 ** 9

    @classmethod
    def step(cls):
        cls.left -= 1
        if cls.left == 0:
            raise Killed


def _mortal(name):
    def run(self, *arguments, **more):
        Mortal.step()
        result = getattr(iceberg.IcebergTable, name)(self, *arguments, **more)
        Mortal.step()
        return result
    return run


for _name in _STEPS:
    setattr(Mortal, _name, _mortal(_name))


# Versions of a topic's schema: a column gets wider, one is dropped and one added, which is replaced then, twice.
MORE = {"type": "array", "items": "string"}
AGES = [{"x": "int", "gone": "string", "more": MORE}, {"x": "long", "more": MORE, "new": ["null", "int"]},
        {"x": "long", "more": MORE, "new": ["null", "double"]}, {"x": "long", "more": MORE, "new": ["null", "string"]}]


def changed_by_others(folder: Path, catalog, check) -> None:
    """Publish as the schema changes.  The first file is one of an earlier version, which has no ids."""
    lake, marked = Lake(folder), iceberg.with_ids
    lake.open_table = partial(iceberg.IcebergTable, catalog, broker="us")
    [topic], values = lake.topic("aged"), {"gone": "a", "more": ["b"], "new": 7}
    place, published = Path(catalog.url.removeprefix("file:")) / "public/default/aged", count()

    def publish(age, expected, error=""):
        definition = {"type": "record", "name": "R", "fields": [
            {"name": name, "type": kind} for name, kind in AGES[age].items()]}
        row = values | {"x": next(published), "new": "7" if age == 3 else 7}
        topic.publish(Message("k", avro(definition, {name: row[name] for name in AGES[age]})),
                      schema_version=lake.schema(definition, S.Avro, "aged"))
        [report] = lake.export()
        check("outcome", error in report["error"] and bool(error) == bool(report["error"]), True)
        rows = sorted(rows_of(place), key=lambda one: one["_entry_id"])
        for column, in_rows in (expected | {"more": [["b"]] * len(rows)}).items():
            check(f"{column} of {len(rows)} rows", [one[column] for one in rows], in_rows)

    iceberg.with_ids = lambda schema, struct: schema
    publish(0, {"x": [0]})
    iceberg.with_ids = marked
    publish(1, {"x": [0, 1], "gone": ["a", None], "new": [None, 7]})
    check("files of the earlier version", sum(
        not pq.read_schema(file).field("x").metadata for file in place.glob("data/**/*.parquet")), 1)
    publish(2, {"x": [0, 1, 2], "gone": ["a", None, None], "new": [None, 7.0, 7.0]})
    check("files without its ids", without_its_ids(place), [])

    # Another program renames a column, and the night adds another one of its name.  Files are no longer merged by names
    # where these mean other columns, nor rewritten.
    lake.plan()[0].table._table.updateSchema().renameColumn("x", "y").commit()
    exports._MERGE_MIN = 2
    for night in range(3):
        publish(2, {"y": [0, 1, 2, *[None] * (night + 1)], "x": [None, None, None, *range(3, night + 4)]})
    check("merged", len(lake.plan()[0].table.files()) < 6, True)
    publish(3, {"y": [0, 1, 2, None, None, None], "x": [None, None, None, 3, 4, 5]}, "renamed")


def main(folder: Path) -> None:
    try:
        engine = Spark(folder / "scratch", "local[1]", settings={"spark.jars.packages": PACKAGE})
    except NoSpark:
        print("no package")
        return
    catalog = iceberg.Catalog(engine.context, str(folder / "warehouse"))
    lake = Lake(folder)
    lake.open_table = partial(Mortal, catalog, broker="us")

    def check(what, found, expected):
        if found != expected:
            print(f"{what}: {found} instead of {expected}")

    # Each step of exports that append, evolve, reject and merge is once the last one of a process.
    topics, kills, published, bad, notes = lake.topic(partitions=2), 0, [], [], []
    place = folder / "warehouse/public/default/orders"
    versions = [lake.schema(ORDER)]
    exports._MERGE_MIN = 4
    for step in range(1, 40):
        if step == 12:
            versions.append(lake.schema(WIDER))
        if step == 24:
            versions.append(lake.schema(WIDEST))
        at, note = topics[step % 2], step if step < 24 else f"note {step}"
        row = {"id": step, "tags": ["a"]} | ({"note": note} if step >= 12 else {})
        at.publish(Message("k", json.dumps(row).encode()), schema_version=versions[-1])
        published.append(step)
        notes.append(None if step < 12 else str(note))
        if step % 3 == 0:
            at.publish(Message("k", b"bad %d" % step), schema_version=versions[-1])
            bad.append(b"bad %d" % step)
        Mortal.left = 1 + step % 27
        try:
            lake.export(engine=LocalEngine())
        except Killed:
            kills += 1
    Mortal.left = 10 ** 9
    [report] = lake.export()
    check("outcome", report["error"], "")
    check("rows", sorted(row["id"] for row in rows_of(place)), published)
    check("columns", "tags" in rows_of(place)[0], True)
    check("notes", [row["note"] for row in sorted(rows_of(place), key=lambda row: row["id"])], notes)
    check("rejected", sorted(row["_payload"] for row in rows_of(place.with_name("orders_rejected"))), sorted(bad))
    check("kills", kills > 12, True)
    for name in ("orders", "orders_rejected"):
        check(f"files of {name} without its ids", without_its_ids(place.with_name(name)), [])
    [planned] = lake.plan()
    check("files", len(planned.table.files()) < 20, True)

    # A compacted table is replaced by the next view.
    lake = Lake(folder / "2")
    lake.open_table = partial(Mortal, catalog, broker="us")
    [topic] = lake.topic("items")
    for night in range(2):
        for number in range(4):
            topic.publish(Message(f"k{number % (3 - night)}", b"%d-%d" % (night, number)))
        topic.compact()
        lake.export(COMPACTED)
        check("view", sorted((row["_key"], row["_payload"]) for row in
                             rows_of(folder / "warehouse/public/default/items_compacted")),
              sorted(topic.newest().values()))

    # Rows with NaN are neither lost nor found too often, and columns become wider.
    lake = Lake(folder / "3")
    lake.open_table = partial(iceberg.IcebergTable, catalog, broker="us")
    [topic] = lake.topic("floats")
    for kinds in (("int", "float"), ("long", "double")):
        definition = {"type": "record", "name": "R", "fields": [
            {"name": name, "type": kind} for name, kind in zip(("id", "value"), kinds, strict=True)]}
        version = lake.schema(definition, S.Avro, "floats")
        for at, value in enumerate((0.0, math.nan)):
            row = {"id": at if kinds[0] == "int" else (1 << 40) + at, "value": value}
            topic.publish(Message("k", avro(definition, row)), schema_version=version)
        [report] = lake.export()
        check("outcome of floats", report["error"], "")
    place = folder / "warehouse/public/default/floats"
    for where, ids in (("value == 0", [0, 1 << 40]), ("value < 1", [0, 1 << 40]), ("value IS NAN", [1, (1 << 40) + 1]),
                       ("value != 0", [1, (1 << 40) + 1])):
        check(f"rows with {where}", sorted(row["id"] for row in rows_of(place, where)), ids)

    # Each step of a schema is one column for every reader, at its place and in one snapshot.
    lake = Lake(folder / "4")
    lake.open_table = partial(iceberg.IcebergTable, catalog, broker="us")
    evolved(lake, STEPS)
    session, missing = SparkSession(engine.context), set()
    for name, (_, _, expected) in STEPS.items():
        place = folder / "warehouse/public/default" / name
        check(f"{name} by pyiceberg", column_of(rows_of(place)), expected)
        for reader, read in (("Spark", partial(rows_by_spark, session)), ("DuckDB", rows_by_duckdb)):
            if reader in missing:
                continue
            if (rows := read(place)) is None:
                missing.add(reader)
            else:
                check(f"{name} by {reader}", column_of(rows), expected)
        check(f"{name}, columns", [one.name for one in newest_of(place).schema().columns][-1], "x")
        check(f"{name}, files without its ids", without_its_ids(place), [])
        first = newest_of(place).scan(snapshot_id=newest_of(place).history()[0].snapshot_id)
        check(f"{name}, the first snapshot has its value", first.to_arrow()["x"].null_count, 0)
    changed_by_others(folder / "5", catalog, check)

    for one in sorted(missing):
        print(f"not asked: {one}")

    # Tables that others have made or write are left alone.
    lake = Lake(folder / "2")
    lake.open_table = partial(iceberg.IcebergTable, catalog, broker="them")
    check("another broker", "another broker, us" in lake.export(COMPACTED)[0]["error"], True)
    engine.close()


if __name__ == "__main__":
    for number in ("2", "3", "4", "5"):
        (Path(sys.argv[1]) / number).mkdir(parents=True)
    main(Path(sys.argv[1]))
