"""Reads a table of Parquet files with one library, and answers what the lab asks; started by `Ground.ask`.

The first argument names the library.  Each has two functions: `values(folder, column)` returns (id, value) of all rows,
`ids(folder, column, operator, value)` the ids of rows for which a comparison holds, pushed down as the library does.
"""
import datetime
import decimal
import json
import math
import re
import sys
import tempfile
import traceback
import typing
import uuid

TOLD = {}      # set by main
SPELLED = {"==": "=", "!=": "<>"}


class Lacks(Exception):
    """The library has no such thing."""


def literal(value, cast=lambda text, kind: f"{kind} '{text}'"):
    """Return a value as SQL has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, decimal.Decimal)):
        return str(value)
    if isinstance(value, float):
        return "CAST('NaN' AS DOUBLE)" if math.isnan(value) else f"CAST({value!r} AS DOUBLE)"
    if isinstance(value, datetime.datetime):
        text = value.replace(tzinfo=None).isoformat(" ")
        return cast(text + "+00:00", "TIMESTAMPTZ") if value.tzinfo else cast(text, "TIMESTAMP")
    if isinstance(value, datetime.date):
        return cast(value.isoformat(), "DATE")
    return "'" + value.replace("'", "''") + "'"


class Sql:
    """A library that takes SQL: `query` returns rows as tuples."""

    where = staticmethod(literal)
    name = '"{}"'.format

    def values(self, folder, column):
        return self.query(folder, f"{self.name('id')}, {self.name(column)}", "")

    def ids(self, folder, column, operator, value):
        condition = f"{self.name(column)} IS NULL" if value is None else (
            f"{self.name(column)} {SPELLED.get(operator, operator)} {self.where(value)}")
        return [row[0] for row in self.query(folder, self.name("id"), f" WHERE {condition}")]


class DuckDB(Sql):
    place = "read_parquet('{}/day=*/*.parquet', union_by_name = true)"

    def connection(self):
        import duckdb
        return duckdb.connect()

    def query(self, folder, columns, where):
        connection = self.connection()
        connection.sql("SET TimeZone = 'UTC'")
        rows = connection.sql(f"SELECT {columns} FROM {self.place.format(folder)}{where}")
        return [tuple(row.values()) for row in rows.to_arrow_table().to_pylist()]


class DuckDBOfIceberg(DuckDB):
    """DuckDB with its extensions, which packages beside it have."""

    place = "iceberg_scan('{}')"

    def connection(self):
        import importlib.util
        import pathlib
        connection = super().connection()
        for name in ("avro", "iceberg"):
            package = pathlib.Path(importlib.util.find_spec(f"duckdb_extension_{name}").origin).parent
            [extension] = package.rglob(f"{name}.duckdb_extension")
            connection.sql(f"LOAD '{extension}'")
        connection.sql("SET unsafe_enable_version_guessing = true")
        return connection


class DataFusion(Sql):
    where = staticmethod(lambda value: literal(value, lambda text, kind: f"arrow_cast('{text}', '" + {
        "DATE": "Date32", "TIMESTAMP": "Timestamp(Microsecond, None)",
        "TIMESTAMPTZ": 'Timestamp(Microsecond, Some("UTC"))'}[kind] + "')"))

    def query(self, folder, columns, where):
        import datafusion
        context = datafusion.SessionContext()
        context.register_parquet("t", folder, table_partition_cols=[], file_extension=".parquet")
        return [tuple(row.values()) for batch in context.sql(f"SELECT {columns} FROM t{where}").collect()
                for row in batch.to_pylist()]


class ClickHouse(Sql):
    name = "`{}`".format
    place, settings = "file('{}/day=*/*.parquet', Parquet)", "input_format_parquet_allow_missing_columns = 1, "
    where = staticmethod(lambda value: literal(value, lambda text, kind: {
        "DATE": f"toDate32('{text}')", "TIMESTAMP": f"toDateTime64('{text}', 6, 'UTC')",
        "TIMESTAMPTZ": f"toDateTime64('{text.removesuffix('+00:00')}', 6, 'UTC')"}[kind]))

    def query(self, folder, columns, where):
        import chdb
        import pyarrow as pa
        raw = any(word in folder for word in ("bytes", "fixed"))      # else its strings are text
        settings = (f"output_format_arrow_string_as_string = {int(not raw)}, "
                    f"schema_inference_make_columns_nullable = 1, {self.settings}session_timezone = 'UTC'")
        answer = chdb.query(f"SELECT {columns} FROM {self.place.format(folder)}{where} SETTINGS {settings}",
                            "ArrowStream")
        data = answer.bytes()
        if not data:
            return []
        return [tuple(row.values()) for row in pa.ipc.open_stream(data).read_all().to_pylist()]


class ClickHouseOfIceberg(ClickHouse):
    place, settings = "icebergLocal('{}')", ""


class Spark(Sql):
    name = "`{}`".format
    settings: typing.ClassVar = {}

    def __init__(self):
        from pyspark.sql import SparkSession
        builder = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
                   .config("spark.sql.session.timeZone", "UTC").config("spark.driver.memory", "700m")
                   .config("spark.ui.showConsoleProgress", "false"))
        for name, value in self.settings.items():
            builder = builder.config(name, value.format(**TOLD))
        self.session = builder.getOrCreate()
        self.session.sparkContext.setLogLevel("OFF")

    @staticmethod
    def where(value):
        if isinstance(value, datetime.datetime) and value.tzinfo is None:
            return f"TIMESTAMP_NTZ '{value.isoformat(' ')}'"
        return literal(value, lambda text, kind: f"{kind.removesuffix('TZ')} '{text}'")

    def table(self, folder):
        return self.session.read.option("mergeSchema", "true").parquet(folder)

    def query(self, folder, columns, where):
        self.table(folder).createOrReplaceTempView("t")
        frame = self.session.sql(f"SELECT {columns} FROM t{where}")
        zoned = {field.name for field in frame.schema if field.dataType.typeName() == "timestamp"}
        rows = []
        for row in frame.collect():
            made = []
            for name, value in row.asDict(recursive=True).items():
                if name in zoned and value is not None:
                    value = value.astimezone(datetime.UTC)      # given in the zone of this process
                made.append(value)
            rows.append(tuple(made))
        return rows


class SparkOfIceberg(Spark):
    settings: typing.ClassVar = {"spark.jars.packages": "{iceberg}", "spark.jars.ivy": "{ivy}"}

    def table(self, folder):
        return self.session.read.format("iceberg").load(folder)


class Arrow:
    @staticmethod
    def dataset(folder):
        import glob

        import pyarrow as pa
        import pyarrow.dataset as ds
        schema = pa.unify_schemas([ds.dataset(path).schema for path in glob.glob(f"{folder}/day=*/*.parquet")])
        return ds.dataset(folder, schema=schema, partitioning="hive")

    def values(self, folder, column):
        return [(row["id"], row[column]) for row in self.dataset(folder).to_table(columns=["id", column]).to_pylist()]

    def ids(self, folder, column, operator, value):
        import operator as operators

        import pyarrow.compute as pc
        its = pc.field(column)
        named = {"==": operators.eq, "!=": operators.ne, "<": operators.lt, ">": operators.gt}
        where = its.is_null() if value is None else named[operator](its, value)
        return self.dataset(folder).to_table(columns=["id"], filter=where)["id"].to_pylist()


class Pandas:
    """pandas with the types of Arrow; `options` are of pandas.read_parquet."""

    options: typing.ClassVar = {"engine": "pyarrow", "dtype_backend": "pyarrow"}

    def values(self, folder, column):
        import pandas
        frame = pandas.read_parquet(folder, columns=["id", column], **self.options)
        return [(int(at), plain(value)) for at, value in zip(frame["id"], frame[column], strict=True)]

    def ids(self, folder, column, operator, value):
        import pandas
        if value is None:
            frame = pandas.read_parquet(folder, columns=["id", column], **self.options)
            return [int(one) for one in frame[frame[column].isna()]["id"]]
        frame = pandas.read_parquet(folder, filters=[(column, operator, value)], **self.options)
        return [int(one) for one in frame["id"]]


class PandasOfNumpy(Pandas):
    options: typing.ClassVar = {"engine": "pyarrow"}


class FastParquet(Pandas):
    options: typing.ClassVar = {"engine": "fastparquet"}

    def ids(self, folder, column, operator, value):
        import glob

        import fastparquet
        if value is None:
            return super().ids(folder, column, operator, value)
        files = fastparquet.ParquetFile(sorted(glob.glob(f"{folder}/day=*/*.parquet")))
        frame = files.to_pandas(filters=[(column, operator, value)], row_filter=True)
        return [int(one) for one in frame["id"]]


def plain(value):
    """Return a value of pandas without numpy's types."""
    import numpy
    import pandas
    if isinstance(value, numpy.ndarray):
        return [plain(one) for one in value]
    if isinstance(value, (list, dict, tuple)):
        return value
    if value is None or value is pandas.NaT or value is pandas.NA:
        return None
    if isinstance(value, pandas.Timestamp):
        return value.to_pydatetime()
    if isinstance(value, numpy.generic):
        return value.item()
    return value


