"""The delayed index of a partition (PIP-26): from delivery time to position, on disk by windows of time.

An entry *waits* from its publication until the clock reaches its delivery time. A bit for each entry of a ledger says
whether it waits. Delivery times are in a file for each window of time (window_files.py). Windows that have begun are
in memory, as arrays in the order of time, so that a tick takes a slice. Shared and Key_Shared subscriptions skip
waiting entries, and deliver an entry that falls due if they have passed it. So neither memory nor a start depends on
how many entries wait, and all subscriptions share one index.

    published -> bits, fresh rows -> (thousands of them together) -> files -> (their window begins) -> wheel -> due: bits cleared

Entries whose times ascend in the order of publication, as with a fixed delay, need no rows: subscriptions read up to
`limit`, which moves on with the clock. When an entry is due before them, they are put into the index after all.

The ledgers' indexes have the delivery time of every entry. A snapshot says up to which position the delayed index is
complete, and a start scans the ledgers from there. Damaged files of the index cost the time to scan all ledgers.
"""
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from geminga.storage import format
from geminga.storage.cursors.pending_acks import NEVER_MS, Entries
from geminga.storage.delayed import snapshot_file
from geminga.storage.delayed.amendments import Amendments
from geminga.storage.delayed.snapshot_file import Saved
from geminga.storage.delayed.waiting_bitmaps import WaitingEntries
from geminga.storage.delayed.window_files import FAR_MS, NO_ROWS, Flush, Rows, Window, WindowFiles, joined, rows_of
from geminga.storage.disk.syscalls import give_back_memory
from geminga.storage.errors import CorruptFile
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.ledgers.managed_ledger import ManagedLedger

if TYPE_CHECKING:
    from geminga.storage.cursors.cursor import Cursor
    from geminga.storage.ledgers.position import Position

_STRETCH = 1 << 16               # entries put into the index in one go
_FEW = 64                        # of these it mostly shows already that times do not ascend
_FRESH_MIN = 1 << 16             # rows that are gathered before they go into files, ...
_FRESH_EACH = 320                # ... and for each file that they go to
_SAVED = "schedule"
Released = list[tuple[Ledger, NDArray[np.int64]]]      # entries ascending


@dataclass(slots=True)
class _Fresh:
    """Rows that are in no file yet, in the order of arrival."""

    parts: list[Rows] = field(default_factory=list)
    count: int = 0
    soonest_ms: int = NEVER_MS

    def add(self, rows: Rows) -> None:
        if len(rows[0]):
            self.parts.append(rows)
            self.count += len(rows[0])
            self.soonest_ms = min(self.soonest_ms, int(rows[0].min()))

    def take(self, until_ms: int) -> Rows:
        """Take the rows that are due."""
        if self.soonest_ms > until_ms:
            return NO_ROWS
        rows = joined(self.parts)
        is_due = rows[0] <= until_ms
        self.parts, self.count, self.soonest_ms = [], 0, NEVER_MS
        self.add(tuple(column[~is_due] for column in rows))
        return tuple(column[is_due] for column in rows)


class _Wheel:
    """Rows of windows that have begun, in the order of time; the rows of a tick are a slice."""

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


