"""What all processes of a load share, and their connections.

    Load      what is put on a broker
    Board     a few numbers in shared memory: how far each process is, and when to stop
    Link      a connection of `geminga bench` to the load's broker
"""

import multiprocessing as mp
import ssl
from dataclasses import dataclass

import sends

from geminga.supervisor.load import link as product
from geminga.supervisor.load import wire
from geminga.supervisor.load.link import ANSWER_MAX_S, CLOCK, BrokerError, RequestRefused, reason_of

__all__ = ["ANSWER_MAX_S", "CLOCK", "Board", "BrokerError", "Link", "Load", "RequestRefused"]


@dataclass(frozen=True, slots=True)
class Load:
    """What is put on a broker. Every process gets all of it."""

    host: str
    port: int
    topics: tuple[str, ...]
    size_bytes: int = 100
    batch: int = 1              # messages in an entry
    rate: float = 0             # messages a second of one connection; 0 is as many as go
    connections: int = 1        # producers' connections, each with a producer on every topic
    consumers: int = 1          # consumers' connections; 0 publishes only
    kind: str = "exclusive"     # subscription type
    window: int = 5000          # entries of one connection without a receipt
    permits: int = 20_000       # messages, of each consumer
    # Messages that may be on their way before producers hold back; 0 for no bound.  Two windows, so that what goes in
    # and what comes out are in balance before the warm-up ends.  It does not steady a broker that has two speeds:
    # Pulsar 4.0 at full rate now and then runs at a quarter of its usual rate (seen with 10,000, 20,000 and 50,000
    # alike), so compare medians of several rounds.
    lead: int = 10_000
    limit: int = 0              # entries of one connection; 0 is until told to stop
    subscription: str = "bench"
    subscriptions: int = 1      # consumers take turns with them; what is published arrives so many times
    # Seconds (from, to): messages are delayed, by a random time in between from when they are sent or, with due_at,
    # from that time on.
    delay_s: tuple[float, float] | None = None
    due_at: float = 0           # seconds since 1970
    trusted: str = ""           # file with the authority of the broker's certificate: TLS is spoken
    crowd: int = 0              # connections of each process that produces, each with one producer; see crowd.py
    keys: int = 0               # messages have one of so many keys
    ttl: str = ""               # messages have the property `geminga.ttl`, and no key


class Board:
    """Shared numbers; each has one writer, so they need no lock."""

    def __init__(self, load: Load):
        self.published = mp.RawArray("q", load.connections)  # messages with a receipt
        self.arrived = mp.RawArray("q", max(1, load.consumers))
        self.producers_stop = mp.RawValue("b", 0)
        self.consumers_stop = mp.RawValue("b", 0)


class Link(product.Link):
    """A connection to the broker of a load, after its handshake."""

    def __init__(self, load: Load):
        tls = ssl.create_default_context(cafile=load.trusted) if load.trusted else None
        super().__init__(load.host, load.port, wire.connect(), tls)

    def find(self, topic: str) -> None:
        """The two questions a client asks before it opens a producer or consumer."""
        found = self.ask(f"metadata of {topic}", sends.partitioned_metadata(topic, self.request_id()),
                         sends.PARTITIONED_METADATA_RESPONSE)
        if found.get(3) == 1:
            raise BrokerError(f"metadata of {topic}: {reason_of(found.get(5, b''))}")
        if found.get(1):
            raise BrokerError(f"{topic} has {found[1]} partitions: only topics without are measured")
        found = self.ask(f"lookup of {topic}", sends.lookup(topic, self.request_id()), sends.LOOKUP_RESPONSE)
        if found.get(3) != 1:
            why = f"{reason_of(found.get(7, b''))} {reason_of(found.get(1, b''))}"
            raise BrokerError(f"lookup of {topic}: {why}".rstrip())
