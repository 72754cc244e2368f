"""Questions to an owner whose answers are lists: tables of topics, subscriptions and clients, pages of messages, maps.

Each owner answers with the first rows of a table in the asked order; the admin process merges the answers of all
owners.
"""
import fnmatch
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from geminga.proto import names
from geminga.storage.admin.questions import Question, StoredEntry, TopicQuestion
from geminga.storage.ledgers.position import Position

KINDS = PARTITIONED, NON_PERSISTENT = "partitioned", "non-persistent"      # partitions; topics that keep nothing
SEGMENTS = "segments"      # a kind that questions use, and nobody else: only those of scalable topics
_LIVE, _SEGMENT = f"{NON_PERSISTENT}://", f"{names.SEGMENT}://"


@dataclass(frozen=True)
class Listing:
    """Rows of a table, each an object."""

    stale: int                         # topics whose rows are not up to date yet; above 0 there are no rows: ask again
    total: int                         # rows in the scope, of which `rows` are the first
    rows: list[object]
    open: list[int] = field(default_factory=list)      # of subscriptions: ids of the open partitions in the scope


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The topics that a question is about."""

    within: str = ""                   # a namespace, or a topic's complete name, also for its parts; "": all
    match: str = ""                    # wildcards: of names in the namespace, else of tenant/namespace/topic
    kind: str = ""                     # one of KINDS, or SEGMENTS; "": every kind
    segments: bool = True              # those of scalable topics too
    # Segments that were partitions, or topics, before their topic was made scalable -> that topic.
    legacy: dict[str, str] = field(default_factory=dict)

    def test(self) -> Callable[[str], bool]:
        """Return a test whether a topic's complete name is in the scope."""
        is_named = self._name_test() if self.segments else self._without_segments(self._name_test())
        if self.kind == SEGMENTS:
            return lambda name: (name.startswith(_SEGMENT) or name in self.legacy) and is_named(name)
        if self.kind == PARTITIONED:
            return lambda name: names.without_partition(name) != name and is_named(name)
        return (lambda name: name.startswith(_LIVE) and is_named(name)) if self.kind else is_named

    def _name_test(self) -> Callable[[str], bool]:
        is_match = re.compile(fnmatch.translate(self.match)).match if self.match else None
        if "://" in self.within:
            return lambda name: self.within in (name, self.legacy.get(name) or _whole(name))
        if self.within:
            domains = (*names.DOMAINS, names.SCALABLE, names.SEGMENT)
            places = tuple(f"{domain}://{self.within}/" for domain in domains)
            start = len(self.within) + 1
            return lambda name: name.startswith(places) and (
                is_match is None or bool(is_match(name.partition("://")[2][start:])))
        return lambda name: is_match is None or bool(is_match(name.partition("://")[2]))

    def _without_segments(self, test: Callable[[str], bool]) -> Callable[[str], bool]:
        return lambda name: not name.startswith(_SEGMENT) and name not in self.legacy and test(name)


def _whole(name: str) -> str:
    """Return the topic that a stored name belongs to.

    The topic is the partitioned one for a partition, the scalable one for a segment, and else the name itself.
    """
    return str(names.parse(name).base) if name.startswith(_SEGMENT) else names.without_partition(name)


@dataclass(frozen=True, kw_only=True)
class Sorting:
    """The order of rows, and how many of them are wanted."""

    sort: str                          # a key of the rows
    ascending: bool
    most: int


@dataclass(frozen=True, kw_only=True)
class ListTopics(Question[Listing], Scope, Sorting, name="list-topics"):
    """A question for rows of open topics."""

    is_bare: bool = False              # whether rows have nothing but the topic and the key by which they are sorted
    among: list[str] | None = None     # complete names of the topics that have rows; None: the first ones in the order


@dataclass(frozen=True, kw_only=True)
class ListSubscriptions(Question[Listing], Scope, Sorting, name="list-subscriptions"):
    """A question for rows of subscriptions of open topics."""

    named: str = ""                    # wildcards of the subscription's name; "": every name


@dataclass(frozen=True, kw_only=True)
class ListClients(Question[Listing], Scope, name="list-clients"):
    """A question for a row of each client connection that the owner knows."""


@dataclass(frozen=True, kw_only=True)
class ListUnexported(Question[Listing], name="list-unexported"):
    """A question for the open topics with messages to export that were published before a time, the oldest first.

    A row has `topic` and `since_ms`, the time at which its oldest such message was stored.
    """

    before_ms: int
    most: int


@dataclass(frozen=True, kw_only=True)
class ListUnreplicated(Question[Listing], name="list-unreplicated"):
    """A question for replication cursors whose oldest entry was stored before a time, the oldest first.

    A row has `topic`, `remote`, `since_ms`, which is that time, and `is_connected`: whether the replicator reads.
    """

    before_ms: int
    most: int


@dataclass(frozen=True, kw_only=True)
class ListDeadLetters(Question[Listing], name="list-dead-letters"):
    """A question for subscriptions of open topics with dead letters that are not moved yet.

    A row has `topic`, `subscription`, `entries`, `target`, which is the local name that the policy gives to their
    topic or "", `keeper`, the subscription made there, `is_moving`, and `error`: why the last attempt moved none.
    """

    most: int


# -- messages and positions of one topic

@dataclass(frozen=True)
class StoredPage:
    """Some stored entries, in order."""

    entries: list[StoredEntry]
    left: list[list[int]]              # words of an ack set for each entry: 1 for a message that is left; []: all are
    has_more: bool                     # whether there are others behind them, or before the last ones
    passed_entries: int                # entries that were passed over first, ...
    passed_messages: int               # ... and messages in them


@dataclass(frozen=True, kw_only=True)
class GetPage(TopicQuestion[StoredPage], name="page"):
    """A question for entries in the order in which they are stored: all, or those that a subscription has left.

    Entries of open and aborted transactions, lost ones and cancelled ones are left out.
    """

    subscription: str | None = None
    position: Position | None = None   # only entries from here on
    skipped: int = 0                   # entries that are passed over first
    from_latest: bool = False          # the last entries, instead of the first ones
    entries_max: int
    bytes_max: int                     # of all entries together, beyond the first one


STATES = "acknowledged", "out", "again", "parked", "delayed", "waiting"      # of an entry, for a subscription


@dataclass(frozen=True)
class CursorMap:
    """The states of a topic's stored entries for one subscription: counts of each state, in segments."""

    topic: str
    entries: int                       # stored, of which each segment has the same number
    mark_delete: Position
    read: Position                     # the next entry to deliver
    counts: dict[str, int]             # entries by state
    segments: list[list[int]]          # entries by state, in the order of STATES
    starts: list[Position]             # first entry of each segment
    ledgers: list[tuple[int, int, int]]      # (id, entries before it, entries): the last ones
    ledger_count: int
    is_exact: bool                     # False: entries far behind the mark-delete position are counted as waiting


@dataclass(frozen=True, kw_only=True)
class GetCursorMap(TopicQuestion[CursorMap], name="cursor-map"):
    """A question for the states of all entries of a topic for a subscription."""

    subscription: str
    segments: int
