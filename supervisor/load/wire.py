"""The bytes of the Pulsar protocol that a load generator needs, and no others.

    simple command   [total u32][command size u32][BaseCommand]
    SEND, MESSAGE    the same, then an entry: [0x0e01][crc32c u32][metadata size u32][MessageMetadata][payload]

It shares no code with the broker, so that a mistake there cannot hide here; a test compares what it writes with the
protocol's own definition.  What runs once per message is done for whole blocks with numpy: SEND frames of one length
are the rows of an array in which only a few columns change, and received frames are found by runs of equal length.
"""
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import crc32c
import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

# BaseCommand.Type; for every command here it is also the number of the field that holds the command.
(
    CONNECT,
    CONNECTED,
    SUBSCRIBE,
    PRODUCER,
    SEND,
    SEND_RECEIPT,
    SEND_ERROR,
    MESSAGE,
    ACK,
    FLOW,
    UNSUBSCRIBE,
    SUCCESS,
    ERROR,
) = range(2, 15)
CLOSE_PRODUCER, CLOSE_CONSUMER, PRODUCER_SUCCESS, PING, PONG = range(15, 20)
(
    PARTITIONED_METADATA,
    PARTITIONED_METADATA_RESPONSE,
    LOOKUP,
    LOOKUP_RESPONSE,
    CONSUMER_STATS,
    CONSUMER_STATS_RESPONSE,
) = range(21, 27)
NAMES = {number: name for name, number in list(globals().items()) if name.isupper() and isinstance(number, int)}

PROTOCOL_VERSION = 21
SUBSCRIPTION_TYPES = {"exclusive": 0, "shared": 1, "failover": 2, "key_shared": 3}
LATEST, EARLIEST = 0, 1
INDIVIDUAL, CUMULATIVE = 0, 1

# Ids of producers and consumers start where a varint takes two bytes and end before it takes three; sequence ids
# likewise between five bytes and six.  So the columns of a block of frames never move.
ID_FIRST, ID_COUNT_MAX = 1 << 7, (1 << 14) - (1 << 7)
SEQUENCE_FIRST = 1 << 28

# Offsets within SEND, SEND_RECEIPT and MESSAGE, which all begin [8 bytes of sizes][08 type][tag length][08 id id].
KIND_AT, ID_AT = 9, 13
SEQUENCE_AT = 16        # SEND and SEND_RECEIPT: after the tag of field 2, a varint
MESSAGE_ID_AT = 16      # MESSAGE: after the tag of field 2, the length byte and then a MessageIdData
MESSAGE_ID_SIZE_MAX = 40

# the field of MessageMetadata; the bytes of such times; the least of such times
DELIVER_AT, DELIVER_AT_WIDTH, DELIVER_AT_MIN = 19, 6, 1 << 35
_CHECKED = 6            # the checksum of an entry covers the bytes from here on

_U32 = struct.Struct(">I")
_RUN_MIN = 8        # shorter runs of equal frames than this cost more by numpy than one by one
_RUN_MAX = 1024     # looked at in one step, so that many short runs do not cost the square of the frames
_WALK = 256         # frames walked one by one before looking for a run again; arbitrary, large against _RUN_MIN


class WireError(Exception):
    """The broker's answer does not fit to the request."""


def varint(value: int) -> bytes:
    low = []
    while value >= 0x80:
        low.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*low, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def string(field: int, value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(raw)) + raw


