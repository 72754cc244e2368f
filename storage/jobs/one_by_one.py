"""Read the messages of one entry with the protobuf library.

reading.py must return the same messages for entries that it reads as arrays.
"""
from collections.abc import Iterator
from typing import Any, TypeAlias

from google.protobuf.message import DecodeError

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.compression import CannotDecompress, decompress
from geminga.proto.frames import CHECKSUM_END, MAGIC, SIZE

Message: TypeAlias = dict[str, Any]      # columns of message_columns.SCHEMA, without those of the index
_START = MAGIC.to_bytes(2, "big")


class Damaged(Exception):
    """Error: the entry cannot be read.  The text gives the reason."""


def split(entry: bytes) -> tuple[api.MessageMetadata, memoryview]:
    """Return an entry's metadata, and its stored payload.  Raises Damaged."""
    offset = CHECKSUM_END if entry[:2] == _START else 0      # ledgers of format version 1 have some without a checksum
    if len(entry) < offset + 4 or (behind := offset + 4 + SIZE.unpack_from(entry, offset)[0]) > len(entry):
        raise Damaged("its metadata are longer than it")
    try:
        return api.MessageMetadata.FromString(bytes(entry[offset + 4:behind])), memoryview(entry)[behind:]
    except DecodeError:
        raise Damaged("its metadata cannot be read") from None


def is_encrypted(metadata: api.MessageMetadata) -> bool:
    return len(metadata.encryption_keys) > 0


def is_chunk(metadata: api.MessageMetadata) -> bool:
    return metadata.num_chunks_from_msg > 1


def messages(metadata: api.MessageMetadata, stored: memoryview) -> Iterator[Message]:
    """Yield the messages of an entry, each with the columns of `message` and its batch_index.

    Raises Damaged.
    """
    payload = stored if is_encrypted(metadata) else undone(metadata, stored)
    if not metadata.HasField("num_messages_in_batch") or is_encrypted(metadata):
        yield message(metadata, metadata, payload) | {"batch_index": None}
        return
    for index, single, its in singles(metadata, payload):
        if not single.compacted_out:
            yield message(metadata, single, its) | {"batch_index": index}


def singles(metadata: api.MessageMetadata, payload: memoryview
            ) -> Iterator[tuple[int, api.SingleMessageMetadata, memoryview]]:
    """Yield (index, metadata, payload) of each message of a batch.  Raises Damaged.

    metadata: of its entry.  payload: of its entry, decompressed.
    """
    offset = 0
    for index in range(metadata.num_messages_in_batch):
        if len(payload) < offset + 4 or (behind := offset + 4 + SIZE.unpack_from(payload, offset)[0]) > len(payload):
            raise Damaged(f"message {index} of its batch is cut")
        try:
            single = api.SingleMessageMetadata.FromString(bytes(payload[offset + 4:behind]))
        except DecodeError:
            raise Damaged(f"metadata of message {index} of its batch cannot be read") from None
        offset = behind + single.payload_size
        if single.payload_size < 0 or offset > len(payload):
            raise Damaged(f"message {index} of its batch is cut")
        yield index, single, payload[behind:offset]


def check(metadata: api.MessageMetadata, stored: memoryview) -> None:
    """Check that all messages of an entry can be read, and keep none.  Raises Damaged."""
    for _ in messages(metadata, stored):
        pass


def undone(metadata: api.MessageMetadata, stored: bytes | memoryview) -> memoryview:
    """Return the decompressed payload of an entry.  Raises Damaged."""
    try:
        return memoryview(decompress(metadata.compression, stored, metadata.uncompressed_size))
    except CannotDecompress as error:
        raise Damaged(f"its payload {error}") from None


def message(outer: api.MessageMetadata, own: api.MessageMetadata | api.SingleMessageMetadata,
            payload: bytes | memoryview) -> Message:
    """Return {column: value} of one message.

    own: the metadata of the message. outer: the metadata of its entry.
    """
    sequence_id = own.sequence_id if own.HasField("sequence_id") else outer.sequence_id
    return {
        "event_time": own.event_time - (own.event_time >> 63 << 64),
        "key": _raw(own.partition_key) if own.HasField("partition_key") else None,
        "key_is_base64": own.partition_key_b64_encoded,
        "ordering_key": own.ordering_key if own.HasField("ordering_key") else None,
        "properties": [(_raw(pair.key), _raw(pair.value)) for pair in own.properties],
        "producer": _raw(outer.producer_name) if outer.HasField("producer_name") else None,
        "sequence_id": sequence_id - (sequence_id >> 63 << 64),
        "payload": bytes(payload), "payload_size": len(payload),
        "schema_version": outer.schema_version if outer.HasField("schema_version") else None,
        "null_value": own.null_value,
        "is_encrypted": is_encrypted(outer),
    }


def _raw(text: str | bytes) -> bytes:
    """Return a string of protobuf as bytes.  The library returns strings that are not UTF-8 as bytes already."""
    return text if isinstance(text, bytes) else text.encode()
