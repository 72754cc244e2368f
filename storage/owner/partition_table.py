"""The partition table: open, create, unload and delete partitions of an owner, and open new ledgers for them."""
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.names import TopicName
from geminga.storage import format
from geminga.storage.catalogue.policies import policies_of
from geminga.storage.commands import producers
from geminga.storage.cursors import cursor
from geminga.storage.cursors.state_file import StateFile
from geminga.storage.errors import CorruptFile, StorageFull
from geminga.storage.ledgers import journal_ops
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.owner.durability import Durability
from geminga.storage.runtime.log import log
from geminga.storage.topics.owner_context import OwnerContext
from geminga.storage.topics.partition import Partition, open_partition
from geminga.storage.topics.subscription import Topic
from geminga.storage.topics.watcher import TopicWatcher, Watcher
from geminga.storage.upkeep.backup_snapshot import BackupSnapshots
from geminga.storage.upkeep.disk_space import DiskSpace

if TYPE_CHECKING:
    from geminga.storage.owner.recovery import Recovery

_EACH_TICK = 100            # partitions whose producers are looked at in a tick
_READER_MS = 60_000         # a reader's subscription is deleted so long after a seek, unless it subscribes again


class PartitionTable(Watcher):
    """Open partitions of one owner, by name."""

    def __init__(self, owner: OwnerContext, durability: Durability, space: DiskSpace, snapshots: BackupSnapshots,
                 recovery: "Recovery | None", is_mine: Callable[[str], bool], waits: Callable[[], bool]):
        """Make a table without open partitions.

        recovery: states that are in the journal but not yet in state files.  is_mine: whether a partition's name
        belongs to this owner.  waits: whether other owners may still recover partitions of this one.
        """
        self.by_name: dict[TopicName, Partition] = {}
        self.watchers: list[Watcher] = []               # all of them, for partitions
        self.topic_watchers: list[TopicWatcher] = []    # watchers that non-persistent topics need too
        self._owner, self._durability, self._space, self._snapshots = owner, durability, space, snapshots
        self._recovery, self._is_mine, self._waits = recovery, is_mine, waits
        self._next_slot = -1
        self._to_forget: Iterator[Partition] = iter(())      # partitions whose producers this round has yet to look at

    def __repr__(self) -> str:
        return f"<PartitionTable open={len(self.by_name)}>"

    def refuse_foreign(self, name: TopicName) -> None:
        """Raise Refusal if the topic belongs to another owner, or its former owner may still recover it.

        Two owners would overwrite each other's entries.
        """
        if not self._is_mine(str(name)):
            raise Refusal(api.ServiceNotReady, f"Topic {name} is not served here; look it up again")
        if self._waits():
            raise Refusal(api.ServiceNotReady, f"The former owner of {name} is being started; try again")

    def find(self, name: TopicName) -> Partition | None:
        """Return the partition with this name, and open it if it is only on disk; None if it does not exist.

        Raises CorruptFile, StorageFull, Refusal.
        """
        partition = self.by_name.get(name)
        if partition is None:
            self.refuse_foreign(name)
        if partition is None and (stored := self._owner.catalogue.partitions.find(name)) is not None:
            try:
                with self._owner.counters.timed("load"):
                    return self._load(name, *stored)
            except (CorruptFile, StorageFull, OSError):
                self._owner.counters.add("loads_failed")
                raise
        return partition

    def _load(self, name: TopicName, partition_id: int, topic_epoch: int | None) -> Partition:
        """Open a stored partition from its files, the catalogue and the recovered state."""
        owner, catalogue = self._owner, self._owner.catalogue
        names = catalogue.subscriptions.ids(partition_id)
        known = self._recovery.state_of(partition_id) if self._recovery else None
        partition = open_partition(owner.data_dir, partition_id, name, topic_epoch, names, owner.options, known)
        if self._recovery:
            self._recovery.opened(partition)
        partition.sequences.begin(owner.now_ms)
        partition.is_terminated = catalogue.partitions.is_terminated(partition_id)
        properties = catalogue.properties.of_subscriptions(partition_id)
        for subscription in partition.subscriptions.values() if properties else ():
            own = properties.get(subscription.cursor.subscription_id)
            subscription.properties, subscription.has_own_properties = own or {}, own is not None
        replicated = catalogue.subscriptions.replicated(partition_id)
        for subscription in partition.subscriptions.values() if replicated else ():
            subscription.is_replicated = subscription.cursor.subscription_id in replicated
        self._adopt(partition)
        return partition

    def create(self, name: TopicName) -> Partition:
        """Create an empty partition.  Raises StorageFull, Refusal."""
        self.refuse_foreign(name)
        owner = self._owner
        with owner.counters.timed("load"):
            partition_id = owner.catalogue.partitions.create(name)
            partition = open_partition(owner.data_dir, partition_id, name, None, {}, owner.options)
            self._adopt(partition)
        return partition

    def _adopt(self, partition: Partition) -> None:
        """Enter an opened partition in the table, ensure that the journal has its open ledger, and apply policies."""
        if not partition.ledgers:
            self._add_ledger(partition)
            self._owner.answer_needs_sync()
        elif not partition.open_ledger.entries:      # a killed process may not have written its op
            self._note_opened(partition)
        # Entries that the compacted view covers, or that are exported, were lost.  In the same ledger, new ones would
        # lie before the view's horizon, or count as exported.
        if max(partition.horizon, partition.exported_up_to) > partition.last_confirmed:
            self._add_ledger(partition)
        self._next_slot += 1
        partition.slot = self._next_slot
        self.by_name[partition.name] = partition
        self._snapshots.opened(partition)
        self.apply_policies(partition)
        self._owner.counters.add("partitions_open")
        self._owner.changed[partition] = None
        self.report_damage(partition)

    def unload(self, partition: Partition) -> None:
        """Write the state of a partition that no client uses to disk, and close the partition.

        Raises StorageFull, NotDurable.
        """
        self._durability.commit_and_sync()
        self._durability.checkpoint({partition, partition.open_ledger})
        self._snapshots.released(partition)
        self._forget(partition)

    def delete(self, name: TopicName) -> None:
        """Delete the partition with this name from memory and disk, after its clients were disconnected.

        The deletion is in the journal before it is in the catalogue: a start that finds the op completes the deletion.

        Raises StorageFull, NotDurable.
        """
        owner = self._owner
        partition, stored = self.by_name.get(name), owner.catalogue.partitions.find(name)
        self._durability.commit_and_sync()
        try:
            if stored is None:      # no client has ever used it
                return owner.catalogue.topics.delete(name)
            partition_id = stored[0]
            owner.catalogue.partitions.delete(partition_id)
        except StorageFull:
            owner.catalogue.undo()
            raise
        self._durability.append(journal_ops.partition_deleted(partition_id))
        owner.journal.sync()
        owner.catalogue.commit()
        if partition is not None:
            self._forget(partition)
            for ledger in partition.ledgers:
                ledger.is_unlinked = True
        known = self._recovery and self._recovery.delete(partition_id)
        file = partition.file if partition is not None else \
            known or StateFile(format.partition_folder(owner.data_dir, partition_id), partition_id)
        file.remove()
        owner.journal.mark_dirty(file)
        log.info("a topic was deleted", topic=name)

    def _forget(self, partition: Partition) -> None:
        """Remove a partition from memory, after the journal was synced with all decisions about the partition."""
        partition.is_released = True
        del self.by_name[partition.name]
        for watcher in self.watchers:
            watcher.release(partition)
        for ledger in partition.ledgers:
            ledger.is_released = True
            ledger.close()
            self.forget_mapped(ledger)
        self._owner.counters.add("partitions_open", -1)

    def forget_mapped(self, ledger: Ledger) -> None:
        """Tell all workers to unmap the ledger's files."""
        for worker in {worker for worker, _ in self._owner.sessions}:
            self._owner.outbox(worker).forget(ledger.ledger_id)

    # -- policies

    def apply_options(self) -> None:
        """Apply the owner's changed options to all open topics."""
        owner = self._owner
        topics: list[Topic] = [*self.by_name.values(), *owner.non_persistent.values()]
        for topic in topics:
            topic.options = owner.options
            for subscription in topic.subscriptions.values():
                subscription.options = owner.options
            self.apply_policies(topic)

    def apply_policies(self, topic: Topic) -> None:
        """Apply the topic's policies from the catalogue."""
        owner = self._owner
        policies = policies_of(owner.catalogue, topic.name, owner.options)
        topic.bind(policies)
        owner.changed[topic] = None
        if isinstance(topic, Partition):
            for watcher in self.watchers:
                watcher.watch(topic)
        else:
            for topic_watcher in self.topic_watchers:
                topic_watcher.watch(topic)
        if policies.encryption_required:
            producers.close_unencrypted_producers(owner, topic)
        for subscription in topic.attached:
            if subscription.dispatcher is not None:
                subscription.dispatcher.bounds_changed()
            owner.wake(topic)
        if isinstance(topic, Partition) and policies.migrated_to:
            self._migrate(topic)

    def _migrate(self, partition: Partition) -> None:
        """Close the partition's producers, so that they reconnect to the other cluster.

        Consumers follow when they have acknowledged everything.
        """
        self._owner.publish_held(partition)
        for producer in partition.producers.expel_all():
            producers.expel_producer(self._owner, producer)
        self._owner.wake(partition)

    # -- ledgers

    def roll(self, partition: Partition, *, is_idle: bool = False) -> None:
        """Seal the partition's open ledger and continue in a new one.

        is_idle: allocate no space ahead for the new ledger.  Raises StorageFull.
        """
        self._add_ledger(partition, is_idle=is_idle)
        self._owner.wake_trimming(partition)
        self._owner.acknowledged[partition] = None
        log.debug("a new ledger was begun", topic=partition.name, ledger=partition.open_ledger.ledger_id)

    def _add_ledger(self, partition: Partition, *, is_idle: bool = False) -> None:
        """Seal the open ledger, and open a new one.  is_idle: allocate no space ahead.  Raises StorageFull."""
        self._space.look()
        ledger_id = self._owner.catalogue.ids.next_ledger_id()
        partition.add_ledger(ledger_id, self._owner.now_ms, 0 if is_idle else self._space.ahead)
        self._snapshots.ledger_added(partition)
        self._note_opened(partition)

    def _note_opened(self, partition: Partition) -> None:
        """Add an op for the open ledger to the journal.

        A start after a crash keeps only ledgers that the journal names.  The ledger's files are part of the next
        checkpoint, before the segment with the op is reused.
        """
        opened = partition.open_ledger
        self._owner.note(partition, journal_ops.ledger_opened(
            partition.partition_id, opened.ledger_id, created_ms=opened.created_ms, first_message=opened.first_message))
        self._owner.journal.mark_dirty(opened)

    def report_damage(self, partition: Partition) -> None:
        """Report damage of the partition's files, and skip lost entries for every subscription, also after a crash."""
        for text in partition.damage:
            self._owner.report_damage(text)
            self._owner.journal.mark_dirty(partition)      # a damaged copy of its state is replaced
        partition.damage.clear()
        losses, partition.losses = partition.losses, []
        for ledger, lost in losses:
            self._owner.counters.add("entries_lost", len(lost))
            durable = [one.cursor.subscription_id for one in partition.subscriptions.values() if one.is_durable]
            for subscription_id in (cursor.NOBODY, *durable):
                self._owner.note_many(partition, journal_ops.acknowledged(
                    partition.partition_id, subscription_id, ledger.ledger_id, lost))
            for subscription in partition.subscriptions.values():
                self._owner.count(subscription, cursor.SKIPPED, 0)

    # -- expiry

    def tick(self, now_ms: int) -> None:
        """Evict sequence ids of absent producers, and delete subscriptions of readers that stay away after a seek."""
        self._forget_producers(now_ms)
        readers = self._owner.expected_readers
        for subscription, since_ms in list(readers.items()):
            if subscription.consumers:
                del readers[subscription]
            elif now_ms - since_ms > _READER_MS:
                del readers[subscription]
                subscription.partition.remove_subscription(subscription)

    def _forget_producers(self, now_ms: int) -> None:
        """Evict sequence ids of producers that were inactive too long, or are too many; connected producers stay."""
        options = self._owner.options
        bounds = now_ms, options.deduplication_inactivity_s * 1000, options.deduplication_names_max
        if not (some := [*itertools.islice(self._to_forget, _EACH_TICK)]):      # the next round begins
            self._to_forget = iter([*self.by_name.values()])
            some = [*itertools.islice(self._to_forget, _EACH_TICK)]
        for partition in some:
            if not partition.is_released and partition.sequences.is_due(*bounds):
                connected = {producer.identity for producer in partition.producers.live.values()}
                self._owner.counters.add("deduplication_names_evicted", partition.sequences.forget(*bounds, connected))
                self._owner.journal.mark_dirty(partition)
