"""Runs of entries -> bytes, read from the ledgers that owners write and workers map.

A mapping is made when a run first names its ledger, made anew when the ledger has grown past it, and given up when its
owner says that the ledger was deleted, or when too many are mapped.  What is written to a client is made only as fast as the
client takes it.
"""
import mmap
from collections import OrderedDict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from geminga.storage import format
from geminga.storage.ledger import map_file

LEDGERS_MAX = 1_024          # mapped at a time by one worker; two file descriptors each
ENTRIES_MAX = 8_192          # turned into bytes at a time
BYTES_MAX = 1 << 20          # likewise; one entry may be larger


class LedgerGone(Exception):
    """The ledger was deleted before it was read: what it held is acknowledged."""


class Ledgers:
    """The ledgers that this worker has mapped."""

    def __init__(self, data_dir: Path):
        self._data_dir = data_dir
        self._mapped: OrderedDict[int, tuple[NDArray, memoryview]] = OrderedDict()

    def read(self, partition_id: int, ledger_id: int, first: int, count: int) -> tuple[NDArray, memoryview]:
        """(index rows of as many of these entries as are dealt with at a time, the ledger's bytes).  Raises LedgerGone."""
        index, data = self._get(partition_id, ledger_id)
        end = first + min(count, ENTRIES_MAX)
        if end > len(index) or (len(index) and int(index["offset"][end - 1]) + int(index["size"][end - 1]) > len(data)):
            index, data = self._map(partition_id, ledger_id)
        rows = index[first:end]
        reach = np.cumsum(rows["size"], dtype=np.int64)
        if int(reach[-1]) > BYTES_MAX:
            rows = rows[:max(1, int(np.searchsorted(reach, BYTES_MAX)))]
        return rows, data

    def forget(self, ledger_id: int) -> None:
        self._mapped.pop(ledger_id, None)

    def _get(self, partition_id: int, ledger_id: int) -> tuple[NDArray, memoryview]:
        found = self._mapped.get(ledger_id)
        if found is None:
            return self._map(partition_id, ledger_id)
        self._mapped.move_to_end(ledger_id)
        return found

    def _map(self, partition_id: int, ledger_id: int) -> tuple[NDArray, memoryview]:
        folder = format.partition_folder(self._data_dir, partition_id)
        try:
            index = map_file(format.index_path(folder, ledger_id), writable=False)
            data: mmap.mmap = map_file(format.ledger_path(folder, ledger_id), writable=False)
        except FileNotFoundError as error:
            self.forget(ledger_id)
            raise LedgerGone from error
        found = np.frombuffer(index, format.INDEX_ROW, offset=format.HEADER_SIZE), memoryview(data)
        self._mapped[ledger_id] = found
        while len(self._mapped) > LEDGERS_MAX:
            self._mapped.popitem(last=False)
        return found
