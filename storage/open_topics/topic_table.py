"""The topic table: open, create, unload and delete topics of an owner, and open new ledgers for partitions."""
import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.names import TopicName, refuse_blank, refuse_reserved
from geminga.storage import format
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.catalogue.policies import policies_of, refuse_topics
from geminga.storage.cursors import cursor
from geminga.storage.cursors.state_file import StateFile
from geminga.storage.dispatch import follow_policies
from geminga.storage.errors import CorruptFile, StorageFull, text_of
from geminga.storage.filters.sieve import sieve_of
from geminga.storage.ledgers import journal_ops
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.open_topics import kept
from geminga.storage.open_topics.backup_snapshot import BackupSnapshots
from geminga.storage.open_topics.clients import Clients
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.disk_space import DiskSpace
from geminga.storage.open_topics.durability import Durability
from geminga.storage.open_topics.options_in_force import OptionsInForce
from geminga.storage.open_topics.recovered import Recovered
from geminga.storage.open_topics.reports import Reports
from geminga.storage.open_topics.watcher import TopicWatcher, Watcher
from geminga.storage.runtime.log import log
from geminga.storage.topics.non_persistent import NonPersistentTopic
from geminga.storage.topics.partition import Partition, open_partition
from geminga.storage.topics.subscription import Topic

_EACH_TICK = 100            # partitions whose producers are looked at in a tick
_READER_MS = 60_000         # a reader's subscription is deleted so long after a seek, unless it subscribes again


