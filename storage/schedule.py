"""What of a partition waits for its time: PIP-26's index from time to message id, on disk by windows of time.

An entry *waits* from its publication until the clock reaches its deliver-at time.  Which entries of a ledger wait is a bit each; when
they fall due stands in a file per window of time (windows.py), of which those are in memory that have begun: as arrays in
the order of time, so that a tick takes a slice.  Subscriptions that are shared skip what waits, and when it falls due give it out
where they have passed it.  So neither memory nor a start depends on how many entries wait, and all subscriptions share one index.

    published -> bits, fresh rows -> (thousands of them together) -> files -> (their window begins) -> wheel -> due: bits cleared

Entries whose times ascend in the order in which they were published, as a fixed delay makes them, are no work at all: nobody reads
beyond `limit`, which moves on with the clock.  When something comes that is due before them, they are put into the index after all.

The ledgers' indexes have every entry's time.  The schedule follows them: `save` writes up to which position, and from there on a start
looks again.  What is wrong with its files costs the time to look at all of them.
"""
import errno
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from geminga.proto.rows import struct_of
from geminga.storage import format
from geminga.storage.errors import CorruptFile
from geminga.storage.ledger import Ledger, sync
from geminga.storage.libc import give_back_memory
from geminga.storage.pending import NEVER_MS, Entries
from geminga.storage.windows import FAR_MS, NO_ROWS, File, Flush, Rows, Window, Windows, joined

if TYPE_CHECKING:
    from geminga.storage.cursor import Position
    from geminga.storage.partition import Partition
    from geminga.storage.subscription import Subscription

_STRETCH = 1 << 16               # entries put into the index in one go
_FRESH_MIN = 1 << 16             # rows that are gathered before they go into files, ...
_FRESH_EACH = 64                 # ... and for each file that they go to
_NEVER = -1                      # in an amendment
_SAVED, _AMENDED = "schedule", "amended"
_AMENDMENT = struct_of(format.AMENDMENT_ROW)
Released = list[tuple[Ledger, NDArray[np.int64]]]      # entries ascending


@dataclass(slots=True)
class _Fresh:
    """Rows that are in no file yet, in the order in which they came."""

    parts: list[Rows]
    count: int = 0
    soonest_ms: int = NEVER_MS

    def add(self, rows: Rows) -> None:
        if len(rows[0]):
            self.parts.append(rows)
            self.count += len(rows[0])
            self.soonest_ms = min(self.soonest_ms, int(rows[0].min()))

    def take(self, until_ms: int) -> Rows:
        """Those whose time has come."""
        if self.soonest_ms > until_ms:
            return NO_ROWS
        rows = joined(self.parts)
        is_due = rows[0] <= until_ms
        self.parts, self.count, self.soonest_ms = [], 0, NEVER_MS
        self.add(tuple(column[~is_due] for column in rows))
        return tuple(column[is_due] for column in rows)


class _Wheel:
    """What is in memory of the windows that have begun, in the order of time: a tick's share is a slice."""

    def __init__(self) -> None:
        self.rows, self._at = NO_ROWS, 0

    @property
    def soonest_ms(self) -> int:
        return int(self.rows[0][self._at]) if self._at < len(self.rows[0]) else NEVER_MS

    @property
    def left(self) -> Rows:
        return tuple(column[self._at:] for column in self.rows)

    def add(self, rows: Rows) -> None:
        if len(rows[0]):
            rows = joined([self.left, rows])
            order = np.argsort(rows[0], kind="stable")
            self.rows, self._at = tuple(column[order] for column in rows), 0

    def take(self, until_ms: int) -> Rows:
        first, self._at = self._at, self._at + int(np.searchsorted(self.rows[0][self._at:], until_ms, side="right"))
        found = tuple(column[first:self._at] for column in self.rows)
        if self._at == len(self.rows[0]):
            self.rows, self._at = NO_ROWS, 0
        return found


