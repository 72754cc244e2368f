"""A cursor: what a subscription has acknowledged.

Everything up to and with the mark-delete position is acknowledged, and so is every entry whose bit is set in its ledger's
bitmap.  The bitmap is one bit per entry, a mapped file that is made when the first acknowledgement leaves a hole, so any
number of holes is kept and none costs an object.  In-order acknowledgements only move the position.

    entries of ledger 7      0 1 2 3 4 5 6 7 8
    acknowledged             x x x . x . . x x      mark-delete (7, 2); bits 4, 7, 8

Of a batch some messages may be acknowledged and others not: `parts` has a bit for each, 1 = not acknowledged.  The entry is
acknowledged when none is left.

A cursor that is not durable (a reader's) is the same without files.
"""
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from geminga.storage import format
from geminga.storage.errors import CorruptFile
from geminga.storage.ledger import Ledger, allocate, map_file
from geminga.storage.parts import WORD, Parts

Position = tuple[int, int]     # (ledger id, entry id); entry -1 is before the first
NOWHERE: Position = (-1, -1)   # before everything


class Cursor:
    """Positions are compared as tuples: ledger ids grow along a partition.

    Invariant: the entry behind `mark_delete` is not acknowledged (when there is one).
    """

    def __init__(self, folder: Path, subscription_id: int, mark_delete: Position, *, is_durable: bool):
        self.folder, self.subscription_id, self.is_durable = folder, subscription_id, is_durable
        self.mark_delete = mark_delete
        self.bitmaps: dict[int, NDArray[np.uint8]] = {}    # ledger id -> bits, as far as any is set
        self.parts: Parts = {}

    def acknowledge(self, ledger: Ledger, entry_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Mark entries (n,) sorted, unique, existing, of one ledger; returns those that were not acknowledged before.

        The mark-delete position is not moved; call `advance` then.
        """
        if ledger.ledger_id < self.mark_delete[0]:
            return entry_ids[:0]
        if ledger.ledger_id == self.mark_delete[0]:
            entry_ids = entry_ids[entry_ids > self.mark_delete[1]]
        if not len(entry_ids):
            return entry_ids
        bitmap = self._bitmap(ledger, int(entry_ids[-1]))
        bits = np.uint8(1) << (entry_ids & 7).astype(np.uint8)
        fresh = (bitmap[entry_ids >> 3] & bits) == 0
        np.bitwise_or.at(bitmap, entry_ids >> 3, bits)
        return entry_ids[fresh]

    def acknowledge_part(self, ledger: Ledger, entry_id: int, messages: int, left: int) -> int:
        """Of the messages of a batch only those with a bit in `left` are not acknowledged; returns the bits that remain of it.

        When that is 0 the whole entry is to be acknowledged.
        """
        entries = self.parts.setdefault(ledger.ledger_id, {})
        before = entries.get(entry_id, (1 << messages) - 1)
        remains = before & left
        if remains not in (0, before):
            entries[entry_id] = remains
        if not entries:
            del self.parts[ledger.ledger_id]
        return remains

    def set_parts(self, ledger_id: int, number: int, entry_ids: list[int], words: list[int]) -> None:
        """The word of that number is this, of each of these batches."""
        entries, at = self.parts.setdefault(ledger_id, {}), 64 * number
        for entry_id, word in zip(entry_ids, words, strict=True):
            others = entries.get(entry_id, 0) & ~(WORD << at)
            entries[entry_id] = others | (word & WORD) << at

    def is_acknowledged(self, ledger_id: int, entry_id: int) -> bool:
        if (ledger_id, entry_id) <= self.mark_delete:
            return True
        bitmap = self.bitmaps.get(ledger_id)
        return bitmap is not None and entry_id >> 3 < len(bitmap) and bool(bitmap[entry_id >> 3] >> (entry_id & 7) & 1)

    def forget_parts(self, ledger_id: int, acknowledged: NDArray[np.int64] | list[int]) -> None:
        """Of batches that are acknowledged now."""
        entries = self.parts.get(ledger_id)
        if entries is not None:
            for entry_id in entries.keys() & set(np.asarray(acknowledged).tolist()):
                del entries[entry_id]
            if not entries:
                del self.parts[ledger_id]

    def forget_acknowledged_parts(self) -> None:
        """Of all batches that are acknowledged by now."""
        for ledger_id, entries in list(self.parts.items()):
            self.forget_parts(ledger_id, [entry_id for entry_id in entries if self.is_acknowledged(ledger_id, entry_id)])

    def acknowledge_in_order(self, ledger: Ledger, entry_ids: list[int] | NDArray[np.int64]) -> bool:
        """Move the position over entry_ids when they follow it without a gap and nothing beyond has a bit: no bitmap needed.

        Only within the ledger that the position is in: whether those before are done is for `advance` to find out.
        """
        if self.mark_delete[0] != ledger.ledger_id or ledger.ledger_id in self.bitmaps or not len(entry_ids):
            return False
        follows = self.mark_delete[1]
        if int(entry_ids[0]) != follows + 1 or int(entry_ids[-1]) != follows + len(entry_ids):
            return False
        self.mark_delete = (ledger.ledger_id, int(entry_ids[-1]))
        return True

    def advance(self, ledgers: list[Ledger]) -> None:
        """Move the mark-delete position over what is acknowledged behind it, also across ledgers' borders."""
        for ledger in ledgers:
            if ledger.ledger_id < self.mark_delete[0]:
                continue
            done = self.mark_delete[1] if ledger.ledger_id == self.mark_delete[0] else -1
            done = self._first_hole(ledger, done + 1) - 1
            self.mark_delete = (ledger.ledger_id, done)      # also before its first entry: everything before it is done
            if done < ledger.last_entry or not ledger.is_sealed:
                return

    def move(self, position: Position) -> None:
        """Everything up to position is acknowledged, nothing beyond it is."""
        self.mark_delete = position
        self.bitmaps.clear()
        self.parts.clear()
        if self.is_durable:
            for path in self.folder.glob(f"*.{self.subscription_id}.acks"):
                path.unlink(missing_ok=True)

    def forget(self, ledger_id: int) -> None:
        """The ledger was deleted."""
        self.bitmaps.pop(ledger_id, None)
        self.parts.pop(ledger_id, None)

    def unacknowledged(self, ledger: Ledger, first: int, end: int) -> Iterator[tuple[int, int]]:
        """(first, end) of each run of entries in [first, end) that are not acknowledged."""
        if ledger.ledger_id < self.mark_delete[0]:
            return
        if ledger.ledger_id == self.mark_delete[0]:
            first = max(first, self.mark_delete[1] + 1)
        if first >= end:
            return
        bitmap = self.bitmaps.get(ledger.ledger_id)
        if bitmap is None:
            yield first, end
            return
        bits = np.ones(end - first + 2, np.uint8)      # an acknowledged entry on either side, so that every run has two edges
        known = np.unpackbits(bitmap[first >> 3:(end + 7) >> 3], bitorder="little")[first & 7:][:end - first]
        bits[1:-1] = 0                                 # the bitmap may be shorter than the ledger
        bits[1:1 + len(known)] = known
        edges = (np.flatnonzero(np.diff(bits)) + first).tolist()
        yield from zip(edges[0::2], edges[1::2], strict=True)

    def acknowledged_beyond(self, ledger: Ledger) -> int:
        """How many entries of the ledger are acknowledged beyond the mark-delete position."""
        bitmap = self.bitmaps.get(ledger.ledger_id)
        if bitmap is None or ledger.ledger_id < self.mark_delete[0]:
            return 0
        first = self.mark_delete[1] + 1 if ledger.ledger_id == self.mark_delete[0] else 0
        bits = np.unpackbits(bitmap[first >> 3:(ledger.entries + 7) >> 3], bitorder="little")
        return int(bits[first & 7:].sum())

    def backlog(self, ledgers: list[Ledger]) -> int:
        """Entries that are not acknowledged."""
        count = 0
        for ledger in ledgers:
            if ledger.ledger_id > self.mark_delete[0]:
                count += ledger.entries - self.acknowledged_beyond(ledger)
            elif ledger.ledger_id == self.mark_delete[0]:
                count += ledger.last_entry - self.mark_delete[1] - self.acknowledged_beyond(ledger)
        return count

    def _first_hole(self, ledger: Ledger, entry_id: int) -> int:
        """The first entry from entry_id on that is not acknowledged; ledger.entries when there is none."""
        bitmap = self.bitmaps.get(ledger.ledger_id)
        if bitmap is None or entry_id >= min(ledger.entries, len(bitmap) * 8):
            return min(entry_id, ledger.entries)
        partial = ~bitmap[entry_id >> 3:] if not entry_id & 7 else np.concatenate((
            ~bitmap[entry_id >> 3:(entry_id >> 3) + 1] & np.uint8(0xFF << (entry_id & 7) & 0xFF), ~bitmap[(entry_id >> 3) + 1:]))
        holes = partial != 0
        if not holes.any():
            return min(ledger.entries, len(bitmap) * 8)
        byte = int(holes.argmax())
        low = int(partial[byte])
        return min(ledger.entries, ((entry_id >> 3) + byte) * 8 + (low & -low).bit_length() - 1)

    def _bitmap(self, ledger: Ledger, entry_id: int) -> NDArray[np.uint8]:
        bitmap = self.bitmaps.get(ledger.ledger_id)
        if bitmap is None or len(bitmap) <= entry_id >> 3:
            bitmap = self.bitmaps[ledger.ledger_id] = self._grow(ledger, bitmap, (max(entry_id, ledger.entries) >> 3) + 1)
        return bitmap

    def _grow(self, ledger: Ledger, bitmap: NDArray[np.uint8] | None, size: int) -> NDArray[np.uint8]:
        size = -(-3 * size // 2 // 4096) * 4096
        if not self.is_durable:
            grown = np.zeros(size, np.uint8)
            if bitmap is not None:
                grown[:len(bitmap)] = bitmap
            return grown
        path = format.acks_path(self.folder, ledger.ledger_id, self.subscription_id)
        allocate(path, size)
        return np.frombuffer(map_file(path, writable=True), np.uint8)


def load_bitmaps(cursor: Cursor) -> None:
    """Map what a durable cursor has on disk."""
    for path in cursor.folder.glob(f"*.{cursor.subscription_id}.acks"):
        load_bitmap(cursor, path)


def load_bitmap(cursor: Cursor, path: Path) -> None:
    """Map one of them, which is removed if nothing needs it."""
    ledger_id = int(path.name.split(".", 1)[0])
    if ledger_id < cursor.mark_delete[0] or not path.stat().st_size:
        path.unlink()
    else:
        cursor.bitmaps[ledger_id] = np.frombuffer(map_file(path, writable=True), np.uint8)


class CursorTable:
    """The durable cursors' positions of one partition, a row each in one mapped file."""

    def __init__(self, folder: Path, partition_id: int):
        self._path, self._partition_id = format.cursors_path(folder), partition_id
        folder.mkdir(parents=True, exist_ok=True)
        self._begin()
        self._map()

    def _begin(self) -> None:
        """There is a file with a header, also when a process was killed while it made one.  Raises StorageFull, CorruptFile."""
        allocate(self._path, 4096)
        with open(self._path, "r+b") as file:
            raw = file.read(format.HEADER_SIZE)
            if not any(raw):
                file.seek(0)
                file.write(format.header(format.CURSORS_HEADER, magic=format.CURSORS_MAGIC, partition_id=self._partition_id))
                return
        head = np.frombuffer(raw, format.CURSORS_HEADER)[0]
        if head["magic"] != format.CURSORS_MAGIC or head["version"] > format.VERSION:
            raise CorruptFile(self._path, 0, f"cursors, format version {format.VERSION} or older", (head["magic"], int(head["version"])))

    def _map(self) -> None:
        mapped = map_file(self._path, writable=True)
        whole_rows = (len(mapped) - format.HEADER_SIZE) // format.CURSOR_ROW.itemsize
        self._rows = np.frombuffer(mapped, format.CURSOR_ROW, whole_rows, format.HEADER_SIZE)
        self._slots = {int(self._rows["subscription_id"][slot]): slot for slot in np.flatnonzero(self._rows["subscription_id"]).tolist()}

    @property
    def path(self) -> Path:
        return self._path

    def positions(self) -> dict[int, Position]:
        """Of the rows that are whole: {subscription id: mark-delete position}."""
        found = {}
        for subscription_id, slot in self._slots.items():
            row = self._rows[slot:slot + 1]
            if int(row["checksum"][0]) == format.cursor_checksum(row):
                found[subscription_id] = (int(row["ledger_id"][0]), int(row["entry_id"][0]))
        return found

    def check(self) -> None:
        """After a recovery, which has written anew what a kill left torn, all rows are whole.  Raises CorruptFile."""
        for subscription_id in self._slots.keys() - self.positions().keys():
            at = format.HEADER_SIZE + self._slots[subscription_id] * format.CURSOR_ROW.itemsize
            raise CorruptFile(self._path, at, "a position with its checksum", self._rows[self._slots[subscription_id]].tobytes())

    def write(self, subscription_id: int, position: Position) -> None:
        slot = self._slots.get(subscription_id)
        if slot is None:
            slot = self._slots[subscription_id] = self._free_slot()
        row = np.zeros(1, format.CURSOR_ROW)
        row["subscription_id"], row["ledger_id"], row["entry_id"] = subscription_id, *position
        row["checksum"] = format.cursor_checksum(row)
        self._rows[slot] = row[0]

    def remove(self, subscription_id: int) -> None:
        slot = self._slots.pop(subscription_id, None)
        if slot is not None:
            self._rows[slot] = np.zeros((), format.CURSOR_ROW)

    def _free_slot(self) -> int:
        free = np.flatnonzero(self._rows["subscription_id"] == 0)
        if not len(free):
            allocate(self._path, 2 * self._path.stat().st_size)
            self._map()
            free = np.flatnonzero(self._rows["subscription_id"] == 0)
        return int(free[0])
