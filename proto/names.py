"""Topic names: {persistent|non-persistent}://tenant/namespace/topic, short forms, partitions; names of replicators.

`orders` means persistent://public/default/orders and `acme/eu/orders` means persistent://acme/eu/orders.  The form of
Pulsar 1, with a cluster in the middle, is refused with a hint.  A partition's name ends in -partition-N.

A scalable topic is topic://tenant/namespace/topic.  Its segments have the names
segment://tenant/namespace/topic/FIRST-LAST-ID: the first and last of their 65,536 hashes, in hex, and their number.
"""
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal

_PARTITION = re.compile(r"^(.+)-partition-(0|[1-9][0-9]{0,8})\Z", re.DOTALL)
PARTITION_MAX = 10 ** 9 - 1         # the highest number that the name of a partition has
# Characters that are blank to Pulsar, which asks Java: no others, such as a space that does not break, are.
_BLANKS = "\t\n\v\f\r\x1c-\x1f \u1680\u2000-\u2006\u2008-\u200a\u2028\u2029\u205f\u3000"
_BLANK = re.compile(rf"[{_BLANKS}]*")
_BLANK_TOPIC = re.compile(rf"[{_BLANKS}]*(-partition-[0-9]+)?")      # also a partition of a topic with a blank name
_PART = re.compile(r"^[-=:.\w]+\Z", re.ASCII)  # tenants and namespaces, as Pulsar's NamedEntity has it
SYSTEM_TOPICS = ("__change_events", "__transaction_buffer_snapshot", "__transaction_buffer_snapshot_segments",
                 "__transaction_buffer_snapshot_indexes")      # of any namespace
SYSTEM_SUFFIX = "__transaction_pending_ack"
_SHOWN_MAX = 200                    # characters of a name in its refusal: a response has no room for five megabytes
DOMAINS = ("persistent", "non-persistent")      # of topics that any client may use under their own name
SCALABLE, SEGMENT = "topic", "segment"          # domains of topics that have segments, and of the segments
# A scalable topic would hide the broker's own topic of its name.
_SYSTEM_NAMESPACES = tuple(f"{domain}://pulsar/system/" for domain in (*DOMAINS, SCALABLE, SEGMENT))
_SYSTEM_PREFIXES = tuple(f"{place}{name}" for place in _SYSTEM_NAMESPACES for name in (
    "transaction_coordinator_assign", "__transaction_log_", "resource-usage"))
_SEGMENT = re.compile(r"([0-9a-f]{4})-([0-9a-f]{4})-(0|[1-9][0-9]{0,17})", re.ASCII)
LENGTH_MAX = 4_096                  # of tenant/namespace/topic: above any name in use, and no burden for the catalogue
REMEMBERED_MAX = 256                # characters of a name that caches keep: they count entries, not bytes


