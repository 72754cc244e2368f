"""Bounds on the number of clients' connections, over all workers together and for each address.

All workers share one table, and each writes only its own row: the hashes of its clients' addresses.  A worker enters a
connection first and counts then.  Of two workers that enter at the same time, at least the later one sees both, so
there are never more connections than the bound.  Both may be refused where one place was left.
"""
import hashlib
import mmap
import threading

import numpy as np
from numpy.typing import NDArray

from geminga.workers.options import WorkerOptions
from geminga.workers.ports.connections import Connections

_COUNT, _USED, _PLACES = 0, 1, 2         # columns: connections, places up to the last one in use, the places
_PLACES_MAX = 1 << 20                    # of a worker; the memory of a place is taken when it is used first
_NO_PLACE = -1


class Admission:
    """The number of connections of one worker, in the table of all; `connections` lists them."""

    def __init__(self, table: NDArray[np.int64], number: int):
        """Use row `number` of the shared table (workers, columns)."""
        self._table, self._row = table, table[number]
        self._unused: list[int] = []         # places below _USED
        self._fence = threading.Lock()
        self.connections = Connections()

    def __repr__(self) -> str:
        return f"<Admission {self._row[_COUNT]} of {self._table[:, _COUNT].sum()} connections>"

    def clear(self) -> None:
        """Forget the connections of a former process, which ended with it."""
        self._row[_PLACES:_PLACES + self._row[_USED]] = 0
        self._row[_COUNT] = self._row[_USED] = 0
        self._unused = []
        self.connections.clear()

    def admit(self, host: str, options: WorkerOptions) -> tuple[int, str]:
        """Count a connection from an address.

        Return (its place for `free`, ""), or for one connection too many (-1, the reason).
        """
        key = _key(host)
        place = self._enter(key)
        if place == _NO_PLACE:
            return place, "Reached the maximum number of connections of one process"
        with self._fence:      # a barrier: the processor shows others this entry before it reads theirs
            reason = self._excess(key, host, options)
        if reason:
            self.free(place)
            return _NO_PLACE, reason
        return place, ""

    def free(self, place: int) -> None:
        """Forget a connection that has ended; -1: one that was not admitted."""
        if place != _NO_PLACE:
            self._row[_PLACES + place] = 0
            self._row[_COUNT] -= 1
            self._unused.append(place)

    def _enter(self, key: int) -> int:
        row = self._row
        if not self._unused:
            if _PLACES + row[_USED] >= len(row):
                return _NO_PLACE
            self._unused.append(int(row[_USED]))
            row[_USED] += 1
        place = self._unused.pop()
        row[_PLACES + place] = key
        row[_COUNT] += 1
        return place

    def _excess(self, key: int, host: str, options: WorkerOptions) -> str:
        """Return which bound the connections exceed, "" for none."""
        if options.max_connections and self._table[:, _COUNT].sum() > options.max_connections:
            return f"Reached the maximum number of connections, which is {options.max_connections}"
        if options.max_connections_per_address:
            count = sum(np.count_nonzero(row[_PLACES:_PLACES + row[_USED]] == key) for row in self._table)
            if count > options.max_connections_per_address:
                return f"Reached the maximum number of connections on address {host}, which is " \
                       f"{options.max_connections_per_address}"
        return ""


def _key(host: str) -> int:
    """Return a number for an address, never 0; two addresses have the same one once in 2**63."""
    return int.from_bytes(hashlib.blake2b(host.encode(), digest_size=8).digest(), "big") >> 1 or 1


def make_admissions(workers: int) -> list[Admission]:
    """Return the admissions of `workers` processes, in memory that processes forked later share."""
    width = _PLACES + _PLACES_MAX
    table = np.frombuffer(mmap.mmap(-1, max(1, workers) * width * 8), np.int64).reshape(max(1, workers), width)
    return [Admission(table, number) for number in range(max(1, workers))]
