"""Compacted views of an owner's partitions: adopting new ones, and deleting replaced ones when no consumer reads them.

A subscription whose consumers read compacted gets the partition's view when the first consumer comes. It keeps that
view until its mark-delete position reaches the view's horizon, or its last consumer is gone. So redelivery gives the
same messages however often the view is replaced meanwhile. The ledgers behind the view's horizon are kept for it
(Partition.take_acknowledged_ledgers).
"""
from collections.abc import Iterable

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.errors import CorruptFile
from geminga.storage.ledgers import compacted_ledgers
from geminga.storage.ledgers.compacted_ledgers import CompactedLedgers
from geminga.storage.open_topics import acknowledge
from geminga.storage.open_topics.backup_snapshot import BackupSnapshots
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.session import Sessions
from geminga.storage.open_topics.watcher import Watcher
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Subscription


class CompactedViews(Watcher):
    """The compacted views in use by one owner's partitions and subscriptions."""

    def __init__(self, decisions: Decisions, sessions: Sessions, snapshots: BackupSnapshots):
        self._decisions, self._sessions, self._snapshots = decisions, sessions, snapshots
        self._watched: dict[Partition, None] = {}      # partitions with compacted readers or replaced views

    def __repr__(self) -> str:
        return f"<CompactedViews watched={len(self._watched)}>"

    def release(self, partition: Partition, /) -> None:
        """Delete the partition's replaced views, and have workers unmap all its views."""
        self._watched.pop(partition, None)
        for view in [*partition.replaced, *([partition.view] if partition.view else [])]:
            self._forget(view)
        for view in partition.replaced:
            view.unlink()
        partition.replaced.clear()

    def tick(self, now_ms: int) -> None:
        """Take views away from subscriptions that have read past them, and delete replaced views without readers.

        Called once a second.
        """
        for partition in list(self._watched):
            self._look(partition)

    def _look(self, partition: Partition) -> None:
        """Delete replaced views of the partition that no subscription reads, and wake trimming of its ledgers."""
        # While it has consumers, a subscription keeps its view up to the horizon, however old the view is: redelivery
        # would otherwise give other messages than the first delivery did.
        readers = [subscription for subscription in partition.attached if subscription.reads_compacted]
        for subscription in readers:
            if subscription.view is not None and subscription.cursor.mark_delete >= subscription.view.horizon:
                subscription.view = None
        used = [subscription.view for subscription in readers]
        for view in [view for view in partition.replaced if view not in used]:
            partition.replaced.remove(view)
            view.unlink()
            self._forget(view)
        if len(partition.ledgers) > 1:
            self._decisions.wake_trimming(partition)
        if not readers and not partition.replaced:
            del self._watched[partition]

    def _forget(self, view: CompactedLedgers) -> None:
        """Tell workers to unmap the files of a compacted view."""
        for worker in self._sessions.workers:
            for part in view.manifest.parts:
                self._decisions.outbox(worker).forget(part.ledger_id, view.number)

    def begin(self, subscription: Subscription, *, reads_compacted: bool) -> None:
        """Give a subscription of a stored topic the partition's compacted view when its first consumer comes.

        If its consumers do not read compacted, the subscription skips entries that only the view has.
        """
        partition, mark_delete = subscription.partition, subscription.cursor.mark_delete
        assert isinstance(partition, Partition), subscription
        if reads_compacted:
            subscription.reads_compacted = True
            self._watched[partition] = None
            if mark_delete < partition.horizon:
                subscription.view = partition.view
        elif partition.view is not None and mark_delete < (first := (partition.ledgers[0].ledger_id, -1)):
            acknowledge.skip_to(self._decisions, subscription, first)

    def adopt(self, partition: Partition, number: int) -> None:
        """Put the compacted view with that number, made by a compaction job, into force.  Raises Refusal, OSError."""
        folder, made = partition.folder, compacted_ledgers.unfinished(partition.folder, number)
        if number == partition.view_number and partition.view is not None and not made.exists():
            return
        if why := self._objection(partition, number):
            raise Refusal(api.MetadataError, why)
        compacted_ledgers.adopt(folder, number)
        self._take_over(partition, number)

    def _objection(self, partition: Partition, number: int) -> str:
        """Return why a view made by a compaction job cannot be adopted, "" if it can."""
        path = compacted_ledgers.unfinished(partition.folder, number) / compacted_ledgers.MANIFEST
        if number <= partition.view_number:
            return f"There is compacted view {partition.view_number} already"
        try:
            manifest = compacted_ledgers.decode(path.read_bytes(), path)
        except FileNotFoundError:
            return f"There is no compacted view {number}"
        except CorruptFile as error:
            return str(error)
        if manifest.partition_id != partition.partition_id:
            return f"{path}: it is of partition {manifest.partition_id}, not of {partition.partition_id}"
        if not partition.horizon <= manifest.horizon <= partition.last_confirmed:
            return f"{path}: it reaches up to {manifest.horizon}, " \
                   f"which is not between {partition.horizon} and {partition.last_confirmed}"
        if partition.limit is not None and manifest.horizon >= partition.limit:
            return f"{path}: it reaches into a transaction that is open, from {partition.limit} on"
        for ledger_id in (manifest.horizon[0], *(part.ledger_id for part in manifest.parts)):
            is_in_view = partition.view is not None and partition.view.find(ledger_id) is not None
            if partition.find(ledger_id) is None and not is_in_view:
                return f"{path}: ledger {ledger_id} has been deleted meanwhile"
        return CompactedLedgers(path.parent, number, manifest).missing()

    def _take_over(self, partition: Partition, number: int) -> None:
        """Open a view whose files are in place, and make it the partition's view in force.  Raises OSError."""
        view = compacted_ledgers.open_view(partition.folder, number)
        assert view is not None, (partition, number)
        partition.take_over(view)
        self._snapshots.view_taken(partition, view)
        self._watched[partition] = None
        self._look(partition)
        self._decisions.changed[partition] = None

    def truncated(self, partition: Partition) -> None:
        """Put an empty view into force after all entries of a compacted partition were deleted.  Raises OSError."""
        last, limit = next((ledger for ledger in reversed(partition.ledgers) if ledger.entries), None), partition.limit
        if not partition.compacts or last is None:
            return
        number, horizon = partition.view_number + 1, (last.ledger_id, last.last_entry)
        if limit is not None:
            horizon = min(horizon, (limit[0], limit[1] - 1))
        compacted_ledgers.make_empty(partition.folder, number, partition.partition_id, horizon, self._decisions.now_ms)
        self._take_over(partition, number)


def due(partitions: Iterable[Partition]) -> list[tuple[int, str]]:
    """Return (id, topic) of partitions with more bytes behind their view's horizon than their threshold."""
    return [(partition.partition_id, str(partition.name)) for partition in partitions
            if 0 < partition.policies.compaction_threshold < news(partition)]


def news(partition: Partition) -> int:
    """Return how many bytes of the partition's entries lie behind the horizon of its compacted view.

    Those of open transactions, and all behind the first of them, do not count: no compaction can read them yet.
    """
    ledger_id, entry_id = partition.horizon
    open_bytes = 0 if partition.limit is None else partition.bytes_from(*partition.limit)
    return partition.bytes_from(ledger_id, entry_id + 1) - open_bytes