class DelayedIndex:
    """The delayed index of one partition.  It is made with the first delayed entry, and stays for good."""

    def __init__(self, partition: ManagedLedger, *, is_strict: bool, tick_ms: int = 1_000, window_ms: int = 300_000):
        """is_strict: nothing is due before its time, but up to a tick later; otherwise entries may be due a tick
        early.

        tick_ms: precision of delivery. window_ms: width of near windows.
        """
        self.tick_ms, self.window_ms = tick_ms, window_ms
        self._partition, self.is_strict = partition, is_strict
        self.folder = format.delayed_folder(partition.folder)
        self.files = WindowFiles(self.folder)
        self.limit: Position | None = None        # first position not indexed; all beyond waits if sorted, else is unscanned
        self.is_dirty = False                     # the saved state is out of date
        self._is_sorted = False
        self._last_ms = 0                         # of the sorted part: the last time ...
        self._head_ms = NEVER_MS                  # ... and the first
        self._bits = WaitingEntries()
        self._amended = Amendments(format.amended_path(partition.folder))
        self._wheel = _Wheel()
        self._fresh, self._moved = _Fresh(), _Fresh()  # rows of amended entries are in _moved
        self._flush: Flush | None = None
        self._flushing: _Fresh | None = None      # its rows, until they are in files
        self._released_ms = 0                     # when something last fell due

    def __repr__(self) -> str:
        return f"<DelayedIndex waiting={self.waiting} files={len(self.files.files)} limit={self.limit}>"

    # -- what waits

    def waits(self, ledger_id: int, entries: Entries) -> NDArray[np.bool_] | None:
        """Which of these ascending entries (n,) wait, by their bits; None if none does."""
        return self._bits.of(ledger_id, entries)

    def ready(self, ledger_id: int, entries: Entries) -> Entries:
        """Return the entries that do not wait."""
        waits = self.waits(ledger_id, entries)
        if waits is None or not waits.any():
            return entries
        return np.flatnonzero(~waits) + entries.start if isinstance(entries, range) else entries[~waits]

    def end(self, ledger: Ledger) -> int:
        """Return the ledger's first entry beyond the limit, or its number of entries."""
        if self.limit is None or ledger.ledger_id < self.limit[0]:
            return ledger.entries
        return min(self.limit[1], ledger.entries) if ledger.ledger_id == self.limit[0] else 0

    def waiting_in(self, ledger: Ledger) -> NDArray[np.int64]:
        """Return the ledger's entries with a bit, ascending."""
        return self._bits.all_of(ledger.ledger_id)

    @property
    def waiting(self) -> int:
        """Number of entries that wait."""
        return self._bits.count - self._amended.never + sum(self._beyond(ledger) for ledger in self._sorted_ledgers())

    def waiting_of(self, cursor: "Cursor") -> int:
        """Return the number of waiting entries that the cursor has not acknowledged."""
        count = 0
        for ledger in self._partition.ledgers_from(cursor.mark_delete[0]):
            count += self._bits.count_left(ledger.ledger_id, cursor)
            if self._is_limit_sorted and self.end(ledger) < ledger.entries:
                for first, end in cursor.unacknowledged(ledger, self.end(ledger), ledger.entries):
                    waits = self.waits(ledger.ledger_id, range(first, end))
                    count += end - first - (0 if waits is None else int(waits.sum()))
        return count

    @property
    def _is_limit_sorted(self) -> bool:
        """Whether there is a limit and everything beyond it waits, in the order of time."""
        return self.limit is not None and self._is_sorted

    def _sorted_ledgers(self) -> list[Ledger]:
        """Return the ledgers from the limit on if everything beyond it waits."""
        return self._partition.ledgers_from(self.limit[0]) if self._is_limit_sorted else []

    def _beyond(self, ledger: Ledger) -> int:
        """Return the number of the ledger's entries beyond the limit that have no bit."""
        first = self.end(ledger)
        waits = self.waits(ledger.ledger_id, range(first, ledger.entries))
        return ledger.entries - first - (0 if waits is None else int(waits.sum()))

    def _until(self, now_ms: int) -> int:
        """Return the time up to which entries are due now."""
        return now_ms if self.is_strict else now_ms + self.tick_ms

    # -- entries come

    def published(self, ledger: Ledger, first: int, times: NDArray[np.int64], now_ms: int) -> None:
        """Learn of new entries of the ledger, from `first` on, with these delivery times (n,), 0 for none."""
        until_ms = self._until(now_ms)
        if self.limit is not None:
            if not self._is_sorted:
                return                            # the scan comes to them
            if self._last_ms > until_ms:
                if times[0] >= self._last_ms and _ascend(times):
                    self._last_ms = int(times[-1])
                else:
                    self._is_sorted = False
                self.is_dirty = True
                return
            self.limit = None                     # all sorted entries are due
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
        """Set bits and gather rows for entries from `first` on.  is_later (n,): which of them wait."""
        self._bits.mark(ledger.ledger_id, first, is_later)
        self._gather(ledger, first, times, is_later)

    def _gather(self, ledger: Ledger, first: int, times: NDArray[np.int64], is_later: NDArray[np.bool_]) -> None:
        """Gather rows for those entries from `first` on that wait."""
        if is_later.all():
            self._fresh.add(rows_of(times.copy(), ledger.ledger_id, np.arange(first, first + len(times))))
        else:
            later = np.flatnonzero(is_later)
            self._fresh.add(rows_of(times[later], ledger.ledger_id, later + first))

    # -- time passes

    def next_ms(self) -> int:
        """Return when `advance` is to be called although nothing is published, NEVER_MS for never."""
        soonest = min(self._wheel_ms(), self.files.next_ms())
        if self._released_ms > self._partition.now_ms:      # the clock was put back
            self._released_ms = 0
        return max(soonest, self._released_ms + self.tick_ms) if soonest < NEVER_MS else NEVER_MS

    def next_due_ms(self) -> int:
        """Return when the next entry falls due, NEVER_MS if none waits.

        For a window that is not in memory, that is the beginning of the window.
        """
        return min(self._wheel_ms(), self.files.next_ms()) if self.waiting else NEVER_MS

    def _wheel_ms(self) -> int:
        """Return the earliest time of rows in memory."""
        head_ms = self._head_ms if self._is_limit_sorted else NEVER_MS
        flushing_ms = NEVER_MS if self._flushing is None else self._flushing.soonest_ms
        return min(self._wheel.soonest_ms, self._fresh.soonest_ms, self._moved.soonest_ms, flushing_ms, head_ms)

    def advance(self, now_ms: int) -> Released:
        """Clear the bits of entries that are due now, and return them."""
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
        if not self.waiting:                      # all remaining rows in files are out of date
            over |= self.files.files.keys() - self.files.done
        self.files.done |= over
        self.is_dirty = self.is_dirty or bool(released or over)
        return released

    def _load_begun(self, now_ms: int) -> None:
        """Load windows that have begun.  Raises CorruptFile."""
        while self.files.next_ms() <= self._until(now_ms):
            self._load(self.files.next(), now_ms)

    def _load(self, window: Window, now_ms: int) -> None:
        """Load a window into memory, or split a wide one into narrower files."""
        start, width = window
        rows = self.files.load(window)
        if start == FAR_MS:
            rows = self._with_times(rows)
        if width <= self.window_ms:
            self._wheel.add(rows)
            return
        split = Flush(self.files, rows, self.window_ms, now_ms)
        try:
            split.go_on(NEVER_MS)
        except OSError:                           # no room for narrower files: keep it in memory
            self._wheel.add(rows)
        else:
            self._wheel.add(split.late())
            self.files.done.add(window)

    def _with_times(self, rows: Rows) -> Rows:
        """Return the rows with the delivery times of their entries, without rows of deleted ledgers."""
        found = []
        for ledger_id in _distinct(rows[1]):
            if (ledger := self._partition.find(ledger_id)) is not None:
                entries = rows[2][rows[1] == ledger_id]
                found.append(rows_of(self.times_of(ledger, entries), ledger_id, entries))
        return joined(found)

    def _move_limit(self, until_ms: int) -> bool:
        """Move the limit over sorted entries that are due.  Return whether it moved."""
        if not self._is_limit_sorted or self._head_ms > until_ms:
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
        """Clear the bits of valid rows, and return their entries, each once.  Rows may be out of date or doubled."""
        times, ledger_ids, entry_ids = rows
        released: Released = []
        for ledger_id in _distinct(ledger_ids):
            ledger = self._partition.find(ledger_id)
            if ledger is not None and self._bits.knows(ledger_id):
                mine = ledger_ids == ledger_id
                _, entries = self._that_hold(ledger, times[mine], entry_ids[mine])
                if len(entries):
                    entries = _ascending(entries)
                    self._bits.clear(ledger_id, entries)
                    released.append((ledger, entries))
        return released

    def _that_hold(self, ledger: Ledger, times: NDArray[np.int64], entries: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
        """Return (times, entries) of rows that are still valid; an entry may occur twice."""
        is_there = entries < ledger.entries
        is_there[is_there] = self._bits.among(ledger.ledger_id, entries[is_there])
        times, entries = times[is_there], entries[is_there]
        holds = self.times_of(ledger, entries) == times
        return times[holds], entries[holds]

    def times_of(self, ledger: Ledger, entries: Entries) -> NDArray[np.int64]:
        """Return the delivery times of entries, amendments included; NEVER_MS for cancelled ones."""
        column = ledger.deliver_at
        times = column[entries.start:entries.stop] if isinstance(entries, range) else column[entries]
        if self._amended.knows(ledger.ledger_id):
            times = times.copy()
            self._amended.apply(ledger.ledger_id, np.asarray(entries), times)
        return times

    # -- work that is done in small pieces

    @property
    def is_complete(self) -> bool:
        """Whether the index knows of all entries whether they wait."""
        return self.limit is None or self._is_sorted

    @property
    def is_busy(self) -> bool:
        """Whether there is work for `work`."""
        return not self.is_complete or self._flush is not None or self._fresh.count >= self._full

    @property
    def _full(self) -> int:
        return max(_FRESH_MIN, _FRESH_EACH * len(self.files.files))

    def work(self, now_ms: int, until: float) -> Released:
        """Scan ledgers and write files until time.perf_counter() reaches `until`, or little longer.

        Return entries that are due and that a damaged index had kept waiting. Raises OSError.
        """
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
        """Begin to write fresh rows into files."""
        if self._flush is None and self._fresh.count:
            rows, soonest_ms = joined(self._fresh.parts), self._fresh.soonest_ms
            self._flushing, self._fresh = _Fresh([rows], len(rows[0]), soonest_ms), _Fresh()
            self._flush = Flush(self.files, rows, self.window_ms, now_ms)

    def flush(self, now_ms: int) -> None:
        """Write all fresh rows into files.  Raises OSError."""
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
        """Scan the next entries beyond an unsorted limit.  Return entries that wait no more."""
        ledger = self._partition.ledgers_from(self.limit[0])[0]
        first = self.end(ledger) if ledger.ledger_id == self.limit[0] else 0
        end, released = min(ledger.entries, first + _STRETCH), []
        if first < end:
            times, waited = self.times_of(ledger, range(first, end)), self.waits(ledger.ledger_id, range(first, end))
            is_later, written = times > until_ms, ledger.deliver_at[first:end]
            self._bits.mark(ledger.ledger_id, first, is_later)
            self._gather(ledger, first, written, written > until_ms)
            for entry_id, at_ms in self._amended.times.get(ledger.ledger_id, {}).items():
                if first <= entry_id < end and until_ms < at_ms < NEVER_MS:
                    self._moved.add(rows_of([at_ms], ledger.ledger_id, [entry_id]))
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
        """Begin the index anew, from a scan of all ledgers.  why: the damage to report."""
        if why:
            self._partition.damage.append(f"{why}; the schedule of {self._partition.name} is made anew")
        self.files.clear()
        self._wheel, self._fresh, self._moved, self._flush, self._flushing = _Wheel(), _Fresh(), _Fresh(), None, None
        self.limit, self._is_sorted, self.is_dirty = (self._partition.ledgers[0].ledger_id, 0), False, True

    def forget(self, ledger: Ledger) -> None:
        """Forget a deleted ledger.  All ledgers before it are deleted too."""
        ledger_id = ledger.ledger_id
        if self._bits.knows(ledger_id) or self._amended.knows(ledger_id):
            self._forget_rows(ledger)
        self._bits.forget(ledger_id)
        self._amended.forget(ledger_id)
        if self.limit is not None and self.limit[0] <= ledger_id:
            first = self._partition.ledgers[0]
            self.limit = first.ledger_id, 0
            if self._is_sorted:
                self.limit = self.limit if first.entries else None
                self._head_ms = int(first.deliver_at[0]) if first.entries else NEVER_MS
        self.is_dirty = True

    def _forget_rows(self, ledger: Ledger) -> None:
        """Drop rows of a deleted ledger from memory, and from the counts of files."""
        unwritten = joined([*self._fresh.parts, *self._in_flush()])
        is_written = ledger.deliver_at[:self.end(ledger)] > self._partition.now_ms
        is_written[unwritten[2][unwritten[1] == ledger.ledger_id]] = False
        counts = {(start, start + max(width, 1)): self.files.files[start, width].rows for start, width in self._ahead()}
        _take_away(counts, ledger.deliver_at[np.flatnonzero(is_written)])
        for start, width in self._ahead():
            self.files.files[start, width].rows = counts[start, start + max(width, 1)]
        if self._flush is not None:
            self._flush.forget(ledger.ledger_id)
        rows, self._fresh = joined(self._fresh.parts), _Fresh()
        self._fresh.add(tuple(column[rows[1] != ledger.ledger_id] for column in rows))

    def _ahead(self) -> set[Window]:
        """Return the windows of which nothing is in memory and some rows are valid."""
        return self.files.files.keys() - self.files.loaded - self.files.done

    # -- administration

    @property
    def windows(self) -> int:
        """Number of files."""
        return len(self.files.files)

    @property
    def index_bytes(self) -> int:
        """Bytes on disk."""
        return self.files.size

    @property
    def loaded(self) -> int:
        """Rows in memory."""
        return self._fresh.count + self._moved.count + len(self._wheel.left[0]) + (self._flushing.count if self._flushing else 0)

    @property
    def memory_bytes(self) -> int:
        return 24 * self.loaded + sum(map(len, self._bits.bitmaps.values()))

    def time_of(self, ledger_id: int, entry_id: int) -> int | None:
        """Return the entry's delivery time if it waits, else None."""
        ledger = self._partition.find(ledger_id)
        if ledger is None or not 0 <= entry_id < ledger.entries:
            return None
        at_ms = int(self.times_of(ledger, range(entry_id, entry_id + 1))[0])
        if at_ms == NEVER_MS:
            return None
        is_beyond = self.limit is not None and (ledger_id, entry_id) >= self.limit
        return at_ms if self._bits.is_set(ledger_id, entry_id) or (is_beyond and at_ms > self._until(self._partition.now_ms)) else None

    def amend(self, ledger_id: int, entry_id: int, deliver_at_ms: int | None) -> None:
        """Durably give a waiting entry another delivery time, or cancel it with None. Raises OSError."""
        after_ms = NEVER_MS if deliver_at_ms is None else max(1, min(deliver_at_ms, NEVER_MS - 1))
        self._amended.add(ledger_id, entry_id, after_ms)
        if after_ms < NEVER_MS:
            if self.limit is not None and (ledger_id, entry_id) >= self.limit:
                self._is_sorted = False                # the scan finds its new time
            else:
                self._moved.add(rows_of([after_ms], ledger_id, [entry_id]))
        elif self.limit is None or self._is_sorted or (ledger_id, entry_id) < self.limit:
            self._bits.mark(ledger_id, entry_id, np.ones(1, bool))

    def counts(self, first_ms: int, end_ms: int) -> list[tuple[int, int, int]]:
        """Return (start, end in ms, entries) of each window that has entries and reaches into [first_ms, end_ms),
        ascending.

        Entries acknowledged before their time are counted too. Raises CorruptFile.
        """
        self._load_begun(self._partition.now_ms)
        found = {(start, start + max(width, 1)): self.files.files[start, width].rows for start, width in self._ahead()
                 if start < end_ms and start + max(width, 1) > first_ms}
        width_ms = self.window_ms
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
        """Take amended entries off the counts, because their new times are counted from memory.

        found: {(start, end): entries} of files; amended entries of the sorted part are taken off too.
        """
        unwritten = joined([*self._fresh.parts, *self._in_flush()]) if self._amended else NO_ROWS
        for ledger_id in self._amended.times:
            ledger, ids = self._partition.find(ledger_id), self._amended.entries(ledger_id)
            written = ids[ids < self.end(ledger)]
            written = written[~np.isin(written, unwritten[2][unwritten[1] == ledger_id])]
            _take_away(found, ledger.deliver_at[written])
        for ledger in self._sorted_ledgers():
            for entry_id in self._amended.times.get(ledger.ledger_id, ()):
                if entry_id >= self.end(ledger):
                    start = int(ledger.deliver_at[entry_id]) // width_ms * width_ms
                    found[start, start + width_ms] = found.get((start, start + width_ms), 0) - 1

    def due(self, first_ms: int, end_ms: int, at_most: int) -> list[tuple[int, int, int]]:
        """Return (delivery time in ms, ledger id, entry id) of entries due in [first_ms, end_ms), in that order, at
        most `at_most`.

        Raises CorruptFile.
        """
        found = [self._in_memory()]
        for ledger in self._sorted_ledgers():
            first = self.end(ledger)
            first += int(np.searchsorted(ledger.deliver_at[first:ledger.entries], first_ms))
            entries = np.arange(first, min(ledger.entries, first + at_most + len(self._amended.entries(ledger.ledger_id))))
            found.append(rows_of(ledger.deliver_at[entries], ledger.ledger_id, entries))
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
        """Return rows not yet written, or written to a window already loaded; without amended rows."""
        return joined([self._wheel.left, *self._fresh.parts, *self._in_flush()])

    def _in_flush(self) -> list[Rows]:
        return [] if self._flush is None else [self._flush.left()]

    def _moved_rows(self) -> Rows:
        """Return rows of amended entries that wait, each once."""
        rows, found = joined(self._moved.parts), []
        for ledger_id in _distinct(rows[1]):
            if (ledger := self._partition.find(ledger_id)) is not None and self._bits.knows(ledger_id):
                mine = rows[1] == ledger_id
                entries = np.unique(self._that_hold(ledger, rows[0][mine], rows[2][mine])[1])
                found.append(rows_of(self.times_of(ledger, entries), ledger_id, entries))
        return joined(found)

    def _holding(self, rows: Rows) -> Rows:
        """Return the valid rows, by ledger, without amended entries."""
        found = []
        for ledger_id in _distinct(rows[1]):
            if (ledger := self._partition.find(ledger_id)) is None:
                continue
            mine = rows[1] == ledger_id
            if self._is_limit_sorted and ledger_id >= self.limit[0]:
                beyond = rows[2][mine] >= self.end(ledger)
                entries = self._not_amended(ledger_id, rows[2][mine][beyond])
                found.append(rows_of(ledger.deliver_at[entries], ledger_id, entries))
                mine = np.flatnonzero(mine)[~beyond]
            if self._bits.knows(ledger_id):
                entries = self._not_amended(ledger_id, self._that_hold(ledger, rows[0][mine], rows[2][mine])[1])
                found.append(rows_of(ledger.deliver_at[entries], ledger_id, entries))
        return joined(found)

    def _not_amended(self, ledger_id: int, entries: NDArray[np.int64]) -> NDArray[np.int64]:
        if not self._amended.knows(ledger_id):
            return entries
        return entries[~np.isin(entries, self._amended.entries(ledger_id))]

    # -- on disk

    @property
    def is_between(self) -> bool:
        """Whether no flush is in progress, so that files are complete."""
        return self._flush is None

    @property
    def amended_size(self) -> int:
        """Bytes of the amendments' file.  Raises OSError."""
        return self._amended.size

    def snapshot(self) -> "Snapshot":
        """Return the part of the index to save, as it is now.  Only while `is_between`."""
        open_ledger = self._partition.open_ledger
        end = open_ledger.ledger_id, open_ledger.entries
        first = min(map(_first, self._fresh.parts), default=end)
        is_hinted = self._is_limit_sorted and self.limit < first
        if self.limit is not None:
            first = min(first, self.limit)
        behind, last_ms = (end, self._last_ms) if is_hinted else (first, 0)
        kept = {window: file for window, file in self.files.files.items() if window not in self.files.done}
        self.is_dirty = False
        saved = Saved(kept, self._bits.bitmaps, first, behind, last_ms)
        return Snapshot(self, snapshot_file.encode(self._partition.partition_id, saved), set(self.files.done))

    def saved(self, snapshot: "Snapshot") -> None:
        """Remove files that the saved snapshot does not need."""
        for window in snapshot.done & self.files.done:
            self.files.remove(window)

    def open(self) -> None:
        """Read the saved index, and begin to scan the entries published since."""
        self._partition.damage += self._amended.read()
        for ledger_id in [*self._amended.times]:
            if self._partition.find(ledger_id) is None:
                self._amended.forget(ledger_id)
        try:
            saved = snapshot_file.read(self.folder / _SAVED)
            self.files.restore(saved.files)
        except FileNotFoundError:
            self.rebuild()
        except CorruptFile as error:
            self.rebuild(str(error))
        else:
            self._restore(saved)

    def _restore(self, saved: Saved) -> None:
        for ledger_id, bits in saved.bitmaps.items():
            if self._partition.find(ledger_id) is not None:
                self._bits.load(ledger_id, bits)
        known, open_ledger = saved.known, self._partition.open_ledger
        self._bits.clear_from(*known)
        if known < (open_ledger.ledger_id, open_ledger.entries):
            self.limit = max(known, (self._partition.ledgers[0].ledger_id, 0))
            ledger = self._partition.find(known[0])
            if saved.behind > known == self.limit and ledger is not None and known[1] < ledger.entries:
                self._is_sorted, self._head_ms, self._last_ms = True, int(ledger.deliver_at[known[1]]), saved.last_ms
        for amended in self._amended:
            self._amend_again(*amended)
        for ledger in self._partition.ledgers_from(saved.behind[0]) if self._is_sorted else ():
            for first in range(saved.behind[1] if ledger.ledger_id == saved.behind[0] else 0, ledger.entries, _STRETCH):
                self.published(ledger, first, ledger.deliver_at[first:min(ledger.entries, first + _STRETCH)], -NEVER_MS)

    def _amend_again(self, ledger_id: int, entry_id: int, at_ms: int) -> None:
        """Do in memory what `amend` did, for an amendment read from the file."""
        is_beyond = self.limit is not None and (ledger_id, entry_id) >= self.limit
        if is_beyond and self._is_sorted and at_ms == NEVER_MS:
            self._bits.mark(ledger_id, entry_id, np.ones(1, bool))
        elif is_beyond:
            self._is_sorted = False
        elif at_ms < NEVER_MS and self._bits.is_set(ledger_id, entry_id):
            self._moved.add(rows_of([at_ms], ledger_id, [entry_id]))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A saved state of an index, to be written by any thread."""

    schedule: DelayedIndex
    data: bytes
    done: set[Window]

    @property
    def path(self) -> Path:
        return self.schedule.folder / _SAVED


def _take_away(counts: dict[tuple[int, int], int], times: NDArray[np.int64]) -> None:
    """Take times (n,) off counts by (start, end).

    A time is taken off the narrowest window that contains it and has a count left.
    """
    times = np.minimum(times, FAR_MS)
    for width in sorted({end - start for start, end in counts}):
        times = np.sort(times)
        starts, first, many = np.unique(times // width * width, return_index=True, return_counts=True)
        there = [counts.get((start, start + width), 0) for start in starts.tolist()]
        taken = np.minimum(many, np.array(there, np.int64))
        for at in np.flatnonzero(taken).tolist():
            counts[int(starts[at]), int(starts[at]) + width] -= int(taken[at])
        times = times[np.arange(len(times)) - np.repeat(first, many) >= np.repeat(taken, many)]


def _ascend(times: NDArray[np.int64]) -> bool:
    return bool((times[1:_FEW] >= times[:_FEW][:-1]).all()) and bool((times[1:] >= times[:-1]).all())


def _ascending(entries: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return entries of one ledger, sorted, each once. Marking a bit for each is ten times faster than sorting a
    million.
    """
    if (entries[1:] > entries[:-1]).all():
        return entries
    first = int(entries.min())
    marks = np.zeros(int(entries.max()) + 1 - first, bool)
    marks[entries - first] = True
    return np.flatnonzero(marks) + first


def _distinct(ids: NDArray[np.int64]) -> list[int]:
    """Return the distinct values, ascending."""
    if not len(ids):
        return []
    return [int(ids[0])] if (ids == ids[0]).all() else np.unique(ids).tolist()


def _first(rows: Rows) -> "Position":
    """Return the lowest position of these rows."""
    ledger_id = int(rows[1].min())
    return ledger_id, int(rows[2][rows[1] == ledger_id].min())


def _between(rows: Rows, first_ms: int, end_ms: int) -> Rows:
    wanted = (rows[0] >= first_ms) & (rows[0] < end_ms)
    return tuple(column[wanted] for column in rows)
