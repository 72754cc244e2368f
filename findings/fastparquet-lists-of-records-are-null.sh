#!/bin/sh
# fastparquet 2026.9.0 reads a column of lists of records as null in every row, and says that a column of records is not there.
#
# The file of PyArrow is valid: the column has three lists, of which one is empty.  A program that reads it with
# fastparquet finds a column of this name, of the right length, without any value, and no warning.
#
# Exit status 0: it still does.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check fastparquet==2026.9.0 pandas==2.3.3 pyarrow==26.0.1
"$folder/venv/bin/python" - "$folder/lists.parquet" <<'PROGRAM'
import sys
import warnings

import fastparquet
import pyarrow
import pyarrow.parquet as pq

path, written = sys.argv[1], [[{"n": 1}, {"n": 2}], [], [{"n": 3}]]
pq.write_table(pyarrow.table({"id": [0, 1, 2], "items": written, "inner": [{"x": 1}, {"x": 2}, {"x": 3}]}), path)
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    file = fastparquet.ParquetFile(path)
    seen = file.to_pandas(columns=["id", "items"])["items"].tolist()
print(f"fastparquet {fastparquet.__version__}, PyArrow {pyarrow.__version__}")
print(f"items: expected {written}; seen {seen}, and {len(warned)} warnings")
print(f"columns: expected id, items, inner; seen {', '.join(file.columns)}")
sys.exit(seen != [None, None, None] or "inner" in file.columns)
PROGRAM