def frame(kind: int, body: bytes, entry: bytes = b"") -> bytes:
    command = number(1, kind) + string(kind, body)
    return _U32.pack(4 + len(command) + len(entry)) + _U32.pack(len(command)) + command + entry


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield (field number, value) of a protobuf message in the order of its bytes, as int, or bytes if a length is
    given.
    """
    at = 0

    def take_varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte, at = message[at], at + 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        tag = take_varint()
        if tag & 7 == 0:
            yield tag >> 3, take_varint()
            continue
        sizes = {1: 8, 5: 4}
        size = take_varint() if tag & 7 == 2 else sizes.get(tag & 7)
        if size is None:
            raise WireError(f"wire type {tag & 7} in an answer of the broker")
        yield tag >> 3, bytes(message[at : at + size])
        at += size


def command_of(data: bytes | bytearray, start: int) -> tuple[int, dict[int, Any]]:
    """Return the kind of the frame at `start`, and the fields of its command (of a repeated field the last)."""
    size = _U32.unpack_from(data, start + 4)[0]
    outer = dict(fields(bytes(data[start + 8 : start + 8 + size])))
    kind = outer[1]
    return kind, dict(fields(outer.get(kind, b"")))


# --- the commands of a client ------------------------------------------------------------------------------------


def connect(method: str = "", credentials: str = "", beyond: str = "") -> bytes:
    """Return a CONNECT frame.  beyond: host:port of the broker that a proxy connects to, "" without a proxy."""
    body = string(1, "geminga-bench") + number(4, PROTOCOL_VERSION)
    if method:
        body += string(3, credentials) + string(5, method)
    return frame(CONNECT, body + (string(6, beyond) if beyond else b""))


def partitioned_metadata(topic: str, request_id: int) -> bytes:
    return frame(PARTITIONED_METADATA, string(1, topic) + number(2, request_id))


def lookup(topic: str, request_id: int) -> bytes:
    return frame(LOOKUP, string(1, topic) + number(2, request_id) + number(3, 0))


def producer(topic: str, producer_id: int, request_id: int, name: str) -> bytes:
    return frame(PRODUCER, string(1, topic) + number(2, producer_id) + number(3, request_id) + string(4, name))


def subscribe(topic: str, subscription: str, kind: str, consumer_id: int, request_id: int, name: str,
              position: int = EARLIEST) -> bytes:
    body = string(1, topic) + string(2, subscription) + number(3, SUBSCRIPTION_TYPES[kind]) + number(4, consumer_id)
    return frame(SUBSCRIBE, body + number(5, request_id) + string(6, name) + number(13, position))


def flow(consumer_id: int, permits: int) -> bytes:
    return frame(FLOW, number(1, consumer_id) + number(2, permits))


def acknowledge(consumer_id: int, ack_type: int, message_ids: bytes) -> bytes:
    """Return an ACK; message_ids: its fields, each the tag of field 3, a length byte and a MessageIdData."""
    return frame(ACK, number(1, consumer_id) + number(2, ack_type) + message_ids)


def unsubscribe(consumer_id: int, request_id: int) -> bytes:
    return frame(UNSUBSCRIBE, number(1, consumer_id) + number(2, request_id))


def close_consumer(consumer_id: int, request_id: int) -> bytes:
    return frame(CLOSE_CONSUMER, number(1, consumer_id) + number(2, request_id))


def pong() -> bytes:
    return frame(PONG, b"")


# --- entries and blocks of SEND ----------------------------------------------------------------------------------


def entry(producer_name: str, payload: bytes, batch: int = 1, key: str | None = None, deliver_at: int = 0) -> bytes:
    """Return one entry: metadata and payload with their checksum; with batch > 1 the payload so many times, packed.

    deliver_at: ms, 0 for at once.  The sequence id in the metadata stays 0: to change it would cost a checksum per
    entry, and brokers go by the one in SEND.
    """
    metadata = string(1, producer_name) + number(2, 0) + number(3, int(time.time() * 1000))
    if key is not None:
        metadata += string(6, key)
    if batch > 1:
        singles = [number(3, len(payload)) + number(8, sequence_id) for sequence_id in range(batch)]
        payload = b"".join(_U32.pack(len(single)) + single + payload for single in singles)
        metadata += number(9, len(payload)) + number(11, batch)
    if deliver_at:
        metadata += number(DELIVER_AT, deliver_at)
    checked = _U32.pack(len(metadata)) + metadata + payload
    return b"\x0e\x01" + _U32.pack(crc32c.crc32c(checked)) + checked


class SendBlock:
    """SEND frames as the rows of one array, for entries of one length; row n goes to producer n modulo the producers.
    """

    def __init__(self, entries: list[bytes], *, batch: int, producers: int):
        assert len({len(one) for one in entries}) == 1
        assert 0 < producers <= ID_COUNT_MAX
        body = number(1, ID_FIRST) + number(2, SEQUENCE_FIRST) + number(3, batch)
        rows = [frame(SEND, body, one) for one in entries]
        self.rows: Bytes = np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1).copy()
        self.producers = producers

    def stamped(self, first: int, count: int) -> bytes:
        """Return the connection's frames number first to first + count; count is at most the number of rows."""
        rows = self.rows[:count]
        index = np.arange(first, first + count, dtype=np.int64)
        write_varints(rows, SEQUENCE_AT, SEQUENCE_FIRST + index, width=5)
        if self.producers > 1:
            write_varints(rows, ID_AT, ID_FIRST + index % self.producers, width=2)
        return rows.tobytes()


