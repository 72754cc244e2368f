"""Read the entries of a stretch block by block, with their index rows, and compare their checksums."""
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from geminga.proto import checksums
from geminga.proto.metadata import PAD
from geminga.proto.rows import Rows
from geminga.proto.sends import KEPT_CHECKSUM
from geminga.storage import format
from geminga.storage.jobs import confirmed
from geminga.storage.jobs.confirmed import Stretch
from geminga.storage.ledgers import compacted_ledgers
from geminga.storage.ledgers.view_files import Count

BLOCK_SIZE, BLOCK_ENTRIES = 8 << 20, 32 << 10      # bytes and entries of a block at most; a larger entry is one block
_GAP_MAX = 64 << 10                                # bytes between two entries that are read along with them

ReportDamage = Callable[[str], None]               # called with a line for each damage
Wanted = Callable[[Rows], NDArray[np.bool_]]       # index rows (n,) -> (n,) which of their entries to read


class ViewReplaced(Exception):
    """Error: the compacted view to be read is gone, because a newer one has replaced it."""


@dataclass(slots=True)
class Block:
    """Entries that are read together: their bytes, and where each begins and ends."""

    rows: Rows                          # (n,) INDEX_ROW or COMPACTED_ROW
    entry_ids: NDArray[np.int64]
    data: NDArray[np.uint8]             # with PAD more bytes at its end
    begins: NDArray[np.int64]           # of each entry in `data`
    ends: NDArray[np.int64]

    def entry(self, at: int) -> bytes:
        return self.data[self.begins[at]:self.ends[at]].tobytes()

    def chosen(self, some: NDArray[np.intp]) -> "Block":
        """Return a block with some of the entries, which shares `data` with this one."""
        return Block(self.rows[some], self.entry_ids[some], self.data, self.begins[some], self.ends[some])


