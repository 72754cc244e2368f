"""Runs of entries -> bytes, read from the ledgers that owners write and workers map.

A mapping is made when a run first names its ledger, made anew when the ledger has grown past it, and given up when its
owner says that the ledger was deleted, or when too many are mapped.  What is written to a client is made only as fast as the
client takes it.
"""
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from geminga.proto.deliveries import FEW_MAX
from geminga.storage import format
from geminga.storage.ledgers.compacted_ledgers import is_valid
from geminga.storage.ledgers.ledger import map_file, open_max
from geminga.storage.runtime.log import log
from geminga.storage.upkeep.hole_punching import NOTHING

LEDGERS_MAX = 1_024          # mapped at a time by one worker, or fewer where descriptors are few
ENTRIES_MAX = 8_192          # turned into bytes at a time
BYTES_MAX = 1 << 20          # likewise; one entry may be larger
_GONE = 64                   # bytes shown of an entry whose row was given back


def still_there(rows: NDArray, data: memoryview) -> NDArray[np.bool_] | None:
    """Which of the entries with these index rows (n,) are; None when all of them are.

    Asked when they have been copied: what is there then was whole before.
    """
    if len(rows) <= FEW_MAX:
        begin = all(map(data.__getitem__, rows["offset"].tolist()))
    else:
        begin = np.frombuffer(data, np.uint8)[rows["offset"]].all()
    if begin:      # with something: nearly always
        return None
    found = np.array([data[at:at + len(NOTHING)] != NOTHING for at in rows["offset"].tolist()])
    return None if found.all() else found


class LedgerGone(Exception):
    """The ledger was deleted before it was read: what it held is acknowledged."""


@dataclass(frozen=True, slots=True)
class Mapped:
    """A ledger's files as they were when they were mapped; columns are kept, since making a view of one costs a microsecond."""

    index: NDArray
    offsets: NDArray[np.uint64]
    sizes: NDArray[np.uint32]
    data: memoryview
    is_sealed: bool                # rows of it may be zeros, of entries that are there for nobody any more

    def holds(self, end: int) -> bool:
        """Whether the entries before `end` are within what was mapped."""
        return end <= len(self.index) and self.end_of(end - 1) <= len(self.data)

    def end_of(self, entry_id: int) -> int:
        return self.offsets.item(entry_id) + self.sizes.item(entry_id)

    def rows_of(self, first: int, rows: NDArray, entries: NDArray | None = None) -> NDArray:
        """The rows of these entries, or of those from `first` on; of one that is zeros the entry is some bytes that are zeros too."""
        if not self.is_sealed or rows["size"].all() or not self.sizes[0]:
            return rows
        rows, empty = rows.copy(), np.flatnonzero(rows["size"] == 0)
        wanted = first + empty if entries is None else entries[empty].astype(np.int64)
        whole = np.flatnonzero(self.sizes[:int(wanted[-1])])
        before = whole[np.searchsorted(whole, wanted) - 1]
        rows["offset"][empty], rows["size"][empty], rows["messages"][empty] = self.offsets[before] + self.sizes[before], _GONE, 1
        return rows


class MappedView(NamedTuple):
    """What a compacted view has of a ledger: rows of entries that are left, by `entry_ids`, ascending."""

    index: NDArray
    entry_ids: NDArray[np.uint64]
    data: memoryview

    def find(self, entries: NDArray[np.uint64]) -> NDArray | None:
        """Their rows; None when not all of them are there."""
        at = np.searchsorted(self.entry_ids, entries)
        if not len(self.entry_ids) or not (self.entry_ids[np.minimum(at, len(self.entry_ids) - 1)] == entries).all():
            return None
        rows = self.index[at]
        return rows if int((rows["offset"] + rows["size"]).max()) <= len(self.data) else None


