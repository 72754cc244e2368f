"""Measures what a message costs an owner and a worker, without processes, sockets and waiting.

    python -m tests.bench.passes [--topics 500] [--together 1 10 50] [--messages 20000] [--profile]

Messages of 100 B go round the topics, one after the other; each topic has one producer and one consumer.  `together` is
how many messages a pass has.  Figures are microseconds of CPU a message, of the quickest of three rounds, in a process
that does nothing else.  A process that is woken for each pass needs two to five times as much, as its caches are cold.

    publish    the owner's pass: journal, ledgers, receipts, deliveries
    ack        the owner's pass over acknowledgements, one of each message
    read       the worker reads SENDs and gathers them for owners
    deliver    the worker reads entries from ledgers and frames them
    acks       the worker reads ACKs and gathers them for owners
"""
import argparse
import cProfile
import pstats
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from geminga.proto import envelope
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.catalogue.catalogue import open_catalogue
from geminga.storage.runtime.log import ERROR, log
from geminga.workers.clients import delivery_queue
from geminga.workers.clients.routes import Route

from ..proto.client_frames import T, command, entry_of, message_metadata, send
from ..storage.rig import START_MS, Rig
from ..workers.played import PlayedWorker

ROUNDS = 3
PAYLOAD = b"." * 100
PERMITS = 100_000_000
PRODUCERS, CONSUMERS = 1_000_000, 2_000_000      # first handles of each
SHOWN = 40                   # functions of a profile

Step = Callable[[], object]


def _sealed(kind: int, rows: np.ndarray, data: bytes) -> list[bytes]:
    return [bytes(part) for part in envelope.seal([(kind, rows, data)])]


class OwnerPasses:
    """The passes of an owner with so many topics."""

    def __init__(self, folder: Path, topics: int):
        self.rig = Rig(folder, journal_segment_bytes=64 << 20, journal_segments_max=8)
        self.topics, self.now_ms = topics, START_MS
        producers = [self.rig.producer(f"t{number}") for number in range(topics)]
        self.consumers = [self.rig.consumer(f"t{number}") for number in range(topics)]
        for consumer in self.consumers:
            self.rig.run(self.rig.flow(consumer, PERMITS))
        self.kind, rows, data = self.rig.sends(*[(producer, PAYLOAD) for producer in producers])
        self.rows, self.size = np.array(rows), len(data) // topics
        self.entries = [bytes(data[at:at + self.size]) for at in range(0, len(data), self.size)]
        self.partitions = list(self.rig.owner.topics.by_name.values())
        self.sent = 0

    def run(self, frames: list[bytes]) -> None:
        passes = self.rig.owner.passes
        self.now_ms += 2
        passes.begin(self.now_ms)
        passes.receive(1, envelope.unseal(frames)[1])
        passes.end()

    def chosen(self, together: int) -> list[int]:
        chosen = [(self.sent + number) % self.topics for number in range(together)]
        self.sent += together
        return chosen

    def publish(self, together: int) -> Step:
        frames = self.sends(self.chosen(together))
        return lambda: self.run(frames)

    def sends(self, chosen: list[int]) -> list[bytes]:
        """Return an envelope with a SEND to each of these topics."""
        rows = self.rows[chosen].copy()
        rows["offset"] = np.arange(len(chosen)) * self.size
        return _sealed(self.kind, rows, b"".join(self.entries[number] for number in chosen))

    def ack(self, together: int) -> Step:
        """Acknowledge everything up to the last entry of each topic, one more of which was published before."""
        rows = np.zeros(together, envelope.ACK_ROW)
        chosen = self.chosen(together)
        for row, number in zip(rows, chosen, strict=True):
            ledger = self.partitions[number].open_ledger
            row["consumer"], row["flags"] = self.consumers[number].number, envelope.CUMULATIVE
            row["ledger_id"], row["entry_id"] = ledger.ledger_id, ledger.entries
        frames = _sealed(envelope.ACKS, rows, b"")
        self.run(self.sends(chosen))
        return lambda: self.run(frames)


