"""The space of what everybody has acknowledged is given back within ledgers that are still needed: holes in their files.

Which entries are gone is in the journal, synced, before their bytes are: whoever begins anew passes over them
(Partition.gone).  A worker that still has one before it sees by its first bytes that it is gone: no entry begins with NOTHING.
"""
import ctypes
import errno
import os

import numpy as np
from numpy.typing import NDArray

from geminga.storage import acknowledgements, format
from geminga.storage.cursor import Cursor
from geminga.storage.ledger import Ledger
from geminga.storage.partition import Partition

NOTHING = bytes(4)      # an entry begins with a magic number, or with the size of its metadata
_BLOCK = 4096
_WORTH = 64 << 10       # bytes that a ledger gives back at once, at least
_HOLES_MAX = 1_000      # of a partition, each time: some 10 ms
_KEEP_SIZE, _PUNCH_HOLE = 1, 2

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class Puncher:
    """Of one owner; looks at a partition once a second at most, and only after acknowledgements."""

    def __init__(self, owner):
        self._owner = owner
        self._is_possible = True                         # not all file systems can
        self.acknowledged: dict[Partition, None] = {}    # since they were looked at

    def watch(self, partition: Partition) -> None:
        """Its policies are new."""
        self.acknowledged[partition] = None

    def release(self, partition: Partition) -> None:
        self.acknowledged.pop(partition, None)

    def tick(self, now_ms: int) -> None:
        partitions, self.acknowledged = self.acknowledged, {}
        if not self._is_possible:
            return
        holes = []
        for partition in partitions:
            if not partition.policies.retains and not self._owner.discovery.holds(partition, now_ms):
                found = self._plan(partition)
                if len(found) >= _HOLES_MAX:
                    self.acknowledged[partition] = None      # there are more
                holes += found
        if holes:
            self._owner.commit()
            self._owner.journal.sync()
            self._punch(holes)

    def _plan(self, partition: Partition) -> list[tuple[Ledger, int, int, int]]:
        """(ledger, begin and end of a hole, where an entry begins that reaches into it, or -1): the journal is told of their entries."""
        cursors, holes = [subscription.cursor for subscription in partition.subscriptions.values()], []
        if not any(cursor.is_durable for cursor in cursors):
            return holes
        for ledger in partition.ledgers:
            if all(cursor.mark_delete[0] < ledger.ledger_id and ledger.ledger_id not in cursor.bitmaps for cursor in cursors):
                break
            holes += self._plan_ledger(partition, ledger, cursors, _HOLES_MAX - len(holes))
            if len(holes) >= _HOLES_MAX:
                break
        return holes

    def _plan_ledger(self, partition: Partition, ledger: Ledger, cursors: list[Cursor], at_most: int) -> list[tuple[Ledger, int, int, int]]:
        settled = np.ones(ledger.entries, bool)
        for cursor in cursors:
            settled &= _acknowledged(cursor, ledger)
        fresh = settled & ~_acknowledged(partition.gone, ledger)
        if not fresh.any():
            return []
        edges = np.flatnonzero(np.diff(settled, prepend=False, append=False))
        firsts, ends = edges[0::2], edges[1::2]
        offsets, sizes = (ledger.column(name)[:ledger.entries].astype(np.int64) for name in ("offset", "size"))
        ends_at = np.concatenate(([format.HEADER_SIZE], offsets + sizes))       # of the entry before each; rows of lost entries say nothing
        starts = ends_at[firsts]
        begins, stops = -(-starts // _BLOCK) * _BLOCK, np.append(offsets, ledger.size)[ends] // _BLOCK * _BLOCK
        before = np.concatenate(([0], np.cumsum(np.where(fresh, sizes, 0), dtype=np.int64)))
        gain = np.minimum(before[ends] - before[firsts], stops - begins)      # of bytes that are not gone yet
        worth = np.flatnonzero(gain >= _BLOCK)[:at_most]
        if int(gain[worth].sum()) < _WORTH:
            return []
        chosen = np.zeros(ledger.entries + 1, np.int8)
        chosen[firsts[worth]], chosen[ends[worth]] = 1, -1
        entries = np.flatnonzero((np.cumsum(chosen[:-1]) > 0) & fresh)
        partition.gone.acknowledge(ledger, entries)
        self._owner.note_many(partition, acknowledgements.runs_of(
            format.ACKNOWLEDGED, partition.partition_id, partition.gone.subscription_id, ledger.ledger_id, entries))
        entry_at = np.maximum.accumulate(offsets)
        reaching = entry_at[np.searchsorted(entry_at, begins[worth], side="right") - 1]      # the entry that holds a hole's first byte
        reaching = np.where((reaching >= starts[worth]) & (reaching < begins[worth]), reaching, -1)
        return list(zip([ledger] * len(worth), begins[worth].tolist(), stops[worth].tolist(), reaching.tolist(), strict=True))

    def _punch(self, holes: list[tuple[Ledger, int, int, int]]) -> None:
        for ledger, begin, end, reaching in holes:
            fd = ledger.descriptor
            if reaching >= 0:
                os.pwrite(fd, NOTHING, reaching)
            if _libc.fallocate(fd, _KEEP_SIZE | _PUNCH_HOLE, begin, end - begin):
                if ctypes.get_errno() not in (errno.EOPNOTSUPP, errno.ENOSYS):
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(ledger.ledger_path))
                self._is_possible = False
                return
        for ledger in {ledger for ledger, *_ in holes if ledger.is_sealed}:
            ledger.close()


def _acknowledged(cursor: Cursor, ledger: Ledger) -> NDArray[np.bool_]:
    """Of each entry whether it is."""
    found = np.zeros(ledger.entries, bool)
    if ledger.ledger_id < cursor.mark_delete[0]:
        found[:] = True
        return found
    bitmap = cursor.bitmaps.get(ledger.ledger_id)
    if bitmap is not None:
        bits = np.unpackbits(bitmap, bitorder="little", count=min(len(bitmap) * 8, ledger.entries))
        found[:len(bits)] = bits
    if ledger.ledger_id == cursor.mark_delete[0]:
        found[:cursor.mark_delete[1] + 1] = True
    return found
