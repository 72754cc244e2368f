"""Replication cursors: a durable subscription of each partition for every other cluster that gets its messages.

The process that sends messages to a cluster reads the cursor `pulsar.repl.CLUSTER`. Messages stay until it has
acknowledged them. A cursor is created when a policy names its cluster or a partition is opened, before any later
message is stored. If the disk has no room for that, nobody may publish to the partition until there is. A cursor is
deleted, with its backlog, only when its cluster is no longer in the list of clusters in force.
"""
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.names import replication_cursor
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.commands import subscriptions
from geminga.storage.errors import StorageFull
from geminga.storage.ledgers import journal_ops
from geminga.storage.ledgers.managed_ledger import EARLIEST
from geminga.storage.open_topics.barrier import Barrier
from geminga.storage.open_topics.clients import Clients
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.options_in_force import OptionsInForce
from geminga.storage.open_topics.reports import Reports
from geminga.storage.open_topics.watcher import Watcher
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import SubType

_BARRIER = Barrier(api.ServiceNotReady, "There is no room to keep messages for another cluster; try again",
                   is_waited_for=True)


class ReplicationCursors(Watcher):
    """Replication cursors of one owner's partitions, which are a cause to close the publish gate."""

    def __init__(self, decisions: Decisions, clients: Clients, catalogue: Catalogue, options: OptionsInForce,
                 reports: Reports):
        self._decisions, self._clients, self._catalogue = decisions, clients, catalogue
        self._options, self._reports = options, reports
        self._late: set[Partition] = set()      # partitions whose cursors could not be created or deleted yet

    def __repr__(self) -> str:
        return f"<ReplicationCursors late={len(self._late)}>"

    def watch(self, partition: Partition) -> None:
        """Create and delete cursors of a partition that was opened, or whose policies have changed."""
        policies = partition.policies
        self._late.discard(partition)
        try:
            for name in self._missing(partition):
                self._create(partition, name)
            for subscription in list(partition.subscriptions.values()):
                if subscription.remote not in (None, *policies.replication_clusters):
                    subscriptions.delete_subscription(self._decisions, self._clients, self._catalogue, subscription)
        except StorageFull as error:      # the next tick tries again
            self._late.add(partition)
            self._reports.once(f"{error}; replication cursors of {partition.name} are not as its policies say",
                               code="G103", topic=str(partition.name))

    def release(self, partition: Partition) -> None:
        """Forget a partition that the owner gives up."""
        self._late.discard(partition)

    def tick(self, now_ms: int) -> None:
        """Create and delete cursors for which there was no room before; called once a second."""
        for partition in list(self._late):
            self.watch(partition)

    @property
    def is_possible(self) -> bool:
        """Whether any partition may lack a cursor, so that passes skip the check otherwise."""
        return bool(self._late)

    def barrier(self, partition: Partition) -> Barrier | None:
        """Return the barrier of a partition that lacks a cursor, which a message stored now would not be in."""
        return _BARRIER if partition in self._late and self._missing(partition) else None

    @staticmethod
    def _missing(partition: Partition) -> list[str]:
        """Return the names of the cursors that the partition's policies demand, and that it does not have."""
        return [name for name in map(replication_cursor, partition.policies.remote_clusters)
                if (name, True) not in partition.subscriptions]

    def _create(self, partition: Partition, name: str) -> None:
        is_earliest = self._options.current.replication_start_at == "earliest"
        position = partition.mark_delete_before(EARLIEST) if is_earliest else partition.last_confirmed
        made = subscriptions.create_subscription(self._decisions, self._catalogue, partition, name, position)
        made.cursor.last_type = SubType.Exclusive
        self._decisions.note(partition, journal_ops.type_changed(
            partition.partition_id, made.cursor.subscription_id, SubType.Exclusive))
