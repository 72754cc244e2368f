"""SEND frames of entries that carry the time at which they were due.

The time is a property of the entry's metadata, `geminga.bench: RUN:MICROSECONDS`, with the microseconds since 1970 in
16 digits.  All entries of a run have the same length, so the property stands at the same distance from the end of
every frame.
"""
import time
from typing import NamedTuple

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from geminga.proto import compression
from geminga.proto import pulsar_api_pb2 as api
from geminga.supervisor.load import wire

PROPERTY = "geminga.bench"
_TIME_WIDTH, _PUBLISH_WIDTH, _KEY_WIDTH = 16, 6, 8
_POWERS = 10 ** np.arange(_TIME_WIDTH - 1, -1, -1, dtype=np.int64)
_KEY_POWERS = 10 ** np.arange(_KEY_WIDTH - 1, -1, -1, dtype=np.int64)
_ZERO = ord("0")
_CHECKED = 6            # the checksum of an entry covers the bytes from here on
_ROWS_MAX, _SIZE_MAX = 4_096, 1 << 21
KEYS_MAX = 10 ** _KEY_WIDTH


class Message(NamedTuple):
    """Size, batch, keys and compression of the messages of a run."""

    size: int
    batch: int = 1
    keys: int = 0            # different keys, in turn; 0: none
    codec: int = api.NONE    # a CompressionType


def random_letters(size: int) -> bytes:
    """Return bytes that a compressor halves at most, as in text."""
    return np.random.default_rng(1).integers(0, 16, size, np.uint8).tobytes().translate(b"0123456789abcdef" * 16)


def stored(message: Message) -> tuple[bytes, int]:
    """Return (payload of an entry, its size before compression)."""
    payload = random_letters(message.size)
    if message.batch > 1:
        singles = [wire.number(3, len(payload)) + wire.number(8, number) for number in range(message.batch)]
        payload = b"".join(len(single).to_bytes(4, "big") + single + payload for single in singles)
    return compression.compress(message.codec, payload), len(payload)


def _entry(name: str, run: str, message: Message, body: bytes, size: int) -> bytes:
    stamp = wire.string(1, PROPERTY) + wire.string(2, f"{run}:{'0' * _TIME_WIDTH}")
    metadata = wire.string(1, name) + wire.number(2, 0) + wire.number(3, 1 << 41) + wire.string(4, stamp)
    if message.keys:
        metadata += wire.string(6, "key-" + "0" * _KEY_WIDTH)
    if message.codec:
        metadata += wire.number(8, message.codec)
    if message.codec or message.batch > 1:
        metadata += wire.number(9, size)
    if message.batch > 1:
        metadata += wire.number(11, message.batch)
    checked = len(metadata).to_bytes(4, "big") + metadata + body
    return b"\x0e\x01" + crc32c(checked).to_bytes(4, "big") + checked


