#!/bin/sh
# fastparquet 2026.9.0 fails for whole numbers with nulls if their column stands behind a map in the file.
#
# The same column in front of the map is read as 5, <NA>, 7.  Behind it the read raises TypeError: int() argument must be
# ... not 'NAType', also if no other column is asked for.  A map is two columns in the file, and the statistics of another
# column seem to tell whether there are nulls.
#
# Exit status 0: it still does.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check fastparquet==2026.9.0 pandas==2.3.3 pyarrow==26.0.1
"$folder/venv/bin/python" - "$folder/numbers.parquet" <<'PROGRAM'
import sys

import fastparquet
import pyarrow
import pyarrow.parquet as pq

numbers = pyarrow.array([5, None, 7])
pairs = pyarrow.array([[("a", "1")]] * 3, pyarrow.map_(pyarrow.string(), pyarrow.string()))
rows = pyarrow.table({"before": numbers, "pairs": pairs, "id": [0, 1, 2], "behind": numbers})
pq.write_table(rows, sys.argv[1])
print(f"fastparquet {fastparquet.__version__}, PyArrow {pyarrow.__version__}")
seen = []
for column in ("before", "behind"):
    try:
        answer = fastparquet.ParquetFile(sys.argv[1]).to_pandas(columns=[column])[column].tolist()
    except TypeError as error:
        answer = f"TypeError: {error}"
    print(f"{column} the map: expected 5, a null and 7; seen {answer}")
    seen.append(str(answer).startswith("TypeError"))
sys.exit(seen != [False, True])
PROGRAM
