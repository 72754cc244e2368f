#!/bin/sh
# fastparquet 2026.9.0 reads the date 0001-01-01 as 1754-08-30, and 9999-12-31 as 1816-03-29, without a word.
#
# Parquet's type DATE is a number of days, which holds both.  fastparquet makes nanoseconds of it, 64 bits, which end in
# 1677 and 2262, and lets them wrap around.  "No end" is often written as 9999-12-31.  PyArrow reads what it wrote.
#
# Exit status 0: it still does.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check fastparquet==2026.9.0 pandas==2.3.3 pyarrow==26.0.1
"$folder/venv/bin/python" - "$folder/dates.parquet" <<'PROGRAM'
import datetime
import sys

import fastparquet
import pyarrow
import pyarrow.parquet as pq

path, written = sys.argv[1], [datetime.date(2024, 2, 29), datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]
pq.write_table(pyarrow.table({"day": written}), path)
seen = [moment.date() for moment in fastparquet.ParquetFile(path).to_pandas()["day"]]
print(f"fastparquet {fastparquet.__version__}, PyArrow {pyarrow.__version__}")
for expected, day, arrow in zip(written, seen, pq.read_table(path)["day"].to_pylist()):
    print(f"expected {expected}; seen {day} (PyArrow: {arrow})")
sys.exit(not (seen[0] == written[0] and seen[1].year == 1754 and seen[2].year == 1816))
PROGRAM
