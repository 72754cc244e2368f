"""What administrators demand of delays, beside what producers ask for: the longest that there may be, or one for every message.

    maximum    what is to be delivered later than so long after it was published is refused
    fixed      every message is delivered so long after it was published, whatever its producer says: its metadata say so before it is
               stored, so the consumers, the index and whoever reads the ledgers agree; the maximum does not matter then

When it was published says the producer's clock, and ours where that is ahead: beyond an allowance for clocks when something is refused.
On a partition with a fixed delay the times ascend in the order of its entries, so that its schedule needs no index, unless our clock is
set back by more than a minute.  Topics without such a policy, those on which delayed delivery is switched off, and those that keep
nothing do not get here.
"""
import numpy as np
from numpy.typing import NDArray

from geminga.proto import delivery_times
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.sends import IS_CHUNK
from geminga.storage.append import SENT_OTHERWISE, Sends
from geminga.storage.partition import Partition

AHEAD_MS = 5 * 60 * 1000      # honest clocks may be, of producers that ask for a delay
_BACK_MS = 60 * 1000          # our clock may be set, and the times go on to ascend


class Delays:
    """Of one owner's partitions."""

    def __init__(self, owner):
        self._owner = owner
        self.watched: dict[Partition, int] = {}      # their fixed delays; 0: they have a maximum

    def watch(self, partition: Partition) -> None:
        """Its policies may have changed."""
        policies, before = partition.policies, self.watched.pop(partition, 0)
        if policies.delayed_delivery and (policies.delay_fixed_ms or policies.delay_max_ms):
            self.watched[partition] = policies.delay_fixed_ms
        if self.watched.get(partition, 0) != before:
            partition.last_fixed_ms = 0

    def release(self, partition: Partition) -> None:
        self.watched.pop(partition, None)

    def enforce(self, sends: Sends) -> Sends:
        """What is to be stored of these, as it is to be stored."""
        found: Sends = []
        for worker, rows, data in sends:
            handles = rows["producer"]
            first = handles.item(0)
            if (handles == first).all():      # mostly
                partition = next(iter(self._watched_of([first])), None)
                found += [(worker, rows, data)] if partition is None else self._of_one(worker, partition, rows, data)
                continue
            is_left = np.ones(len(rows), bool)
            for partition, its in self._watched_of(np.unique(handles).tolist()).items():
                mine = np.isin(handles, np.array(its, np.uint64))
                is_left &= ~mine
                found += self._of_one(worker, partition, rows[mine], data)
            if is_left.any():
                found.append((worker, rows if is_left.all() else rows[is_left], data))
        return found

    def _watched_of(self, handles: list[int]) -> dict[Partition, list[int]]:
        """Partitions of these producers, and whose they are."""
        found: dict[Partition, list[int]] = {}
        for handle in handles:
            producer = self._owner.producers.get(handle)
            if producer is not None and producer.is_ready and producer.partition in self.watched:
                found.setdefault(producer.partition, []).append(handle)
        return found

    def _of_one(self, worker: int, partition: Partition, rows: NDArray, data: memoryview) -> Sends:
        """What is left of the rows of one partition."""
        if self.watched[partition]:
            return [(worker, *self._fixed(partition, rows, data))]
        is_late = self._is_too_late(rows, partition.policies.delay_max_ms)
        if not is_late.any():
            return [(worker, rows, data)]
        self._refuse(worker, partition, rows[is_late])
        return [] if is_late.all() else [(worker, rows[~is_late], data)]

    def _is_too_late(self, rows: NDArray, max_ms: int) -> NDArray[np.bool_]:
        """What has come late may be due already, whatever its producer's clock says."""
        published = np.minimum(rows["publish_time"], self._owner.now_ms + AHEAD_MS)
        return (rows["deliver_at"] > self._owner.now_ms) & (rows["deliver_at"] > published + max_ms)

    def _refuse(self, worker: int, partition: Partition, rows: NDArray) -> None:
        text = f"Exceeds max allowed delivery delay of {partition.policies.delay_max_ms} milliseconds"
        self._owner.refuse_sends(worker, rows, api.NotAllowedError, text)
        partition.delays_refused += int(rows["messages"].sum())
        self._owner.statistics.changed[partition] = None

    def _fixed(self, partition: Partition, rows: NDArray, data: memoryview) -> tuple[NDArray, memoryview]:
        fixed_ms, now_ms = self.watched[partition], self._owner.now_ms
        times = np.minimum(np.maximum(rows["publish_time"], 0), now_ms) + fixed_ms
        last_ms, most_ms = partition.last_fixed_ms, now_ms + fixed_ms + _BACK_MS
        if not last_ms:      # the entry before may have had another delay
            last_ms, most_ms = _last_time(partition), now_ms + fixed_ms
        if last_ms <= most_ms:
            np.maximum(times, last_ms, out=times)
        np.maximum.accumulate(times, out=times)
        partition.last_fixed_ms = int(times[-1])
        if (asked := rows["deliver_at"]).any():
            partition.delays_overridden += int(rows["messages"][(asked != 0) & (asked != times)].sum())
        found, data = delivery_times.stamped(rows, data, times)
        if partition.deduplicates and (are_chunks := (rows["flags"] & IS_CHUNK) != 0).any():      # it knows them by the checksums that came
            found["message_index"][are_chunks] = rows["crc32c"][are_chunks].astype(np.uint64) | np.uint64(SENT_OTHERWISE)
        return found, data


def _last_time(partition: Partition) -> int:
    """Of the last entry; 0 where there is none."""
    ledger = partition.open_ledger
    return int(ledger.deliver_at[ledger.last_entry]) if ledger.entries else 0