class Block:
    """SEND frames as the rows of one array; the connection's frame number n goes to producer n modulo the producers.

    Messages of a batch share their key, as in key-based batching.
    """

    def __init__(self, name: str, run: str, message: Message, *, producers: int):
        self._one = _entry(name, run, message, *stored(message))
        self._keys = message.keys
        body = (wire.number(1, wire.ID_FIRST) + wire.number(2, wire.SEQUENCE_FIRST) + wire.number(3, message.batch))
        frame = wire.frame(wire.SEND, body, self._one)
        self.rows = max(1, min(_ROWS_MAX, _SIZE_MAX // len(frame)))
        self._array = np.tile(np.frombuffer(frame, np.uint8), (self.rows, 1))
        self._producers = producers
        self._start = len(frame) - len(self._one)
        head = self._one[:len(self._one) - len(stored(message)[0])]
        self._time_at = head.index(run.encode() + b":") + len(run) + 1
        self._publish_at = head.index(wire.number(3, 1 << 41)) + 1
        self._key_at = head.index(b"key-" + b"0" * _KEY_WIDTH) + 4 if message.keys else 0
        self._key_sums = self._sums_of_digits() if message.keys else np.zeros(0, np.uint32)

    def __repr__(self) -> str:
        return f"<Block of {self.rows} frames of {self._array.shape[1]} bytes>"

    def _sums_of_digits(self) -> NDArray[np.uint32]:
        """Return how each digit (column) at each place of the key (row) changes the checksum.

        CRC32-C is linear: a byte that changes has the same effect on the checksum whatever the other bytes are.
        """
        zeros = bytes(len(self._one) - _CHECKED)
        same = crc32c(zeros)
        sums = [[crc32c(zeros[:at] + bytes([digit]) + zeros[at + 1:]) ^ same for digit in range(10)]
                for at in range(self._key_at - _CHECKED, self._key_at - _CHECKED + _KEY_WIDTH)]
        return np.array(sums, np.uint32)

    def stamped(self, first: int, count: int, due_us: int) -> bytes:
        """Return the connection's frames number first to first + count (at most `rows`), due at a time since 1970."""
        entry = bytearray(self._one)
        entry[self._time_at:self._time_at + _TIME_WIDTH] = b"%016d" % due_us
        entry[self._publish_at:self._publish_at + _PUBLISH_WIDTH] = wire.varint(time.time_ns() // 1_000_000)
        checksum = crc32c(memoryview(entry)[_CHECKED:])
        entry[_CHECKED - 4:_CHECKED] = checksum.to_bytes(4, "big")
        rows, end = self._array[:count], max(self._time_at + _TIME_WIDTH, self._publish_at + _PUBLISH_WIDTH)
        rows[:, self._start:self._start + end] = np.frombuffer(entry, np.uint8, end)
        index = np.arange(first, first + count, dtype=np.int64)
        wire.write_varints(rows, wire.SEQUENCE_AT, wire.SEQUENCE_FIRST + index, width=5)
        if self._producers > 1:
            wire.write_varints(rows, wire.ID_AT, wire.ID_FIRST + index % self._producers, width=2)
        if self._keys:
            self._write_keys(rows, index % self._keys, checksum)
        return rows.tobytes()

    def _write_keys(self, rows: NDArray[np.uint8], keys: NDArray[np.int64], checksum: int) -> None:
        digits = keys[:, None] // _KEY_POWERS % 10
        at = self._start + self._key_at
        rows[:, at:at + _KEY_WIDTH] = digits + _ZERO
        sums = np.full(len(rows), checksum, np.uint32)
        for place in range(_KEY_WIDTH):
            sums ^= self._key_sums[place][digits[:, place]]
        at = self._start + _CHECKED - 4
        rows[:, at:at + 4] = sums.astype(">u4").view(np.uint8).reshape(-1, 4)


class Stamps:
    """Finds entries of a run among received frames, and the times at which they were due."""

    def __init__(self, run: str, message: Message):
        one = _entry("", run, message, *stored(message))
        marker = wire.string(1, PROPERTY) + wire.string(2, f"{run}:{'0' * _TIME_WIDTH}")[:-_TIME_WIDTH]
        self._marker = np.frombuffer(marker, np.uint8)
        self._from_end = len(one) - one.index(marker)
        self._columns = np.arange(len(marker))
        self._digits = len(marker) + np.arange(_TIME_WIDTH)

    def __repr__(self) -> str:
        return f"<Stamps {self._marker.tobytes()!r}>"

    def ours(self, data: NDArray[np.uint8], ends: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of the frames that end at these places are of the run."""
        at = np.maximum(ends - self._from_end, 0)
        is_ours: NDArray[np.bool_] = (data[at[:, None] + self._columns] == self._marker).all(1)
        return is_ours

    def due_us(self, data: NDArray[np.uint8], ends: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return when entries of the run that end at these places were due, in microseconds since 1970."""
        digits = data[(ends - self._from_end)[:, None] + self._digits].astype(np.int64) - _ZERO
        return np.asarray(digits @ _POWERS)


def due_us_of(metadata: api.MessageMetadata) -> int | None:
    """Return the time at which a message of the load generator was due, in microseconds since 1970.

    The message, known by its metadata, may be of any run.  None: it is not of the load generator.
    """
    for one in metadata.properties:
        digits = one.value.rpartition(":")[2]
        if one.key == PROPERTY and len(digits) == _TIME_WIDTH and digits.isdigit():
            return int(digits)
    return None
