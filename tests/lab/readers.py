"""Readers of the tables that nights make: each type's values, and comparisons of them against a list.

Messages in Avro are published through the broker, a night makes Parquet of them, and each library reads the folder by
`programs/read_tables.py`.
"""

import dataclasses
import datetime
import decimal
import functools
import io
import json
import math
import operator
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from . import registries
from .programs.read_tables import text_of
from .running import Ground
from .subject import Answers, Subject

NAME = "readers"
ABOUT = ("A night's table of Parquet files, read by each library; `of Iceberg`, a night's table of that format. "
         "`values` is everything in a column with nulls, as it was published. `filters` are comparisons with `=`, "
         "`!=`, `<`, `>` and for nulls, which the library may push down to the files' statistics; the answer is the "
         "ids of the rows.")

NAN = math.nan
UTC = datetime.UTC
D = decimal.Decimal
NIGHT_SECONDS = 900
IVY = Path.home() / ".ivy2.5.2"
ICEBERG = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"

# name: (Avro's type, values of rows 0, 1, 2 ..., values that filters compare with)
TYPES: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "boolean": ("boolean", [True, False, None, True], [True]),
    "int": ("int", [5, -7, None, 5, 2**31 - 1, -2**31], [5, 2**31 - 1]),
    "long": ("long", [5, 2**60 + 1, None, -2**63, 2**63 - 1, 2**53 + 1], [2**60 + 1, 2**53 + 1, -2**63]),
    "float": ("float", [0.5, -1.25, None, math.inf, 0.0, -math.inf], [0.5, 0.0]),
    "double": ("double", [0.5, -1.25, None, 1e300, 0.0, -5e-324], [0.5, 0.0, 1e300]),
    "double with NaN": ("double", [0.5, NAN, None, 2.0, 0.0, math.inf], [0.5, 2.0]),
    "double, all NaN": ("double", [NAN, NAN, NAN], [0.5]),
    "string": ("string", ["apple", "", None, "Zoë", "apple ", "x" * 70], ["apple", ""]),
    "bytes": ("bytes", [b"\x00\xff", b"", None, b"abc"], []),
    "fixed": ({"type": "fixed", "name": "F4", "size": 4}, [b"\x00\xff\x01\x02", None, b"abcd"], []),
    "enum": ({"type": "enum", "name": "Color", "symbols": ["RED", "GREEN"]}, ["RED", None, "GREEN"], ["GREEN"]),
    "date": ({"type": "int", "logicalType": "date"}, [
        datetime.date(2024, 2, 29), datetime.date(1969, 12, 31), None, datetime.date(1, 1, 1),
        datetime.date(9999, 12, 31)], [datetime.date(2024, 2, 29), datetime.date(1969, 12, 31)]),
    "timestamp-millis": ({"type": "long", "logicalType": "timestamp-millis"}, [
        datetime.datetime(2024, 1, 31, 10, 15, 30, 123_000, UTC),
        datetime.datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC), None,
        datetime.datetime(1900, 1, 1, tzinfo=UTC)], [datetime.datetime(2024, 1, 31, 10, 15, 30, 123_000, UTC)]),
    "timestamp-micros": ({"type": "long", "logicalType": "timestamp-micros"}, [
        datetime.datetime(2024, 1, 31, 10, 15, 30, 123_456, UTC),
        datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
        None, datetime.datetime(2200, 1, 1, tzinfo=UTC)], [datetime.datetime(2024, 1, 31, 10, 15, 30, 123_456, UTC)]),
    "local-timestamp-micros": ({"type": "long", "logicalType": "local-timestamp-micros"}, [
        datetime.datetime(2024, 3, 31, 2, 30, 0, 1), datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999), None,
        datetime.datetime(2024, 3, 31, 3, 30)], [datetime.datetime(2024, 3, 31, 2, 30, 0, 1)]),
    "timestamp-nanos": ({"type": "long", "logicalType": "timestamp-nanos"}, [
        1_706_696_130_123_456_789, None, -1], [1_706_696_130_123_456_789]),
    "time-micros": ({"type": "long", "logicalType": "time-micros"}, [
        datetime.time(10, 15, 30, 5), None, datetime.time(0, 0)], []),
    "decimal": ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, [
        D("12.50"), D("-0.01"), None, D("9999999.99")], [D("12.50"), D("-0.01")]),
    "decimal of 38 digits": ({"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10}, [
        D("1234567890123456789012345678.0123456789"), D("-0.0000000001"), None], [D("-0.0000000001")]),
    "uuid": ({"type": "string", "logicalType": "uuid"}, [
        "00000000-0000-0001-0000-000000000002", None, "ffffffff-ffff-ffff-ffff-ffffffffffff"], []),
    "array": ({"type": "array", "items": ["null", "int"]}, [[1, None, 3], [], None, [2**31 - 1]], []),
    "map": ({"type": "map", "values": "long"}, [{"a": 1}, {}, None, {"b": 2**60 + 1}], []),
    "record": ({"type": "record", "name": "Inner", "fields": [
        {"name": "x", "type": ["null", "int"]}, {"name": "y", "type": "string"}]}, [
        {"x": 1, "y": "a"}, {"x": None, "y": ""}, None], []),
    "union": (["null", "int", "string"], [5, "text", None], []),
    "array of records": ({"type": "array", "items": {"type": "record", "name": "Item", "fields": [
        {"name": "n", "type": "int"}, {"name": "tags", "type": {"type": "array", "items": "string"}}]}}, [
        [{"n": 1, "tags": ["a", "b"]}, {"n": 2, "tags": []}], [], None], []),
}
# (type of the first version, value; type of the second, value; what both are read as)
STEPS: dict[str, tuple[str, Any, str, Any, list[Any]]] = {
    "int and long": ("int", 7, "long", 2**60 + 1, [7, 2**60 + 1]),
    "float and double": ("float", 0.5, "double", 1e300, [0.5, 1e300]),
    "long and double": ("long", 7, "double", 0.5, [7.0, 0.5]),
    "long and string": ("long", 7, "string", "x", ["7", "x"]),
    "string and bytes": ("string", "ab", "bytes", b"\xff", [b"ab", b"\xff"]),
}
OPERATORS = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt}


