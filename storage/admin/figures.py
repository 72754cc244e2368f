"""Answers of owners about topics: counters, rates, positions and sizes, under the broker's own names.

The admin process makes Pulsar's JSON of them. Times are milliseconds since 1970, and 0 where nothing has happened yet.
Rates are per second, over the last complete window (`stats_window_s`). Sizes are bytes.
"""
from dataclasses import dataclass

from geminga.storage.ledgers.position import Position

# -- statistics of a topic

@dataclass(frozen=True)
class ProducerFigures:
    """Statistics of one connected producer."""

    name: str
    producer_id: int
    access_mode: str               # as ProducerAccessMode names it
    address: str                   # of its client, "" while the client has not introduced itself
    client_version: str            # likewise
    supports_partial: bool         # whether its client may produce to some partitions only
    connected_ms: int
    metadata: dict[str, str]       # properties that its client gave
    message_rate: float
    byte_rate: float
    chunk_rate: float
    drop_rate: float               # messages dropped because the connection has too many under way; 0 for stored topics


@dataclass(frozen=True)
class InboundFigures:
    """Statistics of what the connected replicators of one other cluster publish to a topic."""

    message_rate: float
    byte_rate: float
    messages: int                  # since they connected
    bytes: int
    address: str                   # of the last one to connect, as in ProducerFigures
    connected_ms: int


@dataclass(frozen=True)
class DrainingHash:
    """A key hash that has moved to another consumer, while the former one has unacknowledged entries of it."""

    hash: int
    entries: int
    blocked: int                   # how often entries of the hash could not be delivered


@dataclass(frozen=True)
class ConsumerFigures:
    """Statistics of one connected consumer."""

    name: str
    address: str                   # of its client, as in ProducerFigures
    client_version: str
    connected_ms: int
    metadata: dict[str, str]
    message_rate: float
    byte_rate: float
    redeliver_rate: float
    acknowledge_rate: float
    chunk_rate: float
    messages_out: int
    bytes_out: int
    entries_out: int
    permits: int
    unacknowledged: int            # messages
    is_blocked: bool               # by its unacknowledged messages
    hashes_cleared: int            # draining hashes that have been settled
    acked_ms: int
    consumed_ms: int
    flow_ms: int                   # when it last granted permits
    draining: list[DrainingHash] | None              # None unless the subscription is Key_Shared
    ranges: list[tuple[int, int]] | None             # (first, last) key hashes; None unless it is Key_Shared


@dataclass(frozen=True)
class Holder:
    """A consumer, and the messages that it holds."""

    name: str
    address: str                       # host:port of its client; "" as in ProducerFigures
    library: str                       # likewise
    connected_ms: int
    acknowledged_ms: int               # when it last acknowledged, and was delivered an entry; 0: never
    consumed_ms: int
    messages: int                      # delivered and not acknowledged
    permits: int
    is_active: bool                    # gets messages; False for the standby consumers of Failover


@dataclass(frozen=True)
class SubscriptionFigures:
    """Statistics of one subscription; `consumers` is empty if the question did not ask for consumers."""

    type: str                      # as SubType names it, "None" if it never had a consumer
    message_rate: float
    byte_rate: float
    redeliver_rate: float
    acknowledge_rate: float
    chunk_rate: float
    expire_rate: float
    drop_rate: float               # messages without a consumer that has permits; 0 for stored topics
    messages_out: int
    bytes_out: int
    expired: int                   # messages
    backlog: int                   # entries
    backlog_bytes: int
    delayed: int                   # entries that wait for their delivery time
    delayed_memory: int            # bytes of the delayed index in memory, if entries of it wait for this subscription
    to_redeliver: int              # entries
    unacknowledged: int            # messages at consumers
    is_blocked: bool               # by unacknowledged messages
    earliest_publish_ms: int       # of the backlog's first entry; 0 if the question left it out
    expired_ms: int
    acked_ms: int
    consumed_ms: int
    flow_ms: int
    advanced_ms: int               # when the mark-delete position last moved
    acknowledged_runs: int         # beyond the mark-delete position
    bitmap_bytes: int              # of acknowledgements beyond the mark-delete position
    is_durable: bool
    is_replicated: bool
    allows_out_of_order: bool
    draining_hashes: int
    draining_entries: int
    hashes_cleared: int
    is_sticky: bool | None         # whether consumers choose their hashes; None unless Key_Shared with consumers
    active_consumer: str | None    # of Exclusive and Failover
    accepted: int                  # messages that matched the filter, since the topic was opened; 0 without a filter
    rejected: int                  # messages that did not
    throttled: list[int]           # how often each rate throttled it, in the order of columns.THROTTLED
    properties: dict[str, str]
    messages: dict[str, int] | None      # account of all messages since its beginning; None for non-persistent topics
    waiting: dict[str, int]        # priority -> entries that wait; {} if they are not delivered by priority
    consumers: list[ConsumerFigures]


