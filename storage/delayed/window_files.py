"""Files of a delayed index: one for each window of delivery times.

A file is appended to as entries come, and read once, when its window begins.

A window is `width` ms wide and starts at a multiple of its width. Farther windows are wider: soon as wide as an hour,
and from three months on by powers of two. So a month takes some 1,200 files, and no amount of messages takes ten
thousand. A wide window is split when it begins. A window that was made when windows were to be wider is split too.

A row in a file may be out of date or doubled. Readers compare rows with the bitmaps of the index.
"""
import contextlib
import heapq
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from geminga.proto.rows import Rows, as_words, struct_of
from geminga.storage import format
from geminga.storage.cursors.pending_acks import NEVER_MS
from geminga.storage.delayed.rows import NO_ROWS, DelayedRows
from geminga.storage.errors import CorruptFile

FAR_MS = 1 << 43                 # times from here on, in the year 2248, share one window; its rows do not say which
_AHEAD = 288                     # windows of a width below an hour, from now on, before windows get wider
_HOURS_AHEAD = 2_304             # windows of an hour and more, likewise: so three months are counted by the hour
_HOUR_MS = 3_600_000
_WIDTH_MAX = (1 << 32) - 1       # ms, because a row counts them in four bytes
_BLOCK = struct_of(format.WINDOW_BLOCK)
_ROW = format.WINDOW_ROW.itemsize
_SPAN_MAX = 1 << 16              # consecutive windows that two bytes can number: these sort five times as fast
_LOOKS = 32                      # files appended to between two looks at the clock

Window = tuple[int, int]         # start and width, ms; the window of the far future has width 0


@dataclass(slots=True)
class WindowFile:
    """The part of a window's file that counts."""

    size: int = 0      # bytes; bytes behind them were written before a crash
    rows: int = 0      # rows that are thought to be valid


def _wider(width_ms: int) -> int:
    """Return the next larger width; below an hour, one that divides an hour."""
    if width_ms < _HOUR_MS and _HOUR_MS % width_ms == 0:
        return 2 * width_ms if _HOUR_MS % (2 * width_ms) == 0 else _HOUR_MS
    return 2 * width_ms


