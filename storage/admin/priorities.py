"""How much waits of each priority, for subscriptions that deliver by it."""
import numpy as np

from geminga.proto.job_properties import PRIORITIES, priorities_of
from geminga.proto.sends import IS_CHUNK
from geminga.storage.dispatch.by_priority import ByPriority
from geminga.storage.statistics.columns import kind_of
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Subscription, SubType

_LOOKED_AT_MAX = 1 << 20      # entries of one subscription: some 10 ms


def waiting_by_priority(subscription: Subscription) -> dict[str, int]:
    """Return {priority: entries that wait, due ones that no consumer has}; {} if they are not delivered by priority.

    Without consumers, and far behind what consumers were sent, the first _LOOKED_AT_MAX entries count.
    """
    partition = subscription.partition
    if not isinstance(partition, Partition) or not partition.policies.message_priority \
            or kind_of(subscription) != SubType.Shared:
        return {}
    dispatcher, left = subscription.dispatcher, _LOOKED_AT_MAX
    counts = np.array(dispatcher.pending.counts if isinstance(dispatcher, ByPriority) else [0] * PRIORITIES)
    schedule = partition.schedule if partition.policies.delayed_delivery else None
    for ledger in partition.ledgers_from(subscription.read[0]):
        first = subscription.read[1] if ledger.ledger_id == subscription.read[0] else 0
        end = min(first + left, ledger.entries if schedule is None else schedule.end(ledger))
        left -= max(0, end - first)
        for entries in subscription.deliverable(ledger, first, end):
            ids = np.asarray(entries if schedule is None else schedule.ready(ledger.ledger_id, entries))
            counts += np.bincount(priorities_of(ledger.column("flags")[ids], IS_CHUNK), minlength=PRIORITIES)
    return {str(priority): count for priority, count in enumerate(counts.tolist())}
