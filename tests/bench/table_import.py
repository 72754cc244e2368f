"""Measures how many rows a second `geminga import --from-table` publishes to a broker.

    python -m tests.bench.table_import [--rows 1000000] [--folder FOLDER]

The table has five columns: two whole numbers, a real number, a text and a time.  The broker is one of this checkout
with a folder of its own; each import goes to a topic of its own.

    json, avro      without a key
    sorted key      json, ten rows with the same key one behind the other
    mixed key       json, no neighbours with the same key, so that each row is an entry
"""
import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..harness import COMMAND, Broker

KINDS = {"json": (), "avro": ("--schema-type", "avro"), "sorted key": ("--key-column", "number"),
         "mixed key": ("--key-column", "other")}


def write(path: Path, rows: int) -> None:
    numbers = np.arange(rows)
    pq.write_table(pa.table({
        "number": numbers // 10, "other": numbers % 1_000, "price": numbers / 7,
        "name": pa.array([f"name {number % 5_000}" for number in range(rows)]),
        "at": pa.array(numbers * 1_000, pa.timestamp("us", "UTC"))}), path)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.table_import", description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="table-import-", dir=options.folder) as folder:
        path, broker = Path(folder) / "table.parquet", Broker(Path(folder) / "data").start()
        try:
            write(path, options.rows)
            print("| table | rows/s |\n|---|--:|", flush=True)
            for number, (kind, words) in enumerate(KINDS.items()):
                done = subprocess.run([
                    COMMAND[0], "import", "--url", broker.service_url, "--admin-url", broker.http_url, "--from-table",
                    str(path), *words, "-o", "jsonl", f"topic{number}"], capture_output=True, check=True, text=True)
                row = json.loads(done.stdout)
                print(f"| {kind} | {row['rows'] / row['seconds']:,.0f} |", flush=True)
        finally:
            broker.close()


if __name__ == "__main__":
    main()
