"""Replicated messages among the SENDs of a pass: what replicators of other clusters publish.

    refuse     no SEND behind a refused one is stored before the replicator connects again: it sends the refused one
               again first, and its position must not be passed meanwhile.  The error is PersistenceError whatever the
               cause is: at others Pulsar goes on without the refused message, and sends it later
    answer     receipts have the numbers by which a replicator knows its messages again, see `_put_receipt_ids`

duplicates.py keeps what was stored before from being stored again.  The position of an entry in its source comes in the
row's `entry_id`, and the refused SEND is told the sequence id that it came with.
"""
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from geminga.proto import names
from geminga.proto.rows import Rows, as_words, from_words
from geminga.proto.sends import IN_TRANSACTION, IS_CHUNK, IS_MARKER, SEND_ROW, is_encrypted
from geminga.storage.enforcement.delay_policy import DelayPolicy
from geminga.storage.open_topics.clients import Producers
from geminga.storage.open_topics.reports import Reports
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.publish_plan import Sends
from geminga.storage.topics.subscription import Producer

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NO_HIGHEST = (1 << 64) - 1      # -1: a receipt without a highest sequence id
_CLOCKS_APART_MS = 60_000        # by which the clocks of a source's producers may be ahead


@dataclass(frozen=True, slots=True)
class Refused:
    """The first SEND of a replicator that is refused in a pass."""

    worker: int
    producer: Producer
    sequence_id: int
    text: str


@dataclass(slots=True)
class Admitted:
    """SENDs of a pass of which those are left that may be stored."""

    sends: Sends = field(default_factory=list)
    refused: dict[Producer, Refused] = field(default_factory=dict)


class ReplicatedPublishing:
    """The check of one owner's replicated messages, before they are planned with all others."""

    def __init__(self, producers: Producers, reports: Reports, delays: DelayPolicy):
        self._producers, self._reports, self._delays = producers, reports, delays

    def __repr__(self) -> str:
        return f"<ReplicatedPublishing replicators={len(self._producers.replicators)}>"

    def admit(self, sends: Sends) -> Admitted:
        """Take out of SENDs what is refused to replicators, and what they have sent behind that.

        Rows that are left have the numbers of their receipts in place of sequence ids.
        """
        admitted = Admitted()
        for worker, rows, data in sends:
            handles = rows["producer"]
            first = handles.item(0)
            distinct = [first] if (handles == first).all() else np.unique(handles).tolist()
            replicators = [one for handle in distinct if (one := self._producers.replicators.get(handle)) is not None]
            if replicators:
                rows = self._admit(admitted.refused, worker, rows, data, replicators)
            if len(rows):
                admitted.sends.append((worker, rows, data))
        return admitted

    def _admit(self, refused: dict[Producer, Refused], worker: int, rows: Rows, data: memoryview,
               replicators: list[Producer]) -> Rows:
        """Return those of the rows (n,) SEND_ROW that may be stored."""
        rows = as_words(rows).copy().view(SEND_ROW).ravel()
        is_left = np.ones(len(rows), bool)
        for producer in replicators:
            places = np.flatnonzero(rows["producer"] == producer.handle)
            mine = rows[places]
            end = 0
            if producer not in refused:
                end, text = self._first_refused(producer, mine, data)
                if end < len(mine):
                    refused[producer] = Refused(worker, producer, int(mine["sequence_id"][end]), text)
            is_left[places[end:]] = False
            if producer.sends_positions:
                self._tell_of_a_second_source(producer, mine)
            _put_receipt_ids(producer, mine)
            rows[places] = mine
        return rows if is_left.all() else from_words(as_words(rows)[is_left], SEND_ROW)

    def _tell_of_a_second_source(self, producer: Producer, rows: Rows) -> None:
        """Log it once if a message cannot be the one that was stored before at its position.

        What a replicator sends again was stored before it connected, so it was published before that.
        """
        partition = producer.partition
        assert isinstance(partition, Partition), producer
        is_known = (rows["entry_id"] != 0) & (rows["entry_id"] <= partition.sequences.of(producer.identity).last + 1)
        if is_known.any() and (rows["publish_time"][is_known] > producer.connected_ms + _CLOCKS_APART_MS).any():
            self._reports.once(
                f"cluster {producer.source} sends new messages with positions that it has used before, which are taken "
                "for stored ones and dropped: its storage was made anew, another cluster has its name, or clocks of "
                "its producers are ahead", code="G543", topic=str(partition.name))

    def _first_refused(self, producer: Producer, rows: Rows, data: memoryview) -> tuple[int, str]:
        """Return (the first of a producer's rows (n,) that is refused, else n, the error's text)."""
        flags, partition = rows["flags"], producer.partition
        assert isinstance(partition, Partition), producer
        policies, is_marker = partition.policies, flags & IS_MARKER != 0
        causes: list[tuple[NDArray[np.bool_], str]] = [
            (flags & IN_TRANSACTION != 0, "A replicator's message cannot be in a transaction")]
        if producer.sends_positions:
            text = f"A replicated message without {names.POSITION_PROPERTY}, or with one out of bounds"
            causes.append(((rows["entry_id"] == 0) & ~is_marker, text))
        if policies.max_message_size:
            is_large = (rows["size"] > policies.max_message_size) & (flags & IS_CHUNK == 0)
            causes.append((is_large, "Exceed maximum message size"))
        if partition in self._delays.watched:
            causes.append((self._delays.exceeds(partition, rows), self._delays.refusal(partition)))
        if policies.encryption_required:
            is_open = ~is_marker
            for at in np.flatnonzero(is_open).tolist():
                offset, size = int(rows["offset"][at]), int(rows["size"][at])
                is_open[at] = not is_encrypted(data[offset:offset + size])
            causes.append((is_open, "Messages must be encrypted"))
        firsts = [(int(where.argmax()), text) for where, text in causes if where.any()]
        return min(firsts, default=(len(rows), ""), key=lambda one: one[0])


def _put_receipt_ids(producer: Producer, rows: Rows) -> None:
    """Replace the sequence ids of a producer's rows (n,) by the numbers that their receipts have.

        position named      sequence id: the ledger of the source, highest: the entry of the source
        ... a marker        sequence id as sent, highest: MARKER_RECEIPT
        no position named   sequence id as sent, highest: -1
    """
    if not producer.sends_positions:
        rows["highest_sequence_id"][rows["highest_sequence_id"] == 0] = _NO_HIGHEST
        return
    is_marker = rows["flags"] & IS_MARKER != 0
    positions = rows["entry_id"] - np.uint64(1)
    rows["sequence_id"] = np.where(is_marker, rows["sequence_id"], positions >> np.uint64(names.ENTRY_BITS))
    rows["highest_sequence_id"] = np.where(
        is_marker, np.uint64(names.MARKER_RECEIPT), positions & np.uint64(names.ENTRY_MAX))
