"""SEND frames -> rows for journal and ledger index, read from many frames at once.

    total command-size  08 06 32 .. 08 PRODUCER 10 SEQUENCE 18 COUNT   0e01 CRC32C metadata-size METADATA payload
    |<------------------ command ---------------------------------->|  |<------------- entry ---------------->|

Frames that follow each other mostly have one length and one layout of fields, with other numbers.  A `Layout` is learnt
from a frame that the protobuf library has decoded: the bytes of its head (all before the payload), and which of them
may differ.  A run of frames that differ in no other bytes is read with a few operations per column (`Layout.read`).
Any other frame goes through the library (`read_one`).  Both give the same row for the same bytes, and a test holds them
to it.
"""
import base64
import binascii
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from crc32c import crc32c
from google.protobuf.message import DecodeError
from mmh3 import mmh3_32_uintdigest
from numpy.typing import NDArray

from geminga.proto import checksums, job_properties, names, varints
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.batches import MESSAGE_MIN
from geminga.proto.compression import UNPACKED_MAX
from geminga.proto.errors import ProtocolError
from geminga.proto.frames import CHECKSUM_END, MAGIC_BYTES, SIZE, SIZES
from geminga.proto.metadata import each_field, fields_of
from geminga.proto.rows import Row, Rows, field_names, struct_of

SEND_ROW = np.dtype([
    ("producer", "<u8"),             # the owner's handle; 0 until the worker has looked it up
    # Fields of the receipt, laid out as a RECEIPT_ROW.
    ("connection", "<u4"),           # the worker's number of the connection
    ("worker", "<u4"),               # the worker's serial number; the owner fills it in
    ("producer_id", "<u8"),          # the client's number, unique on its connection
    ("sequence_id", "<u8"),
    ("highest_sequence_id", "<u8"),  # of a batch; 0 when not given
    ("ledger_id", "<u8"),            # the owner fills in the entry's place
    ("entry_id", "<u8"),             # on the way to the owner: 1 + the position in the source cluster, or 0
    # Fields of the ledger's index, laid out as its row.
    ("offset", "<u8"),               # of the entry in the bytes that travel with the rows
    ("publish_time", "<i8"),         # ms since 1970, the client's clock
    ("broker_time", "<i8"),          # ms since 1970; the owner fills it in
    ("deliver_at", "<i8"),           # ms since 1970; 0: at once
    ("message_index", "<u8"),        # the owner fills it in
    ("size", "<u4"),                 # bytes of the entry
    ("messages", "<u4"),             # 1, or how many a batch holds; 0: a marker
    # Murmur3, 31 bits, of ordering key, key or a chunk's substitute key, 0 without a key; or a stamp, see `stamp`.
    ("key_hash", "<u4"),
    ("flags", "<u4"),
    ("crc32c", "<u4"),               # as it stands in the entry
    ("checksum", "<u4"),             # the owner fills it in
])
SEND = struct_of(SEND_ROW)
PRODUCER_ID, SEQUENCE_ID, ENTRY_ID, MESSAGE_INDEX, MESSAGES, FLAGS, KEY_HASH, CRC32C = map(
    field_names(SEND_ROW).index,
    ("producer_id", "sequence_id", "entry_id", "message_index", "messages", "flags", "key_hash", "crc32c"))
INDEX_FIELDS = field_names(SEND_ROW)[8:]      # laid out as a row of the index


class Columns(NamedTuple):
    """Four fields of SEND_ROWs (n,), each copied into an array of its own.

    Within the rows, values of one field lie a whole row apart, so reading them again and again would be slow.
    """

    handles: NDArray[np.uint64]       # of producers
    sizes: NDArray[np.uint32]         # bytes of entries
    messages: NDArray[np.uint32]
    flags: NDArray[np.uint32]

    @classmethod
    def of(cls, rows: Rows) -> "Columns":
        return cls(*(rows[name].copy() for name in ("producer", "size", "messages", "flags")))


