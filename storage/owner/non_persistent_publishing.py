"""Publishing to non-persistent topics: entries are delivered in the pass in which they arrived, or dropped."""
import numpy as np
from numpy.typing import NDArray

from geminga.proto import envelope
from geminga.proto.deliveries import RECEIPT_ROW
from geminga.proto.rows import Rows
from geminga.proto.sends import IS_MARKER
from geminga.storage.cursors.producer_sequences import NOWHERE
from geminga.storage.enforcement.rate_limiter import RateLimiter
from geminga.storage.open_topics.clients import Producers
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.options_in_force import OptionsInForce
from geminga.storage.open_topics.publisher import NO_WORKER
from geminga.storage.topics.non_persistent import NonPersistentTopic
from geminga.storage.topics.subscription import Producer

_COPIED = "connection", "producer_id", "sequence_id", "highest_sequence_id"      # from a SEND_ROW to its RECEIPT_ROW


class NonPersistentPublishing:
    """Delivery of SENDs to one owner's non-persistent topics."""

    def __init__(self, decisions: Decisions, producers: Producers, options: OptionsInForce, rates: RateLimiter):
        self._decisions, self._producers, self._options, self._rates = decisions, producers, options, rates

    def __repr__(self) -> str:
        return f"<NonPersistentPublishing producers={len(self._producers.non_persistent)}>"

    def publish(self, worker: int, rows: Rows, data: memoryview) -> tuple[int, Rows, memoryview]:
        """Publish rows (n,) SEND_ROW of non-persistent topics.  Return (worker, rows of stored topics, data)."""
        producers = self._producers.non_persistent
        is_transient = np.isin(rows["producer"], np.fromiter(producers, np.uint64))
        # Markers are for clusters, and there is nothing to store them in.
        is_above = self._above_connection_bound(rows, is_transient) | (rows["flags"] & IS_MARKER != 0)
        for handle in np.unique(rows["producer"][is_transient]).tolist():
            producer = producers[handle]
            if producer.is_ready:
                is_mine = rows["producer"] == handle
                topic = producer.partition
                assert isinstance(topic, NonPersistentTopic), producer
                self._decisions.changed[topic] = None
                if len(mine := rows[is_mine & ~is_above]):
                    self._pass_on(worker, producer, topic, mine, data, rows[is_mine & is_above])
                else:
                    self._drop(worker, producer, rows[is_mine & is_above])
        return worker, rows[~is_transient], data

    def _pass_on(self, worker: int, producer: Producer, topic: NonPersistentTopic, rows: Rows, data: memoryview,
                 dropped: Rows) -> None:
        """Answer the producer's rows with receipts, and deliver their entries to consumers with permits.

        dropped: further rows, which are answered but not delivered.
        """
        entries = np.zeros(len(rows), envelope.TRANSIENT_ENTRY)
        entries["entry_id"] = np.arange(topic.published, topic.published + len(rows))
        entries["size"], entries["messages"] = rows["size"], rows["messages"]
        receipts = np.zeros(len(rows), RECEIPT_ROW)
        for name in _COPIED:
            receipts[name] = rows[name]
        receipts["worker"], receipts["entry_id"] = worker, entries["entry_id"]
        if worker != NO_WORKER:
            self._decisions.outbox(worker).receipts(receipts)
        messages, size = int(rows["messages"].sum()), int(rows["size"].sum())
        producer.messages_in += messages
        producer.bytes_in += size
        topic.messages_in += messages
        topic.bytes_in += size
        self._drop(worker, producer, dropped)
        before = topic.dropped
        topic.now_ms = self._decisions.now_ms
        for consumer, _, chosen in topic.pass_on(rows, self._rates.next_batches):
            some = rows[chosen.start:chosen.stop] if isinstance(chosen, range) else rows[chosen]
            stretches = zip(some["offset"].tolist(), some["size"].tolist(), strict=True)
            pieces = [data[at:at + length] for at, length in stretches]
            self._decisions.outbox(consumer.worker).transient_entries(
                consumer, entries[np.asarray(chosen)], b"".join(pieces))
            self._decisions.count_delivered(consumer, len(chosen), int(some["size"].sum()))
        self._decisions.counters.add("entries_dropped", topic.dropped - before)
        self._decisions.counters.add("entries_in", len(rows))
        self._decisions.counters.add("messages_in", messages)
        self._decisions.counters.add("bytes_in", size)

    def _above_connection_bound(self, rows: Rows, is_transient: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which rows (n,) are dropped because their connection has too many non-persistent messages in
        flight.
        """
        is_above, most = np.zeros(len(rows), bool), self._options.current.max_live_messages_per_connection
        for connection in np.unique(rows["connection"][is_transient]).tolist() if most else ():
            is_above[np.flatnonzero(is_transient & (rows["connection"] == connection))[most:]] = True
        return is_above

    def _drop(self, worker: int, producer: Producer, rows: Rows) -> None:
        """Answer SENDs that are dropped, with receipts that have no position."""
        if not len(rows):
            return
        receipts = np.zeros(len(rows), RECEIPT_ROW)
        for name in _COPIED:
            receipts[name] = rows[name]
        receipts["worker"] = worker
        receipts["ledger_id"] = receipts["entry_id"] = NOWHERE
        if worker != NO_WORKER:
            self._decisions.outbox(worker).receipts(receipts)
        producer.dropped += int(rows["messages"].sum())
        self._decisions.counters.add("entries_dropped", len(rows))
