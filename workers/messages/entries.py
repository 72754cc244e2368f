"""Entries as producers send them: single messages and batches, compressed, with their checksum.

Messages of a batch share key and ordering key, so that a Key_Shared subscription gives the batch to the consumer of its
key.  Messages of a batch also share the delivery time, because an entry is delivered as a whole.
"""
import time
from typing import Any, NamedTuple

from geminga.proto import frames, varints
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.compression import compress
from geminga.workers.pulsar_client.entries import entry_data

CODECS = {"none": api.NONE, "lz4": api.LZ4, "zlib": api.ZLIB, "zstd": api.ZSTD, "snappy": api.SNAPPY}
BATCH_BYTES = 128 << 10      # a batch of as many bytes is full, as in Pulsar's clients
_SEQUENCE_ID = bytes((8 << 3,))      # tag of the field in SingleMessageMetadata


class About(NamedTuple):
    """All of a message but its payload.  Many messages may share one object."""

    key: str | None = None
    key_is_base64: bool = False
    ordering_key: bytes | None = None
    properties: tuple[tuple[str, str], ...] = ()
    event_time: int = 0                # ms since 1970; 0: none
    deliver_at: int = 0                # ms since 1970; 0: at once
    is_null: bool = False              # the message has no value, so compaction deletes its key
    replicate_to: tuple[str, ...] = ()               # clusters that get it, among those of the topic; (): all of them


class Outgoing(NamedTuple):
    """A message that is to be published."""

    payload: bytes
    about: About


class Entry(NamedTuple):
    """An entry that is ready to be sent."""

    data: bytes                # from the magic number on
    sequence_id: int           # of its first message
    highest: int               # sequence id of its last message
    messages: int
    payload_bytes: int         # of its messages, before compression


class Making(NamedTuple):
    """Properties that all entries of a producer share."""

    producer_name: str
    schema_version: bytes | None = None
    codec: int = 0             # a CompressionType


class Batch:
    """Messages that wait to become one entry, up to `count_max` or BATCH_BYTES."""

    def __init__(self, making: Making, count_max: int, sequence_id: int) -> None:
        self._making, self._count_max = making, count_max
        self._sequence_id = sequence_id      # of the next message
        self._payloads: list[bytes] = []
        self._abouts: list[About] = []
        self._sequence_ids: list[int] = []
        self._bytes = 0

    def __repr__(self) -> str:
        return f"<Batch {len(self._payloads)} of {self._count_max} messages, {self._bytes} bytes>"

    def __len__(self) -> int:
        return len(self._payloads)

    @property
    def is_full(self) -> bool:
        return len(self._payloads) >= self._count_max or self._bytes >= BATCH_BYTES

    def takes(self, message: Outgoing) -> bool:
        """Tell whether the message may join the waiting ones."""
        if not self._payloads:
            return True
        size, about, last = len(message.payload), message.about, self._abouts[-1]
        if self._bytes + size > BATCH_BYTES:
            return False
        return about is last or (about.key == last.key and about.ordering_key == last.ordering_key
                                 and (about.deliver_at, about.replicate_to) == (last.deliver_at, last.replicate_to))

    def add(self, message: Outgoing, sequence_id: int | None = None) -> None:
        """Add a message.  sequence_id: above all before; None: the one behind the last message's."""
        if sequence_id is None:
            sequence_id = self._sequence_id
        self._payloads.append(message.payload)
        self._abouts.append(message.about)
        self._sequence_ids.append(sequence_id)
        self._sequence_id = sequence_id + 1
        self._bytes += len(message.payload)

    def entry(self) -> Entry:
        """Return the waiting messages, one at least, as an entry, and forget them."""
        payloads, first, highest = self._payloads, self._sequence_ids[0], self._sequence_ids[-1]
        metadata = self._metadata(self._abouts[0], first)
        if len(payloads) == 1:
            body = payloads[0]
        else:
            metadata.num_messages_in_batch = len(payloads)
            metadata.highest_sequence_id = highest
            body = _batched(payloads, self._abouts, self._sequence_ids)
        if self._making.codec:
            metadata.compression, metadata.uncompressed_size = self._making.codec, len(body)      # type: ignore[assignment]
            body = compress(self._making.codec, body)
        entry = Entry(entry_data(metadata, body), first, highest, len(payloads), sum(map(len, payloads)))
        self._payloads, self._abouts, self._sequence_ids, self._bytes = [], [], [], 0
        return entry

    def _metadata(self, about: About, sequence_id: int) -> api.MessageMetadata:
        """Return metadata of an entry that begins with this message."""
        making = self._making
        metadata = api.MessageMetadata(producer_name=making.producer_name, sequence_id=sequence_id,
                                       publish_time=time.time_ns() // 1_000_000)
        if making.schema_version is not None:
            metadata.schema_version = making.schema_version
        if about.deliver_at:
            metadata.deliver_at_time = about.deliver_at
        if about.replicate_to:
            metadata.replicate_to.extend(about.replicate_to)
        if len(self._payloads) == 1:
            describe(metadata, about)
        else:
            describe(metadata, About(about.key, about.key_is_base64, about.ordering_key))
        return metadata


def describe(metadata: Any, about: About) -> None:
    """Write what is known about a message into MessageMetadata or SingleMessageMetadata."""
    for key, value in about.properties:
        metadata.properties.add(key=key, value=value)
    if about.key is not None:
        metadata.partition_key = about.key
        if about.key_is_base64:
            metadata.partition_key_b64_encoded = True
    if about.ordering_key is not None:
        metadata.ordering_key = about.ordering_key
    if about.event_time:
        metadata.event_time = about.event_time
    if about.is_null:
        metadata.null_value = True


def _batched(payloads: list[bytes], abouts: list[About], sequence_ids: list[int]) -> bytes:
    """Return the payload of a batch.

    Metadata of neighbours mostly differ by size and sequence id only.  So all fields before the sequence id are made
    once for each About and size.
    """
    pieces: list[bytes] = []
    last = abouts[0]
    heads: dict[int, bytes] = {}
    pack, varint = frames.SIZE.pack, varints.encode
    for payload, about, sequence_id in zip(payloads, abouts, sequence_ids, strict=True):
        if about is not last:
            last, heads = about, {}
        size = len(payload)
        head = heads.get(size)
        if head is None:
            single = api.SingleMessageMetadata(payload_size=size)
            describe(single, about)
            head = heads[size] = single.SerializeToString() + _SEQUENCE_ID
        number = varint(sequence_id)
        pieces += pack(len(head) + len(number)), head, number, payload
    return b"".join(pieces)
