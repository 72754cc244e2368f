"""Publishing to non-persistent topics: entries go to consumers in the same pass, and nothing is stored."""
import numpy as np
from numpy.typing import NDArray

from geminga.proto import envelope
from geminga.proto.deliveries import RECEIPT_ROW
from geminga.proto.rows import Rows
from geminga.storage.cursors.producer_sequences import NOWHERE
from geminga.storage.enforcement.rate_limiter import RateLimiter
from geminga.storage.topics.owner_context import OwnerContext
from geminga.storage.topics.subscription import Producer

_COPIED = "connection", "producer_id", "sequence_id", "highest_sequence_id"      # from a SEND_ROW to its RECEIPT_ROW


class NonPersistentPublishing:
    """SENDs to one owner's non-persistent topics."""

    def __init__(self, owner: OwnerContext, rates: RateLimiter):
        self._owner, self._rates = owner, rates

    def publish(self, worker: int, rows: Rows, data: memoryview) -> tuple[int, Rows, memoryview]:
        """Publish those of the rows (n,) SEND_ROW that are for non-persistent topics; returns the rest."""
        producers = self._owner.live_producers
        is_live = np.isin(rows["producer"], np.fromiter(producers, np.uint64))
        is_above = self._above_connection_bound(rows, is_live)
        for handle in np.unique(rows["producer"][is_live]).tolist():
            producer = producers[handle]
            if producer.is_ready:
                is_mine = rows["producer"] == handle
                self._owner.changed[producer.partition] = None
                if len(mine := rows[is_mine & ~is_above]):
                    self._pass_on(worker, producer, mine, data, rows[is_mine & is_above])
                else:
                    self._drop(worker, producer, rows[is_mine & is_above])
        return worker, rows[~is_live], data

    def _pass_on(self, worker: int, producer: Producer, rows: Rows, data: memoryview, dropped: Rows) -> None:
        """Answer the producer's rows, and deliver their entries to consumers that have permits; answer those that are dropped."""
        owner, topic = self._owner, producer.partition
        entries = np.zeros(len(rows), envelope.TRANSIENT_ENTRY)
        entries["entry_id"] = np.arange(topic.published, topic.published + len(rows))
        entries["size"], entries["messages"] = rows["size"], rows["messages"]
        receipts = np.zeros(len(rows), RECEIPT_ROW)
        for name in _COPIED:
            receipts[name] = rows[name]
        receipts["worker"], receipts["entry_id"] = worker, entries["entry_id"]
        owner.outbox(worker).receipts(receipts)
        messages, size = int(rows["messages"].sum()), int(rows["size"].sum())
        for counted in (producer, topic):
            counted.messages_in += messages
            counted.bytes_in += size
        self._drop(worker, producer, dropped)
        before = topic.dropped
        topic.now_ms = owner.now_ms
        for consumer, _, chosen in topic.pass_on(rows, self._rates.next_batches):
            some = rows[chosen.start:chosen.stop] if isinstance(chosen, range) else rows[chosen]
            pieces = [data[at:at + size] for at, size in zip(some["offset"].tolist(), some["size"].tolist(), strict=True)]
            owner.outbox(consumer.worker).transient_entries(consumer, entries[np.asarray(chosen)], b"".join(pieces))
            owner.count_delivered(consumer, len(chosen), int(some["size"].sum()))
        owner.counters.add("entries_dropped", topic.dropped - before)
        owner.counters.add("entries_in", len(rows))
        owner.counters.add("messages_in", messages)
        owner.counters.add("bytes_in", int(rows["size"].sum()))

    def _above_connection_bound(self, rows: Rows, is_live: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Rows (n,) to drop, because their connection has more under way than it may."""
        is_above, most = np.zeros(len(rows), bool), self._owner.options.max_live_messages_per_connection
        for connection in np.unique(rows["connection"][is_live]).tolist() if most else ():
            is_above[np.flatnonzero(is_live & (rows["connection"] == connection))[most:]] = True
        return is_above

    def _drop(self, worker: int, producer: Producer, rows: Rows) -> None:
        """Answer SENDs that are delivered to no consumer with receipts without a position."""
        if not len(rows):
            return
        receipts = np.zeros(len(rows), RECEIPT_ROW)
        for name in _COPIED:
            receipts[name] = rows[name]
        receipts["worker"] = worker
        receipts["ledger_id"] = receipts["entry_id"] = NOWHERE
        self._owner.outbox(worker).receipts(receipts)
        producer.dropped += int(rows["messages"].sum())
        self._owner.counters.add("entries_dropped", len(rows))
