"""Receipts and messages -> bytes, as arrays: a template for a run of frames, with columns of varints stamped in.

    receipt   total size 08 07 3a .. 08 PRODUCER 10 SEQUENCE 1a .. 08 LEDGER 10 ENTRY [20 HIGHEST]
    message   total size 08 09 4a .. 08 CONSUMER 12 .. 08 LEDGER 10 ENTRY [18 PARTITION]
              [18 REDELIVERIES] [20 WORD ..] [28 EPOCH]  [broker entry metadata]  entry

An entry's bytes are copied once, from the mapped ledger into the buffer that goes to the socket.
"""
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from geminga.proto import batch_parts, varints
from geminga.proto.frames import CHECKSUM_END, SIZE, SIZES
from geminga.proto.rows import Rows, interleave, struct_of

RECEIPT_ROW = np.dtype([
    ("connection", "<u4"),           # the worker's number of the connection
    ("worker", "<u4"),               # the worker's serial number
    ("producer_id", "<u8"),
    ("sequence_id", "<u8"),
    ("highest_sequence_id", "<u8"),
    ("ledger_id", "<u8"),
    ("entry_id", "<u8"),
])
RECEIPT = struct_of(RECEIPT_ROW)
FEW_MAX = 12          # entries that are cheaper to put together one by one than as arrays
FEW_RECEIPTS_MAX = 24       # ... and receipts
_TEMPLATES_MAX = 4_096           # of receipts: one for each producer and ledger, while its numbers keep their lengths
# Bit of LISTED_ENTRY's `words`: half of the words are the ack set, the others have a bit for each message of the batch
# that a filter has chosen.  The client is sent a batch of these messages only.
CHOSEN = 1 << 31
BROKER_TIMESTAMP, BROKER_INDEX = 1, 2   # bits: which fields of BrokerEntryMetadata are delivered


def receipts(rows: Rows) -> list[tuple[int, bytes]]:
    """Return [(connection, SEND_RECEIPT frames)] for rows (n,) RECEIPT_ROW; consecutive rows of a connection are one
    item.
    """
    if len(rows) <= FEW_RECEIPTS_MAX:
        few: list[tuple[int, bytes]] = []
        for connection, _, *numbers in rows.tolist():
            before = few.pop()[1] if few and few[-1][0] == connection else b""
            few.append((connection, before + _receipt(*numbers)))
        return few
    connections, block = rows["connection"], _receipts(rows)
    width = len(block) // len(rows)
    borders = (np.flatnonzero(connections[1:] != connections[:-1]) + 1).tolist()
    return [(connections.item(start), block[start * width:end * width])
            for start, end in pairwise((0, *borders, len(rows)))]


def _receipts(rows: Rows) -> bytes:
    """Return the SEND_RECEIPT frames of rows (n,) RECEIPT_ROW, one behind the other and all of one size."""
    columns = [(8, rows["producer_id"]), (16, rows["sequence_id"])]
    identity = _Message([(8, rows["ledger_id"]), (16, rows["entry_id"])])
    highest = rows["highest_sequence_id"]
    tail = _Message([(32, highest)]) if highest.any() else _Message([])
    body = _Message(columns)
    size = body.size + 1 + varints.length(identity.size) + identity.size + tail.size
    head = b"\x08\x07\x3a" + varints.encode(size)
    middle = b"\x1a" + varints.encode(identity.size)
    command = len(head) + size
    block = np.empty((len(rows), 8 + command), np.uint8)
    at = _put(block, 0, SIZES.pack(command + 4, command) + head)
    at = _put(block, body.put(block, at), middle)
    tail.put(block, identity.put(block, at))
    return block.tobytes()


def _receipt(producer_id: int, sequence_id: int, highest: int, ledger_id: int, entry_id: int) -> bytes:
    sequence, entry = varints.encode(sequence_id), varints.encode(entry_id)
    tail = b"\x20" + varints.encode(highest) if highest else b""
    start, middle = _receipt_template(producer_id, ledger_id, len(sequence), len(entry), len(tail))
    return start + sequence + middle + entry + tail


