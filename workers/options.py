"""Options of a worker: one frozen dataclass, handed down by the supervisor."""
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Options of [network]: where a worker listens, what it tells clients of the broker, how much it holds for them;
    and one of [transactions].
    """

    bind: str = "127.0.0.1"                   # address the binary protocol listens on
    port: int = 6650                          # 0 takes a free one, -1: none
    advertised_address: str = ""              # host name in lookup answers; empty: clients stay where they came
    advertised_listeners: tuple[str, ...] = ()  # "NAME:pulsar://HOST:PORT", or pulsar+ssl; clients name one in LOOKUP
    proxy_protocol: bool = False              # take PROXY headers (versions 1, 2) off connections that begin with one
    max_connections: int = 0                  # of clients, all workers together; 0: no bound
    max_connections_per_address: int = 0      # of one client's address; 0: no bound
    max_message_size: int = 5_242_880         # bytes, announced to clients; frames may be 10 KiB larger
    keep_alive_interval_ms: int = 30_000      # PING after so much silence; the connection ends after twice that
    write_buffer_bytes: int = 1 << 20         # bytes waiting for a slow client before deliveries to it pause
    in_flight_bytes: int = 4 << 20            # that an owner has not taken; above it, publishers are not read from
    broker_entry_metadata: tuple[str, ...] = ()  # "timestamp", "index": fields that are added to delivered entries
    expose_broker_entry_metadata: bool = False   # deliver it to clients of protocol 18 whose feature flag asks for it
    transactions: bool = True                 # transactions may be begun and used
