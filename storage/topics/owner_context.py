"""The owner as commands, policies, upkeep and administration see it: tables, decisions of the pass, and requests.

These rooms take an OwnerContext, never the Owner, so they can be read, typed and tested without it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.names import TopicName
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.ledgers.journal import Journal
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.ledgers.position import Position
from geminga.storage.options import StorageOptions
from geminga.storage.runtime.counters import Counters
from geminga.storage.topics.decisions import Outbox
from geminga.storage.topics.non_persistent import NonPersistentTopic
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.session import Session
from geminga.storage.topics.subscription import Consumer, Producer, Subscription, Topic

# (session, type, id of the producer or consumer) -> the command
ParkedCommands = dict[tuple[Session, int, int], api.BaseCommand]


class ProducerGate(Protocol):
    """The part of the publish gate that commands use."""

    def enter(self, session: Session, command: api.BaseCommand, partition: Partition) -> bool:
        """Whether the producer may be created now; else its command waits.  Raises Refusal."""

    def withdraw(self, session: Session, partition: Partition, producer_id: int) -> api.BaseCommand | None:
        """Withdraw and return the command of a producer that waits; None: none does."""


class ProducerRates(Protocol):
    """The part of the rate limiter that commands and administration use."""

    def left(self, producer: Producer) -> None:
        """Drop the SENDs held back of a producer that has closed."""

    def causes(self, topic: Topic) -> list[dict[str, Any]]:
        """[{"cause": ..., ...}], as JSON, of the rates that throttle the topic's producers."""


class Discoveries(Protocol):
    """The part of the topic discovery that commands and policies use."""

    def ended(self, connection: tuple[int, int]) -> None:
        """Forget a connection, (worker, number)."""

    def is_expected(self, partition: Partition, now_ms: int) -> bool:
        """Whether a subscription that is created now is to begin at the first message."""

    def holds(self, partition: Partition, now_ms: int) -> bool:
        """Whether ledgers of the partition are kept for subscriptions that are yet to be created."""


class CompactedReaders(Protocol):
    """The part of the compacted views that commands use."""

    def begin(self, subscription: Subscription, *, reads_compacted: bool) -> None:
        """Give the subscription the compacted view that its consumers read, before the first one attaches."""


class TransactionCoordinator(Protocol):
    """The part of the coordinator of transactions that commands use.  Its functions answer the client."""

    def new(self, session: Session, request_id: int, coordinator: int, lifetime_ms: int) -> None:
        """Begin a transaction.  Raises Refusal, StorageFull, NotDurable."""

    def add(self, session: Session, request_id: int, bits: tuple[int, int], wanted: list[tuple[str, str | None]],
            kind: int, answer: Callable[[int, int, int], bytes]) -> None:
        """Add topics, or subscriptions, to a transaction.  Raises Refusal, StorageFull."""

    def backed_up(self) -> dict[int, bytes]:
        """Return the content of each coordinator's table in a backup, by number.  Raises Refusal."""

    def end(self, session: Session, request_id: int, bits: tuple[int, int], kind: int,
            answer: Callable[[int, int, int], bytes], *, commits: bool) -> None:
        """Commit or abort a transaction.  Raises Refusal, StorageFull."""


class AcknowledgementsHeld(Protocol):
    """The part of the ACKs that wait for coordinators that commands use."""

    def hold(self, session: Session, ack: api.CommandAck, subscription: Subscription, transaction: int) -> bool:
        """Hold back an ACK, and ask the coordinator; False if nothing is to be asked.  Raises Refusal."""


