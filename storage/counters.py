"""Numbers that every process shows: one block of shared memory, made by the supervisor before it forks.

A row per process, a column per counter; only the process itself writes its row, so nothing is locked.  A restarted process
goes on counting where the one before it ended, which is what a counter is supposed to do.
"""
import mmap

import numpy as np

NAMES = (
    "connections_opened", "connections_closed", "commands", "protocol_errors", "sends_refused", "deliveries", "delivered_bytes",
    "partitions_open", "producers", "consumers", "entries_in", "messages_in", "bytes_in", "entries_out", "syncs", "passes",
    "entries_dropped", "deliveries_dropped", "entries_parked", "acks_of_damaged", "acks_ignored", "damage_found", "entries_lost",
    "entries_expired", "entries_evicted",
    "entries_duplicate", "deduplication_names_evicted",
    "syncs_failed", "publishing_refused", "disk_free_bytes", "is_waiting",
)


class Counters:
    """One process's row."""

    def __init__(self, row: np.ndarray):
        self._row = row
        self._columns = {name: number for number, name in enumerate(NAMES)}

    def add(self, name: str, count: int = 1) -> None:
        self._row[self._columns[name]] += count

    def set(self, name: str, value: int) -> None:
        self._row[self._columns[name]] = value

    def read(self) -> dict[str, int]:
        return dict(zip(NAMES, self._row.tolist(), strict=True))


def make_counters(processes: int) -> list[Counters]:
    """A row for each of so many processes, shared by all that are forked later."""
    shared = mmap.mmap(-1, max(1, processes) * len(NAMES) * 8)
    table = np.frombuffer(shared, np.int64).reshape(processes, len(NAMES))
    return [Counters(row) for row in table]
