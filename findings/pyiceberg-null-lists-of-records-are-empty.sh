#!/bin/sh
# pyiceberg 0.12.0 reads a list of records that is null as an empty list.
#
# A table of Iceberg has two columns that may be null: a list of whole numbers, and a list of records.  Arrow has written
# its Parquet file with a null in both.  Arrow and the column of whole numbers give the null back; the column of records
# gives [], which is another value.
#
# Exit status 0: it still does.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "pyiceberg[sql-sqlite]==0.12.0" pyarrow==26.0.1
cd "$folder"
"$folder/venv/bin/python" - <<'PROGRAM'
import importlib.metadata
import os
import sys

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.memory import InMemoryCatalog

print(*(f"{name} {importlib.metadata.version(name)}" for name in ("pyiceberg", "pyarrow")))
rows = pa.table({
    "numbers": pa.array([[1], [], None], pa.list_(pa.int32())),
    "records": pa.array([[{"n": 1}], [], None], pa.list_(pa.struct([("n", pa.int32())]))),
})
pq.write_table(rows, "rows.parquet")
catalog = InMemoryCatalog("lab", warehouse=os.getcwd())
catalog.create_namespace("lab")
table = catalog.create_table("lab.t", rows.schema)
table.add_files([os.path.abspath("rows.parquet")])
read = table.scan().to_arrow()
print("Arrow:", pq.read_table("rows.parquet")["records"].to_pylist())
for column in ("numbers", "records"):
    print(f"{column}: expected {rows[column].to_pylist()}; seen {read[column].to_pylist()}")
sys.exit(read["numbers"].to_pylist()[2] is not None or read["records"].to_pylist()[2] != [])
PROGRAM