def windows_of(times: NDArray[np.int64], width_ms: int, now_ms: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (starts, widths), (n,) ms each, of the windows for these times (n,).  width_ms: of near windows."""
    widths, starts, width = np.full(len(times), width_ms, np.int64), times // width_ms * width_ms, width_ms
    while (wider := _wider(width)) <= _WIDTH_MAX:
        wide = times // wider * wider
        far = np.flatnonzero(wide - now_ms >= (_AHEAD if width < _HOUR_MS else _HOURS_AHEAD) * width)
        if not len(far):
            break
        width = wider
        widths[far], starts[far] = width, wide[far]
    is_far = times >= FAR_MS
    starts[is_far], widths[is_far] = FAR_MS, 0
    return starts, widths


class WindowFiles:
    """The window files of one partition."""

    def __init__(self, folder: Path):
        self.folder, self._prefix = folder, f"{folder}{os.sep}"
        self.files: dict[Window, WindowFile] = {}
        self.loaded: set[Window] = set()       # windows whose rows are in memory
        self.done: set[Window] = set()         # windows without a valid row: removed after the next save
        self._ahead: list[Window] = []         # a heap of windows not in memory; some may be removed already
        self.created = self.read = self.unreadable = self.removed = 0      # files, since the partition was opened

    def __repr__(self) -> str:
        return f"<WindowFiles files={len(self.files)} loaded={len(self.loaded)} done={len(self.done)}>"

    def next(self) -> Window | None:
        """Return the next window that is not in memory, None if there is none."""
        while self._ahead and (self._ahead[0] not in self.files or self._ahead[0] in self.loaded):
            heapq.heappop(self._ahead)
        return self._ahead[0] if self._ahead else None

    def next_ms(self) -> int:
        """Return when the next window that is not in memory begins, NEVER_MS if there is none."""
        window = self.next()
        return NEVER_MS if window is None else window[0]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values())

    def ahead(self) -> set[Window]:
        """Return the windows of which nothing is in memory and some rows are valid."""
        return self.files.keys() - self.loaded - self.done

    # -- writing

    def append(self, window: Window, rows: Rows) -> None:
        """Append a block of WINDOW_ROWs (n,).  Raises OSError, and the file is unchanged then."""
        if not self.files:
            self.folder.mkdir(exist_ok=True)
        file = self.files.get(window) or WindowFile()
        data = rows.tobytes()
        block = _BLOCK.pack(format.WINDOW_MAGIC, len(rows), crc32c(data), 0) + data
        path = f"{self._prefix}{window[0]}-{window[1]}.window"      # a Path object would take longer than the rest
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if window not in self.files:      # only now: without room there is no file to be read later
            self.files[window] = file
            self.created += 1
            heapq.heappush(self._ahead, window)
        try:
            written = 0
            if os.fstat(fd).st_size != file.size:      # written before a crash, and not in the snapshot
                os.ftruncate(fd, file.size)
            try:
                while written < len(block):
                    written += os.pwrite(fd, block[written:], file.size + written)
            except OSError:
                os.ftruncate(fd, file.size)
                raise
        finally:
            os.close(fd)
        file.size += len(block)
        file.rows += len(rows)
        self.done.discard(window)

    # -- reading

    def load(self, window: Window) -> DelayedRows:
        """Return the rows of a window, and mark it as in memory.  Raises CorruptFile."""
        try:
            rows = self.peek(window)
        except CorruptFile:
            self.unreadable += 1
            raise
        self.read += 1
        self.loaded.add(window)
        return rows

    def peek(self, window: Window) -> DelayedRows:
        """Return the rows of a window.  In the window of the far future, all have the time FAR_MS.

        Raises CorruptFile.
        """
        start, _ = window
        blocks = list(self.blocks(window))
        if not blocks:
            return NO_ROWS
        rows = np.concatenate(blocks)
        return DelayedRows(start + rows["after_ms"].astype(np.int64), rows["ledger_id"].astype(np.int64),
                           rows["entry_id"].astype(np.int64))

    def blocks(self, window: Window) -> Iterator[Rows]:
        """Iterate over blocks of WINDOW_ROWs in the order in which they were appended.  Raises CorruptFile."""
        path, size, offset = self.path(window), self.files[window].size, 0
        try:
            with open(path, "rb") as file:
                raw = file.read(size)
        except FileNotFoundError as error:
            raise CorruptFile(path, 0, "a window of delayed messages", "no file") from error
        if len(raw) < size:
            raise CorruptFile(path, len(raw), f"{size} bytes", "the end of the file")
        while offset < len(raw):
            try:
                magic, count, checksum, _ = _BLOCK.unpack_from(raw, offset)
            except struct.error as error:
                raise CorruptFile(path, offset, "a whole block", f"{len(raw) - offset} bytes") from error
            begins, ends = offset + _BLOCK.size, offset + _BLOCK.size + count * _ROW
            if magic != format.WINDOW_MAGIC:
                raise CorruptFile(path, offset, "a block of a version that this program knows", f"{magic:#x}")
            if ends > len(raw) or crc32c(memoryview(raw)[begins:ends]) != checksum:
                raise CorruptFile(path, offset, "a block that is whole", "one that is cut, or damaged")
            yield np.frombuffer(raw, format.WINDOW_ROW, count, begins)
            offset = ends

    # -- at a start, and at an end

    def restore(self, known: dict[Window, WindowFile]) -> None:
        """Take over the files as of a snapshot. Later rows do not count, because a scan adds them again.

        Raises CorruptFile.
        """
        present = self._present()
        for window in known.keys() - present:
            raise CorruptFile(self.path(window), 0, f"{known[window].size} bytes", "no file")
        self.files = {window: known.get(window) or WindowFile() for window in present}
        self._ahead = sorted(self.files)

    def clear(self) -> None:
        """Treat all files as empty.  They are removed when their time has come."""
        self.files = {window: WindowFile() for window in self._present()}
        self.loaded, self.done, self._ahead = set(), set(), sorted(self.files)

    def _present(self) -> set[Window]:
        """Return the windows whose files are in the folder."""
        names = []
        with contextlib.suppress(FileNotFoundError):
            names = [name.removesuffix(".window").partition("-") for name in os.listdir(self.folder)
                     if name.endswith(".window")]
        return {(int(start), int(width)) for start, _, width in names}

    def remove(self, window: Window) -> None:
        """Remove a window's file, if it exists."""
        self.removed += self.files.pop(window, None) is not None
        self.loaded.discard(window)
        self.done.discard(window)
        self.path(window).unlink(missing_ok=True)

    def path(self, window: Window) -> Path:
        return self.folder / f"{window[0]}-{window[1]}.window"

    def check(self) -> None:
        """Assert that every window has a file, and that every window not in memory is going to begin."""
        assert self.loaded <= self.files.keys() and self.done <= self.files.keys(), self
        assert self.files.keys() - self.loaded <= set(self._ahead), self
        assert all(file.size >= 0 and file.rows >= 0 for file in self.files.values()), self


def _numbered(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.uint16] | NDArray[np.int64]]:
    """Return (possible values, ascending; index of each of the values (n,) among them)."""
    if len(values) and (last := int(values.max())) - (first := int(values.min())) < _SPAN_MAX:
        return np.arange(first, last + 1), (values - first).astype(np.uint16)
    return np.unique(values, return_inverse=True)