# Bits of `flags`, stored in the index as well.
KEPT_CHECKSUM = 1    # the entry begins with magic and checksum; only in ledgers of format version 1 may it be missing
IS_BATCH = 2         # num_messages_in_batch is present, even when it is 1
IS_CHUNK = 4         # the metadata, or the SEND, say that it is one of a message's chunks
HAS_KEY = 8
IS_LAST_CHUNK = 16
IN_TRANSACTION = 64  # on the way to the owner, message_index has the transaction's id (names.transaction)
IS_MARKER = 128      # clusters write it for each other, and no consumer gets it
CHUNK_ID = 8         # the lowest bit of a chunk's number, which goes up to CHUNK_ID_MAX; else see job_properties.py
CHUNK_ID_MAX = (1 << 24) - 1

STAMPED = 1 << 31    # bit of `key_hash`, which is a stamp then
HASH_BITS = 16       # of a stamp, and of the hashes by which entries are dispatched
_HASH_MAX = (1 << HASH_BITS) - 1
_WIDTH_MAX = (1 << 15) - 1

RUN_MIN = 32                   # frames; a shorter run costs less in the library


class BadChecksum(Exception):
    """The entry's bytes are not the bytes that its producer sent."""


class UnknownTransaction(Exception):
    """The SEND names a transaction that no coordinator can have begun."""


def read_one(command: api.CommandSend, entry: bytes, *, reads_positions: bool = False) -> Row:
    """Return the row of one SEND, in the order of SEND_ROW's fields, with 0 in fields that are filled in later.

    The entry begins with its checksum.  reads_positions: whether to look for the position in a source cluster.  Raises
    BadChecksum, UnknownTransaction, and ProtocolError when it cannot be read.
    """
    metadata, checksum = _metadata(entry)
    position = names.position_of(metadata.properties) if reads_positions else names.NO_POSITION
    flags, transaction = KEPT_CHECKSUM, 0
    if command.txnid_most_bits or command.txnid_least_bits:
        flags, transaction = KEPT_CHECKSUM | IN_TRANSACTION, _transaction(command)
    if metadata.HasField("num_messages_in_batch"):
        flags |= IS_BATCH
    # Some clients say it in the metadata only, which are all that consumers see.
    if command.is_chunk or metadata.num_chunks_from_msg > 1:
        flags |= IS_CHUNK | min(max(metadata.chunk_id, 0), CHUNK_ID_MAX) << CHUNK_ID
        if metadata.chunk_id + 1 >= metadata.num_chunks_from_msg > 0:
            flags |= IS_LAST_CHUNK
    elif metadata.properties:
        flags |= job_properties.flags_of_one(metadata.properties)
    key = _key(metadata)
    if key is not None:
        flags |= HAS_KEY
    sticky = key if key is not None or not flags & IS_CHUNK else _key_of_chunk(metadata)
    key_hash = 0 if sticky is None else mmh3_32_uintdigest(sticky) & 0x7FFFFFFF
    if metadata.HasField("entry_hash_min") and not flags & IS_CHUNK:
        lowest = metadata.entry_hash_min
        key_hash = stamp(lowest, metadata.entry_hash_max if metadata.HasField("entry_hash_max") else lowest, key_hash)
    messages = max(1, metadata.num_messages_in_batch)
    if metadata.HasField("marker_type"):
        messages, flags = 0, flags & ~IS_BATCH | IS_MARKER
    return (0, 0, 0, command.producer_id, command.sequence_id, command.highest_sequence_id, 0, position + 1,
            0, varints.signed(metadata.publish_time), 0, metadata.deliver_at_time, transaction,
            len(entry), messages, key_hash, flags, checksum, 0)


def stamp(lowest: int, highest: int, key_hash: int) -> int:
    """Return the value for `key_hash` of an entry whose client names the lowest and highest hash of its messages' keys.

    key_hash: the value without them, which stays if they are no 16-bit numbers in their order.

        bit 31     30 .. 16                        15 .. 0
        STAMPED    highest - lowest, at most 2^15  lowest
    """
    if not lowest <= highest <= _HASH_MAX:
        return key_hash
    return STAMPED | min(highest - lowest, _WIDTH_MAX) << HASH_BITS | lowest


