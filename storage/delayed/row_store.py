"""The rows of a delayed index, from the publication of entries until they are due: in memory, in files, in memory.

    gather -> fresh -> (thousands of them: a flush) -> files -> (their window begins) -> loaded -> loaded.take
    gather_amended -> amended -------------------------------------------------------------------> take_gathered

The store knows times and positions, but neither ledgers nor bitmaps: rows that it gives back may be out of date.
"""
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from geminga.storage.cursors.pending_acks import NEVER_MS
from geminga.storage.delayed.rows import DelayedRows, GatheredRows, SortedRows, joined
from geminga.storage.delayed.window_counts import WindowCounts, bounds_of
from geminga.storage.delayed.window_files import FAR_MS, Flush, Window, WindowFiles
from geminga.storage.disk.syscalls import give_back_memory

_FRESH_MIN = 1 << 16      # rows that are gathered before a flush: this many, ...
_FRESH_EACH = 320         # ... and this many for each file, so that appends are not too short


class RowStore:
    """Rows of one delayed index."""

    def __init__(self, folder: Path, with_times: Callable[[DelayedRows], DelayedRows]):
        """with_times: gives rows of the far future, which files store without times, the times of their entries."""
        self.files = WindowFiles(folder)
        self._with_times = with_times
        self._start_empty()

    def _start_empty(self) -> None:
        self.loaded = SortedRows()            # of windows that have begun
        self.fresh = GatheredRows()           # in no file yet
        self.amended = GatheredRows()         # of amended entries, which are never written into files
        self.flush: Flush | None = None       # in progress
        self._flushing = GatheredRows()       # rows of the flush that were not due yet

    def __repr__(self) -> str:
        return f"<RowStore loaded={len(self.loaded)} fresh={self.fresh.count} amended={self.amended.count} " \
               f"flush={self.flush} files={len(self.files.files)}>"

    @property
    def count(self) -> int:
        """Rows in memory."""
        return self.fresh.count + self.amended.count + len(self.loaded) + self._flushing.count

    def soonest_ms(self) -> int:
        """Return the earliest time of rows in memory, NEVER_MS without rows."""
        return min(self.loaded.soonest_ms, self.fresh.soonest_ms, self.amended.soonest_ms, self._flushing.soonest_ms)

    def clear(self) -> None:
        """Forget all rows, those in files too."""
        self.files.clear()
        self._start_empty()

    # -- rows that fall due

    def take_gathered(self, until_ms: int) -> list[DelayedRows]:
        """Take out due rows that were in no file, or are on their way into files."""
        return [gathered.take(until_ms) for gathered in (self.fresh, self.amended, self._flushing)]

    def load_begun(self, until_ms: int, width_ms: int, now_ms: int) -> None:
        """Load windows that begin up to until_ms into memory.  Raises CorruptFile.

        width_ms: of near windows; wider ones are split.
        """
        while (window := self.files.next()) is not None and window[0] <= until_ms:
            self._load(window, width_ms, now_ms)

    def _load(self, window: Window, width_ms: int, now_ms: int) -> None:
        """Load a window into memory, or split a wide one into narrower files."""
        start, width = window
        rows = self.files.load(window)
        if start == FAR_MS:
            rows = self._with_times(rows)
        if width <= width_ms:
            self.loaded.add(rows)
            return
        split = Flush(self.files, rows, width_ms, now_ms)
        try:
            split.go_on(NEVER_MS)
        except OSError:                           # no room for narrower files: keep it in memory
            self.loaded.add(rows)
        else:
            self.loaded.add(split.late())
            self.files.done.add(window)

    def retire_windows(self, until_ms: int, *, is_all: bool) -> bool:
        """Mark loaded windows that ended by until_ms as done, or all windows.  Return whether there was any.

        is_all: no entry waits any more, so all rows in files are out of date.
        """
        files = self.files
        over = {window for window in files.loaded - files.done if 0 < window[1] <= until_ms - window[0]}
        if is_all:
            over |= files.files.keys() - files.done
        files.done |= over
        return bool(over)

    # -- from memory into files

    @property
    def is_full(self) -> bool:
        """Whether so many fresh rows are in memory that they are to be flushed."""
        return self.fresh.count >= max(_FRESH_MIN, _FRESH_EACH * len(self.files.files))

    def begin_flush(self, width_ms: int, now_ms: int) -> None:
        """Begin to write fresh rows into files, unless a flush is in progress.  width_ms: of near windows."""
        if self.flush is None and self.fresh.count:
            rows = joined(self.fresh.parts)
            self._flushing, self.fresh = GatheredRows([rows], len(rows), self.fresh.soonest_ms), GatheredRows()
            self.flush = Flush(self.files, rows, width_ms, now_ms)

    def go_on_flushing(self, until: float) -> bool:
        """Write files until time.perf_counter() reaches `until`.  Return whether the flush in progress is finished.

        Raises OSError, and the rows stay in memory then.
        """
        assert self.flush is not None, self
        if not self.flush.go_on(until):
            return False
        self.loaded.add(self.flush.late())
        self.flush, self._flushing = None, GatheredRows()
        give_back_memory()
        return True

    # -- looking at rows

    def unwritten(self) -> DelayedRows:
        """Return rows that are in no file, or only in files of windows that were loaded before."""
        return joined([*self.fresh.parts, *([] if self.flush is None else [self.flush.left()])])

    def in_memory(self) -> DelayedRows:
        """Return the rows that are not in a file which is to be loaded later, but no rows of amended entries."""
        return joined([self.loaded.left, self.unwritten()])

    def peek(self, window: Window) -> DelayedRows:
        """Return the rows of a window that is not loaded.  Raises CorruptFile."""
        rows = self.files.peek(window)
        return self._with_times(rows) if window[0] == FAR_MS else rows

    def count_files(self) -> WindowCounts:
        """Count the entries that are in files which are to be loaded later."""
        return WindowCounts({bounds_of(window): self.files.files[window].rows for window in self.files.ahead()})

    def forget(self, ledger_id: int, written: NDArray[np.int64]) -> None:
        """Drop the rows of a deleted ledger from memory, and from the counts of files.

        written: delivery times (n,) of its waiting entries that have a row in a file.
        """
        counts = self.count_files()
        counts.take_off(written)
        for window in self.files.ahead():
            self.files.files[window].rows = counts.entries[bounds_of(window)]
        if self.flush is not None:
            self.flush.forget(ledger_id)
        self.fresh.forget(ledger_id)

    def check(self) -> None:
        """Assert that rows in memory are in order and are counted."""
        for rows in (self.loaded, self.fresh, self.amended, self._flushing):
            rows.check()
        assert self.flush is not None or not self._flushing.count, self
        self.files.check()
