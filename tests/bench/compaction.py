"""Measures time and memory of a compaction: by Spark, in one process, and by a plain loop over the same topic.

    python -m tests.bench.compaction [--messages 10000000] [--keys 1000000] [--batch 100] [--codec NONE] [--loop]
                                     [--here] [--pulsar http://127.0.0.1:18080 pulsar://127.0.0.1:16650]
                                     [--cluster 4] [--held 0.5]

The storage's own code writes the topic into a folder that is removed afterwards.  Memory is the peak of the sum over
all processes of the job, looked at ten times a second: their USS, and their PSS, which has shares of mapped files.

--pulsar has a broker of Apache Pulsar, or any other, compact the same messages; the clock runs from the request to the
end of its own compaction, and for Spark from before the start of its processes.  --cluster compares Spark's rate with
one worker and with so many, each held to a part of a core (--held) by a control group, which takes root; the driver is
not held.
"""

import argparse
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from itertools import groupby
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import psutil
from crc32c import crc32c

from geminga.proto import compression, sends
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage import format
from geminga.storage.disk import files
from geminga.storage.jobs import confirmed
from geminga.storage.jobs.compacting import engines, nightly

sys.path.insert(0, str(Path(__file__).parent))
from link import ANSWER_MAX_S, Link, Load

from geminga.supervisor.load import wire

from ..storage.jobs.topics import NOW_MS, Topic, metadata_of, sealed
from . import held

PAYLOAD, KEY_DIGITS = 100, 9
_STEP = 1_000_003           # a prime: its multiples come in no order
LEDGER_BYTES, LEDGER_ENTRIES = 64 << 20, 1_000_000
UNANSWERED_MAX = 5_000      # entries


