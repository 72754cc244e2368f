"""What clients name when they add to a transaction: topics and subscriptions, and their ids."""
from collections.abc import Iterator

from geminga.proto import names
from geminga.proto.names import TopicName
from geminga.storage.topics.owner_context import OwnerContext
from geminga.storage.transactions.transaction_table import Used

NOT_STORED = (1 << 32) - 1           # in place of the id of a subscription that is not stored


def stored(owner: OwnerContext, wanted: list[tuple[str, str | None]]) -> Iterator[tuple[Used, TopicName, str]]:
    """Yield (ids, topic, the topic's name as the client wrote it) for each pair in `wanted` whose topic is stored.

    wanted: pairs (topic, subscription or None).  ids: see `_ids`.  Raises Refusal before the first one, StorageFull.
    """
    for name, written, subscription in [(names.parse(topic), topic, subscription) for topic, subscription in wanted]:
        if name.is_persistent and (used := _ids(owner, name, subscription)) is not None:
            yield used, name, written


def _ids(owner: OwnerContext, name: TopicName, subscription: str | None) -> Used | None:
    """Return (the partition's id, the subscription's, NOT_STORED or 0), None without such a partition.

    The catalogue is asked only about what is not open in this owner: that takes as long as the rest of the command.
    """
    if (partition := owner.by_name.get(name)) is not None:
        if subscription is None:
            return partition.partition_id, 0
        known = partition.subscriptions.get((subscription, True))
        return partition.partition_id, NOT_STORED if known is None else known.cursor.subscription_id
    if (found := owner.catalogue.partitions.find(name)) is None:
        return None
    if subscription is None:
        return found[0], 0
    return found[0], owner.catalogue.subscriptions.ids(found[0]).get(subscription, NOT_STORED)
