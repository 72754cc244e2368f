"""The space of what everybody has acknowledged is given back within ledgers that are still needed: holes in their files.

Which entries are gone is in the journal, synced, before their bytes are: whoever begins anew passes over them
(Partition.discarded).  A worker that still has one before it sees by its first bytes that it is gone: no entry begins with format.NO_ENTRY.

Of a sealed ledger the index's blocks are given back too, where nothing is left of any of their entries (index_repair.py says how such rows
are read).
"""
import errno
import os
from functools import partial

import numpy as np
from numpy.typing import NDArray

from geminga.storage import format
from geminga.storage.cursors.cursor import Cursor
from geminga.storage.disk import syscalls
from geminga.storage.errors import is_full
from geminga.storage.ledgers import journal_ops
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.watcher import Watcher

_BLOCK = 4096
_WORTH = 64 << 10       # bytes that a ledger gives back at once, at least
_BEFORE = 256           # entries that are gone and looked at again: they share a block with the next
_HOLES_MAX = 1_000      # of a partition, each time: some 10 ms
_INDEXES_MAX = 32       # looked at, each time
_ANEW_MAX = 2           # of those made anew, each time: each costs an fsync
_DATA_MAX = 10_000      # stretches of data that are looked for between holes
_NEVER = (1 << 63) - 1
_ROWS = _BLOCK // format.INDEX_ROW.itemsize


class HolePuncher(Watcher):
    """Of one owner; looks at a partition once a second at most, and only after acknowledgements."""

    def __init__(self, owner):
        self._owner = owner
        self._is_possible = True                         # not all file systems can
        self._left: list[tuple[Ledger, int, int, int]] = []      # holes that there was no room for
        self._planned: list[tuple[Ledger, int, int, int]] = []   # holes of this pass, until its commit

    def watch(self, partition: Partition) -> None:
        """Its policies are new."""
        self._owner.acknowledged[partition] = None

    def release(self, partition: Partition) -> None:
        self._owner.acknowledged.pop(partition, None)
        self._left = [hole for hole in self._left if hole[0].partition_id != partition.partition_id]
        self._planned = [hole for hole in self._planned if hole[0].partition_id != partition.partition_id]

    def tick(self, now_ms: int) -> None:
        partitions, self._owner.acknowledged = self._owner.acknowledged, {}
        if not self._is_possible:
            return
        left = [hole for hole in self._left if not hole[0].is_unlinked]
        holes = [hole for hole in left if not hole[0].is_shared]
        self._left = [hole for hole in left if hole[0].is_shared]
        freed = []
        for partition in partitions:
            if not (partition.policies.retains or partition.compacts or self._owner.discovery.holds(partition, now_ms)):
                found = self._plan(partition)
                if len(found) >= _HOLES_MAX:
                    self._owner.acknowledged[partition] = None      # there are more
                holes += found
                freed.append(partition)
        if holes:
            self._planned = holes
            self._owner.answer_needs_sync()
            self._owner.after_commit(partial(self._punch_planned, freed, now_ms))
        else:
            self._give_back_indexes(freed, now_ms)

    def _punch_planned(self, partitions: list[Partition], now_ms: int) -> None:
        """Punch the holes that were planned, whose acknowledgements the journal has; then give back index blocks of the partitions."""
        holes, self._planned = self._planned, []
        self._owner.journal.sync()      # even where answers do not wait for it: bytes are gone at once
        self._punch(holes)
        self._give_back_indexes([partition for partition in partitions if not partition.is_released], now_ms)

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
        first, end = _window(partition, ledger, cursors)
        if first >= end:
            return []
        settled = np.logical_and.reduce([cursor.acknowledged(ledger.ledger_id, first, end) for cursor in cursors])
        fresh = settled & ~partition.discarded.acknowledged(ledger.ledger_id, first, end)
        if not (fresh & (ledger.column("size")[first:end] > 0)).any() or ledger.is_shared:
            return []
        edges = np.flatnonzero(np.diff(settled, prepend=False, append=False))
        firsts, ends = edges[0::2], edges[1::2]
        offsets, sizes = (ledger.column(name)[first:end].astype(np.int64) for name in ("offset", "size"))
        # Where the entry before each ends: rows of lost entries say nothing, and a run of settled ones follows one that is not lost.
        ends_at = np.concatenate((offsets[sizes > 0][:1], offsets + sizes))
        starts = ends_at[firsts]
        begins, stops = -(-starts // _BLOCK) * _BLOCK, np.append(offsets, ends_at[-1])[ends] // _BLOCK * _BLOCK
        before = np.concatenate(([0], np.cumsum(np.where(fresh, sizes, 0), dtype=np.int64)))
        gain = np.minimum(before[ends] - before[firsts], stops - begins)      # of bytes that are not gone yet
        worth = np.flatnonzero(gain >= _BLOCK)[:at_most]
        if int(gain[worth].sum()) < _WORTH:
            return []
        chosen = np.zeros(end - first + 1, np.int8)
        chosen[firsts[worth]], chosen[ends[worth]] = 1, -1
        entries = np.flatnonzero((np.cumsum(chosen[:-1]) > 0) & fresh) + first
        partition.discarded.acknowledge(ledger, entries)
        self._owner.note_many(partition, journal_ops.acknowledged(
            partition.partition_id, partition.discarded.subscription_id, ledger.ledger_id, entries))
        entry_at = np.maximum.accumulate(offsets)
        reaching = entry_at[np.searchsorted(entry_at, begins[worth], side="right") - 1]      # the entry that holds a hole's first byte
        reaching = np.where((reaching >= starts[worth]) & (reaching < begins[worth]), reaching, -1)
        return list(zip([ledger] * len(worth), begins[worth].tolist(), stops[worth].tolist(), reaching.tolist(), strict=True))

    def _punch(self, holes: list[tuple[Ledger, int, int, int]]) -> None:
        for number, (ledger, begin, end, reaching) in enumerate(holes):
            try:
                if reaching >= 0:
                    os.pwrite(ledger.descriptor, format.NO_ENTRY, reaching)
                _punch_one(ledger, begin, end)
                ledger.is_index_new = True
            except OSError as error:
                if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS):
                    self._is_possible = False
                elif is_full(error):      # some file systems need room to note that there is a hole
                    self._owner.space.give_up()
                    self._left += holes[number:]
                else:
                    raise
                return
        for ledger in {ledger for ledger, *_ in holes if ledger.is_sealed}:
            ledger.close()

    def _give_back_indexes(self, partitions: list[Partition], now_ms: int) -> None:
        looked_at = made_anew = 0
        for partition in partitions:
            for ledger in partition.ledgers[:-1]:
                if not (ledger.is_index_new and ledger.is_sealed and ledger.ledger_id in partition.discarded.bitmaps) or ledger.is_shared:
                    continue
                if looked_at >= _INDEXES_MAX or made_anew >= _ANEW_MAX:
                    self._owner.acknowledged[partition] = None      # there are more
                    break
                looked_at += 1
                if holes := _plan_index(partition, ledger, now_ms):
                    made_anew += 1
                    try:
                        ledger.give_back_rows(holes)
                    except OSError as error:
                        if not is_full(error):
                            raise
                        self._owner.acknowledged[partition] = None
                        return self._owner.space.give_up()
                    self._owner.forget_mapped(ledger)
                ledger.is_index_new = False
                ledger.close()


