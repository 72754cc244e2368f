"""Hole punching: freeing disk blocks of entries that every subscription has acknowledged, in ledgers still needed.

The open ledger keeps acknowledged entries, for seeks and new readers, until it is sealed or disk space is short.

Before the bytes of an entry are freed, the journal has, synced, that the entry is discarded (Partition.discarded), so
after a start it is not delivered. A worker that still has the entry to deliver recognizes a hole by the entry's first
bytes: no entry begins with format.NO_ENTRY.

An owner that is killed between the two, or that unloads the topic, leaves such blocks taken.  They are looked for once
in each ledger of a partition that is opened.

In a sealed ledger, blocks of the index are freed too if all their entries are gone. ledgers/index_repair.py says how
the rows in such blocks are read.
"""
import errno
import heapq
import os
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from geminga.storage import format
from geminga.storage.cursors.cursor import Cursor
from geminga.storage.disk import syscalls
from geminga.storage.errors import is_full
from geminga.storage.ledgers import journal_ops, ledger_files
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.ledgers.position import Position
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.discovery import Discovery
from geminga.storage.open_topics.disk_space import DiskSpace
from geminga.storage.open_topics.topic_table import TopicTable
from geminga.storage.open_topics.watcher import Watcher
from geminga.storage.topics.partition import Partition

_BLOCK = 4096           # bytes of the file system's blocks
_WORTH = 64 << 10       # bytes that a ledger gives back at once, at least
_BEFORE = 256           # discarded entries that are looked at again, because they share a block with the next
_HOLES_MAX = 1_000      # holes of a partition in a tick, which take some 10 ms
_PUNCHED_MAX = 8 << 20  # bytes of holes in a pass, which take some 2 ms; answers of the pass wait for them
_SHORT_MAX = 100        # open ledgers freed in a tick while the disk is short, the largest first: up to 1 s
_INDEXES_MAX = 32       # indexes looked at in a tick
_OPENED_MAX = 8         # ledgers of opened partitions looked at in a tick; one takes up to 10 ms
_ANEW_MAX = 2           # indexes written anew in a tick; each costs an fsync
_DATA_MAX = 10_000      # ranges of data between holes that are searched for in a ledger
_NEVER = (1 << 63) - 1  # an offset behind every file
_ROWS = _BLOCK // format.INDEX_ROW.itemsize


@dataclass(frozen=True, slots=True)
class Hole:
    """Whole blocks of a ledger's file whose entries are all discarded."""

    ledger: Ledger
    begin: int          # bytes of the file
    end: int
    straddling: int     # where the entry begins that has bytes before and in the hole; -1: there is none


