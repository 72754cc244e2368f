"""Counters of all processes: one block of shared memory, made by the supervisor before it forks.

Each process has a row, each counter a column. Only the process itself writes its row, so nothing is locked. A restarted
process continues the counts of its predecessor.

A histogram is a range of columns: for each of BOUNDS_S the number of values between the bound before and this one, then
the number of values above all bounds, then the sum.
"""
import bisect
import contextlib
import mmap
import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

NAMES: tuple[str, ...] = (
    # connections of clients, at workers
    "connections_opened", "connections_closed", "connections_refused", "commands", "protocol_errors", "sends_refused",
    "deliveries",
    # topics and their messages, at owners
    "partitions_open", "producers", "consumers", "entries_in", "messages_in", "bytes_in", "entries_out", "syncs",
    "passes", "entries_dropped", "deliveries_dropped", "entries_parked", "acks_of_damaged", "acks_undecrypted",
    "acks_ignored", "messages_filtered", "dead_letters",
    "damage_found", "entries_lost", "entries_expired", "entries_evicted", "entries_duplicate",
    "deduplication_names_evicted",
    # messages and bytes of all topics that count for a rate of the whole broker
    "limited_messages_in", "limited_bytes_in", "limited_messages_out", "limited_bytes_out",
    # the state of a process and of its disk
    "syncs_failed", "publishing_refused", "disk_free_bytes", "is_waiting", "pid", "serving_pid",
    "recovery_done", "recovery_of", "in_flight_bytes", "is_draining", "outstanding", "unacknowledged",
    # requests of clients
    "messages_out", "bytes_out", "lookups", "lookups_failed", "handshakes", "handshakes_refused", "lookups_waiting",
    "commands_waiting", "connections_throttled", "schemas_compatible", "schemas_incompatible", "schemas_refused",
    "commands_refused", "rights_seen", "layout_watches", "namespace_watches", "loads_failed", "system_bytes_in",
    # states and times that alarms look at
    "health", "memory_refuses", "started_1_ms", "started_2_ms", "started_3_ms", "starts", "damage_seen", "syncs_seen",
    "clock_offset_ms", "clock_looked_ms", "clock_jumps_forward", "clock_jumps_back", "clock_jumps_seen",
    "clock_jumped_ms", "clock_jump_ms",
    "web_sockets", "web_sockets_opened",
    # replication to other clusters
    "replication_lanes", "replication_lanes_connected", "replication_unanswered", "replication_links_down",
    "replicated_messages", "replicated_bytes", "replication_filtered", "replication_failures",
    "snapshots_pending", "snapshots_timed_out", "dead_letters_moved", "dead_letter_failures", "dead_letter_lanes",
    # deleted topics and cleared backlogs that are kept, and schedules, at owners
    "kept_topics", "kept_backlogs", "kept_bytes",
    "schedules", "schedules_waiting", "scheduled_published", "scheduled_missed",
    "tls_connections", "tls_handshakes", "tls_handshakes_failed", "tls_reloads", "tls_reloads_failed",
)
METHODS = "token", "basic", "tls", "other"        # of authentication
RESULTS = (                                       # of an attempt to authenticate
    "SUCCESS", "UNKNOWN_METHOD", "INVALID_AUTH_DATA", "INVALID_TOKEN", "EXPIRED_TOKEN", "INVALID_AUDIENCES",
    "INVALID_CERTS", "INVALID_CN", "INVALID_PRINCIPAL", "ROLE_CHANGED", "NO_ANSWER", "BUSY",
)
EXPIRING_MINUTES = 5, 10, 60, 240                 # bounds of the time for which a client's token is still valid
NAMES += tuple(f"{method}_{result}" for method in METHODS for result in RESULTS)
NAMES += ("expired_tokens", "expiring_minutes", "expiring_later", *(f"expiring_{bound}" for bound in EXPIRING_MINUTES))
HISTOGRAMS = ("publish", "sync", "dispatch", "acknowledge", "answer", "lookup", "load", "quota_check", "snapshot",
              "schema_get", "schema_put", "schema_delete")
BOUNDS_S = 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5
_BUCKETS = len(BOUNDS_S) + 1
_WIDTH = len(NAMES) + len(HISTOGRAMS) * (_BUCKETS + 1)


class Counters:
    """The counters of one process: its row of the shared table, which only this process writes."""

    def __init__(self, table: NDArray[np.int64], number: int):
        """Use row `number` of the shared table (processes, columns)."""
        self._table, self._row = table, table[number]
        self._cells = memoryview(self._row)      # numpy takes three times as long to add to one number
        self._columns = {name: number for number, name in enumerate(NAMES)}
        self._histograms = {name: len(NAMES) + number * (_BUCKETS + 1) for number, name in enumerate(HISTOGRAMS)}

    def __repr__(self) -> str:
        return f"<Counters pid={self._cells[self._columns['pid']]} starts={self._cells[self._columns['starts']]}>"

    def add(self, name: str, count: int = 1) -> None:
        """Add to a counter, which is one of NAMES."""
        self._cells[self._columns[name]] += count

    def set(self, name: str, value: int) -> None:
        """Set a counter, which is one of NAMES."""
        self._cells[self._columns[name]] = value

    def process_began(self, pid: int, *, is_wanted: bool) -> None:
        """Record the start of a process in its row, which keeps the times of the last three unplanned starts.

        Times are of CLOCK_BOOTTIME. is_wanted: its predecessor ended to make room for it, so the start does not count
        as a restart.
        """
        self.set("pid", pid)
        if is_wanted:
            return
        before = self.read()
        self.add("starts")
        self.set("started_3_ms", before["started_2_ms"])
        self.set("started_2_ms", before["started_1_ms"])
        self.set("started_1_ms", round(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000))

    def observe(self, name: str, seconds: float, count: int = 1) -> None:
        """Add `count` values of `seconds` to a histogram."""
        at, cells = self._histograms[name], self._cells
        cells[at + bisect.bisect_left(BOUNDS_S, seconds)] += count
        cells[at + _BUCKETS] += int(seconds * 1e6) * count

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the duration of the context to a histogram, unless it raises."""
        began = time.perf_counter()
        yield
        self.observe(name, time.perf_counter() - began)

    def total(self, name: str) -> int:
        """Return a counter's sum over all processes."""
        return int(self._table[:, self._columns[name]].sum())

    def read(self) -> dict[str, int]:
        """Return {name: value} of all counters of this process, without the histograms."""
        return dict(zip(NAMES, self._row[:len(NAMES)].tolist(), strict=True))

    def histogram(self, name: str) -> tuple[list[int], float]:
        """Return a histogram: (number of values in each bucket, sum of all values in seconds).

        The buckets are those between BOUNDS_S, and the one above all bounds.
        """
        at = self._histograms[name]
        return self._row[at:at + _BUCKETS].tolist(), int(self._row[at + _BUCKETS]) / 1e6


def make_counters(processes: int) -> list[Counters]:
    """Return the counters of `processes` processes, in memory that processes forked later share."""
    shared = mmap.mmap(-1, max(1, processes) * _WIDTH * 8)
    table = np.frombuffer(shared, np.int64).reshape(processes, _WIDTH)
    return [Counters(table, number) for number in range(processes)]


def authentication_counter(method: str, result: str) -> str:
    """Return the name of the counter for an authentication method and one of RESULTS.

    Methods that are not in METHODS count as "other".
    """
    return f"{method if method in METHODS else 'other'}_{result}"
