#!/bin/sh
# Spark 4.3.0 loses rows with NaN from a Parquet file of PyArrow, unless its filters are not pushed down.
#
# In Spark NaN is larger than any other value: `value > 0` holds for it, as Spark's own documentation says.  Parquet's
# specification forbids NaN in the statistics of a column and has readers assume that NaN may be there.  PyArrow
# writes such a file.  Spark passes over its only row group, as the largest value of the statistics is 0.
#
# Exit status 0: it still does.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pyspark==4.3.0 pyarrow==26.0.1
cat > "$folder/ask.py" <<'PROGRAM'
import math
import sys

import pyarrow
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

path = sys.argv[1]
pq.write_table(pyarrow.table({"id": [1, 2], "value": [0.0, math.nan]}), path)
statistics = pq.read_metadata(path).row_group(0).column(1).statistics
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config(
    "spark.ui.showConsoleProgress", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
print(f"Spark {spark.version}, PyArrow {pyarrow.__version__}; statistics {statistics.min} to {statistics.max}")
changed = False
for where in ("value > 0", "value = double('NaN')"):
    answers = []
    for pushdown in ("false", "true"):
        spark.conf.set("spark.sql.parquet.filterPushdown", pushdown)
        answers.append([row.id for row in spark.read.parquet(path).where(where).collect()])
    print(f"{where}: expected ids [2]; seen {answers[0]} without pushdown, and {answers[1]} with it, the default")
    changed |= answers != [[2], []]
sys.exit(changed)
PROGRAM
"$folder/venv/bin/python" "$folder/ask.py" "$folder/nan.parquet" 2>/dev/null