class HolePuncher(Watcher):
    """Puncher of holes into the ledgers of one owner.

    It looks at a partition once a second at most, and only after acknowledgements.
    """

    def __init__(self, decisions: Decisions, topics: TopicTable, space: DiskSpace, discovery: Discovery):
        self._decisions, self._topics, self._space, self._discovery = decisions, topics, space, discovery
        self._is_possible = True           # whether the file system has holes
        self._left: list[Hole] = []        # to try again: the disk was full, or a backup shared the ledger
        self._planned: list[Hole] = []     # of this pass, until its commit, and what earlier passes left
        # Ids of ledgers of opened partitions that may have discarded entries whose blocks are still taken.
        self._opened: dict[Partition, list[int]] = {}
        self._kept: dict[Partition, None] = {}       # whose open ledgers may have acknowledged entries
        self._freed: dict[Partition, None] = {}      # whose indexes are looked at when these holes are punched
        self._is_due = False               # whether the pass is to punch some

    def __repr__(self) -> str:
        return f"<HolePuncher possible={self._is_possible} planned={len(self._planned)} left={len(self._left)}>"

    def watch(self, partition: Partition, /) -> None:
        """Look at a partition with the next ticks: it was opened, or its policies may no longer keep entries."""
        self._decisions.acknowledged[partition] = None
        if partition.discarded.bitmaps:
            self._opened[partition] = [*partition.discarded.bitmaps]

    def release(self, partition: Partition, /) -> None:
        self._decisions.acknowledged.pop(partition, None)
        self._kept.pop(partition, None)
        self._left = [hole for hole in self._left if hole.ledger.partition_id != partition.partition_id]
        self._planned = [hole for hole in self._planned if hole.ledger.partition_id != partition.partition_id]
        self._freed.pop(partition, None)
        self._opened.pop(partition, None)

    def tick(self, now_ms: int) -> None:
        if not self._space.keep_acknowledged_ms:
            self._stop_keeping()
        partitions, self._decisions.acknowledged = self._decisions.acknowledged, {}
        if not self._is_possible:
            return
        self._planned += self._left
        self._left = []
        self._plan_opened(now_ms)
        for partition in partitions:
            if not self._is_kept(partition, now_ms):
                planned = self._plan(partition)
                if len(planned) >= _HOLES_MAX:
                    self._decisions.acknowledged[partition] = None      # there are more
                self._planned += planned
                self._freed[partition] = None
        if self._planned:
            self._decisions.answer_needs_sync()
            self._punch_in_pass()
        else:
            self._give_back_indexes(now_ms)

    def _stop_keeping(self) -> None:
        """Look at open ledgers that kept acknowledged entries, the largest first; the next ticks look at the others."""
        for partition in heapq.nlargest(_SHORT_MAX, self._kept, key=lambda kept: kept.open_ledger.size):
            del self._kept[partition]
            self._decisions.acknowledged[partition] = None

    def _is_kept(self, partition: Partition, now_ms: int) -> bool:
        """Whether acknowledged entries are kept for subscriptions and readers that are yet to come."""
        is_kept = partition.policies.retains or partition.compacts
        return is_kept or self._discovery.holds(partition, now_ms)

    def _plan_opened(self, now_ms: int) -> None:
        """Plan the holes that an owner recorded as discarded and did not punch before its partition was opened again.

        Looks into _OPENED_MAX ledgers; the next ticks look into the others.
        """
        for _ in range(_OPENED_MAX):
            if not self._opened:
                return
            partition = next(iter(self._opened))
            ledger_id = self._opened[partition].pop()
            if not self._opened[partition]:
                del self._opened[partition]
            ledger = partition.find(ledger_id)
            if isinstance(ledger, Ledger) and not self._is_kept(partition, now_ms):
                self._planned += _plan_again(partition, ledger)
                self._freed[partition] = None

    def _punch_in_pass(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._decisions.after_commit(self._go_on)

    def _go_on(self) -> None:
        """Punch at most _PUNCHED_MAX bytes of the planned holes, whose acknowledgements are committed by now.

        The next pass punches the rest.  When no hole is left, free disk blocks of the indexes too.
        """
        self._is_due = False
        # Synced even where answers do not wait for it.  Bytes are gone at once: after a power cut that lost the
        # record, a start would deliver zeros for entries that every subscription had acknowledged.
        self._decisions.journal.sync()
        self._punch(self._take())
        if self._planned:
            self._punch_in_pass()
        else:
            self._give_back_indexes(self._decisions.now_ms)

    def _take(self) -> list[Hole]:
        """Take at most _PUNCHED_MAX bytes of the planned holes; a larger hole is cut.

        Holes in ledgers that a backup shares are left for the next tick, those in deleted ledgers are dropped.
        """
        shared = {ledger for ledger in {hole.ledger for hole in self._planned} if ledger.is_shared}
        self._left += [hole for hole in self._planned if hole.ledger in shared]
        holes = [hole for hole in self._planned if not (hole.ledger in shared or hole.ledger.is_unlinked)]
        taken, room = 0, _PUNCHED_MAX
        while taken < len(holes) and room > 0:
            hole = holes[taken]
            if hole.end - hole.begin > room:
                holes[taken:taken + 1] = [replace(hole, end=hole.begin + room),
                                          replace(hole, begin=hole.begin + room, straddling=-1)]
            room -= holes[taken].end - holes[taken].begin
            taken += 1
        self._planned = holes[taken:]
        return holes[:taken]

    def _plan(self, partition: Partition) -> list[Hole]:
        """Return new holes of a partition, _HOLES_MAX at most, and mark their entries as discarded in the journal."""
        cursors = [subscription.cursor for subscription in partition.subscriptions.values()]
        cursors += [backlog.cursor for backlog in partition.cleared if backlog.is_left]
        holes: list[Hole] = []
        if not any(cursor.is_durable for cursor in cursors):
            return holes
        limit = _limit(partition)
        for ledger in partition.ledgers:
            if limit is not None and ledger.ledger_id > limit[0]:
                break
            if all(cursor.mark_delete[0] < ledger.ledger_id and ledger.ledger_id not in cursor.bitmaps
                   for cursor in cursors):
                break
            if ledger is partition.open_ledger and self._space.keep_acknowledged_ms:
                self._kept[partition] = None
                break
            holes += self._plan_ledger(partition, ledger, cursors, _HOLES_MAX - len(holes))
            if len(holes) >= _HOLES_MAX:
                break
        return holes

    def _plan_ledger(self, partition: Partition, ledger: Ledger, cursors: list[Cursor], at_most: int) -> list[Hole]:
        """Return new holes of a ledger, and mark their entries as discarded.

        A hole lies in a run of settled entries, which all cursors have acknowledged. It is worth punching if fresh
        entries, which are not discarded yet, have a block's bytes in it, and if the ledger's holes free _WORTH bytes.
        """
        first, end = _window(partition, ledger, cursors)
        if first >= end or 0 < ledger.size - ledger.column("offset").item(first) < _WORTH:      # as a rule
            return []
        settled = np.logical_and.reduce([cursor.acknowledged(ledger.ledger_id, first, end) for cursor in cursors])
        fresh = settled & ~partition.discarded.acknowledged(ledger.ledger_id, first, end)
        if not (fresh & (ledger.column("size")[first:end] > 0)).any():
            return []
        edges = np.flatnonzero(np.diff(settled, prepend=False, append=False))
        firsts, ends = edges[0::2], edges[1::2]
        offsets, sizes = (ledger.column(name)[first:end].astype(np.int64) for name in ("offset", "size"))
        # The end of the entry before each. Rows of lost entries have no offset, but a run of settled entries follows
        # one that is not lost.
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
        self._decisions.note_many(partition, journal_ops.acknowledged(
            partition.partition_id, partition.discarded.subscription_id, ledger.ledger_id, entries))
        return _holes(ledger, offsets, starts[worth], begins[worth], stops[worth])

    def _punch(self, holes: list[Hole]) -> None:
        """Punch holes.  If the disk is full, the remaining holes wait for the next tick.  Raises OSError."""
        for number, hole in enumerate(holes):
            ledger = hole.ledger
            try:
                # First, because a worker may still deliver that entry: it must not find a beginning before zeros.
                if hole.straddling >= 0:
                    os.pwrite(ledger.descriptor, format.NO_ENTRY, hole.straddling)
                syscalls.punch(ledger.descriptor, hole.begin, hole.end, ledger.ledger_path)
                ledger.is_index_new = True
            except OSError as error:
                if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS):
                    self._is_possible = False
                elif is_full(error):      # some file systems need room to note that there is a hole
                    self._space.give_up()
                    self._left += holes[number:]
                else:
                    raise
                return
        for ledger in {hole.ledger for hole in holes if hole.ledger.is_sealed}:
            _close(ledger)

    def _give_back_indexes(self, now_ms: int) -> None:
        """Free disk blocks of indexes of sealed ledgers into which holes were punched.  Raises OSError."""
        looked_at = made_anew = 0
        partitions, self._freed = self._freed, {}
        for partition in partitions:
            for ledger in partition.ledgers[:-1]:
                is_candidate = ledger.is_index_new and ledger.is_sealed
                if not (is_candidate and ledger.ledger_id in partition.discarded.bitmaps) or ledger.is_shared:
                    continue
                if looked_at >= _INDEXES_MAX or made_anew >= _ANEW_MAX:
                    self._decisions.acknowledged[partition] = None      # there are more
                    break
                looked_at += 1
                if holes := _plan_index(partition, ledger, now_ms):
                    made_anew += 1
                    try:
                        ledger_files.give_back_rows(ledger, holes)
                    except OSError as error:
                        if not is_full(error):
                            raise
                        self._decisions.acknowledged[partition] = None
                        self._space.give_up()
                        return
                    self._topics.forget_mapped(ledger)
                ledger.is_index_new = False
                _close(ledger)