@dataclass(frozen=True, slots=True)
class TopicName:
    """A complete topic name; `partition` is -1 unless the name is a partition's.

    The local name of a segment is topic/FIRST-LAST-ID.
    """

    domain: str
    tenant: str
    namespace_name: str
    local_name: str
    partition: int

    @property
    def namespace(self) -> str:
        return f"{self.tenant}/{self.namespace_name}"

    @property
    def base(self) -> "TopicName":
        """The partitioned topic of a partition, the scalable topic of a segment; any other topic itself."""
        if self.domain == SEGMENT:
            return self.scalable
        if self.partition < 0:
            return self
        return TopicName(self.domain, self.tenant, self.namespace_name, without_partition(self.local_name), -1)

    @property
    def is_persistent(self) -> bool:
        """Whether the topic's messages are stored; those of a scalable topic are in its segments."""
        return self.domain != "non-persistent"

    @property
    def is_scalable(self) -> bool:
        return self.domain == SCALABLE

    @property
    def is_segment(self) -> bool:
        return self.domain == SEGMENT

    @property
    def scalable(self) -> "TopicName":
        """The name topic://..., by which clients of Pulsar 5 know the topic, whatever its kind."""
        return TopicName(SCALABLE, self.tenant, self.namespace_name, self._whole, self.partition)

    @property
    def regular(self) -> "TopicName":
        """The name persistent://... for a scalable topic or its segment; any other topic itself."""
        if self.domain not in (SCALABLE, SEGMENT):
            return self
        return TopicName("persistent", self.tenant, self.namespace_name, self._whole, self.partition)

    @property
    def _whole(self) -> str:
        return self.local_name.rpartition("/")[0] if self.domain == SEGMENT else self.local_name

    @property
    def segment(self) -> tuple[int, int, int]:
        """The number of a segment, and the first and last of its hashes.  Only for the name of a segment."""
        match = _SEGMENT.fullmatch(self.local_name.rpartition("/")[2])
        assert match is not None, self
        return int(match[3]), int(match[1], 16), int(match[2], 16)

    @property
    def segment_number(self) -> int:
        """The number that a segment has in the layout of its topic, also one that was a partition or a regular topic.
        """
        return self.segment[0] if self.domain == SEGMENT else max(self.partition, 0)

    def segment_name(self, number: int, first: int, last: int) -> "TopicName":
        """The name of a segment of this scalable topic."""
        return TopicName(SEGMENT, self.tenant, self.namespace_name,
                         f"{self.local_name}/{first:04x}-{last:04x}-{number}", -1)

    def partition_name(self, number: int) -> "TopicName":
        return TopicName(self.domain, self.tenant, self.namespace_name, f"{self.local_name}-partition-{number}", number)

    def __str__(self) -> str:
        return f"{self.domain}://{self.tenant}/{self.namespace_name}/{self.local_name}"


def across_segments(producer_name: str, topic: TopicName) -> str:
    """Return a producer's name on a topic; on segments that which its producers for all of them have in common.

    A client of Pulsar 5 has one for each segment, NAME-seg-NUMBER, and for each partition of a regular topic, which may
    be made scalable.  The number is left out, and nothing else: a producer that is called NAME is another one.
    """
    if not producer_name.endswith(suffix := f"-seg-{topic.segment_number}"):
        return producer_name
    return producer_name.removesuffix(suffix) + "-seg-"


def parse(text: str) -> TopicName:
    """Return the topic that `text` names, in its complete or short form.  Raises Refusal(InvalidTopicName)."""
    return _remembered(text) if len(text) <= REMEMBERED_MAX else _parse(text)


def _parse(text: str) -> TopicName:
    domain, separator, path = text.partition("://")
    if not separator:
        domain, path = "persistent", text
        parts = path.split("/")
        if len(parts) == 1:
            path = f"public/default/{path}"
        elif len(parts) != 3:
            raise _invalid(text, "a short name is either topic or tenant/namespace/topic")
    if domain not in (*DOMAINS, SCALABLE, SEGMENT):
        raise _invalid(text, "the domain is persistent, non-persistent or topic")
    segment = ""
    if domain == SEGMENT:
        path, _, segment = path.rpartition("/")
        match = _SEGMENT.fullmatch(segment)
        if match is None or match[1] > match[2]:
            raise _invalid(text, "expected segment://tenant/namespace/topic/FIRST-LAST-ID")
    parts = path.split("/", 2)
    if len(parts) != 3:
        raise _invalid(text, "expected domain://tenant/namespace/topic")
    tenant, namespace, local = parts
    if "/" in local:
        raise _invalid(text, "names with a cluster are of Pulsar 1; use domain://tenant/namespace/topic")
    if not local or not _PART.match(tenant) or not _PART.match(namespace):
        raise _invalid(text, "tenant and namespace are made of letters, digits and -=:._, and a topic is not empty")
    match = _PARTITION.match(local)
    # The ends of partitions and segments do not count: else there would be topics whose parts can have no name.
    if len(f"{tenant}/{namespace}/{match[1] if match else local}") > LENGTH_MAX or "\0" in text:
        raise _invalid(text, f"longer than {LENGTH_MAX} characters, or with a NUL")
    if domain in DOMAINS:
        return TopicName(domain, tenant, namespace, local, int(match[2]) if match else -1)
    if match:
        raise _invalid(text, "a scalable topic has no partitions, and no name of one")
    return TopicName(domain, tenant, namespace, f"{local}/{segment}" if segment else local, -1)


_remembered = lru_cache(maxsize=16_384)(_parse)


