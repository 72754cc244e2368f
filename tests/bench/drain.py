"""Measures a drain with many connections: no answered message is lost, and none is delivered twice.

    python tests/bench/drain.py [--connections 10000] [--topics 200] [--producers 20] [--seconds 30] [--kill]

    connected   consumers, each on a connection of its own, of one Shared subscription of each topic; they acknowledge
                every message
    drained     while producers publish to all topics: seconds until the last process has ended, messages pending then
    after       the broker is started again and the backlog is read: answered messages that never came, and messages
                that came twice

--kill stops the broker by SIGTERM instead, which waits for no acknowledgements.  The target for 10,000 connections is
less than ten seconds, none lost and none twice.
"""

import argparse
import asyncio
import os
import resource
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parents[2]))
from geminga.proto import pulsar_api_pb2 as api
from geminga.supervisor.processes import control_socket
from tests.harness import Broker
from tests.proto.client_frames import CONNECT, T, command, entry_of, message_metadata, send

_AT_ONCE = 200          # connections made at a time
_PERMITS = 100
_FLYING_MAX = 50        # messages of a producer without a receipt
_PUBLISH_SECONDS = 5.0
_LEAVE_SECONDS = 3.0    # in this time the rest of the backlog comes


class Tally:
    def __init__(self) -> None:
        self.answered: set[bytes] = set()
        self.acknowledged: Counter[bytes] = Counter()


class Peer(asyncio.Protocol):
    """A client that follows the protocol as far as the measurement needs it."""

    def __init__(self, tally: Tally):
        self.tally, self._data = tally, bytearray()
        self._waiting: asyncio.Future | None = None
        self.is_closed = asyncio.Event()
        self.flying: dict[int, bytes] = {}
        self.may_send = asyncio.Event()
        self.is_open = True

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self.may_send.set()
        self.is_closed.set()

    async def ask(self, data: bytes) -> api.BaseCommand:
        self._waiting = asyncio.get_running_loop().create_future()
        self.transport.write(data)
        return await self._waiting

    def data_received(self, data: bytes) -> None:
        self._data += data
        at, ids = 0, []
        while len(self._data) - at >= 8:
            total, size = struct.unpack_from(">II", self._data, at)
            if len(self._data) - at < 4 + total:
                break
            heard = api.BaseCommand.FromString(bytes(self._data[at + 8:at + 8 + size]))
            if heard.type == T.MESSAGE:
                self.tally.acknowledged[bytes(self._data[at + 4 + total - 12:at + 4 + total])] += 1
                ids.append(heard.message.message_id)
            else:
                self._heard(heard)
            at += 4 + total
        del self._data[:at]
        if ids:
            self.transport.write(command(T.ACK, consumer_id=1, ack_type=api.CommandAck.Individual, message_id=ids) +
                                 command(T.FLOW, consumer_id=1, messagePermits=len(ids)))

    def _heard(self, heard: api.BaseCommand) -> None:
        if heard.type == T.PING:
            self.transport.write(command(T.PONG))
        elif heard.type == T.SEND_RECEIPT:
            self.tally.answered.add(self.flying.pop(heard.send_receipt.sequence_id))
            self.may_send.set()
        elif heard.type == T.CLOSE_PRODUCER:
            self.is_open = False
            self.may_send.set()
        elif self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(heard)


async def connected(url: str, tally: Tally) -> Peer:
    where = urlsplit(url)
    _, peer = await asyncio.get_running_loop().create_connection(lambda: Peer(tally), where.hostname, where.port)
    await peer.ask(CONNECT)
    return peer


async def consumer(url: str, tally: Tally, topic: str, turns: asyncio.Semaphore) -> Peer:
    async with turns:
        peer = await connected(url, tally)
        answer = await peer.ask(command(T.SUBSCRIBE, topic=topic, subscription="s", subType=api.CommandSubscribe.Shared,
                                        consumer_id=1, request_id=1, initialPosition=api.CommandSubscribe.Earliest))
        assert answer.type == T.SUCCESS, answer
        peer.transport.write(command(T.FLOW, consumer_id=1, messagePermits=_PERMITS))
    return peer


async def producer(url: str, tally: Tally, topics: list[str]) -> Peer:
    peer = await connected(url, tally)
    for at, topic in enumerate(topics):
        assert (
            await peer.ask(command(T.PRODUCER, topic=topic, producer_id=at, request_id=at))
        ).type == T.PRODUCER_SUCCESS
    return peer


async def publish(peer: Peer, number: int, topics: list[str]) -> None:
    """Publish until the connection is closed, or the broker is gone."""
    sequence_id = 0
    while peer.is_open:
        payload = struct.pack(">IQ", number, sequence_id)
        peer.flying[sequence_id] = payload
        peer.transport.write(send(entry_of(message_metadata(sequence_id=sequence_id), payload),
                                  producer_id=sequence_id % len(topics), sequence_id=sequence_id))
        sequence_id += 1
        peer.may_send.clear()
        if len(peer.flying) >= _FLYING_MAX:
            await peer.may_send.wait()
        elif not sequence_id % 10:
            await asyncio.sleep(0.01)
    await peer.is_closed.wait()


async def session(broker: Broker, tally: Tally, options: argparse.Namespace, names: list[str]) -> None:
    turns = asyncio.Semaphore(_AT_ONCE)
    began = time.monotonic()
    peers = await asyncio.gather(*(consumer(broker.service_url, tally, names[number % len(names)], turns)
                                   for number in range(options.connections)))
    print(f"connected   {len(peers):,} consumers in {time.monotonic() - began:.1f} s", flush=True)
    publishing = await asyncio.gather(*(producer(broker.service_url, tally, names) for _ in range(options.producers)))
    producers = [asyncio.create_task(publish(peer, number, names)) for number, peer in enumerate(publishing)]
    await asyncio.sleep(_PUBLISH_SECONDS)
    began, outstanding = time.monotonic(), "not counted"
    if options.kill:
        os.kill(broker.pid, signal.SIGTERM)
    else:
        said = await asyncio.to_thread(lambda: list(control_socket.ask(broker.data_dir, drain=options.seconds)))
        outstanding = said[-1]["outstanding"]
    await asyncio.to_thread(broker.ended, 60)
    seconds = time.monotonic() - began
    await asyncio.gather(*producers, *(peer.is_closed.wait() for peer in peers))
    print(f"drained     {seconds:.2f} s; {len(tally.answered):,} messages answered until then, out at the end: "
          f"{outstanding}", flush=True)


async def rest(broker: Broker, tally: Tally, names: list[str]) -> None:
    turns = asyncio.Semaphore(_AT_ONCE)
    peers = [await consumer(broker.service_url, tally, name, turns) for name in names]
    count = -1
    while count != (count := sum(tally.acknowledged.values())):
        await asyncio.sleep(_LEAVE_SECONDS)
    for peer in peers:
        peer.transport.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--topics", type=int, default=200)
    parser.add_argument("--producers", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--kill", action="store_true")
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    tally, names = Tally(), [f"persistent://public/default/drain-{number}" for number in range(options.topics)]
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker(Path(folder) / "data").start()
        try:
            asyncio.run(session(broker, tally, options, names))
            broker.start()
            asyncio.run(rest(broker, tally, names))
        finally:
            broker.close()
    lost = tally.answered - tally.acknowledged.keys()
    twice = sum(count - 1 for count in tally.acknowledged.values())
    print(f"after       {len(lost)} that were answered never came, {twice} came twice")


if __name__ == "__main__":
    main()
