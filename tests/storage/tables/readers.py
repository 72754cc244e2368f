"""Tables of Parquet files as DuckDB, pandas, Arrow and Spark read them, by the lines of docs/tables.md."""
import duckdb
import pandas
import pyarrow as pa
import pyarrow.dataset as ds

from geminga.proto import names
from geminga.storage.tables.commits import MESSAGES, folder_of


def folder(lake, name="orders"):
    return lake.target / folder_of(names.parse(name)) / MESSAGES


def by_duckdb(lake, where, name="orders"):
    """Return the rows for which a condition of SQL holds."""
    query = f"SELECT * FROM read_parquet('{folder(lake, name)}/day=*/*.parquet', union_by_name = true) WHERE {where}"
    return duckdb.sql(query).to_arrow_table().to_pylist()


def by_arrow(lake, where=None, name="orders"):
    """Return the rows for which an expression of Arrow holds."""
    files = sorted(folder(lake, name).glob("day=*/*.parquet"))
    schema = pa.unify_schemas([ds.dataset(path).schema for path in files])      # raises if a column has two types
    return ds.dataset(folder(lake, name), schema=schema, partitioning="hive").to_table(filter=where).to_pylist()


def by_pandas(lake, filters=None, name="orders"):
    """Return the rows for which filters of pandas hold."""
    return pandas.read_parquet(folder(lake, name), filters=filters).to_dict("records")


def by_spark(spark, lake, where, name="orders"):
    """Return the rows for which a condition of SQL holds."""
    rows = spark.read.option("mergeSchema", "true").parquet(str(folder(lake, name))).where(where)
    return [row.asDict(recursive=True) for row in rows.collect()]
