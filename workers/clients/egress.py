"""Ledgers that owners write, mapped into the worker to read entries from.

A mapping is made when a run first names its ledger, and made anew when the ledger has grown past it.  It is given up
when the owner says that the ledger was deleted, or when too many are mapped.
"""
import struct
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geminga.storage import format
from geminga.storage.disk.files import map_file, open_max
from geminga.storage.format import NO_ENTRY
from geminga.storage.ledgers.compacted_ledgers import is_valid
from geminga.storage.runtime.log import log
from geminga.workers.owners.links import OwnerLink

LEDGERS_MAX = 16_384         # mapped at a time by one worker, or fewer where descriptors are few
_DESCRIPTORS, _PART = 2, 0.25      # of a mapped ledger: two mappings; of all descriptors, as connections have the rest
ENTRIES_MAX = 8_192          # read at a time
BYTES_MAX = 1 << 20          # of entries, read at a time; one entry may be larger
_GONE = 64                   # bytes of zeros that stand for an entry whose row was given back
_PLACE = struct.Struct("<Q32xI")      # (offset, size) of an index row
_ROW_SIZE = format.INDEX_ROW.itemsize

_Key = int | tuple[int, int]       # a ledger's id; of its part of a compacted view (ledger id, number of the view)


def still_there(rows: NDArray[np.void], data: memoryview) -> NDArray[np.bool_] | None:
    """Return a mask (n,) of the entries whose space has not been given back; None if all are still there.

    Call it after the bytes have been copied.  An entry that is there afterwards was whole while it was copied.
    """
    if np.frombuffer(data, np.uint8)[rows["offset"]].all():      # no entry begins with a zero: nearly always
        return None
    is_left = np.array([data[at:at + len(NO_ENTRY)] != NO_ENTRY for at in rows["offset"].tolist()])
    return None if is_left.all() else is_left


class LedgerGone(Exception):
    """The ledger was deleted before its entries were read; all of them have been acknowledged."""


@dataclass(frozen=True, slots=True)
class MappedLedger:
    """The files of one ledger, mapped into memory with the length that they had then."""

    index: NDArray[np.void]
    # Columns of the index, which are used for every run: making a view of one takes a microsecond.
    offsets: NDArray[np.uint64]
    sizes: NDArray[np.uint32]
    data: memoryview
    file: memoryview               # the index's file
    is_sealed: bool                # rows of entries that were given back may be zeros

    def __repr__(self) -> str:
        return f"<MappedLedger {len(self.index)} rows, {len(self.data)} bytes{' sealed' if self.is_sealed else ''}>"

    def holds(self, end: int) -> bool:
        """Whether the mapping covers all entries before entry id `end`."""
        return end <= len(self.index) and self.end_of(end - 1) <= len(self.data)

    def end_of(self, entry_id: int) -> int:
        """Return the offset in the ledger's file where the entry ends."""
        return self.offsets.item(entry_id) + self.sizes.item(entry_id)

    def rows_of(self, first: int, rows: NDArray[np.void],
                entries: NDArray[np.uint64] | None = None) -> NDArray[np.void]:
        """Return the index rows (n,) of entries from `first` on, or of the given entry ids (n,), none of them all
        zeros.

        An index row of zeros means that the row and its entry were given back.  A row that points at zeros behind the
        entry before takes its place, so `still_there` finds the entry missing.
        """
        if not self.is_sealed or rows["size"].all() or not self.sizes[0]:
            return rows
        rows, empty = rows.copy(), np.flatnonzero(rows["size"] == 0)
        wanted = first + empty if entries is None else entries[empty].astype(np.int64)
        whole = np.flatnonzero(self.sizes[:int(wanted[-1])])
        before = whole[np.searchsorted(whole, wanted) - 1]
        rows["offset"][empty] = self.offsets[before] + self.sizes[before]
        rows["size"][empty], rows["messages"][empty] = _GONE, 1
        return rows


