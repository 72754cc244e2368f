"""The policy about delays: a longest delay that producers may ask for, or a fixed delay for every message.

    maximum    a message with a longer delay is refused
    fixed      every message is delivered after this delay, whatever its producer asks for; the maximum does not matter.
               Its delivery time is written into its metadata before it is stored, so that consumers, the index and all
               readers of ledgers agree

A delay counts from the publish time, which the producer's clock says; a clock too far ahead of the broker's is not
believed. A fixed delay allows a second, for the time that a pass takes. A maximum allows minutes, so that no honest
producer is refused.

With a fixed delay, delivery times ascend in the order of entries, and the partition needs no index. Only when the
broker's clock is set back by more than a minute do they not ascend.

Partitions without such a policy, or with delayed delivery switched off, and non-persistent topics do not enter here.
"""
import numpy as np
from numpy.typing import NDArray

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.rows import Rows, as_words, from_words
from geminga.proto.sends import IS_CHUNK, SEND_ROW
from geminga.storage.enforcement import delivery_times
from geminga.storage.open_topics.clients import Producers
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.left_out_sends import LeftOutSends
from geminga.storage.open_topics.watcher import Watcher
from geminga.storage.topics.duplicates import IS_REWRITTEN
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.publish_plan import Sends

AHEAD_MS = 5 * 60 * 1000      # how far a producer's clock may be ahead of the broker's, with a maximum, ...
FIXED_AHEAD_MS = 1_000        # ... and with a fixed delay
_BACK_MS = 60 * 1000          # how far the broker's clock may be set back while delivery times still ascend
_ANY_MS = 1 << 62             # stands for no maximum
_TIME_BITS = 44               # bits of the largest delivery time in ms, which is DELAY_MS_MAX from now