class OwnerContext(Protocol):
    """One owner, between the beginning of a pass and its end."""

    # Tables
    data_dir: Path
    options: StorageOptions
    catalogue: Catalogue
    journal: Journal
    counters: Counters
    now_ms: int                                       # when the pass began, in ms since 1970
    began: float                                      # when the pass began, in seconds of time.perf_counter
    by_name: dict[TopicName, Partition]               # open partitions
    non_persistent: dict[TopicName, NonPersistentTopic]      # non-persistent topics that clients use
    sessions: dict[tuple[int, int], Session]          # by worker and connection
    producers: dict[int, Producer]                    # by handle
    non_persistent_producers: dict[int, Producer]     # of non-persistent topics, by handle
    replicators: dict[int, Producer]                  # producers of other clusters' replicators, by handle
    addressed: dict[int, Producer]                    # producers for one subscription each, by handle
    consumers: dict[int, Consumer]                    # by handle
    contended: dict[Topic, None]                      # with producers that wait for exclusive access
    parked: dict[tuple[int, int], ParkedCommands]     # by the connection that is in their way, and is being probed
    expected_readers: dict[Subscription, int]         # readers that sought and must reconnect -> since when, in ms
    unreadable: set[tuple[Partition, Position]]       # entries that clients could not read, of the last minute

    # Decisions of the pass, see decisions.py
    changed: dict[Topic, None]
    acknowledged: dict[Partition, None]
    moved: dict[Subscription, None]
    to_dispatch: dict[Topic, None]
    to_trim: dict[Partition, None]
    must_sync: bool

    @property
    def gate(self) -> ProducerGate: ...

    @property
    def rates(self) -> ProducerRates: ...

    @property
    def discovery(self) -> Discoveries: ...

    @property
    def views(self) -> CompactedReaders: ...

    @property
    def coordinator(self) -> TransactionCoordinator: ...

    @property
    def held_acks(self) -> AcknowledgementsHeld: ...

    @property
    def has_ops(self) -> bool: ...

    def take_ops(self) -> bytes: ...

    def note(self, partition: Partition, op: bytes) -> None: ...

    def note_in_order(self, partition: Partition, ops: NDArray[Any]) -> None: ...

    def note_many(self, partition: Partition, ops: NDArray[Any]) -> None: ...

    def count(self, subscription: Subscription, reason: int, messages: int) -> None: ...

    def count_delivered(self, consumer: Consumer, entries: int, size: int) -> None: ...

    def answer_needs_sync(self) -> None: ...

    def after_commit(self, action: Callable[[], None]) -> None: ...

    def wake(self, topic: Topic) -> None: ...

    def wake_trimming(self, partition: Partition) -> None: ...

    def outbox(self, worker: int) -> Outbox: ...

    # Requests to the owner

    def has(self, session: Session) -> bool:
        """Whether the session's connection is still open."""

    def new_handle(self) -> int:
        """A number for a producer or consumer, unique as long as the owner lives."""

    def commit(self) -> None:
        """Make all decisions so far durable, in the middle of a pass.  Raises NotDurable.

        The sync step of the pass does this for nearly all decisions; `after_commit` has files changed behind it.  A
        decision may not wait for that step when something that is carried out later in the same pass, or its own
        answer, depends on files which a crash must not show before the journal's ops:

        - unload: a later command of the pass opens the partition anew, from its files.
        - delete: the catalogue is changed after the journal here, and before it in every other commit.  When the
          catalogue has no room, everything that it has not committed is undone.
        - a night's trimming: the answer says how many bytes were given back.
        - a backup's cut: the answer says which states were written down.
        - cancelling a delayed message: the answer says whether the index of delayed messages could be amended.
        """

    def partition(self, name: TopicName) -> Partition | None:
        """The partition of that name, opened if it is stored.  Raises CorruptFile, StorageFull, Refusal."""

    def create_partition(self, name: TopicName) -> Partition:
        """Create an empty partition.  Raises StorageFull, Refusal."""

    def refuse_foreign(self, name: TopicName) -> None:
        """Raise Refusal for a topic of another owner."""

    def release(self, partition: Partition) -> None:
        """Unload a partition that no client uses.  Raises StorageFull, NotDurable."""

    def delete(self, name: TopicName) -> None:
        """Delete the partition of that name.  Raises StorageFull, NotDurable."""

    def forget_topic(self, topic: NonPersistentTopic) -> bool:
        """Forget a non-persistent topic; return whether there was one."""

    def apply_policies(self, topic: Topic) -> None:
        """Apply the topic's policies, as the catalogue has them."""

    def apply_options(self) -> None:
        """Apply the options, as the catalogue has them."""

    def roll(self, partition: Partition, *, is_idle: bool = False) -> None:
        """Seal the partition's open ledger and open a new one.  Raises StorageFull."""

    def truncate(self, partition: Partition) -> None:
        """Delete all entries of a partition on which everything is acknowledged.  Raises StorageFull."""

    def forget_mapped(self, ledger: Ledger) -> None:
        """Have workers unmap the ledger's files."""

    def publish_held(self, topic: Topic) -> None:
        """Publish the SENDs to the topic that a rate holds back."""

    def publish_asked(self, partition: Partition, transaction: int) -> None:
        """Publish the SENDs that wait for a coordinator, which has answered about this transaction."""

    def drop_sends(self, worker: int, rows: NDArray[Any]) -> None:
        """Answer rows (n,) SEND_ROW, which are being published, with receipts, and store nothing."""

    def refuse_sends(self, worker: int, rows: NDArray[Any], code: api.ServerError.ValueType, text: str) -> None:
        """Answer rows (n,) SEND_ROW, which are being published, with an error."""

    def carry_out(self, session: Session, command: api.BaseCommand, *, probed: bool = False) -> None:
        """Carry out a client's command.  probed: the connection in its way was probed, and answered."""

    def log_once(self, text: str, *, code: str, **fields: str) -> None:
        """Log an error line, once however often the error occurs."""

    def report_damage(self, text: str, *, code: str = "G120") -> None:
        """Log damage of a file, and count it."""