class Polars:
    def frame(self, folder):
        import polars
        return polars.scan_parquet(f"{folder}/day=*/*.parquet", hive_partitioning=True, missing_columns="insert")

    def values(self, folder, column):
        frame = self.frame(folder).select("id", column).collect()
        return list(zip(frame["id"].to_list(), frame[column].to_list(), strict=True))

    def ids(self, folder, column, operator, value):
        import operator as operators

        import polars
        its = polars.col(column)
        named = {"==": operators.eq, "!=": operators.ne, "<": operators.lt, ">": operators.gt}
        where = its.is_null() if value is None else named[operator](its, value)
        return self.frame(folder).filter(where).select("id").collect()["id"].to_list()


def newest_of(folder):
    """Return the table of Iceberg in a folder."""
    import glob

    from pyiceberg.table import StaticTable
    found = glob.glob(f"{folder}/metadata/v*.metadata.json")
    return StaticTable.from_metadata(max(found, key=lambda path: int(path.rpartition("/v")[2].split(".")[0])))


class PyIceberg:
    """Iceberg's own library, with the files added to a table of a catalog in memory."""

    def __init__(self):
        from pyiceberg.catalog.memory import InMemoryCatalog
        self.catalog = InMemoryCatalog("lab", warehouse=tempfile.mkdtemp(dir="."))
        self.catalog.create_namespace("lab")
        self.tables = {}

    def table(self, folder):
        import glob

        import pyarrow as pa
        import pyarrow.parquet as pq
        if folder not in self.tables:
            files = sorted(glob.glob(f"{folder}/day=*/*.parquet"))
            columns = pa.unify_schemas([pq.read_schema(file) for file in files])
            self.tables[folder] = table = self.catalog.create_table(f"lab.t{len(self.tables)}", columns)
            table.add_files(files)
        return self.tables[folder]

    def scan(self, folder, columns, where):
        rows = self.table(folder).scan(where, selected_fields=columns).to_arrow().to_pylist()
        return [tuple(row[column] for column in columns) for row in rows]

    def values(self, folder, column):
        return self.scan(folder, ("id", column), "true")

    def ids(self, folder, column, operator, value):
        from pyiceberg import expressions
        named = {"==": expressions.EqualTo, "!=": expressions.NotEqualTo, "<": expressions.LessThan,
                 ">": expressions.GreaterThan}
        where = expressions.IsNull(column) if value is None else named[operator](column, value)
        return [row[0] for row in self.scan(folder, ("id",), where)]