class DelayPolicy(Watcher):
    """The longest allowed delay, and the fixed delay, of one owner's partitions."""

    def __init__(self, decisions: Decisions, producers: Producers, left_out: LeftOutSends):
        self._decisions, self._producers, self._left_out = decisions, producers, left_out
        self.watched: dict[Partition, int] = {}      # partition -> its fixed delay in ms; 0: it has a maximum

    def __repr__(self) -> str:
        return f"<DelayPolicy of {len(self.watched)} partitions>"

    def watch(self, partition: Partition) -> None:
        """Apply the delay policy of a partition that was opened, or whose policies have changed."""
        policies, before = partition.policies, self.watched.pop(partition, 0)
        if policies.delayed_delivery and (policies.delay_fixed_ms or policies.delay_max_ms):
            self.watched[partition] = policies.delay_fixed_ms
        if self.watched.get(partition, 0) != before:
            partition.last_fixed_ms = 0

    def release(self, partition: Partition) -> None:
        """Forget the delay policy of a partition that the owner gives up."""
        self.watched.pop(partition, None)

    def enforce(self, sends: Sends) -> Sends:
        """Refuse SENDs whose delay is above the partition's maximum, and return the accepted ones.

        Entries of partitions with a fixed delay are returned with their delivery time in the metadata.
        """
        kept: Sends = []
        for worker, rows, data in sends:
            handles = rows["producer"]
            first = handles.item(0)
            if (handles == first).all():      # mostly
                partitions, which = self._watched_of([first]), None
            else:
                distinct, inverse = np.unique(handles, return_inverse=True)
                partitions = self._watched_of(distinct.tolist())
            if not any(partitions):
                kept.append((worker, rows, data))
                continue
            distinct_partitions = list(dict.fromkeys(filter(None, partitions)))
            if len(partitions) > 1:
                numbers: dict[Partition | None, int] = {
                    partition: number for number, partition in enumerate(distinct_partitions)}
                which = np.array([numbers.get(partition, -1) for partition in partitions])[inverse]
            kept += self._enforce(worker, rows, data, distinct_partitions, which)
        return kept

    def _watched_of(self, handles: list[int]) -> list[Partition | None]:
        """Return the partition of each producer, None if the partition has no delay policy."""
        producers = map(self._producers.by_handle.get, handles)
        return [one.partition if one is not None and one.is_ready and isinstance(one.partition, Partition)
                and one.partition in self.watched else None for one in producers]

    def _enforce(self, worker: int, rows: Rows, data: memoryview, partitions: list[Partition],
                 which: NDArray[np.int64] | None) -> Sends:
        """Apply the delay policies of `partitions` to rows (n,) SEND_ROW of one worker; return the accepted SENDs.

        which: (n,) the number of each row's partition in `partitions`, -1 for a partition that is not there. None: all
        rows are of the first partition.
        """
        if which is None:
            if self.watched[partitions[0]]:
                return [(worker, *self._fixed(partitions, None, rows, data))]
            which = np.zeros(len(rows), np.int64)
        kept: Sends = []
        is_fixed = np.array([*(self.watched[partition] > 0 for partition in partitions), False])[which]
        if is_fixed.any():
            kept.append((worker, *self._fixed(partitions, which[is_fixed], _picked(rows, is_fixed), data)))
        most_ms = np.array([*(partition.policies.delay_max_ms or _ANY_MS for partition in partitions), _ANY_MS])[which]
        is_late = ~is_fixed & self._is_late(rows, most_ms)
        for number in np.unique(which[is_late]).tolist():
            self._refuse(worker, partitions[number], _picked(rows, is_late & (which == number)))
        is_left = ~(is_fixed | is_late)
        if is_left.any():
            kept.append((worker, _picked(rows, is_left), data))
        return kept

    def _is_late(self, rows: Rows, most_ms: NDArray[np.int64] | int) -> NDArray[np.bool_]:
        """Return which of the rows (n,) SEND_ROW have a delay above most_ms, in ms, (n,) or for all of them."""
        # A message that is due already is not refused: it may have taken long to arrive.
        published, deliver_at = np.minimum(rows["publish_time"], self._decisions.now_ms + AHEAD_MS), rows["deliver_at"]
        is_late: NDArray[np.bool_] = (deliver_at > self._decisions.now_ms) & (deliver_at > published + most_ms)
        return is_late

    def exceeds(self, partition: Partition, rows: Rows) -> NDArray[np.bool_]:
        """Return which of the rows (n,) SEND_ROW of a watched partition have too long a delay for it."""
        if self.watched[partition]:
            return np.zeros(len(rows), bool)
        return self._is_late(rows, partition.policies.delay_max_ms)

    @staticmethod
    def refusal(partition: Partition) -> str:
        """Return the text of the error for a message with too long a delay."""
        return f"Exceeds max allowed delivery delay of {partition.policies.delay_max_ms} milliseconds"

    def _refuse(self, worker: int, partition: Partition, rows: Rows) -> None:
        self._left_out.refuse(worker, rows, api.NotAllowedError, self.refusal(partition))
        partition.delays_refused += int(rows["messages"].sum())
        self._decisions.changed[partition] = None

    def _fixed(self, partitions: list[Partition], which: NDArray[np.int64] | None, rows: Rows,
               data: memoryview) -> tuple[Rows, memoryview]:
        """Return rows (n,) SEND_ROW and their entries, with delivery times after their partitions' fixed delays.

        which: (n,) the number of each row's partition in `partitions`. None: all rows are of the first partition.
        """
        fixed_ms, floors_ms = (np.array(column) for column in zip(*map(self._times_of, partitions), strict=True))
        times = np.minimum(np.maximum(rows["publish_time"], 0), self._decisions.now_ms + FIXED_AHEAD_MS)
        if which is None:
            np.maximum(times + fixed_ms[0], floors_ms[0], out=times)
            np.maximum.accumulate(times, out=times)
            partitions[0].last_fixed_ms = int(times[-1])
        else:
            order = np.argsort(which, kind="stable")
            of = which[order]
            # The partition's number in the high bits has the running maximum begin anew with each partition.
            shifted = np.maximum(times[order] + fixed_ms[of], floors_ms[of]) + (of << _TIME_BITS)
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
        stamped, data = delivery_times.stamp(rows, data, times)
        if any(partition.deduplicates for partition in partitions):
            # Deduplication compares chunks by the checksums that producers sent: stamping has changed these.
            are_chunks = (rows["flags"] & IS_CHUNK) != 0
            if are_chunks.any():
                sent = rows["crc32c"][are_chunks].astype(np.uint64)
                stamped["message_index"][are_chunks] = sent | np.uint64(IS_REWRITTEN)
        return stamped, data

    def _times_of(self, partition: Partition) -> tuple[int, int]:
        """Return (fixed delay in ms, 0 without one; earliest delivery time in ms of the next entry)."""
        fixed_ms, last_ms = self.watched[partition], partition.last_fixed_ms
        most_ms = self._decisions.now_ms + fixed_ms + _BACK_MS
        if not last_ms:      # the delay is new: the last entry had another one, or none
            last_ms, most_ms = _last_time(partition), self._decisions.now_ms + fixed_ms
        return fixed_ms, last_ms if last_ms <= most_ms else 0


def _picked(rows: Rows, which: NDArray[np.bool_]) -> Rows:
    """Return the rows (n,) that `which` (n,) marks."""
    if which.all():
        return rows
    return from_words(as_words(rows)[which], SEND_ROW)


def _last_time(partition: Partition) -> int:
    """Return the delivery time in ms of the open ledger's last entry, 0 without entries."""
    ledger = partition.open_ledger
    return int(ledger.deliver_at[ledger.last_entry]) if ledger.entries else 0