@lru_cache(_TEMPLATES_MAX)
def _receipt_template(producer_id: int, ledger_id: int, sequence_size: int, entry_size: int,
                      tail_size: int) -> tuple[bytes, bytes]:
    """Return the bytes of a receipt before its sequence id, and those between that and its entry id."""
    identity = b"\x08" + varints.encode(ledger_id) + b"\x10"
    identity_size = len(identity) + entry_size
    start = b"\x08" + varints.encode(producer_id) + b"\x10"
    middle = b"\x1a" + varints.encode(identity_size) + identity
    body_size = len(start) + sequence_size + len(middle) + entry_size + tail_size
    head = b"\x08\x07\x3a" + varints.encode(body_size)
    command_size = len(head) + body_size
    return SIZES.pack(command_size + 4, command_size) + head + start, middle


def words_of(picked: Rows) -> NDArray[np.int64]:
    """Return how many words each of the entries (n,) LISTED_ENTRY has."""
    counts: NDArray[np.int64] = (picked["words"] & np.uint32(CHOSEN - 1)).astype(np.int64)
    return counts


def _chosen(words: NDArray[np.uint64], row: Rows,
            ledger: memoryview) -> tuple[NDArray[np.uint64], Rows, memoryview]:
    """Return a batch with the messages that a filter has chosen only: (its ack set, its row (1,), its bytes).

    words: the ack set of the batch as it is stored, then bits of the chosen messages.  The ack set is empty if all of
    them are to be delivered.  A batch that is damaged, or gone, stays as it is.
    """
    left, mask = (int.from_bytes(half.tobytes(), "little") for half in np.split(words, 2))
    begin, size = int(row["offset"][0]), int(row["size"][0])
    try:
        entry = batch_parts.chosen(bytes(ledger[begin:begin + size]), mask)
    except batch_parts.Unreadable:
        return words[:0], row, ledger
    row = row.copy()
    row["offset"], row["size"], row["messages"] = 0, len(entry), mask.bit_count()
    narrow = batch_parts.narrowed(left, mask)
    if narrow.bit_count() == mask.bit_count():
        return words[:0], row, memoryview(entry)
    size = 8 * max(1, -(-narrow.bit_length() // 64))
    return np.frombuffer(narrow.to_bytes(size, "little"), np.uint64), row, memoryview(entry)


class _Message:
    """A protobuf message in which each varint field is a column: [(tag byte, values (n,))]."""

    def __init__(self, fields: Sequence[tuple[int, NDArray[np.unsignedinteger]]]):
        self.fields = [(tag, values, varints.length(int(values.max()))) for tag, values in fields]
        self.size = sum(1 + size for _, _, size in self.fields)

    def put(self, block: NDArray[np.uint8], at: int) -> int:
        for tag, values, size in self.fields:
            block[:, at] = tag
            varints.stamp(block, at + 1, values, size)
            at += 1 + size
        return at


def _put(block: NDArray[np.uint8], at: int, data: bytes) -> int:
    block[:, at:at + len(data)] = np.frombuffer(data, np.uint8)
    return at + len(data)


class Delivery:
    """The part that all MESSAGE frames of a run share: consumer, ledger, partition, and fields that the broker adds."""

    __slots__ = ("_prefix", "_suffix", "_epoch", "_broker_fields", "_skipped", "_entry_size", "_entry_start")

    def __init__(self, consumer_id: int, ledger_id: int, partition: int, broker_fields: int = 0, epoch: int = -1, *,
                 has_checksums: bool = True):
        """Prepare the shared part of the frames.

        partition and epoch are left out of the frames if they are -1.  broker_fields: bits BROKER_TIMESTAMP ...
        has_checksums: False removes magic and checksum from entries, for clients before protocol version 6.
        """
        self._prefix = b"\x08" + varints.encode(consumer_id) + b"\x12", b"\x08" + varints.encode(ledger_id) + b"\x10"
        self._suffix = b"\x18" + varints.encode(partition) if partition >= 0 else b""
        self._epoch = b"\x28" + varints.encode(epoch) if epoch >= 0 else b""
        self._broker_fields = broker_fields
        self._skipped = 0 if has_checksums else CHECKSUM_END       # bytes at the start of each entry that are left out
        self._entry_size, self._entry_start = 0, (b"", 0)          # of the last entry id, and what `_start` gave for it

    def frames(self, first_entry: int, rows: Rows, ledger: memoryview) -> list[bytes | memoryview]:
        """Return buffers with the MESSAGE frames of entries first_entry .. first_entry + n - 1.

        rows (n,) are their index rows, with offsets into `ledger`.
        """
        entries = np.arange(first_entry, first_entry + len(rows), dtype=np.uint64)
        if not self._skipped and (rows["size"] == rows["size"][0]).all():
            return [self._equal(entries, rows, ledger)]
        return [self._interleaved(entries, rows, ledger)]

    def picked_frames(self, picked: Rows, words: NDArray[np.uint64], rows: Rows,
                      ledger: memoryview) -> list[bytes | memoryview]:
        """Return buffers with the MESSAGE frames of entries anywhere in a ledger, named by LISTED_ENTRY rows (n,).

        rows (n,) are their index rows.  words are the ack sets of partly acknowledged batches, one behind the other;
        `picked["words"]` says how many words each has.  Batches of which a filter has chosen messages are rewritten.
        """
        if not picked["words"].any():
            return [self._interleaved(picked["entry_id"], rows, ledger, picked["redeliveries"])]
        out: list[bytes | memoryview] = []
        at = 0
        for n, (count, flagged) in enumerate(zip(words_of(picked).tolist(), picked["words"].tolist(), strict=True)):
            one = slice(n, n + 1)
            left, row, data = words[at:at + count], rows[one], ledger
            if flagged & CHOSEN:
                left, row, data = _chosen(left, row, ledger)
            ack_set = b"".join([b"\x20" + varints.encode(word) for word in left.tolist()])
            redeliveries = picked["redeliveries"][one]
            out.append(self._interleaved(picked["entry_id"][one], row, data, redeliveries, ack_set))
            at += count
        return out

    def transient_frames(self, entries: Rows, data: memoryview) -> bytes:
        """Return the MESSAGE frames of entries that lie one behind the other in data.

        entries: rows (n,) envelope.TRANSIENT_ENTRY.
        """
        rows: Rows = np.zeros(len(entries), [("offset", "<u8"), ("size", "<u4")])
        rows["size"] = entries["size"]
        rows["offset"][1:] = np.cumsum(entries["size"][:-1])
        return self._interleaved(entries["entry_id"], rows, data)

    @property
    def is_plain(self) -> bool:
        """Whether frames have neither fields that differ by entry, nor entries without their checksum; see `few`."""
        return not self._broker_fields and not self._skipped

    def few(self, first_entry: int, places: Iterable[tuple[int, int]], ledger: memoryview) -> bytes:
        """Return the plain MESSAGE frames of entries from first_entry on, one by one.

        places: (offset, size) of each entry in `ledger`.
        """
        pieces: list[bytes | memoryview] = []
        tail, (start, command) = self._suffix + self._epoch, self._entry_start
        for entry_id, (offset, size) in enumerate(places, first_entry):
            entry = varints.encode(entry_id)
            if len(entry) != self._entry_size:
                self._entry_size = len(entry)
                start, command = self._entry_start = self._start(self._entry_size, len(self._epoch))
            pieces += (SIZES.pack(4 + command + size, command), start, entry, tail, ledger[offset:offset + size])
        return b"".join(pieces)

    def _start(self, entry_size: int, tail_size: int) -> tuple[bytes, int]:
        """Return (the part of the command before an entry id of so many bytes, the size of the command).

        tail_size: bytes behind the message id.
        """
        before, identity = self._prefix
        identity_size = len(identity) + entry_size + len(self._suffix)
        body = len(before) + varints.length(identity_size) + identity_size + tail_size
        start = b"\x08\x09\x4a" + varints.encode(body) + before + varints.encode(identity_size) + identity
        return start, len(start) + entry_size + len(self._suffix) + tail_size

    def _equal(self, entries: NDArray[np.uint64], rows: Rows, ledger: memoryview) -> memoryview:
        """Return the frames of entries of one size, which lie side by side: one strided copy moves them all."""
        size, count, start = int(rows["size"][0]), len(rows), int(rows["offset"][0])
        head = self._heads(entries, rows, size)
        width = head.shape[1]
        block = np.empty((count, width + size), np.uint8)
        block[:, :width] = head
        block[:, width:] = np.frombuffer(ledger, np.uint8, count * size, start).reshape(count, size)
        return block.data.cast("B") if block.size else memoryview(b"")

    def _interleaved(self, entries: NDArray[np.uint64], rows: Rows, ledger: memoryview,
                     redeliveries: NDArray[np.uint32] | None = None, ack_set: bytes = b"") -> bytes:
        """Return the frames of entries of any sizes, anywhere in the ledger."""
        if self._skipped:
            rows = rows.copy()
            rows["offset"] += self._skipped
            rows["size"] -= self._skipped
        heads = self._heads(entries, rows, 0, redeliveries, ack_set)
        width = heads.shape[1]
        totals = rows["size"].astype(np.uint32) + np.uint32(width - 4)
        heads[:, :4] = totals.astype(">u4").view(np.uint8).reshape(-1, 4)
        return interleave(heads, ledger, rows["offset"], rows["offset"] + rows["size"])

    def _heads(self, entries: NDArray[np.uint64], rows: Rows, size: int,
               redeliveries: NDArray[np.uint32] | None = None, ack_set: bytes = b"") -> NDArray[np.uint8]:
        """Return the bytes before each entry, (n, width).  size: of an entry in bytes, for the frame's total size."""
        count = len(rows)
        entry_size = varints.length(int(entries[-1]))
        again = _Message([(24, redeliveries)] if redeliveries is not None and redeliveries.any() else [])
        tail = ack_set + self._epoch
        start, command = self._start(entry_size, again.size + len(tail))
        broker = self._broker_entry(rows)
        width = 8 + command + broker.shape[1]
        template = SIZES.pack(width - 4 + size, command) + start
        block = np.empty((count, width), np.uint8)
        at = _put(block, 0, template)
        varints.stamp(block, at, entries, entry_size)
        at = again.put(block, _put(block, at + entry_size, self._suffix))
        at = _put(block, at, tail)
        block[:, at:] = broker
        return block

    def _broker_entry(self, rows: Rows) -> NDArray[np.uint8]:
        """Return 0x0e02, size and BrokerEntryMetadata, (n, width); width is 0 when the client asked for no field."""
        if not self._broker_fields:
            return np.empty((len(rows), 0), np.uint8)
        fields = []
        if self._broker_fields & BROKER_TIMESTAMP:
            fields.append((8, rows["broker_time"].astype(np.uint64)))
        if self._broker_fields & BROKER_INDEX:
            # A batch has the index of its last message, as Pulsar's interceptor assigns it.
            fields.append((16, rows["message_index"] + rows["messages"] - np.uint64(1)))
        message = _Message(fields)
        block = np.empty((len(rows), 6 + message.size), np.uint8)
        message.put(block, _put(block, 0, b"\x0e\x02" + SIZE.pack(message.size)))
        return block
