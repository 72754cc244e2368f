"""Options of a worker: one frozen dataclass, handed down by the supervisor."""
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Options of [network]: where a worker listens, what it tells clients of the broker, how much it holds for them."""

    bind: str = "127.0.0.1"                   # address the binary protocol listens on
    port: int = 6650                          # 0 takes a free one, -1: none
    advertised_address: str = ""              # host name in lookup answers; empty: the bind address, or localhost when that is a wildcard
    advertised_listeners: tuple[str, ...] = ()  # "name:pulsar://host:port", or pulsar+ssl; asked for by clients as advertised_listener_name
    max_message_size: int = 5_242_880         # told to clients; frames may be 10 KiB larger
    keep_alive_interval_ms: int = 30_000      # PING after so much silence; the connection ends after twice that
    write_buffer_bytes: int = 1 << 20         # bytes waiting for a slow client before deliveries to it pause
    in_flight_bytes: int = 4 << 20            # unanswered bytes sent to an owner before producers wait; so do permits behind them
    broker_entry_metadata: tuple[str, ...] = ()  # of "timestamp", "index": what is added to entries delivered
    expose_broker_entry_metadata: bool = False   # deliver it to clients that understand it (protocol 18 and their feature flag)