class Schedule:
    """Of one partition; made when the first entry comes that waits, and there for good then."""

    def __init__(self, partition: "Partition", *, is_strict: bool):
        """is_strict: nothing is due before its time, but up to a tick later; else it may be a tick early."""
        self._partition, self.is_strict = partition, is_strict
        self.folder = format.delayed_folder(partition.folder)
        self.files = Windows(self.folder)
        self.limit: Position | None = None        # from there on nobody knows yet what waits, or, if it is sorted, all does
        self.is_dirty = False                     # what was saved is not all there is
        self._is_sorted = False
        self._last_ms = 0                         # of what is sorted the last time
        self._head_ms = NEVER_MS                  # ... and the first
        self._bits: dict[int, NDArray[np.uint8]] = {}      # ledger id -> 1 = waits
        self._set = 0                             # bits
        self._amended: dict[int, dict[int, int]] = {}      # ledger id -> entry id -> its time now, NEVER_MS for never
        self._never = 0                           # entries that are never to be given out, among those bits
        self._wheel = _Wheel()
        self._fresh, self._moved = _Fresh([]), _Fresh([])  # the latter are amended ones
        self._flush: Flush | None = None
        self._flushing: _Fresh | None = None      # what it writes, as long as that is not in the files
        self._released_ms = 0                     # when something last fell due

    def __repr__(self) -> str:
        return f"<Schedule waiting={self.waiting} files={len(self.files.files)} limit={self.limit}>"

    # -- what waits

    def waits(self, ledger_id: int, entries: Entries) -> NDArray[np.bool_] | None:
        """Of each of the entries (n,) whether it does; None: none does."""
        bits = self._bits.get(ledger_id)
        if bits is None:
            return None
        if isinstance(entries, range):
            some = np.unpackbits(bits[entries.start >> 3:(entries.stop + 7) >> 3], bitorder="little")
            found = np.zeros(len(entries), bool)
            some = some[entries.start & 7:][:len(entries)]
            found[:len(some)] = some
            return found
        known = entries[:np.searchsorted(entries, len(bits) * 8)]
        found = np.zeros(len(entries), bool)
        found[:len(known)] = bits[known >> 3] >> (known & 7).astype(np.uint8) & 1
        return found

    def ready(self, ledger_id: int, entries: Entries) -> Entries:
        """Those of the entries that do not wait."""
        waits = self.waits(ledger_id, entries)
        if waits is None or not waits.any():
            return entries
        return np.flatnonzero(~waits) + entries.start if isinstance(entries, range) else entries[~waits]

    def end(self, ledger: Ledger) -> int:
        """The ledger's first entry that is beyond the limit, or how many it has."""
        if self.limit is None or ledger.ledger_id < self.limit[0]:
            return ledger.entries
        return min(self.limit[1], ledger.entries) if ledger.ledger_id == self.limit[0] else 0

    def waiting_in(self, ledger: Ledger) -> NDArray[np.int64]:
        """Its entries that wait and are in the index, ascending."""
        bits = self._bits.get(ledger.ledger_id)
        return np.flatnonzero(np.unpackbits(bits, bitorder="little")) if bits is not None else np.zeros(0, np.int64)

    @property
    def waiting(self) -> int:
        """Entries that wait."""
        return self._set - self._never + sum(self._beyond(ledger) for ledger in self._sorted_ledgers())

    def waiting_of(self, subscription: "Subscription") -> int:
        """Entries that wait and that the subscription has not acknowledged."""
        cursor, count = subscription.cursor, 0
        for ledger in self._partition.ledgers_from(cursor.mark_delete[0]):
            bits = self._bits.get(ledger.ledger_id)
            if bits is not None:
                left = bits.copy()
                if (acked := cursor.bitmaps.get(ledger.ledger_id)) is not None:
                    left[:len(acked)] &= ~acked[:len(left)]
                if ledger.ledger_id == cursor.mark_delete[0]:
                    _clear_before(left, cursor.mark_delete[1] + 1)
                count += int(np.bitwise_count(left).sum(dtype=np.int64))
            if self._is_sorted and self.limit is not None and self.end(ledger) < ledger.entries:
                for first, end in cursor.unacknowledged(ledger, self.end(ledger), ledger.entries):
                    waits = self.waits(ledger.ledger_id, range(first, end))
                    count += end - first - (0 if waits is None else int(waits.sum()))
        return count

    def _sorted_ledgers(self) -> list[Ledger]:
        """Those beyond the limit, when all there waits."""
        return self._partition.ledgers_from(self.limit[0]) if self._is_sorted and self.limit is not None else []

    def _beyond(self, ledger: Ledger) -> int:
        """Its entries beyond the limit that have no bit."""
        first = self.end(ledger)
        waits = self.waits(ledger.ledger_id, range(first, ledger.entries))
        return ledger.entries - first - (0 if waits is None else int(waits.sum()))

    def _until(self, now_ms: int) -> int:
        """What is to come until then is due."""
        return now_ms if self.is_strict else now_ms + self._partition.policies.delay_tick_ms

    # -- entries come

    def published(self, ledger: Ledger, first: int, times: NDArray[np.int64], now_ms: int) -> None:
        """Entries of the ledger, from `first` on, have these deliver-at times (n,), 0 for at once."""
        until_ms = self._until(now_ms)
        if self.limit is not None:
            if not self._is_sorted:
                return                            # they are looked at when those before them are
            if self._last_ms > until_ms:
                if times[0] >= self._last_ms and _ascend(times):
                    self._last_ms = int(times[-1])
                else:
                    self._is_sorted = False
                self.is_dirty = True
                return
            self.limit = None                     # what was sorted is all due
        is_later = times > until_ms
        if not is_later.any():
            return
        at = int(is_later.argmax())
        self.is_dirty = True
        if _ascend(times[at:]):
            self._is_sorted, self.limit = True, (ledger.ledger_id, first + at)
            self._head_ms, self._last_ms = int(times[at]), int(times[-1])
        else:
            self._index(ledger, first, times, is_later)

    def _index(self, ledger: Ledger, first: int, times: NDArray[np.int64], is_later: NDArray[np.bool_]) -> None:
        """Of the entries from `first` on these wait (n,), and the others do not."""
        self._mark(ledger.ledger_id, first, is_later)
        self._gather(ledger, first, times, is_later)

    def _gather(self, ledger: Ledger, first: int, times: NDArray[np.int64], is_later: NDArray[np.bool_]) -> None:
        """Of the entries from `first` on these (n,) are to be in the index, with the times that they were published with."""
        later = np.flatnonzero(is_later)
        self._fresh.add((times[later], np.full(len(later), ledger.ledger_id), later + first))

    def _mark(self, ledger_id: int, first: int, waits: NDArray[np.bool_]) -> None:
        """Set the bits of the entries from `first` on to these (n,)."""
        bits, end = self._bits.get(ledger_id), first + len(waits)
        if bits is None and not waits.any():
            return
        if bits is None or len(bits) * 8 < end:
            grown = np.zeros(-(-3 * end // 2 // 64) * 8, np.uint8)
            if bits is not None:
                grown[:len(bits)] = bits
            bits = self._bits[ledger_id] = grown
        some = bits[first >> 3:(end + 7) >> 3]
        each = np.unpackbits(some, bitorder="little")
        before = each[first & 7:(first & 7) + len(waits)]
        self._set += int(waits.sum()) - int(before.sum())
        before[:] = waits
        some[:] = np.packbits(each, bitorder="little")

    # -- time passes

    def next_ms(self) -> int:
        """When something is to be done although nothing comes: `advance` then."""
        soonest = min(self._wheel_ms(), self.files.next_ms())
        if self._released_ms > self._partition.now_ms:      # the clock was put back
            self._released_ms = 0
        return max(soonest, self._released_ms + self._partition.policies.delay_tick_ms) if soonest < NEVER_MS else NEVER_MS

    def next_due_ms(self) -> int:
        """The time of what falls due next; NEVER_MS when nothing waits.  Of a window that is not in memory, when that begins."""
        return min(self._wheel_ms(), self.files.next_ms()) if self.waiting else NEVER_MS

    def _wheel_ms(self) -> int:
        """The soonest time of what is in memory."""
        head_ms = self._head_ms if self.limit is not None and self._is_sorted else NEVER_MS
        flushing_ms = NEVER_MS if self._flushing is None else self._flushing.soonest_ms
        return min(self._wheel.soonest_ms, self._fresh.soonest_ms, self._moved.soonest_ms, flushing_ms, head_ms)

    def advance(self, now_ms: int) -> Released:
        """What is due by now, and was in the index, waits no more."""
        until_ms = self._until(now_ms)
        has_moved = self._move_limit(until_ms)
        found = [fresh.take(until_ms) for fresh in (self._fresh, self._moved, self._flushing) if fresh is not None]
        try:
            self._load_begun(now_ms)
        except CorruptFile as error:
            self.rebuild(str(error))
        found.append(self._wheel.take(until_ms))
        over = {window for window in self.files.loaded - self.files.done if 0 < window[1] <= until_ms - window[0]}
        released = self._release(joined([rows for rows in found if len(rows[0])]))
        if released or has_moved:
            self._released_ms = now_ms
        if not self.waiting:                      # whatever there is left in files
            over |= self.files.files.keys() - self.files.done
        self.files.done |= over
        self.is_dirty = self.is_dirty or bool(released or over)
        return released

    def _load_begun(self, now_ms: int) -> None:
        """Windows that have begun are in memory.  Raises CorruptFile."""
        while self.files.next_ms() <= self._until(now_ms):
            self._load(self.files.next(), now_ms)

    def _load(self, window: Window, now_ms: int) -> None:
        """It has begun: what is in it is in memory, or in narrower windows."""
        start, width = window
        rows = self.files.load(window)
        if start == FAR_MS:
            rows = self._with_times(rows)
        if width <= self._partition.policies.delay_window_ms:
            self._wheel.add(rows)
            return
        split = Flush(self.files, rows, self._partition.policies.delay_window_ms, now_ms)
        try:
            split.go_on(NEVER_MS)
        except OSError:                           # no room: all of it is in memory until its time has come
            self._wheel.add(rows)
        else:
            self._wheel.add(split.late())
            self.files.done.add(window)

    def _with_times(self, rows: Rows) -> Rows:
        """The same rows with the times that their entries have; without those of ledgers that are gone."""
        found = []
        for ledger_id in _distinct(rows[1]):
            if (ledger := self._partition.find(ledger_id)) is not None:
                entries = rows[2][rows[1] == ledger_id]
                found.append((self._times(ledger, entries), np.full(len(entries), ledger_id), entries))
        return joined(found)

    def _move_limit(self, until_ms: int) -> bool:
        """Over what is sorted and due; whether there was any."""
        if self.limit is None or not self._is_sorted or self._head_ms > until_ms:
            return False
        for ledger in self._partition.ledgers_from(self.limit[0]):
            first, times = self.end(ledger), ledger.deliver_at[:ledger.entries]
            first += int(np.searchsorted(times[first:], until_ms, side="right"))
            self.limit = ledger.ledger_id, first
            if first < ledger.entries:
                self._head_ms = int(times[first])
                break
        else:
            self.limit = None
        self.is_dirty = True
        return True

    def _release(self, rows: Rows) -> Released:
        """Those of the rows that hold: ledgers and bits say which; each once."""
        times, ledger_ids, entry_ids = rows
        released: Released = []
        for ledger_id in _distinct(ledger_ids):
            ledger = self._partition.find(ledger_id)
            if ledger is not None and ledger_id in self._bits:
                mine = ledger_ids == ledger_id
                _, entries = self._that_hold(ledger, times[mine], entry_ids[mine])
                if len(entries):
                    entries = entries if (entries[1:] > entries[:-1]).all() else np.unique(entries)
                    self._clear(ledger_id, entries)
                    released.append((ledger, entries))
        return released

    def _that_hold(self, ledger: Ledger, times: NDArray[np.int64], entries: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
        """(times, entries) of those that wait for these times; one may be there twice."""
        bits = self._bits[ledger.ledger_id]
        is_there = entries < min(ledger.entries, len(bits) * 8)
        times, entries = times[is_there], entries[is_there]
        holds = (bits[entries >> 3] >> (entries & 7).astype(np.uint8) & 1).astype(bool)
        times, entries = times[holds], entries[holds]
        holds = self._times(ledger, entries) == times
        return times[holds], entries[holds]

    def _times(self, ledger: Ledger, entries: Entries) -> NDArray[np.int64]:
        """When they are to be given out: NEVER_MS for never."""
        column = ledger.deliver_at
        times = column[entries.start:entries.stop].copy() if isinstance(entries, range) else column[entries]
        if (amended := self._amended.get(ledger.ledger_id)) is not None:
            ids = np.asarray(entries)
            for at in np.flatnonzero(np.isin(ids, np.fromiter(amended, np.int64))).tolist():
                times[at] = amended[int(ids[at])]
        return times

    def _clear(self, ledger_id: int, entries: NDArray[np.int64]) -> None:
        """These wait no more; they did."""
        np.bitwise_and.at(self._bits[ledger_id], entries >> 3, ~(np.uint8(1) << (entries & 7).astype(np.uint8)))
        self._set -= len(entries)

    # -- work that is done in small pieces

    @property
    def is_complete(self) -> bool:
        """Whether it is known of all entries whether they wait."""
        return self.limit is None or self._is_sorted

    @property
    def is_busy(self) -> bool:
        """Whether there is any."""
        return not self.is_complete or self._flush is not None or self._fresh.count >= self._full

    @property
    def _full(self) -> int:
        return max(_FRESH_MIN, _FRESH_EACH * len(self.files.files))

    def work(self, now_ms: int, until: float) -> Released:
        """Do some, until that time (time.perf_counter) or little longer; what is due that a damaged index had kept.  Raises OSError."""
        released: Released = []
        while not self.is_complete:
            released += self._look_on(self._until(now_ms))
            if time.perf_counter() >= until:
                break
        if self._flush is None and self._fresh.count >= self._full:
            self.begin_flush(now_ms)
        if self._flush is not None:
            self._flush_on(until)
        return released

    def begin_flush(self, now_ms: int) -> None:
        """What is in no file yet is to be written."""
        if self._flush is None and self._fresh.count:
            rows, soonest_ms = joined(self._fresh.parts), self._fresh.soonest_ms
            self._flushing, self._fresh = _Fresh([rows], len(rows[0]), soonest_ms), _Fresh([])
            self._flush = Flush(self.files, rows, self._partition.policies.delay_window_ms, now_ms)

    def flush(self, now_ms: int) -> None:
        """All that waits is in files.  Raises OSError."""
        while self._flush is not None or self._fresh.count:
            self.begin_flush(now_ms)
            self._flush_on(NEVER_MS)

    def _flush_on(self, until: float) -> None:
        if self._flush.go_on(until):
            self._wheel.add(self._flush.late())
            self._flush = self._flushing = None
            self.is_dirty = True
            give_back_memory()

    def _look_on(self, until_ms: int) -> Released:
        """Look at the next entries that nobody knows of whether they wait."""
        ledger = self._partition.ledgers_from(self.limit[0])[0]
        first = self.end(ledger) if ledger.ledger_id == self.limit[0] else 0
        end, released = min(ledger.entries, first + _STRETCH), []
        if first < end:
            times, waited = self._times(ledger, range(first, end)), self.waits(ledger.ledger_id, range(first, end))
            is_later, written = times > until_ms, ledger.deliver_at[first:end]
            self._mark(ledger.ledger_id, first, is_later)
            self._gather(ledger, first, written, written > until_ms)
            for entry_id, at_ms in self._amended.get(ledger.ledger_id, {}).items():
                if first <= entry_id < end and until_ms < at_ms < NEVER_MS:
                    self._moved.add(_row(at_ms, ledger.ledger_id, entry_id))
            if waited is not None and len(late := np.flatnonzero(waited & ~is_later)):
                released = [(ledger, late + first)]
        self.is_dirty = True
        if end < ledger.entries:
            self.limit = ledger.ledger_id, end
        elif ledger is self._partition.open_ledger:
            self.limit = None
        else:
            self.limit = ledger.ledger_id + 1, 0
        return released

    def rebuild(self, why: str = "") -> None:
        """Begin the index anew from what the ledgers say."""
        if why:
            self._partition.damage.append(f"{why}; the schedule of {self._partition.name} is made anew")
        self.files.clear()
        self._wheel, self._fresh, self._moved, self._flush, self._flushing = _Wheel(), _Fresh([]), _Fresh([]), None, None
        self.limit, self._is_sorted, self.is_dirty = (self._partition.ledgers[0].ledger_id, 0), False, True

    def forget(self, ledger: Ledger) -> None:
        """It was deleted, and all before it."""
        ledger_id = ledger.ledger_id
        if ledger_id in self._bits or ledger_id in self._amended:
            self._forget_rows(ledger)
        bits = self._bits.pop(ledger_id, None)
        if bits is not None:
            self._set -= int(np.bitwise_count(bits).sum(dtype=np.int64))
        if (amended := self._amended.pop(ledger_id, None)) is not None:
            self._never -= sum(at == NEVER_MS for at in amended.values())
        if self.limit is not None and self.limit[0] <= ledger_id:
            first = self._partition.ledgers[0]
            self.limit = first.ledger_id, 0
            if self._is_sorted:
                self.limit = self.limit if first.entries else None
                self._head_ms = int(first.deliver_at[0]) if first.entries else NEVER_MS
        self.is_dirty = True

    def _forget_rows(self, ledger: Ledger) -> None:
        """Of a ledger: those in memory go, those in files count no more."""
        unwritten = joined([*self._fresh.parts, *self._in_flush()])
        is_written = ledger.deliver_at[:self.end(ledger)] > self._partition.now_ms
        is_written[unwritten[2][unwritten[1] == ledger.ledger_id]] = False
        counts = {(start, start + max(width, 1)): self.files.files[start, width].rows for start, width in self._ahead()}
        _take_away(counts, ledger.deliver_at[np.flatnonzero(is_written)])
        for start, width in self._ahead():
            self.files.files[start, width].rows = counts[start, start + max(width, 1)]
        if self._flush is not None:
            self._flush.forget(ledger.ledger_id)
        rows, self._fresh = joined(self._fresh.parts), _Fresh([])
        self._fresh.add(tuple(column[rows[1] != ledger.ledger_id] for column in rows))

    def _ahead(self) -> set[Window]:
        """Files of which nothing is in memory, and not all out of date."""
        return self.files.files.keys() - self.files.loaded - self.files.done

    # -- administration

    @property
    def windows(self) -> int:
        """Files there are."""
        return len(self.files.files)

    @property
    def index_bytes(self) -> int:
        """On disk."""
        return self.files.size

    @property
    def loaded(self) -> int:
        """Rows in memory."""
        return self._fresh.count + self._moved.count + len(self._wheel.left[0]) + (self._flushing.count if self._flushing else 0)

    @property
    def memory_bytes(self) -> int:
        return 24 * self.loaded + sum(map(len, self._bits.values()))

    def time_of(self, ledger_id: int, entry_id: int) -> int | None:
        """The entry's time when it waits."""
        ledger = self._partition.find(ledger_id)
        if ledger is None or not 0 <= entry_id < ledger.entries:
            return None
        at_ms, waits = int(self._times(ledger, range(entry_id, entry_id + 1))[0]), self.waits(ledger_id, range(entry_id, entry_id + 1))
        if at_ms == NEVER_MS:
            return None
        is_beyond = self.limit is not None and (ledger_id, entry_id) >= self.limit
        return at_ms if (waits is not None and waits[0]) or (is_beyond and at_ms > self._until(self._partition.now_ms)) else None

    def amend(self, ledger_id: int, entry_id: int, deliver_at_ms: int | None) -> None:
        """An entry that waits is to be given out then, or, with None, never; that is on disk.  Raises OSError."""
        after_ms = NEVER_MS if deliver_at_ms is None else max(1, min(deliver_at_ms, NEVER_MS - 1))
        values = ledger_id, entry_id, _NEVER if deliver_at_ms is None else after_ms
        self._note_amended(_AMENDMENT.pack(*values, crc32c(_AMENDMENT.pack(*values, 0, 0)), 0))
        self._apply_amended(ledger_id, entry_id, after_ms)
        if after_ms < NEVER_MS:
            if self.limit is not None and (ledger_id, entry_id) >= self.limit:
                self._is_sorted = False                # it will be found with its new time
            else:
                self._moved.add(_row(after_ms, ledger_id, entry_id))
        elif self.limit is None or self._is_sorted or (ledger_id, entry_id) < self.limit:
            self._mark(ledger_id, entry_id, np.ones(1, bool))

    def _apply_amended(self, ledger_id: int, entry_id: int, after_ms: int) -> None:
        self._amended.setdefault(ledger_id, {})[entry_id] = after_ms
        self._never += after_ms == NEVER_MS

    def _note_amended(self, row: bytes) -> None:
        self.folder.mkdir(exist_ok=True)
        path = self.folder / _AMENDED
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        try:
            size = os.fstat(fd).st_size
            whole = size - size % len(row)             # what a kill left of one counts as not written
            if whole != size:
                os.ftruncate(fd, whole)
            try:
                if os.write(fd, row) != len(row):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
                os.fsync(fd)
            except OSError:
                os.ftruncate(fd, whole)
                raise
        finally:
            os.close(fd)
        if not whole:
            for folder in (self.folder, self.folder.parent):
                sync(folder, os.fsync)

    def counts(self, first_ms: int, end_ms: int) -> list[tuple[int, int, int]]:
        """(start, end in ms, entries) of each window that has any and reaches into [first_ms, end_ms), ascending.

        What was acknowledged before its time is counted too.  Raises CorruptFile.
        """
        self._load_begun(self._partition.now_ms)
        found = {(start, start + max(width, 1)): self.files.files[start, width].rows for start, width in self._ahead()
                 if start < end_ms and start + max(width, 1) > first_ms}
        width_ms = self._partition.policies.delay_window_ms
        self._leave_out_amended(found, width_ms)
        starts = joined([self._holding(self._in_memory()), self._moved_rows()])[0] // width_ms * width_ms
        for start, count in zip(*np.unique(starts, return_counts=True), strict=True):
            if start < end_ms and start + width_ms > first_ms:
                window = int(start), int(start) + width_ms
                found[window] = found.get(window, 0) + int(count)
        for ledger in self._sorted_ledgers():
            times, at = ledger.deliver_at[:ledger.entries], self.end(ledger)
            at = max(at, int(np.searchsorted(times[at:], first_ms)) + at)
            while at < ledger.entries and times[at] < end_ms:
                start = int(times[at]) // width_ms * width_ms
                behind = at + int(np.searchsorted(times[at:], start + width_ms))
                found[start, start + width_ms] = found.get((start, start + width_ms), 0) + behind - at
                at = behind
        return sorted((start, end, count) for (start, end), count in found.items() if count > 0)

    def _leave_out_amended(self, found: dict[tuple[int, int], int], width_ms: int) -> None:
        """Of the counts of files, {(start, end): entries}, those that have another time now; it is in memory.  And of what is sorted."""
        unwritten = joined([*self._fresh.parts, *self._in_flush()]) if self._amended else NO_ROWS
        for ledger_id, amended in self._amended.items():
            ledger, ids = self._partition.find(ledger_id), np.fromiter(amended, np.int64)
            written = ids[ids < self.end(ledger)]
            written = written[~np.isin(written, unwritten[2][unwritten[1] == ledger_id])]
            _take_away(found, ledger.deliver_at[written])
        for ledger in self._sorted_ledgers():
            for entry_id in self._amended.get(ledger.ledger_id, ()):
                if entry_id >= self.end(ledger):
                    start = int(ledger.deliver_at[entry_id]) // width_ms * width_ms
                    found[start, start + width_ms] = found.get((start, start + width_ms), 0) - 1

    def due(self, first_ms: int, end_ms: int, at_most: int) -> list[tuple[int, int, int]]:
        """(deliver-at in ms, ledger id, entry id) of what falls due in [first_ms, end_ms), in that order, not more than so many.

        Raises CorruptFile.
        """
        found = [self._in_memory()]
        for ledger in self._sorted_ledgers():
            first = self.end(ledger)
            first += int(np.searchsorted(ledger.deliver_at[first:ledger.entries], first_ms))
            entries = np.arange(first, min(ledger.entries, first + at_most + len(self._amended.get(ledger.ledger_id, ()))))
            found.append((ledger.deliver_at[entries], np.full(len(entries), ledger.ledger_id), entries))
        chosen = _between(joined([self._holding(joined(found)), self._moved_rows()]), first_ms, end_ms)
        for window in sorted(self._ahead()):
            enough = len(chosen[0]) >= at_most and int(np.partition(chosen[0], at_most - 1)[at_most - 1])
            if window[0] >= end_ms or (enough and window[0] > enough):
                break
            if window[0] + window[1] > first_ms or window[0] == FAR_MS:
                rows = self.files.peek(window)
                rows = self._with_times(rows) if window[0] == FAR_MS else rows
                chosen = joined([chosen, _between(self._holding(rows), first_ms, end_ms)])
        if len(chosen[0]) > at_most:
            first = np.argpartition(chosen[0], at_most)[:at_most]
            chosen = tuple(column[first] for column in chosen)
        return sorted(zip(*(column.tolist() for column in chosen), strict=True))

    def _in_memory(self) -> Rows:
        """What is in no file that has yet to be loaded, but for what was amended."""
        return joined([self._wheel.left, *self._fresh.parts, *self._in_flush()])

    def _in_flush(self) -> list[Rows]:
        return [] if self._flush is None else [self._flush.left()]

    def _moved_rows(self) -> Rows:
        """Of what was amended and waits, each once."""
        rows, found = joined(self._moved.parts), []
        for ledger_id in _distinct(rows[1]):
            if (ledger := self._partition.find(ledger_id)) is not None and ledger_id in self._bits:
                mine = rows[1] == ledger_id
                entries = np.unique(self._that_hold(ledger, rows[0][mine], rows[2][mine])[1])
                found.append((self._times(ledger, entries), np.full(len(entries), ledger_id), entries))
        return joined(found)

    def _holding(self, rows: Rows) -> Rows:
        """Those of the rows that hold, by ledger; none that was amended."""
        found = []
        for ledger_id in _distinct(rows[1]):
            if (ledger := self._partition.find(ledger_id)) is None:
                continue
            mine = rows[1] == ledger_id
            if self.limit is not None and self._is_sorted and ledger_id >= self.limit[0]:
                beyond = rows[2][mine] >= self.end(ledger)
                entries = self._not_amended(ledger_id, rows[2][mine][beyond])
                found.append((ledger.deliver_at[entries], np.full(len(entries), ledger_id), entries))
                mine = np.flatnonzero(mine)[~beyond]
            if ledger_id in self._bits:
                entries = self._not_amended(ledger_id, self._that_hold(ledger, rows[0][mine], rows[2][mine])[1])
                found.append((ledger.deliver_at[entries], np.full(len(entries), ledger_id), entries))
        return joined(found)

    def _not_amended(self, ledger_id: int, entries: NDArray[np.int64]) -> NDArray[np.int64]:
        amended = self._amended.get(ledger_id)
        return entries if amended is None else entries[~np.isin(entries, np.fromiter(amended, np.int64))]

    # -- on disk

    @property
    def is_between(self) -> bool:
        """Whether files have what they should: no flush is under way."""
        return self._flush is None

    def snapshot(self) -> "Snapshot":
        """What is to be saved, as it is now; when it `is_between`."""
        open_ledger = self._partition.open_ledger
        end = open_ledger.ledger_id, open_ledger.entries
        first = min(map(_first, self._fresh.parts), default=end)
        is_hinted = self.limit is not None and self._is_sorted and self.limit < first
        if self.limit is not None:
            first = min(first, self.limit)
        behind, last_ms = (end, self._last_ms) if is_hinted else (first, 0)
        kept = {window: file for window, file in self.files.files.items() if window not in self.files.done}
        files = np.array([(*window, file.size, file.rows) for window, file in kept.items()], format.WINDOW_FILE_ROW)
        rows, blobs = [], []
        for ledger_id, bits in self._bits.items():
            if len(used := np.flatnonzero(bits)):
                blobs.append(bits[used[0]:used[-1] + 1].tobytes())
                rows.append((ledger_id, int(used[0]), len(blobs[-1])))
        body = b"".join([files.tobytes(), np.array(rows, format.WAITING_ROW).tobytes(), *blobs])
        fields = {"magic": format.SCHEDULE_MAGIC, "partition_id": self._partition.partition_id, "files": len(files), "bitmaps": len(rows),
                  "ledger_id": first[0], "entry_id": first[1],
                  "sorted_ledger_id": behind[0], "sorted_entry_id": behind[1], "sorted_ms": last_ms}
        head = format.header(format.SCHEDULE_HEADER, **fields)
        self.is_dirty = False
        return Snapshot(self, format.header(format.SCHEDULE_HEADER, **fields, checksum=crc32c(body, crc32c(head))) + body,
                        set(self.files.done))

    def saved(self, snapshot: "Snapshot") -> None:
        """It is on disk: files that it does not need go."""
        for window in snapshot.done & self.files.done:
            self.files.remove(window)

    def open(self) -> None:
        """What was saved holds again, and what has come since is looked at."""
        path = self.folder / _SAVED
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            self._read_amended()
            return self.rebuild()
        try:
            self._read(path, raw)
        except CorruptFile as error:
            self._bits, self._set = {}, 0
            self._read_amended()
            self.rebuild(str(error))
        return None

    def _read(self, path: Path, raw: bytes) -> None:
        size = format.SCHEDULE_HEADER.itemsize
        head = np.frombuffer(raw, format.SCHEDULE_HEADER, 1).copy() if len(raw) >= size else None
        if head is None:
            raise CorruptFile(path, 0, "a schedule", f"{len(raw)} bytes")
        checksum = int(head["checksum"][0])
        head["checksum"] = 0
        if crc32c(memoryview(raw)[size:], crc32c(head.tobytes())) != checksum or head["magic"][0] != format.SCHEDULE_MAGIC:
            raise CorruptFile(path, 0, "a schedule that is whole", "another checksum")
        if head["version"][0] > format.VERSION:
            raise CorruptFile(path, 8, f"format version {format.VERSION} or older", int(head["version"][0]))
        head = head[0]
        files = np.frombuffer(raw, format.WINDOW_FILE_ROW, int(head["files"]), size)
        rows = np.frombuffer(raw, format.WAITING_ROW, int(head["bitmaps"]), size + files.nbytes)
        self.files.restore({(start, width): File(bytes_, count) for start, width, bytes_, count in files.tolist()})
        at = size + files.nbytes + rows.nbytes
        for ledger_id, first, count in rows.tolist():
            if self._partition.find(ledger_id) is not None:
                self._bits[ledger_id] = np.concatenate((np.zeros(first, np.uint8), np.frombuffer(raw, np.uint8, count, at)))
            at += count
        self._begin_behind((int(head["ledger_id"]), int(head["entry_id"])),
                           (int(head["sorted_ledger_id"]), int(head["sorted_entry_id"])), int(head["sorted_ms"]))

    def _begin_behind(self, known: "Position", behind: "Position", last_ms: int) -> None:
        """Up to the first position all is known, and from there on to the second all is in the order of time."""
        for ledger_id, bits in self._bits.items():
            if ledger_id >= known[0]:
                _clear_from(bits, known[1] if ledger_id == known[0] else 0)
        self._set = sum(int(np.bitwise_count(bits).sum(dtype=np.int64)) for bits in self._bits.values())
        self._read_amended()
        open_ledger = self._partition.open_ledger
        if known < (open_ledger.ledger_id, open_ledger.entries):
            self.limit = max(known, (self._partition.ledgers[0].ledger_id, 0))
            ledger = self._partition.find(known[0])
            if behind > known == self.limit and ledger is not None and known[1] < ledger.entries:
                self._is_sorted, self._head_ms, self._last_ms = True, int(ledger.deliver_at[known[1]]), last_ms
        for ledger_id, entries in self._amended.items():
            for entry_id, at_ms in entries.items():
                self._amend_again(ledger_id, entry_id, at_ms)
        for ledger in self._partition.ledgers_from(behind[0]) if self._is_sorted else ():
            for first in range(behind[1] if ledger.ledger_id == behind[0] else 0, ledger.entries, _STRETCH):
                self.published(ledger, first, ledger.deliver_at[first:min(ledger.entries, first + _STRETCH)], -NEVER_MS)

    def _amend_again(self, ledger_id: int, entry_id: int, at_ms: int) -> None:
        """Of an amendment that was read: what `amend` did in memory."""
        is_beyond = self.limit is not None and (ledger_id, entry_id) >= self.limit
        if is_beyond and self._is_sorted and at_ms == NEVER_MS:
            self._mark(ledger_id, entry_id, np.ones(1, bool))
        elif is_beyond:
            self._is_sorted = False
        elif at_ms < NEVER_MS and self.waits(ledger_id, range(entry_id, entry_id + 1)) is not None:
            self._moved.add(_row(at_ms, ledger_id, entry_id))

    def _read_amended(self) -> None:
        path = self.folder / _AMENDED
        raw = path.read_bytes() if path.exists() else b""
        for at in range(0, len(raw) - _AMENDMENT.size + 1, _AMENDMENT.size):
            ledger_id, entry_id, after_ms, checksum, _ = _AMENDMENT.unpack_from(raw, at)
            if crc32c(_AMENDMENT.pack(ledger_id, entry_id, after_ms, 0, 0)) != checksum:
                self._partition.damage.append(f"{path}: at byte {at}: what was amended there is damaged, and does not count")
            elif self._partition.find(ledger_id) is not None:
                self._apply_amended(ledger_id, entry_id, NEVER_MS if after_ms == _NEVER else after_ms)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Of a schedule, to be written by whoever has the time."""

    schedule: Schedule
    data: bytes
    done: set[Window]

    @property
    def path(self) -> Path:
        return self.schedule.folder / _SAVED


def _take_away(counts: dict[tuple[int, int], int], times: NDArray[np.int64]) -> None:
    """Of what is counted by (start, end) these times (n,), as far as they are counted there: of the narrowest that they are in."""
    times = np.minimum(times, FAR_MS)
    for width in sorted({end - start for start, end in counts}):
        times = np.sort(times)
        starts, first, many = np.unique(times // width * width, return_index=True, return_counts=True)
        there = [counts.get((start, start + width), 0) for start in starts.tolist()]
        taken = np.minimum(many, np.array(there, np.int64))
        for at in np.flatnonzero(taken).tolist():
            counts[int(starts[at]), int(starts[at]) + width] -= int(taken[at])
        times = times[np.arange(len(times)) - np.repeat(first, many) >= np.repeat(taken, many)]


def _row(at_ms: int, ledger_id: int, entry_id: int) -> Rows:
    return tuple(np.array([value], np.int64) for value in (at_ms, ledger_id, entry_id))


def _ascend(times: NDArray[np.int64]) -> bool:
    return len(times) == 1 or bool((times[1:] >= times[:-1]).all())


def _distinct(ids: NDArray[np.int64]) -> list[int]:
    """Ascending."""
    if not len(ids):
        return []
    return [int(ids[0])] if (ids == ids[0]).all() else np.unique(ids).tolist()


def _first(rows: Rows) -> "Position":
    """The lowest position of rows that are there."""
    ledger_id = int(rows[1].min())
    return ledger_id, int(rows[2][rows[1] == ledger_id].min())


def _between(rows: Rows, first_ms: int, end_ms: int) -> Rows:
    wanted = (rows[0] >= first_ms) & (rows[0] < end_ms)
    return tuple(column[wanted] for column in rows)


def _clear_before(bits: NDArray[np.uint8], end: int) -> None:
    bits[:end >> 3] = 0
    if end & 7 and end >> 3 < len(bits):
        bits[end >> 3] &= 0xFF << (end & 7) & 0xFF


def _clear_from(bits: NDArray[np.uint8], first: int) -> None:
    bits[(first + 7) >> 3:] = 0
    if first & 7 and first >> 3 < len(bits):
        bits[first >> 3] &= (1 << (first & 7)) - 1
