"""Compacted views of the partitions that an owner serves: which holds, who reads which, and when one that was replaced goes.

A subscription whose consumers read compacted is given a view when the first of them comes, and keeps it until its mark-delete position
has reached the view's horizon, or nobody is there any more.  So what it is given again is what it was given before, however often the view
is replaced meanwhile; and the ledgers behind that horizon are kept for it (Partition.take_acknowledged_ledgers).
"""
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.errors import CorruptFile
from geminga.storage.ledgers import compacted_ledgers
from geminga.storage.ledgers.compacted_ledgers import View
from geminga.storage.topics import acknowledge
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Subscription
from geminga.storage.topics.watcher import Watcher


class CompactedViews(Watcher):
    """Of one owner."""

    def __init__(self, owner):
        self._owner = owner
        self._watched: dict[Partition, None] = {}      # somebody reads compacted there, or views were replaced

    def release(self, partition: Partition) -> None:
        """It is no longer open."""
        self._watched.pop(partition, None)
        for view in [*partition.replaced, *([partition.view] if partition.view else [])]:
            self._forget(view)
        for view in partition.replaced:
            view.unlink()
        partition.replaced.clear()

    def tick(self, now_ms: int) -> None:
        """Readers have come further, or are gone."""
        for partition in list(self._watched):
            self._look(partition)

    def _look(self, partition: Partition) -> None:
        """Views that nobody reads any more go, and so may ledgers."""
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
            self._owner.wake_trimming(partition)
        if not readers and not partition.replaced:
            del self._watched[partition]

    def _forget(self, view: View) -> None:
        for worker in {worker for worker, _ in self._owner.sessions}:
            for part in view.manifest.parts:
                self._owner.outbox(worker).forget(part.ledger_id, view.number)

    def begin(self, subscription: Subscription, *, reads_compacted: bool) -> None:
        """Its first consumer comes."""
        found, mark_delete = subscription.partition, subscription.cursor.mark_delete
        if reads_compacted:
            subscription.reads_compacted = True
            self._watched[found] = None
            if mark_delete < found.horizon:
                subscription.view = found.view
        elif found.view is not None and mark_delete < (first := (found.ledgers[0].ledger_id, -1)):
            acknowledge.skip_to(self._owner, subscription, first)      # what only the view has is not for this one

    def adopt(self, partition: Partition, number: int) -> None:
        """The view of that number that was made is the partition's from now on.  Raises Refusal, OSError."""
        folder, made = partition.folder, compacted_ledgers.unfinished(partition.folder, number)
        if number == partition.view_number and partition.view is not None and not made.exists():
            return
        if why := self._objection(partition, number):
            raise Refusal(api.MetadataError, why)
        compacted_ledgers.adopt(folder, number)
        self._take_over(partition, compacted_ledgers.open_view(folder, number))

    def _objection(self, partition: Partition, number: int) -> str:
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
            return f"{path}: it reaches up to {manifest.horizon}, which is not between {partition.horizon} and {partition.last_confirmed}"
        for ledger_id in (manifest.horizon[0], *(part.ledger_id for part in manifest.parts)):
            if partition.find(ledger_id) is None and (partition.view is None or partition.view.find(ledger_id) is None):
                return f"{path}: ledger {ledger_id} has been deleted meanwhile"
        return View(path.parent, number, manifest).missing()

    def _take_over(self, partition: Partition, view: View) -> None:
        partition.take_over(view)
        self._owner.snapshots.view_taken(partition, view)
        self._watched[partition] = None
        self._look(partition)
        self._owner.changed[partition] = None

    def truncated(self, partition: Partition) -> None:
        """Nothing is left of it: neither in a view.  Raises OSError."""
        last = next((found for found in reversed(partition.ledgers) if found.entries), None)
        if not partition.compacts or last is None:
            return
        number = partition.view_number + 1
        horizon = last.ledger_id, last.last_entry
        compacted_ledgers.make_empty(partition.folder, number, partition.partition_id, horizon, self._owner.now_ms)
        self._take_over(partition, compacted_ledgers.open_view(partition.folder, number))

    def due(self) -> list[tuple[int, str]]:
        """(id, topic) of partitions with more news than their thresholds."""
        return [(partition.partition_id, str(partition.name)) for partition in self._owner.by_name.values()
                if 0 < partition.policies.compaction_threshold < news(partition)]


def news(partition: Partition) -> int:
    """Bytes behind the horizon."""
    ledger_id, entry_id = partition.horizon
    return partition.bytes_from(ledger_id, entry_id + 1)
