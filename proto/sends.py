"""SEND frames -> rows: what is stored about an entry, read from many frames at once.

    total command-size  08 06 32 .. 08 PRODUCER 10 SEQUENCE 18 COUNT   0e01 CRC32C metadata-size METADATA payload
    |<------------------ command ---------------------------------->|  |<------------- entry ---------------->|

Frames that follow each other mostly look alike: one length, one layout of fields, other numbers.  `Layout` is learnt from
one frame that the protobuf library has decoded: the bytes of its head (all before the payload) and which of them may
differ.  A run of frames that differ in those bytes only is read by a few operations per column (`Layout.read`); any other
frame goes through the library (`read_one`).  Both give the same row for the same bytes, and a test holds them to it.
"""
import base64
import binascii

import numpy as np
from crc32c import crc32c
from google.protobuf.message import DecodeError
from mmh3 import mmh3_32_uintdigest
from numpy.typing import NDArray

from geminga.proto import checksums, varints
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.batches import MESSAGE_MIN, UNPACKED_MAX
from geminga.proto.errors import ProtocolError
from geminga.proto.frames import CHECKSUM_END, MAGIC, SIZE, SIZES
from geminga.proto.rows import struct_of

SEND_ROW = np.dtype([
    ("producer", "<u8"),             # the owner's handle; 0 until the worker has looked it up
    # What the receipt will say, laid out as a RECEIPT_ROW.
    ("connection", "<u4"),           # the worker's number of it
    ("worker", "<u4"),               # the worker's serial number; the owner fills it in
    ("producer_id", "<u8"),          # the client's number, unique on its connection
    ("sequence_id", "<u8"),
    ("highest_sequence_id", "<u8"),  # of a batch; 0 when not given
    ("ledger_id", "<u8"),            # the owner fills in where the entry goes
    ("entry_id", "<u8"),
    # What the ledger's index will hold, laid out as its row.
    ("offset", "<u8"),               # of the entry in the bytes that travel with the rows
    ("publish_time", "<i8"),         # ms since 1970, the client's clock
    ("broker_time", "<i8"),          # the owner fills it in
    ("deliver_at", "<i8"),           # ms since 1970; 0: at once
    ("message_index", "<u8"),        # the owner fills it in
    ("size", "<u4"),                 # bytes of the entry
    ("messages", "<u4"),             # 1, or how many a batch holds
    ("key_hash", "<u4"),             # Murmur3 of ordering key or key, 31 bits; 0 without HAS_KEY
    ("flags", "<u4"),
    ("crc32c", "<u4"),               # as it stands in the entry
    ("checksum", "<u4"),             # the owner fills it in
])
SEND = struct_of(SEND_ROW)
PRODUCER_ID, MESSAGES = map(SEND_ROW.names.index, ("producer_id", "messages"))
INDEX_FIELDS = SEND_ROW.names[8:]      # laid out as a row of the index

# Bits of `flags`, kept in the index as well.
KEPT_CHECKSUM = 1    # the entry begins with magic and checksum; only ledgers of format version 1 may have others
IS_BATCH = 2         # num_messages_in_batch is present, even when it is 1
IS_CHUNK = 4
HAS_KEY = 8
IS_LAST_CHUNK = 16
CHUNK_ID = 8         # from which bit on the number of the chunk stands, up to CHUNK_ID_MAX
CHUNK_ID_MAX = (1 << 24) - 1

RUN_MIN = 32                   # frames; a shorter run costs less in the library
_TXN_FIELDS = ("txnid_least_bits", "txnid_most_bits")
_MAGIC = MAGIC.to_bytes(2, "big")


class BadChecksum(Exception):
    """The entry's bytes are not those that the producer sent."""


class TransactionsRefused(Exception):
    """The SEND belongs to a transaction."""


def read_one(command: api.CommandSend, entry: bytes) -> tuple:
    """The row of one SEND, in the order of SEND_ROW's fields, with 0 for what is filled in later.

    The entry begins with its checksum.  Raises BadChecksum; ProtocolError when it cannot be read.
    """
    metadata, checksum = _metadata(entry)
    if command.txnid_most_bits or command.txnid_least_bits:
        raise TransactionsRefused
    flags = KEPT_CHECKSUM
    if metadata.HasField("num_messages_in_batch"):
        flags |= IS_BATCH
    if command.is_chunk:
        flags |= IS_CHUNK | min(max(metadata.chunk_id, 0), CHUNK_ID_MAX) << CHUNK_ID
        if metadata.chunk_id + 1 >= metadata.num_chunks_from_msg > 0:
            flags |= IS_LAST_CHUNK
    key = _key(metadata)
    if key is not None:
        flags |= HAS_KEY
    key_hash = 0 if key is None else mmh3_32_uintdigest(key) & 0x7FFFFFFF
    messages = max(1, metadata.num_messages_in_batch)
    return (0, 0, 0, command.producer_id, command.sequence_id, command.highest_sequence_id, 0, 0,
            0, _signed(metadata.publish_time), 0, metadata.deliver_at_time, 0, len(entry), messages, key_hash, flags, checksum, 0)