class Ledgers:
    """The ledgers that this worker has mapped."""

    def __init__(self, data_dir: Path):
        self._data_dir = data_dir
        self._mapped: OrderedDict[int | tuple[int, int], Mapped | MappedView] = OrderedDict()      # of views by (ledger, view)
        self._short: set[int | tuple[int, int]] = set()      # those that were found cut, and were told of

    def read(self, partition_id: int, ledger_id: int, first: int, count: int) -> tuple[NDArray, memoryview]:
        """(index rows of as many of these entries as are dealt with at a time, the ledger's bytes).  Raises LedgerGone."""
        end = first + min(count, ENTRIES_MAX)
        found = self._whole(partition_id, ledger_id, end)
        if found.end_of(end - 1) - found.offsets.item(first) > BYTES_MAX:
            reach = np.cumsum(found.sizes[first:end], dtype=np.int64)
            end = first + max(1, int(np.searchsorted(reach, BYTES_MAX)))
        return found.rows_of(first, found.index[first:end]), found.data

    def pick(self, partition_id: int, ledger_id: int, entries: NDArray[np.uint64], view: int = 0) -> tuple[NDArray, memoryview]:
        """Likewise of as many of these entries (n,), ascending, as are dealt with at a time.  Raises LedgerGone."""
        entries = entries[:ENTRIES_MAX]
        if view:
            return self._pick_of_view(partition_id, ledger_id, entries, view)
        found = self._whole(partition_id, ledger_id, int(entries[-1]) + 1)
        reach = np.cumsum(found.sizes[entries], dtype=np.int64)
        entries = entries[:max(1, int(np.searchsorted(reach, BYTES_MAX)))]
        return found.rows_of(0, found.index[entries], entries), found.data

    def _pick_of_view(self, partition_id: int, ledger_id: int, entries: NDArray[np.uint64], view: int) -> tuple[NDArray, memoryview]:
        found = self._mapped.get((ledger_id, view)) or self._map_view(partition_id, ledger_id, view)
        self._mapped.move_to_end((ledger_id, view))
        rows = found.find(entries)
        if rows is None:      # damaged rows have ids that are out of order
            index = found.index[is_valid(found.index, ledger_id)]
            found = self._keep((ledger_id, view), MappedView(index, index["entry_id"].astype(np.uint64), found.data))
            rows = found.find(entries)
        if rows is None:
            folder = format.compacted_folder(format.partition_folder(self._data_dir, partition_id)) / str(view)
            raise self._too_short((ledger_id, view), format.ledger_path(folder, ledger_id))
        reach = np.cumsum(rows["size"], dtype=np.int64)
        return rows[:max(1, int(np.searchsorted(reach, BYTES_MAX)))], found.data

    def _map_view(self, partition_id: int, ledger_id: int, view: int) -> MappedView:
        folder = format.compacted_folder(format.partition_folder(self._data_dir, partition_id)) / str(view)
        try:
            index = np.frombuffer(map_file(format.index_path(folder, ledger_id), writable=False), format.COMPACTED_ROW,
                                  offset=format.HEADER_SIZE)
            data = memoryview(map_file(format.ledger_path(folder, ledger_id), writable=False))
        except FileNotFoundError as error:
            raise LedgerGone from error
        except ValueError as error:
            raise self._too_short((ledger_id, view), format.index_path(folder, ledger_id)) from error
        return self._keep((ledger_id, view), MappedView(index, index["entry_id"].astype(np.uint64), data))

    def forget(self, ledger_id: int, view: int = 0) -> None:
        self._mapped.pop((ledger_id, view) if view else ledger_id, None)

    def _whole(self, partition_id: int, ledger_id: int, end: int) -> Mapped:
        """The ledger, mapped as far as its entry `end`."""
        found = self._mapped.get(ledger_id)
        if found is None or not found.holds(end):
            found = self._map(partition_id, ledger_id)
            if not found.holds(end):
                raise self._too_short(ledger_id, format.ledger_path(format.partition_folder(self._data_dir, partition_id), ledger_id))
            return found
        self._mapped.move_to_end(ledger_id)
        return found

    def _too_short(self, which: int | tuple[int, int], path: Path) -> LedgerGone:
        """Somebody has cut one of its files: its owner says what of it there is when it is opened again."""
        self._mapped.pop(which, None)
        if which not in self._short:
            self._short.add(which)
            log.error(f"{path}: it, or its index, is shorter than what was written to it; what is missing is not delivered", code="G123")
        return LedgerGone(str(path))

    def _map(self, partition_id: int, ledger_id: int) -> Mapped:
        folder = format.partition_folder(self._data_dir, partition_id)
        try:
            mapped = map_file(format.index_path(folder, ledger_id), writable=False)
            index = np.frombuffer(mapped, format.INDEX_ROW, offset=format.HEADER_SIZE)
            is_sealed = bool(np.frombuffer(mapped, format.INDEX_HEADER, 1)["state"][0] == format.SEALED)
            data = memoryview(map_file(format.ledger_path(folder, ledger_id), writable=False))
        except FileNotFoundError as error:
            self.forget(ledger_id)
            raise LedgerGone from error
        except ValueError as error:      # within a row, or empty
            raise self._too_short(ledger_id, format.ledger_path(folder, ledger_id)) from error
        return self._keep(ledger_id, Mapped(index, index["offset"], index["size"], data, is_sealed))

    def _keep(self, which: int | tuple[int, int], found: Mapped | MappedView) -> Mapped | MappedView:
        self._mapped[which] = found
        while len(self._mapped) > min(LEDGERS_MAX, open_max()):
            self._mapped.popitem(last=False)
        return found
