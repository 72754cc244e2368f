"""Reports on a delayed index for administration: how many entries wait in which window, and which of them are due next.

Nothing here changes what waits. The index must be complete: entries beyond an unsorted limit are not seen.
"""
import numpy as np
from numpy.typing import NDArray

from geminga.storage.cursors.pending_acks import NEVER_MS
from geminga.storage.delayed.index import DelayedIndex
from geminga.storage.delayed.rows import DelayedRows, joined, rows_of
from geminga.storage.delayed.window_counts import WindowCounts
from geminga.storage.delayed.window_files import FAR_MS
from geminga.storage.ledgers.ledger import Ledger


def count_by_window(index: DelayedIndex, first_ms: int, end_ms: int) -> list[tuple[int, int, int]]:
    """Return (start, end in ms, entries) of each window that has entries and reaches into [first_ms, end_ms),
    ascending.

    Entries acknowledged before their time are counted too. Raises CorruptFile.
    """
    index.load_begun(index.partition.now_ms)
    counts = index.store.count_files()
    counts.take_off(_amended_in_files(index))      # their rows in files have the old times
    in_memory = joined([_valid_rows(index, index.store.in_memory()), _amended_rows(index)])
    counts.add_times(in_memory.times, index.window_ms)
    for ledger in index.sorted_ledgers():
        _add_sorted(counts, index, ledger, first_ms, end_ms)
    return counts.between(first_ms, end_ms)


def _amended_in_files(index: DelayedIndex) -> NDArray[np.int64]:
    """Return the published delivery times (n,) of amended entries that have a row in a file ahead."""
    times = [np.zeros(0, np.int64)]
    if not index.amended:
        return times[0]
    unwritten = index.store.unwritten()
    for ledger_id in index.amended.times:
        if (ledger := index.partition.find(ledger_id)) is not None:
            entries = index.amended.entries(ledger_id)
            entries = entries[entries < index.end(ledger)]
            is_unwritten = np.isin(entries, unwritten.entry_ids[unwritten.ledger_ids == ledger_id])
            times.append(ledger.deliver_at[entries[~is_unwritten]])
    return np.concatenate(times)


def _add_sorted(counts: WindowCounts, index: DelayedIndex, ledger: Ledger, first_ms: int, end_ms: int) -> None:
    """Count a ledger's entries beyond the sorted limit, in windows that reach into [first_ms, end_ms)."""
    times, width_ms = ledger.deliver_at[:ledger.entries], index.window_ms
    at = index.end(ledger)
    at += int(np.searchsorted(times[at:], first_ms // width_ms * width_ms))
    while at < ledger.entries and times[at] < end_ms:
        start = int(times[at]) // width_ms * width_ms
        behind = at + int(np.searchsorted(times[at:], start + width_ms))
        counts.add((start, start + width_ms), behind - at)
        at = behind
    for entry_id in index.amended.times.get(ledger.ledger_id, ()):
        if entry_id >= index.end(ledger):          # cancelled: another time would have ended the order
            start = int(times[entry_id]) // width_ms * width_ms
            counts.add((start, start + width_ms), -1)


def next_due(index: DelayedIndex, first_ms: int, end_ms: int, at_most: int) -> list[tuple[int, int, int]]:
    """Return (delivery time in ms, ledger id, entry id) of entries due in [first_ms, end_ms), in that order, at most
    `at_most`.

    Raises CorruptFile.
    """
    rows = [index.store.in_memory()]
    rows += [_sorted_rows(index, ledger, first_ms, at_most) for ledger in index.sorted_ledgers()]
    chosen = joined([_valid_rows(index, joined(rows)), _amended_rows(index)]).between(first_ms, end_ms)
    for window in sorted(index.store.files.ahead()):
        start, width = window
        if start >= end_ms or start > _time_of_nth(chosen, at_most):
            break
        if start + width > first_ms or start == FAR_MS:
            chosen = joined([chosen, _valid_rows(index, index.store.peek(window)).between(first_ms, end_ms)])
    if len(chosen) > at_most:
        chosen = chosen.pick(np.argpartition(chosen.times, at_most)[:at_most])
    return sorted(zip(chosen.times.tolist(), chosen.ledger_ids.tolist(), chosen.entry_ids.tolist(), strict=True))


def _sorted_rows(index: DelayedIndex, ledger: Ledger, first_ms: int, at_most: int) -> DelayedRows:
    """Return rows of the ledger's first entries beyond the sorted limit, from first_ms on, at least `at_most` that
    are not amended.
    """
    first = index.end(ledger)
    first += int(np.searchsorted(ledger.deliver_at[first:ledger.entries], first_ms))
    end = min(ledger.entries, first + at_most + len(index.amended.entries(ledger.ledger_id)))
    entries = np.arange(first, end)
    return rows_of(ledger.deliver_at[entries], ledger.ledger_id, entries)


def _time_of_nth(rows: DelayedRows, n: int) -> int:
    """Return the n-th lowest time; NEVER_MS if there are fewer rows."""
    return int(np.partition(rows.times, n - 1)[n - 1]) if len(rows) >= n else NEVER_MS


def _amended_rows(index: DelayedIndex) -> DelayedRows:
    """Return rows of amended entries that wait, each once."""
    rows, parts = joined(index.store.amended.parts), []
    for ledger_id in rows.ledgers():
        if (ledger := index.partition.find(ledger_id)) is not None and index.bits.knows(ledger_id):
            entries = np.unique(index.valid_entries(ledger, rows.pick(rows.ledger_ids == ledger_id)))
            parts.append(rows_of(index.times_of(ledger, entries), ledger_id, entries))
    return joined(parts)


def _valid_rows(index: DelayedIndex, rows: DelayedRows) -> DelayedRows:
    """Return the rows of entries that wait, by ledger, without amended entries."""
    parts = []
    for ledger_id in rows.ledgers():
        if (ledger := index.partition.find(ledger_id)) is None:
            continue
        of_ledger = rows.pick(rows.ledger_ids == ledger_id)
        limit = index.sorted_from
        if limit is not None and ledger_id >= limit[0]:
            is_beyond = of_ledger.entry_ids >= index.end(ledger)
            parts.append(_not_amended(index, ledger, of_ledger.entry_ids[is_beyond]))
            of_ledger = of_ledger.pick(~is_beyond)
        if index.bits.knows(ledger_id):
            parts.append(_not_amended(index, ledger, index.valid_entries(ledger, of_ledger)))
    return joined(parts)


def _not_amended(index: DelayedIndex, ledger: Ledger, entries: NDArray[np.int64]) -> DelayedRows:
    """Return rows of those entries (n,) of a ledger that no operator has amended."""
    if index.amended.knows(ledger.ledger_id):
        entries = entries[~np.isin(entries, index.amended.entries(ledger.ledger_id))]
    return rows_of(ledger.deliver_at[entries], ledger.ledger_id, entries)
