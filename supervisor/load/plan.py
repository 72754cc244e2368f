"""The load that is put on a broker, and the numbers that all its processes share."""
import multiprocessing as mp
import secrets
import ssl
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from geminga.storage.runtime.unix_sockets import UNIX
from geminga.supervisor.load import latencies
from geminga.supervisor.load.blocks import Message
from geminga.supervisor.load.link import Link
from geminga.supervisor.load.wire import connect
from geminga.workers.pulsar_client.credentials import NOBODY, Credentials

FORK = mp.get_context("fork")      # children inherit the plan, with what cannot be pickled


class BrokerAddress(NamedTuple):
    """Address of the broker that serves some topics, directly or behind a proxy."""

    url: str
    beyond: str = ""         # host:port of the broker behind the proxy at `url`


@dataclass(frozen=True)
class Plan:
    """The load that is put on a broker.  Every process has the whole plan."""

    url: str
    topics: dict[BrokerAddress, tuple[str, ...]]      # topics without partitions, and partitions
    message: Message
    producers: int = 1           # connections for each place, each with a producer on every topic there
    consumers: int = 1
    processes: int = 0           # for producers, and as many for consumers; 0: one for each, up to the cores
    rate: float = 0              # messages a second of all producers; 0: as many as go
    count: int = 0               # messages of all producers; 0: until told to stop
    window: int = 5_000          # entries of one connection without a receipt
    permits: int = 20_000        # messages that each consumer of a topic takes before it asks for more
    # Without a rate, producers wait while more messages are on their way to the consumers; 0: they never do.
    lead: int = 10_000
    subscription: str = "bench"
    kind: str = "exclusive"      # a key of wire.SUBSCRIPTION_TYPES
    starts_at_end: bool = False  # a subscription that does not exist yet begins at the end of its topic
    credentials: Credentials = NOBODY
    tls: ssl.SSLContext | None = None
    run: str = field(default_factory=lambda: secrets.token_hex(4))

    def parts(self, count: int) -> list["Part"]:
        """Return what each of `count` connections for each place does."""
        all_topics = sum(map(len, self.topics.values()))
        entries, before, made = -(-self.count // self.message.batch), 0.0, list[Part]()
        for place, topics in self.topics.items():
            share = len(topics) / all_topics / max(1, count)
            for _ in range(count):
                limit = round(entries * (before + share)) - round(entries * before)
                made.append(Part(len(made), place, topics, share, limit if entries else None))
                before += share
        return made

    def link(self, place: BrokerAddress) -> Link:
        """Return a new connection to a place.  Raises BrokerError."""
        method, data, *_ = self.credentials
        hello = connect(method, data, place.beyond)
        if place.url.startswith(UNIX):
            return Link(place.url, 0, hello)
        parts = urlsplit(place.url)
        return Link(parts.hostname or "", parts.port or (6651 if self.tls else 6650), hello, self.tls)


class Part(NamedTuple):
    """One connection's part of a load."""

    number: int
    place: BrokerAddress
    topics: tuple[str, ...]
    share: float             # of all messages
    entries: int | None      # to publish; None: until told to stop


class Board:
    """Numbers in shared memory.  Each has one writer, so they need no lock."""

    def __init__(self, producers: int, consumers: int) -> None:
        self.published = _shared(producers)        # messages with a receipt
        self.arrived = _shared(consumers)          # messages
        self.bytes_arrived = _shared(consumers)    # of payloads, before compression
        self.behind = _shared(producers)           # messages that were due and are not sent yet
        self.publish_counts = _shared(producers, latencies.BUCKETS)
        self.arrival_counts = _shared(consumers, latencies.BUCKETS)
        self.cpu_us = _shared(producers + consumers)       # of processes, in the order of their start
        self._stops = _shared(2)

    def __repr__(self) -> str:
        return f"<Board published={self.published.sum()} arrived={self.arrived.sum()}>"

    @property
    def stops_producing(self) -> bool:
        return bool(self._stops[0])

    @property
    def stops_consuming(self) -> bool:
        return bool(self._stops[1])

    def stop_producing(self) -> None:
        self._stops[0] = 1

    def stop_consuming(self) -> None:
        self._stops[1] = 1


def _shared(*shape: int) -> NDArray[np.int64]:
    """Return zeros that this process and its children share."""
    memory: Any = FORK.RawArray("q", max(1, int(np.prod(shape))))
    return np.frombuffer(memory, np.int64)[:int(np.prod(shape))].reshape(shape)
