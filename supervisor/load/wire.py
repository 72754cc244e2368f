"""The bytes of the Pulsar protocol that a load generator needs, and no others.

    simple command   [total u32][command size u32][BaseCommand]
    SEND, MESSAGE    the same, then an entry: [0x0e01][crc32c u32][metadata size u32][MessageMetadata][payload]

It shares no code with the broker, so that a mistake there cannot hide here; a test compares what it writes with the
protocol's own definition.  What runs once per message is done for whole blocks with numpy: SEND frames of one length
are the rows of an array in which only a few columns change, and received frames are found by runs of equal length.
"""
import struct
from collections.abc import Iterator
from typing import Any

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

PROTOCOL_VERSION = 21
SUBSCRIPTION_TYPES = {"exclusive": 0, "shared": 1, "failover": 2, "key_shared": 3}
LATEST, EARLIEST = 0, 1
INDIVIDUAL, CUMULATIVE = 0, 1

# Ids of producers and consumers start where a varint takes two bytes and end before it takes three; sequence ids
# likewise between five bytes and six.  So the columns of a block of frames never move.
ID_FIRST = 1 << 7
SEQUENCE_FIRST = 1 << 28

# Offsets within SEND, SEND_RECEIPT and MESSAGE, which all begin [8 bytes of sizes][08 type][tag length][08 id id].
KIND_AT, ID_AT = 9, 13
SEQUENCE_AT = 16        # SEND and SEND_RECEIPT: after the tag of field 2, a varint
MESSAGE_ID_AT = 16      # MESSAGE: after the tag of field 2, the length byte and then a MessageIdData

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


def close_consumer(consumer_id: int, request_id: int) -> bytes:
    return frame(CLOSE_CONSUMER, number(1, consumer_id) + number(2, request_id))


def pong() -> bytes:
    return frame(PONG, b"")


# --- writing and reading many frames at once ----------------------------------------------------------------------


def write_varints(rows: Bytes, column: int, values: NDArray[np.int64], *, width: int) -> None:
    """Write value n into rows[n, column:column + width], as a varint of exactly `width` bytes."""
    for byte in range(width - 1):
        rows[:, column + byte] = values >> 7 * byte & 0x7F | 0x80
    rows[:, column + width - 1] = values >> 7 * (width - 1)


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


def read_varints(data: Bytes, at: NDArray[np.int64], *, width: int) -> NDArray[np.int64]:
    value = np.zeros(len(at), np.int64)
    for byte in range(width):
        value |= (data[at + byte].astype(np.int64) & 0x7F) << 7 * byte
    return value


def ids_of(data: Bytes, starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the producer's or consumer's number (from 0) of each SEND_RECEIPT or MESSAGE."""
    if (data[starts + ID_AT - 1] != 0x08).any():
        raise WireError("the first field of a SEND_RECEIPT or MESSAGE is not the id: this reader knows no other order")
    return read_varints(data, starts + ID_AT, width=2) - ID_FIRST


def sequences_of(data: Bytes, starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of the entry (from 0, on its connection) that each SEND_RECEIPT is for."""
    if (data[starts + SEQUENCE_AT - 1] != 2 << 3).any():
        raise WireError("the second field of a SEND_RECEIPT is not the sequence id: this reader knows no other order")
    return read_varints(data, starts + SEQUENCE_AT, width=5) - SEQUENCE_FIRST