def parse_namespace(text: str) -> str:
    """Return `text`, which has to be tenant/namespace.  Raises Refusal(InvalidTopicName)."""
    tenant, _, name = text.partition("/")
    if not _PART.match(tenant) or not _PART.match(name):
        raise _invalid(text, "expected tenant/namespace")
    return text


def is_system(text: str) -> bool:
    """Return True for the complete name of a topic that brokers use among themselves."""
    return text.startswith(_SYSTEM_NAMESPACES) or is_reserved(text)


def is_reserved_subscription(name: str) -> bool:
    """Return True for the name of a subscription that brokers keep for themselves."""
    return name == "pulsar.dedup" or name.startswith("pulsar.repl")


def is_reserved(text: str) -> bool:
    """Return True for the complete name of a topic that only brokers may create."""
    local = without_partition(text.rpartition("/")[2])
    return local in SYSTEM_TOPICS or local.endswith(SYSTEM_SUFFIX) or text.startswith(_SYSTEM_PREFIXES)


def refuse_reserved(topic: TopicName) -> None:
    """Raise Refusal for a topic that users cannot create."""
    if is_reserved(str(topic)):
        raise Refusal(api.NotAllowedError, f"Can not create system topic {topic}")


def is_blank(text: str) -> bool:
    """Return True for a text without any character that Pulsar does not take for blank."""
    return _BLANK.fullmatch(text) is not None


def refuse_blank(topic: TopicName) -> None:
    """Raise Refusal for a topic with a blank name, which no topic gets."""
    if _BLANK_TOPIC.fullmatch(topic.local_name):
        raise _invalid(str(topic), "a topic's name is not blank")


def without_partition(text: str) -> str:
    """Return the name of the partitioned topic when `text` names a partition, else `text`."""
    return split_partition(text)[0]


def split_partition(text: str) -> tuple[str, int]:
    """Return (name of the partitioned topic, number) when `text` names a partition, else (`text`, -1)."""
    match = _PARTITION.match(text)
    return (match[1], int(match[2])) if match else (text, -1)


def _invalid(text: str, why: str) -> Refusal:
    return Refusal(api.InvalidTopicName, f"Invalid topic name: {text[:_SHOWN_MAX]!r}: {why}")


# -- ids of transactions

# Clients ask for the partitions of this topic, each of which stands for a coordinator, and where they are.
COORDINATORS = TopicName("persistent", "pulsar", "system", "transaction_coordinator_assign", -1)
COORDINATOR_MAX = (1 << 7) - 1       # the highest number of a coordinator of transactions
LEAST_BITS = 56
LEAST_MAX = (1 << LEAST_BITS) - 1


def transaction(most: int, least: int) -> int | None:
    """Return the two numbers of a transaction's id as one of 63 bits, above 0; None if no coordinator gives it out.

    The most bits are the coordinator's number, the least bits count up.
    """
    if most > COORDINATOR_MAX or not 0 < least <= LEAST_MAX:
        return None
    return most << LEAST_BITS | least


def transaction_bits(transaction_id: int) -> tuple[int, int]:
    """Return (most bits, least bits) of a transaction's id."""
    return transaction_id >> LEAST_BITS, transaction_id & LEAST_MAX


def transaction_text(transaction_id: int) -> str:
    """Return a transaction's id as Pulsar writes it: (most,least)."""
    return "({},{})".format(*transaction_bits(transaction_id))


# -- replication between clusters
#
#    pulsar.repl.<cluster>              the producer of a replicator of that cluster
#    pulsar.repl.<cluster>--><ours>     likewise, of one that names both clusters
#
# A position is a ledger and an entry of the source cluster, as one number of 63 bits, ordered by the ledger first.