def _plan_index(partition: Partition, ledger: Ledger, now_ms: int) -> list[tuple[int, int]]:
    """(begin, end) of bytes of the index that are whole blocks; [] if they are not worth it.

    All entries of such a block, and the one on either side, are gone and were due by the times that they came with: the schedule
    asks for those no more.
    """
    blocks = np.arange(1, ledger.entries // _ROWS)      # the first and the last stay: they say where the ledger begins and ends
    firsts, ends = blocks * _ROWS - format.HEADER_SIZE // format.INDEX_ROW.itemsize, (blocks + 1) * _ROWS - 1
    every, times = range(ledger.entries), ledger.deliver_at[:ledger.entries]
    is_done = partition.discarded.acknowledged(ledger.ledger_id, 0, ledger.entries) & (times <= now_ms)
    if (schedule := partition.schedule) is not None:
        is_done &= schedule.times_of(ledger, every) == times
        waits = schedule.waits(ledger.ledger_id, every)
        is_done &= ~waits if waits is not None else True
    done_before = np.concatenate(([0], np.cumsum(is_done)))
    offsets = ledger.column("offset")
    is_free = done_before[ends + 1] - done_before[firsts - 1] == ends - firsts + 2
    is_free &= _are_holes(ledger, offsets[firsts].astype(np.int64), offsets[ends].astype(np.int64))
    edges = (np.flatnonzero(np.diff(is_free, prepend=False, append=False)) + 1) * _BLOCK      # the first block that may go is the second
    holes = list(zip(edges[0::2].tolist(), edges[1::2].tolist(), strict=True))
    size = format.HEADER_SIZE + ledger.entries * format.INDEX_ROW.itemsize
    taken, kept = ledger.index_path.stat().st_blocks * 512, size - sum(end - begin for begin, end in holes)
    return holes if taken - kept >= max(_WORTH, taken // 2) else []      # not again and again for a little


def _are_holes(ledger: Ledger, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of these stretches of a ledger's file, ascending, have nothing in them."""
    starts, stops, at = [], [], 0
    while at < ledger.size and len(starts) < _DATA_MAX:
        try:
            starts.append(os.lseek(ledger.descriptor, at, os.SEEK_DATA))
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break
        at = os.lseek(ledger.descriptor, starts[-1], os.SEEK_HOLE)
        stops.append(at)
    else:
        starts.append(at)
        stops.append(_NEVER)
    starts.append(_NEVER)
    return np.array(starts)[np.searchsorted(stops, begins, side="right")] >= ends


def _punch_one(ledger: Ledger, begin: int, end: int) -> None:
    syscalls.punch(ledger.descriptor, begin, end, ledger.ledger_path)


def _window(partition: Partition, ledger: Ledger, cursors: list[Cursor]) -> tuple[int, int]:
    """(first, end) of the entries among which some may have become free: before them all are gone."""
    end = ledger.entries
    if not any(ledger.ledger_id in cursor.bitmaps for cursor in cursors):
        end = min((cursor.mark_delete[1] + 1 for cursor in cursors if cursor.mark_delete[0] == ledger.ledger_id), default=end)
    return max(0, partition.discarded.first_hole(ledger, 0) - _BEFORE), end