def field_of(name: str) -> str:
    """Return the name of the column for something asked."""
    return "f_" + name.replace(" ", "_").replace(",", "").replace("-", "_")


def _definition(fields: dict[str, Any]) -> dict[str, Any]:
    def optional(kind: Any) -> Any:
        return kind if isinstance(kind, list) else ["null", kind]

    return {"type": "record", "name": "Row", "fields": [
        {"name": "id", "type": "int"}, *({"name": name, "type": optional(kind), "default": None}
                                         for name, kind in fields.items())]}


def _encoded(definition: dict[str, Any], row: dict[str, Any]) -> bytes:
    made = io.BytesIO()
    fastavro.schemaless_writer(made, fastavro.parse_schema(definition), row)
    return made.getvalue()


def _told(value: Any) -> tuple[str, str]:
    """Return a value as the programs are told it: its type and a text."""
    if isinstance(value, bool):
        return "bool", str(value).lower()
    if isinstance(value, datetime.datetime):
        return "zoned" if value.tzinfo else "datetime", value.replace(tzinfo=None).isoformat()
    names = {int: "int", float: "float", str: "str", D: "decimal", datetime.date: "date", type(None): "null"}
    return names[type(value)], str(value)


def filters_of(values: list[Any]) -> list[tuple[str, tuple[str, str]]]:
    """Return the comparisons that are asked for."""
    named = [("null", None)] + [(name, value) for value in values for name in OPERATORS]
    return [(name, _told(value)) for name, value in named]


def ids_of(column: list[Any], name: str, value: Any, nan_is_largest: bool) -> list[int]:
    """Return the ids of the rows for which a comparison holds: for nulls none does."""
    if name == "null":
        return [at for at, one in enumerate(column) if one is None]

    def holds(one: Any) -> bool:
        if isinstance(one, float) and math.isnan(one):
            return name == "!=" or (nan_is_largest and name == ">")
        return bool(OPERATORS[name](one, value))

    return [at for at, one in enumerate(column) if one is not None and holds(one)]


def _filters_text(column: list[Any], values: list[Any], nan_is_largest: bool) -> str:
    found = [("null", None)] + [(name, value) for value in values for name in OPERATORS]
    return "; ".join(f"{name} {_told(value)[1]}: " + ",".join(map(str, ids_of(column, name, value, nan_is_largest)))
                     for name, value in found)