def write_topic(data_dir: Path, messages: int, keys: int, batch: int, codec: int) -> Topic:
    """Write a topic with random keys; with keys 0 each message has a key of its own, in no order.

    With batch 1 each message is an entry of its own.
    """
    topic, random = Topic(data_dir), np.random.default_rng(1)
    chunk = 100_000 // batch * batch
    for first in range(0, messages, chunk):
        count = min(chunk, messages - first)
        chosen = random.integers(0, keys, count) if keys else np.arange(first, first + count) * _STEP % messages
        digits = (chosen[:, None] // 10 ** np.arange(KEY_DIGITS - 1, -1, -1) % 10 + ord("0")).astype(np.uint8)
        payloads = np.frombuffer(random.bytes(count * PAYLOAD), np.uint8).reshape(count, PAYLOAD) % 16 + ord("a")
        entries = _batches(digits, payloads, batch, codec) if batch > 1 else _singles(digits, payloads)
        append(topic, entries, batch)
    topic.ledger.write_header()
    os.sync()
    return topic


def append(topic: Topic, entries: list[bytes], batch: int) -> None:
    """Append entries with so many messages each to a topic, and begin a new ledger after a full one."""
    rows = np.zeros(len(entries), format.INDEX_ROW)
    sizes = np.array([len(entry) for entry in entries])
    rows["offset"] = topic.ledger.size + np.cumsum(sizes) - sizes
    rows["size"], rows["messages"], rows["publish_time"], rows["broker_time"] = sizes, batch, NOW_MS, NOW_MS
    rows["flags"] = sends.KEPT_CHECKSUM | (sends.IS_BATCH if batch > 1 else sends.HAS_KEY)
    rows["message_index"] = topic.next_message + np.arange(len(entries)) * batch
    rows["crc32c"] = [int.from_bytes(entry[2:6], "big") for entry in entries]
    topic.add_rows(rows, entries)
    if topic.ledger.size > LEDGER_BYTES or topic.ledger.entries > LEDGER_ENTRIES:
        topic.roll()


def _singles(digits, payloads) -> list[bytes]:
    template = sealed(metadata_of(partition_key="0" * KEY_DIGITS), bytes(PAYLOAD))
    at = template.index(b"0" * KEY_DIGITS)
    block = np.tile(np.frombuffer(template, np.uint8), (len(digits), 1))
    block[:, at:at + KEY_DIGITS], block[:, -PAYLOAD:] = digits, payloads
    return [b"\x0e\x01" + struct.pack(">I", crc32c(row[6:])) + row[6:] for row in map(bytes, block)]


def _batches(digits, payloads, batch: int, codec: int) -> list[bytes]:
    one = api.SingleMessageMetadata(partition_key="0" * KEY_DIGITS, payload_size=PAYLOAD,
                                    sequence_id=1).SerializeToString()
    template = struct.pack(">I", len(one)) + one + bytes(PAYLOAD)
    at = template.index(b"0" * KEY_DIGITS)
    block = np.tile(np.frombuffer(template, np.uint8), (len(digits), 1))
    block[:, at:at + KEY_DIGITS], block[:, -PAYLOAD:] = digits, payloads
    bodies = [bytes(body) for body in block.reshape(-1, batch * len(template))]
    return [sealed(metadata_of(codec, len(body), num_messages_in_batch=batch), compression.compress(codec, body))
            for body in bodies]


def published(service_url: str, topic: Topic, name: str) -> None:
    """Publish the same entries to a topic of another broker, as fast as one connection goes."""
    address = urlsplit(service_url)
    link = Link(Load(address.hostname, address.port, (name,)))
    link.find(name)
    link.ask(f"producer on {name}", wire.producer(name, wire.ID_FIRST, link.request_id(), f"{name}-bench"),
             wire.PRODUCER_SUCCESS)
    sent = answered = 0
    for stretch in confirmed.stretches(topic.data_dir, topic.partition_id, size_max=1 << 20):
        rows = confirmed.confirmed_rows(topic.folder, topic.partition_id, stretch.ledger_id)[stretch.first:stretch.end]
        data = memoryview(files.map_file(format.ledger_path(topic.folder, stretch.ledger_id), writable=False))
        columns = (rows[column].tolist() for column in ("offset", "size", "messages"))
        link.put(b"".join(
            wire.frame(wire.SEND, wire.number(1, wire.ID_FIRST) + wire.number(2, number) + wire.number(3, count),
                       data[at:at + size])
            for number, (at, size, count) in enumerate(zip(*columns, strict=True), sent)))
        sent += len(rows)
        while link.outbox or sent - answered > UNANSWERED_MAX:
            answered += _receipts(link)
    while answered < sent:
        answered += _receipts(link)
    link.socket.close()


def _receipts(link: Link) -> int:
    starts = link.receive(ANSWER_MAX_S)
    is_receipt = link.data[starts + wire.KIND_AT] == wire.SEND_RECEIPT
    for start in starts[~is_receipt]:
        link.meet(int(start), "publishing")
    return int(np.count_nonzero(is_receipt))


def compacted_by(http_url: str, name: str) -> str:
    """Ask that broker for its own compaction, and wait for the end."""
    path = f"{http_url}/admin/v2/{name.replace('://', '/')}/compaction"
    urllib.request.urlopen(urllib.request.Request(path, method="PUT")).close()
    while True:
        with urllib.request.urlopen(path) as answer:
            status = json.load(answer)
        if status["status"] != "RUNNING":
            return str(status)
        time.sleep(0.2)


class Memory(threading.Thread):
    """The peak memory of this process and all below it."""

    def __init__(self):
        super().__init__(daemon=True)
        self.uss = self.pss = 0
        self.is_over = threading.Event()

    def run(self) -> None:
        me = psutil.Process()
        while not self.is_over.wait(0.1):
            uss = pss = 0
            for process in [me, *me.children(recursive=True)]:
                try:
                    found = process.memory_full_info()
                    uss, pss = uss + found.uss, pss + found.pss
                except psutil.Error:
                    continue
            self.uss, self.pss = max(self.uss, uss), max(self.pss, pss)


def plain_loop(topic: Topic) -> int:
    """Compact by hand: a dictionary of keys, one entry at a time, read by the library; return how many keys are left.
    """
    newest: dict[str, tuple[int, int, int]] = {}
    for stretch in confirmed.stretches(topic.data_dir, topic.partition_id):
        rows = confirmed.confirmed_rows(topic.folder, topic.partition_id, stretch.ledger_id)
        with open(format.ledger_path(topic.folder, stretch.ledger_id), "rb") as file:
            for entry_id in range(stretch.first, stretch.end):
                row = rows[entry_id]
                file.seek(int(row["offset"]))
                entry = file.read(int(row["size"]))
                if crc32c(entry[6:]) != int.from_bytes(entry[2:6], "big"):
                    continue
                end = 10 + struct.unpack_from(">I", entry, 6)[0]
                metadata = api.MessageMetadata.FromString(entry[10:end])
                if not metadata.HasField("num_messages_in_batch"):
                    newest[metadata.partition_key] = stretch.ledger_id, entry_id, -1
                    continue
                body, at = (
                    bytes(compression.decompress(metadata.compression, entry[end:], metadata.uncompressed_size)),
                    0,
                )
                for index in range(metadata.num_messages_in_batch):
                    size = struct.unpack_from(">I", body, at)[0]
                    one = api.SingleMessageMetadata.FromString(body[at + 4:at + 4 + size])
                    at += 4 + size + one.payload_size
                    newest[one.partition_key] = stretch.ledger_id, entry_id, index
    with open(topic.data_dir / "loop", "wb") as out:      # each remaining entry is written once, as a whole
        for (ledger_id, entry_id), _ in groupby(sorted(newest.values()), key=lambda place: place[:2]):
            row = confirmed.confirmed_rows(topic.folder, topic.partition_id, ledger_id)[entry_id]
            with open(format.ledger_path(topic.folder, ledger_id), "rb") as file:
                out.write(os.pread(file.fileno(), int(row["size"]), int(row["offset"])))
    return len(newest)


def measured(name: str, messages: int, work) -> tuple[str, float, str]:
    """Do the work, tell what it took, and return (name, seconds, what it found)."""
    memory, started, cpu = Memory(), time.monotonic(), time.process_time()
    memory.start()
    found = work()
    seconds = time.monotonic() - started
    memory.is_over.set()
    memory.join()
    print(
        f"{name}: {seconds:.1f} s, {messages / seconds / 1e6:.2f} million messages a second, "
        f"USS {memory.uss >> 20} MiB, PSS {memory.pss >> 20} MiB at most, "
        f"{time.process_time() - cpu:.1f} s of CPU in this process; {found}; "
        f"load average {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    return name, seconds, str(found)


def table(messages: int, rows: list[tuple[str, float, str]]) -> str:
    """Return a table of what was measured, with the ratio of each rate to the first."""
    lines = ["", "| compacted by | seconds by the clock | million messages a second | to the first |",
             "|---|---:|---:|---:|"]
    for name, seconds, _ in rows:
        lines.append(f"| {name} | {seconds:.1f} | {messages / seconds / 1e6:.3f} | {rows[0][1] / seconds:.2f} |")
    return "\n".join(lines)


def by_clusters(topic: Topic, messages: int, workers: int, cores: float, memory: str) -> str:
    """Compact by one worker, then by several, each held to a part of a core; return a table.

    The job's clock begins when the executors have started.  Memory is not looked at: looking takes a quarter of a core.
    """
    lines = ["", "| workers | seconds by the job's clock | million messages a second | seconds with Spark's start |",
             "|---:|---:|---:|---:|"]
    jobs: list[float] = []
    for count in (1, workers):
        with (tempfile.TemporaryDirectory(prefix="cluster-") as folder,
              held.cluster(Path(folder), count, cores) as master):
            started = time.monotonic()
            found = by_spark(topic, master, memory)
            seconds = time.monotonic() - started
        print(f"{count} of {cores:g} cores: {seconds:.1f} s; {found}; load average {os.getloadavg()[0]:.1f}",
              flush=True)
        jobs.append(float(re.search(r"([0-9.]+) s by the job's clock", found)[1]))
        lines.append(f"| {count} | {jobs[-1]:.1f} | {messages / jobs[-1] / 1e6:.3f} | {seconds:.1f} |")
    return "\n".join([*lines, "", f"{workers} workers to one: {jobs[0] / jobs[-1]:.2f}"])


def by_spark(topic: Topic, master: str, memory: str) -> str:
    command = [sys.executable, "-c", _SPARK, str(topic.data_dir), master, memory]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.compaction", description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--keys", type=int, default=1_000_000, help="0: each message has its own")
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--codec", choices=list(api.CompressionType.keys()), default="NONE")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--memory", default="640m")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--pulsar", nargs=2, metavar=("HTTP", "SERVICE"), help="another broker, to compare with")
    parser.add_argument("--cluster", type=int, metavar="N", help="compare one worker with so many, and nothing else")
    parser.add_argument("--held", type=float, default=0.5, metavar="CORES", help="to which each of them is held")
    for name in ("loop", "here", "no-spark"):
        parser.add_argument(f"--{name}", action="store_true")
    options = parser.parse_args()
    data_dir, rows = Path(tempfile.mkdtemp(prefix="compaction-", dir=options.folder)), []
    try:
        started = time.monotonic()
        topic = write_topic(data_dir, options.messages, options.keys, options.batch,
                            api.CompressionType.Value(options.codec))
        size = sum(path.stat().st_size for path in topic.folder.glob("*.ledger"))
        print(f"{options.messages:,} messages, {options.keys or options.messages:,} keys, {options.batch} an entry, "
              f"{options.codec}, "
              f"{size >> 20} MiB in {len(list(topic.folder.glob('*.ledger')))} ledgers, written in "
              f"{time.monotonic() - started:.0f} s; "
              f"{os.cpu_count()} cores", flush=True)
        if options.cluster:
            print(by_clusters(topic, options.messages, options.cluster, options.held, options.memory), flush=True)
            return
        if options.pulsar:
            http_url, service_url = options.pulsar
            name = f"persistent://public/default/compaction-{time.time_ns()}"
            started = time.monotonic()
            published(service_url, topic, name)
            print(f"published there in {time.monotonic() - started:.0f} s", flush=True)
            rows.append(measured("that broker (its memory is not looked at)", options.messages,
                                 lambda: compacted_by(http_url, name)))
            path = f"{http_url}/admin/v2/{name.replace('://', '/')}?force=true"
            urllib.request.urlopen(urllib.request.Request(path, method="DELETE")).close()
        if options.loop:
            rows.append(measured("a plain loop", options.messages, lambda: plain_loop(topic)))
        if options.here:
            rows.append(measured("one process", options.messages, lambda: compacted(topic, engines.LocalEngine())))
        if not options.no_spark:
            rows.append(measured("Spark, with its start", options.messages,
                                 lambda: by_spark(topic, options.master, options.memory)))
        print(table(options.messages, rows), flush=True)
    finally:
        shutil.rmtree(data_dir)


def compacted(topic: Topic, engine) -> str:
    return told(nightly.compact(topic.data_dir, topic.target, lambda *_: "measured only", engine))


def told(report: nightly.PartitionReport) -> str:
    return (f"{report.keys:,} keys, {report.entries_out:,} entries with {report.messages_out:,} messages left, "
            f"{report.bytes_in >> 20} -> {report.bytes_out >> 20} MiB, {report.seconds:.1f} s by the job's clock; "
            f"{report.error}")


_SPARK = """
import sys
from pathlib import Path
from geminga.storage.jobs.compacting import engines, nightly
data_dir = Path(sys.argv[1])
engine = engines.Spark(data_dir / "nightly" / "spark", sys.argv[2], sys.argv[3])
report = nightly.compact(data_dir, nightly.Target(7, "t"), lambda *_: "measured only", engine)
print(f"{report.keys:,} keys, {report.entries_out:,} entries with {report.messages_out:,} messages left, "
      f"{report.bytes_in >> 20} -> {report.bytes_out >> 20} MiB, "
      f"{report.seconds:.1f} s by the job's clock; {report.error}")
engine.close()
"""

if __name__ == "__main__":
    main()