@dataclass(frozen=True, slots=True)
class MappedView:
    """The entries of one ledger that a compacted view has kept: index rows, ascending by `entry_ids`."""

    index: NDArray[np.void]
    entry_ids: NDArray[np.uint64]
    data: memoryview

    def __repr__(self) -> str:
        return f"<MappedView {len(self.index)} rows, {len(self.data)} bytes>"

    def find(self, entries: NDArray[np.uint64]) -> NDArray[np.void] | None:
        """Return the index rows of these entries (n,); None if the view lacks one of them."""
        at = np.searchsorted(self.entry_ids, entries)
        if not len(self.entry_ids) or not (self.entry_ids[np.minimum(at, len(self.entry_ids) - 1)] == entries).all():
            return None
        rows = self.index[at]
        return rows if int((rows["offset"] + rows["size"]).max()) <= len(self.data) else None


class Ledgers:
    """A cache of mapped ledgers; the least recently read ones are unmapped first."""

    def __init__(self, data_dir: Path):
        self._data_dir = data_dir
        self._mapped: OrderedDict[_Key, Any] = OrderedDict()      # MappedLedgers, and MappedViews
        self._short: set[_Key] = set()      # files that were cut, and that the log has a line about

    def __repr__(self) -> str:
        return f"<Ledgers {len(self._mapped)} mapped>"

    def read(self, partition_id: int, ledger_id: int, first: int, count: int) -> tuple[NDArray[np.void], memoryview]:
        """Return (index rows, bytes of the ledger's file) for up to `count` consecutive entries, beginning with
        `first`.

        One call returns a bounded number of bytes.  Raises LedgerGone.
        """
        end = first + min(count, ENTRIES_MAX)
        ledger = self._ledger(partition_id, ledger_id, end)
        if ledger.end_of(end - 1) - ledger.offsets.item(first) > BYTES_MAX:
            reach = np.cumsum(ledger.sizes[first:end], dtype=np.int64)
            end = first + max(1, int(np.searchsorted(reach, BYTES_MAX)))
        return ledger.rows_of(first, ledger.index[first:end]), ledger.data

    def places(self, ledger_id: int, first: int, count: int) -> tuple[list[tuple[int, int]], memoryview] | None:
        """Return ([(offset, size)] of few consecutive entries, bytes of the ledger's file), without arrays.

        None if they have to be asked for by `read`: they are not mapped, too large, or some were given back.
        """
        ledger: MappedLedger | None = self._mapped.get(ledger_id)
        if ledger is None or first + count > len(ledger.index):
            return None
        begin = format.HEADER_SIZE + first * _ROW_SIZE
        places = [_PLACE.unpack_from(ledger.file, at) for at in range(begin, begin + count * _ROW_SIZE, _ROW_SIZE)]
        end = sum(places[-1])
        if end > len(ledger.data) or end - places[0][0] > BYTES_MAX or 0 in [size for _, size in places]:
            return None
        self._mapped.move_to_end(ledger_id)
        return places, ledger.data

    def pick(self, partition_id: int, ledger_id: int, entries: NDArray[np.uint64],
             view: int = 0) -> tuple[NDArray[np.void], memoryview]:
        """Return (index rows, bytes of the ledger's file) for these entries (n,), ascending.

        One call returns a bounded number of bytes, which may be those of the first entries only.  view: number of the
        compacted view to read from; 0: the ledger itself.  Raises LedgerGone.
        """
        entries = entries[:ENTRIES_MAX]
        if view:
            return self._pick_from_view(partition_id, ledger_id, entries, view)
        ledger = self._ledger(partition_id, ledger_id, int(entries[-1]) + 1)
        reach = np.cumsum(ledger.sizes[entries], dtype=np.int64)
        entries = entries[:max(1, int(np.searchsorted(reach, BYTES_MAX)))]
        return ledger.rows_of(0, ledger.index[entries], entries), ledger.data

    def forget(self, ledger_id: int, view: int = 0) -> None:
        """Unmap a ledger, or the part of it that a compacted view has kept, if it is mapped."""
        self._mapped.pop((ledger_id, view) if view else ledger_id, None)

    def forget_all(self, link: OwnerLink, rows: NDArray[np.void], data: memoryview) -> None:
        """Unmap files that an owner has deleted: rows (n,) FORGET_ROW."""
        for ledger_id, view in rows.tolist():
            self.forget(ledger_id, view)

    def _ledger(self, partition_id: int, ledger_id: int, end: int) -> MappedLedger:
        """Return the mapped ledger; map it anew if the mapping does not cover all entries before `end`."""
        ledger: MappedLedger | None = self._mapped.get(ledger_id)
        if ledger is None or not ledger.holds(end):
            ledger = self._map_ledger(partition_id, ledger_id)
            if not ledger.holds(end):
                raise self._too_short(ledger_id, format.ledger_path(self._folder(partition_id), ledger_id))
            return ledger
        self._mapped.move_to_end(ledger_id)
        return ledger

    def _map_ledger(self, partition_id: int, ledger_id: int) -> MappedLedger:
        folder = self._folder(partition_id)
        try:
            mapped = map_file(format.index_path(folder, ledger_id), writable=False)
            index = np.frombuffer(mapped, format.INDEX_ROW, offset=format.HEADER_SIZE)
            is_sealed = bool(np.frombuffer(mapped, format.INDEX_HEADER, 1)["state"][0] == format.SEALED)
            data = memoryview(map_file(format.ledger_path(folder, ledger_id), writable=False))
        except FileNotFoundError as error:
            self.forget(ledger_id)
            raise LedgerGone from error
        except ValueError as error:      # the index ends within a row, or is empty
            raise self._too_short(ledger_id, format.ledger_path(folder, ledger_id)) from error
        ledger = MappedLedger(index, index["offset"], index["size"], data, memoryview(mapped), is_sealed)
        self._keep(ledger_id, ledger)
        return ledger

    def _pick_from_view(self, partition_id: int, ledger_id: int, entries: NDArray[np.uint64],
                        view: int) -> tuple[NDArray[np.void], memoryview]:
        key = ledger_id, view
        mapped: MappedView = self._mapped.get(key) or self._map_view(partition_id, ledger_id, view)
        self._mapped.move_to_end(key)
        rows = mapped.find(entries)
        if rows is None:      # ids of damaged rows are out of order, which hides others from the search
            index = mapped.index[is_valid(mapped.index, ledger_id)]
            mapped = MappedView(index, index["entry_id"].astype(np.uint64), mapped.data)
            self._keep(key, mapped)
            rows = mapped.find(entries)
        if rows is None:
            raise self._too_short(key, format.ledger_path(self._view_folder(partition_id, view), ledger_id))
        reach = np.cumsum(rows["size"], dtype=np.int64)
        return rows[:max(1, int(np.searchsorted(reach, BYTES_MAX)))], mapped.data

    def _map_view(self, partition_id: int, ledger_id: int, view: int) -> MappedView:
        folder = self._view_folder(partition_id, view)
        try:
            index = np.frombuffer(map_file(format.index_path(folder, ledger_id), writable=False), format.COMPACTED_ROW,
                                  offset=format.HEADER_SIZE)
            data = memoryview(map_file(format.ledger_path(folder, ledger_id), writable=False))
        except FileNotFoundError as error:
            raise LedgerGone from error
        except ValueError as error:      # the index ends within a row, or is empty
            raise self._too_short((ledger_id, view), format.index_path(folder, ledger_id)) from error
        mapped = MappedView(index, index["entry_id"].astype(np.uint64), data)
        self._keep((ledger_id, view), mapped)
        return mapped

    def _folder(self, partition_id: int) -> Path:
        return format.partition_folder(self._data_dir, partition_id)

    def _view_folder(self, partition_id: int, view: int) -> Path:
        return format.compacted_folder(self._folder(partition_id)) / str(view)

    def _keep(self, key: _Key, mapped: MappedLedger | MappedView) -> None:
        self._mapped[key] = mapped
        while len(self._mapped) > open_max(LEDGERS_MAX, _DESCRIPTORS, _PART):
            self._mapped.popitem(last=False)

    def _too_short(self, key: _Key, path: Path) -> LedgerGone:
        """Return the error for a file that is shorter than its index says; the owner repairs it at its next opening."""
        self._mapped.pop(key, None)
        if key not in self._short:
            self._short.add(key)
            log.error(f"{path}: it, or its index, is shorter than what was written to it; "
                      "what is missing is not delivered", code="G123")
        return LedgerGone(str(path))
