"""Numbers of waiting entries by window of delivery times."""
import numpy as np
from numpy.typing import NDArray

from geminga.storage.delayed.window_files import FAR_MS, Window

Bounds = tuple[int, int]       # (start, end) of a window in ms since the epoch; the end is not part of the window


def bounds_of(window: Window) -> Bounds:
    """Return the bounds of a window.  The window of the far future counts as one millisecond."""
    start, width = window
    return start, start + max(width, 1)


class WindowCounts:
    """Counts entries by window.  Windows of different widths may overlap, and an entry is in one of them."""

    def __init__(self, entries: dict[Bounds, int] | None = None):
        self.entries = entries if entries is not None else {}

    def __repr__(self) -> str:
        return f"<WindowCounts windows={len(self.entries)} entries={sum(self.entries.values())}>"

    def add(self, bounds: Bounds, entries: int) -> None:
        """Add a number of entries, which may be negative, to a window."""
        self.entries[bounds] = self.entries.get(bounds, 0) + entries

    def add_times(self, times: NDArray[np.int64], width_ms: int) -> None:
        """Add an entry for each of these times (n,) to its window of that width."""
        starts, counts = np.unique(times // width_ms * width_ms, return_counts=True)
        for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
            self.add((start, start + width_ms), count)

    def take_off(self, times: NDArray[np.int64]) -> None:
        """Take an entry for each of these times (n,) off the narrowest window that contains it and has entries left."""
        times = np.minimum(times, FAR_MS)
        for width in sorted({end - start for start, end in self.entries}):
            times = np.sort(times)
            starts, first, many = np.unique(times // width * width, return_index=True, return_counts=True)
            available = [self.entries.get((start, start + width), 0) for start in starts.tolist()]
            taken = np.minimum(many, np.array(available, np.int64))
            for index in np.flatnonzero(taken).tolist():
                self.entries[int(starts[index]), int(starts[index]) + width] -= int(taken[index])
            times = times[np.arange(len(times)) - np.repeat(first, many) >= np.repeat(taken, many)]

    def between(self, first_ms: int, end_ms: int) -> list[tuple[int, int, int]]:
        """Return (start, end, entries) of windows that have entries and reach into [first_ms, end_ms), ascending."""
        return sorted((start, end, count) for (start, end), count in self.entries.items()
                      if count > 0 and start < end_ms and end > first_ms)
