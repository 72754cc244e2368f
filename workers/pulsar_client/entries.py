"""Entries as they are stored: a message, a batch of several, or a chunk of a large one."""
from typing import NamedTuple

from geminga.proto import frames
from geminga.proto import pulsar_api_pb2 as api


class Entry(NamedTuple):
    """An entry with its checksum, as it is stored, and its position."""

    ledger_id: int
    entry_id: int
    metadata: api.MessageMetadata
    data: bytes
    redelivery_count: int = 0
    ack_set: tuple[int, ...] = ()      # words with a 1 for each message of the batch that is left; (): all are

    @property
    def payload(self) -> bytes:
        size = frames.SIZE.unpack_from(self.data, frames.CHECKSUM_END)[0]
        return self.data[frames.CHECKSUM_END + 4 + size:]

    @property
    def messages(self) -> int:
        return max(1, self.metadata.num_messages_in_batch)


def signed(number: int) -> int:
    """Return 64 bits as the signed number that protobuf has for them."""
    return number - (number >> 63 << 64)


def ack_set_of(left: int, messages: int) -> list[int]:
    """Return messages of a batch that are left, as bits, in the words of an ack_set."""
    return [signed(left >> at & (1 << 64) - 1) for at in range(0, messages, 64)]


def entry_of(message: api.CommandMessage, data: bytes) -> Entry:
    """Return the entry that a MESSAGE frame brought."""
    data, place = frames.with_checksum(data), message.message_id
    size = frames.SIZE.unpack_from(data, frames.CHECKSUM_END)[0]
    metadata = api.MessageMetadata.FromString(data[frames.CHECKSUM_END + 4:frames.CHECKSUM_END + 4 + size])
    return Entry(place.ledgerId, place.entryId, metadata, data, message.redelivery_count, tuple(message.ack_set))


def entry_data(metadata: api.MessageMetadata, payload: bytes) -> bytes:
    """Return the bytes of an entry, with its checksum."""
    raw = metadata.SerializeToString()
    return frames.with_checksum(b"".join((frames.SIZE.pack(len(raw)), raw, payload)))