@dataclass(frozen=True)
class ReplicationFigures:
    """Statistics of what goes from a topic to one other cluster."""

    expire_rate: float
    expired: int                   # messages
    backlog: int                   # entries
    backlog_bytes: int
    delay_s: int                   # age of the backlog's first entry; 0 without a backlog
    is_connected: bool             # whether the replicator reads the topic


@dataclass(frozen=True)
class CompactionFigures:
    """Statistics of the compaction that made the view in force; all 0 without a view."""

    removed: int                   # messages
    succeeded_ms: int
    seconds: float


@dataclass(frozen=True)
class ExportFigures:
    """How far a topic is exported, and what the next night has to export."""

    position: Position             # of the last exported entry; (-1, -1): nothing is exported
    exported_ms: int               # when that was told; 0: nothing is exported
    unexported_bytes: int
    age_s: int                     # of the oldest unexported entry; -1: everything is exported


@dataclass(frozen=True)
class TopicFigures:
    """Statistics of one topic; `publishers` is empty if the question did not ask for producers."""

    message_rate_in: float
    byte_rate_in: float
    message_rate_out: float
    byte_rate_out: float
    drop_rate: float               # of a non-persistent topic's subscriptions and producers together; else 0
    messages_in: int
    bytes_in: int
    messages_out: int
    bytes_out: int
    has_chunks: bool
    storage_bytes: int
    quota_bytes: int               # -1: none
    quota_age_s: int               # -1: none
    backlog_age_s: int             # age of the oldest unacknowledged entry; -1 without a backlog
    slowest: str | None            # the durable subscription with the oldest unacknowledged entry
    transactions: tuple[int, int, int]      # that published: open, aborted, committed since it was opened
    publish_limited: int           # how often a publish rate throttled the topic
    delayed_memory: int
    deduplicates: bool
    topic_epoch: int | None
    created_ms: int
    last_publish_ms: int
    compaction: CompactionFigures
    export: ExportFigures | None   # None: no night exports the topic
    waiting_producers: int
    publishers: list[ProducerFigures]      # without replicators
    inbound: dict[str, InboundFigures]     # by the cluster whose replicators are connected
    subscriptions: dict[str, SubscriptionFigures]
    replication: dict[str, ReplicationFigures]       # by the other cluster


# -- how a topic is stored

@dataclass(frozen=True)
class LedgerFigures:
    """The id, entries and age of one ledger, with the size of its entries in bytes."""

    ledger_id: int
    entries: int
    size: int
    created_ms: int


@dataclass(frozen=True)
class ViewFigures:
    """The number, entries and size of a compacted view."""

    number: int
    entries: int
    size: int


@dataclass(frozen=True)
class CursorFigures:
    """The positions and counts of one subscription's cursor."""

    mark_delete: Position
    read: Position
    settled: int                   # messages acknowledged, expired, skipped and evicted
    delivered: int                 # entries from the first unacknowledged one up to the read position
    has_consumers: bool
    is_waiting: bool               # whether it has consumers and has delivered everything
    to_redeliver: int              # entries
    run_count: int                 # acknowledged runs beyond the mark-delete position
    runs: list[tuple[int, int, int]]      # the first of them: ledger id, entry before the run, last entry of the run


@dataclass(frozen=True)
class StorageFigures:
    """The ledgers and cursors of a topic; a non-persistent topic has no ledgers."""

    entries_in: int                # published since the topic was opened
    last_confirmed: Position
    is_terminated: bool
    waiting_cursors: int
    view: ViewFigures | None
    ledgers: list[LedgerFigures]
    cursors: dict[str, CursorFigures]


@dataclass(frozen=True)
class StoredCursor:
    """The durable part of one subscription's cursor."""

    mark_delete: Position
    advanced_ms: int
    backlog: int                   # entries


@dataclass(frozen=True)
class StoredTopic:
    """The state of a topic that outlives a restart; `ledgers` is never empty."""

    created_ms: int
    answered_ms: int
    ledgers: list[LedgerFigures]
    cursors: dict[str, StoredCursor]


@dataclass(frozen=True)
class Reclaimed:
    """The bytes, messages and producer names that the nightly work on one partition has removed."""

    topic: str
    bytes_before: int
    bytes_after: int
    freed: int                         # bytes
    messages_before: int
    messages_after: int
    expired: int                       # messages, summed over subscriptions
    names_forgotten: int               # producers that deduplication knew
    seconds: float