def overstated(entry: bytes, messages: int) -> str:
    """Why the payload of an entry that has been read cannot hold so many messages; empty where it may.

    Each takes MESSAGE_MIN bytes.  What is compressed, encrypted or not, cannot be looked into: its claimed size counts up to UNPACKED_MAX.
    """
    if messages * MESSAGE_MIN <= len(entry) - CHECKSUM_END - 4 - SIZE.unpack_from(entry, CHECKSUM_END)[0] or messages == 1:
        return ""
    metadata, _ = _metadata(entry)
    if messages * MESSAGE_MIN <= (min(metadata.uncompressed_size, UNPACKED_MAX) if metadata.compression != api.NONE else 0):
        return ""
    return f"A batch of {messages} messages does not fit into its payload"


def is_encrypted(entry: memoryview) -> bool:
    """Whether its client has encrypted an entry that has been read."""
    at = CHECKSUM_END + 4
    size = SIZE.unpack_from(entry, CHECKSUM_END)[0]
    return len(api.MessageMetadata.FromString(bytes(entry[at:at + size])).encryption_keys) > 0


def is_chunk(entry: bytes) -> bool:
    """Whether it is part of a message, as clients say in SEND too.  Raises like read_one."""
    return _metadata(entry)[0].num_chunks_from_msg > 1


def with_checksum(entry: bytes) -> bytes:
    """The entry as it is stored: clients from before protocol version 6 send theirs without magic and checksum."""
    return entry if _has_checksum(entry, 0) else _MAGIC + SIZE.pack(crc32c(entry)) + entry


def _has_checksum(data: bytes, at: int) -> bool:
    """Whether the entry that begins at `at` does."""
    return data[at:at + 2] == _MAGIC


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
        raise ProtocolError("MessageMetadata lacks a required field")     # its consumers could not read it
    return metadata, checksum


def _key(metadata: api.MessageMetadata) -> bytes | None:
    """What decides which consumer of a Key_Shared subscription gets the message."""
    if metadata.HasField("ordering_key"):
        return metadata.ordering_key
    if not metadata.HasField("partition_key"):
        return None
    return key_bytes(metadata.partition_key, metadata.partition_key_b64_encoded)


def key_bytes(key: str | bytes, is_base64: bool) -> bytes:
    """The key as hashed: a key of bytes comes in base64 (one that is not base64 counts as it stands).

    A string that is not UTF-8 the protobuf library gives as bytes; that counts as it stands too, as it does in a run.
    """
    if is_base64:
        try:
            return base64.b64decode(key, validate=True)
        except (binascii.Error, ValueError):
            pass
    return key if isinstance(key, bytes) else key.encode()


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


