"""Measures memory: of an idle broker, of each connection, topic, producer and consumer; and how evenly workers share.

    python tests/bench/resources.py [--connections 1000 9000] [--topics 5000] [--workers 4]

    idle          PSS of all processes, nobody connected
    connections   PSS that each connection adds after CONNECT, how far the fullest and the emptiest worker are from the
                  mean
    topics        PSS that each topic with a producer adds, all on one connection; then a message on each; then a Shared
                  subscription with a consumer on each

The targets are less than 200 MB for an idle broker, and less than 20 % between a worker and the mean.
"""

import argparse
import asyncio
import os
import resource
import sys
import tempfile
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[2]))
from drain import Peer, Tally, connected
from usage import memory_bytes

from geminga.proto import pulsar_api_pb2 as api
from tests.harness import Broker
from tests.proto.client_frames import T, command, entry_of, message_metadata, send

_AT_ONCE = 100          # connections made at a time
_SETTLE_SECONDS = 3.0


class Grown:
    """The broker's memory, and its growth since the last question."""

    def __init__(self, pid: int):
        self.pid, self.now = pid, memory_bytes(pid, "pss")

    async def each(self, what: str, count: int) -> None:
        await asyncio.sleep(_SETTLE_SECONDS)
        before, self.now = self.now, memory_bytes(self.pid, "pss")
        print(f"{count:6,} {what:42} {(self.now - before) / count / 1024:6.1f} KiB each", flush=True)


def held(pid: int) -> dict[int, int]:
    """Return the number of open descriptors of each worker."""
    return {child.pid: child.num_fds() for child in psutil.Process(pid).children()
            if child.name().startswith("geminga-w")}


async def connections(url: str, pid: int, count: int, grown: Grown) -> None:
    tally, turns, before = Tally(), asyncio.Semaphore(_AT_ONCE), held(pid)

    async def one() -> Peer:
        async with turns:
            return await connected(url, tally)

    peers = await asyncio.gather(*[one() for _ in range(count)])
    shares = [now - before[worker] for worker, now in held(pid).items()]
    mean = sum(shares) / len(shares)
    await grown.each("connections", count)
    print(f"{'':6} over {len(shares)} workers: {', '.join(map(str, shares))}; "
          f"{max(shares) / mean - 1:+.1%} and {min(shares) / mean - 1:+.1%} of the mean", flush=True)
    for peer in peers:
        peer.transport.close()
    await asyncio.sleep(_SETTLE_SECONDS)
    grown.now = memory_bytes(pid, "pss")


async def topics(url: str, count: int, grown: Grown) -> None:
    peer = await connected(url, Tally())
    for at in range(count):
        answer = await peer.ask(command(T.PRODUCER, topic=f"persistent://public/default/t{at}", producer_id=at,
                                        request_id=at))
        assert answer.type == T.PRODUCER_SUCCESS, answer
    await grown.each("topics with a producer", count)
    for at in range(count):
        peer.flying[at] = b""
        peer.transport.write(send(entry_of(message_metadata(sequence_id=at), b"." * 100), producer_id=at,
                                  sequence_id=at))
    while peer.flying:
        await asyncio.sleep(0.1)
    await grown.each("messages of 100 bytes, each its topic's first", count)
    for at in range(count):
        answer = await peer.ask(command(T.SUBSCRIBE, topic=f"persistent://public/default/t{at}", subscription="s",
                                        subType=api.CommandSubscribe.Shared, consumer_id=at, request_id=count + at))
        assert answer.type == T.SUCCESS, answer
    await grown.each("Shared subscriptions with a consumer", count)
    peer.transport.close()


async def run(options: argparse.Namespace, broker: Broker) -> None:
    await asyncio.sleep(_SETTLE_SECONDS)
    grown = Grown(broker.pid)
    print(f"idle, {options.workers} workers and {options.workers} owners: PSS {grown.now / (1 << 20):.0f} MiB")
    for count in options.connections:
        await connections(broker.service_url, broker.pid, count, grown)
    await topics(broker.service_url, options.topics, grown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--connections", type=int, nargs="*", default=[1_000, 9_000])
    parser.add_argument("--topics", type=int, default=5_000)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, 2 * resource.getrlimit(resource.RLIMIT_NOFILE)[1:])
    with tempfile.TemporaryDirectory(prefix="resources-") as folder:
        broker = Broker(
            Path(folder, "data"), "--workers", str(options.workers), "--owners", str(options.workers)
        ).start()
        try:
            asyncio.run(run(options, broker))
        finally:
            broker.stop()


if __name__ == "__main__":
    main()