def _transaction(command: api.CommandSend) -> int:
    """Return the id of the transaction that a SEND names, as one number.  Raises UnknownTransaction."""
    transaction = names.transaction(command.txnid_most_bits, command.txnid_least_bits)
    if transaction is None:
        raise UnknownTransaction(f"({command.txnid_most_bits},{command.txnid_least_bits})")
    return transaction


def refusal_of_count(entry: bytes, messages: int) -> str:
    """Return why the payload of an entry cannot hold so many messages, or "" when it may.

    Every message takes MESSAGE_MIN bytes.  A compressed payload may be encrypted, and cannot be looked into: the size
    that it claims counts, up to UNPACKED_MAX.  The entry is one that `read_one` has read.
    """
    payload = len(entry) - CHECKSUM_END - 4 - SIZE.unpack_from(entry, CHECKSUM_END)[0]
    if messages * MESSAGE_MIN <= payload or messages == 1:
        return ""
    metadata, _ = _metadata(entry)
    unpacked = min(metadata.uncompressed_size, UNPACKED_MAX) if metadata.compression != api.NONE else 0
    if messages * MESSAGE_MIN <= unpacked:
        return ""
    return f"A batch of {messages} messages does not fit into its payload"


def is_encrypted(entry: memoryview) -> bool:
    """Return True if the payload of an entry, which `read_one` has read, is encrypted by its client."""
    at = CHECKSUM_END + 4
    size = SIZE.unpack_from(entry, CHECKSUM_END)[0]
    return len(api.MessageMetadata.FromString(bytes(entry[at:at + size])).encryption_keys) > 0


def key_of(entry: bytes) -> bytes | None:
    """Return the key by which Key_Shared chooses an entry's consumer, None without one.

    Raises BadChecksum, ProtocolError.
    """
    return _key(_metadata(entry)[0])


def command_of(entry: bytes) -> api.CommandSend:
    """Return the SEND of an entry as far as the entry's metadata tell it: whether it is a chunk, and its transaction.

    Raises BadChecksum, ProtocolError.
    """
    metadata, _ = _metadata(entry)
    command = api.CommandSend(is_chunk=metadata.num_chunks_from_msg > 1)
    if names.transaction(metadata.txnid_most_bits, metadata.txnid_least_bits) is not None:
        command.txnid_most_bits, command.txnid_least_bits = metadata.txnid_most_bits, metadata.txnid_least_bits
    return command


def choose(rows: Rows, data: bytes | memoryview, is_chosen: NDArray[np.bool_]) -> tuple[Rows, bytes]:
    """Return the chosen ones of rows (n,) SEND_ROW with their entries, laid end to end.  is_chosen: (n,)."""
    chosen = rows[is_chosen]
    begins, sizes = chosen["offset"].tolist(), chosen["size"]
    if len(data) == len(rows) * int(sizes[0]) and (rows["size"] == sizes[0]).all():
        entries = np.frombuffer(data, np.uint8).reshape(len(rows), int(sizes[0]))[is_chosen].tobytes()
    else:
        entries = b"".join([data[begin:begin + size] for begin, size in zip(begins, sizes.tolist(), strict=True)])
    chosen["offset"] = np.cumsum(sizes, dtype=np.int64) - sizes
    return chosen, entries


def _has_checksum(data: bytes, at: int) -> bool:
    """Return True if the entry at `at` begins with magic and checksum."""
    return data[at:at + 2] == MAGIC_BYTES


def _metadata(entry: bytes) -> tuple[api.MessageMetadata, int]:
    if len(entry) < CHECKSUM_END:
        raise ProtocolError("SEND ends inside its checksum")
    checksum = SIZE.unpack_from(entry, 2)[0]
    if crc32c(memoryview(entry)[CHECKSUM_END:]) != checksum:
        raise BadChecksum
    at = CHECKSUM_END + 4
    if len(entry) < at:
        raise ProtocolError("SEND ends inside its metadata's size")
    size = SIZE.unpack_from(entry, CHECKSUM_END)[0]
    if size > len(entry) - at:
        raise ProtocolError(f"SEND announces {size} bytes of metadata and has {len(entry) - at}")
    try:
        metadata = api.MessageMetadata.FromString(entry[at:at + size])
    except DecodeError as error:
        raise ProtocolError(f"MessageMetadata cannot be read: {error}") from None
    if not metadata.IsInitialized():
        raise ProtocolError("MessageMetadata lacks a required field")     # consumers could not read the message
    return metadata, checksum