REPLICATOR_PREFIX = "pulsar.repl."       # of the cursors and producers that replicate topics
REPLICATOR = "Geminga Replicator"        # client_version of the broker's own process that reads the cursors
PROGRAM = "Geminga"                      # client_version of commands; their transactions end with their connection
DEAD_LETTERS = "-DLQ"                    # end of a dead letter topic's name, as Pulsar's clients make it
# Properties of dead letters that the broker makes: why, of which subscription, and how often it was given back.
DEAD_LETTER_PROPERTIES = tuple(f"geminga.dead-letter.{name}" for name in ("reason", "subscription", "deliveries"))
MOVER_ERROR = "error"                    # in the metadata of a consumer that moves dead letters: why it moved none
UNDOES = "undoes"                        # likewise: the consumer takes back what a redrive has sent, and nothing else
REDRIVEN_FROM = "geminga.redriven.from"  # property of a redriven message: topic and position of its dead letter
REDRIVES = "geminga-redrive-"            # begins the name of a subscription that keeps what a redrive publishes
ONLY_FOR = "geminga.only-for"            # in a producer's metadata: the subscription that gets what it publishes
SCHEDULE = "geminga.schedule"            # property of a message: the schedule that has published it, ...
SCHEDULED_FOR = "geminga.scheduled-for"  # ... and the time for which it was planned, in RFC 3339
NO_CLUSTER = "__local__"                 # in replicate_to of a message that stays in its cluster
POSITION_PROPERTY = "__MSG_PROP_REPL_SOURCE_POSITION"      # "ledger:entry", of each message that a replicator sends
# A ledger of Pulsar has 50,000 entries unless it is told otherwise, one of this broker a million.  This broker's ids of
# ledgers grow by 2^35 a year.
LEDGER_BITS, ENTRY_BITS = 40, 23
LEDGER_MAX, ENTRY_MAX = (1 << LEDGER_BITS) - 1, (1 << ENTRY_BITS) - 1
NO_POSITION = -1
MARKER_RECEIPT = 1 << 63      # the highest sequence id of a marker's receipt, as a replicator expects it
# Types of the markers by which clusters tell each other where replicated subscriptions are.
SNAPSHOT_REQUEST, SNAPSHOT_RESPONSE, SUBSCRIPTION_UPDATE = 10, 11, 13
SENT_MARKERS = SNAPSHOT_REQUEST, SNAPSHOT_RESPONSE, SUBSCRIPTION_UPDATE      # no others go to other clusters
_TO_CLUSTER = "-->"
_POSITION = re.compile(r"([0-9]{1,13}):([0-9]{1,13})", re.ASCII)


def source_cluster(producer_name: str) -> str | None:
    """Return the cluster that a replicator's producer comes from, None for the name of any other producer."""
    if not producer_name.startswith(REPLICATOR_PREFIX):
        return None
    return producer_name[len(REPLICATOR_PREFIX):].partition(_TO_CLUSTER)[0]


def parse_position(text: str | bytes) -> int:
    """Return the position that "ledger:entry" names, NO_POSITION if it names none that is accepted."""
    match = _POSITION.fullmatch(text) if isinstance(text, str) else None      # bytes: the text is not UTF-8
    if match is None:
        return NO_POSITION
    ledger_id, entry_id = map(int, match.groups())
    if ledger_id > LEDGER_MAX or entry_id > ENTRY_MAX:
        return NO_POSITION
    return ledger_id << ENTRY_BITS | entry_id


def position_of(properties: Iterable[api.KeyValue]) -> int:
    """Return the position among a message's properties, NO_POSITION without one.

    The last property of that name counts: replicators append theirs behind those of the application.
    """
    values = [one.value for one in properties if one.key == POSITION_PROPERTY]
    return parse_position(values[-1]) if values else NO_POSITION


def position_text(position: int) -> str:
    """Return a position as its source writes it: ledger:entry."""
    return f"{position >> ENTRY_BITS}:{position & ENTRY_MAX}"


def replication_cursor(remote: str) -> str:
    """Return the name of the cursor from which a topic's entries go to the cluster `remote`."""
    return REPLICATOR_PREFIX + remote


def remote_of(subscription: str) -> str | None:
    """Return the cluster to which entries go from a replication cursor; None for the name of any other subscription."""
    return subscription[len(REPLICATOR_PREFIX):] if subscription.startswith(REPLICATOR_PREFIX) else None


def replicator_name(own: str, remote: str) -> str:
    """Return the name of the producer that the cluster `own` has for a topic at the cluster `remote`."""
    return f"{REPLICATOR_PREFIX}{own}-->{remote}"