class Layout:
    """How the SEND frames that look like one frame are laid out; made by `learn`."""

    __slots__ = ("total", "command_end", "head_size", "template", "tight", "columns", "reach", "row", "key")

    def read(self, buffer: NDArray[np.uint8], at: int, end: int) -> tuple[NDArray, NDArray[np.uint8], NDArray[np.intp]] | None:
        """The frames from `at` on that look like this: (rows (n,), entries (n, size), which have a wrong checksum).

        None when already the first does not.  The entries are views into buffer.
        """
        # Words are read whole: those of the last frames may reach behind it, and must not behind the buffer.
        count = min((end - at) // self.total, (len(buffer) - at - self.reach) // self.total + 1)
        block = buffer[at:at + count * self.total].reshape(count, self.total)
        unlike = (block[:, :self.head_size] ^ self.template) & self.tight
        if unlike.any():
            count = int(unlike.any(axis=1).argmax())
            if count == 0:
                return None
            block = block[:count]
        rows, entries = np.repeat(self.row, count), block[:, self.command_end:]
        for name, column, size in self.columns:
            rows[name] = varints.read_words(np.ndarray(count, "<u8", buffer, at + column, (self.total,)), size)
        claimed = rows["crc32c"] = np.ndarray(count, ">u4", buffer, at + self.command_end + 2, (self.total,))
        if self.key is not None:
            keys = np.ascontiguousarray(block[:, self.key[0]:self.key[1]]).view(f"V{self.key[1] - self.key[0]}").ravel()
            rows["key_hash"] = np.fromiter(map(mmh3_32_uintdigest, keys.tolist()), np.uint32, count) & np.uint32(0x7FFFFFFF)
        return rows, entries, checksums.wrong_ones(entries[:, CHECKSUM_END:], claimed)


# Fields whose varint may differ from frame to frame: of CommandSend and of MessageMetadata, by tag (number and wire type).
# With the column they fill; what has none is not looked at: sequence id, event time and highest sequence id of the metadata.
_COMMAND_COLUMNS = {1 << 3: "producer_id", 2 << 3: "sequence_id", 6 << 3: "highest_sequence_id"}
_METADATA_COLUMNS = {2 << 3: "", 3 << 3: "publish_time", 12 << 3: "", 19 << 3: "deliver_at", 24 << 3: ""}
_SEND, _PARTITION_KEY, _KEY_IS_BASE64, _ORDERING_KEY = 6 << 3 | 2, 6 << 3 | 2, 17 << 3, 18 << 3 | 2


def learn(frame: bytes, command: api.CommandSend, row: tuple) -> Layout | None:
    """The layout of frames like this one, which `read_one` has read as `row`; None when it has a form not seen from clients."""
    total, command_size = len(frame), SIZES.unpack_from(frame, 0)[1]
    layout = Layout()
    layout.total, layout.command_end = total, 8 + command_size
    layout.row = np.array([row], SEND_ROW)
    if not _has_checksum(frame, layout.command_end) or any(command.HasField(name) for name in _TXN_FIELDS):
        return None
    metadata_at = layout.command_end + CHECKSUM_END + 4
    layout.head_size = metadata_at + SIZE.unpack_from(frame, metadata_at - 4)[0]
    try:
        outer = _fields(frame, 8, layout.command_end)
        inner = _fields(frame, *outer[_SEND])
        metadata = _fields(frame, metadata_at, layout.head_size)
    except (ValueError, KeyError):
        return None
    loose = [(name, inner[number]) for number, name in _COMMAND_COLUMNS.items() if number in inner]
    loose += [(name, metadata[number]) for number, name in _METADATA_COLUMNS.items() if number in metadata]
    layout.columns = [(name, at, stop - at) for name, (at, stop) in loose if name]
    if not {"producer_id", "sequence_id", "publish_time"} <= {name for name, _, _ in layout.columns}:
        return None
    if any(size > varints.WORD_MAX for _, _, size in layout.columns):
        return None
    layout.reach = max(total, *(at + varints.WORD_MAX for _, at, _ in layout.columns))
    layout.template = np.frombuffer(frame, np.uint8, layout.head_size).copy()
    layout.tight = np.full(layout.head_size, 255, np.uint8)
    layout.tight[layout.command_end + 2:layout.command_end + CHECKSUM_END] = 0
    for _, (at, stop) in loose:
        layout.tight[at:stop] = 128      # what a varint holds may differ, how long it is may not
    _learn_key(layout, metadata)
    return layout


def _learn_key(layout: Layout, metadata: dict[int, tuple[int, int]]) -> None:
    """Plain keys of one length may differ; an ordering key, or one in base64, is the same all through a run."""
    layout.key = None
    plain = _PARTITION_KEY in metadata and _ORDERING_KEY not in metadata and _KEY_IS_BASE64 not in metadata
    if plain and metadata[_PARTITION_KEY][1] > metadata[_PARTITION_KEY][0]:
        layout.key = metadata[_PARTITION_KEY]
        layout.tight[layout.key[0]:layout.key[1]] = 0


def _fields(data: bytes, at: int, end: int) -> dict[int, tuple[int, int]]:
    """Where each field's value lies: {tag: (first byte, byte behind it)}.  Raises ValueError for a repeated number.

    By tag, for a field of another wire type than the definition's is an unknown one.
    """
    found: dict[int, tuple[int, int]] = {}
    while at < end:
        tag, at = varints.decode(data, at)
        if tag in found and tag & 7 == 0:
            raise ValueError("repeated")
        start = at
        if tag & 7 == 0:
            _, at = varints.decode(data, at)
        elif tag & 7 == 2:
            size, start = varints.decode(data, at)
            at = start + size
        elif tag & 7 == 1:
            at += 8
        elif tag & 7 == 5:
            at += 4
        else:
            raise ValueError("groups are not used")
        found[tag] = (start, at)
    if at != end:
        raise ValueError("a field ends behind its message")
    return found
