"""Measures replication: how fast messages go to another cluster, and what they cost on this side.

    python -m tests.bench.replication [--messages 300000] [--size 100] [--topics 1] [--batch 1] [--rounds 3]
                                      [--mixed] [--to URL]

A backlog is published first, then the cluster's record is corrected, so that what is measured is replication alone.
The cluster is a sink in a process of its own: it answers each SEND with a receipt that names the position, and stores
nothing.  --mixed: payloads have 50 to 1,000 bytes, keys and properties several lengths.  --to names a real cluster
instead: host:port of its broker.

    rate    messages a second, from the first to the last receipt's acknowledgement
    CPU     µs a message, of owners, workers and the replicator
"""
import argparse
import contextlib
import json
import multiprocessing
import os
import random
import socket
import statistics
import struct
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import pulsar

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto import varints
from geminga.proto.deliveries import RECEIPT_ROW, receipts
from geminga.proto.frames import frame
from geminga.workers.replication.frames import whole_frames

from ..harness import Broker, eventually, request, unique_topic
from ..replication.conftest import replicate

T = api.BaseCommand.Type
FAR = "far"
NOBODY = "pulsar://127.0.0.1:1"      # where nobody listens
ROOM = 64                    # bytes behind what was received, as words are loaded whole
_KINDS = {"geminga-rep": "replicator", "geminga-web": "others", "geminga-w": "workers", "geminga-o": "owners"}
MARK = b"__MSG_PROP_REPL_SOURCE_POSITION\x12"


def _say(link: socket.socket, kind: int, name: str, **fields: object) -> None:
    command = api.BaseCommand(type=kind)
    getattr(command, name).CopyFrom(type(getattr(command, name))(**fields))
    link.sendall(frame(command))


def sink(listener: socket.socket, received: "multiprocessing.sharedctypes.Synchronized[int]") -> None:
    """Answer replicators in turn, one process for each connection."""
    while True:
        link, _ = listener.accept()
        if os.fork() == 0:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with contextlib.suppress(ConnectionError):
                _serve(link, listener.getsockname()[1], received)
            os._exit(0)
        link.close()


def _serve(link: socket.socket, port: int, received: "multiprocessing.sharedctypes.Synchronized[int]") -> None:
    """Answer one connection.  Frames of one size that differ in their numbers alone are read as arrays."""
    buffer, end = bytearray(4 << 20), 0
    while count := link.recv_into(memoryview(buffer)[end:-ROOM]):
        end += count
        data = np.frombuffer(buffer, np.uint8)
        starts, ends, rest = whole_frames(data, 0, end, len(buffer))
        kinds = data[starts + 9]
        for start in starts[kinds != T.SEND].tolist():
            size = struct.unpack_from(">I", buffer, start + 4)[0]
            _answer(link, api.BaseCommand.FromString(bytes(buffer[start + 8:start + 8 + size])), port)
        is_send = kinds == T.SEND
        if is_send.any():
            link.sendall(_receipts(data, starts[is_send], ends[is_send]))
            with received.get_lock():
                received.value += int(is_send.sum())
        left = bytes(buffer[rest:end])
        end = len(left)
        buffer[:end] = left