class BlockReader:
    """Reader of one stretch, with the open file of its ledger.  Damaged entries are reported and left out."""

    def __init__(self, data_dir: Path, stretch: Stretch, report: ReportDamage, block_size: int | None = None,
                 count: Count | None = None):
        self.stretch, self._report, self._block_size = stretch, report, block_size or BLOCK_SIZE
        self._folder = format.partition_folder(data_dir, stretch.partition_id)
        folder = format.compacted_folder(self._folder) / str(stretch.view) if stretch.view else self._folder
        self._path = format.ledger_path(folder, stretch.ledger_id)
        self._fd, self._memory = -1, np.zeros(0, np.uint8)
        self._count = count or (lambda size: None)
        self.masked = np.empty(0, np.int64)      # message_numbers of messages in entries of a view that it has no more

    def __repr__(self) -> str:
        return f"<BlockReader {self._path} {self.stretch.first}..{self.stretch.end}>"

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def report(self, entry_id: int, text: str) -> None:
        """Report that an entry is left out, and why."""
        self._report(f"{self._path}: entry {self.stretch.ledger_id}:{entry_id} is left out: {text}")

    def is_masked(self, entry_id: int, index: int) -> bool:
        """Whether the view has that message of an entry no more."""
        return len(self.masked) > 0 and bool(
            np.isin(message_numbers(np.array([entry_id]), np.array([index])), self.masked)[0])

    def blocks(self, wanted: Wanted | None) -> Iterator[Block]:
        """Yield the stretch's undamaged entries in blocks.  The next block overwrites the bytes of the one before.

        Entries of transactions that are not committed are left out.  Nothing is yielded for a ledger that is deleted
        before it is opened.  Raises ViewReplaced, CorruptFile, OSError.
        """
        stretch = self.stretch
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            rows, entry_ids = self._view_rows() if stretch.view else self._ledger_rows()
        except FileNotFoundError:
            if stretch.view and self._folder.exists():
                raise ViewReplaced(f"compacted view {stretch.view} of partition {stretch.partition_id} was replaced "
                                   "while it was read; read again") from None
            return
        self._count(rows.nbytes)
        if wanted is not None:
            chosen = wanted(rows)
            rows, entry_ids = rows[chosen], entry_ids[chosen]
        for first, end in _together(rows, self._block_size):
            yield self._load(rows[first:end], entry_ids[first:end])

    def _ledger_rows(self) -> tuple[Rows, NDArray[np.int64]]:
        stretch = self.stretch
        rows, lost, damage = confirmed.whole_rows(self._folder, stretch.partition_id, stretch.ledger_id, stretch.first,
                                                  stretch.end)
        for text in damage:
            self._report(text)
        entry_ids = np.arange(stretch.first, stretch.first + len(rows))
        kept = ~lost & confirmed.are_committed(
            self._folder, stretch.partition_id, stretch.ledger_id, rows, stretch.first)
        return (rows, entry_ids) if kept.all() else (rows[kept], entry_ids[kept])

    def _view_rows(self) -> tuple[Rows, NDArray[np.int64]]:
        stretch = self.stretch
        view = compacted_ledgers.open_view(self._folder, stretch.view)
        ledger = view.find(stretch.ledger_id) if view is not None else None
        if ledger is None:
            return np.empty(0, format.COMPACTED_ROW), np.empty(0, np.int64)
        start, stop = np.searchsorted(ledger.kept, [stretch.first, stretch.end]).tolist()
        for text in ledger.damage if start == 0 else ():      # reported once, by the task with the first entries
            self._report(text)
        self.masked = message_numbers(*ledger.removed)
        return ledger.rows[start:stop], ledger.kept[start:stop]

    def _load(self, rows: Rows, entry_ids: NDArray[np.int64]) -> Block:
        """Read some entries into a block, without those that are damaged or whose disk space was given back."""
        offsets, sizes = rows["offset"].astype(np.int64), rows["size"].astype(np.int64)
        start, size = int(offsets[0]), int(offsets[-1] + sizes[-1] - offsets[0])
        if size + PAD > len(self._memory):
            self._memory = np.zeros(size + PAD, np.uint8)
        data = self._memory[:size + PAD]
        bytes_read = _read_at(self._fd, memoryview(data)[:size], start)
        self._count(bytes_read)
        begins = offsets - start
        block = Block(rows, entry_ids, data, begins, begins + sizes)
        heads = np.ndarray(len(data) - 3, "<u4", data, 0, (1,))
        is_there = heads[begins] != 0      # zeros: its space was given back
        is_cut = block.ends > bytes_read
        if is_cut.any():
            for entry_id in entry_ids[is_cut].tolist():
                self.report(entry_id, "the file ends before it does")
            is_there &= ~is_cut
        checked = np.flatnonzero(is_there & (rows["flags"] & KEPT_CHECKSUM != 0))
        wrong = checked[checksums.wrong_entries(data, begins[checked], block.ends[checked], rows["crc32c"][checked])]
        for entry_id, offset in zip(entry_ids[wrong].tolist(), offsets[wrong].tolist(), strict=True):
            # A broker that gives back space while a block is read changes entries from their first bytes on.
            if os.pread(self._fd, len(format.NO_ENTRY), offset) != format.NO_ENTRY:
                self.report(entry_id, "its checksum is wrong")
        is_there[wrong] = False
        return block if is_there.all() else block.chosen(np.flatnonzero(is_there))


def message_numbers(entry_ids: NDArray[np.int64], indexes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a number (n,) for each message of a ledger, by entry id (n,) and the message's number in the entry (n,).
    """
    return entry_ids << 31 | indexes


def _together(rows: Rows, block_size: int) -> Iterator[tuple[int, int]]:
    """Yield (first, end) of index rows whose entries are read as one block."""
    offsets = rows["offset"].astype(np.int64)
    ends = offsets + rows["size"]
    borders = np.flatnonzero((offsets[1:] - ends[:-1] > _GAP_MAX) | (offsets[1:] < ends[:-1])) + 1
    for first, end in zip([0, *borders.tolist()], [*borders.tolist(), len(rows)], strict=True):
        while first < end:
            until = int(np.searchsorted(ends[first:end], offsets[first] + block_size, side="right"))
            until = min(end, first + max(1, min(until, BLOCK_ENTRIES)))
            yield first, until
            first = until


def _read_at(fd: int, into: memoryview, offset: int) -> int:
    """Read from a file's offset into a buffer.  Returns the number of bytes read, fewer at the end of the file."""
    done = 0
    while done < len(into) and (count := os.preadv(fd, [into[done:]], offset + done)):
        done += count
    return done