def _key(metadata: api.MessageMetadata) -> bytes | None:
    """Return the key by which Key_Shared subscriptions choose a consumer, or None."""
    if metadata.HasField("ordering_key"):
        return metadata.ordering_key
    if not metadata.HasField("partition_key"):
        return None
    return key_bytes(metadata.partition_key, metadata.partition_key_b64_encoded)


def _key_of_chunk(metadata: api.MessageMetadata) -> bytes:
    """Return the key that keeps the chunks of a message without a key together.

    All of them have their message's sequence id.
    """
    name: str | bytes = metadata.producer_name
    return (name if isinstance(name, bytes) else name.encode()) + b"-%d" % metadata.sequence_id


def key_bytes(key: str | bytes, is_base64: bool) -> bytes:
    """Return the bytes of a key that are hashed.

    A key of bytes is sent in base64; one that is not valid base64 is hashed as sent.  The protobuf library returns a
    string that is not UTF-8 as bytes, which are hashed as they are, here and in a run.
    """
    if is_base64:
        try:
            return base64.b64decode(key, validate=True)
        except (binascii.Error, ValueError):
            pass
    return key if isinstance(key, bytes) else key.encode()


@dataclass(eq=False)
class Layout:
    """The layout of SEND frames that resemble the frame given to `learn`; offsets count from the frame's start."""

    total: int                                      # bytes of a frame
    command_end: int
    head_size: int                                  # bytes before the payload
    template: NDArray[np.uint8]                     # (head_size,): the head of the frame
    tight: NDArray[np.uint8]                        # (head_size,): bits in which all heads are equal
    columns: list[tuple[str, int, int]]             # (field of SEND_ROW, offset, bytes) of each varint that is read
    reach: int                                      # bytes from a frame's start that reading it touches
    row: Rows                                       # (1,) SEND_ROW: the frame's row, for fields that do not differ
    key: tuple[int, int] | None                     # where the key begins and ends, when it may differ
    position: tuple[int, int, int] | None           # where a source position begins, has its colon, and ends
    is_in_transaction: bool
    least: tuple[int, int] | None                   # where a transaction's least bits are, when they may differ

    @cached_property
    def _alone(self) -> tuple[int, int, list[int], list[tuple[int, int]]]:
        """Tight bits of the head, their values, both as one number; a row to fill in; (field, offset) of columns."""
        tight = int.from_bytes(self.tight.tobytes(), "little")
        template = int.from_bytes(self.template.tobytes(), "little")
        numbers = [(field_names(SEND_ROW).index(name), at) for name, at, _ in self.columns]
        return tight, template & tight, list(self.row.tolist()[0]), numbers

    @cached_property
    def coordinator(self) -> int:
        """The most bits of the transactions, where ids have them."""
        return int(self.row["message_index"][0]) & ~names.LEAST_MAX

    def read_one(self, frame: bytes) -> Row | None:
        """Return the row of one frame of `total` bytes, None if the library has to read it.

        Its layout may differ, its checksum be wrong, or a replicator have sent it.
        """
        tight, values, row, numbers = self._alone
        if int.from_bytes(frame[:self.head_size], "little") & tight != values or self.position is not None:
            return None
        for field, at in numbers:      # all that differ, so the list serves every frame
            row[field] = varints.decode(frame, at)[0]
        if self.least is not None:
            if not row[MESSAGE_INDEX]:
                return None
            row[MESSAGE_INDEX] |= self.coordinator
        row[CRC32C] = claimed = SIZE.unpack_from(frame, self.command_end + 2)[0]
        if crc32c(memoryview(frame)[self.command_end + CHECKSUM_END:]) != claimed:
            return None
        if self.key is not None:
            row[KEY_HASH] = mmh3_32_uintdigest(frame[self.key[0]:self.key[1]]) & 0x7FFFFFFF
        return tuple(row)

    def read(self, buffer: NDArray[np.uint8], at: int,
             end: int) -> tuple[Rows, NDArray[np.uint8], NDArray[np.intp]] | None:
        """Return (rows (n,) SEND_ROW, entries (n, size), numbers of entries with a wrong checksum) of a run at `at`.

        The run ends before the first frame with another layout; None when that is the frame at `at`.  The entries are
        views into the buffer.
        """
        # Words are read whole.  A word of the last frame may end behind the frame, but not behind the buffer.
        count = min((end - at) // self.total, (len(buffer) - at - self.reach) // self.total + 1)
        block = buffer[at:at + count * self.total].reshape(count, self.total)
        unlike = (block[:, :self.head_size] ^ self.template) & self.tight
        if unlike.any():
            count = int(unlike.any(axis=1).argmax())
            if count == 0:
                return None
            block = block[:count]
        if self.least is not None and not (is_known := (block[:, slice(*self.least)] & 127).any(axis=1)).all():
            count = int(is_known.argmin())
            if count == 0:
                return None
            block = block[:count]
        entries = block[:, self.command_end:]
        rows: Rows = np.repeat(self.row, count)
        for name, column, size in self.columns:
            rows[name] = varints.read_words(np.ndarray(count, "<u8", buffer, at + column, (self.total,)), size)
        if self.least is not None:
            rows["message_index"] |= np.uint64(self.coordinator)
        claimed = rows["crc32c"] = np.ndarray(count, ">u4", buffer, at + self.command_end + 2, (self.total,))
        if self.key is not None:
            keys = np.ascontiguousarray(block[:, self.key[0]:self.key[1]]).view(f"V{self.key[1] - self.key[0]}").ravel()
            hashes = np.fromiter(map(mmh3_32_uintdigest, keys.tolist()), np.uint32, count)
            rows["key_hash"] = hashes & np.uint32(0x7FFFFFFF)
        if self.position is not None:
            rows["entry_id"] = _read_positions(block, *self.position)
        return rows, entries, checksums.wrong_rows(entries[:, CHECKSUM_END:], claimed)


def _read_positions(block: NDArray[np.uint8], start: int, colon: int, end: int) -> NDArray[np.uint64]:
    """Return 1 + the position (n,) that each row of a block has as text in these columns; 0: it has none there.

    The high halves of the digits' bytes have been compared with those of digits.
    """
    digits = block[:, start:end] & 15
    is_wrong = (digits > 9).any(axis=1, where=np.arange(start, end) != colon)
    ledger_ids, entry_ids = (digits[:, first - start:stop - start].astype(np.uint64) @ _POWERS[first - stop:]
                             for first, stop in ((start, colon), (colon + 1, end)))
    is_wrong |= (ledger_ids > np.uint64(names.LEDGER_MAX)) | (entry_ids > np.uint64(names.ENTRY_MAX))
    positions: NDArray[np.uint64] = (ledger_ids << np.uint64(names.ENTRY_BITS) | entry_ids) + np.uint64(1)
    positions[is_wrong] = 0
    return positions


# Fields of CommandSend and of MessageMetadata whose varint may differ from frame to frame: tag -> field of SEND_ROW.
# Fields without a name are not read: sequence id, event time and highest sequence id of the metadata.
_COMMAND_COLUMNS = {1 << 3: "producer_id", 2 << 3: "sequence_id", 6 << 3: "highest_sequence_id"}
_METADATA_COLUMNS = {2 << 3: "", 3 << 3: "publish_time", 12 << 3: "", 19 << 3: "deliver_at", 24 << 3: ""}
_LEAST, _LEAST_OF_METADATA = 4 << 3, 22 << 3           # bits of a transaction's id
_PRODUCER_NAME = 1 << 3 | 2
_SEND, _PARTITION_KEY, _KEY_IS_BASE64, _ORDERING_KEY = 6 << 3 | 2, 6 << 3 | 2, 17 << 3, 18 << 3 | 2
_STAMP = 33 << 3
_PROPERTY, _PROPERTY_KEY, _PROPERTY_VALUE = 4 << 3 | 2, 1 << 3 | 2, 2 << 3 | 2
_POWERS = np.array([10 ** digit for digit in reversed(range(13))], np.uint64)


def learn(frame: bytes, row: Row) -> Layout | None:
    """Derive the layout of frames that resemble this one, which `read_one` has read as `row`.

    All frames of one layout are in transactions of the same coordinator, or in none.  Return None if the frame has a
    form that clients do not use.
    """
    total, command_end = len(frame), 8 + SIZES.unpack_from(frame, 0)[1]
    if not _has_checksum(frame, command_end) or row[FLAGS] & (IS_MARKER | IS_CHUNK):      # rare, or large
        return None
    metadata_at = command_end + CHECKSUM_END + 4
    head_size = metadata_at + SIZE.unpack_from(frame, metadata_at - 4)[0]
    try:
        outer = fields_of(frame, 8, command_end)
        inner = fields_of(frame, *outer[_SEND])
        metadata = fields_of(frame, metadata_at, head_size)
        position = _position(frame, metadata_at, head_size) if row[ENTRY_ID] else None
    except (ValueError, KeyError):
        return None
    loose = [(name, inner[number]) for number, name in _COMMAND_COLUMNS.items() if number in inner]
    loose += [(name, metadata[number]) for number, name in _METADATA_COLUMNS.items() if number in metadata]
    least = _loose_least(inner, row)
    if least is not None:
        loose += [("message_index", least)]
        loose += [("", metadata[_LEAST_OF_METADATA])] if _LEAST_OF_METADATA in metadata else []
    columns = [(name, at, stop - at) for name, (at, stop) in loose if name]
    if not {"producer_id", "sequence_id", "publish_time"} <= {name for name, _, _ in columns}:
        return None
    if any(size > varints.WORD_MAX for _, _, size in columns):
        return None
    reach = max(total, *(at + varints.WORD_MAX for _, at, _ in columns))
    template = np.frombuffer(frame, np.uint8, head_size).copy()
    tight = np.full(head_size, 255, np.uint8)
    tight[command_end + 2:command_end + CHECKSUM_END] = 0
    for _, (at, stop) in loose:
        tight[at:stop] = 128      # the value of a varint may differ, its length may not
    if (key := _loose_key(metadata)) is not None:
        tight[key[0]:key[1]] = 0
    if position is not None:
        start, colon, end = position
        tight[start:colon] = tight[colon + 1:end] = 0xF0      # any digits
        tight[slice(*metadata[_PRODUCER_NAME])] = 0           # a replicator sends messages of many producers
    return Layout(total, command_end, head_size, template, tight, columns, reach, np.array([row], SEND_ROW), key,
                  position, bool(row[FLAGS] & IN_TRANSACTION), least)


def _position(frame: bytes, at: int, end: int) -> tuple[int, int, int]:
    """Return where a source position, which the metadata have, begins, has its colon, and ends."""
    found = at, at, at
    for tag, start, stop in each_field(frame, at, end):
        if tag == _PROPERTY:
            inner = fields_of(frame, start, stop)
            if frame[slice(*inner[_PROPERTY_KEY])] == names.POSITION_PROPERTY.encode():
                first, last = inner[_PROPERTY_VALUE]
                found = first, frame.index(b":", first, last), last
    return found


def _loose_least(command: dict[int, tuple[int, int]], row: Row) -> tuple[int, int] | None:
    """Return where the least bits of the transaction's id are in the command, None if they must be equal in all frames.
    """
    if not row[FLAGS] & IN_TRANSACTION:
        return None
    at, stop = command[_LEAST]
    return (at, stop) if (1 << 7 * (stop - at)) - 1 <= names.LEAST_MAX else None


def _loose_key(metadata: dict[int, tuple[int, int]]) -> tuple[int, int] | None:
    """Return where a plain key's bytes are in the metadata, or None.

    Frames of one layout may have different plain keys of one length.  An ordering key, a key in base64 or a key beside
    a stamp must be equal in all of them.
    """
    plain = _PARTITION_KEY in metadata and _ORDERING_KEY not in metadata and _KEY_IS_BASE64 not in metadata
    if plain and _STAMP not in metadata and metadata[_PARTITION_KEY][1] > metadata[_PARTITION_KEY][0]:
        return metadata[_PARTITION_KEY]
    return None
