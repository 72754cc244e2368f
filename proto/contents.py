"""The content of an entry's first message, to tell a message that is sent again from another one with its number."""
from hashlib import blake2b

from google.protobuf.message import DecodeError

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.compression import UNPACKED_MAX, CannotDecompress, decompress
from geminga.proto.frames import CHECKSUM_END, SIZE


def digest_of(entry: bytes | memoryview) -> bytes:
    """Return a hash of the key and the payload of an entry's first message.

    It is the same however a batch is cut and compressed.  An encrypted message has another one each time it is sent.
    The entry is one that `sends.read_one` has read.
    """
    behind = CHECKSUM_END + 4 + SIZE.unpack_from(entry, CHECKSUM_END)[0]
    metadata = api.MessageMetadata.FromString(bytes(entry[CHECKSUM_END + 4:behind]))
    key, payload = metadata.partition_key, bytes(entry[behind:])
    if not metadata.encryption_keys:
        key, payload = _first(metadata, _unpacked(metadata, payload))
    return blake2b(SIZE.pack(len(key.encode())) + key.encode() + payload, digest_size=16).digest()


def _unpacked(metadata: api.MessageMetadata, payload: bytes) -> bytes:
    """Decompress a payload, if it can be: one chunk of a compressed message cannot."""
    if metadata.compression == api.NONE or metadata.uncompressed_size > UNPACKED_MAX:
        return payload
    try:
        return bytes(decompress(metadata.compression, payload, metadata.uncompressed_size))
    except CannotDecompress:
        return payload


def _first(metadata: api.MessageMetadata, payload: bytes) -> tuple[str, bytes]:
    """Return (key, payload) of the first message of a payload; a batch that cannot be read counts as one message."""
    if metadata.HasField("num_messages_in_batch") and len(payload) >= 4:
        behind = 4 + SIZE.unpack_from(payload)[0]
        try:
            own = api.SingleMessageMetadata.FromString(payload[4:behind])
        except DecodeError:
            return metadata.partition_key, payload
        return own.partition_key, payload[behind:behind + max(own.payload_size, 0)]
    return metadata.partition_key, payload
