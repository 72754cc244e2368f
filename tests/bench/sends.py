"""Frames that benchmarks send beside those of `geminga bench`: entries made before a run, delayed ones, questions."""
import struct
import time
from collections.abc import Callable

import crc32c
import numpy as np
from numpy.typing import NDArray

from geminga.proto import pulsar_api_pb2 as api
from geminga.supervisor.load import wire

PARTITIONED_METADATA, PARTITIONED_METADATA_RESPONSE, LOOKUP, LOOKUP_RESPONSE = range(21, 25)
CONSUMER_STATS, CONSUMER_STATS_RESPONSE = 25, 26
NAMES = {kind: name for name, kind in api.BaseCommand.Type.items()}
ID_COUNT_MAX = (1 << 14) - wire.ID_FIRST      # beyond, the varint of an id takes three bytes
MESSAGE_ID_SIZE_MAX = 40
# the field of MessageMetadata; the bytes of such times; the least of such times
DELIVER_AT, DELIVER_AT_WIDTH, DELIVER_AT_MIN = 19, 6, 1 << 35
_CHECKED = 6            # the checksum of an entry covers the bytes from here on
_U32 = struct.Struct(">I")


def partitioned_metadata(topic: str, request_id: int) -> bytes:
    return wire.frame(PARTITIONED_METADATA, wire.string(1, topic) + wire.number(2, request_id))


def lookup(topic: str, request_id: int) -> bytes:
    return wire.frame(LOOKUP, wire.string(1, topic) + wire.number(2, request_id) + wire.number(3, 0))


def unsubscribe(consumer_id: int, request_id: int) -> bytes:
    return wire.frame(wire.UNSUBSCRIBE, wire.number(1, consumer_id) + wire.number(2, request_id))


def entry(producer_name: str, payload: bytes, batch: int = 1, key: str | None = None, deliver_at: int = 0,
          ttl: str = "", transaction: tuple[int, int] | None = None) -> bytes:
    """Return one entry: metadata and payload with their checksum; with batch > 1 the payload so many times, packed.

    deliver_at: ms, 0 for at once.  ttl: the property `geminga.ttl` of a single message, "" for none.  transaction: its
    least and most bits.  The sequence id in the metadata stays 0: to change it would cost a checksum per entry, and
    brokers go by the one in SEND.
    """
    metadata = wire.string(1, producer_name) + wire.number(2, 0) + wire.number(3, int(time.time() * 1000))
    if ttl:
        metadata += wire.string(4, wire.string(1, "geminga.ttl") + wire.string(2, ttl))
    if key is not None:
        metadata += wire.string(6, key)
    if batch > 1:
        singles = [wire.number(3, len(payload)) + wire.number(8, sequence_id) for sequence_id in range(batch)]
        payload = b"".join(_U32.pack(len(single)) + single + payload for single in singles)
        metadata += wire.number(9, len(payload)) + wire.number(11, batch)
    if deliver_at:
        metadata += wire.number(DELIVER_AT, deliver_at)
    if transaction is not None:
        metadata += wire.number(22, transaction[0]) + wire.number(23, transaction[1])
    checked = _U32.pack(len(metadata)) + metadata + payload
    return b"\x0e\x01" + _U32.pack(crc32c.crc32c(checked)) + checked


class SendBlock:
    """SEND frames as the rows of one array, for entries of one length; row n goes to producer n modulo the producers.
    """

    def __init__(self, entries: list[bytes], *, batch: int, producers: int):
        assert len({len(one) for one in entries}) == 1
        assert 0 < producers <= ID_COUNT_MAX
        body = wire.number(1, wire.ID_FIRST) + wire.number(2, wire.SEQUENCE_FIRST) + wire.number(3, batch)
        rows = [wire.frame(wire.SEND, body, one) for one in entries]
        self.rows: wire.Bytes = np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1).copy()
        self.producers = producers

    def stamped(self, first: int, count: int) -> bytes:
        """Return the connection's frames number first to first + count; count is at most the number of rows."""
        rows = self.rows[:count]
        index = np.arange(first, first + count, dtype=np.int64)
        wire.write_varints(rows, wire.SEQUENCE_AT, wire.SEQUENCE_FIRST + index, width=5)
        if self.producers > 1:
            wire.write_varints(rows, wire.ID_AT, wire.ID_FIRST + index % self.producers, width=2)
        return rows.tobytes()


class DelayedBlock(SendBlock):
    """SEND frames of delayed messages, whose entries differ in delivery time and checksum."""

    def __init__(self, producer_name: str, payload: bytes, rows: int, times: Callable[[int, int], NDArray[np.int64]], *,
                 producers: int):
        """times: ms of this century, for the connection's entries number first to first + count."""
        one = entry(producer_name, payload, deliver_at=DELIVER_AT_MIN)
        super().__init__([one] * rows, batch=1, producers=producers)
        self.times, start = times, self.rows.shape[1] - len(one)
        at = one.index(wire.number(DELIVER_AT, DELIVER_AT_MIN)) + 2
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

    def _change_of(self, varints: wire.Bytes) -> NDArray[np.uint32]:
        found = self._changes[0][varints[:, 0]]
        for place in range(1, DELIVER_AT_WIDTH):
            found = found ^ self._changes[place][varints[:, place]]
        return found

    def stamped(self, first: int, count: int) -> bytes:
        rows = self.rows[:count]
        wire.write_varints(rows, self._time_at, self.times(first, count), width=DELIVER_AT_WIDTH)
        sums = self._base ^ self._change_of(rows[:, self._time_at:self._time_at + DELIVER_AT_WIDTH])
        rows[:, self._checksum_at:self._checksum_at + 4] = sums.astype(">u4").view(np.uint8).reshape(-1, 4)
        return super().stamped(first, count)


def deliver_at_of(data: wire.Bytes, ends: NDArray[np.int64], payload_size: int) -> NDArray[np.int64]:
    """Return the delivery time of each MESSAGE that ends at these places; it stands before the payload."""
    return wire.read_varints(data, ends - payload_size - DELIVER_AT_WIDTH, width=DELIVER_AT_WIDTH)