def _as_column(name: str, values: list[Any]) -> list[Any]:
    """Return values as docs/tables.md says that their column has them."""
    if name == "union":
        return [None if value is None else json.dumps(value) for value in values]
    if name == "time-micros":
        return [None if value is None else value.isoformat() for value in values]
    return values


def asked(nan_is_largest: bool) -> dict[str, str]:
    """Return what a reader is asked, with the answer that the published values make."""
    found = {}
    for name, (_, values, compared) in TYPES.items():
        column = _as_column(name, values)
        thing = name.replace(",", "")
        found[f"values of {thing}"] = "; ".join(map(text_of, column))
        if compared:
            found[f"filters on {thing}"] = _filters_text(column, compared, nan_is_largest)
    for name, step in STEPS.items():
        found[f"versions with {name}"] = "; ".join(map(text_of, step[4]))
    found["a field of the second version"] = "null; 5"
    found["a field that the second version lost"] = "5; null"
    return found


def questions() -> dict[str, dict[str, Any]]:
    """Return for everything asked: table, column, and the comparisons if there are any."""
    found: dict[str, dict[str, Any]] = {}
    for name, (_, _, compared) in TYPES.items():
        where = {"table": f"public/default/{field_of(name)}/messages", "column": field_of(name)}
        thing = name.replace(",", "")
        found[f"values of {thing}"] = where
        if compared:
            found[f"filters on {thing}"] = where | {"filters": filters_of(compared)}
    for name in STEPS:
        found[f"versions with {name}"] = {"table": f"public/default/{field_of(name)}/messages", "column": "value"}
    evolved = f"public/default/{field_of('fields')}/messages"
    found["a field of the second version"] = {"table": evolved, "column": "later"}
    found["a field that the second version lost"] = {"table": evolved, "column": "gone"}
    return found