class WorkerTurns:
    """What a worker does for one client that publishes to, and consumes from, all topics of an owner."""

    def __init__(self, folder: Path, owner: OwnerPasses, monkeypatch: pytest.MonkeyPatch):
        self.owner, self.worker = owner, PlayedWorker(folder, monkeypatch)
        self.client, self.link = self.worker.client(), self.worker.owners[0].link
        routes, self.sent = self.client.client.routes, 0
        self.entry = entry_of(message_metadata(), PAYLOAD)
        for number in range(owner.topics):
            for is_producer in (True, False):
                handle = number + (PRODUCERS if is_producer else CONSUMERS)
                route = Route(self.link, number, is_producer, handle)
                (routes.producers if is_producer else routes.consumers)[number] = route
                routes.by_handle[self.link, handle] = route

    def said(self, data: bytes) -> Step:
        def say() -> None:
            self.client.say(data)
            self.link.said.clear()
            self.link.taken = self.link.sent
            assert not self.client.transport.is_closed
        return say

    def chosen(self, together: int) -> Iterator[tuple[int, int]]:
        """(topic, how many messages it had before) of the next messages."""
        for number in range(self.sent, self.sent + together):
            yield number % self.owner.topics, number // self.owner.topics
        self.sent += together

    def read(self, together: int) -> Step:
        return self.said(b"".join(
            send(self.entry, producer_id=topic, sequence_id=before) for topic, before in self.chosen(together)))

    def acks(self, together: int) -> Step:
        return self.said(b"".join(
            command(T.ACK, consumer_id=topic, ack_type=api.CommandAck.Cumulative,
                    message_id=[api.MessageIdData(ledgerId=1_000 + topic, entryId=before, partition=-1)])
            for topic, before in self.chosen(together)))

    def deliver(self, together: int) -> Step:
        rows = np.zeros(together, envelope.RUN_ROW)
        for row, (topic, before) in zip(rows, self.chosen(together), strict=True):
            partition = self.owner.partitions[topic]
            row["connection"], row["consumer"], row["count"] = self.client.number, topic + CONSUMERS, 1
            row["partition_id"], row["ledger_id"] = partition.partition_id, partition.open_ledger.ledger_id
            row["first_entry"] = before % partition.open_ledger.entries
        clients = self.worker.worker.clients

        def deliver() -> None:
            delivery_queue.deliver_runs(clients, self.link, rows, memoryview(b""))
            self.client.transport.written.clear()
        return deliver


def microseconds(make: Callable[[int], Step], together: int, messages: int, profile: cProfile.Profile | None) -> float:
    """Return what a message costs, in the quickest round.  Each step is made untimed, right before it is timed."""
    best = float("inf")
    for _ in range(ROUNDS):
        taken = 0.0
        for _ in range(messages // together):
            step = make(together)
            began = time.thread_time()
            if profile is not None:
                profile.enable()
            step()
            if profile is not None:
                profile.disable()
            taken += time.thread_time() - began
        best = min(best, taken / (messages // together * together) * 1e6)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.passes", description=__doc__.splitlines()[0])
    parser.add_argument("--topics", type=int, default=500)
    parser.add_argument("--together", type=int, nargs="+", default=[1, 10, 50])
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--only", nargs="+", default=["publish", "ack", "read", "deliver", "acks"])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--profile", action="store_true", help="show the functions that took most of the time")
    options = parser.parse_args()
    log.level = ERROR      # else a line for each topic
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="passes-", dir=options.folder)))
        monkeypatch = stack.enter_context(pytest.MonkeyPatch.context())
        open_catalogue(folder / "catalogue.sqlite").close()
        owner = OwnerPasses(folder, options.topics)
        worker = WorkerTurns(folder, owner, monkeypatch)
        steps = {"publish": owner.publish, "ack": owner.ack, "read": worker.read, "deliver": worker.deliver,
                 "acks": worker.acks}
        microseconds(owner.publish, options.topics, 10 * options.topics, None)      # entries to deliver, and warm code
        print(f"| us a message | {' | '.join(f'{together} together' for together in options.together)} |")
        print(f"|---|{'--:|' * len(options.together)}")
        for name in options.only:
            profile = cProfile.Profile() if options.profile else None
            figures = [microseconds(steps[name], together, options.messages, profile)
                       for together in options.together]
            print(f"| {name} | {' | '.join(f'{figure:.1f}' for figure in figures)} |", flush=True)
            if profile is not None:
                pstats.Stats(profile).sort_stats("tottime").print_stats(SHOWN)
        worker.worker.close()
        owner.rig.close()


if __name__ == "__main__":
    main()