class DelayedBlock(SendBlock):
    """SEND frames of delayed messages, whose entries differ in delivery time and checksum."""

    def __init__(self, producer_name: str, payload: bytes, rows: int, times: Callable[[int, int], NDArray[np.int64]], *,
                 producers: int):
        """times: ms of this century, for the connection's entries number first to first + count."""
        one = entry(producer_name, payload, deliver_at=DELIVER_AT_MIN)
        super().__init__([one] * rows, batch=1, producers=producers)
        self.times, start = times, self.rows.shape[1] - len(one)
        at = one.index(number(DELIVER_AT, DELIVER_AT_MIN)) + 2
        self._checksum_at, self._time_at = start + _CHECKED - 4, start + at
        # CRC32-C is linear: a byte that changes has the same effect on the checksum whatever the other bytes are.
        same = bytes(len(one) - _CHECKED)
        self._changes = np.array(
            [
                [crc32c.crc32c(same[:place] + bytes([value]) + same[place + 1 :]) for value in range(256)]
                for place in range(at - _CHECKED, at - _CHECKED + DELIVER_AT_WIDTH)
            ],
            np.uint32,
        ) ^ crc32c.crc32c(same)
        kept = np.frombuffer(one, np.uint8, DELIVER_AT_WIDTH, at)
        self._base = int.from_bytes(one[_CHECKED - 4:_CHECKED], "big") ^ int(self._change_of(kept[None])[0])

    def _change_of(self, varints: Bytes) -> NDArray[np.uint32]:
        found = self._changes[0][varints[:, 0]]
        for place in range(1, DELIVER_AT_WIDTH):
            found = found ^ self._changes[place][varints[:, place]]
        return found

    def stamped(self, first: int, count: int) -> bytes:
        rows = self.rows[:count]
        write_varints(rows, self._time_at, self.times(first, count), width=DELIVER_AT_WIDTH)
        sums = self._base ^ self._change_of(rows[:, self._time_at:self._time_at + DELIVER_AT_WIDTH])
        rows[:, self._checksum_at:self._checksum_at + 4] = sums.astype(">u4").view(np.uint8).reshape(-1, 4)
        return super().stamped(first, count)


def deliver_at_of(data: Bytes, ends: NDArray[np.int64], payload_size: int) -> NDArray[np.int64]:
    """Return the delivery time of each MESSAGE that ends at these places; it stands before the payload."""
    return _read_varints(data, ends - payload_size - DELIVER_AT_WIDTH, width=DELIVER_AT_WIDTH)


def write_varints(rows: Bytes, column: int, values: NDArray[np.int64], *, width: int) -> None:
    """Write value n into rows[n, column:column + width], as a varint of exactly `width` bytes."""
    for byte in range(width - 1):
        rows[:, column + byte] = values >> 7 * byte & 0x7F | 0x80
    rows[:, column + width - 1] = values >> 7 * (width - 1)


# --- reading many frames at once ---------------------------------------------------------------------------------


def frame_starts(data: Bytes, end: int) -> tuple[NDArray[np.int64], int]:
    """Return where each whole frame in data[:end] begins, and where the last of them ends."""
    parts: list[NDArray[np.int64]] = []
    offset = 0
    while end - offset >= 4:
        size = 4 + _U32.unpack_from(data, offset)[0]
        if offset + size > end:
            break
        run = _equal_frames(data, offset, end, size)
        if run < _RUN_MIN:
            walked, offset = _walk(data, offset, end)
            parts.append(np.array(walked, np.int64))
        else:
            parts.append(offset + size * np.arange(run))
            offset += size * run
    return (np.concatenate(parts) if parts else np.zeros(0, np.int64)), offset


def _equal_frames(data: Bytes, offset: int, end: int, size: int) -> int:
    """Return how many frames of this size follow each other: each begins where the one before says it ends."""
    heads = np.ndarray((min(_RUN_MAX, (end - offset) // size),), "<u4", data, offset, (size,))
    same = heads == heads[0]
    return len(same) if same.all() else int(same.argmin())


def _walk(data: Bytes, offset: int, end: int) -> tuple[list[int], int]:
    walked: list[int] = []
    unpack = _U32.unpack_from
    view = memoryview(data)
    while end - offset >= 4 and len(walked) < _WALK:
        size = 4 + unpack(view, offset)[0]
        if offset + size > end:
            break
        walked.append(offset)
        offset += size
    return walked, offset


def _read_varints(data: Bytes, at: NDArray[np.int64], *, width: int) -> NDArray[np.int64]:
    value = np.zeros(len(at), np.int64)
    for byte in range(width):
        value |= (data[at + byte].astype(np.int64) & 0x7F) << 7 * byte
    return value


def ids_of(data: Bytes, starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the producer's or consumer's number (from 0) of each SEND_RECEIPT or MESSAGE."""
    if (data[starts + ID_AT - 1] != 0x08).any():
        raise WireError("the first field of a SEND_RECEIPT or MESSAGE is not the id: this reader knows no other order")
    return _read_varints(data, starts + ID_AT, width=2) - ID_FIRST


def sequences_of(data: Bytes, starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of the entry (from 0, on its connection) that each SEND_RECEIPT is for."""
    if (data[starts + SEQUENCE_AT - 1] != 2 << 3).any():
        raise WireError("the second field of a SEND_RECEIPT is not the sequence id: this reader knows no other order")
    return _read_varints(data, starts + SEQUENCE_AT, width=5) - SEQUENCE_FIRST
