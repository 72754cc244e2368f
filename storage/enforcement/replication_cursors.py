"""Replication cursors: a durable subscription of each partition for every other cluster that gets its messages.

The process that sends messages to a cluster reads the cursor `pulsar.repl.CLUSTER`. Messages stay until it has
acknowledged them. A cursor is created when a policy names its cluster or a partition is opened, before any later
message is stored. A cursor is deleted, with its backlog, only when its cluster is no longer in the list of clusters in
force.
"""
from geminga.proto.names import replication_cursor
from geminga.storage.commands import subscriptions
from geminga.storage.ledgers import journal_ops
from geminga.storage.ledgers.managed_ledger import EARLIEST
from geminga.storage.topics.owner_context import OwnerContext
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import SubType
from geminga.storage.topics.watcher import Watcher


class ReplicationCursors(Watcher):
    """Replication cursors of one owner's partitions."""

    def __init__(self, owner: OwnerContext):
        self._owner = owner

    def watch(self, partition: Partition) -> None:
        """Create and delete cursors of a partition that was opened, or whose policies have changed.

        Raises StorageFull, NotDurable.
        """
        policies = partition.policies
        for name in map(replication_cursor, policies.remote_clusters):
            if (name, True) not in partition.subscriptions:
                self._create(partition, name)
        for subscription in list(partition.subscriptions.values()):
            if subscription.remote not in (None, *policies.replication_clusters):
                subscriptions.delete_subscription(self._owner, subscription)

    def _create(self, partition: Partition, name: str) -> None:
        owner, is_earliest = self._owner, self._owner.options.replication_start_at == "earliest"
        position = partition.mark_delete_before(EARLIEST) if is_earliest else partition.last_confirmed
        made = subscriptions.create_subscription(owner, partition, name, position)
        made.cursor.last_type = SubType.Exclusive
        owner.note(partition, journal_ops.type_changed(
            partition.partition_id, made.cursor.subscription_id, SubType.Exclusive))
