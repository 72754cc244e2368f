"""The answers of one pass to one worker, in the order they are to be written."""
from typing import Any

import numpy as np

from geminga.proto import envelope
from geminga.proto.deliveries import RECEIPT_ROW
from geminga.proto.frames import NO_REQUEST
from geminga.proto.rows import Row, Rows
from geminga.storage.topics.subscription import Consumer


class Outbox:
    """Sections of an envelope being put together; neighbours of one kind become one section."""

    def __init__(self) -> None:
        self._sections: list[tuple[int, Rows | bytes, bytes]] = []
        self._kind = 0
        self._rows: list[Row] = []
        self._data: list[bytes] = []

    def receipts(self, rows: Rows | bytes) -> None:
        """Answer SENDs: RECEIPT_ROWs, as an array or packed."""
        self._close()
        self._sections.append((envelope.RECEIPTS, rows, b""))

    def receipts_and_errors(self, rows: Rows | bytes, errors: list[tuple[int, int, int, bytes]]) -> None:
        """Likewise, and errors (connection, producer id, sequence id, the error), each before the receipts of what came later.

        Clients look for an answer to the first SEND that has none yet.
        """
        rows = np.frombuffer(rows, RECEIPT_ROW) if isinstance(rows, bytes) else rows
        in_turn = []
        for connection, producer_id, sequence_id, error in errors:
            later = (rows["connection"] == connection) & (rows["producer_id"] == producer_id) & (rows["sequence_id"] > sequence_id)
            in_turn.append((int(later.argmax()) if later.any() else len(rows), connection, error))
        at = 0
        for place, connection, error in sorted(in_turn, key=lambda one: one[0]):
            if place > at:
                self.receipts(rows[at:place])
                at = place
            self.reply(connection, error)
        if at < len(rows):
            self.receipts(rows[at:])

    def reply(self, connection: int, data: bytes, *, request_id: int = NO_REQUEST, action: int = envelope.WRITE,
              object_id: int = 0, handle: int = 0, partition: int = -1) -> None:
        """Do what `action` says, then write data to the client: the answer to its request, when it is one."""
        self._add(envelope.REPLIES, (connection, action, object_id, handle, request_id, len(data), partition), data)

    def run(self, consumer: Consumer, partition_id: int, ledger_id: int, first_entry: int, count: int) -> None:
        """Deliver entries to the consumer."""
        self._add(envelope.RUNS, (consumer.connection, count, consumer.handle, partition_id, ledger_id, first_entry), b"")

    def entry_list(self, consumer: Consumer, partition_id: int, ledger_id: int, picked: Rows, words: bytes = b"", view: int = 0) -> None:
        """Deliver entries that lie apart, or of which there is more to say, or of a compacted view: rows (n,) LISTED_ENTRY, and their words."""
        data = picked.tobytes() + words
        self._add(envelope.ENTRY_LISTS, (consumer.connection, len(picked), consumer.handle, partition_id, ledger_id, len(data), view), data)

    def transient_entries(self, consumer: Consumer, entries: Rows, data: bytes) -> None:
        """Deliver entries that are nowhere else: rows (n,) ENTRY, and their bytes."""
        data = entries.tobytes() + data
        self._add(envelope.TRANSIENT, (consumer.connection, len(entries), consumer.handle, len(data)), data)

    def answer(self, number: int, data: bytes) -> None:
        """Answer administration's question of that number."""
        self._add(envelope.ANSWERS, (number, len(data)), data)

    def forget(self, ledger_id: int, view: int = 0) -> None:
        """The ledger, or what that compacted view has of it, was deleted: unmap it."""
        self._add(envelope.FORGET, (ledger_id, view), b"")

    def _add(self, kind: int, row: Row, data: bytes) -> None:
        if kind != self._kind:
            self._close()
            self._kind = kind
        self._rows.append(row)
        if data:
            self._data.append(data)

    def _close(self) -> None:
        if self._rows:
            self._sections.append((self._kind, envelope.pack(self._kind, self._rows), b"".join(self._data)))
        self._kind, self._rows, self._data = 0, [], []

    def seal(self, taken: int) -> list[Any]:
        """The envelope's frames."""
        self._close()
        return envelope.seal(self._sections, taken)
