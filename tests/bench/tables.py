"""Measures exports: messages a second from ledgers into Parquet files, in one process and by Spark.

    python -m tests.bench.tables [--messages 10000000] [--raw] [--batch 1] [--no-spark] [--iceberg] [--folder DIR]

The messages are JSON with five fields of a schema, or with --raw 100 bytes without one.  The storage's own code writes
the topic into a folder that is removed afterwards.  Times are of the export alone; Spark's start is told beside.
Memory is the peak of the sum over all processes.
"""
import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np

from geminga.storage.jobs.compacting.engines import LocalEngine, Spark
from geminga.storage.tables import exports, iceberg
from geminga.storage.tables.commits import MESSAGES

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.storage.jobs.topics import Message, Topic, batch, single
from tests.storage.tables.iceberg_tables import PACKAGE
from tests.storage.tables.lake import Lake

from .compaction import Memory, append

REPEATED = 100_000           # messages that differ; the topic has them again and again
SCHEMA = {"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": "long"}, {"name": "customer", "type": ["null", "string"], "default": None},
    {"name": "price", "type": "double"}, {"name": "city", "type": "string"}, {"name": "paid", "type": "boolean"}]}
CITIES = "Amsterdam", "Bonn", "Córdoba", "Dakar", "Essen"


def payloads(is_raw: bool) -> list[bytes]:
    if is_raw:
        random = np.random.default_rng(1)
        return [one.tobytes() for one in np.frombuffer(random.bytes(REPEATED * 100), np.uint8).reshape(-1, 100)]
    return [json.dumps({"id": number, "customer": f"customer-{number % 5_000}", "price": number / 8,
                        "city": CITIES[number % 5], "paid": number % 3 == 0}).encode() for number in range(REPEATED)]


def write_topic(topic: Topic, messages: int, size: int, bodies: list[bytes], version: bytes | None) -> None:
    """Append messages to a topic, `size` of them to an entry."""
    more = {} if version is None else {"schema_version": version}
    made = [Message(f"k{number % 10_000}", body) for number, body in enumerate(bodies)]
    if size == 1:
        entries = [single(one, **more) for one in made]
    else:
        entries = [batch(made[at:at + size], **more) for at in range(0, len(made), size)]
    for _ in range(messages // REPEATED):
        append(topic, entries, size)
    topic.ledger.write_header()
    os.sync()


def measured(name: str, lake: Lake, engine, open_table=None) -> None:
    shutil.rmtree(lake.target, ignore_errors=True)
    if open_table is not None:
        lake.open_table = open_table
    memory = Memory()
    memory.start()
    started = time.monotonic()
    [report] = lake.export(MESSAGES, engine)
    seconds = time.monotonic() - started
    memory.is_over.set()
    memory.join()
    assert report["outcome"] == exports.EXPORTED, report
    print(f"{name}: {seconds:.1f} s, {report['rows'] / seconds / 1e3:,.0f} thousand messages a second, PSS "
          f"{memory.pss >> 20} MiB at most; {report['files']} files of {report['bytes'] >> 20} MiB; load average "
          f"{os.getloadavg()[0]:.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.tables", description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--folder", type=Path)
    for name in ("raw", "no-spark", "iceberg"):
        parser.add_argument(f"--{name}", action="store_true")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="tables-", dir=options.folder))
    try:
        lake = Lake(folder)
        [topic] = lake.topic()
        version = None if options.raw else lake.schema(SCHEMA)
        write_topic(topic, options.messages, options.batch, payloads(options.raw), version)
        size = sum(path.stat().st_size for path in topic.folder.glob("*.ledger"))
        kind = "100 bytes" if options.raw else "JSON with 5 fields"
        print(f"{options.messages:,} messages of {kind}, {options.batch} an entry, {size >> 20} MiB of ledgers; "
              f"{os.cpu_count()} cores", flush=True)
        measured("one process", lake, LocalEngine())
        if not options.no_spark:
            started = time.monotonic()
            engine = Spark(folder / "scratch", options.master,
                           settings={"spark.jars.packages": PACKAGE} if options.iceberg else {})
            print(f"Spark has started after {time.monotonic() - started:.1f} s", flush=True)
            measured("Spark", lake, engine)
            if options.iceberg:
                catalog = iceberg.Catalog(engine.context, str(folder / "warehouse"))
                measured("Spark, to Iceberg", lake, engine, partial(iceberg.IcebergTable, catalog, broker="us"))
            engine.close()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()

