"""What administrators demand of delays, beside what producers ask for: the longest that there may be, or one for every message.

    maximum    what is to be delivered later than so long after it was published is refused
    fixed      every message is delivered so long after it was published, whatever its producer says: its metadata say so before it is
               stored, so the consumers, the index and whoever reads the ledgers agree; the maximum does not matter then

When it was published says the producer's clock, and ours where that is too far ahead: by a second where the delay is fixed, as passes take
their time, and by minutes where something would be refused that an honest producer asks for.
On a partition with a fixed delay the times ascend in the order of its entries, so that its schedule needs no index, unless our clock is
set back by more than a minute.  Topics without such a policy, those on which delayed delivery is switched off, and those that keep
nothing do not get here.
"""
import numpy as np
from numpy.typing import NDArray

from geminga.proto import delivery_times
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.rows import as_words, from_words
from geminga.proto.sends import IS_CHUNK, SEND_ROW
from geminga.storage.topics.duplicates import IS_REWRITTEN
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.publish_plan import Sends
from geminga.storage.topics.watcher import Watcher

AHEAD_MS = 5 * 60 * 1000      # a producer's clock may be, when it asks for a delay, ...
FIXED_AHEAD_MS = 1_000        # ... and when it gets one
_BACK_MS = 60 * 1000          # our clock may be set, and the times go on to ascend
_ANY_MS = 1 << 62             # a maximum where there is none
_TIME_BITS = 44               # of a time of now and DELAY_MS_MAX


class Delays(Watcher):
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
                partitions, which = self._watched_of([first]), None
            else:
                distinct, inverse = np.unique(handles, return_inverse=True)
                partitions = self._watched_of(distinct.tolist())
            if not any(partitions):
                found.append((worker, rows, data))
                continue
            its = list(dict.fromkeys(filter(None, partitions)))
            if len(partitions) > 1:
                numbers = {partition: number for number, partition in enumerate(its)}
                which = np.array([numbers.get(partition, -1) for partition in partitions])[inverse]
            found += self._enforce(worker, rows, data, its, which)
        return found

    def _watched_of(self, handles: list[int]) -> list[Partition | None]:
        """Of each producer the partition, when something is demanded there."""
        producers = map(self._owner.producers.get, handles)
        return [one.partition if one is not None and one.is_ready and one.partition in self.watched else None for one in producers]

    def _enforce(self, worker: int, rows: NDArray, data: memoryview, partitions: list[Partition], which: NDArray[np.int64] | None) -> Sends:
        """which: number (n,) of the partition, -1 for none of them; None: all are of the only one."""
        if which is None:
            if self.watched[partitions[0]]:
                return [(worker, *self._fixed(partitions, None, rows, data))]
            which = np.zeros(len(rows), np.int64)
        found = []
        is_fixed = np.array([*(self.watched[partition] > 0 for partition in partitions), False])[which]
        if is_fixed.any():
            found.append((worker, *self._fixed(partitions, which[is_fixed], _picked(rows, is_fixed), data)))
        most_ms = np.array([*(partition.policies.delay_max_ms or _ANY_MS for partition in partitions), _ANY_MS])[which]
        # What has come late may be due already, whatever its producer's clock says.
        published, deliver_at = np.minimum(rows["publish_time"], self._owner.now_ms + AHEAD_MS), rows["deliver_at"]
        is_late = ~is_fixed & (deliver_at > self._owner.now_ms) & (deliver_at > published + most_ms)
        for number in np.unique(which[is_late]).tolist():
            self._refuse(worker, partitions[number], _picked(rows, is_late & (which == number)))
        is_left = ~(is_fixed | is_late)
        if is_left.any():
            found.append((worker, _picked(rows, is_left), data))
        return found

    def _refuse(self, worker: int, partition: Partition, rows: NDArray) -> None:
        text = f"Exceeds max allowed delivery delay of {partition.policies.delay_max_ms} milliseconds"
        self._owner.refuse_sends(worker, rows, api.NotAllowedError, text)
        partition.delays_refused += int(rows["messages"].sum())
        self._owner.changed[partition] = None

    def _fixed(self, partitions: list[Partition], which: NDArray[np.int64] | None, rows: NDArray,
               data: memoryview) -> tuple[NDArray, memoryview]:
        """All rows (n,) with the delays of their partitions."""
        fixed_ms, floors_ms = (np.array(column) for column in zip(*map(self._times_of, partitions), strict=True))
        times = np.minimum(np.maximum(rows["publish_time"], 0), self._owner.now_ms + FIXED_AHEAD_MS)
        if which is None:
            np.maximum(times + fixed_ms[0], floors_ms[0], out=times)
            np.maximum.accumulate(times, out=times)
            partitions[0].last_fixed_ms = int(times[-1])
        else:
            order = np.argsort(which, kind="stable")
            of = which[order]
            shifted = np.maximum(times[order] + fixed_ms[of], floors_ms[of]) + (of << _TIME_BITS)      # so that each begins anew
            ascending = np.maximum.accumulate(shifted) - (of << _TIME_BITS)
            times[order] = ascending
            lasts = np.flatnonzero(np.append(of[1:] != of[:-1], True))
            for number, last_ms in zip(of[lasts].tolist(), ascending[lasts].tolist(), strict=True):
                partitions[number].last_fixed_ms = last_ms
        if (asked := rows["deliver_at"]).any():
            overridden = rows["messages"] * ((asked != 0) & (asked != times))
            counts = [overridden.sum()] if which is None else np.bincount(which, overridden, len(partitions))
            for partition, count in zip(partitions, counts, strict=True):
                partition.delays_overridden += int(count)
        found, data = delivery_times.stamp(rows, data, times)
        if any(partition.deduplicates for partition in partitions) and (are_chunks := (rows["flags"] & IS_CHUNK) != 0).any():
            # Deduplication knows them by the checksums that came.
            found["message_index"][are_chunks] = rows["crc32c"][are_chunks].astype(np.uint64) | np.uint64(IS_REWRITTEN)
        return found, data

    def _times_of(self, partition: Partition) -> tuple[int, int]:
        """Its fixed delay, 0 where it has none, and before when nothing of it is delivered."""
        fixed_ms, last_ms = self.watched[partition], partition.last_fixed_ms
        most_ms = self._owner.now_ms + fixed_ms + _BACK_MS
        if not last_ms:      # the entry before may have had another delay
            last_ms, most_ms = _last_time(partition), self._owner.now_ms + fixed_ms
        return fixed_ms, last_ms if last_ms <= most_ms else 0


def _picked(rows: NDArray, which: NDArray[np.bool_]) -> NDArray:
    """Return the rows (n,) that `which` (n,) marks."""
    if which.all():
        return rows
    return from_words(as_words(rows)[which], SEND_ROW)


def _last_time(partition: Partition) -> int:
    """Of the last entry; 0 where there is none."""
    ledger = partition.open_ledger
    return int(ledger.deliver_at[ledger.last_entry]) if ledger.entries else 0