class Flush:
    """Writes rows into the files of their windows, some files at a time."""

    def __init__(self, files: WindowFiles, rows: DelayedRows, width_ms: int, now_ms: int):
        """Sort rows by window.  width_ms: of near windows."""
        self.rows = rows
        narrow, numbers = _numbered(rows.times // width_ms)
        starts, widths = windows_of(narrow * width_ms, width_ms, now_ms)
        is_next = np.ones(len(starts), bool)
        is_next[1:] = (starts[1:] != starts[:-1]) | (widths[1:] != widths[:-1])
        of_file = np.cumsum(is_next) - 1                                  # of each narrow window, the file's number
        file_numbers = of_file.astype(numbers.dtype)[numbers]             # of each row
        starts, widths = starts[is_next], widths[is_next]
        self._order = order = np.argsort(file_numbers, kind="stable")
        stored = np.empty(len(rows), format.WINDOW_ROW)
        stored["after_ms"] = rows.times - starts[file_numbers]
        stored["entry_id"], stored["ledger_id"] = rows.entry_ids, rows.ledger_ids
        if not widths.all():
            stored["after_ms"][widths[file_numbers] == 0] = 0
        self._stored = np.take(as_words(stored), order, axis=0).view(format.WINDOW_ROW).ravel()      # sorted by window
        counts = np.bincount(file_numbers, minlength=len(starts))
        used = np.flatnonzero(counts)
        self._edges: list[int] = [0, *np.cumsum(counts[used]).tolist()]      # of each window's stretch of rows
        self._windows: list[Window] = list(zip(starts[used].tolist(), widths[used].tolist(), strict=True))
        self._files, self._at = files, 0           # _at: windows that are written
        self._late: list[NDArray[np.int64]] = []   # numbers of rows whose windows were in memory already
        self._forgotten: list[int] = []            # deleted ledgers

    def __repr__(self) -> str:
        return f"<Flush rows={len(self.rows)} windows={self._at} of {len(self._windows)}>"

    def forget(self, ledger_id: int) -> None:
        """Leave out rows of a deleted ledger from now on."""
        self._forgotten.append(ledger_id)

    def go_on(self, until: float) -> bool:
        """Write until time.perf_counter() reaches `until`. Return whether everything is written.

        Raises OSError, and may be called again then.
        """
        while self._at < len(self._windows):
            window, first, end = self._windows[self._at], self._edges[self._at], self._edges[self._at + 1]
            rows = self._stored[first:end]
            if self._forgotten:
                rows = rows[~np.isin(rows["ledger_id"], self._forgotten)]
            if len(rows):
                self._files.append(window, rows)
            if window in self._files.loaded:
                self._late.append(self._order[first:end])
            self._at += 1
            if self._at % _LOOKS == 0 and time.perf_counter() >= until:
                break
        return self._at == len(self._windows)

    def left(self) -> DelayedRows:
        """Return rows not yet written, or written to a window that is in memory already."""
        return self.rows.pick(np.concatenate([self._order[self._edges[self._at]:], *self._late]))

    def late(self) -> DelayedRows:
        """Return rows whose windows were in memory already."""
        return self.rows.pick(np.concatenate(self._late)) if self._late else NO_ROWS