class TopicTable(Watcher):
    """The open topics of one owner, by name."""

    def __init__(self, data_dir: Path, decisions: Decisions, clients: Clients, catalogue: Catalogue,
                 options: OptionsInForce, reports: Reports, durability: Durability, space: DiskSpace,
                 snapshots: BackupSnapshots, recovery: Recovered | None, is_mine: Callable[[str], bool],
                 waits: Callable[[], bool]):
        """Make a table without open topics.

        recovery: states that are in the journal but not yet in state files.  is_mine: whether a partition's name
        belongs to this owner.  waits: whether other owners may still recover partitions of this one.
        """
        self.data_dir, self.catalogue, self.options = data_dir, catalogue, options
        self.since_ms = decisions.now_ms                # when the owner started
        self.by_name: dict[TopicName, Partition] = {}
        self.non_persistent: dict[TopicName, NonPersistentTopic] = {}      # those that clients use
        self.watchers: list[Watcher] = []               # all of them, for partitions
        self.topic_watchers: list[TopicWatcher] = []    # watchers that non-persistent topics need too
        self._decisions, self._clients, self._reports = decisions, clients, reports
        self._durability, self._space, self._snapshots = durability, space, snapshots
        self._recovery, self._is_mine, self._waits = recovery, is_mine, waits
        self._next_slot = -1
        self._to_forget: Iterator[Partition] = iter(())      # partitions whose producers this round has yet to look at

    def __repr__(self) -> str:
        return f"<TopicTable partitions={len(self.by_name)} non_persistent={len(self.non_persistent)}>"

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
        if partition is None and (stored := self.catalogue.partitions.find(name)) is not None:
            try:
                with self._decisions.counters.timed("load"):
                    return self._load(name, *stored)
            except (CorruptFile, StorageFull, OSError) as error:
                self._decisions.counters.add("loads_failed")
                if isinstance(error, CorruptFile):
                    self._reports.refused(error)
                raise
        return partition

    def _load(self, name: TopicName, partition_id: int, topic_epoch: int | None) -> Partition:
        """Open a stored partition from its files, the catalogue and the recovered state."""
        catalogue = self.catalogue
        names = catalogue.subscriptions.ids(partition_id)
        known = self._recovery.state_of(partition_id) if self._recovery else None
        cleared = catalogue.kept_topics.cursors(partition_id)
        partition = open_partition(self.data_dir, partition_id, name, topic_epoch, names, self.options.current, known,
                                   cleared)
        if self._recovery:
            self._recovery.opened(partition)
        for row in cleared:
            if all(backlog.row is not row for backlog in partition.cleared):      # a killed owner never made its cursor
                with contextlib.suppress(StorageFull):      # its time will be over too
                    catalogue.kept_topics.forget_cursor(row)
        if name.is_segment:
            # The catalogue is committed before the journal, and copied behind the cuts of a backup: it may know that a
            # producer counts anew whose sequence ids are still those of the segments before.
            with contextlib.suppress(StorageFull):
                catalogue.inherited_contents.correct(partition_id, partition.next_message)
        partition.sequences.begin(self._decisions.now_ms)
        partition.is_terminated = catalogue.partitions.is_terminated(partition_id)
        properties = catalogue.properties.of_subscriptions(partition_id)
        for subscription in partition.subscriptions.values() if properties else ():
            own = properties.get(subscription.cursor.subscription_id)
            subscription.properties, subscription.has_own_properties = own or {}, own is not None
            subscription.sieve = sieve_of(subscription.properties)
        replicated = catalogue.subscriptions.replicated(partition_id)
        for subscription in partition.subscriptions.values() if replicated else ():
            subscription.is_replicated = subscription.cursor.subscription_id in replicated
        self._adopt(partition)
        return partition

    def create(self, name: TopicName) -> Partition:
        """Create an empty partition.  Raises StorageFull, Refusal."""
        self.refuse_foreign(name)
        with self._decisions.counters.timed("load"):
            partition_id = self.catalogue.partitions.create(name)
            try:
                self._make_folder(partition_id)
            except StorageFull:
                self.catalogue.partitions.forget(partition_id)
                raise
            partition = open_partition(self.data_dir, partition_id, name, None, {}, self.options.current)
            self._adopt(partition)
        return partition

    def _make_folder(self, partition_id: int) -> None:
        """Make a new partition's folder, which is on disk before the catalogue is committed.  Raises StorageFull.

        A power cut would else leave the partition's row without a folder, and the partition count as lost.
        """
        folder = format.partition_folder(self.data_dir, partition_id)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageFull(text_of(error)) from error
        self.catalogue.sync_first |= {self.data_dir, folder.parent}

    def _adopt(self, partition: Partition) -> None:
        """Enter an opened partition in the table, ensure that the journal has its open ledger, and apply policies."""
        if not partition.ledgers:
            self._add_ledger(partition)
            self._decisions.answer_needs_sync()
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
        self._decisions.counters.add("partitions_open")
        self._decisions.changed[partition] = None
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
        A topic that a policy keeps is unloaded, and only the catalogue says that it is deleted (see kept.py).

        Raises Refusal: its topic is being made scalable.  Raises StorageFull, NotDurable.
        """
        self.catalogue.topics.refuse_migrating(name)
        partition, stored = self.by_name.get(name), self.catalogue.partitions.find(name)
        if stored is not None and (seconds := kept.seconds_of(self.catalogue, self.options.current, name)) > 0:
            return self._keep(name, partition, seconds)
        self._durability.commit_and_sync()
        try:
            if stored is None:      # no client has ever used it
                return self.catalogue.topics.delete(name)
            partition_id = stored[0]
            self.catalogue.partitions.delete(partition_id)
        except StorageFull:
            self.catalogue.undo()
            raise
        self._delete_files(partition_id, partition)
        log.info("a topic was deleted", topic=name)
        return None

    def _delete_files(self, partition_id: int, partition: Partition | None) -> None:
        """Complete the deletion of a partition, whose rows are deleted in the open transaction.

        partition: None if it is not open.  Raises NotDurable.
        """
        self._durability.append(journal_ops.partition_deleted(partition_id))
        self._decisions.journal.sync()
        self.catalogue.commit()
        if partition is not None:
            self._forget(partition)
            for ledger in partition.ledgers:
                ledger.is_unlinked = True
        known = self._recovery and self._recovery.delete(partition_id)
        file = partition.file if partition is not None else \
            known or StateFile(format.partition_folder(self.data_dir, partition_id), partition_id)
        file.remove()
        self._decisions.journal.mark_dirty(file)

    def _keep(self, name: TopicName, partition: Partition | None, seconds: int) -> None:
        """Delete a topic that is not partitioned so that it can be taken back for so long.

        Its files are as an unload leaves them before the catalogue says that it is deleted.

        Raises Refusal, StorageFull, NotDurable.
        """
        self._durability.commit_and_sync()
        if partition is not None:
            self._durability.checkpoint({partition, partition.open_ledger})
        kept.keep(self.catalogue, self.data_dir, name, seconds, self._decisions.now_ms)
        self.catalogue.commit()
        if partition is not None:
            self._snapshots.released(partition)
            self._forget(partition)
        log.info("a topic was deleted, and is kept", topic=name)

    def delete_kept(self, partition_id: int) -> None:
        """Delete a partition for good whose topic was deleted and kept.  Raises StorageFull, NotDurable."""
        self._durability.commit_and_sync()
        self.catalogue.partitions.delete(partition_id)
        self._delete_files(partition_id, None)

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
        self._decisions.counters.add("partitions_open", -1)

    def forget_mapped(self, ledger: Ledger) -> None:
        """Tell all workers to unmap the ledger's files."""
        for worker in self._clients.sessions.workers:
            self._decisions.outbox(worker).forget(ledger.ledger_id)

    # -- topics that clients name

    def find_or_create(self, name: TopicName, *, may_create: bool = True) -> Partition | NonPersistentTopic:
        """Return the topic of that name, which is created if there is none.

        Raises Refusal if the topic may not be created: by the policies, or with `may_create` False. Raises StorageFull,
        CorruptFile.
        """
        if not (name.is_persistent or self.options.current.non_persistent_topics):
            raise Refusal(api.NotAllowedError, "Non-persistent topics are switched off")
        topic = self.find(name) if name.is_persistent else self.non_persistent.get(name)
        if topic is not None:
            return topic
        self.refuse_foreign(name)
        self._is_created(name, may_create)      # most refusals need no transaction
        with self.catalogue.topics.transaction():      # else a deletion in between leaves a partition without a topic
            if not self._is_created(name, may_create):
                self.catalogue.topics.create(name, 0)
                log.info("a topic was made", topic=name)
            self._decisions.answer_needs_sync()
            if name.is_persistent:
                return self.create(name)
        created = self.non_persistent[name] = NonPersistentTopic(name, self.options.current)
        self.apply_policies(created)
        return created

    def _is_created(self, name: TopicName, may_create: bool) -> bool:
        """Whether the topic, partition or segment has been created.

        Raises Refusal if it has not, and may not be.  Raises StorageFull.
        """
        catalogue, base = self.catalogue, name.base
        if not catalogue.namespaces.exists(name.namespace):
            raise Refusal(api.TopicNotFound, f"Namespace {name.namespace} does not exist")
        if name.is_scalable:
            raise Refusal(api.NotAllowedError, f"{name} is a scalable topic: its segments are used")
        count = catalogue.topics.partition_count(base)
        if catalogue.topics.exists(name):      # maybe named like a partition that the partitioned topic does not have
            return True
        if name.is_segment:
            # Clients of Pulsar 5 look for these words: the segment was pruned, and they send elsewhere.
            raise Refusal(api.TopicNotFound, f"{name} was not found in active segments of {base}")
        if catalogue.topics.is_shadowed(name):
            raise Refusal(api.TopicNotFound, f"{base.scalable} hides {base}: it is for clients of Pulsar 5")
        if count:
            is_whole = name.partition < 0
            why = "is partitioned: use its partitions" if is_whole else f"has {count} partitions; {name} does not exist"
            raise Refusal(api.TopicNotFound, f"Topic {base} {why}")
        refuse_reserved(name)
        refuse_blank(name)
        policies = policies_of(catalogue, name, self.options.current)
        if not (may_create and policies.auto_create_topics):
            raise Refusal(api.TopicNotFound, f"Topic {name} does not exist")
        refuse_topics(catalogue, name.namespace, policies, 1)
        return False

    def forget(self, topic: NonPersistentTopic) -> bool:
        """Forget a non-persistent topic; return whether there was one."""
        if self.non_persistent.pop(topic.name, None) is None:
            return False
        for watcher in self.topic_watchers:
            watcher.release(topic)
        return True

    def forget_if_idle(self, topic: Topic) -> None:
        """Forget a non-persistent topic if no client uses it any more."""
        if not isinstance(topic, NonPersistentTopic) or not topic.is_idle:
            return
        if self.forget(topic):
            try:
                if self.catalogue.topics.partition_count(topic.name) is None:      # a partition stays with its topic
                    return
                self.catalogue.topics.delete(topic.name, for_now=True)
            except StorageFull as error:      # no client waits for this; the next start deletes the topic
                self._reports.once(f"{error}; {topic.name} stays in lists of topics", code="G103")

    # -- policies

    def apply_options(self) -> None:
        """Apply the owner's changed options to all open topics."""
        topics: list[Topic] = [*self.by_name.values(), *self.non_persistent.values()]
        for topic in topics:
            topic.options = self.options.current
            for subscription in topic.subscriptions.values():
                subscription.options = self.options.current
            self.apply_policies(topic)

    def apply_policies(self, topic: Topic) -> None:
        """Apply the topic's policies from the catalogue."""
        policies = policies_of(self.catalogue, topic.name, self.options.current)
        topic.bind(policies)
        self._decisions.changed[topic] = None
        if isinstance(topic, Partition):
            for watcher in self.watchers:
                watcher.watch(topic)
        else:
            for topic_watcher in self.topic_watchers:
                topic_watcher.watch(topic)
        for subscription in topic.attached:
            follow_policies(subscription)
            if subscription.dispatcher is not None:
                subscription.dispatcher.bounds_changed()
            self._decisions.wake(topic)

    # -- ledgers

    def roll(self, partition: Partition, *, is_idle: bool = False) -> None:
        """Seal the partition's open ledger and continue in a new one.

        is_idle: allocate no space ahead for the new ledger.  Raises StorageFull.
        """
        self._add_ledger(partition, is_idle=is_idle)
        self._decisions.wake_trimming(partition)
        self._decisions.acknowledged[partition] = None
        log.debug("a new ledger was begun", topic=partition.name, ledger=partition.open_ledger.ledger_id)

    def _add_ledger(self, partition: Partition, *, is_idle: bool = False) -> None:
        """Seal the open ledger, and open a new one.  is_idle: allocate no space ahead.  Raises StorageFull."""
        self._space.look()
        ledger_id = self.catalogue.ids.next_ledger_id()
        partition.add_ledger(ledger_id, self._decisions.now_ms, 0 if is_idle else self._space.ahead)
        self._snapshots.ledger_added(partition)
        self._note_opened(partition)

    def _note_opened(self, partition: Partition) -> None:
        """Add an op for the open ledger to the journal.

        A start after a crash keeps only ledgers that the journal names.  The ledger's files are part of the next
        checkpoint, before the segment with the op is reused.
        """
        opened = partition.open_ledger
        self._decisions.note(partition, journal_ops.ledger_opened(
            partition.partition_id, opened.ledger_id, created_ms=opened.created_ms, first_message=opened.first_message))
        self._decisions.journal.mark_dirty(opened)

    def report_damage(self, partition: Partition) -> None:
        """Report damage of the partition's files, and skip lost entries for every subscription, also after a crash."""
        for text in partition.damage:
            self._reports.damage(text)
            self._decisions.journal.mark_dirty(partition)      # a damaged copy of its state is replaced
        partition.damage.clear()
        losses, partition.losses = partition.losses, []
        for ledger, lost in losses:
            self._decisions.counters.add("entries_lost", len(lost))
            durable = [one.cursor.subscription_id for one in partition.subscriptions.values() if one.is_durable]
            for subscription_id in (cursor.NOBODY, *durable):
                self._decisions.note_many(partition, journal_ops.acknowledged(
                    partition.partition_id, subscription_id, ledger.ledger_id, lost))
            for subscription in partition.subscriptions.values():
                self._decisions.count(subscription, cursor.SKIPPED, 0)

    # -- expiry

    def tick(self, now_ms: int) -> None:
        """Evict sequence ids of absent producers, and delete subscriptions of readers that stay away after a seek."""
        self._forget_producers(now_ms)
        readers = self._clients.consumers.expected_readers
        for subscription, since_ms in list(readers.items()):
            if subscription.consumers:
                del readers[subscription]
            elif now_ms - since_ms > _READER_MS:
                del readers[subscription]
                subscription.partition.remove_subscription(subscription)

    def _forget_producers(self, now_ms: int) -> None:
        """Evict sequence ids of producers that were inactive too long, or are too many; connected producers stay."""
        options = self.options.current
        bounds = now_ms, options.deduplication_inactivity_s * 1000, options.deduplication_names_max
        if not (some := [*itertools.islice(self._to_forget, _EACH_TICK)]):      # the next round begins
            self._to_forget = iter([*self.by_name.values()])
            some = [*itertools.islice(self._to_forget, _EACH_TICK)]
        for partition in some:
            if not partition.is_released and partition.sequences.is_due(*bounds):
                connected = {producer.identity for producer in partition.producers.live.values()}
                evicted = partition.sequences.forget(*bounds, connected)
                self._decisions.counters.add("deduplication_names_evicted", evicted)
                self._decisions.journal.mark_dirty(partition)
