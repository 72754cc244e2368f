"""Durability: write decisions into the journal, and sync it before any answer that depends on them is sent."""
import time

from geminga.storage import format
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.errors import Interrupted, NotDurable, StorageFull, is_full, text_of
from geminga.storage.ledgers.checkpoints import Changed, collect_checkpoint, write_checkpoint
from geminga.storage.ledgers.journal import Record
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.disk_space import DiskSpace
from geminga.storage.open_topics.options_in_force import OptionsInForce
from geminga.storage.open_topics.reports import Reports
from geminga.storage.topics.publish_plan import Plan

ACK_SYNC_MS = 10            # an acknowledgement without a receipt is synced with the next answer, or after this
_OPS_SIZE_MAX = 10_000 * format.OP_ROW.itemsize      # bytes of ops in a record, to fit into the smallest segment
_NO_ROOM_SECONDS = 0.1      # between attempts to append when the disk is full and the reserve used up


class Durability:
    """Commits and syncs of one owner's decisions."""

    def __init__(self, decisions: Decisions, catalogue: Catalogue, options: OptionsInForce, reports: Reports,
                 space: DiskSpace):
        self._decisions, self._catalogue, self._options = decisions, catalogue, options
        self._reports, self._space = reports, space
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
        options = self._options.current
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
        """Make all decisions so far durable, in the middle of a pass.  Raises as `commit`.

        The sync step of the pass does this for nearly all decisions; `Decisions.after_commit` has files changed behind
        it.  A decision may not wait for that step when something that is carried out later in the same pass, or its own
        answer, depends on files which a crash must not show before the journal's ops:

        - unload: a later command of the pass opens the partition anew, from its files.
        - delete: the catalogue is changed after the journal here, and before it in every other commit.  When the
          catalogue has no room, everything that it has not committed is undone.
        - a night's trimming: the answer says how many bytes were given back.
        - a backup's cut: the answer says which states were written down.
        - cancelling a delayed message: the answer says whether the index of delayed messages could be amended.
        """
        self._decisions.answer_needs_sync()
        self.commit()

    def _commit_all(self, planned: Plan | None) -> None:
        """Commit the catalogue, then append ops and plan to the journal, in records that fit into a segment."""
        decisions = self._decisions
        if self._catalogue.is_changing:
            self._space.look()
        # Before the record, whose ops may be about topics and subscriptions that were made in this pass.
        self._catalogue.commit()
        if planned is None and not decisions.has_ops:
            return self._sync_when_due()
        ops, at = decisions.take_ops(), 0
        while len(ops) - at > _OPS_SIZE_MAX:      # acknowledgements of many entries that are not adjacent
            self.append(ops[at:at + _OPS_SIZE_MAX])
            at += _OPS_SIZE_MAX
        ops = ops[at:]
        self._append(planned.record(ops) if planned else Record(b"", b"", b"", ops, [], 0))
        if self._unsynced_since_ms is None:
            self._unsynced_since_ms = decisions.now_ms
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
                return self._decisions.journal.append(record)
            except StorageFull as error:
                self._reports.once(f"{error}; nothing is acknowledged until there is room", code="G103")
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
        decisions = self._decisions
        must_sync, decisions.must_sync = decisions.must_sync, False
        if self._unsynced_since_ms is None:
            return
        waited_ms, how = decisions.now_ms - self._unsynced_since_ms, self._options.current.sync
        if how == "group":
            is_due = must_sync or waited_ms >= ACK_SYNC_MS
        else:
            is_due = how == "interval" and waited_ms >= self._options.current.sync_interval_ms
        if is_due:
            began = time.perf_counter()
            decisions.journal.sync()
            decisions.counters.observe("sync", time.perf_counter() - began)
            decisions.counters.add("syncs")
        if is_due or how == "none":
            self._unsynced_since_ms = None
