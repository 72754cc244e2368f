"""Entries -> messages: batches are unpacked, payloads decompressed, chunks joined."""
from collections.abc import Iterator, Sequence

from google.protobuf.message import DecodeError

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.frames import SIZE
from geminga.storage.jobs import one_by_one
from geminga.workers.messages.message import Message, text_of, texts_of
from geminga.workers.pulsar_client.entries import Entry, signed

# Limit in bytes for a decompressed message, and for all chunks whose messages are incomplete.  No broker can be
# configured to take more.
MESSAGE_MAX = 256 << 20
LEFT_OUT_MAX = 10_000       # lines that are kept until somebody takes them; a follow may see damage for ever
MISSING_CHUNKS = "it is a chunk of a message whose other chunks are not all there"


class Decoder:
    """Makes messages of entries.

    Chunks of several topics may come mixed.  `left_out` has a line for each entry that has no messages to show.
    """

    def __init__(self) -> None:
        self.left_out: list[str] = []
        self._chunks: dict[tuple[str, str], list[Entry]] = {}      # (topic, uuid) of incomplete messages -> chunks

    def __repr__(self) -> str:
        return f"<Decoder left_out={len(self.left_out)} incomplete={len(self._chunks)}>"

    def messages(self, topic: str, entry: Entry) -> Iterator[Message]:
        """Iterate over an entry's messages, in order; `topic` is the name of its topic or partition.

        A chunk yields the whole message if it is the last one, else nothing.
        """
        metadata = entry.metadata
        if metadata.HasField("marker_type"):
            return
        entries = self._with_chunks(topic, entry) if one_by_one.is_chunk(metadata) else [entry]
        if not entries:
            return
        if one_by_one.is_encrypted(metadata):
            return self._leave_out(entries, "it is encrypted")
        if metadata.uncompressed_size > MESSAGE_MAX:
            return self._leave_out(entries, f"it claims to have {metadata.uncompressed_size} bytes")
        stored = entry.payload if len(entries) == 1 else b"".join(one.payload for one in entries)
        try:
            payload = bytes(one_by_one.undone(metadata, stored)) if metadata.compression else stored
            if metadata.HasField("num_messages_in_batch"):
                yield from _batch(topic, entry, payload)
            else:
                yield single(topic, entries, payload)
        except one_by_one.Damaged as error:
            self._leave_out(entries, str(error))

    def end(self, topic: str | None = None) -> None:
        """Leave out the incomplete messages of a topic, or of all: their other chunks will not come."""
        for place in [place for place in self._chunks if topic in (None, place[0])]:
            self._leave_out(self._chunks.pop(place), MISSING_CHUNKS)

    def forget(self) -> None:
        """Forget incomplete messages: all of their chunks come once more."""
        self._chunks.clear()

    def _leave_out(self, entries: list[Entry], why: str) -> None:
        if len(self.left_out) < LEFT_OUT_MAX:
            self.left_out += [f"{entry.ledger_id}:{entry.entry_id} is not shown: {why}" for entry in entries]

    def _with_chunks(self, topic: str, entry: Entry) -> list[Entry]:
        """Return all chunks of a message if the entry is the last one, else [].  Repeated chunks are ignored."""
        metadata, place = entry.metadata, (topic, entry.metadata.uuid)
        if metadata.chunk_id == 0:
            self._leave_out(self._chunks.pop(place, []), MISSING_CHUNKS)      # the producer sends it once more
        before = self._chunks.setdefault(place, [])
        if metadata.chunk_id < len(before):
            return []
        before.append(entry)
        if metadata.chunk_id >= len(before):
            self._leave_out(self._chunks.pop(place), MISSING_CHUNKS)
            return []
        while sum(len(one.data) for waiting in self._chunks.values() for one in waiting) > MESSAGE_MAX:
            self._leave_out(self._chunks.pop(next(iter(self._chunks))),
                            "it is a chunk, and more wait for their others than can be held")
        if metadata.chunk_id + 1 < metadata.num_chunks_from_msg:
            return []
        return self._chunks.pop(place, [])


def single(topic: str, entries: list[Entry], payload: bytes) -> Message:
    """Return the message of an entry that is not a batch, or of all chunks; its position is the last chunk's."""
    entry = entries[-1]
    own = entry.metadata
    return Message(
        topic, entry.ledger_id, entry.entry_id, -1, 0, names.parse(topic).partition, payload,
        text_of(own.partition_key) if own.HasField("partition_key") else None,
        own.ordering_key if own.HasField("ordering_key") else None,
        texts_of(own.properties), own.publish_time, own.event_time,
        max(0, own.deliver_at_time), text_of(own.producer_name), signed(own.sequence_id),
        own.schema_version if own.HasField("schema_version") else None, entry.redelivery_count, own.null_value,
        own.partition_key_b64_encoded,
        tuple((one.ledger_id, one.entry_id) for one in entries) if len(entries) > 1 else (),
        schema_id=own.schema_id if own.HasField("schema_id") else None)


def _batch(topic: str, entry: Entry, payload: bytes) -> Iterator[Message]:
    """Iterate over the messages of a batch, without those that compaction or an acknowledgement took out of it.

    Raises Damaged.
    """
    outer = entry.metadata
    count, publish_ms, deliver_ms = outer.num_messages_in_batch, outer.publish_time, max(0, outer.deliver_at_time)
    producer, sequence_id = text_of(outer.producer_name), signed(outer.sequence_id)
    version = outer.schema_version if outer.HasField("schema_version") else None
    schema_id = outer.schema_id if outer.HasField("schema_id") else None
    partition, (ledger_id, entry_id), redelivered = names.parse(topic).partition, entry[:2], entry.redelivery_count
    parse, size_at, at, end = api.SingleMessageMetadata.FromString, SIZE.unpack_from, 0, len(payload)
    for index in range(count):
        if end < at + 4 or (behind := at + 4 + size_at(payload, at)[0]) > end:
            raise one_by_one.Damaged(f"message {index} of its batch is cut")
        try:
            own = parse(payload[at + 4:behind])
        except DecodeError:
            raise one_by_one.Damaged(f"metadata of message {index} of its batch cannot be read") from None
        size = own.payload_size
        at = behind + size
        if size < 0 or at > end:
            raise one_by_one.Damaged(f"message {index} of its batch is cut")
        if own.compacted_out or (entry.ack_set and not _is_left(entry.ack_set, index)):
            continue
        properties = own.properties
        yield Message(
            topic, ledger_id, entry_id, index, count, partition, payload[behind:at],
            text_of(own.partition_key) if own.HasField("partition_key") else None,
            own.ordering_key if own.HasField("ordering_key") else None,
            texts_of(properties) if properties else {}, publish_ms,
            own.event_time, deliver_ms, producer,
            signed(own.sequence_id) if own.HasField("sequence_id") else sequence_id, version, redelivered,
            own.null_value, own.partition_key_b64_encoded, schema_id=schema_id)


def _is_left(ack_set: Sequence[int], index: int) -> bool:
    """Whether a batch's message is not acknowledged yet: its bit in the words of the set is 1."""
    word = index >> 6
    return word < len(ack_set) and bool(ack_set[word] >> (index & 63) & 1)