def _close(ledger: Ledger) -> None:
    """Close a sealed ledger, unless its index has holes.

    Filling them in again takes 50 ms for a million rows, and readers of the ledger would need that with every tick.
    """
    if not ledger.has_holes:
        ledger.close()


def _holes(ledger: Ledger, offsets: NDArray[np.int64], starts: NDArray[np.int64], begins: NDArray[np.int64],
           stops: NDArray[np.int64]) -> list[Hole]:
    """Return holes begins .. stops (n,) in runs of discarded entries, the first of which is at `starts`."""
    entry_at = np.maximum.accumulate(offsets)
    straddling = entry_at[np.searchsorted(entry_at, begins, side="right") - 1]      # has a hole's first byte
    straddling = np.where((straddling >= starts) & (straddling < begins), straddling, -1)
    return [Hole(ledger, *hole) for hole in zip(begins.tolist(), stops.tolist(), straddling.tolist(), strict=True)]


def _plan_again(partition: Partition, ledger: Ledger) -> list[Hole]:
    """Return holes of a ledger, _HOLES_MAX at most, whose entries are discarded and whose blocks are still taken."""
    limit, end = _limit(partition), ledger.entries
    if limit is not None and limit[0] <= ledger.ledger_id:
        end = min(end, limit[1]) if limit[0] == ledger.ledger_id else 0
    edges = np.flatnonzero(np.diff(partition.discarded.acknowledged(ledger.ledger_id, 0, end),
                                   prepend=False, append=False))
    if not len(edges):
        return []
    firsts, ends = edges[0::2], edges[1::2]
    offsets, sizes = (ledger.column(name)[:end].astype(np.int64) for name in ("offset", "size"))
    # Rows of lost entries, and those that were given back, have no offset.  A run that begins or ends with one, or
    # beside one, is left out or made shorter.
    ends_at = np.concatenate((offsets[sizes > 0][:1], offsets + sizes))
    starts = np.maximum(ends_at[firsts], offsets[firsts])
    begins, stops = -(-starts // _BLOCK) * _BLOCK, np.append(offsets, ends_at[-1])[ends] // _BLOCK * _BLOCK
    is_some = (starts > 0) & (begins < stops)
    starts, begins, stops = starts[is_some], begins[is_some], stops[is_some]
    is_taken = np.flatnonzero(~_are_holes(ledger, begins, stops))[:_HOLES_MAX]
    holes = _holes(ledger, offsets, starts[is_taken], begins[is_taken], stops[is_taken])
    if ledger.is_sealed:
        ledger.close()
    return holes


def _plan_index(partition: Partition, ledger: Ledger, now_ms: int) -> list[tuple[int, int]]:
    """Return (begin, end) of byte ranges of a ledger's index to free, whole blocks; [] if the gain is small.

    All entries of such a block, and the one on either side, are holes, and were due by their published delivery times.
    So the delayed index does not ask for them any more.
    """
    is_done = partition.discarded.acknowledged(ledger.ledger_id, 0, ledger.entries)
    gone = ledger.given_back
    least = gone + max(_WORTH, (ledger.index_size - gone) // 2)      # bytes of holes; else an fsync would gain little
    if int(np.count_nonzero(is_done)) * format.INDEX_ROW.itemsize < least:
        return []
    # The first and the last block stay, because they say where the ledger begins and ends.
    blocks = np.arange(1, ledger.entries // _ROWS)
    firsts, ends = blocks * _ROWS - format.HEADER_SIZE // format.INDEX_ROW.itemsize, (blocks + 1) * _ROWS - 1
    every, times = range(ledger.entries), ledger.deliver_at[:ledger.entries]
    is_done &= times <= now_ms
    if (schedule := partition.schedule) is not None:
        is_done &= schedule.times_of(ledger, every) == times
        waits = schedule.waits(ledger.ledger_id, every)
        is_done &= ~waits if waits is not None else True
    done_before = np.concatenate(([0], np.cumsum(is_done)))
    offsets = ledger.column("offset")
    is_free = done_before[ends + 1] - done_before[firsts - 1] == ends - firsts + 2
    is_free &= _are_holes(ledger, offsets[firsts].astype(np.int64), offsets[ends].astype(np.int64))
    edges = (np.flatnonzero(np.diff(is_free, prepend=False, append=False)) + 1) * _BLOCK      # is_free[0] is block 1
    holes = list(zip(edges[0::2].tolist(), edges[1::2].tolist(), strict=True))
    return holes if sum(end - begin for begin, end in holes) >= least else []


def _are_holes(ledger: Ledger, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether each of these byte ranges (n,) of a ledger's file, ascending, lies in a hole."""
    starts: list[int] = []
    stops: list[int] = []
    offset = 0
    while offset < ledger.size and len(starts) < _DATA_MAX:
        try:
            starts.append(os.lseek(ledger.descriptor, offset, os.SEEK_DATA))
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break
        offset = os.lseek(ledger.descriptor, starts[-1], os.SEEK_HOLE)
        stops.append(offset)
    else:
        starts.append(offset)
        stops.append(_NEVER)
    starts.append(_NEVER)
    return np.array(starts)[np.searchsorted(stops, begins, side="right")] >= ends


def _window(partition: Partition, ledger: Ledger, cursors: list[Cursor]) -> tuple[int, int]:
    """Return (first, end) of the ledger's entries that may have become settled; all earlier ones are discarded."""
    end = ledger.entries
    if not any(ledger.ledger_id in cursor.bitmaps for cursor in cursors):
        ends = [cursor.mark_delete[1] + 1 for cursor in cursors if cursor.mark_delete[0] == ledger.ledger_id]
        end = min(ends, default=end)
    if (limit := _limit(partition)) is not None and ledger.ledger_id == limit[0]:
        end = min(end, limit[1])
    return max(0, partition.discarded.first_hole(ledger, 0) - _BEFORE), end


def _limit(partition: Partition) -> Position | None:
    """Return the first position from which on nothing is freed; None: there is none.

    Entries behind it are of a transaction that may still show them to new subscriptions, or they have to be exported.
    """
    limits = [] if partition.limit is None else [partition.limit]
    if partition.policies.keeps_unexported:
        ledger_id, entry_id = partition.exported_up_to
        limits.append((ledger_id, entry_id + 1))
    return min(limits, default=None)
