"""A managed ledger: the chain of ledgers that holds one partition's entries, and the compacted view over its
beginning.

Ledgers ascend by id.  The last one is open, all others are sealed.  Callers write changes into the journal; this module
does not sync.
"""
import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from geminga.proto.names import TopicName
from geminga.proto.sends import IS_BATCH
from geminga.storage import format
from geminga.storage.ledgers import ledger_files
from geminga.storage.ledgers.compacted_ledgers import CompactedLedgers
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.ledgers.position import NOWHERE, Position
from geminga.storage.ledgers.readable import StoredLedger

EARLIEST, LATEST = (-1, -1), ((1 << 63) - 1, (1 << 63) - 1)     # as clients write them in message ids


@dataclass(eq=False, slots=True)
class ManagedLedger:
    """The ledgers of one partition, from the oldest retained one to the open one."""

    partition_id: int
    name: TopicName
    folder: Path
    ledgers: list[Ledger] = field(default_factory=list, kw_only=True)
    next_message: int = field(default=0, kw_only=True)             # messages ever published
    now_ms: int = field(default=0, kw_only=True)                   # time of the pass
    damage: list[str] = field(default_factory=list, kw_only=True)  # found in its files, and not reported yet
    view: CompactedLedgers | None = field(default=None, kw_only=True)      # the newest compacted view
    view_number: int = field(default=0, kw_only=True)              # ... even if it cannot be used; 0: there is none
    # Older views that consumers may still read.
    replaced: list[CompactedLedgers] = field(default_factory=list, kw_only=True)

    def __repr__(self) -> str:
        state = f"ledgers={len(self.ledgers)} messages={self.next_message} view={self.view_number}"
        return f"<{type(self).__name__} {self.partition_id} {self.name} {state}>"

    @property
    def open_ledger(self) -> Ledger:
        return self.ledgers[-1]

    @property
    def last_confirmed(self) -> Position:
        """Position of the partition's last entry; entry id -1 in the open ledger if that ledger is empty."""
        return self.open_ledger.ledger_id, self.open_ledger.last_entry

    def ledgers_from(self, ledger_id: int) -> list[Ledger]:
        """Return the ledgers from this id on, or from the next higher existing id.

        If all ids are lower, the result is only the open ledger.
        """
        if ledger_id >= self.open_ledger.ledger_id:      # nearly always
            return self.ledgers[-1:]
        return self.ledgers[bisect.bisect_left(self.ledgers, ledger_id, key=_ledger_id):]

    def bytes_from(self, ledger_id: int, entry_id: int) -> int:
        """Return the total size in bytes of the entry at a position and of all entries behind it."""
        total = 0
        for each in self.ledgers_from(ledger_id):
            first = entry_id if each.ledger_id == ledger_id else 0
            if each.ledger_id >= ledger_id and first < each.entries:
                total += each.size - (int(each.column("offset")[first]) if first > 0 else format.HEADER_SIZE)
        return total

    def find(self, ledger_id: int) -> Ledger | None:
        """Return the ledger with this id; None if the chain has no such ledger."""
        found = self.ledgers_from(ledger_id)
        return found[0] if found and found[0].ledger_id == ledger_id else None

    def has(self, position: Position) -> bool:
        """Whether a cursor may be at this position: on an existing entry, or at -1 before a ledger's first entry."""
        found = self.find(position[0])
        return found is not None and -1 <= position[1] < found.entries

    def take_over(self, view: CompactedLedgers) -> None:
        """Adopt a new compacted view.  Consumers of the previous view continue to read from that view."""
        view.damage = self.damage
        for part in view.ledgers:
            part.damage = self.damage
        view.cover((found.ledger_id, found.entries) for found in self.ledgers)
        if self.view is not None:
            self.replaced.append(self.view)
        self.view, self.view_number = view, view.number

    def with_view(self, view: CompactedLedgers | None, ledger_id: int) -> Sequence[StoredLedger]:
        """Return the view's compacted ledgers from this id up to its horizon, and the ledgers behind the horizon.

        Without a view, return the ledgers from this id on.
        """
        if view is None:
            return self.ledgers_from(ledger_id)
        return [*view.ledgers_from(ledger_id), *self.ledgers_from(max(ledger_id, view.horizon[0]))]

    def mark_delete_before(self, position: Position, view: CompactedLedgers | None = None) -> Position:
        """Return the mark-delete position of a cursor whose next entry is the first existing one from `position` on.

        view: the compacted view that the cursor reads up to the view's horizon.
        """
        if view is not None and position <= view.horizon:
            return view.before(position)
        if position == EARLIEST or position[0] < self.ledgers[0].ledger_id:
            return self.ledgers[0].ledger_id, -1
        found = self.find(position[0])
        if found is None:
            behind = self.ledgers_from(position[0])[0]
            return (behind.ledger_id, -1) if behind.ledger_id > position[0] else self.last_confirmed
        return found.ledger_id, min(max(position[1] - 1, -1), found.last_entry)

    def mark_delete_before_time(self, publish_time_ms: int, view: CompactedLedgers | None = None) -> Position:
        """Return the mark-delete position of a cursor whose next entry is the first published at a time or later.

        view: the compacted view that the cursor reads up to the view's horizon.
        """
        for found in self.with_view(view, 0):
            late = found.column("publish_time")[:found.entries] >= publish_time_ms
            if view is not None and not found.view and found.ledger_id == view.horizon[0]:
                late[:view.horizon[1] + 1] = False
            if late.any():
                return found.ledger_id, int(late.argmax()) - 1
        return self.last_confirmed

    def last_message(self) -> tuple[int, int, int]:
        """Return (ledger, entry, batch index) of the partition's last message; (-1, -1, -1) if there is none."""
        for found in reversed(self.ledgers):
            if found.entries:
                row = found.index[found.last_entry]
                is_batch = int(row["flags"]) & IS_BATCH
                return found.ledger_id, found.last_entry, int(row["messages"]) - 1 if is_batch else -1
        return -1, -1, -1

    def add_ledger(self, ledger_id: int, now_ms: int, ahead: int = 1 << 62) -> None:
        """Seal the open ledger, if there is one, and open a new ledger behind it.

        ahead: most bytes to allocate for each of the new ledger's files at once.  Raises StorageFull, after which
        nothing has changed.
        """
        extent = index_extent = 0
        if self.ledgers:
            # The next ledger will fill up as fast as this one did, with entries as large.
            before = self.open_ledger
            extent, index_extent = min(before.allocated, before.size, ahead), min(before.index_size, ahead)
        fresh = ledger_files.create(self.folder, self.partition_id, ledger_id, first_message=self.next_message,
                                    created_ms=now_ms, extent=extent, index_extent=index_extent)
        if self.ledgers:
            self.open_ledger.seal()
        self.ledgers.append(fresh)

    def append(self, pieces: list[memoryview], rows: NDArray[np.void] | bytes, size: int, next_message: int) -> None:
        """Append entries and their index rows (n,) INDEX_ROW to the open ledger, where room was reserved.

        pieces: the entries' bytes, in order.  size: new size of the ledger.  next_message: new number of messages of
        the partition.
        """
        last = self.ledgers[-1]
        assert next_message >= self.next_message and size >= last.size, (self, last)
        last.write(pieces, last.size)
        last.append(rows, size)
        self.next_message = next_message

    @property
    def horizon(self) -> Position:
        """The last position that the compacted view covers; NOWHERE without a view."""
        return NOWHERE if self.view is None else self.view.horizon

    def since(self, position: Position) -> int:
        """Return the number of messages ever published up to a position, including the entry at the position."""
        found = self.ledgers_from(position[0])[0]
        if found.ledger_id != position[0] or not found.entries:
            return found.first_message
        return found.first_message + found.messages_in(0, position[1] + 1)

    def check(self) -> None:
        """Assert the invariants of the chain between passes.

        Ids ascend, and exactly the last ledger is open.  Each ledger begins with the message after the previous
        ledger's last one; this is checked only where both indexes are mapped.
        """
        for before, behind in itertools.pairwise(self.ledgers):
            assert before.ledger_id < behind.ledger_id, (before, behind)
            assert before.is_sealed, before
            assert before.first_message <= behind.first_message, (before, behind)
            assert not before.is_mapped or before.lost or before.next_message <= behind.first_message, (before, behind)
        for each in self.ledgers:
            each.check()
        if self.ledgers:
            last = self.open_ledger
            assert not last.is_sealed and not last.is_unlinked, last
            assert last.first_message <= self.next_message, (self, last)
            assert not last.is_mapped or last.next_message == self.next_message, (self, last)
        assert self.view is None or self.view.number == self.view_number, (self, self.view)


def _ledger_id(found: Ledger) -> int:
    return found.ledger_id
