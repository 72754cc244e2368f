"""`geminga read`: prints a topic's messages as a consumer would get them.

Batches are unpacked, payloads decompressed, chunks joined.  Partitions of a topic are read one after the other. Reading
creates no topic and acknowledges nothing.
"""
from collections.abc import AsyncIterator, Iterator

from geminga.proto import names
from geminga.storage.jobs import one_by_one
from geminga.supervisor.pulsar_client.client import BrokerConnection, ClientError, Entry

# Limit in bytes for a decompressed message, and for all chunks whose messages are incomplete.  No broker can be
# configured to take more.
_MESSAGE_MAX = 256 << 20
_CHUNK = "it is a chunk of a message whose other chunks are not all there"


class Reading:
    """A reader of a topic's messages; `left_out` has a line for each entry that could not be shown."""

    def __init__(self) -> None:
        self.left_out: list[str] = []
        self._chunks: dict[str, list[Entry]] = {}      # uuid of a message that is not complete yet -> its chunks

    def __repr__(self) -> str:
        return f"<Reading left_out={len(self.left_out)} incomplete={len(self._chunks)}>"

    async def messages(self, connection: BrokerConnection, topic: str) -> AsyncIterator[bytes]:
        """Iterate over the payloads of a topic's messages, in order.  Raises ClientError, Refusal."""
        name = names.parse(topic)
        if not name.is_persistent:
            raise ClientError(f"{name} is not persistent: it holds nothing")
        count = await connection.partitions(str(name))
        if count is None:
            raise ClientError(f"there is no topic {name}")
        for part in map(name.partition_name, range(count)) if count else (name,):
            consumer = await connection.subscribe(str(part), makes_topic=False)
            async for run in connection.entries(consumer, await connection.last(consumer)):
                for entry in run:
                    for payload in self._of(entry):
                        yield payload
            await connection.close_consumer(consumer)
            for waiting in self._chunks.values():
                self._leave_out(waiting, _CHUNK)
            self._chunks.clear()

    def _leave_out(self, entries: list[Entry], why: str) -> None:
        self.left_out += [f"{entry.ledger_id}:{entry.entry_id} is not shown: {why}" for entry in entries]

    def _of(self, entry: Entry) -> Iterator[bytes]:
        """Iterate over the payloads of the entry's messages.

        A chunk yields the whole payload if it is the last one of its message, else nothing.
        """
        entries = self._with_chunks(entry) if one_by_one.is_chunk(entry.metadata) else [entry]
        if not entries:
            return
        metadata = entry.metadata
        if one_by_one.is_encrypted(metadata):
            return self._leave_out(entries, "it is encrypted")
        if metadata.uncompressed_size > _MESSAGE_MAX:
            return self._leave_out(entries, f"it claims to have {metadata.uncompressed_size} bytes")
        stored = b"".join(one.payload for one in entries)
        try:
            yield from (message["payload"] for message in one_by_one.messages(metadata, memoryview(stored)))
        except one_by_one.Damaged as error:
            self._leave_out(entries, str(error))

    def _with_chunks(self, entry: Entry) -> list[Entry]:
        """Return all chunks of a message if the entry is the last one, else [].  Repeated chunks are ignored."""
        metadata, uuid = entry.metadata, entry.metadata.uuid
        if metadata.chunk_id == 0:
            self._leave_out(self._chunks.pop(uuid, []), _CHUNK)      # the producer sends it once more
        before = self._chunks.setdefault(uuid, [])
        if metadata.chunk_id < len(before):
            return []
        before.append(entry)
        if metadata.chunk_id >= len(before):
            self._leave_out(self._chunks.pop(uuid), _CHUNK)
            return []
        while sum(len(one.data) for waiting in self._chunks.values() for one in waiting) > _MESSAGE_MAX:
            self._leave_out(self._chunks.pop(next(iter(self._chunks))),
                            "it is a chunk, and more wait for their others than can be held")
        if metadata.chunk_id + 1 < metadata.num_chunks_from_msg:
            return []
        return self._chunks.pop(uuid, [])