class PyIcebergOfIceberg(PyIceberg):
    """Iceberg's own library with a table that a night has made."""

    def __init__(self):
        self.table = newest_of


class DataFusionOfIceberg(DataFusion):
    def query(self, folder, columns, where):
        import datafusion
        from pyiceberg.table import StaticTable
        context = datafusion.SessionContext()
        context.register_table("t", StaticTable.from_metadata("file://" + newest_of(folder).metadata_location))
        return [tuple(row.values()) for batch in context.sql(f"SELECT {columns} FROM t{where}").collect()
                for row in batch.to_pylist()]


class PolarsOfIceberg(Polars):
    def frame(self, folder):
        import polars
        return polars.scan_iceberg(newest_of(folder))


class Daft:
    def frame(self, folder):
        import daft
        return daft.read_parquet(f"{folder}/day=*/*.parquet")

    def values(self, folder, column):
        found = self.frame(folder).select("id", column).to_pydict()
        return list(zip(found["id"], found[column], strict=True))

    def ids(self, folder, column, operator, value):
        import operator as operators

        import daft
        its = daft.col(column)
        named = {"==": operators.eq, "!=": operators.ne, "<": operators.lt, ">": operators.gt}
        where = its.is_null() if value is None else named[operator](its, value)
        return self.frame(folder).where(where).select("id").to_pydict()["id"]