def publish(ground: Ground) -> None:
    """Publish every type in a topic of its own, and two versions of a schema in others."""
    import _pulsar
    import pulsar

    class Raw(pulsar.schema.Schema):
        """A definition of Avro, for payloads that are encoded already."""

        def __init__(self, definition: dict[str, Any]) -> None:
            super().__init__(bytes, _pulsar.SchemaType.AVRO, definition, "AVRO")

        def encode(self, payload: bytes) -> bytes:
            return payload

    def put(path: str, body: object, method: str = "POST") -> None:
        said = ground.please({"please": method, "path": path, "body": body})
        assert said == "done", (path, said)

    put("namespaces/public/default/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE", "PUT")
    client = pulsar.Client(ground.broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))

    def send(topic: str, definition: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        producer = client.create_producer(f"persistent://public/default/{topic}", schema=Raw(definition))
        for row in rows:
            producer.send(_encoded(definition, row))
        producer.close()

    for name, (kind, values, _) in TYPES.items():
        send(field_of(name), _definition({field_of(name): kind}),
             [{"id": at, field_of(name): value} for at, value in enumerate(values)])
    for name, (first, value, second, other, _) in STEPS.items():
        send(field_of(name), _definition({"value": first}), [{"id": 0, "value": value}])
        send(field_of(name), _definition({"value": second}), [{"id": 1, "value": other}])
    send(field_of("fields"), _definition({"gone": "int"}), [{"id": 0, "gone": 5}])
    send(field_of("fields"), _definition({"later": "int"}), [{"id": 1, "later": 5}])
    client.close()
    put("namespaces/public/default/export", "messages")


def _written(folder: Path) -> None:
    """Write tables of the same values with PyArrow alone, a file for each version of a schema."""
    tables = {field_of(name): [(field_of(name), name, kind, _as_column(name, values), 0)]
              for name, (kind, values, _) in TYPES.items()}
    for name, (_, _, _, _, values) in STEPS.items():
        tables[field_of(name)] = [("value", "", None, values, 0)]
    tables[field_of("fields")] = [("gone", "", "int", [5], 0), ("later", "", "int", [5], 1)]
    for table, files in tables.items():
        place = folder / "public/default" / table / "messages/day=2026-11-29"
        place.mkdir(parents=True)
        every = {column: _arrow_type(name, kind, values) for column, name, kind, values, _ in files}
        for at, (column, _, _, values, first) in enumerate(files):
            fields = {"id": (pa.int32(), list(range(first, first + len(values))))}
            fields |= {other: (type_, values if other == column else [None] * len(values))
                       for other, type_ in every.items()}
            made = pa.table({  # a map stands before the columns of the payload, as in tables of nights
                "_properties": pa.array([[]] * len(values), pa.map_(pa.string(), pa.string())),
                **{name: pa.array(column, type_) for name, (type_, column) in fields.items()}})
            pq.write_table(made, place / f"{at}.parquet")


def _arrow_type(name: str, kind: Any, values: list[Any]) -> pa.DataType:
    """Return the type that docs/tables.md says for a column."""
    logical = kind.get("logicalType") if isinstance(kind, dict) else None
    if logical == "decimal":
        return pa.decimal128(kind["precision"], kind["scale"])
    named = {"int": pa.int32(), "float": pa.float32(), "date": pa.date32(), "map": pa.map_(pa.string(), pa.int64()),
             "timestamp-millis": pa.timestamp("us", "UTC"), "timestamp-micros": pa.timestamp("us", "UTC"),
             "array": pa.list_(pa.int32()), "fixed": pa.binary(4),
             "record": pa.struct([("x", pa.int32()), ("y", pa.string())]),
             "array of records": pa.list_(pa.struct([("n", pa.int32()), ("tags", pa.list_(pa.string()))]))}
    return named.get(name) or (pa.int32() if kind == "int" else pa.array(values).type)


@functools.cache
def _tables(ground: Ground) -> Path:
    """Return the folder of the tables that a night has made, or that PyArrow has written where there is no broker."""
    if not ground.is_geminga:
        _written(ground.folder / "tables")
        return ground.folder / "tables"
    publish(ground)
    return night(ground)


@functools.cache
def _tables_of_iceberg(ground: Ground) -> Path:
    """Return the folder of tables of Iceberg with the same values, which a night of another broker has made."""
    folder = ground.folder / "iceberg"
    settings = ground.folder / "spark.properties"      # packages that are here already need not be loaded again
    settings.write_text(f"spark.jars.ivy {IVY}\n")
    with Ground(ground.against) as other:
        publish(other)
        night(other, engine="spark", GEMINGA_NIGHTLY_TABLES_URL=str(folder), GEMINGA_NIGHTLY_TABLES_FORMAT="iceberg",
              GEMINGA_NIGHTLY_TABLES_PACKAGES=ICEBERG, GEMINGA_NIGHTLY_TABLES_SETTINGS_FILE=str(settings))
    return folder


def night(ground: Ground, rejects: bool = False, engine: str = "here", **settings: str) -> Path:
    """Have a night make tables; return their folder.

    rejects: whether it may have rows that do not fit their schemas.  settings: by variables of the environment.
    """
    command = [Path(sys.executable).with_name("geminga"), "nightly", "--config", ground.folder / "geminga.toml",
               "--data-dir", ground.folder / "data", "--engine", engine]
    done = subprocess.run(command, capture_output=True, text=True, timeout=NIGHT_SECONDS, env=os.environ | settings)
    assert done.returncode == 0 or (rejects and done.stdout.startswith("success")), done.stdout + done.stderr
    return ground.folder / "tables"


def _reader(name: str, library: str, packages: tuple[str, ...], nan_is_largest: bool = False,
            decided: dict[str, str] | None = None) -> Subject:
    def ask(ground: Ground, asks: list[str]) -> Answers:
        command: list[str | Path] = [registries.python(*packages), registries.PROGRAMS / "read_tables.py", library]
        folder = _tables_of_iceberg(ground) if of_iceberg else _tables(ground)
        said = {"tables": str(folder), "questions": json.dumps(questions()), "iceberg": ICEBERG, "ivy": str(IVY)}
        yield from ground.ask(command, asks, "", {"TZ": "America/New_York"}, said, broker=False)

    of_iceberg = library.endswith(" iceberg")
    return Subject(name, ", ".join(packages).replace("==", " "), asked(nan_is_largest), ask, compared=not of_iceberg,
                   decided=decided or {})


ARROW, PYICEBERG = "pyarrow==26.0.1", "pyiceberg[sql-sqlite]==0.12.0"
BEHIND_A_MAP = "fails for whole numbers with nulls behind a map: findings/fastparquet-whole-numbers-behind-a-map.sh"
EMPTY_LISTS = ("a list of records that is null is read as empty: "
               "findings/pyiceberg-null-lists-of-records-are-empty.sh")
OF_CLICKHOUSE = "ClickHouse has no arrays, maps and records that are null, and times without a zone have its own"
OF_NUMPY = "without dtype_backend=\"pyarrow\" whole numbers with nulls become float64, and nulls NaN"


# Readers whose newest versions are tried: name in the record, adapter, package, more packages, order of NaN.
NEWEST = (("DuckDB", "duckdb", "duckdb", ("pyarrow",), True), ("Arrow", "pyarrow", "pyarrow", (), False),
          ("pandas 3", "pandas", "pandas", ("pyarrow",), False), ("Polars", "polars", "polars", (), True),
          ("DataFusion", "datafusion", "datafusion", ("pyarrow",), True),
          ("ClickHouse", "chdb", "chdb", ("pyarrow",), False), ("Daft", "daft", "daft", (), True))


def subjects(newest: bool) -> list[Subject]:
    """Return the readers; with `newest` each library's newest version."""
    if newest:
        return [dataclasses.replace(_reader(name, library, (
            f"{package}=={registries.newest('pypi', package)}", *more), largest), like=name)
            for name, library, package, more, largest in NEWEST]
    return [
        _reader("DuckDB", "duckdb", ("duckdb==2.0.1", ARROW), nan_is_largest=True),
        _reader("Arrow", "pyarrow", (ARROW,)),
        _reader("pandas", "pandas", ("pandas==2.3.3", ARROW)),
        _reader("pandas 3", "pandas", ("pandas==3.0.0", ARROW)),
        _reader("pandas with numpy", "numpy", ("pandas==2.3.3", ARROW), decided=dict.fromkeys(asked(False), OF_NUMPY)),
        _reader("fastparquet", "fastparquet", ("fastparquet==2026.9.0", "pandas==2.3.3"),
                decided=dict.fromkeys(
                    ("a field of the second version", "a field that the second version lost"), BEHIND_A_MAP)),
        _reader("Polars", "polars", ("polars==2.1.0",), nan_is_largest=True),
        _reader("DataFusion", "datafusion", ("datafusion==55.0.0", ARROW), nan_is_largest=True),
        _reader("ClickHouse", "chdb", ("chdb==4.4.0", ARROW)),
        _reader("Daft", "daft", ("daft==0.7.26",), nan_is_largest=True),
        _reader("Spark", "pyspark", ("pyspark==4.3.0",), nan_is_largest=True),
        _reader("pyiceberg", "pyiceberg", (PYICEBERG, ARROW)),
        _reader("pyiceberg of Iceberg", "pyiceberg iceberg", (PYICEBERG, ARROW),
                decided={"values of array of records": EMPTY_LISTS}),
        _reader("ClickHouse of Iceberg", "chdb iceberg", ("chdb==4.4.0", ARROW), decided=dict.fromkeys(
            (f"values of {name}" for name in ("local-timestamp-micros", "array", "map", "record", "array of records")),
            OF_CLICKHOUSE)),
        _reader("Polars of Iceberg", "polars iceberg", ("polars==2.1.0", PYICEBERG, ARROW), nan_is_largest=True),
        _reader("Daft of Iceberg", "daft iceberg", ("daft==0.7.26", PYICEBERG), nan_is_largest=True),
        _reader("DuckDB of Iceberg", "duckdb iceberg", (
            "duckdb==1.5.5", "duckdb-extension-iceberg==1.5.5", "duckdb-extension-avro==1.5.5", ARROW),
                nan_is_largest=True),
        _reader("Spark of Iceberg", "pyspark iceberg", ("pyspark==4.1.4",), nan_is_largest=True),
        _reader("DataFusion of Iceberg", "datafusion iceberg", (
            "datafusion==54.0.0", PYICEBERG, "pyiceberg-core==0.11.0", ARROW), nan_is_largest=True),
    ]
