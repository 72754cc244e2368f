"""Options of a worker: one frozen dataclass, handed down by the supervisor."""
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Options of [network]: where a worker listens, what it tells clients of the broker, how much it holds for them."""

    bind: str = "127.0.0.1"                   # address the binary protocol listens on
    port: int = 6650                          # 0 takes a free one, -1: none
    advertised_address: str = ""              # host name in lookup answers; empty: `bind`, or localhost for a wildcard
    advertised_listeners: tuple[str, ...] = ()  # "NAME:pulsar://HOST:PORT", or pulsar+ssl; clients name one in LOOKUP
    max_message_size: int = 5_242_880         # bytes, announced to clients; frames may be 10 KiB larger
    keep_alive_interval_ms: int = 30_000      # PING after so much silence; the connection ends after twice that
    write_buffer_bytes: int = 1 << 20         # bytes waiting for a slow client before deliveries to it pause
    in_flight_bytes: int = 4 << 20            # that an owner has not taken; above it, publishers are not read from
    broker_entry_metadata: tuple[str, ...] = ()  # "timestamp", "index": fields that are added to delivered entries
    expose_broker_entry_metadata: bool = False   # deliver it to clients of protocol 18 whose feature flag asks for it
