"""Measure how fast the broker takes replicated messages, beside ordinary ones of the same size.

    python -m tests.bench.replication_target [MESSAGES] [PAYLOAD_BYTES] [UNANSWERED]

One connection publishes single messages to one topic over loopback: as a replicator that names positions, and as an
ordinary producer.  "mixed" messages have payloads of 50 to 1,000 bytes, and keys, properties and names of producers of
several lengths.  A line for each has messages a second, and the CPU time of all processes of the broker for each
message.
"""
import random
import struct
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil
from crc32c import crc32c

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api

from ..harness import Broker, unique_topic
from ..proto.client_frames import T, command, message_metadata, send
from ..workers.peer import Peer

_CONNECT = command(T.CONNECT, client_version="bench", protocol_version=21,
                   feature_flags={"supports_repl_dedup_by_lid_and_eid": True})
_FIRST = 1_000_000           # entry and sequence id, so that all have one number of digits and bytes


def frames(count: int, payload: int, *, is_replicated: bool, is_mixed: bool) -> list[bytes]:
    """Return frames of SENDs.  is_mixed: their sizes differ, and `payload` is not used."""
    made, chance = [], random.Random(1)
    for number in range(_FIRST, _FIRST + count):
        more, properties = {}, []
        if is_replicated:
            more = {"replicated_from": "far", "producer_name": "producer"}
            properties = [api.KeyValue(key=names.POSITION_PROPERTY, value=f"61561655729:{number}")]
        if is_mixed:
            payload = chance.randint(50, 1_000)
            more |= {"producer_name": "producer"[:chance.randint(5, 8)], "partition_key": "k" * chance.randint(4, 12)}
            properties += [api.KeyValue(key="kind", value="v" * chance.randint(1, 12))] * (number % 2)
        metadata = message_metadata(sequence_id=number, **more, properties=properties)
        covered = struct.pack(">I", len(metadata)) + metadata + bytes(payload)
        made.append(send(b"\x0e\x01" + struct.pack(">I", crc32c(covered)) + covered, producer_id=1, sequence_id=number))
    return made


def measure(broker: Broker, made: list[bytes], name: str, unanswered: int) -> tuple[float, float]:
    """Return (messages a second, microseconds of CPU for each)."""
    count = len(made)
    blocks = [b"".join(made[at:at + 500]) for at in range(0, count, 500)]
    room = threading.Semaphore(max(1, unanswered // 500))
    with Peer(broker.service_url, _CONNECT) as peer:
        peer.hear()
        answer = peer.ask(T.PRODUCER, topic=unique_topic("bench"), producer_id=1, request_id=1, producer_name=name,
                          user_provided_producer_name=True)
        assert answer.type == T.PRODUCER_SUCCESS, answer
        processes = [psutil.Process(pid) for pid in (broker.pid, *broker.children().values())]
        before, began = _cpu(processes), time.perf_counter()

        def publish() -> None:
            for block in blocks:
                room.acquire()
                peer.socket.sendall(block)

        thread = threading.Thread(target=publish)
        thread.start()
        answered, rest, freed = 0, b"", 0
        while answered < count:
            data = rest + peer.socket.recv(1 << 20)
            done, rest = _whole(data)
            answered += done
            while answered // 500 > freed:
                room.release()
                freed += 1
        seconds, spent = time.perf_counter() - began, _cpu(processes) - before
        thread.join()
    return count / seconds, spent / count * 1e6


def _whole(data: bytes) -> tuple[int, bytes]:
    """Return (number of whole frames, bytes behind them)."""
    count = at = 0
    while at + 4 <= len(data):
        width = 4 + struct.unpack_from(">I", data, at)[0]
        alike = (len(data) - at) // width      # receipts of one pass have one size
        if alike == 0:
            break
        sizes = np.ndarray(alike, ">u4", data, at, (width,))
        same = int((sizes != width - 4).argmax()) or alike
        same = same if sizes[min(same, alike - 1)] != width - 4 else alike
        count, at = count + same, at + same * width
    return count, data[at:]


def _cpu(processes: list[psutil.Process]) -> float:
    return sum(times.user + times.system for times in (process.cpu_times() for process in processes))


def main() -> None:
    count, payload, unanswered = map(int, (sys.argv[1:] + ["300000", "100", "20000"][len(sys.argv) - 1:]))
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker(Path(folder) / "data").start()
        try:
            for text, name, is_replicated, is_mixed in (
                    ("ordinary", "p", False, False), ("ordinary, mixed", "p", False, True),
                    ("replicated", "pulsar.repl.far-->here", True, False),
                    ("replicated, mixed", "pulsar.repl.far-->here", True, True)):
                made = frames(count, payload, is_replicated=is_replicated, is_mixed=is_mixed)
                for _ in range(2):
                    rate, cpu = measure(broker, made, name, unanswered)
                    print(f"{text:>17}: {rate:9,.0f} messages/s, {cpu:.2f} us of CPU for each", flush=True)
        finally:
            broker.close()


if __name__ == "__main__":
    main()
