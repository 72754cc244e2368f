"""Measures WebSocket: one producer's pipeline, and idle sockets.

    python -m tests.bench.websocket [--messages 200000] [--size 100] [--idle 10000] [--rounds 3]
                                    [--pulsar HOST:PORT,pid=PID]

    produce   messages a second through one producer that sends without waiting for answers, in batches; and the CPU
              time for each, of the process that serves WebSocket
    consume   likewise, of one consumer, which acknowledges each message
    idle      proportional memory (PSS) of that process, with so many consumers that get nothing

The broker is one of its own.  --pulsar names another server of the API, in turns with Geminga, and the process whose
CPU time and memory count: a stand-alone WebSocket proxy of Pulsar, so that the broker behind it does not count.
"""
import argparse
import base64
import contextlib
import json
import os
import resource
import secrets
import socket
import statistics
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import psutil

from ..harness import Broker, unique_topic

SPARE_DESCRIPTORS = 1_024
SETTLE_S = 3.0               # from the last socket to the look at the memory
TIMEOUT_S = 60.0
PRODUCE = "batchingEnabled=true&batchingMaxMessages=1000&batchingMaxPublishDelay=5"


class Server(NamedTuple):
    """A server of the API, and the process that counts."""

    name: str
    host: str
    port: int
    pid: int

    @property
    def cpu_s(self) -> float:
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)


class Socket:
    """A WebSocket without a library, so that the client costs less than the server."""

    def __init__(self, server: Server, path: str) -> None:
        self.link = socket.create_connection((server.host, server.port), TIMEOUT_S)
        self.link.sendall((f"GET {path} HTTP/1.1\r\nHost: {server.host}:{server.port}\r\nUpgrade: websocket\r\n"
                           "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "
                           f"{base64.b64encode(secrets.token_bytes(16)).decode()}\r\n\r\n").encode())
        self.rest = b""
        while b"\r\n\r\n" not in self.rest:
            if not (data := self.link.recv(65_536)):
                raise ConnectionError(path)
            self.rest += data
        head, _, self.rest = self.rest.partition(b"\r\n\r\n")
        if b" 101 " not in head:
            raise ConnectionError((head + self.rest).decode())

    def texts(self) -> list[bytes]:
        """Wait for some frames, and return their payloads."""
        while True:
            self.rest += self.link.recv(1 << 18)
            found, at, data = [], 0, self.rest
            while len(data) - at >= 2:
                size, begin = data[at + 1], at + 2
                if size == 126:
                    if len(data) < at + 4:
                        break
                    size, begin = struct.unpack_from(">H", data, begin)[0], at + 4
                if len(data) < begin + size:
                    break
                found.append(data[begin:begin + size])
                at = begin + size
            self.rest = data[at:]
            if found:
                return found


def frame(text: bytes) -> bytes:
    """Return a client's frame, whose mask changes nothing."""
    size = len(text)
    head = bytes((0x81, 0x80 | size)) if size < 126 else b"\x81\xfe" + struct.pack(">H", size)
    return head + bytes(4) + text


def _path(hint: str) -> str:
    """Return a new topic as the paths of the API name it."""
    return unique_topic(hint).replace("://", "/")


def produce(server: Server, topic: str, messages: int, size: int) -> tuple[float, float]:
    """Return messages a second, and µs of CPU for each."""
    own = Socket(server, f"/ws/v2/producer/{topic}?{PRODUCE}")
    text = json.dumps({"payload": base64.b64encode(b"." * size).decode(), "context": "1"}).encode()
    block = frame(text) * 500
    before, began = server.cpu_s, time.perf_counter()
    writer = threading.Thread(target=lambda: [own.link.sendall(block) for _ in range(messages // 500)], daemon=True)
    writer.start()
    got = 0
    while got < messages // 500 * 500:
        texts = own.texts()
        assert all(text.startswith(b'{"result":"ok"') for text in texts), texts[0]
        got += len(texts)
    passed = time.perf_counter() - began
    own.link.close()
    return got / passed, (server.cpu_s - before) / got * 1e6


def consume(server: Server, topic: str, messages: int) -> tuple[float, float]:
    """Return messages a second, and µs of CPU for each."""
    before, began = server.cpu_s, time.perf_counter()
    own = Socket(server, f"/ws/v2/consumer/{topic}/s?subscriptionInitialPosition=Earliest")
    got, wanted = 0, messages // 500 * 500
    while got < wanted:
        texts = own.texts()
        own.link.sendall(b"".join(frame(b'{"messageId":"' + text.split(b'"', 4)[3] + b'"}') for text in texts))
        got += len(texts)
    passed = time.perf_counter() - began
    own.link.close()
    return got / passed, (server.cpu_s - before) / got * 1e6


def idle(server: Server, count: int) -> tuple[int, int]:
    """Return the process's PSS in bytes before, and with so many idle consumers."""
    topic = _path("idle")
    before = psutil.Process(server.pid).memory_full_info().pss
    held = [Socket(server, f"/ws/v2/consumer/{topic}/s?subscriptionType=Shared")
            for _ in range(count)]
    time.sleep(SETTLE_S)
    after = psutil.Process(server.pid).memory_full_info().pss
    for one in held:
        one.link.close()
    return before, after


@contextlib.contextmanager
def servers(pulsar: str | None) -> Iterator[list[Server]]:
    with tempfile.TemporaryDirectory(prefix="geminga-bench-") as folder:
        own = Broker(Path(folder) / "data").start()
        try:
            host, pid = urlsplit(own.http_url), own.child("web")
            assert host.hostname and host.port and pid
            found = [Server("geminga", host.hostname, host.port, pid)]
            if pulsar:
                place, _, number = pulsar.partition(",pid=")
                name, _, port = place.partition(":")
                found.append(Server("pulsar", name, int(port), int(number)))
            yield found
        finally:
            own.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a payload")
    parser.add_argument("--idle", type=int, default=10_000, help="sockets; 0: none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pulsar", metavar="HOST:PORT,pid=PID")
    given = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, given.idle + SPARE_DESCRIPTORS), hard))
    with servers(given.pulsar) as found:
        results: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for _ in range(given.rounds):
            for server in found:
                topic = _path("web")
                results.setdefault((server.name, "produce"), []).append(
                    produce(server, topic, given.messages, given.size))
                results.setdefault((server.name, "consume"), []).append(consume(server, topic, given.messages))
        for (name, what), rows in results.items():
            rates, costs = zip(*rows, strict=True)
            print(f"{what:<8} {name:<8} {statistics.median(rates):10,.0f} messages/s  "
                  f"{statistics.median(costs):6.1f} µs of CPU a message  ({os.cpu_count()} cores)", flush=True)
        for server in found if given.idle else ():
            before, after = idle(server, given.idle)
            print(f"idle     {server.name:<8} {after / 2**20:10,.1f} MiB with {given.idle} sockets, "
                  f"{before / 2**20:,.1f} MiB before, {(after - before) / given.idle / 1024:.1f} KiB each", flush=True)


if __name__ == "__main__":
    main()
