"""Priorities and times to live of batches, for partitions with such a policy.

The properties of a batch's messages stand in its payload, which nothing else here reads, so only batches to such
partitions are looked into, as they are published.  What is found is kept in the index, beside the entry, whose bytes
stay as they are.
"""
import numpy as np

from geminga.proto.batch_priorities import batch_flags
from geminga.proto.job_properties import BATCH_BITS
from geminga.proto.rows import Rows
from geminga.proto.sends import IS_BATCH, IS_CHUNK
from geminga.storage.open_topics.clients import Producers
from geminga.storage.open_topics.watcher import Watcher
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.publish_plan import Sends

# Bytes that the batches of one pass may have before compression, some 50 ms; those behind are not looked into.  The
# compressed bytes of a pass are bounded already, so honest batches stay far below.
_UNPACKED_MAX = 64 << 20


class BatchPriorities(Watcher):
    """Finds priorities and times to live of batches as they are published to one owner's partitions."""

    def __init__(self, producers: Producers):
        self._producers = producers
        self.watched: set[Partition] = set()

    def __repr__(self) -> str:
        return f"<BatchPriorities of {len(self.watched)} partitions>"

    def watch(self, partition: Partition) -> None:
        """Look into batches to the partition if it delivers by priority, or lets messages expire by their own times."""
        policies = partition.policies
        is_wanted = policies.message_priority or policies.own_message_ttl
        (self.watched.add if is_wanted else self.watched.discard)(partition)

    def release(self, partition: Partition) -> None:
        """Forget a partition that the owner gives up."""
        self.watched.discard(partition)

    def find(self, sends: Sends) -> Sends:
        """Return the SENDs with the priorities and times to live of batches to watched partitions in their `flags`."""
        left, found = _UNPACKED_MAX, []
        for worker, rows, data in sends:
            wanted = [handle for handle in np.unique(rows["producer"]).tolist() if self._is_watched(handle)]
            if wanted:
                are_batches = (rows["flags"] & (IS_BATCH | IS_CHUNK) == IS_BATCH) & np.isin(rows["producer"], wanted)
                rows, left = _with_priorities(rows, data, np.flatnonzero(are_batches).tolist(), left)
            found.append((worker, rows, data))
        return found

    def _is_watched(self, handle: int) -> bool:
        producer = self._producers.by_handle.get(handle)
        return producer is not None and producer.partition in self.watched


def _with_priorities(rows: Rows, data: memoryview, batches: list[int], left: int) -> tuple[Rows, int]:
    """Return (rows (n,) SEND_ROW with the priorities and times to live of batches, what is left of `left` bytes)."""
    known: dict[int, int] = {}
    for at in batches:
        offset, size = int(rows["offset"][at]), int(rows["size"][at])
        flags, unpacked = batch_flags(data[offset:offset + size], left)
        left -= unpacked
        if flags:
            known[at] = flags
    if known:
        rows = rows.copy()
        which = list(known)
        rows["flags"][which] = rows["flags"][which] & ~np.uint32(BATCH_BITS) | np.array([*known.values()], np.uint32)
    return rows, left
