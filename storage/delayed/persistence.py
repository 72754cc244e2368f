"""Saving and restoring a delayed index: a snapshot of its state, beside the files of its windows.

A snapshot has the bitmaps, the sizes of window files, and the position up to which the index is complete. After a
crash, rows in files behind those sizes do not count, and the ledgers are scanned from that position.
"""
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from geminga.storage.cursors.pending_acks import NEVER_MS
from geminga.storage.delayed import snapshot_file
from geminga.storage.delayed.index import DelayedIndex
from geminga.storage.delayed.rows import rows_of
from geminga.storage.delayed.snapshot_file import Saved
from geminga.storage.delayed.window_files import Window
from geminga.storage.errors import CorruptFile
from geminga.storage.ledgers.position import Position

_NAME = "schedule"        # of the snapshot's file
_STRETCH = 1 << 16        # entries that a restored index learns of at once


@dataclass(frozen=True, slots=True)
class IndexSnapshot:
    """A state of an index that is to be saved.  Any thread may write its bytes to its path."""

    index: DelayedIndex
    data: bytes
    done: set[Window]      # windows whose files nobody needs once the snapshot is on disk

    @property
    def path(self) -> Path:
        return self.index.folder / _NAME

    def remove_files(self) -> None:
        """Remove files that the snapshot, which is on disk, does not need."""
        files = self.index.store.files
        for window in self.done & files.done:
            files.remove(window)


def take_snapshot(index: DelayedIndex) -> IndexSnapshot:
    """Return the part of the index to save, as it is now.  No flush may be in progress, because files have to be
    complete.
    """
    assert index.store.flush is None, index
    open_ledger, files = index.partition.open_ledger, index.store.files
    end: Position = open_ledger.ledger_id, open_ledger.entries
    first = min((rows.lowest_position() for rows in index.store.fresh.parts), default=end)
    limit = index.sorted_from
    is_sorted_saved = limit is not None and limit < first
    if index.limit is not None:
        first = min(first, index.limit)
    behind, last_ms = (end, index.last_sorted_ms) if is_sorted_saved else (first, 0)
    kept = {window: file for window, file in files.files.items() if window not in files.done}
    index.is_dirty = False
    saved = Saved(kept, index.bits.bitmaps, first, behind, last_ms)
    return IndexSnapshot(index, snapshot_file.encode(index.partition.partition_id, saved), set(files.done))


def restore(index: DelayedIndex) -> None:
    """Read the saved index, and begin to scan the entries published since.

    If it is damaged or was never saved, all ledgers are scanned.
    """
    index.partition.damage += index.amended.read()
    for ledger_id in [*index.amended.times]:
        if index.partition.find(ledger_id) is None:
            index.amended.forget(ledger_id)
    try:
        saved = snapshot_file.read(index.folder / _NAME)
        index.store.files.restore(saved.files)
    except FileNotFoundError:
        index.rebuild()
    except CorruptFile as error:
        index.rebuild(str(error))
    else:
        _restore_bits(index, saved)
        _restore_limit(index, saved)
        for amendment in index.amended:
            _amend_again(index, *amendment)
        if index.is_sorted:
            _learn_from(index, saved.behind)


def _restore_bits(index: DelayedIndex, saved: Saved) -> None:
    for ledger_id, bits in saved.bitmaps.items():
        if index.partition.find(ledger_id) is not None:
            index.bits.load(ledger_id, bits)
    index.bits.clear_from(*saved.known)


def _restore_limit(index: DelayedIndex, saved: Saved) -> None:
    """Set the limit to the end of the saved index, and restore whether all entries behind it are sorted by time."""
    known, partition = saved.known, index.partition
    if known >= (partition.open_ledger.ledger_id, partition.open_ledger.entries):
        return
    index.limit = max(known, (partition.ledgers[0].ledger_id, 0))
    ledger = partition.find(known[0])
    if saved.behind > known == index.limit and ledger is not None and known[1] < ledger.entries:
        index.is_sorted = True
        index.first_sorted_ms, index.last_sorted_ms = int(ledger.deliver_at[known[1]]), saved.last_ms


def _amend_again(index: DelayedIndex, ledger_id: int, entry_id: int, at_ms: int) -> None:
    """Do in memory what `DelayedIndex.amend` did, for an amendment read from the file."""
    is_beyond = index.limit is not None and (ledger_id, entry_id) >= index.limit
    if is_beyond and index.is_sorted and at_ms == NEVER_MS:
        index.bits.mark(ledger_id, entry_id, np.ones(1, bool))
    elif is_beyond:
        index.is_sorted = False
    elif at_ms < NEVER_MS and index.bits.is_set(ledger_id, entry_id):
        index.store.amended.add(rows_of([at_ms], ledger_id, [entry_id]))


def _learn_from(index: DelayedIndex, position: Position) -> None:
    """Add the entries from the position on to a sorted index: they were published after the snapshot was saved."""
    for ledger in index.partition.ledgers_from(position[0]):
        for first in range(position[1] if ledger.ledger_id == position[0] else 0, ledger.entries, _STRETCH):
            times = ledger.deliver_at[first:min(ledger.entries, first + _STRETCH)]
            index.published(ledger, first, times, -NEVER_MS)      # as if none of them were due yet