class DaftOfIceberg(Daft):
    def frame(self, folder):
        import daft
        return daft.read_iceberg(newest_of(folder))


LIBRARIES = {"duckdb": DuckDB, "datafusion": DataFusion, "chdb": ClickHouse, "pyspark": Spark, "pyarrow": Arrow,
             "pandas": Pandas, "numpy": PandasOfNumpy, "fastparquet": FastParquet, "polars": Polars, "daft": Daft,
             "pyiceberg": PyIceberg, "pyiceberg iceberg": PyIcebergOfIceberg, "polars iceberg": PolarsOfIceberg,
             "daft iceberg": DaftOfIceberg, "chdb iceberg": ClickHouseOfIceberg, "duckdb iceberg": DuckDBOfIceberg,
             "pyspark iceberg": SparkOfIceberg, "datafusion iceberg": DataFusionOfIceberg}


def text_of(value):
    """Return a value as text, the same for whatever type a library has for it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else repr(value)
    if isinstance(value, datetime.datetime):
        if value.tzinfo:
            return value.astimezone(datetime.UTC).replace(tzinfo=None).isoformat() + "Z"
        return value.isoformat()
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "x" + bytes(value).hex()
    if isinstance(value, decimal.Decimal):
        return format(value.normalize(), "f")
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {text_of(one)}" for name, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(text_of(one) for one in value) + "]"
    if hasattr(value, "tolist"):
        return text_of(value.tolist())
    return str(value)


def value_of(told):
    """Return a value of Python of (type, text), which JSON cannot have."""
    kind, text = told
    return {"null": lambda _: None, "bool": lambda text: text == "true", "int": int, "float": float, "str": str,
            "decimal": decimal.Decimal, "date": datetime.date.fromisoformat,
            "datetime": datetime.datetime.fromisoformat,
            "zoned": lambda text: datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC),
            }[kind](text)


def plainly(error):
    """Return what an error says, without names of files, which no run repeats."""
    return re.sub(r"/\S+", "FILE", f"{type(error).__name__}: {error}".splitlines()[0])


def answer(library, thing):
    said = json.loads(TOLD["questions"])[thing]
    folder = TOLD["tables"] + "/" + said["table"]
    if sys.argv[1].endswith(" iceberg"):
        folder = folder.removesuffix("/messages")
    if "filters" not in said:
        rows = sorted(library.values(folder, said["column"]), key=lambda row: row[0])
        if said["column"] == "f_map" or said.get("is_map"):      # which some libraries have as pairs
            rows = [(at, dict(value) if isinstance(value, list) else value) for at, value in rows]
        return "; ".join(text_of(value) for _, value in rows)
    found = []
    for operator, told in said["filters"]:
        try:
            ids = ",".join(map(str, sorted(library.ids(folder, said["column"], operator, value_of(told)))))
        except Exception as error:
            traceback.print_exc()
            ids = plainly(error)[:80]
        found.append(f"{operator} {told[1]}: {ids}")
    return "; ".join(found)


def main():
    TOLD.update(json.loads(sys.argv[-1]))
    library = LIBRARIES[sys.argv[1]]()
    for thing in TOLD["things"].split(","):
        try:
            said = answer(library, thing)
        except Lacks as why:
            said = f"lacks: {why}"
        except Exception as error:
            traceback.print_exc()
            said = plainly(error)
        print(json.dumps({"thing": thing, "answer": said}), flush=True)


if __name__ == "__main__":
    main()