def _receipts(data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> bytes:
    """Return the receipts of SENDs, each with its position."""
    rows = np.zeros(len(starts), RECEIPT_ROW)
    rows["ledger_id"] = rows["entry_id"] = 1
    at = 0
    while at < len(starts):
        frame = data[starts[at]:ends[at]].tobytes()
        producer, _ = varints.decode(frame, 13 if frame[11] < 128 else 14)
        place = frame.index(MARK) + len(MARK)
        text = frame[place + 1:place + 1 + frame[place]]
        digits = len(text) - text.index(b":") - 1
        last = place + 1 + len(text)
        heads = data[starts[at:, None] + np.arange(last - digits - 30, last)]      # the end of the property's name
        like = (heads[:, :30] == heads[0, :30]).all(axis=1)
        stop = at + (len(like) if like.all() else int(like.argmin()))
        values = (heads[:stop - at, 30:] - 48).astype(np.uint64) @ (10 ** np.arange(digits)[::-1]).astype(np.uint64)
        rows["producer_id"][at:stop], rows["sequence_id"][at:stop] = producer, int(text.partition(b":")[0])
        rows["highest_sequence_id"][at:stop] = values
        at = stop
    return b"".join(block for _, block in receipts(rows))


def _answer(link: socket.socket, command: api.BaseCommand, port: int) -> None:
    kind = command.type
    if kind == T.CONNECT:
        _say(link, T.CONNECTED, "connected", server_version="sink", protocol_version=21, max_message_size=5 << 20,
             feature_flags=api.FeatureFlags(supports_repl_dedup_by_lid_and_eid=True))
    elif kind == T.PARTITIONED_METADATA:
        _say(link, T.PARTITIONED_METADATA_RESPONSE, "partitionMetadataResponse", response=0, partitions=0,
             request_id=command.partitionMetadata.request_id)
    elif kind == T.LOOKUP:
        _say(link, T.LOOKUP_RESPONSE, "lookupTopicResponse", request_id=command.lookupTopic.request_id, response=1,
             brokerServiceUrl=f"pulsar://127.0.0.1:{port}", authoritative=True)
    elif kind == T.GET_SCHEMA:
        _say(link, T.GET_SCHEMA_RESPONSE, "getSchemaResponse", request_id=command.getSchema.request_id,
             error_code=api.TopicNotFound, error_message="none")
    elif kind == T.PRODUCER:
        _say(link, T.PRODUCER_SUCCESS, "producer_success", request_id=command.producer.request_id,
             producer_name=command.producer.producer_name)
    elif kind == T.CLOSE_PRODUCER:
        _say(link, T.SUCCESS, "success", request_id=command.close_producer.request_id)
    elif kind == T.PING:
        _say(link, T.PONG, "pong")


def _publish(broker: Broker, topics: list[str], given: argparse.Namespace) -> None:
    client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    each, chance = given.messages // len(topics), random.Random(1)
    for topic in topics:
        producer = client.create_producer(topic, block_if_queue_full=True, max_pending_messages=20_000,
                                          batching_enabled=given.batch > 1, batching_max_messages=max(2, given.batch))
        payload, more = b"." * given.size, {}
        for number in range(each):
            if given.mixed:
                payload = b"." * chance.randint(50, 1_000)
                more = {"partition_key": "k" * chance.randint(4, 12)}
                if number % 2:
                    more["properties"] = {"kind": "v" * chance.randint(1, 12)}
            producer.send_async(payload, lambda *_: None, **more)
        producer.flush()
        producer.close()
    client.close()


def _cpu_s(broker: Broker) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, pid in broker.children().items():
        times = psutil.Process(pid).cpu_times()
        kind = next((kind for start, kind in _KINDS.items() if name.startswith(start)), "others")
        found[kind] = found.get(kind, 0.0) + times.user + times.system
    return found


def _backlog(broker: Broker, topic: str) -> int:
    _, text = request("GET", f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}/stats")
    return int(json.loads(text)["replication"][FAR]["replicationBacklog"])


def measure(given: argparse.Namespace) -> tuple[float, dict[str, float]]:
    """Return messages a second, and µs of CPU a message by kind of process."""
    with tempfile.TemporaryDirectory(prefix="geminga-bench-") as folder:
        broker = Broker(Path(folder) / "data").start()
        listener = socket.create_server(("127.0.0.1", 0))
        received = multiprocessing.Value("q", 0)
        process = multiprocessing.Process(target=sink, args=(listener, received))
        process.start()
        try:
            topics = [unique_topic("bench") for _ in range(given.topics)]
            place = f"{broker.http_url}/admin/v2/clusters/{FAR}"
            request("PUT", place, json.dumps({"brokerServiceUrl": NOBODY}).encode())
            for topic in topics:
                replicate(broker, topic, FAR)
            _publish(broker, topics, given)
            wanted = given.messages // given.topics * given.topics
            url = given.to or f"pulsar://127.0.0.1:{listener.getsockname()[1]}"
            before, began = _cpu_s(broker), time.perf_counter()
            status, text = request("POST", place, json.dumps({"brokerServiceUrl": url}).encode())
            assert status == 200, text
            eventually(lambda: received.value or given.to)
            began = began if given.to else time.perf_counter()
            eventually(lambda: not any(_backlog(broker, topic) for topic in topics), 600)
            passed, after = time.perf_counter() - began, _cpu_s(broker)
            return wanted / passed, {kind: (after[kind] - before[kind]) / wanted * 1e6 for kind in after}
        finally:
            broker.close()
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()
            process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a payload")
    parser.add_argument("--topics", type=int, default=1)
    parser.add_argument("--batch", type=int, default=1, help="messages of a batch; 1: no batches")
    parser.add_argument("--mixed", action="store_true", help="payloads of 50 to 1,000 bytes, keys, properties")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--to", metavar="URL", help="pulsar://HOST:PORT of a real cluster")
    given = parser.parse_args()
    results = [measure(given) for _ in range(given.rounds)]
    costs = {kind: statistics.median(cost[kind] for _, cost in results) for kind in results[0][1]}
    ours = sum(costs[kind] for kind in ("owners", "workers", "replicator"))
    print(f"{statistics.median(rate for rate, _ in results):10,.0f} messages/s  {ours:5.2f} µs of CPU a message: "
          + ", ".join(f"{kind} {costs[kind]:.2f}" for kind in ("owners", "workers", "replicator"))
          + f"  ({os.cpu_count()} cores)", flush=True)


if __name__ == "__main__":
    main()
