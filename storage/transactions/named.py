"""What clients name when they add to a transaction: topics and subscriptions, and their ids.

A topic may be added before it is there, as in Apache Pulsar, which keeps names; so may a subscription of it.  The name
is promised to the transaction, as a hash.  Once the topic is there, the first SEND in the transaction has its partition
added, and the first ACK the subscription.
"""
from hashlib import blake2b

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.names import TopicName
from geminga.storage import format
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.open_topics.topic_table import TopicTable
from geminga.storage.transactions.transaction_table import Used

NOT_STORED = (1 << 32) - 1           # in place of the id of a subscription that is not stored


Wanted = tuple[str, str | None]      # a topic as a client wrote it, and a subscription or None


def look_up(topics: TopicTable, wanted: list[Wanted], found: dict[Wanted, tuple[Used, str]],
            ) -> tuple[dict[Used, tuple[str, str]], set[bytes]]:
    """Return ({ids: (topic, its name as the client wrote it)} of what is stored, `hash_of` all else).

    ids: see `_ids`.  found: (ids, topic) of what was stored when this was called before in the same pass; it grows.
    Raises StorageFull, and Refusal, also for topics to which nobody can publish: a scalable topic, or the name of a
    segment that is made up.
    """
    stored: dict[Used, tuple[str, str]] = {}
    promised: set[bytes] = set()
    for each in wanted:
        topic, subscription = each
        if (known := found.get(each)) is not None:
            stored[known[0]] = known[1], topic
            continue
        name = names.parse(topic)
        if not name.is_persistent:
            continue
        if (used := _ids(topics, name, subscription)) is not None:
            stored[used] = str(name), topic
            if used[1] != NOT_STORED:      # another owner may store it before the next command of this pass
                found[each] = used, str(name)
            continue
        if subscription is None and (name.is_segment or name.is_scalable):
            _refuse_made_up(topics, name)
        promised.add(hash_of(str(name), subscription))
    return stored, promised


def _refuse_made_up(topics: TopicTable, name: TopicName) -> None:
    if name.is_scalable:
        raise Refusal(api.NotAllowedError, f"{name} is a scalable topic: its segments are used")
    if not topics.catalogue.topics.exists(name):
        raise Refusal(api.TopicNotFound, f"{name.base} has no segment {name}")


def hash_of(topic: str, subscription: str | None = None) -> bytes:
    """Return 16 bytes that stand for a topic, or one of its subscriptions, as an op of the journal has room for."""
    of_topic = blake2b(topic.encode(), digest_size=format.PROMISED_SIZE).digest()
    if subscription is None:
        return of_topic
    return blake2b(of_topic + subscription.encode(), digest_size=format.PROMISED_SIZE, person=b"subscription").digest()


def subscription_hash(catalogue: Catalogue, partition_id: int, subscription_id: int) -> bytes | None:
    """Return `hash_of` a stored subscription; None if it is not stored."""
    topic = catalogue.partitions.name_of(partition_id)
    known = {number: name for name, number in catalogue.subscriptions.ids(partition_id).items()}
    return None if topic is None or subscription_id not in known else hash_of(topic, known[subscription_id])


def _ids(topics: TopicTable, name: TopicName, subscription: str | None) -> Used | None:
    """Return (the partition's id, the subscription's, NOT_STORED or 0), None without such a partition.

    The catalogue is asked only about what is not open in this owner: that takes as long as the rest of the command.
    """
    if (partition := topics.by_name.get(name)) is not None:
        if subscription is None:
            return partition.partition_id, 0
        opened = partition.subscriptions.get((subscription, True))
        return partition.partition_id, NOT_STORED if opened is None else opened.cursor.subscription_id
    if (found := topics.catalogue.partitions.find(name)) is None:
        return None
    if subscription is None:
        return found[0], 0
    return found[0], topics.catalogue.subscriptions.ids(found[0]).get(subscription, NOT_STORED)
