"""Questions of administration to an owner, each a dataclass that names the type of its answer.

The admin process makes a question and sends it to the owner of its topic; `queries.py` finds the function that answers
it. On the wire a question is a JSON object: "ask" has its name, "topic" its topic, and each other field has its own
name.

A question about a subscription that does not exist is refused. If it is asked `everywhere`, it goes to all partitions
of a topic or namespace, and partitions without the subscription ignore it.
"""
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypedDict, TypeVar, get_args

from geminga.proto.names import TopicName
from geminga.storage.admin import typed_json
from geminga.storage.admin.figures import Holder, Reclaimed, StorageFigures, StoredTopic, TopicFigures
from geminga.storage.ledgers.position import Position

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Question(Generic[Answer]):
    """A question of administration to one owner."""

    name: ClassVar[str] = ""           # on the wire; empty for a class of questions

    def __init_subclass__(cls, name: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.name = name

    def encode(self) -> bytes:
        """Return the question as JSON."""
        return typed_json.dump({"ask": self.name} | vars(self))


@dataclass(frozen=True)
class TopicQuestion(Question[Answer]):
    """A question of administration about one topic or partition, to its owner."""

    topic: TopicName


def answer_type(kind: type[Question[Any]]) -> object:
    """Return the type annotation of the answer to questions of a class."""
    [base, *_] = kind.__orig_bases__      # type: ignore[attr-defined]      # every class of a generic base has it
    [annotation] = get_args(base)
    return annotation


class TopicPlaceFields(TypedDict, total=False):
    """A place in a topic, as keyword arguments of the questions that are a `TopicPlace`."""

    position: Position | None
    behind: bool
    batch_index: int


@dataclass(frozen=True, kw_only=True)
class TopicPlace:
    """A place in a topic: an entry, the position behind it, or a message of a batch.

    (-1, -1) is the beginning of a topic, and (2**63 - 1, 2**63 - 1) its end, as clients write them.
    """

    position: Position | None = None
    behind: bool = False               # the place behind the position
    batch_index: int = -1              # of the message in the entry; -1: the entry as a whole


# -- topics

@dataclass(frozen=True)
class Terminate(TopicQuestion[Position], name="terminate"):
    """A request to terminate a topic, so that it never takes messages again.

    The answer is the position of its last entry.
    """


@dataclass(frozen=True)
class Unload(TopicQuestion[None], name="unload"):
    """A request to unload a topic: clients look it up again, and its next use opens it."""


@dataclass(frozen=True, kw_only=True)
class OpenTopics(Question[list[str]], name="open"):
    """A question for the open topics of a namespace, which can be unloaded."""

    namespace: str


@dataclass(frozen=True, kw_only=True)
class Delete(TopicQuestion[None], name="delete"):
    """A request to delete a topic or partition with all its data."""

    force: bool                        # although it has producers or consumers
    gone: bool = False                 # the catalogue may have forgotten it already, with its partitioned topic


@dataclass(frozen=True)
class IsUsed(TopicQuestion[bool], name="is_used"):
    """A question whether a topic has producers or consumers."""


@dataclass(frozen=True)
class Truncate(TopicQuestion[None], name="truncate"):
    """A request to acknowledge all entries of a topic for all subscriptions, and to delete all ledgers."""


@dataclass(frozen=True)
class Trim(TopicQuestion[None], name="trim"):
    """A request to delete a topic's ledgers that no subscription and no policy needs."""


@dataclass(frozen=True, kw_only=True)
class ApplyPolicies(Question[None], name="policies"):
    """A request to apply policies of a namespace or topic, changed in the catalogue, to open partitions."""

    scope: str


@dataclass(frozen=True)
class ApplyOptions(Question[None], name="options"):
    """A request to apply options of the broker that were changed in the catalogue."""


# -- subscriptions

@dataclass(frozen=True)
class Subscriptions(TopicQuestion[list[str]], name="subscriptions"):
    """A question for the names of a topic's subscriptions.  A topic that was created and never used is opened."""


@dataclass(frozen=True, kw_only=True)
class Subscribe(TopicQuestion[bool], TopicPlace, name="subscribe"):
    """A request to create a durable subscription at a place, or at the topic's beginning.

    The answer is False if the subscription exists already.
    """

    subscription: str
    properties: dict[str, str] | None = None
    replicated: bool = False
    shared: bool = False               # reports say so until a consumer comes
    may_create: bool = False           # the topic too
    looks: bool = False                # only whether it may be created
    new: bool = False                  # the partition was added a moment ago, and the catalogue may not have it yet


@dataclass(frozen=True, kw_only=True)
class Unsubscribe(TopicQuestion[None], name="unsubscribe"):
    """A request to delete a subscription."""

    subscription: str
    force: bool                        # although it has consumers
    everywhere: bool = False
    looks: bool = False                # only whether it may be deleted


@dataclass(frozen=True, kw_only=True)
class Properties(TopicQuestion[dict[str, str]], name="properties"):
    """A question for a subscription's properties, which are first replaced if `properties` is given."""

    subscription: str
    properties: dict[str, str] | None = None
    looks: bool = False                # only whether they may be replaced


@dataclass(frozen=True, kw_only=True)
class Replicated(TopicQuestion[dict[str, bool]], name="replicated"):
    """A question whether a subscription is marked as replicated; the mark is first set if `replicated` is given.

    The answer is {topic: mark}.
    """

    subscription: str
    replicated: bool | None = None


@dataclass(frozen=True)
class Standstill:
    """The state of one subscription, with the causes that keep its consumers from receiving more."""

    topic: str
    subscription: str
    type: str                          # of its consumers, or of its last ones; "None" if none is known
    backlog: int                       # entries
    oldest_ms: int | None              # when the first unacknowledged entry was stored
    messages: dict[str, int]           # account of all messages since its beginning; {} for non-persistent topics
    causes: list[dict[str, object]]    # {"cause": ..., and details}
    consumers: list[Holder]            # the first of them
    consumer_count: int
    waiting: dict[str, int]            # priority -> entries that wait; {} if they are not delivered by priority


@dataclass(frozen=True, kw_only=True)
class Why(TopicQuestion[Standstill], name="why"):
    """A question for the causes that keep a subscription's consumers from receiving more."""

    subscription: str


@dataclass(frozen=True)
class Released:
    """The number of parked entries that are to be delivered again."""

    entries: int


@dataclass(frozen=True, kw_only=True)
class Release(TopicQuestion[Released], name="release"):
    """A request to deliver the parked entries of a subscription's quarantine again."""

    subscription: str


@dataclass(frozen=True)
class TakenBack:
    """What has become of entries that a redrive sent, in numbers of entries."""

    free: int        # taken back
    held: int        # left alone: a consumer, a transaction or the quarantine has them, or they are dead already
    chunks: int      # left alone: their message could not be put together in another topic


@dataclass(frozen=True, kw_only=True)
class TakeBack(TopicQuestion[TakenBack], name="take-back"):
    """A request to give unacknowledged entries that nobody has to the mover that undoes a redrive.

    The answer leaves acknowledged entries out.
    """

    subscription: str
    positions: list[Position]      # ascending, of one ledger
    looks: bool                    # whether nothing is changed


# -- positions

@dataclass(frozen=True, kw_only=True)
class Clear(TopicQuestion[None], name="clear"):
    """A request to acknowledge the whole backlog of one subscription, or of all subscriptions of a topic."""

    subscription: str | None = None
    everywhere: bool = False
    asked_ms: int = 0                  # when; partitions with the same time are one backlog to take back


@dataclass(frozen=True, kw_only=True)
class TakeBacklogBack(TopicQuestion[int | None], name="take_backlog_back"):
    """A request to give a subscription a cleared backlog back.  Its consumers are closed, and subscribe again.

    The answer is the number of messages that come back; None: the partition keeps no such backlog.
    """

    subscription: str
    number: int                        # of the KeptTopic


@dataclass(frozen=True, kw_only=True)
class Skip(TopicQuestion[None], name="skip"):
    """A request to acknowledge a number of entries from a subscription's first unacknowledged one on."""

    subscription: str
    entries: int


@dataclass(frozen=True, kw_only=True)
class Reset(TopicQuestion[None], TopicPlace, name="reset"):
    """A request to reset a subscription to a time or a place.  Its consumers are closed, and subscribe again."""

    subscription: str
    time_ms: int | None = None         # None: to the place instead
    asked_ms: int = 0                  # as of Clear


@dataclass(frozen=True, kw_only=True)
class Expire(TopicQuestion[int | None], TopicPlace, name="expire"):
    """A request to expire messages of one subscription, or of all: by their age, or up to a place.

    The answer is the number of expired entries, None if the place does not exist yet.
    """

    subscription: str | None = None
    seconds: int | None = None         # age from which messages expire; None: up to the place instead


@dataclass(frozen=True)
class Backlog:
    """The backlog of a subscription: entries and messages not acknowledged, and its first and last entry."""

    entries: int
    messages: int
    first: Position | None
    last: Position | None


@dataclass(frozen=True, kw_only=True)
class Analyze(TopicQuestion[Backlog], TopicPlace, name="analyze"):
    """A request to count a subscription's backlog, from its mark-delete position on or from a place."""

    subscription: str


@dataclass(frozen=True, kw_only=True)
class BytesBehind(TopicQuestion[int], name="behind"):
    """A question for the number of bytes of a topic's entries behind a position."""

    ledger: int
    entry: int


@dataclass(frozen=True)
class LastMessage:
    """The id of a topic's last message.  The entry is -1 in an empty ledger."""

    ledger: int
    entry: int
    batch_index: int                   # -1 unless the entry is a batch
    batch_size: int                    # messages; 0 unless the entry is a batch


@dataclass(frozen=True)
class GetLastMessage(TopicQuestion[LastMessage], name="last_message"):
    """A question for the id of a topic's last message."""


@dataclass(frozen=True, kw_only=True)
class FindByTime(TopicQuestion[Position], name="at_time"):
    """A question for the position of the first entry published at or after a time.

    Without such an entry the answer is the position that the next entry will have.
    """

    time_ms: int


@dataclass(frozen=True, kw_only=True)
class FindByIndex(TopicQuestion[Position], name="by_index"):
    """A question for the entry that has the message of a given number, counted from the topic's beginning."""

    index: int


# -- messages

@dataclass(frozen=True)
class StoredEntry:
    """One entry with its stored bytes."""

    ledger: int
    entry: int
    data: str                          # base64: all bytes from the magic number of the checksum on
    timestamp: int                     # when it was stored, in ms
    index: int                         # number of its last message, counted from the topic's beginning


@dataclass(frozen=True, kw_only=True)
class Peek(TopicQuestion[StoredEntry], name="peek"):
    """A question for a subscription's n-th unacknowledged entry, counted from 1.

    A subscription that does not exist is treated as one that begins at the earliest message.
    """

    subscription: str
    number: int


@dataclass(frozen=True, kw_only=True)
class GetEntry(TopicQuestion[StoredEntry], name="entry"):
    """A question for the entry at a position."""

    position: Position


@dataclass(frozen=True, kw_only=True)
class Examine(TopicQuestion[StoredEntry | None], name="examine"):
    """A question for a topic's n-th entry, counted from 1, from the first one on or from the last one back.

    If there are fewer entries, the answer is the last one in that direction; None if there is none.
    """

    number: int
    from_latest: bool


# -- delayed messages

@dataclass(frozen=True)
class DelayedMessages:
    """The waiting delayed entries of a partition, and the size of their index."""

    waiting: int
    next_due_ms: int | None
    windows: int                       # files
    index_bytes: int                   # on disk
    memory_bytes: int
    # of hours and windows {"from", "to", "entries"}; of messages {"id", "deliver_at", ...}
    rows: list[dict[str, object]]


@dataclass(frozen=True, kw_only=True)
class GetDelayed(TopicQuestion[DelayedMessages], name="delayed"):
    """A question for a partition's waiting delayed entries due in [first_ms, end_ms)."""

    first_ms: int
    end_ms: int
    at_most: int                       # rows
    by: str                            # "hour", "window" (of the index) or "message"


@dataclass(frozen=True, kw_only=True)
class Cancel(TopicQuestion[bool | None], name="cancel"):
    """A request to cancel a waiting delayed entry for all subscriptions.

    The answer is False if the entry does not wait for its delivery time, None if it does not exist.
    """

    position: Position


@dataclass(frozen=True, kw_only=True)
class Reschedule(TopicQuestion[bool | None], name="reschedule"):
    """A request to give a waiting delayed entry another delivery time; a past one means now.

    The answer is False if the entry does not wait for its delivery time, None if it does not exist.
    """

    position: Position
    deliver_at_ms: int


# -- statistics

@dataclass(frozen=True, kw_only=True)
class GetStatistics(TopicQuestion[TopicFigures], name="stats"):
    """A question for a topic's statistics."""

    earliest: bool                     # with the publish time of the first message of each backlog
    publishers: bool
    consumers: bool


@dataclass(frozen=True)
class GetStorage(TopicQuestion[StorageFigures], name="internal"):
    """A question for the ledgers and cursors of an open topic."""


@dataclass(frozen=True)
class GetStored(TopicQuestion[StoredTopic], name="info"):
    """A question for the state of a topic that outlives a restart."""


@dataclass(frozen=True, kw_only=True)
class Measure(Question[bytes | int], name="measure"):
    """A question for statistics of all open topics, of which at most `most` get rows of their own.

    The answer is what statistics.pack returns, or the number of topics whose rows are not made yet: ask again.
    """

    most: int
    consumers: bool
    producers: bool


# -- compacted views, nights and backups, for jobs beside the broker

@dataclass(frozen=True, kw_only=True)
class AdoptView(TopicQuestion[None], name="adopt-view"):
    """A request to put the compacted view of a given number, which a job has made, into force."""

    view: int


@dataclass(frozen=True, kw_only=True)
class Settle(TopicQuestion[None], name="settle"):
    """A request to write into the partition's state file how its transactions have ended, for a job that reads it."""


@dataclass(frozen=True)
class CompactionDue(Question[list[tuple[int, str]]], name="compaction-due"):
    """A question for the (id, topic) of open partitions that have passed their compaction threshold."""


@dataclass(frozen=True, kw_only=True)
class NoteExported(TopicQuestion[None], name="exported"):
    """A request to write down that a partition is exported up to a position, and to delete what waited for that."""

    partition_id: int                  # a topic of the same name may have been created anew
    position: Position


@dataclass(frozen=True)
class Enforce(TopicQuestion[Reclaimed | None], name="enforce"):
    """A request to apply retention and expiry to a partition, and to clean up producers and views.

    Inactive producers are forgotten, and unfinished views are removed. The answer is None if nothing changed.
    """


@dataclass(frozen=True)
class Leftovers:
    """The number of folders of deleted partitions that were removed and that remain, and the bytes freed."""

    folders: int                       # removed now
    freed: int                         # bytes of these
    left: int                          # folders still to be removed


@dataclass(frozen=True)
class RemoveLeftovers(Question[Leftovers], name="leftovers"):
    """A request to remove some folders of deleted partitions, left by a deletion that a crash interrupted."""


@dataclass(frozen=True)
class BackupCut:
    """The part of one owner in a backup: a file in the backup's folder, and for how long the owner stood still."""

    file: str
    seconds: float


@dataclass(frozen=True)
class BeginBackup(Question[None], name="backup-begin"):
    """A request to hard-link the files of new ledgers and views into the backup's folder from now on."""


@dataclass(frozen=True)
class HoldCommits(Question[None], name="backup-hold"):
    """A request to decide no commit of a transaction, or to decide them again.  is_over: all owners have been cut."""

    is_over: bool = False


@dataclass(frozen=True)
class CutBackup(Question[BackupCut], name="backup-cut"):
    """A request to write the state of all partitions as of now, and to stop hard-linking new files."""
