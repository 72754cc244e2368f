"""Durability: write decisions into the journal, and sync it before any answer that depends on them is sent."""
import time

from geminga.storage import format
from geminga.storage.errors import Interrupted, NotDurable, StorageFull, is_full, text_of
from geminga.storage.ledgers.checkpoints import Changed, collect_checkpoint, write_checkpoint
from geminga.storage.ledgers.journal import Record
from geminga.storage.topics.owner_context import OwnerContext
from geminga.storage.topics.publish_plan import Plan
from geminga.storage.upkeep.disk_space import DiskSpace

ACK_SYNC_MS = 10            # an acknowledgement without a receipt is synced with the next answer, or after this
_OPS_SIZE_MAX = 10_000 * format.OP_ROW.itemsize      # bytes of ops in a record, to fit into the smallest segment
_NO_ROOM_SECONDS = 0.1      # between attempts to append when the disk is full and the reserve used up


class Durability:
    """Commits and syncs of one owner's decisions."""

    def __init__(self, owner: OwnerContext, space: DiskSpace):
        self._owner, self._space = owner, space
        self._unsynced_since_ms: int | None = None      # time of the oldest op that is not synced

    def __repr__(self) -> str:
        return f"<Durability unsynced_since_ms={self._unsynced_since_ms}>"

    def clock_went_back(self, now_ms: int) -> None:
        """Restart the wait for the next sync at `now_ms`, unless it began earlier.

        The wall clock was set back, and may need hours to reach the old time again.
        """
        if self._unsynced_since_ms is not None:
            self._unsynced_since_ms = min(self._unsynced_since_ms, now_ms)

    def due_ms(self) -> int | None:
        """Return the time at which appended ops must be synced even if no answer needs it; None if all are synced."""
        if self._unsynced_since_ms is None:
            return None
        options = self._owner.options
        return self._unsynced_since_ms + (ACK_SYNC_MS if options.sync == "group" else options.sync_interval_ms)

    def commit(self, planned: Plan | None = None) -> None:
        """Append all decisions so far, and the planned entries, to the journal; sync the journal if a sync is due.

        A sync is due when an answer depends on it, or when ops have waited long enough.

        Raises NotDurable, OSError.  Any other error becomes Interrupted, because a command must not report a half-done
        commit as its own failure.
        """
        try:
            self._commit_all(planned)
        except (StorageFull, NotDurable, OSError):
            raise
        except Exception as error:
            raise Interrupted("a commit") from error

    def commit_and_sync(self) -> None:
        """Make all decisions so far durable, so that files that contradict them may be deleted.  Raises as `commit`."""
        self._owner.answer_needs_sync()
        self.commit()

    def _commit_all(self, planned: Plan | None) -> None:
        """Commit the catalogue, then append ops and plan to the journal, in records that fit into a segment."""
        owner = self._owner
        if owner.catalogue.is_changing:
            self._space.look()
        owner.catalogue.commit()
        if planned is None and not owner.has_ops:
            return self._sync_when_due()
        ops, at = owner.take_ops(), 0
        while len(ops) - at > _OPS_SIZE_MAX:      # acknowledgements of many entries that are not adjacent
            self.append(ops[at:at + _OPS_SIZE_MAX])
            at += _OPS_SIZE_MAX
        ops = ops[at:]
        self._append(planned.record(ops) if planned else Record(b"", b"", b"", ops, [], 0))
        if self._unsynced_since_ms is None:
            self._unsynced_since_ms = owner.now_ms
        self._sync_when_due()

    def append(self, ops: bytes) -> None:
        """Append a record with only ops, packed OP_ROWs, to the journal.  Raises NotDurable."""
        self._append(Record(b"", b"", b"", ops, [], 0))

    def _append(self, record: Record) -> None:
        """Append a record to the journal.  If the disk is full, free the reserved space, then wait for space.

        The pass cannot be undone: its decisions are already applied in memory, and none has been answered.
        """
        while True:
            try:
                return self._owner.journal.append(record)
            except StorageFull as error:
                self._owner.log_once(f"{error}; nothing is acknowledged until there is room", code="G103")
                if not self._space.give_up():
                    time.sleep(_NO_ROOM_SECONDS)

    def checkpoint(self, changed: set[Changed]) -> None:
        """Write and sync the files of changed objects, such as a partition and its ledger.

        If the disk is full, reserved space is freed.  Raises StorageFull.  Raises NotDurable for other errors, because
        the kernel drops data that it failed to write.
        """
        checkpoint = collect_checkpoint(changed)
        while True:
            try:
                return write_checkpoint(*checkpoint)
            except OSError as error:
                if not is_full(error):
                    raise NotDurable(text_of(error)) from error
                if not self._space.give_up():
                    raise StorageFull(text_of(error)) from error

    def _sync_when_due(self) -> None:
        """Sync the journal if an answer of this pass depends on it, or if ops have waited long enough."""
        owner = self._owner
        must_sync, owner.must_sync = owner.must_sync, False
        if self._unsynced_since_ms is None:
            return
        waited_ms = owner.now_ms - self._unsynced_since_ms
        is_due = {"group": must_sync or waited_ms >= ACK_SYNC_MS,
                  "interval": waited_ms >= owner.options.sync_interval_ms,
                  "none": False}[owner.options.sync]
        if is_due:
            began = time.perf_counter()
            owner.journal.sync()
            owner.counters.observe("sync", time.perf_counter() - began)
            owner.counters.add("syncs")
        if is_due or owner.options.sync == "none":
            self._unsynced_since_ms = None
