"""Which entries of a partition wait for their delivery time: a bit for each, by ledger."""
import numpy as np
from numpy.typing import NDArray

from geminga.storage.cursors.cursor import Cursor
from geminga.storage.cursors.pending_acks import Entries


class WaitingEntries:
    """The bitmaps of one partition.  A ledger has a bitmap once any of its entries has waited."""

    def __init__(self) -> None:
        self.bitmaps: dict[int, NDArray[np.uint8]] = {}     # ledger id -> a bit for each entry, little-endian; 1: waits
        self.count = 0                                      # bits that are set

    def __repr__(self) -> str:
        return f"<WaitingEntries n={self.count} ledgers={len(self.bitmaps)}>"

    def knows(self, ledger_id: int) -> bool:
        """Whether any of the ledger's entries ever waited."""
        return ledger_id in self.bitmaps

    def of(self, ledger_id: int, entries: Entries) -> NDArray[np.bool_] | None:
        """Return which of these ascending entries (n,) wait; None if the ledger has no bits."""
        bits = self.bitmaps.get(ledger_id)
        if bits is None:
            return None
        waits = np.zeros(len(entries), bool)
        if isinstance(entries, range):
            bits_of = np.unpackbits(bits[entries.start >> 3:(entries.stop + 7) >> 3], bitorder="little")
            bits_of = bits_of[entries.start & 7:][:len(entries)]
            waits[:len(bits_of)] = bits_of
        else:
            within = entries[:np.searchsorted(entries, len(bits) * 8)]
            waits[:len(within)] = _bits_at(bits, within)
        return waits

    def among(self, ledger_id: int, entries: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of these entries (n,), in any order, wait.  The ledger must have bits."""
        bits = self.bitmaps[ledger_id]
        waits = entries < len(bits) * 8
        waits[waits] = _bits_at(bits, entries[waits])
        return waits

    def is_set(self, ledger_id: int, entry_id: int) -> bool:
        """Whether the entry's bit is set."""
        bits = self.bitmaps.get(ledger_id)
        return bits is not None and entry_id >> 3 < len(bits) and bool(bits[entry_id >> 3] >> (entry_id & 7) & 1)

    def all_of(self, ledger_id: int) -> NDArray[np.int64]:
        """Return the ledger's waiting entries, ascending."""
        bits = self.bitmaps.get(ledger_id)
        return np.flatnonzero(np.unpackbits(bits, bitorder="little")) if bits is not None else np.zeros(0, np.int64)

    def count_left(self, ledger_id: int, cursor: Cursor) -> int:
        """Return the number of the ledger's waiting entries that the cursor has not acknowledged."""
        bits = self.bitmaps.get(ledger_id)
        if bits is None:
            return 0
        waiting = bits.copy()
        if (acknowledged := cursor.bitmaps.get(ledger_id)) is not None:
            waiting[:len(acknowledged)] &= ~acknowledged[:len(waiting)]
        if ledger_id == cursor.mark_delete[0]:
            end = cursor.mark_delete[1] + 1
            waiting[:end >> 3] = 0
            if end & 7 and end >> 3 < len(waiting):
                waiting[end >> 3] &= 0xFF << (end & 7) & 0xFF
        return _count(waiting)

    def mark(self, ledger_id: int, first: int, waits: NDArray[np.bool_]) -> None:
        """Set or clear the bits of entries from `first` on, as `waits` (n,) says."""
        bits, end = self.bitmaps.get(ledger_id), first + len(waits)
        if bits is None and not waits.any():
            return
        if bits is None or len(bits) * 8 < end:
            grown = np.zeros(-(-3 * end // 2 // 64) * 8, np.uint8)
            if bits is not None:
                grown[:len(bits)] = bits
            bits = self.bitmaps[ledger_id] = grown
        covered, shift = bits[first >> 3:(end + 7) >> 3], first & 7
        before = _count(covered)
        new = np.zeros(8 * len(covered), bool)
        new[shift:shift + len(waits)] = waits
        packed = np.packbits(new, bitorder="little")
        packed[0] |= covered[0] & ((1 << shift) - 1)
        packed[-1] |= covered[-1] & (0xFF << (end - 1 & 7) + 1 & 0xFF)
        covered[:] = packed
        self.count += _count(covered) - before

    def clear(self, ledger_id: int, entries: NDArray[np.int64]) -> None:
        """Clear the bits of these entries.  All of them must be set, and each entry occurs once."""
        bits = self.bitmaps[ledger_id]
        np.bitwise_and.at(bits, entries >> 3, ~(np.uint8(1) << (entries & 7).astype(np.uint8)))
        self.count -= len(entries)
        assert self.count >= 0, self

    def clear_from(self, ledger_id: int, entry_id: int) -> None:
        """Clear the bits of this entry and all behind it, in later ledgers too."""
        for other, bits in self.bitmaps.items():
            if other >= ledger_id:
                first = entry_id if other == ledger_id else 0
                self.count -= _count(bits)
                bits[(first + 7) >> 3:] = 0
                if first & 7 and first >> 3 < len(bits):
                    bits[first >> 3] &= (1 << (first & 7)) - 1
                self.count += _count(bits)

    def load(self, ledger_id: int, bits: NDArray[np.uint8]) -> None:
        """Take over the saved bits of a ledger that has none yet."""
        assert ledger_id not in self.bitmaps, self
        self.bitmaps[ledger_id] = bits
        self.count += _count(bits)

    def forget(self, ledger_id: int) -> None:
        """Forget a deleted ledger."""
        bits = self.bitmaps.pop(ledger_id, None)
        if bits is not None:
            self.count -= _count(bits)

    def check(self) -> None:
        """Assert that `count` is the number of bits set."""
        assert self.count == sum(map(_count, self.bitmaps.values())), self


def _bits_at(bits: NDArray[np.uint8], entries: NDArray[np.int64]) -> NDArray[np.bool_]:
    return np.asarray(bits[entries >> 3] >> (entries & 7).astype(np.uint8) & 1, bool)


def _count(bits: NDArray[np.uint8]) -> int:
    return int(np.bitwise_count(bits).sum(dtype=np.int64))
