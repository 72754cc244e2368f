"""Measures what a second night reads after a few keys have changed, against the first night of the same topic.

    python -m tests.bench.second_night [--messages 2000000] [--keys 0] [--batch 1] [--changed 0.01] [--nights 1]
                                       [--event-time] [--open] [--spark]

Each night is a process of its own.  Two figures are given of it:

    read          bytes that the job asked for, as its report says: entries as often as they were read, index rows,
                  hashes of keys, masks
    from disk     bytes that came from the disk (`read_bytes` of /proc/self/io), after all files were dropped from the
                  kernel's cache.  What a night reads twice counts once if memory holds it.  Whole pages count, and what
                  the kernel reads ahead.  With --spark this is not that of Spark's workers

With --open the changed messages go on in the ledger that was open when the first night ran.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from geminga.proto import pulsar_api_pb2 as api

from ..storage.jobs.topics import Message, Topic
from .compaction import KEY_DIGITS, PAYLOAD, write_topic

_NIGHT = """
import json, sys, time
from pathlib import Path
from geminga.storage.jobs.compacting import engines, nightly
from tests.storage.jobs.topics import adopt_here
data_dir, by_event_time, spark = Path(sys.argv[1]), bool(int(sys.argv[2])), bool(int(sys.argv[3]))
def from_disk():
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("read_bytes")).split()[1])
engine = engines.Spark(data_dir / "spark") if spark else engines.LocalEngine()
target = nightly.Target(7, "t", by_event_time=by_event_time)
before, started = from_disk(), time.monotonic()
report = nightly.compact(data_dir, target, adopt_here(data_dir), engine)
print(json.dumps({"seconds": time.monotonic() - started, "from_disk": from_disk() - before, "read": report.bytes_read,
                  "kept": report.messages_out, "outcome": report.outcome, "error": report.error,
                  "damage": report.damage, "bytes_out": report.bytes_out}))
engine.close()
"""


def drop_cached(folder: Path) -> None:
    """Have the kernel forget the contents of all files of a folder, after they were written."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def night(topic: Topic, *, by_event_time: bool, spark: bool) -> dict:
    topic.ledger.checkpoint()
    drop_cached(topic.data_dir)
    command = [sys.executable, "-c", _NIGHT, str(topic.data_dir), str(int(by_event_time)), str(int(spark))]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["outcome"] == "compacted" and not found["damage"], found
    return found


def change(topic: Topic, numbers: list[int], batch: int, event_time: int) -> None:
    """Publish a new value for each of these keys."""
    messages = [Message(f"{number:0{KEY_DIGITS}}", b"y" * PAYLOAD, event_time=event_time) for number in numbers]
    for first in range(0, len(messages), batch):
        if batch == 1:
            topic.publish(messages[first])
        else:
            topic.publish_batch(messages[first:first + batch])
    topic.ledger.write_header()


def shown(name: str, found: dict, first: dict) -> None:
    print(f"{name}: read {found['read'] / 2**20:,.1f} MiB ({100 * found['read'] / first['read']:.1f} %), "
          f"from disk {found['from_disk'] / 2**20:,.1f} MiB "
          f"({100 * found['from_disk'] / max(1, first['from_disk']):.1f} %), {found['seconds']:.2f} s "
          f"({100 * found['seconds'] / first['seconds']:.1f} %); {found['kept']:,} messages in "
          f"{found['bytes_out'] / 2**20:,.0f} MiB are left; load average {os.getloadavg()[0]:.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.second_night", description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--keys", type=int, default=0, help="0: each message has its own")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--changed", type=float, default=0.01, help="share of the keys")
    parser.add_argument("--nights", type=int, default=1, help="further nights, each after as many changes")
    parser.add_argument("--folder", type=Path)
    for name in ("event-time", "open", "spark"):
        parser.add_argument(f"--{name}", action="store_true")
    options = parser.parse_args()
    data_dir, random = Path(tempfile.mkdtemp(prefix="second-night-", dir=options.folder)), np.random.default_rng(2)
    try:
        started = time.monotonic()
        topic = write_topic(data_dir, options.messages, options.keys, options.batch, api.NONE)
        keys = options.keys or options.messages
        size = sum(path.stat().st_size for path in topic.folder.iterdir())
        print(f"{options.messages:,} messages, {keys:,} keys, {options.batch} an entry, {size >> 20} MiB in "
              f"{len(list(topic.folder.glob('*.ledger')))} ledgers, written in {time.monotonic() - started:.0f} s",
              flush=True)
        how = {"by_event_time": options.event_time, "spark": options.spark}
        first = night(topic, **how)
        shown("first night", first, first)
        for number in range(options.nights):
            if not options.open:
                topic.roll()
            some = random.choice(keys, round(options.changed * keys), replace=False).tolist()
            change(topic, some, options.batch, 1_000 + number)
            shown(f"night {number + 2}, {len(some):,} keys changed", night(topic, **how), first)
    finally:
        shutil.rmtree(data_dir)


if __name__ == "__main__":
    main()
