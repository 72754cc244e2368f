"""Measures how many messages a second are read from ledgers: by reading.batches in this process, and by Spark.

    python tests/bench/source.py [--messages 2000000] [--size 100] [--keep FOLDER] [--kinds "unbatched;..."]

Messages have a key out of a million and a payload of `size` bytes: each by itself, or 100 to a batch, plain and
compressed.

    all         every column; CPU seconds of this process, so that other work on the machine matters less
    scan        the columns that compaction reads, in CPU seconds too
    Spark       every column to the JVM, and a sum over two; by the clock, with local[1], where the JVM and Python's
                worker overlap
    few         four columns to the JVM: key, payload, its size, message index

The rows of Spark also give microseconds of CPU a message: of Python's processes + of the JVM's.  A query that reads
nothing is measured first and subtracted, as it costs the same for any number of messages.  Figures are medians of three
rounds.
"""

import argparse
import contextlib
import os
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage import format
from geminga.storage.catalogue import catalogue
from geminga.storage.jobs import confirmed, reading
from geminga.storage.jobs.message_columns import SCHEMA

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.storage.jobs.topics import Message, Topic, batch, single

FEW = "key,payload,payload_size,message_index"
SCAN = "key", "message_index", "payload_size", "null_value", "is_encrypted", "chunks"
KINDS = {"unbatched": (1, api.NONE), "unbatched, LZ4": (1, api.LZ4), "100 to a batch": (100, api.NONE),
         **{f"100 to a batch, {name}": (100, codec) for name, codec in api.CompressionType.items()
            if codec != api.NONE}}
_REPEATED = 50_000      # messages that are made one by one, and written over and over
_ROUNDS = 3


def fill(data_dir: Path, number: int, together: int, codec: int, messages: int, size: int) -> Topic:
    kept = catalogue.open_catalogue(data_dir / "catalogue.sqlite")
    name = names.parse(f"read-{number}")
    kept.topics.create(name, 0)
    topic = Topic(data_dir, kept.partitions.create(name))
    kept.commit()
    kept.close()
    made, rng = [], random.Random(number)
    words = [rng.randbytes(8) for _ in range(50)]      # compresses to a half or so, as records do
    for _ in range(_REPEATED):
        payload = b"".join(rng.choices(words, k=-(-size // 8)))[:size]
        made.append(Message(f"key-{rng.randrange(1_000_000)}", payload))
    more = {"producer_name": "standalone-0-7", "sequence_id": 123_456}
    entries = [single(one, codec, **more) if together == 1 else batch(made[at:at + together], codec, **more)
               for at, one in enumerate(made) if at % together == 0]
    for one in entries:
        topic.add(one)
    rows = topic.ledger.index[:len(entries)].copy()
    span = int(rows["offset"][-1]) + int(rows["size"][-1]) - int(rows["offset"][0])
    joined = b"".join(entries)
    while topic.next_message < messages:
        rows["offset"] += np.uint64(span)
        rows["message_index"] += np.uint64(_REPEATED)
        topic.add_rows(rows, [joined])
    topic.roll()
    return topic


def read(topic: Topic, columns) -> float:
    """Return the nanoseconds of CPU for a message."""
    def once() -> float:
        began, count = time.process_time(), 0
        for stretch in confirmed.stretches(topic.data_dir, topic.partition_id):
            for found in reading.batches(topic.data_dir, stretch, columns, print):
                count += found.num_rows
        assert count == topic.next_message, (count, topic.next_message)
        return (time.process_time() - began) / count * 1e9
    return statistics.median(once() for _ in range(_ROUNDS))


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of CPU in all, or for a message."""

    clock: float
    python: float
    java: float

    @classmethod
    def now(cls) -> "Spent":
        own, below = psutil.Process(), {"java": 0.0, "python": 0.0}
        for process in own.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                below["java" if "java" in process.name() else "python"] += sum(process.cpu_times()[:2])
        return cls(time.perf_counter(), below["python"], below["java"])

    def since(self, before: "Spent") -> "Spent":
        return Spent(self.clock - before.clock, self.python - before.python, self.java - before.java)

    def each(self, count: int, without: "Spent") -> str:
        own = self.since(without)
        return f"{count / own.clock:,.0f} ({own.python / count * 1e6:.2f} + {own.java / count * 1e6:.2f})"


def by_spark(spark, topic: Topic, number: int, **options: str) -> Spent:
    def once() -> Spent:
        frame = (
            spark.read.format("geminga").options(data_dir=str(topic.data_dir), topic=f"read-{number}", **options).load()
        )
        began = Spent.now()
        total, last = frame.selectExpr("sum(payload_size)", "max(message_index)").collect()[0]
        assert (last, total is not None) == ((None, False) if "from_position" in options
                                             else (topic.next_message - 1, True))
        return Spent.now().since(began)
    rounds = [once() for _ in range(_ROUNDS)]
    return Spent(*(statistics.median(getattr(one, name) for one in rounds) for name in Spent.__dataclass_fields__))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--kinds", default=";".join(KINDS), help="names with ; between")
    options = parser.parse_args()
    from pyspark.sql import SparkSession

    from geminga.storage.jobs import source
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    source.register(spark)
    nothing = None
    with tempfile.TemporaryDirectory() as scratch:
        data_dir = options.keep or Path(scratch)
        for number, (kind, (together, codec)) in enumerate(KINDS.items()):
            if kind not in options.kinds.split(";"):
                continue
            topic = fill(data_dir, number, together, codec, options.messages, options.size)
            if nothing is None:
                by_spark(spark, topic, number)      # the first run lets the JVM compile its code
                nothing = by_spark(spark, topic, number, from_position=f"{topic.next_ledger}:0")
                print(f"a query of nothing: {nothing.clock:.2f} s, {nothing.python:.2f} + {nothing.java:.2f} s of "
                      "CPU\n\n"
                      "| messages/s a core | all | scan | Spark | few |\n|---|--:|--:|--:|--:|", flush=True)
            figures = [f"{1e9 / read(topic, columns):,.0f}" for columns in (SCHEMA.names, SCAN)]
            figures += [by_spark(spark, topic, number, **few).each(topic.next_message, nothing)
                        for few in ({}, {"columns": FEW})]
            print(f"| {kind} | {' | '.join(figures)} |", flush=True)
            for path in format.partition_folder(data_dir, topic.partition_id).glob("*.ledger"):
                path.unlink()
    spark.stop()


if __name__ == "__main__":
    main()
